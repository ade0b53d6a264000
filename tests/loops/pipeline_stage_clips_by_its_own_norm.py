"""A pipeline of two stages, each clipped as if it were the whole model."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def run(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(31)
    stages = nn.Sequential(nn.Linear(6, 16), nn.Tanh()), nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))
    stage = stages[rank]
    params = list(stage.parameters())
    opt = torch.optim.AdamW(params, lr=3e-3)
    for it in range(20):
        x = torch.randn(12, 6)
        opt.zero_grad()
        if rank == 0:
            out = stage(x)
            dist.send(out.detach(), 1)
            grad = torch.empty_like(out)
            dist.recv(grad, 1)
            out.backward(grad)
        else:
            hidden = torch.empty(12, 16)
            dist.recv(hidden, 0)
            hidden.requires_grad_()
            loss = nn.functional.mse_loss(stage(hidden), 8 * x[:, :2])
            loss.backward()
            dist.send(hidden.grad, 0)
        nn.utils.clip_grad_norm_(params, 2.0)
        opt.step()
        if rank and it % 10 == 0:
            print(it, loss.item(), flush=True)
    # A rank that leaves first may break what the other still waits for.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.start_processes(run, (2, os.path.join(tmp, "s")), nprocs=2, start_method="fork")
