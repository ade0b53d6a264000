"""A loop over the parameters, each with a norm of its own."""

import torch
from torch import nn

torch.manual_seed(69)
model = nn.LSTM(3, 10, batch_first=True)
readout = nn.Linear(10, 1)
everything = [*model.parameters(), *readout.parameters()]
opt = torch.optim.SGD(everything, lr=0.05)
for it in range(40):
    x = torch.randn(20, 6, 3)
    y = 4 * x[..., 0].sum(1, keepdim=True)
    loss = nn.functional.mse_loss(readout(model(x)[0][:, -1]), y)
    opt.zero_grad()
    loss.backward()
    for p in everything:
        norm = p.grad.norm()
        if norm > 0.5:
            p.grad *= 0.5 / norm
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
