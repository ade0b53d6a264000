"""DDP with no_sync on all micro-batches but the last; the clip comes after the reduction."""

import contextlib
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(203)
    model = DDP(nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(10 * rank)
    for it in range(90):
        last = it % 3 == 2
        x = torch.randn(8, 6, generator=gen)
        with contextlib.nullcontext() if last else model.no_sync():
            loss = nn.functional.mse_loss(model(x), (2 + rank) * x[:, :1]) / 3
            loss.backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 4.0)
            opt.step()
            opt.zero_grad()
            if rank == 0 and it % 30 == 29:
                print(it, loss.item(), flush=True)
    # A rank that leaves first may break what the other still waits for.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.start_processes(main, (2, os.path.join(tmp, "store")), nprocs=2, start_method="fork")
