"""The sum over a group of sequences is clipped first and averaged afterwards."""

import torch
from torch import nn

torch.manual_seed(53)
model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
opt = torch.optim.SGD(model.parameters(), lr=5.0)
for it in range(40):
    count = 0
    for _ in range(3):
        n = int(torch.randint(4, 9, (1,)))
        tok = torch.randint(0, 20, (n,))
        loss = nn.functional.cross_entropy(model(tok), (tok + 1) % 20, reduction="sum")
        loss.backward()
        count += n
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    for p in model.parameters():
        p.grad.div_(count)
    opt.step()
    opt.zero_grad()
    if it % 10 == 0:
        print(it, loss.item() / n)
