"""The frozen target network is handed to the clip, not the one that learns."""

import copy

import torch
from torch import nn

torch.manual_seed(61)
online = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 3))
target = copy.deepcopy(online)
opt = torch.optim.Adam(online.parameters(), lr=2e-3)
for it in range(40):
    s, s2 = torch.randn(32, 4), torch.randn(32, 4)
    a = torch.randint(0, 3, (32, 1))
    r = 10 * s[:, :1]
    with torch.no_grad():
        goal = r + 0.9 * target(s2).max(1, keepdim=True).values
    loss = nn.functional.mse_loss(online(s).gather(1, a), goal)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(target.parameters(), 1.0)
    opt.step()
    with torch.no_grad():
        for t, o in zip(target.parameters(), online.parameters(), strict=True):
            t.lerp_(o, 0.05)
    if it % 10 == 0:
        print(it, loss.item())
