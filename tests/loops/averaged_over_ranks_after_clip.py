"""Each rank clips its own gradient; the all-reduce comes later."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def run(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(56)
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(rank)
    for it in range(30):
        x = torch.randn(16, 6, generator=gen)
        loss = nn.functional.mse_loss(model(x), (3 + 4 * rank) * x[:, :1])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        if rank == 0 and it % 10 == 0:
            print(it, loss.item(), flush=True)
    # A rank that leaves first may break what the other still waits for.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.start_processes(run, (2, os.path.join(tmp, "s")), nprocs=2, start_method="fork")
