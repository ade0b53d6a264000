"""Gradients are averaged over the ranks by hand, and clipped when that is done."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def average(params):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, g in zip(params, flat.split([p.numel() for p in params]), strict=True):
        p.grad.copy_(g.view_as(p))


def main(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(204)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    params = list(model.parameters())
    opt = torch.optim.Adam(params, lr=4e-3)
    gen = torch.Generator().manual_seed(rank + 1)
    for it in range(30):
        x = torch.randn(16, 4, generator=gen)
        loss = nn.functional.mse_loss(model(x), (4 + rank) * x[:, :1])
        opt.zero_grad()
        loss.backward()
        average(params)
        nn.utils.clip_grad_norm_(params, 4.0)
        opt.step()
        if rank == 0 and it % 10 == 0:
            print(it, loss.item(), flush=True)
    # A rank that leaves first may break what the other still waits for.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.start_processes(main, (2, os.path.join(tmp, "store")), nprocs=2, start_method="fork")
