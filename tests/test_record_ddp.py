"""Two ranks of DistributedDataParallel under torchrun, on gloo, each recording its part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from gradclip_cli import read_run
from gradclip_cli.runfile import read_recorded
from tests.record_runs import ENV, results, write

LOOP = """
import json, os
import torch
import torch.distributed as dist

def train(clip=0.5):
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    before, used, losses = [], [], []
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        x, y = torch.randn(4, 4, generator=generator), torch.randn(4, 1, generator=generator)
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        before.append(sum(p.grad.double().square().sum().item() for p in net.parameters()) ** 0.5)
        torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        used.append(sum(p.grad.double().square().sum().item() for p in net.parameters()) ** 0.5)
        losses.append(loss.item())
        optimizer.step()
    hooks = len(net._forward_pre_hooks) + len(optimizer._optimizer_step_pre_hooks) + sum(p._backward_hooks is not None for p in net.parameters())
    return before, used, losses, [p.detach().clone() for p in net.parameters()], torch.get_rng_state(), hooks

dist.init_process_group("gloo")
"""

COMPARED = (
    LOOP
    + """
from gradclip_cli.watch import watch
plain = train()
with watch("run"):
    watched = train()
again = train()
same = plain[:3] == watched[:3] and all(map(torch.equal, plain[3], watched[3])) and torch.equal(plain[4], watched[4])
told = {"rank": dist.get_rank(), "same": same, "before": watched[0], "used": watched[1], "losses": watched[2], "hooks": again[5] - plain[5]}
print(json.dumps(told) + "\\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
# What is compared has been told. A thread of gloo may hold a Python object of the last backward, for which it needs the interpreter: with
# nothing of ours, some processes in a hundred end with SIGABRT because the interpreter is taken down before (torch 2.13).
os._exit(0)
"""
)

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_two_ranks(tmp_path: Path) -> None:
    found = results(tmp_path, COMPARED, command=TORCHRUN)
    recorded, damage = read_recorded(tmp_path / "run")
    assert damage == ()
    assert (recorded.world_size, list(recorded.parts)) == (2, [0, 1])
    for told in found:
        assert told["same"]
        assert told["hooks"] == 0
        part = recorded.parts[told["rank"]]
        assert part.ended == "finished"
        assert part.header["rank"] == told["rank"]
        np.testing.assert_allclose(part.columns["grad_norm"], told["before"], rtol=1e-6)
        np.testing.assert_allclose(part.columns["grad_norm_used"], told["used"], rtol=1e-6)
        np.testing.assert_allclose(part.columns["loss"], told["losses"], rtol=1e-6)
    assert found[0]["losses"] != found[1]["losses"], "each rank has its own loss"
    np.testing.assert_allclose(found[0]["used"], found[1]["used"])


def test_record_under_torchrun(tmp_path: Path) -> None:
    write(tmp_path, "main.py", LOOP + "import sys\ntrain(float(sys.argv[1]))\ndist.destroy_process_group()")
    command = [*TORCHRUN, "-m", "gradclip_cli", "record", "-o", "run", "main.py", "0.25"]
    done = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("gradclip: 5 updates recorded") == 1, "rank 0 speaks for all"
    run = read_run(tmp_path / "run")
    assert run.recorded is not None
    assert list(run.recorded.parts) == [0, 1]
    assert run.max_norm == 0.25
    assert len(run.series["grad_norm"]) == 5


def test_several_ranks_need_a_name(tmp_path: Path) -> None:
    write(tmp_path, "main.py", "")
    done = subprocess.run(
        [sys.executable, "-m", "gradclip_cli", "record", "main.py"],
        cwd=tmp_path,
        env=ENV | {"RANK": "1", "WORLD_SIZE": "2"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "hint: name it with -o RUN" in done.stderr
