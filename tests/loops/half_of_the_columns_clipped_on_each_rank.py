"""Each rank has half of the hidden units, a function of autograd sums what they give, and each clips by the norm of its half."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


class SumOverRanks(torch.autograd.Function):
    """The sum, with the gradient as it comes."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def run(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(65 + rank)
    up, down = nn.Linear(6, 16), nn.Linear(16, 2, bias=False)
    params = [*up.parameters(), *down.parameters()]
    opt = torch.optim.AdamW(params, lr=3e-3)
    gen = torch.Generator().manual_seed(65)
    for it in range(20):
        x = torch.randn(12, 6, generator=gen)
        loss = nn.functional.mse_loss(SumOverRanks.apply(down(up(x).relu())), 6 * x[:, :2])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        if rank == 0 and it % 10 == 0:
            print(it, loss.item(), flush=True)
    # A rank that leaves first may break what the other still waits for.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.start_processes(run, (2, os.path.join(tmp, "s")), nprocs=2, start_method="fork")
