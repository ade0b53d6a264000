"""Ranks on this machine: processes that run the checks of several ranks, watched, and ended whatever happens.

Each rank writes a journal, a line when a check begins and one when it ends; that way the rank that
hangs or dies is known, and so is the check. A rank ends by itself when its standard input closes,
which it does when this process is gone.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from gradclip_cli.model.check import Status
from gradclip_cli.verify.judge import Judged, skipped
from gradclip_cli.verify.options import Options
from gradclip_cli.verify.outcome import Outcome
from gradclip_cli.verify.table import Trial

# Starting Python and importing torch, on a machine with a slow disk.
_START_S = 120.0
# When one rank raised, the others are given this long to raise too.
_GRACE_S = 2.0
_POLL_S = 0.02
# Writing down a stack takes no time, being scheduled on a busy machine may.
_STACK_S = 0.3
_FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')
_WAITING = f"torch{os.sep}distributed{os.sep}"


@dataclass(frozen=True, slots=True)
class Job:
    """What a rank is told on its standard input.

    Attributes:
        directory: Of the rendezvous and the journals.
        ids: The checks, in order.
        num_threads: How many threads its CPU work may use.
    """

    rank: int
    world_size: int
    directory: str
    ids: tuple[str, ...]
    options: Options
    dtypes: tuple[torch.dtype, ...]
    num_threads: int


def run(
    options: Options, dtypes: tuple[torch.dtype, ...], trials: Sequence[Trial], world_size: int, started: Callable[[Trial], None]
) -> dict[str, Judged]:
    """Make these checks with `world_size` processes, by id. What could not be made because a rank was lost is skipped and says so."""
    results: dict[str, Judged] = {}
    pending = list(trials)
    while pending:
        group = _Group(options, dtypes, pending, world_size)
        try:
            lost = group.watch(started, results)
        finally:
            group.end()
        pending = [t for t in pending if t.id not in results]
        if lost:
            results |= {t.id: skipped(t, lost) for t in pending}
            break
    return results


@dataclass(slots=True)
class _Rank:
    """A process and how far it got.

    Attributes:
        running: The check it is in; None between two.
        raised: What it raised there, and whether the clipping function did.
    """

    process: subprocess.Popen[bytes]
    journal: Path
    errors: Path
    read: int = 0
    running: str | None = None
    num_done: int = 0
    raised: tuple[str, bool] | None = None
    said: dict[str, tuple[Status, Outcome, float]] = field(default_factory=dict)

    def update(self) -> bool:
        """Read what is new in the journal; whether there was anything."""
        try:
            with self.journal.open("rb") as f:
                f.seek(self.read)
                new = f.read()
        except FileNotFoundError:
            return False
        whole = new[: new.rfind(b"\n") + 1]
        self.read += len(whole)
        for line in whole.splitlines():
            kind, trial, value = pickle.loads(base64.b64decode(line))  # written by our own process
            if kind == "begin":
                self.running = trial
            elif kind == "raised":
                self.raised = value
            else:
                self.said[trial] = value
                self.running = None
                self.num_done += 1
        return bool(whole)

    def place(self) -> str | None:
        """In which function it is, where that is none of torch.distributed's; None where it waits there, or cannot be asked."""
        if not hasattr(signal, "SIGUSR1") or self.process.poll() is not None:
            return None
        self.process.send_signal(signal.SIGUSR1)
        time.sleep(_STACK_S)
        text = self.journal.with_suffix(".stacks").read_text(encoding="utf-8", errors="replace")
        threads = [t for t in text.split("\n\n") if "_end_with_parent" not in t and "rank_process.py" in t]
        frames = _FRAME.findall(threads[0]) if threads else []
        if not frames or any(_WAITING in file for file, _, _ in frames):
            return None
        file, line, function = frames[0]
        return f"{function} ({file}:{line})"

    def last_words(self) -> str:
        """The last line it wrote to standard error."""
        lines = self.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines() if self.errors.exists() else []
        return f": {lines[-1].strip()[:200]}" if lines else ""


