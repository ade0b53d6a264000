"""Making one check: whatever it raises is an answer."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

import torch

from gradclip_cli.model.check import Status
from gradclip_cli.verify.bench import Bench
from gradclip_cli.verify.clip import ClipRaised
from gradclip_cli.verify.outcome import Outcome, Unjudged, first_line
from gradclip_cli.verify.table import Trial


@dataclass(frozen=True, slots=True)
class Judged:
    """A check and what became of it."""

    trial: Trial
    status: Status
    outcome: Outcome
    seconds: float = 0.0


def skipped(trial: Trial, reason: str) -> Judged:
    """A check that was not made."""
    return Judged(trial, Status.SKIP, Outcome(True, reason))


def answer(trial: Trial, bench: Bench) -> tuple[Status, Outcome]:
    """What the check says; exceptions other than its own `Unjudged` are let through."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome = trial.run(bench)
        except Unjudged as e:
            return Status.SKIP, Outcome(True, str(e))
    return (Status.PASS if outcome.ok else Status.FAIL), outcome


def judge(trial: Trial, bench: Bench) -> Judged:
    """Make one check in this process."""
    begin = time.perf_counter()
    try:
        status, outcome = answer(trial, bench)
    except ClipRaised as e:
        status, outcome = Status.FAIL, Outcome(False, f"clipping raised {e}")
    except (MemoryError, torch.OutOfMemoryError):
        status, outcome = Status.SKIP, Outcome(True, f"not enough memory on {bench.device}")
    except RuntimeError as e:
        # The device or this version of torch cannot do what the check prepares; clipping itself has its own exception.
        status, outcome = Status.SKIP, Outcome(True, f"could not be carried out here: {first_line(e)}")
    return Judged(trial, status, outcome, time.perf_counter() - begin)
