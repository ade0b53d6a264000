"""Sharded gradients, FSDP on gloo among them: the recorded norm is that of the shards this rank holds before clipping over all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradclip_cli import read_run
from gradclip_cli.model.recorded import TensorInfo
from gradclip_cli.readers.shards import whole
from gradclip_cli.runfile import RunWriter, read_recorded
from tests.forks import Zygote
from tests.record_runs import objects, write

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


def test_fsdp2(tmp_path: Path, zygote: Zygote) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path, "main.py", CODE)
    done = zygote("script", "main.py", cwd=tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr
    found = objects(done.stdout)
    assert len(found) == 2
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
    accumulator = EventAccumulator(str(tmp_path / "run"))
    accumulator.Reload()
    for tag, norms in (("train/grad_norm", "full"), ("train/grad_norm_used", "used")):
        np.testing.assert_allclose([e.value for e in accumulator.Scalars(tag)], found[0][norms], rtol=1e-5)
    # The shards of the two ranks together are what the optimizers used.
    squares = [np.square(p.tensor_norms.astype(np.float64)).sum(axis=1) for p in recorded.parts.values()]
    np.testing.assert_allclose(np.sqrt(squares[0] + squares[1]), found[0]["used"], rtol=1e-5)


FSDP1 = """
import json, sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
net = FullyShardedDataParallel(net, sharding_strategy=ShardingStrategy[sys.argv[1]], device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(dist.get_rank())
for _ in range(4):
    x, y = torch.randn(4, 4, generator=generator), torch.randn(4, 2, generator=generator)
    optimizer.zero_grad()
    (net(x) - y).square().mean().backward()
    square = sum(p.grad.double().square().sum() for p in net.parameters())
    if sys.argv[1] != "NO_SHARD":
        dist.all_reduce(square)
    net.clip_grad_norm_(0.25)
    if dist.get_rank() == 0:
        print(json.dumps(square.sqrt().item()), flush=True)
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "NO_SHARD"])
def test_fsdp1(strategy: str, tmp_path: Path, zygote: Zygote) -> None:
    write(tmp_path, "main.py", FSDP1)
    done = zygote("recording", "main.py", strategy, cwd=tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr
    norms = [float(line) for line in done.stdout.splitlines()]
    run = read_run(tmp_path / "run")
    assert len(norms) == 4
    np.testing.assert_allclose(run.series["grad_norm"].values, norms, rtol=1e-5)
    assert run.notes == (("the norms are those over the shards of all ranks",) if strategy == "FULL_SHARD" else ())
    assert run.recorded is not None
    events = [e for e in run.recorded.parts[0].events if e["k"] == "clip"]
    assert len(events) == 4, "the method of FSDP1 calls the function of torch.nn.utils where nothing is sharded: one clip, not two"
    assert next(e["groups"] for e in run.recorded.parts[0].events if e["k"] == "optimizer") == (
        [[[0], [0, 1]]] if strategy == "FULL_SHARD" else []
    )


def test_tensors_that_different_ranks_hold_together(tmp_path: Path) -> None:
    """Rank 0's tensor 0 is sharded over ranks 0 and 1, tensor 1 over 0 and 2, and tensor 2 is held by each in full."""
    groups = [[[0], [0, 1]], [[1], [0, 2]]]
    held = {0: [3.0, 6.0, 2.0], 1: [4.0, 6.0, 2.0], 2: [3.0, 8.0, 2.0]}
    for rank, norms in held.items():
        writer = RunWriter(tmp_path / "run", {"world_size": 3}, rank=rank)
        writer.add_tensors([TensorInfo(name, (4,), "float32") for name in "abc"])
        own = [groups[0] if rank < 2 else [[0], [2]], groups[1] if rank != 1 else [[1], [1]]]
        told = {"o": 0, "class": "SGD", "tensors": [0, 1, 2], "sharded": [0, 1], "groups": own, "inside": {}}
        writer.append_events([{"k": "optimizer", "u": 0, "site": None, **told}])
        used = float(np.linalg.norm(norms))
        columns = {"grad_norm_used": np.array([used, used]), "grad_norm": np.array([2 * used, 2 * used])}
        writer.append(np.array([1, 2]), columns, np.array([norms, norms], np.float32))
        writer.close("finished")
    recorded, _ = read_recorded(tmp_path / "run")
    part, note = whole(recorded)
    np.testing.assert_allclose(part.tensor_norms, [[5, 10, 2]] * 2)
    np.testing.assert_allclose(part.columns["grad_norm_used"], [np.sqrt(129)] * 2)
    np.testing.assert_allclose(part.columns["grad_norm"], [2 * np.sqrt(129)] * 2)
    assert note == "the norms are those over the shards of all ranks"


def test_ranks_with_gradients_of_their_own_are_told(tmp_path: Path) -> None:
    for rank in (0, 1):
        writer = RunWriter(tmp_path / "run", {"world_size": 2}, rank=rank)
        writer.add_tensors([TensorInfo("a", (4,), "float32")])
        writer.append(np.array([1]), {"grad_norm": np.array([1.0 + rank])}, np.array([[1.0 + rank]], np.float32))
        writer.close("finished")
    run = read_run(tmp_path / "run")
    assert run.series["grad_norm"].values.tolist() == [1.0]
    assert run.notes == (
        "ranks used gradients of their own (stages, experts, never reduced, or clipped on some only): the norms are those of rank 0",
    )
