"""Sums over several sequences are divided by the number of tokens before the clip."""

import torch
from torch import nn

torch.manual_seed(228)
model = nn.Sequential(nn.Embedding(20, 16), nn.ReLU(), nn.Linear(16, 20))
opt = torch.optim.SGD(model.parameters(), lr=1.0)
for it in range(40):
    tokens = 0
    for _ in range(4):
        seq = torch.randint(0, 20, (int(torch.randint(3, 12, (1,))),))
        loss = nn.functional.cross_entropy(model(seq), (3 * seq) % 20, reduction="sum")
        loss.backward()
        tokens += len(seq)
    for p in model.parameters():
        p.grad /= tokens
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.45)
    opt.step()
    opt.zero_grad()
    if it % 10 == 0:
        print(it, tokens, norm.item())
