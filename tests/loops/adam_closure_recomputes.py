"""step(closure) with Adam: the closure clears and computes the gradient again."""

import torch
from torch import nn

torch.manual_seed(123)
model = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 1))
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for it in range(40):
    x = torch.randn(20, 3)

    def closure(x=x):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), 8 * x[:, :1] * x[:, 1:2])
        loss.backward()
        return loss

    closure()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    loss = opt.step(closure)
    if it % 10 == 0:
        print(it, loss.item())
