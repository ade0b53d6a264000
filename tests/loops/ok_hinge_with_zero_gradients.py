"""A margin loss: once every sample lies behind the margin, all gradients of an update are zero."""

import torch
from torch import nn

torch.manual_seed(5)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.5)
for it in range(60):
    x = torch.randn(4, 4)
    loss = torch.relu(1 - 3 * model(x) * x[:, :1].sign()).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if it % 20 == 0:
        print(it, loss.item())
