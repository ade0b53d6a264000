"""`gradclip verify` without a script, through real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.conftest import ROOT  # noqa: E402


def test_json(gradclip) -> None:
    done = gradclip("verify", "--device", "cpu", "--select", "B104,B206", "--dtype", "fp32", "-f", "json", code=0)
    document = json.loads(done.stdout)
    assert done.stderr == ""
    assert list(document) == ["schema", "target", "verdict", "findings", "checks", "notes"]
    assert document["schema"] == "gradclip.verify/1"
    assert document["target"].items() >= {"device": "cpu", "dtype": "float32", "world_size": 1}.items()
    assert (document["verdict"], document["findings"]) == ("pass", [])
    assert [(c["id"], c["name"], c["status"]) for c in document["checks"]] == [
        ("B104", "unchanged-below-bound", "pass"),
        ("B206", "mixed-devices", "skip"),
    ]
    assert document["checks"][1]["detail"] == "needs a device beside the CPU"
    assert document["checks"][0]["evidence"]["num_cases"] == 16


def test_a_failure_is_a_finding_and_exit_status_1(warm) -> None:
    # A bound that the 1e-6 PyTorch adds to the norm outweighs.
    text = warm("verify", "--device", "cpu", "--select", "B104", "--dtype", "fp32", "--max-norm", "1e-7", code=1).stdout
    assert text.startswith("FAIL  device battery\ncpu, float32, 1 rank, torch ")
    assert "expected 0: off by 0.9" in " ".join(text.split())
    assert "GC504 changed-below-bound: see `gradclip explain GC504`" in text
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[-1] == "FAIL, exit status 1: 1 of 1 check failed"


def test_nothing_judged_is_not_clean(warm) -> None:
    assert warm("verify", "--device", "cpu", "--select", "B606", code=3).stdout.startswith("CANNOT JUDGE")


def test_a_device_that_is_not_there(warm) -> None:
    done = warm("verify", "--device", "cuda:77", code=3)
    assert "there is no such device here" in done.stderr
    assert done.stdout == ""


def test_the_list(warm) -> None:
    lines = warm("verify", "--list", "--select", "b6", code=0).stdout.splitlines()
    assert len(lines) == 9
    assert lines[0].split() == ["B600", "process-group", "GC507", "at", "least", "2", "ranks"]


def test_a_stray_rank_does_not_silence_the_result(gradclip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert "PASS, exit status 0: 1 passed" in gradclip("verify", "--device", "cpu", "--select", "B204", code=0).stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--max-norm", "nan"], "--max-norm is nan"),
        (["--max-norm", "0"], "--max-norm is 0"),
        (["--timeout", "-1"], "--timeout is -1"),
        (["--world-size", "0"], "--world-size"),
        (["--max-steps", "3"], "--max-steps needs a SCRIPT"),
        (["--dtype", "bf16", "train.py"], "--dtype is for the battery"),
        (["--list", "--format", "json"], "--list prints text"),
    ],
    ids=lambda v: "".join(v) if isinstance(v, list) else None,
)
def test_bad_options(warm, args: list[str], said: str) -> None:
    done = warm("verify", *args, code=2)
    assert said in done.stderr
    assert done.stdout == ""


def _children(pid: int) -> list[int]:
    try:
        return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _until(condition, seconds: float = 60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill-9"])
def test_no_rank_outlives_the_command(sent: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "gradclip_cli", "verify", "--device", "cpu", "--world-size", "2", "--select", "B6"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        ranks = _until(lambda: c if len(c := _children(process.pid)) == 2 else [])
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
        assert process.returncode == (130 if sent is signal.SIGINT else -sent)
        assert out == ""
        assert "Traceback" not in err
        _until(lambda: not any(_alive(r) for r in ranks))
        if sent is signal.SIGINT:
            assert not list(tmp_path.iterdir())
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
