"""Each rank updates its share of one flat vector, clipped by the norm of that share, and gathers the shares of all."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def run(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(66)
    net = nn.Sequential(nn.Linear(5, 15), nn.Tanh(), nn.Linear(15, 2))
    shares = nn.utils.parameters_to_vector(net.parameters()).detach().chunk(world)
    share = nn.Parameter(shares[rank].clone())
    opt = torch.optim.Adam([share], lr=3e-3)
    gen = torch.Generator().manual_seed(rank)
    for it in range(20):
        x = torch.randn(16, 5, generator=gen)
        loss = nn.functional.mse_loss(net(x), 6 * x[:, :2])
        grads = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
        dist.all_reduce(grads)
        share.grad = grads.div(world).chunk(world)[rank].clone()
        nn.utils.clip_grad_norm_([share], 0.5)
        opt.step()
        whole = [torch.empty_like(s) for s in shares]
        dist.all_gather(whole, share.detach())
        nn.utils.vector_to_parameters(torch.cat(whole), net.parameters())
        if rank == 0 and it % 10 == 0:
            print(it, loss.item(), flush=True)
    # A rank that leaves first may break what the other still waits for.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.start_processes(run, (2, os.path.join(tmp, "s")), nprocs=2, start_method="fork")
