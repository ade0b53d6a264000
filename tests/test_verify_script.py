"""`gradclip verify SCRIPT` as a command: exit codes, streams, formats, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradclip_cli.analysis import analyze
from gradclip_cli.model.run import Run
from gradclip_cli.readers import read
from tests.forks import Done, Zygote
from tests.record_runs import ENV, write

Verify = Callable[..., Done]

LOOP = """
import sys, time
import torch

torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
print("arguments", sys.argv[1:], flush=True)
for i in range(40):
    net(5 * torch.randn(4, 4)).square().mean().backward()
    if "--late" not in sys.argv:
        torch.nn.utils.clip_grad_norm_(net.parameters(), 8.0)
    optimizer.step()
    if "--late" in sys.argv:
        torch.nn.utils.clip_grad_norm_(net.parameters(), 8.0)
    optimizer.zero_grad()
    if i == 4 and "--crash" in sys.argv:
        raise ValueError("no more data")
    if "--slow" in sys.argv:
        print("update", i, flush=True)
        time.sleep(0.2)
print("to the end", flush=True)
"""


LATE = len(LOOP[: LOOP.index("        torch.nn.utils.clip_grad_norm_", LOOP.index("step()"))].splitlines()) + 1


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """With the script in it, and in the end without anything of ours that stays behind."""
    write(tmp_path, "main.py", LOOP)
    (tmp_path / "tmp").mkdir()
    yield tmp_path
    assert not list((tmp_path / "tmp").glob("gradclip*"))


@pytest.fixture
def verify(folder: Path, zygote: Zygote) -> Verify:
    """Runs the command in the folder, in a fork of a process that has torch loaded; with `fork=False` in a process of its own."""
    before = set(os.listdir(folder))

    def call(*args: str, code: int, new: tuple[str, ...] = (), fork: bool = True, **env: str) -> Done:
        env = {"TMPDIR": str(folder / "tmp"), "COLUMNS": "80", "NO_COLOR": "1"} | env
        if fork:
            done = zygote("gradclip", "verify", *args, cwd=folder, env=env)
        else:
            command = [sys.executable, "-m", "gradclip_cli", "verify", *args]
            done = subprocess.run(command, cwd=folder, env=ENV | env, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, (done.returncode, done.stdout[-1000:], done.stderr[-3000:])
        assert set(os.listdir(folder)) == before | set(new)
        return done

    return call


def test_a_right_loop(verify: Verify) -> None:
    done = verify("--format", "json", "main.py", "--format", "text", "-o", "x", code=0, fork=False)
    told = json.loads(done.stdout)
    note = "gradclip: note: --format text was given to main.py\nhint: options of gradclip go before SCRIPT\n"
    assert done.stderr == f"{note}arguments ['--format', 'text', '-o', 'x']\nto the end\n", "what stands behind the script is the script's"
    assert list(told) == ["schema", "target", "updates", "verdict", "findings", "checks", "notes"]
    assert told["schema"] == "gradclip.verify/1"
    assert told["target"] == {"device": "cpu", "world_size": 1, "torch": told["target"]["torch"]}
    assert (told["updates"], told["verdict"]) == (40, "pass")
    assert [f["rule"] for f in told["findings"] if f["rule"].startswith("GC4")] == []
    assert {c["id"] for c in told["checks"]} == {f"GC4{n:02d}" for n in range(1, 20)} | {"GC201", "GC202"}
    assert {c["status"] for c in told["checks"] if c["id"].startswith("GC4")} == {"pass", "skip"}
    assert [c["id"] for c in told["checks"] if c["id"].startswith("GC4") and c["status"] == "skip"] == ["GC411"], "one rank"


def test_a_wrong_loop_is_annotated_at_its_line(verify: Verify) -> None:
    done = verify("--format", "github", "main.py", "--late", code=1)
    start = f"::error file=main.py,line={LATE},title=GC402 clip-after-step::main.py: the clip at main.py:{LATE} "
    assert [line for line in done.stdout.splitlines() if line.startswith("::error")][0].startswith(start)
    assert f"comes after the step at main.py:{LATE - 2};" in done.stdout


def test_a_module_in_text_for_the_updates_that_were_asked_for(verify: Verify, tmp_path: Path) -> None:
    write(tmp_path / "tmp", "package/train.py", LOOP)
    done = verify("--max-steps", "3", "-m", "package.train", "--late", code=1, fork=False, PYTHONPATH=f"{ENV['PYTHONPATH']}:tmp")
    assert done.stderr == "arguments ['--late']\n", "not to the end"
    assert done.stdout.startswith("FAIL  package.train\n")
    assert "1 rank, torch" in done.stdout
    assert "3 updates" in done.stdout
    assert f"tmp/package/train.py:{LATE}" in "".join(line.strip() for line in done.stdout.splitlines())
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_recording_can_be_kept(verify: Verify, tmp_path: Path) -> None:
    done = verify("--max-steps", "3", "--format", "junit", "-o", "RUN", "main.py", "--late", code=1, new=("RUN",))
    cases = ET.fromstring(done.stdout).findall(".//testcase")
    assert len(cases) == 21
    assert [c.get("name") for c in cases if c.find("failure") is not None] == ["GC402 clip-after-step"]
    (run,) = read(tmp_path / "RUN")
    assert isinstance(run, Run)
    assert run.recorded is not None
    assert run.recorded.parts[0].steps.tolist() == [1, 2, 3]
    assert [f.rule for f in analyze(run).findings if f.rule.startswith("GC4")] == ["GC402"]
    refused = verify("-o", "RUN", "main.py", code=3, new=("RUN",))
    assert "already holds a recorded run" in refused.stderr
    assert refused.stdout == ""


def test_a_script_that_fails_midway(verify: Verify) -> None:
    done = verify("--format", "json", "main.py", "--crash", code=3, fork=False)
    told = json.loads(done.stdout)
    assert (told["verdict"], told["updates"]) == ("cannot-judge", 5)
    assert "the script ended with exit status 1 after 5 updates" in told["notes"]
    assert "ValueError: no more data" in done.stderr


UNSEEN = {
    "no-optimizer": """
        import torch
        net = torch.nn.Linear(4, 1)
        for i in range(3):
            net(torch.randn(4, 4)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.1 * p.grad
        """,
    "no-torch": "print('nothing')",
    "exit": "import sys\nsys.exit(3)",
    "syntax": "x = (",
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_cannot_be_seen_is_said(name: str, verify: Verify, tmp_path: Path) -> None:
    write(tmp_path / "tmp", "other.py", UNSEEN[name])
    done = verify("--format", "json", "tmp/other.py", code=3)
    assert done.stdout == ""
    code = {"exit": 3, "syntax": 1}.get(name)
    said = "took no step of a torch optimizer that could be seen"
    if code is not None:
        said = f"ended with exit status {code} before any step of a torch optimizer that could be seen"
    assert f"gradclip: error: tmp/other.py: {said}\nhint: " in done.stderr


def test_an_optimizer_that_clips_inside_is_not_judged(verify: Verify, tmp_path: Path) -> None:
    code = """
    import torch
    class Adam8bit(torch.optim.Adam):
        def __init__(self, params):
            super().__init__(params)
            self.defaults["percentile_clipping"] = 5
    net = torch.nn.Linear(4, 1)
    optimizer = Adam8bit(net.parameters())
    for i in range(3):
        net(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    write(tmp_path / "tmp", "other.py", code)
    told = json.loads(verify("--format", "json", "tmp/other.py", code=3).stdout)
    assert told["verdict"] == "cannot-judge"
    detail = next(c["detail"] for c in told["checks"] if c["id"] == "GC410")
    assert detail == "Adam8bit clips inside (percentile_clipping=5), where gradients do not show it"


@pytest.mark.parametrize("clips", [True, False])
def test_a_wrapper_that_makes_gradients_of_its_own_is_not_judged_and_one_that_forgets_its_bound_is(
    clips: bool, verify: Verify, tmp_path: Path
) -> None:
    code = f"""
    import torch
    class PerSample:
        def __init__(self, optimizer, net, max_grad_norm):
            self.optimizer, self.net, self.max_grad_norm = optimizer, net, max_grad_norm
        def step(self):
            if {clips}:
                sums = [torch.zeros_like(p) for p in self.net.parameters()]
                for row in self.rows:
                    grads = torch.autograd.grad(loss_of(self.net, row), list(self.net.parameters()))
                    norm = torch.cat([g.flatten() for g in grads]).norm()
                    for s, g in zip(sums, grads):
                        s += g * (self.max_grad_norm / norm).clamp(max=1.0)
                for p, s in zip(self.net.parameters(), sums):
                    p.grad = (s + 0.01 * torch.randn_like(s)) / len(self.rows)
            self.optimizer.step()
    def loss_of(net, x):
        return (net(x) - 3 * x.sum(-1, keepdim=True)).square().mean()
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    optimizer = PerSample(torch.optim.SGD(net.parameters(), 0.1), net, max_grad_norm=1.0)
    for i in range(12):
        optimizer.rows = torch.randn(8, 4)
        net.zero_grad()
        loss_of(net, optimizer.rows).backward()
        optimizer.step()
    """
    write(tmp_path / "tmp", "other.py", code)
    told = json.loads(verify("--format", "json", "tmp/other.py", code=3 if clips else 1).stdout)
    check = next(c for c in told["checks"] if c["id"] == "GC410")
    if clips:
        assert told["verdict"] == "cannot-judge"
        assert check["detail"].startswith("what wraps the optimizer (PerSample.max_grad_norm=1.0) writes other gradients before the step")
    else:
        assert check["detail"].startswith("nothing clips the gradients")


def test_a_rank_that_left_no_record_is_missed(verify: Verify, tmp_path: Path) -> None:
    code = """
    import os
    os.environ.update(RANK="0", WORLD_SIZE="2")
    exec(open("main.py").read())
    """
    write(tmp_path / "tmp", "other.py", code)
    told = json.loads(verify("--format", "json", "tmp/other.py", code=3).stdout)
    assert told["verdict"] == "cannot-judge"
    assert "1 of 2 ranks left no record here; they were not judged" in told["notes"]


@pytest.mark.parametrize(
    "args, message",
    [
        (("missing.py",), "missing.py: no such file"),
        (("--max-steps", "0", "main.py"), "--max-steps"),
        (("--device", "cpu", "main.py"), "--device is for the battery"),
        (("--max-steps", "3"), "--max-steps needs a SCRIPT"),
    ],
    ids=["missing", "no-steps", "battery", "no-script"],
)
def test_wrong_command_lines(args: tuple[str, ...], message: str, verify: Verify) -> None:
    done = verify(*args, code=2)
    assert message in done.stderr
    assert done.stdout == ""


RANKS = """
import os, sys, time
import torch, torch.multiprocessing as mp
def work(rank):
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    while True:
        net(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        os.write(1, f"rank {os.getpid()}\\n".encode())
        time.sleep(0.1)
mp.start_processes(work, nprocs=2, start_method="fork")
"""


def started(folder: Path, script: str, *args: str) -> tuple[subprocess.Popen[str], list[str]]:
    """The command in a session of its own, as a terminal has it, and the first lines of the script."""
    child = subprocess.Popen(
        [sys.executable, "-m", "gradclip_cli", "verify", "--format", "json", "--max-steps", "1000", script, *args],
        cwd=folder,
        env=ENV | {"TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stderr is not None
    return child, [child.stderr.readline() for _ in range(6)]


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc who lives")
def test_ctrl_c_ends_the_script_and_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    write(tmp_path, "ranks.py", RANKS)
    child, lines = started(tmp_path, "ranks.py")
    ranks = {int(line.split()[1]) for line in lines}
    assert len(ranks) == 2
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert out == ""
    assert err.endswith("gradclip: interrupted\n")
    until = time.monotonic() + 5
    while any(map(is_running, ranks)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_running, ranks))
    assert not list((tmp_path / "tmp").glob("gradclip*"))


def test_what_was_seen_until_a_termination_is_judged(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    write(tmp_path, "main.py", LOOP)
    child, _ = started(tmp_path, "main.py", "--slow", "--late")
    child.terminate()
    out, _ = child.communicate(timeout=60)
    told = json.loads(out)
    assert (child.returncode, told["verdict"], [f["rule"] for f in told["findings"]]) == (1, "fail", ["GC402"])
    assert any(note.startswith("the script ended with signal 15 after ") for note in told["notes"])
    assert not list((tmp_path / "tmp").glob("gradclip*"))


def test_a_rank_that_is_left_over_in_the_environment_hides_no_verdict(gradclip: Verify, tmp_path: Path) -> None:
    write(tmp_path, "loop.py", LOOP)
    done = gradclip("verify", "-f", "json", "loop.py", "--late", env={"RANK": "1"}, code=1)
    assert json.loads(done.stdout)["target"]["world_size"] == 1


@pytest.mark.parametrize("given", ["--format json", "--format=json", "-f junit"])
def test_a_format_behind_the_script_is_the_scripts_and_that_is_said(given: str, verify: Verify) -> None:
    done = verify("main.py", *given.split(), code=0)
    assert f"gradclip: note: {given} was given to main.py\nhint: options of gradclip go before SCRIPT\n" in done.stderr
    assert done.stdout.startswith("PASS")


def test_options_that_a_script_does_not_take_are_told_as_misplaced(verify: Verify, folder: Path) -> None:
    write(folder / "tmp", "strict.py", "import argparse\nargparse.ArgumentParser().parse_args()\n")
    done = verify("tmp/strict.py", "--max-steps", "5", code=3)
    assert "--max-steps 5 was given to the script: options of gradclip go before SCRIPT" in done.stderr
    assert "note" not in done.stderr
    other = verify("--format", "json", "tmp/strict.py", "--epochs", "3", code=3)
    assert "SCRIPT" not in other.stderr
