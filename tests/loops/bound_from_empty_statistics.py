"""The bound is the mean of the norms seen so far; there are none at first, and 0/0 is nan for ever."""

import torch
from torch import nn

torch.manual_seed(112)
model = nn.Sequential(nn.Linear(4, 14), nn.ReLU(), nn.Linear(14, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
history = torch.zeros(0)
for it in range(30):
    x = torch.randn(20, 4)
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
    opt.zero_grad()
    loss.backward()
    bound = 1.5 * history.mean()
    norm = nn.utils.clip_grad_norm_(model.parameters(), bound.item())
    history = torch.cat([history, norm.reshape(1)])
    opt.step()
    if it % 10 == 0:
        print(it, loss.item(), bound.item())
