"""A process that has torch loaded and turns, by fork, into the one that a test asks for; see `tests.forks`.

Importing torch takes seconds; a test that only asks what becomes of a command forks from here. What follows the fork is the real thing,
through exit handlers to the exit status: the command line, or the launcher of a recording with the script as `__main__`, to the end of
the interpreter.

Reads a JSON request a line from standard input, answers the wait status; of several ranks, the first that is not 0.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import gradclip_cli.__main__
from gradclip_cli.cli import verify_script
from gradclip_cli.watch import launch, watcher

# Nothing that a test asks for takes nearly as long.
TIMEOUT_S = 240


def forked() -> dict[str, Any]:
    """The request this process is the answer to."""
    # The first optimizer loads torch's compiler, which takes as long again.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    assert watcher.Watcher.current is None
    # None of it belongs to what comes: the watcher need not go through it for models, nor the children copy it.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        children = []
        for rank in range(request["ranks"]):
            child = os.fork()
            if child == 0:
                signal.alarm(TIMEOUT_S)
                os.environ.clear()
                os.environ.update(request["env"])
                if request["ranks"] > 1:
                    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
                return request
            children.append(child)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(next((status for status in statuses if status), 0), flush=True)
    sys.exit()


def watched_in_fork(script: str, args: Sequence[str], *, module: bool, max_steps: int, directory: Path) -> int:
    """How the script ended, as `verify_script` asks of a process of its own."""
    watch = {"directory": str(directory), "exact": True, "max_updates": max_steps, "parent": os.getpid()}
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        # None of what the judging process would do at its end.
        atexit._clear()
        os.dup2(2, 1)
        sys.argv = ["-c", json.dumps({"as_module": module, "quiet": True, "watch": watch}), script, *args]
        launch.main()
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


request = forked()
os.chdir(request["cwd"])
# Asked for before the fork, and by another environment.
tempfile.tempdir = None
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for fd, name in ((1, request["out"]), (2, request["err"])):
    os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), fd)
if request["most_bytes"]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (request["most_bytes"], request["most_bytes"]))
match request["become"]:
    case "gradclip":
        sys.path[0] = os.getcwd()
        sys.argv = ["gradclip", *request["args"]]
        sys.modules["__main__"] = gradclip_cli.__main__
        verify_script._watched = watched_in_fork
        try:
            gradclip_cli.__main__.run()
        except SystemExit as e:
            # All that is left to happen, short of taking torch down, which costs more than the command.
            atexit._run_exitfuncs()
            sys.stdout.flush()
            os._exit(int(e.code or 0))
    case "recording":
        sys.argv = ["-c", json.dumps({"as_module": False, "quiet": False, "watch": request["watch"]}), *request["args"]]
        launch.main()
    case "script":
        launch.run_as_main(request["args"][0], request["args"][1:])
