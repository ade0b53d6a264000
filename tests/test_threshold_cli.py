"""`gradclip suggest-threshold` and `gradclip analyze --max-norm` through real processes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradclip_cli.errors import GradclipError
from gradclip_cli.report.snippet import SNIPPETS, pasted, snippet
from tests.conftest import ROOT, SAMPLES
from tests.threshold_cases import norms

Gradclip = Callable[..., subprocess.CompletedProcess[str]]


def write(path: Path, values: np.ndarray) -> Path:
    rows = "".join(f"{i},{2.0 + 0.01 * (i % 3)},{v!r}\n" for i, v in enumerate(values.tolist()))
    path.write_text("step,loss,grad_norm\n" + rows)
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write(tmp_path / "run.csv", norms(300))


def strict(text: str) -> dict[str, object]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)  # type: ignore[no-any-return]


def test_json_holds_the_contract(gradclip: Gradclip, log: Path) -> None:
    document = strict(gradclip("suggest-threshold", log, "-f", "json", code=0).stdout)
    assert document["schema"] == "gradclip.threshold/1"
    (run,) = document["runs"]  # type: ignore[misc]
    contract = {"source", "max_norm", "norm_type", "low", "high", "method", "clipped_fraction", "steps", "excluded", "candidates", "notes"}
    assert contract <= set(run)
    assert run["max_norm"] == np.percentile(norms(300), 99)
    assert run["norm_type"] == 2.0
    assert run["method"] == "safety-net"
    assert run["steps"] == {"first": 0, "last": 299, "count": 300}
    assert {"warmup", "nonfinite", "exploding"} <= set(run["excluded"])
    for candidate in run["candidates"]:
        assert {"percentile", "max_norm", "clipped_fraction", "exploding_caught", "median_coef"} <= set(candidate)
    assert run["refusal"] is None


def test_value_is_the_number_alone(gradclip: Gradclip, log: Path) -> None:
    done = gradclip("suggest-threshold", log, "--format", "value", code=0)
    assert done.stdout == "1.728\n", "as in the line to paste"
    assert np.percentile(norms(300), 99) == pytest.approx(1.728415, abs=1e-6)
    assert done.stderr == ""
    (run,) = strict(gradclip("suggest-threshold", log, "--format", "json", code=0).stdout)["runs"]  # type: ignore[misc]
    assert run["max_norm"] == float(np.percentile(norms(300), 99)), "all digits"
    asked = gradclip("suggest-threshold", log, "--format", "value", "--target-clip-fraction", "0.1", code=0)
    assert float(asked.stdout) == pytest.approx(np.percentile(norms(300), 90), rel=5e-4)


def test_no_number_is_status_3_and_nothing_to_paste(gradclip: Gradclip, tmp_path: Path) -> None:
    short = write(tmp_path / "short.csv", norms(20))
    done = gradclip("suggest-threshold", short, "--format", "value", code=3)
    assert done.stdout == ""
    assert "only 20 healthy of 20 logged norms" in done.stderr and "hint: " in done.stderr
    done = gradclip("suggest-threshold", short, "--snippet", "torch", code=3)
    assert done.stdout == ""
    (run,) = strict(gradclip("suggest-threshold", short, "-f", "json", code=3).stdout)["runs"]  # type: ignore[misc]
    assert run["max_norm"] is None and "only 20 healthy" in run["refusal"] and run["steps"]["count"] == 20
    assert "no number" in gradclip("suggest-threshold", short, code=3).stdout


def test_several_runs_stand_side_by_side_or_are_pooled(warm: Gradclip, tmp_path: Path) -> None:
    a, b = norms(300, seed=1), norms(200, seed=2)
    paths = [write(tmp_path / "a.csv", a), write(tmp_path / "b.csv", b), write(tmp_path / "c.csv", norms(10))]
    document = strict(warm("suggest-threshold", *paths, "-f", "json", code=0).stdout)
    found = [run["max_norm"] for run in document["runs"]]  # type: ignore[attr-defined]
    assert found == [np.percentile(a, 99), np.percentile(b, 99), None]
    text = warm("suggest-threshold", *paths, code=0).stdout
    assert text.startswith("max_norm ") and text.count("no number") == 2
    (pooled,) = strict(warm("suggest-threshold", "--pool", *paths, "-f", "json", code=0).stdout)["runs"]  # type: ignore[misc]
    assert pooled["max_norm"] == np.percentile(np.r_[a, b], 99)
    assert len(pooled["pooled"]) == 2 and any("c.csv was left out" in n for n in pooled["notes"])
    done = warm("suggest-threshold", *paths, "-f", "value", code=2)
    assert done.stdout == "" and "--pool" in done.stderr
    assert float(warm("suggest-threshold", "--pool", *paths, "-f", "value", code=0).stdout) == pytest.approx(pooled["max_norm"], rel=5e-4)
    warm("suggest-threshold", *paths, "--snippet", "hf", code=2)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--percentile", "0"],
        ["--percentile", "99", "--target-clip-fraction", "0.01"],
        ["--target-clip-fraction", "2"],
        ["--percentile", "nan"],
        ["--from-step", "9", "--to-step", "3"],
        ["--snippet", "jax"],
        ["--snippet", "torch", "--format", "json"],
        ["--format", "yaml"],
        ["--plot", "picture.jpg"],
    ],
    ids=" ".join,
)
def test_a_bad_command_line_is_status_2(warm: Gradclip, log: Path, wrong: list[str]) -> None:
    done = warm("suggest-threshold", log, *wrong, code=2)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) <= 2


def test_what_cannot_be_read_is_status_3_beside_what_can(warm: Gradclip, log: Path, tmp_path: Path) -> None:
    warm("suggest-threshold", tmp_path / "missing.csv", code=3)
    done = warm("suggest-threshold", tmp_path / "missing.csv", log, code=3)
    assert "max_norm" in done.stdout and "missing.csv" in done.stderr
    (tmp_path / "loss.csv").write_text("step,loss\n" + "".join(f"{i},{3 - i / 100}\n" for i in range(60)))
    done = warm("suggest-threshold", tmp_path / "loss.csv", code=3)
    assert "No gradient norm in this log" in done.stdout and "--grad-norm KEY" in done.stdout


def test_keys_may_be_named(warm: Gradclip, tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    path.write_text("step,loss,wobble\n" + "".join(f"{i},2.0,{v!r}\n" for i, v in enumerate(norms(100).tolist())))
    warm("suggest-threshold", path, code=3)
    done = warm("suggest-threshold", path, "--grad-norm", "wobble", "-f", "value", code=0)
    assert float(done.stdout) == pytest.approx(np.percentile(norms(100), 99), rel=5e-4)


def test_a_window(warm: Gradclip, tmp_path: Path) -> None:
    values = norms(600)
    values[300:] *= 4
    done = warm("suggest-threshold", write(tmp_path / "r.csv", values), "--from-step", 300, "--to-step", 499, "-f", "value", code=0)
    assert float(done.stdout) == pytest.approx(np.percentile(values[300:500], 99), rel=5e-4)


def test_a_snippet_is_the_line_to_paste(warm: Gradclip, log: Path) -> None:
    done = warm("suggest-threshold", log, "--snippet", "torch", code=0)
    assert f"torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm={np.percentile(norms(300), 99):.4g})" in done.stdout


@pytest.mark.parametrize(
    ("framework", "line"),
    [
        ("hf", "max_grad_norm=1.5,"),
        ("lightning", 'gradient_clip_val=1.5, gradient_clip_algorithm="norm"'),
        ("deepspeed", '"gradient_clipping": 1.5'),
        ("accelerate", "accelerator.clip_grad_norm_(model.parameters(), max_norm=1.5)"),
        ("fsdp", "model.clip_grad_norm_(max_norm=1.5)"),
    ],
)
def test_every_framework_has_its_line(framework: str, line: str) -> None:
    text = snippet(framework, 1.5, 2.0)
    assert line in text
    if framework == "deepspeed":
        json.loads("{" + text + "}")
    else:
        compile(text.replace("max_grad_norm=1.5,", "max_grad_norm=1.5"), "snippet", "exec")
    if framework in ("accelerate", "fsdp"):
        assert 'norm_type=float("inf")' in snippet(framework, 1.5, math.inf)
    else:
        with pytest.raises(GradclipError, match="L2 norm only"):
            snippet(framework, 1.5, math.inf)


@pytest.mark.parametrize(
    ("value", "written"),
    [(1.0, "1.0"), (0.71384213, "0.7138"), (12345.678, "12350.0"), (1.5e-9, "1.5e-09"), (1.23456e20, "1.235e+20")],
    ids=str,
)
def test_how_a_number_is_pasted(value: float, written: str) -> None:
    assert pasted(value) == written
    for framework in SNIPPETS:
        assert written in snippet(framework, value, 2.0)


@pytest.mark.parametrize("format", ["text", "json", "markdown", "value"])
def test_a_closed_pipe_changes_no_status(log: Path, tmp_path: Path, format: str) -> None:
    short = write(tmp_path / "short.csv", norms(20))
    for path, expected in ((log, 0), (short, 3)):
        command = f"{sys.executable} -m gradclip_cli suggest-threshold {path} --format {format} 2>/dev/null | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60
        )
        assert done.stdout.strip() == str(expected)


def test_text_fits_80_columns_and_says_why(gradclip: Gradclip, tmp_path: Path) -> None:
    values = norms(800) * np.geomspace(6, 1, 800)
    values[700] = 90
    done = gradclip("suggest-threshold", write(tmp_path / "r.csv", values), code=0)
    assert max(map(len, done.stdout.splitlines())) <= 80
    for part in ("Candidates", "Parts", "Why this number", "Before you use it", "> p99", "p99.9", "1 of 1", "AutoClip", "ZClip"):
        assert part in done.stdout
    done.stdout.encode("utf-8")
    plain = gradclip("suggest-threshold", write(tmp_path / "r.csv", values), code=0, env={"PYTHONIOENCODING": "ascii"})
    assert plain.stdout.isascii()


def test_names_cannot_break_out(warm: Gradclip, tmp_path: Path) -> None:
    path = write(tmp_path / "a\x1b[31m|b`<b>.csv", norms(100))
    assert "\x1b" not in warm("suggest-threshold", path, path, code=0).stdout
    page = warm("suggest-threshold", path, path, "-f", "markdown", code=0).stdout
    assert "\x1b" not in page
    widths = {line.count("|") - line.count("\\|") for line in page.splitlines() if line.startswith("| **max")}
    assert widths == {4}


def test_a_picture(warm: Gradclip, log: Path, tmp_path: Path) -> None:
    drifting = norms(400) * np.geomspace(6, 1, 400)
    drifting[300] = 1e6
    paths = [
        log,
        write(tmp_path / "drift.csv", drifting),
        write(tmp_path / "short.csv", norms(5)),
        write(tmp_path / "same.csv", np.ones(50)),
    ]
    done = warm("suggest-threshold", *paths, "--plot", "t.svg", code=0)
    assert done.stderr == "wrote t.svg\n"
    picture = (tmp_path / "t.svg").read_text()
    for part in ("share clipped at a threshold", "adaptive rules", "AutoClip", "exploding", "p99", "no number"):
        assert part in picture
    assert "is there already" in warm("suggest-threshold", log, "--plot", "t.svg", code=2).stderr
    warm("suggest-threshold", log, "--plot", "t.svg", "--force", code=0)
    warm("suggest-threshold", log, "--plot", "t.png", code=0)
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("sample", ["stable", "spike-recovered.csv", "diverged.jsonl", "nonfinite.log", "bad-batch/max_norm-none"])
def test_the_sample_runs(warm: Gradclip, sample: str) -> None:
    (run,) = strict(warm("suggest-threshold", SAMPLES / sample, "-f", "json", code=0).stdout)["runs"]  # type: ignore[misc]
    # A small GPT whose usual norms lie between 0.5 and 1.2.
    assert 0.7 < run["low"] < run["max_norm"] < run["high"] < 2.5
    assert 0.9 < run["max_norm"] < 1.5
    assert run["excluded"]["warmup"] >= 19
    chosen = next(c for c in run["candidates"] if c["label"] == "recommended")
    assert chosen["exploding_caught"] == run["excluded"]["exploding"]


def test_what_if_in_every_format(warm: Gradclip, tmp_path: Path) -> None:
    values = norms(300, sigma=0.1)
    values[200] = 40
    path = write(tmp_path / "r.csv", values)
    (run,) = strict(warm("analyze", path, "--max-norm", 2, "-f", "json", code=0).stdout)["runs"]  # type: ignore[misc]
    finding = next(f for f in run["findings"] if f["rule"] == "GC101")
    assert finding["what_if"]["num_norms"] == finding["what_if"]["num_clipped"] == 1
    assert finding["what_if"]["norm"] == 40
    assert finding["what_if"]["coefficient"] == pytest.approx(2 / (40 + 1e-6), rel=1e-12)
    assert finding["what_if"]["clipped_norm"] == pytest.approx(2, rel=1e-6)
    assert run["what_if"]["max_norm"] == 2 and run["what_if"]["clipped_fraction"] == 1 / 300
    for format in ("text", "markdown"):
        text = " ".join(warm("analyze", path, "--max-norm", 2, "-f", format, code=0).stdout.split())
        assert "would have been scaled by 0.05, to 2" in text
        assert "might not have happened" in text
    plain = strict(warm("analyze", path, "-f", "json", code=0).stdout)
    assert '"what_if"' not in json.dumps(plain)


@pytest.mark.parametrize("bound", ["0", "-1", "nan", "inf", "x"])
def test_a_threshold_that_clips_nothing_is_status_2(warm: Gradclip, log: Path, bound: str) -> None:
    assert warm("analyze", log, "--max-norm", bound, code=2).stdout == ""


def test_the_shell_can_use_the_value(log: Path) -> None:
    command = f'set -e; m=$({sys.executable} -m gradclip_cli suggest-threshold {log} --format value); echo "--max_grad_norm $m"'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60)
    assert done.stdout == "--max_grad_norm 1.728\n"
