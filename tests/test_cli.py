"""The command line as a caller sees it: exit statuses, streams, errors. Real processes throughout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, SAMPLES

Call = Callable[..., "subprocess.CompletedProcess[str]"]


def write_csv(path: Path, n: int = 200, *, spike: bool = False) -> Path:
    lines = ["step,loss,grad_norm,lr"]
    lines += [
        f"{i},{2 + 2 / (1 + i / 20) + (3 if spike and i == 150 else 0) + (i * 37 % 11) / 500},{0.5 + (i * 53 % 17) / 100},0.001"
        for i in range(n)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_stable_run_is_0_and_json_is_strict(gradclip: Call, tmp_path: Path) -> None:
    done = gradclip("analyze", write_csv(tmp_path / "run.csv"), "--format", "json", code=0)
    doc = json.loads(done.stdout, parse_constant=lambda c: pytest.fail(f"bare {c}"))
    assert doc["schema"] == "gradclip.analysis/1"
    (run,) = doc["runs"]
    assert run["verdict"] == "stable"
    assert run["series"]["loss"]["count"] == 200
    assert done.stderr == ""


@pytest.mark.parametrize("format", ["text", "json", "markdown"])
def test_every_format_prints(gradclip: Call, tmp_path: Path, format: str) -> None:
    done = gradclip("analyze", write_csv(tmp_path / "run.csv", spike=True), "-f", format, code=0)
    assert "GC102" in done.stdout


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["analyze"], 2, "missing argument"),
        (["analyze", ""], 2, "empty argument"),
        (["analyze", "run.csv", "--format", "xml"], 2, "is not one of"),
        (["analyse", "run.csv"], 2, "no such command"),
        (["analyze", "run.csv", "--no-such"], 2, "no such option"),
        (["analyze", "run.csv", "--plot", "run.gif"], 2, "png"),
        (["explain", "GC999"], 2, "no rule"),
        (["explain", "B101"], 2, "gradclip verify --list"),
        (["verify", "--oops", "train.py"], 2, "options of the script stand behind its name"),
        (["record", "--oops", "train.py"], 2, "options of the script stand behind its name"),
        (["analyze", "missing.csv"], 3, "no such file"),
        (["analyze", "run.csv", "--loss", "los"], 3, "did you mean 'loss'"),
        (["analyze", "empty.csv"], 3, "empty"),
        (["analyze", "folder"], 3, "no training run"),
        (["analyze", "train.py"], 3, "gradclip record"),
        (["analyze", "run.csv", "missing.csv"], 3, "no such file"),
    ],
)
def test_errors_are_one_sentence_with_a_hint(gradclip: Call, tmp_path: Path, args: list[str], code: int, words: str) -> None:
    write_csv(tmp_path / "run.csv")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "train.py").write_text("lr = 3e-4\nfor step in range(10):\n    loss = lr * step\n")
    done = gradclip(*args, code=code)
    assert words in done.stderr.lower()
    assert done.stderr.startswith("gradclip: error: ")
    assert len(done.stderr.strip().splitlines()) <= 2


def test_what_could_be_read_is_reported_beside_an_error(gradclip: Call, tmp_path: Path) -> None:
    done = gradclip("analyze", write_csv(tmp_path / "run.csv"), "missing.csv", "--format", "json", code=3)
    assert len(json.loads(done.stdout)["runs"]) == 1


def test_a_short_run_prints_its_series_and_is_3(gradclip: Call, tmp_path: Path) -> None:
    done = gradclip("analyze", write_csv(tmp_path / "run.csv", 6), "--format", "json", code=3)
    (run,) = json.loads(done.stdout)["runs"]
    assert run["verdict"] == "cannot-judge"
    assert run["series"]["loss"]["count"] == 6


def test_a_closed_pipe_does_not_change_the_exit_status(tmp_path: Path) -> None:
    write_csv(tmp_path / "run.csv", 2000)
    command = f"{sys.executable} -m gradclip_cli analyze run.csv --format json | head -c 1 > /dev/null; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert done.stderr == ""


def test_version_and_help(gradclip: Call) -> None:
    assert gradclip("--version", code=0).stdout.startswith("gradclip 0.")
    for args in (["--help"], ["-h"], ["analyze", "--help"], ["explain", "-h"]):
        assert "Usage: gradclip" in gradclip(*args, code=0).stdout
    bare = gradclip(code=2)
    assert "Usage: gradclip" in bare.stdout + bare.stderr


def test_output_in_a_locale_without_unicode(gradclip: Call, tmp_path: Path) -> None:
    done = gradclip(
        "analyze", write_csv(tmp_path / "run.csv", spike=True), env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}, code=0
    )
    assert "GC102" in done.stdout
    assert done.stdout.isascii()


def test_plot_is_written_once(gradclip: Call, tmp_path: Path) -> None:
    write_csv(tmp_path / "run.csv", spike=True)
    gradclip("analyze", "run.csv", "--plot", "run.png", code=0)
    first = (tmp_path / "run.png").read_bytes()
    assert first[:8] == b"\x89PNG\r\n\x1a\n"
    done = gradclip("analyze", "run.csv", "--plot", "run.png", code=2)
    assert "--force" in done.stderr
    assert (tmp_path / "run.png").read_bytes() == first
    gradclip("analyze", "run.csv", "--plot", "run.png", "--force", code=0)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="tells the processor time of a process by /proc")
def test_interrupt_is_130(tmp_path: Path) -> None:
    # Eight copies of a large run: seconds of work, so that the signal meets it in the middle.
    (tmp_path / "big.csv").write_text("step,loss\n" + "".join(f"{i},{1 + i % 7}\n" for i in range(1_000_000)))
    process = subprocess.Popen(
        [sys.executable, "-m", "gradclip_cli", "analyze", *["big.csv"] * 8],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Start-up must be over for the signal to be ours: Python loses one that arrives in the middle of an import.
    while process.poll() is None and _cpu_s(process.pid) < 1.5:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out[-500:], err)
    assert err == "gradclip: interrupted\n"
    assert out == ""


INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:  # as Python's own, where nobody can be told
                pass

sys.meta_path.insert(0, Interrupted())
sys.argv = ["gradclip", "analyze", "run.csv"]
from gradclip_cli.__main__ import run
"""


