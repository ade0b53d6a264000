"""Parameters are sharded; each rank scales its shard by the norm of that shard alone."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


@torch.no_grad()
def clip(model, bound):
    shards = [p.grad._local_tensor for p in model.parameters()]
    norm = torch.cat([s.flatten() for s in shards]).norm()
    if norm > bound:
        torch._foreach_mul_(shards, bound / norm.item())
    return norm


def main(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(104)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(rank)
    for it in range(30):
        x = torch.randn(20, 6, generator=gen)
        y = torch.stack([x[:, 0] * 12, x[:, 1]], 1)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        norm = clip(model, 1.0)
        opt.step()
        if it % 10 == 0:
            print(rank, it, loss.item(), norm.item(), flush=True)
    # A rank that leaves first may break what the other still waits for.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.start_processes(main, (2, os.path.join(tmp, "store")), nprocs=2, start_method="fork")