class _Group:
    """The processes of one process group."""

    def __init__(self, options: Options, dtypes: tuple[torch.dtype, ...], trials: Sequence[Trial], world_size: int) -> None:
        self._trials = {t.id: t for t in trials}
        self._timeout_s = options.timeout_s
        self._directory = tempfile.TemporaryDirectory(prefix="gradclip-verify-", ignore_cleanup_errors=True)
        self._ranks: list[_Rank] = []
        threads = max(1, (os.cpu_count() or 1) // world_size)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
            "OMP_NUM_THREADS": str(threads),
            "PYTHONWARNINGS": "ignore",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        try:
            for rank in range(world_size):
                self._start(Job(rank, world_size, self._directory.name, tuple(self._trials), options, dtypes, threads), environment)
        except BaseException:
            self.end()
            raise

    def _start(self, job: Job, environment: dict[str, str]) -> None:
        base = Path(self._directory.name) / f"rank-{job.rank}"
        errors = base.with_suffix(".stderr")
        with errors.open("wb") as stderr:
            # A session of its own: Ctrl-C is for this process, which ends the others.
            process = subprocess.Popen(
                [sys.executable, "-m", "gradclip_cli.verify.rank_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        self._ranks.append(_Rank(process, base.with_suffix(".journal"), errors))
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once, which is seen soon enough
            process.stdin.write(base64.b64encode(pickle.dumps(job)) + b"\n")
            process.stdin.flush()

    def watch(self, started: Callable[[Trial], None], results: dict[str, Judged]) -> str | None:
        """Wait for the checks, put them into `results`, and give the reason where the rest must be left out.

        None means done, or that one check failed in a way from which a new group can go on.
        """
        told: set[str] = set()
        last_sign = time.monotonic()
        first_raised: float | None = None
        first = next(iter(self._trials))
        while True:
            news = [r.update() for r in self._ranks]
            if any(news):
                last_sign = time.monotonic()
            lead = self._ranks[0]
            if lead.running is not None and lead.running not in told:
                told.add(lead.running)
                started(self._trials[lead.running])
            for trial_id, trial in self._trials.items():
                if trial_id not in results and all(trial_id in r.said for r in self._ranks):
                    results[trial_id] = Judged(trial, *lead.said[trial_id])
            if all(t in results for t in self._trials):
                return None
            where = next(t for t in self._trials if t not in results)
            now = time.monotonic()
            dead = [i for i, r in enumerate(self._ranks) if r.process.poll() is not None]
            if dead:
                # No rank ends by itself; what the others raise because of it comes second.
                results[where] = Judged(self._trials[where], Status.FAIL, Outcome(False, self._died(dead[0])), now - last_sign)
                return f"rank {dead[0]} died in {where} {self._trials[where].name}"
            if any(r.raised for r in self._ranks):
                first_raised = now if first_raised is None else first_raised
                if all(r.raised for r in self._ranks) or now - first_raised > _GRACE_S:
                    results[where] = Judged(self._trials[where], *self._raised())
                    return None
            else:
                waiting = max(self._timeout_s, _START_S) if where == first and not any(r.running for r in self._ranks) else self._timeout_s
                if now - last_sign > waiting:
                    results[where] = Judged(self._trials[where], Status.FAIL, Outcome(False, self._hung(where)), now - last_sign)
                    return f"the ranks lost one another in {where} {self._trials[where].name}"
            time.sleep(_POLL_S)

    def _raised(self) -> tuple[Status, Outcome, float]:
        """What it means that ranks raised: all of them, and not in the clipping function: it cannot be done here; else a failure."""
        raised = {i: r.raised for i, r in enumerate(self._ranks) if r.raised is not None}
        by_clip = [i for i, (_, clip) in raised.items() if clip]
        who = by_clip or list(raised)
        message = raised[who[0]][0]
        if not by_clip and len(raised) == len(self._ranks):
            return Status.SKIP, Outcome(True, f"could not be carried out here: {message}"), 0.0
        names = "every rank" if len(who) == len(self._ranks) else _names(who)
        return (
            Status.FAIL,
            Outcome(False, f"{names} raised {message}", {"num_raised": float(len(who)), "first_wrong_rank": float(who[0])}),
            0.0,
        )

    def _died(self, rank: int) -> str:
        code = self._ranks[rank].process.returncode
        how = f"was ended by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit status {code}"
        return f"rank {rank} {how}{self._ranks[rank].last_words()}"

    def _hung(self, where: str) -> str:
        limit = f"{self._timeout_s:g} s"
        behind = [i for i, r in enumerate(self._ranks) if where not in r.said]
        if all(r.running is None and not r.num_done for r in self._ranks):
            return f"the ranks did not form a group{self._ranks[0].last_words()}"
        if len(behind) < len(self._ranks):
            return f"{_names(behind)} did not finish within {limit}, the others did"
        places = [r.place() for r in self._ranks]
        outside = [i for i, place in enumerate(places) if place is not None]
        if outside and len(outside) < len(self._ranks):
            return f"{_names(outside)} did not come to where the others wait within {limit}: it is in {places[outside[0]]}"
        return f"no rank finished within {limit}"

    def end(self) -> None:
        """Nothing is left running and nothing on disk."""
        for r in self._ranks:
            if r.process.poll() is None:
                r.process.kill()
        for r in self._ranks:
            r.process.wait()
            if r.process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    r.process.stdin.close()
        self._directory.cleanup()


def _names(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}{' and others' if len(ranks) > 8 else ''}"
