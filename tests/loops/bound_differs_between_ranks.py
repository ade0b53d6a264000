"""Each rank has a bound of its own for the same averaged gradient."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def work(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(103)
    model = DDP(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    data = torch.Generator().manual_seed(50 + rank)
    max_norm = 0.5 / (rank + 1)
    for it in range(30):
        x = torch.randn(16, 4, generator=data)
        loss = nn.functional.mse_loss(model(x), 8 * x[:, :1])
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        opt.step()
        if it % 10 == 0:
            print(rank, it, loss.item(), norm.item(), flush=True)
    # A rank that leaves first may break what the other still waits for.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.start_processes(work, (2, os.path.join(tmp, "store")), nprocs=2, start_method="fork")
