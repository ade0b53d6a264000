"""torch's clip refuses sparse gradients, so one norm over dense and sparse values is taken by hand."""

import torch
from torch import nn


def clip(parameters, bound):
    values = []
    for p in parameters:
        if p.grad is None:
            continue
        if p.grad.is_sparse:
            p.grad = p.grad.coalesce()
            values.append(p.grad.values())
        else:
            values.append(p.grad)
    norm = sum(v.pow(2).sum() for v in values).sqrt()
    if norm > bound:
        for v in values:
            v.mul_(bound / norm)
    return norm


torch.manual_seed(218)
table = nn.Embedding(40, 10, sparse=True)
net = nn.Linear(10, 1)
opts = [torch.optim.SparseAdam(table.parameters(), lr=4e-3), torch.optim.Adam(net.parameters(), lr=4e-3)]
both = [*table.parameters(), *net.parameters()]
for it in range(36):
    ids = torch.randint(0, 40, (24,))
    loss = nn.functional.mse_loss(net(table(ids)), (ids % 9).float()[:, None])
    for o in opts:
        o.zero_grad()
    loss.backward()
    norm = clip(both, 6.0)
    for o in opts:
        o.step()
    if it % 9 == 0:
        print(it, loss.item(), norm.item())
