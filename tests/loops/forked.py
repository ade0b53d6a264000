"""`gradclip verify` on many training programs at the price of one: `python -m tests.loops.forked NAME...` prints their wrong answers as JSON.

Torch is imported once, and each program runs in a forked child, through the very code that a process of its own would run.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

# What most programs import; the compiler's front end is loaded with the first optimizer.
import torch._dynamo
import torch.utils.data

from gradclip_cli.cli import verify_script
from gradclip_cli.errors import ExitCode, GradclipError
from gradclip_cli.watch import launch
from tests.loops import HERE, TIMEOUT_S, VERDICTS, compare

_CODES = {"pass": ExitCode.OK, "fail": ExitCode.FINDINGS, "cannot-judge": ExitCode.CANNOT_JUDGE}
# What the program that runs now prints.
_SAID = f"{tempfile.gettempdir()}/gradclip-loop-{os.getpid()}"


def in_fork(script: str, args: Sequence[str], *, module: bool, max_steps: int, directory: Path) -> int:
    """How the script ended, as `verify_script` asks of a process of its own."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _become(
            script,
            args,
            {"as_module": module, "quiet": True, "watch": {"directory": str(directory), "exact": True, "max_updates": max_steps}},
        )
    until = time.monotonic() + TIMEOUT_S
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(pid, 9)
        time.sleep(0.02)


def _become(script: str, args: Sequence[str], settings: dict[str, object]) -> None:
    code = 1
    try:
        # None of what this process would do at its end.
        atexit._clear()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        said = os.open(_SAID, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for fd in (1, 2):
            os.dup2(said, fd)
        sys.argv = ["-c", json.dumps(settings), script, *args]
        launch.main()
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    finally:
        atexit._run_exitfuncs()
        os._exit(code)


def judge(name: str) -> str | None:
    """What is wrong with the answer for this program; None where it is right."""
    try:
        verification = verify_script.verify_script(str(HERE / name), [], module=False, max_steps=verify_script.DEFAULT_UPDATES, output=None)
    except GradclipError as e:
        return f"no verdict: {e}"
    assert verification is not None
    problem = compare(VERDICTS[name], [f.rule for f in verification.findings], _CODES[verification.verdict])
    said = Path(_SAID).read_text(encoding="utf-8", errors="replace")[-2000:]
    return problem and "; ".join([problem, f"{verification.updates} updates", *verification.notes, f"it said: {said}"])


def main() -> None:
    """Print an object with the names whose answer is wrong, and what is."""
    torch.set_num_threads(1)
    verify_script._watched = in_fork
    os.chdir(tempfile.gettempdir())
    # What the programs share is none of theirs: the watcher need not go through it for models, nor the children copy it.
    gc.collect()
    gc.freeze()
    try:
        wrong = {name: problem for name in sys.argv[1:] if (problem := judge(name)) is not None}
    finally:
        Path(_SAID).unlink(missing_ok=True)
    print(json.dumps(wrong, indent=1))


if __name__ == "__main__":
    main()
