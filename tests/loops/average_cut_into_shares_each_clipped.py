"""Gradients averaged by DDP; each rank steps a flat share of the weights, and clips it by hand by the norm of that share alone."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def run(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(11)
    net = nn.Sequential(nn.Linear(7, 20), nn.Tanh(), nn.Linear(20, 2))
    ddp = nn.parallel.DistributedDataParallel(net)
    flat = parameters_to_vector(net.parameters()).detach()
    size = -(-len(flat) // world)
    mine = slice(rank * size, (rank + 1) * size)
    share = nn.functional.pad(flat, (0, size * world - len(flat)))[mine].clone().requires_grad_()
    opt = torch.optim.SGD([share], lr=0.02)
    gen = torch.Generator().manual_seed(rank)
    for it in range(20):
        x = torch.randn(16, 7, generator=gen)
        loss = nn.functional.mse_loss(ddp(x), 6 * x[:, :2])
        net.zero_grad()
        loss.backward()
        grads = torch.cat([p.grad.flatten() for p in net.parameters()])
        # A view, which is the gradient only from here on.
        share.grad = nn.functional.pad(grads, (0, size * world - len(grads)))[mine]
        norm = share.grad.norm()
        if norm > 0.5:
            share.grad.mul_(0.5 / norm)
        opt.step()
        whole = [torch.empty_like(share) for _ in range(world)]
        dist.all_gather(whole, share.detach())
        vector_to_parameters(torch.cat(whole)[: len(flat)], net.parameters())
        if rank == 0 and it % 10 == 0:
            print(it, loss.item(), flush=True)
    # A rank that leaves first may break what the other still waits for.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.start_processes(run, (2, os.path.join(tmp, "s")), nprocs=2, start_method="fork")
