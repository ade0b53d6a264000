"""What `gradclip check --preflight` runs before it judges: other commands of gradclip, as processes of their own."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from gradclip_cli.cli.output import tell
from gradclip_cli.errors import ExitCode, UsageError
from gradclip_cli.launch_environment import check_launch_environment
from gradclip_cli.model.check import Check, Status, Suite
from gradclip_cli.policy import Policy, command_at, verified
from gradclip_cli.report.escape import visible

DEFAULT: tuple[tuple[str, ...], ...] = (("verify",), ("probe",))
"""What a preflight runs where the configuration names nothing: the battery on this device, and a short training."""

# How long a process may take to end by itself once it is asked to; `verify` gives a script of its own up to 18 s.
_GRACE_S = 20.0
_TAIL_BYTES = 65_536
# Where torchrun begins to speak of a worker that failed.
_TORCHRUN = re.compile(r"^.*torch[./]distributed[./]elastic", re.MULTILINE)


# Options of record and verify that take no value.
_FLAGS = ("--force", "--no-color", "--list")


@dataclass(frozen=True, slots=True)
class _Line:
    """A command line of the policy.

    Attributes:
        name: As it is typed.
        launcher: `torchrun` with its options, up to the command; empty where one process is enough.
        command: Of gradclip.
        words: What stands behind it.
    """

    name: str
    launcher: Sequence[str]
    command: str
    words: Sequence[str]


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
        UsageError: Where a command line is one that its command does not take, or several ranks were started to run them.
    """
    _refuse_ranks()
    stages = policy.preflight or DEFAULT
    for number, words in enumerate(stages, 1):
        name = shlex.join(words)
        tell(f"gradclip: preflight {number} of {len(stages)}: {visible(name)}")
        at = command_at(words) or 0
        line = _Line(name, words[:at], words[at], words[at + 1 :])
        yield _verify(line, policy) if line.command == "verify" else _record(line, policy, scratch / f"{number}-{line.command}")


def _refuse_ranks() -> None:
    """Several ranks would each run everything, and the processes of each would take one another for theirs."""
    check_launch_environment()
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size > 1:
        raise UsageError(
            f"the preflight was started on {world_size} ranks (environment variable WORLD_SIZE); expected one process, which starts others",
            hint='start it without torchrun, and list what needs ranks as "verify --world-size 8" or '
            '"torchrun --nproc-per-node 8 -m gradclip_cli record train.py"',
        )


def _verify(line: _Line, policy: Policy) -> Stage:
    if _value(line, ("-f", "--format")) is not None:
        raise UsageError(f"preflight {line.name!r}: --format was given; expected none", hint="`gradclip check --format` formats the report")
    code, out, err, seconds = _run(line, ("--format", "json"), policy)
    _refuse_usage(line, code, err)
    check = Check("preflight", line.command, Status.PASS, f"ended after {seconds:.0f} s", seconds=seconds, required=True)
    try:
        suite = verified(line.name, json.loads(out), policy)
    except (ValueError, RecursionError):
        suite = Suite(line.name, ())
    if code not in (ExitCode.OK, ExitCode.FINDINGS, ExitCode.CANNOT_JUDGE) or not suite.checks:
        check = _missing(check, code, err, policy)
    return Stage(replace(suite, checks=(check, *suite.checks)), None)


def _record(line: _Line, policy: Policy, target: Path) -> Stage:
    place = _value(line, ("-o", "--output"))
    if place is not None:
        target = policy.folder / place
    before = _state(target)
    code, _, err, seconds = _run(line, () if place is not None else ("-o", str(target)), policy)
    _refuse_usage(line, code, err)
    check = Check("preflight", line.command, Status.PASS, f"ended after {seconds:.0f} s", seconds=seconds, required=True)
    # What lay there before and is unchanged is another run.
    recorded = target if _state(target) != before else None
    if code != ExitCode.OK or recorded is None:
        check = _missing(check, code, err, policy)
    return Stage(Suite(line.name, (check,)), recorded)


def _state(place: Path) -> Mapping[str, tuple[int, int]]:
    """The files that lie there, with size and time of change."""
    files = [Path(folder, name) for folder, _, names in os.walk(place) for name in names]
    return {str(f): (s.st_size, s.st_mtime_ns) for f in files if (s := f.lstat())}


def _value(line: _Line, option: tuple[str, str]) -> str | None:
    """What a command line gives for an option, short and long; what stands behind the user's script is the script's own."""
    short, long = option
    words = iter(line.words)
    for word in words:
        name, equals, value = word.partition("=")
        if name == long and equals:
            return value
        if word in option:
            return next(words, "")
        if word.startswith(short) and not word.startswith("--"):
            return word.removeprefix(short)
        if line.command != "probe":
            if word in ("--", "-m") or not word.startswith("-"):
                return None
            if not equals and word not in _FLAGS:
                next(words, None)
    return None


def _missing(check: Check, code: int | None, err: str, policy: Policy) -> Check:
    if code is None:
        return replace(check, status=Status.SKIP, detail=f"ran into its timeout of {policy.timeout:g} s")
    what = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}" if code else "left nothing to judge"
    last = _last_words(err)
    return replace(check, status=Status.SKIP, detail=f"{what}: {last}" if last else what)


def _last_words(err: str) -> str:
    """The last line of standard error that tells what went wrong, not where something lies or what to try."""
    lines = (line.strip() for line in reversed(err.splitlines()))
    told = (line for line in lines if line and not line.startswith(("hint: ", "see them with: ")))
    last = next((line for line in told if line.startswith("gradclip: error: ") or not line.startswith("gradclip: ")), "")
    return last.removeprefix("gradclip: error: ")


def _refuse_usage(line: _Line, code: int | None, err: str) -> None:
    if code == ExitCode.USAGE and "gradclip: error: " in err:
        said = err.split("gradclip: error: ", 1)[1].splitlines()
        hint = next((line.removeprefix("hint: ") for line in said if line.startswith("hint: ")), None)
        raise UsageError(f"preflight {line.name!r}: {said[0]}", hint=hint)


def _run(line: _Line, options: Sequence[str], policy: Policy) -> tuple[int | None, str, str, float]:
    """Exit status (None after a timeout), standard output, the end of standard error, seconds.

    Output goes to files: a script may print more than a pipe or this process should hold.
    """
    import tempfile

    launcher = ["-m", "torch.distributed.run", *line.launcher[1:]] if line.launcher else ["-m", "gradclip_cli"]
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, _working(line.command), _ended_with_us():
        process = subprocess.Popen(
            [sys.executable, *launcher, line.command, *options, *line.words],
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
        said = _text(err)
        if line.launcher and code:
            code, said = _of_worker(code, said)
        return code, _text(out, whole=line.command == "verify"), said, seconds


def _of_worker(code: int, err: str) -> tuple[int, str]:
    """The status and the words of the worker that failed first: torchrun ends with 1 whatever it was, and has the last word."""
    told = re.findall(r"exitcode *: (-?[0-9]+)", err)
    said = _TORCHRUN.split(err, maxsplit=1)[0]
    return int(told[-1]) if told else code, "\n".join(line for line in said.splitlines() if "torch/distributed/run.py:" not in line)


@contextmanager
def _ended_with_us() -> Iterator[None]:
    """Take a request to end (a cancelled job, a closed terminal) as an interrupt: what was started lives in a session of its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children; by an interrupt first, so that what it recorded is complete."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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
