"""What `gradclip check --preflight` runs before it judges: other commands of gradclip, as processes of their own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from gradclip_cli.cli.output import tell
from gradclip_cli.errors import ExitCode, UsageError
from gradclip_cli.model import Check, Status, Suite
from gradclip_cli.policy import Policy, verified

DEFAULT: tuple[tuple[str, ...], ...] = (("verify",), ("probe",))
"""What a preflight runs where the configuration names nothing: the battery on this device, and a short training."""

# How long a process may take to end by itself once it is asked to.
_GRACE_S = 10.0
_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Stage:
    """What became of one command line.

    Attributes:
        suite: Whether it ended well, and what it found itself; named as people would type it behind `gradclip`.
        recorded: The run directory it left, to be judged; None where it records nothing or left nothing.
    """

    suite: Suite
    recorded: Path | None


def preflight(policy: Policy, scratch: Path) -> Iterator[Stage]:
    """Run the command lines of the policy one after the other.

    Args:
        scratch: Where runs are recorded whose command line names no place of its own.

    Raises:
        UsageError: Where a command line is one that its command does not take.
    """
    stages = policy.preflight or DEFAULT
    for number, words in enumerate(stages, 1):
        name = shlex.join(words)
        tell(f"gradclip: preflight {number} of {len(stages)}: {name}")
        yield _verify(name, words, policy) if words[0] == "verify" else _record(name, words, policy, scratch / f"{number}-{words[0]}")


def _verify(name: str, words: Sequence[str], policy: Policy) -> Stage:
    code, out, err, seconds = _run([words[0], "--format", "json", *words[1:]], policy)
    _refuse_usage(name, code, err)
    check = Check("preflight", words[0], Status.PASS, f"ended after {seconds:.0f} s", seconds=seconds, required=True)
    try:
        suite = verified(name, json.loads(out), policy)
    except (ValueError, RecursionError):
        suite = Suite(name, ())
    if code not in (ExitCode.OK, ExitCode.FINDINGS, ExitCode.CANNOT_JUDGE) or not suite.checks:
        check = _missing(check, code, err, policy)
    return Stage(Suite(name, (check, *suite.checks)), None)


def _record(name: str, words: Sequence[str], policy: Policy, target: Path) -> Stage:
    place = _output_of(words)
    if place is None:
        words = [words[0], "-o", str(target), *words[1:]]
    else:
        target = policy.folder / place
    code, _, err, seconds = _run(words, policy)
    _refuse_usage(name, code, err)
    check = Check("preflight", words[0], Status.PASS, f"ended after {seconds:.0f} s", seconds=seconds, required=True)
    if code != ExitCode.OK or not target.exists():
        check = _missing(check, code, err, policy)
    return Stage(Suite(name, (check,)), target if target.exists() else None)


def _output_of(words: Sequence[str]) -> str | None:
    """The place that a command line records to; what stands behind the user's script is the script's own."""
    for index, word in enumerate(words[1:], 1):
        option, _, value = word.partition("=")
        if option in ("-o", "--output"):
            return value or next(iter(words[index + 1 :]), None)
        if word in ("--", "-m") or word.endswith(".py"):
            return None
    return None


def _missing(check: Check, code: int | None, err: str, policy: Policy) -> Check:
    if code is None:
        return replace(check, status=Status.SKIP, detail=f"ran into its timeout of {policy.timeout:g} s")
    what = f"ended with status {code}" if code else "left nothing to judge"
    last = _last_words(err)
    return replace(check, status=Status.SKIP, detail=f"{what}: {last}" if last else what)


def _last_words(err: str) -> str:
    """The last line of standard error that tells what went wrong, not where something lies or what to try."""
    lines = (line.strip() for line in reversed(err.splitlines()))
    told = (line for line in lines if line and not line.startswith(("hint: ", "see them with: ")))
    last = next((line for line in told if line.startswith("gradclip: error: ") or not line.startswith("gradclip: ")), "")
    return last.removeprefix("gradclip: error: ")


def _refuse_usage(name: str, code: int | None, err: str) -> None:
    if code == ExitCode.USAGE and "gradclip: error: " in err:
        said = err.split("gradclip: error: ", 1)[1].splitlines()
        hint = next((line.removeprefix("hint: ") for line in said if line.startswith("hint: ")), None)
        raise UsageError(f"preflight {name!r}: {said[0]}", hint=hint)


def _run(words: Sequence[str], policy: Policy) -> tuple[int | None, str, str, float]:
    """Exit status (None after a timeout), standard output, the end of standard error, seconds.

    Output goes to files: a script may print more than a pipe or this process should hold.
    """
    import tempfile

    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, _working(words[0]), _ended_with_us():
        process = subprocess.Popen(
            [sys.executable, "-m", "gradclip_cli", *words],
            cwd=policy.folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        code: int | None
        try:
            code = process.wait(policy.timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        seconds = time.monotonic() - began
        return code, _text(out, whole=words[0] == "verify"), _text(err), seconds


@contextmanager
def _ended_with_us() -> Iterator[None]:
    """Take a request to end (a cancelled job) as an interrupt: what was started lives in a session of its own, where it would go on."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children; by an interrupt first, so that what it recorded is complete."""
    for sig, grace in ((signal.SIGINT, _GRACE_S), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, sig)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            continue


def _text(file: IO[bytes], *, whole: bool = False) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(0 if whole else max(0, size - _TAIL_BYTES))
    return file.read().decode("utf-8", "replace")


@contextmanager
def _working(command: str) -> Iterator[None]:
    """A sign of life on a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        bar.add_task(f"{command} is running", total=None)
        yield
