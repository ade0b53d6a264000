"""A clip written by hand, between the scaled backward and the scaler's step."""

import torch
from torch import nn


@torch.no_grad()
def limit(parameters, threshold):
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = torch.sqrt(sum(g.float().pow(2).sum() for g in grads))
    factor = threshold / max(norm.item(), threshold)
    for g in grads:
        g *= factor
    return norm


torch.manual_seed(42)
model = nn.Sequential(nn.Embedding(30, 12), nn.Flatten(), nn.Linear(48, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
for it in range(45):
    tok = torch.randint(0, 30, (20, 4))
    y = (tok.sum(1) > 58).long()
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(tok), y)
    scaler.scale(loss).backward()
    norm = limit(model.parameters(), 0.5)
    scaler.step(opt)
    scaler.update()
    if it % 9 == 0:
        print(it, loss.item(), norm.item())
