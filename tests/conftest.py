"""What several test files need. Fixtures return data only where a test asks for it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gradclip_cli.model.run import Run, Series

if TYPE_CHECKING:
    from tests.forks import Zygote

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "sample_runs"

# A job in the background ignores interrupts, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Nothing that the tests only import need be gone through by the garbage collector, or by the watcher that looks for models."""
    gc.collect()
    gc.freeze()


def make_run(
    loss: Sequence[float] | np.ndarray | None = None,
    grad_norm: Sequence[float] | np.ndarray | None = None,
    *,
    more: Mapping[str, Sequence[float]] | None = None,
    start: int = 0,
    every: int = 1,
    **fields: object,
) -> Run:
    """A run with values at steps start, start + every, ..."""
    given = {"loss": loss, "grad_norm": grad_norm, **(more or {})}
    series = {
        name: Series(name, name, start + every * np.arange(len(values), dtype=np.int64), np.asarray(values, np.float64))
        for name, values in given.items()
        if values is not None
    }
    return Run("made/by/a/test", "test", series, **fields)  # type: ignore[arg-type]


@pytest.fixture
def gradclip(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a real process: `gradclip("analyze", path, code=0)`."""

    def call(
        *args: object, code: int | None = None, env: Mapping[str, str] | None = None, **options: object
    ) -> subprocess.CompletedProcess[str]:
        full = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR",)} | {
            "COLUMNS": "80",
            "NO_COLOR": "1",
            "PYTHONPATH": str(ROOT),
        }
        done = subprocess.run(
            [sys.executable, "-m", "gradclip_cli", *map(str, args)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            cwd=tmp_path,
            env=full | dict(env or {}),
            timeout=120,
            **options,  # type: ignore[call-overload]
        )
        assert "Traceback" not in done.stderr, done.stderr
        if code is not None:
            assert done.returncode == code, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
        return done

    return call


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """A process that has torch loaded and turns, by fork, into what a test asks for."""
    from tests import forks

    with forks.zygote() as started:
        yield started


@pytest.fixture
def warm(tmp_path: Path, zygote: Zygote) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`gradclip` in a process that is forked from one which has torch loaded, where the start of the process is not what is tested."""

    def call(
        *args: object, code: int | None = None, env: Mapping[str, str] | None = None, **options: int
    ) -> subprocess.CompletedProcess[str]:
        shown = {"COLUMNS": "80", "NO_COLOR": "1", **(env or {})}
        done = zygote("gradclip", *map(str, args), cwd=tmp_path, env=shown, **options)
        assert "Traceback" not in done.stderr, done.stderr
        if code is not None:
            assert done.returncode == code, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
        return done

    return call
