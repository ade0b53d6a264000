"""Valid files of every format, broken in random ways: a run with what is left, or one clear error; never anything else."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradclip_cli import GradclipError, Run, analyze, read_runs
from gradclip_cli.report import FORMATS
from tests import cases, recorded_cases

# What a hostile or unlucky file holds: separators, brackets, escapes, huge numbers, other encodings.
_TOKENS = [
    b"\x00",
    b"\xff\xfe",
    b"\x1b[31m",
    b"\r",
    b"\n\n",
    b"nan",
    b"-inf",
    b"1e999",
    b"9" * 400,
    b'"',
    b"{",
    b"[" * 50,
    b",,,,",
    b"\x80" * 9,
    b"step",
    b"loss: ",
]


@st.composite
def mutations(draw: st.DrawFn) -> list[tuple[str, float, bytes, float]]:
    kinds = st.sampled_from(["flip", "cut", "delete", "insert", "repeat", "swap"])
    share = st.floats(0, 1, allow_nan=False)
    return draw(st.lists(st.tuples(kinds, share, st.sampled_from(_TOKENS), share), min_size=1, max_size=4))


def mutate(data: bytes, plan: list[tuple[str, float, bytes, float]]) -> bytes:
    for kind, where, token, extent in plan:
        at = int(where * max(len(data) - 1, 0))
        end = min(len(data), at + 1 + int(extent * 200))
        if kind == "flip" and data:
            data = data[:at] + bytes([data[at] ^ (1 << int(extent * 7))]) + data[at + 1 :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "delete":
            data = data[:at] + data[end:]
        elif kind == "insert":
            data = data[:at] + token + data[at:]
        elif kind == "repeat":
            data = data[:end] + data[at:end] * 3 + data[end:]
        else:
            data = data[at:] + data[:at]
    return data


def judge(path: Path) -> list[Run]:
    """Read, judge and print; whatever comes out must be well formed."""
    try:
        runs = read_runs(path)
    except GradclipError as e:
        assert e.message
        assert "\n" not in e.message
        return []
    for run in runs:
        for series in run.series.values():
            assert (np.diff(series.steps) > 0).all()
            assert series.steps.dtype == np.int64
            assert series.values.dtype == np.float64
            assert len(series.steps) == len(series.values) > 0
    analyses = [analyze(run) for run in runs]
    for render in FORMATS.values():
        assert render(analyses, color=False)
    return runs


@pytest.mark.parametrize("name", cases.FILES)
def test_valid_files_are_the_same_run(name: str, tmp_path: Path) -> None:
    (run,) = judge(cases.FILES[name](tmp_path))
    assert len(run.series["loss"]) == cases.N
    np.testing.assert_allclose(run.series["loss"].values, cases.LOSS, rtol=1e-5)
    if run.steps_known:
        assert run.series["loss"].steps.tolist() == cases.STEPS.tolist()
    if name != "mlflow":
        np.testing.assert_allclose(run.series["grad_norm"].values, cases.NORM, rtol=1e-5)


@pytest.mark.parametrize("name", cases.FILES)
def test_broken_files(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp(name)
    original = cases.FILES[name](folder)
    data = original.read_bytes()
    broken = folder / f"broken-{original.name}"

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(mutations())
    def check(plan: list[tuple[str, float, bytes, float]]) -> None:
        broken.write_bytes(mutate(data, plan))
        judge(broken)

    check()


@pytest.mark.parametrize("name", ["run.json", "rank-00000/header.json", "rank-00000/updates.blocks", "rank-00000/trace.jsonl"])
def test_broken_files_of_a_run_directory(name: str, tmp_path: Path) -> None:
    run = recorded_cases.write(tmp_path / "run")
    data = (run / name).read_bytes()

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(mutations())
    def check(plan: list[tuple[str, float, bytes, float]]) -> None:
        (run / name).write_bytes(mutate(data, plan))
        judge(run)

    check()


HUGE = {
    "a line of 50 MB": b"step loss 1.0 " * (50_000_000 // 14),
    "50 MB of zeros": bytes(50_000_000),
    "50 MB of bars": b"|" * 50_000_000,
    "JSON nested 100,000 deep": b'{"loss": ' * 100_000 + b"1" + b"}" * 100_000,
    "an array nested 100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "a CSV of 10,000 columns": ",".join(f"c{i}" for i in range(10_000)).encode()
    + b"\n"
    + b"\n".join(b",".join([b"1"] * 10_000) for _ in range(50))
    + b"\n",
    "a header claiming gigabytes": (2**33).to_bytes(8, "little") + b"\x00" * 100,
    "a JSON string without end": b'{"loss": "' + b"a" * 20_000_000,
}


@pytest.mark.parametrize("name", HUGE)
@pytest.mark.parametrize("suffix", ["log", "csv", "json", "out.tfevents.1"])
def test_huge_and_deep(name: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"run.{suffix}"
    path.write_bytes(HUGE[name])
    tracemalloc.start()
    start = time.monotonic()
    judge(path)
    elapsed = time.monotonic() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000_000 + 8 * len(HUGE[name])
    assert elapsed < 60, "not linear in the input"


def test_escape_codes_in_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("step,\x1b[2Jtrain/loss\x07,grad_norm\n" + "".join(f"{i},{3 - i / 50},{1 + i % 5 / 10}\n" for i in range(60)))
    runs = judge(path)
    for run in runs:
        for render in FORMATS.values():
            text = render([analyze(run)], color=False)
            assert "\x1b" not in text
            assert "\x07" not in text
