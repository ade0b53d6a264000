"""Two layers are sharded by tensor parallelism, the others are plain; all are scaled by hand, by the norm of all of them."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def run(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(77)
    model = nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16, bias=False), nn.Linear(16, 2))
    parallelize_module(model, init_device_mesh("cpu", (world,)), {"1": ColwiseParallel(), "3": RowwiseParallel()})
    sharded = [*model[1].parameters(), *model[3].parameters()]
    plain = [*model[0].parameters(), *model[4].parameters()]
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    for it in range(20):
        x = torch.randn(12, 6)
        loss = nn.functional.mse_loss(model(x), 6 * x[:, :2])
        opt.zero_grad()
        loss.backward()
        square = sum(p.grad.to_local().square().sum() for p in sharded)
        dist.all_reduce(square)
        norm = (square + sum(p.grad.square().sum() for p in plain)).sqrt()
        if norm.item() > 2.0:
            for grad in [*(p.grad.to_local() for p in sharded), *(p.grad for p in plain)]:
                grad.mul_(2.0 / norm.item())
        opt.step()
        if rank == 0 and it % 10 == 0:
            print(it, loss.item(), norm.item(), flush=True)
    # A rank that leaves first may break what the other still waits for.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.start_processes(run, (2, os.path.join(tmp, "s")), nprocs=2, start_method="fork")
