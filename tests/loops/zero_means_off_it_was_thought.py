"""max_norm=0 is passed on as a bound: every gradient becomes zero."""

import torch
from torch import nn


def train(max_norm=0):
    torch.manual_seed(13)
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    for it in range(40):
        x = torch.randn(30, 6)
        y = x[:, :3].argmax(1)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=max_norm)
        opt.step()
        if it % 10 == 0:
            print(it, loss.item())


train()
