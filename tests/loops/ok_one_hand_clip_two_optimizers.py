"""One norm over a sparse table and a dense network, each with an optimizer of its own."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def values(p):
    g = p.grad
    if not g.is_sparse:
        return g
    p.grad = g.coalesce()
    return p.grad._values()


def clip_all(params, limit):
    vs = [values(p) for p in params if p.grad is not None]
    total = torch.stack([v.pow(2).sum() for v in vs]).sum().sqrt()
    scale = limit / (total + 1e-6)
    if scale < 1:
        for v in vs:
            v.mul_(scale)
    return float(total)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--clip", type=float, default=0.25)
    a = p.parse_args()
    torch.manual_seed(42)
    table = nn.EmbeddingBag(200, 12, sparse=True)
    mlp = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1))
    truth = torch.randn(200)
    sparse_opt = torch.optim.SparseAdam(table.parameters(), lr=1e-2)
    dense_opt = torch.optim.Adam(mlp.parameters(), lr=3e-3)
    for it in range(40):
        ids = torch.randint(0, 200, (32, 5))
        loss = F.binary_cross_entropy_with_logits(mlp(table(ids)).squeeze(1), (truth[ids].sum(1) > 0).float())
        sparse_opt.zero_grad()
        dense_opt.zero_grad()
        loss.backward()
        n = clip_all([*table.parameters(), *mlp.parameters()], a.clip)
        sparse_opt.step()
        dense_opt.step()
        if it % 10 == 0:
            print(it, loss.item(), n)


main()
