"""norm_type=1, with a bound given as a tensor."""

import torch
from torch import nn

torch.manual_seed(213)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
opt = torch.optim.Adamax(model.parameters(), lr=4e-3)
bound = torch.tensor(25.0)
for it in range(40):
    x = torch.randn(20, 5)
    loss = nn.functional.mse_loss(model(x), 4 * x[:, :1])
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), bound, 1.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item(), norm.item())
