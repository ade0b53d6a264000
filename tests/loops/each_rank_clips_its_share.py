"""Ranks sum their gradients and share the optimizer's work out: each clips and updates only its own parameters."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn


def work(rank, world_size, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    torch.manual_seed(307)
    model = nn.Sequential(nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 4))
    owner = {p: i % world_size for i, p in enumerate(model.parameters())}
    share = [p for p, r in owner.items() if r == rank]
    optimizer = torch.optim.SGD(share, lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(20):
        x = torch.randn(24, 9, generator=generator)
        loss = nn.functional.cross_entropy(2 * model(x), x[:, :4].argmax(1)) / world_size
        model.zero_grad()
        loss.backward()
        for p in owner:
            dist.all_reduce(p.grad)
        nn.utils.clip_grad_norm_(share, 0.25)
        optimizer.step()
        for p, r in owner.items():
            dist.broadcast(p.data, r)
    # A rank that leaves first may break what the other still waits for.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        torch.multiprocessing.start_processes(work, (2, f"{tmp}/store"), nprocs=2, start_method="fork")
