"""Each rank clips by the norm of its own expert and the replicated layers, which drift apart."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def run(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(57)
    router, head = nn.Linear(6, 16), nn.Linear(16, 2)
    torch.manual_seed(58 + rank)
    expert = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16))
    shared, own = [*router.parameters(), *head.parameters()], list(expert.parameters())
    opt = torch.optim.AdamW([*shared, *own], lr=3e-3)
    for it in range(20):
        x = torch.randn(12, 6)
        hidden = router(x)
        loss = nn.functional.mse_loss(head(hidden + (1 + rank) * expert(hidden)), 6 * x[:, :2])
        opt.zero_grad()
        loss.backward()
        for p in shared:
            dist.all_reduce(p.grad)
            p.grad /= world
        nn.utils.clip_grad_norm_([*shared, *own], 1.5)
        opt.step()
        if rank == 0 and it % 10 == 0:
            print(it, loss.item(), flush=True)
    # A rank that leaves first may break what the other still waits for.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.start_processes(run, (2, os.path.join(tmp, "s")), nprocs=2, start_method="fork")
