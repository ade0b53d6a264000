"""Gradients are averaged over the ranks, then clipped to a bound that each rank takes from its own loss: the replicas drift apart."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def run(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(211)
    net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(rank + 3)
    for it in range(40):
        x = torch.randn(8, 5, generator=gen)
        loss = nn.functional.mse_loss(net(x), 4 * x[:, :1])
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        nn.utils.clip_grad_norm_(net.parameters(), 0.2 * loss.item())
        opt.step()
        if it % 10 == 0:
            print(rank, it, loss.item(), flush=True)
    # A rank that leaves first may break what the other still waits for.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.start_processes(run, (2, os.path.join(tmp, "store")), nprocs=2, start_method="fork")
