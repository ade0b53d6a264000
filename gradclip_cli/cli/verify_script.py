"""`gradclip verify SCRIPT`: run a training script under watch, and judge how it clips."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gradclip_cli.model import Run, Verification

DEFAULT_UPDATES = 100
# How long one rank waits for the others to write their parts once its own script is over.
_OTHERS_S = 60.0


def verify_script(
    script: str, args: Sequence[str], *, module: bool, max_steps: int, output: Path | None, force: bool = False
) -> Verification:
    """Run the script for some updates, all gradients read at every point, and judge the loop.

    What the script prints goes to standard error: standard output is for the verdict.

    Args:
        output: Keep the recorded run there; a temporary directory unless given.

    Raises:
        GradclipError: Where the script took no optimizer step that could be seen.
        UsageError: Where there is no such script.
    """
    from shutil import rmtree

    from gradclip_cli.analysis import judge_loop
    from gradclip_cli.cli.record import check_script, check_torch
    from gradclip_cli.runfile import check_free, remove_recorded

    check_torch()
    check_script(script, module=module)
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if output is not None:
        if force:
            remove_recorded(output, rank=rank, world_size=world_size)
        check_free(output, rank=rank)
    directory = output or _temporary(world_size)
    try:
        code = _watched(script, args, module=module, max_steps=max_steps, directory=directory)
        run = _recorded(directory, script, code, world_size)
        return judge_loop(run, script, crashed=_how(code))
    finally:
        if output is None and rank == 0:
            rmtree(directory.parent, ignore_errors=True)


def _temporary(world_size: int) -> Path:
    if world_size == 1:
        return Path(tempfile.mkdtemp(prefix="gradclip-"), "run")
    # All ranks of one launch on this machine must find the same place.
    launch = os.environ.get("TORCHELASTIC_RUN_ID", "none") + "-" + os.environ.get("MASTER_PORT", "0")
    return Path(tempfile.gettempdir(), f"gradclip-{os.getuid()}-{''.join(c for c in launch if c.isalnum() or c == '-')}", "run")


def _watched(script: str, args: Sequence[str], *, module: bool, max_steps: int, directory: Path) -> int:
    from gradclip_cli.watch.launch import command_line

    command = command_line(script, args, as_module=module, quiet=True, directory=str(directory), exact=True, max_updates=max_steps)
    sys.stdout.flush()
    child = subprocess.Popen(command, stdout=2)
    try:
        return child.wait()
    except KeyboardInterrupt:
        # The terminal has interrupted the script as well; it may want a moment to say so.
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


def _recorded(directory: Path, script: str, code: int, world_size: int) -> Run:
    from gradclip_cli.errors import GradclipError
    from gradclip_cli.readers import read
    from gradclip_cli.runfile import is_recorded, read_recorded
    from gradclip_cli.runfile.reading import STILL_RUNNING

    if world_size > 1:
        until = time.monotonic() + _OTHERS_S
        while time.monotonic() < until:
            if is_recorded(directory):
                parts = read_recorded(directory)[0].parts
                if len(parts) == world_size and all(p.ended != STILL_RUNNING for p in parts.values()):
                    break
            time.sleep(0.2)
    if not is_recorded(directory):
        ended = f" and ended with {_how(code)}" if code else ""
        raise GradclipError(
            f"{script}: took no step of a torch optimizer that could be seen{ended}",
            hint="a loop in a process that the script starts by other means, or an engine with an optimizer of its own, cannot be watched",
        )
    runs = [r for r in read(directory) if isinstance(r, Run)]
    return runs[0]


def _how(code: int) -> str:
    if code == 0:
        return ""
    return f"signal {-code}" if code < 0 else f"exit status {code}"
