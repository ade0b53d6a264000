"""Rank 0 clips the averaged gradient, the other rank steps with the full one."""

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
    torch.manual_seed(10)
    model = DDP(nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(rank)
    for it in range(30):
        x = torch.randn(16, 5, generator=data)
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), 6 * x[:, :1])
        loss.backward()
        if rank == 0:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            if it % 10 == 0:
                print(it, loss.item(), norm.item(), flush=True)
        opt.step()
    # A rank that leaves first may break what the other still waits for.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(main, (2, os.path.join(folder, "rendezvous")), nprocs=2, start_method="fork")
