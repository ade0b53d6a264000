"""Two ranks of FSDP2 on gloo: the recorded norm is that of the shards this rank holds before clipping over all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gradclip_cli.runfile import read_recorded
from tests.record_runs import results
from tests.test_record_ddp import TORCHRUN

CODE = """
import json
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from gradclip_cli.watch import watch

def train():
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    for layer in net:
        fully_shard(layer)
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    local, full, used = [], [], []
    generator = torch.Generator().manual_seed(rank)
    norm = lambda gradients: sum(g.double().square().sum().item() for g in gradients) ** 0.5
    for _ in range(4):
        x, y = torch.randn(4, 4, generator=generator), torch.randn(4, 2, generator=generator)
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        full.append(norm([p.grad.full_tensor() for p in net.parameters()]))
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        local.append(norm([p.grad.to_local() for p in net.parameters()]))
        used.append(norm([p.grad.full_tensor() for p in net.parameters()]))
        optimizer.step()
    return local, full, used, [p.full_tensor().detach().clone() for p in net.parameters()], torch.get_rng_state()

dist.init_process_group("gloo")
plain = train()
with watch("run"):
    watched = train()
same = plain[:3] == watched[:3] and all(map(torch.equal, plain[3], watched[3])) and torch.equal(plain[4], watched[4])
told = {"rank": dist.get_rank(), "same": same, "local": watched[0], "full": watched[1], "used": watched[2]}
print(json.dumps(told) + "\\n", end="", flush=True)
dist.destroy_process_group()
"""


def test_fsdp2(tmp_path: Path) -> None:
    found = results(tmp_path, CODE, command=TORCHRUN)
    recorded, damage = read_recorded(tmp_path / "run")
    assert damage == ()
    assert list(recorded.parts) == [0, 1]
    for told in found:
        assert told["same"]
        part = recorded.parts[told["rank"]]
        assert part.steps.tolist() == [1, 2, 3, 4]
        np.testing.assert_allclose(part.columns["grad_norm"], told["full"], rtol=1e-5)
        np.testing.assert_allclose(np.sqrt(np.square(part.tensor_norms.astype(np.float64)).sum(axis=1)), told["local"], rtol=1e-5)
        np.testing.assert_allclose(part.columns["max_norm"], 0.25)
    # The shards of the two ranks together are what the optimizers used.
    squares = [np.square(p.tensor_norms.astype(np.float64)).sum(axis=1) for p in recorded.parts.values()]
    np.testing.assert_allclose(np.sqrt(squares[0] + squares[1]), found[0]["used"], rtol=1e-5)