@pytest.mark.parametrize("module", ["typer", "numpy", "gradclip_cli.report.text"])
def test_an_interrupt_within_an_import_is_not_lost(tmp_path: Path, module: str) -> None:
    (tmp_path / "run.csv").write_text("step,loss\n" + "".join(f"{i},2.5\n" for i in range(50)))
    program = INTERRUPTED_IMPORT.format(module=module)

    def outcome(*lines: str) -> tuple[int, str, str]:
        code = "\n".join((program, *lines, "run()"))
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    assert outcome() == (130, "", "gradclip: interrupted\n")
    code, out, err = outcome("signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert (code, out[:6], err) == (0, "STABLE", "")


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("stable", "stable"),
        ("spike-recovered.csv", "spiked"),
        ("diverged.jsonl", "diverged"),
        ("nonfinite.log", "nonfinite"),
        ("bad-batch/max_norm-none", "diverged"),
        ("bad-batch/max_norm-suggested", "spiked"),
    ],
)
def test_sample_runs(gradclip: Call, name: str, verdict: str) -> None:
    done = gradclip("analyze", SAMPLES / name, "--format", "json", code=0)
    (run,) = json.loads(done.stdout)["runs"]
    assert run["verdict"] == verdict
    assert run["steps"] == {"first": 1, "last": run["steps"]["count"], "count": run["steps"]["count"]}


def test_a_directory_of_several_runs(gradclip: Call) -> None:
    done = gradclip("analyze", SAMPLES, "--format", "json", code=0)
    assert sorted(r["verdict"] for r in json.loads(done.stdout)["runs"]) == [
        "diverged",
        "diverged",
        "nonfinite",
        "spiked",
        "spiked",
        "stable",
    ]


@pytest.mark.parametrize(
    ("redirect", "code"),
    [
        ("analyze run.csv > /dev/full", 3),
        ("explain > /dev/full", 3),
        ("analyze run.csv >&-", 0),
        ("explain GC101 >&-", 0),
        ("analyze missing.csv 2>&-", 3),
        ("analyze missing.csv 2> /dev/full", 3),
        ("analyze", 2),
    ],
)
def test_closed_and_full_streams(tmp_path: Path, redirect: str, code: int) -> None:
    write_csv(tmp_path / "run.csv")
    command = f"{sys.executable} -m gradclip_cli {redirect}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("args", ["--help", "explain", "analyze run.csv"])
def test_a_pipe_that_nobody_reads(tmp_path: Path, args: str) -> None:
    write_csv(tmp_path / "run.csv")
    command = f"{sys.executable} -m gradclip_cli {args} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_path_that_cannot_be(gradclip: Call) -> None:
    done = gradclip("analyze", "a" * 5000, code=3)
    assert "too long" in done.stderr
