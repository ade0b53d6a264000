"""`gradclip verify SCRIPT`: run a training script under watch, and judge how it clips."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gradclip_cli.launch_environment import launched_local_rank, launched_rank
from gradclip_cli.model.check import Verification
from gradclip_cli.model.run import Run

DEFAULT_UPDATES = 100
# What may be meant for us where a script does not take it.
_OPTIONS = ("--format", "-f", "--no-color", "-m", "--max-steps", "--output", "-o", "--force")
# How long the rank that judges waits for the others once its own script is over.
_OTHERS_S = 60.0
_OTHERS_OF_FAILED_S = 10.0
# How long a script may take to end that was told to because we were; whoever told us kills us after some time.
_TERMINATED_S = 8.0
# How long an interrupted script may take to end: by itself, when it is asked once more, when it is told to.
_PATIENCE_S = ((None, 3.0), (signal.SIGINT, 10.0), (signal.SIGTERM, 5.0))


def verify_script(
    script: str, args: Sequence[str], *, module: bool, max_steps: int, output: Path | None, force: bool = False
) -> Verification | None:
    """Run the script for some updates, all gradients read at every point, and judge the loop.

    What the script prints goes to standard error: standard output is for the verdict. Under a launcher that starts several ranks, the
    first of this machine judges them all, and the others give None: a status other than 0 of theirs would end the launch before that.

    Args:
        output: Keep the recorded run there; a temporary directory unless given.

    Raises:
        GradclipError: Where the script took no optimizer step that could be seen, or a rank that does not judge failed.
        UsageError: Where there is no such script.
    """
    from gradclip_cli.analysis import judge_loop
    from gradclip_cli.cli.record import check_script, check_torch
    from gradclip_cli.errors import GradclipError
    from gradclip_cli.runfile import check_free, check_writable, remove_recorded

    check_torch()
    check_script(script, module=module)
    rank, world_size = launched_rank()
    if output is not None:
        if force:
            remove_recorded(output, rank=rank, world_size=world_size)
        check_free(output, rank=rank)
        check_writable(output)
    with _temporary() as temporary:
        directory = output or temporary / "run"
        code = _watched(script, args, module=module, max_steps=max_steps, directory=directory)
        with suppress(OSError):
            (temporary / f"ended-{rank}").touch()
        if launched_local_rank():
            if code:
                raise GradclipError(f"{script}: on rank {rank} it ended with {_how(code)}")
            return None
        _wait_for_others(temporary, _OTHERS_S if code == 0 else _OTHERS_OF_FAILED_S)
        return judge_loop(_recorded(directory, script, args, code), script, crashed=_how(code))


@contextmanager
def _temporary() -> Iterator[Path]:
    """A directory for the time of the run, the same for all ranks of this launch on this machine; the one that judges removes it."""
    from shutil import rmtree

    from gradclip_cli.errors import GradclipError

    if launched_rank() == (0, 1):
        path = Path(tempfile.mkdtemp(prefix="gradclip-"))
    else:
        names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
        launch = [os.environ.get(name, "") for name in names]
        # The agent of torchrun is the parent of all; a launch that was killed has left its directory behind.
        launch.append(str(os.getppid()) if launch[0] else "")
        path = Path(tempfile.gettempdir(), f"gradclip-{os.getuid()}-" + "-".join("".join(filter(str.isalnum, part)) for part in launch))
        path.mkdir(mode=0o700, exist_ok=True)
        if path.is_symlink() or path.stat().st_uid != os.getuid():
            raise GradclipError(f"{path}: belongs to somebody else", hint="set TMPDIR to a directory of your own")
    try:
        yield path
    finally:
        if launched_local_rank() == 0:
            rmtree(path, ignore_errors=True)


def _watched(script: str, args: Sequence[str], *, module: bool, max_steps: int, directory: Path) -> int:
    """How the script ended: as `subprocess` tells it."""
    from gradclip_cli.watch.launch import command_line

    watch = {"directory": str(directory), "exact": True, "max_updates": max_steps, "parent": os.getpid()}
    command = command_line(script, args, as_module=module, quiet=True, **watch)
    sys.stdout.flush()
    child = subprocess.Popen(command, stdout=2)

    def end_script(*_: object) -> None:
        child.terminate()
        killer = threading.Timer(_TERMINATED_S, child.kill)
        killer.daemon = True
        killer.start()

    # What ends us ends the script; what it did until then is judged.
    signal.signal(signal.SIGTERM, end_script)
    try:
        return child.wait()
    except KeyboardInterrupt:
        _end(child)
        raise


def _end(child: subprocess.Popen[bytes]) -> None:
    """Wait until an interrupted script has ended. The terminal has interrupted it as well; a signal to us alone it has yet to hear of."""
    try:
        for number, patience_s in _PATIENCE_S:
            if number is not None:
                child.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                child.wait(patience_s)
                return
    finally:
        child.kill()
        child.wait()


def _wait_for_others(temporary: Path, longest_s: float) -> None:
    """Until every rank of this machine has ended; a launcher that ends us meanwhile wants the verdict now."""
    until = [time.monotonic() + longest_s]
    _, world_size = launched_rank()
    count = int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) if world_size > 1 else 1
    signal.signal(signal.SIGTERM, lambda *_: until.clear())
    while until and time.monotonic() < until[0] and len(list(temporary.glob("ended-*"))) < count:
        time.sleep(0.05)


def _recorded(directory: Path, script: str, args: Sequence[str], code: int) -> Run:
    from gradclip_cli.cli.record import options_among
    from gradclip_cli.errors import GradclipError
    from gradclip_cli.readers import read
    from gradclip_cli.runfile import is_recorded

    if not is_recorded(directory):
        if any(directory.glob("rank-*")):
            raise GradclipError(
                f"{directory}: the updates of {script} could not be written there",
                hint="is the disk full? set TMPDIR, or name a directory with -o",
            )
        if code:
            given = options_among(args, *_OPTIONS)
            raise GradclipError(
                f"{script}: ended with {_how(code)} before any step of a torch optimizer that could be seen",
                hint="what the script wrote above may say why"
                + (f"; {given[0]} was given to the script: options of gradclip go before SCRIPT" if given else ""),
            )
        raise GradclipError(
            f"{script}: took no step of a torch optimizer that could be seen",
            hint="a loop that writes the parameters itself, one in a process that the script starts by other means, or an engine with an "
            "optimizer of its own cannot be watched",
        )
    found = list(read(directory))
    return next(r for r in found if isinstance(r, Run) and r.recorded is not None)


def _how(code: int) -> str:
    if code == 0:
        return ""
    return f"signal {-code}" if code < 0 else f"exit status {code}"
