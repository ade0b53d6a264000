"""Sharded parameters with torch's own clip, which takes the norm over all ranks."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(202)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))
    fully_shard(model[2], mesh=init_device_mesh("cpu", (world,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(rank)
    for it in range(30):
        x = torch.randn(16, 8, generator=gen)
        loss = nn.functional.mse_loss(model(x), 6 * x[:, :2])
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        opt.step()
        if it % 10 == 0:
            print(rank, it, loss.item(), norm.full_tensor().item(), flush=True)
    # A rank that leaves first may break what the other still waits for.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.start_processes(main, (2, os.path.join(tmp, "store")), nprocs=2, start_method="fork")
