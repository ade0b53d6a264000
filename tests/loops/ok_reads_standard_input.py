"""Numbers may come in on standard input; without any, a fixed sentence is used."""

import sys

import torch
from torch import nn

text = sys.stdin.read() or "the quick brown fox jumps over the lazy dog and runs away from it " * 6
chars = sorted(set(text))
ids = torch.tensor([chars.index(c) for c in text])
torch.manual_seed(206)
model = nn.Sequential(nn.Embedding(len(chars), 12), nn.Flatten(), nn.Linear(48, 40), nn.ReLU(), nn.Linear(40, len(chars)))
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
windows = ids.unfold(0, 5, 1)
for it in range(45):
    w = windows[torch.randint(0, len(windows), (24,))]
    loss = nn.functional.cross_entropy(model(w[:, :4]), w[:, 4])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.2)
    opt.step()
    if it % 15 == 0:
        print(it, loss.item())
