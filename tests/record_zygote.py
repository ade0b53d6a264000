"""A process that has torch loaded and turns, by fork, into the one that `gradclip record` starts.

Importing torch takes seconds; a test that only asks what becomes of a recording forks from here. What follows the fork is the real thing,
to the end of the interpreter: the launcher, the script as `__main__`, exit handlers, the exit status.

Reads a JSON request a line from standard input, answers the wait status.
"""

from __future__ import annotations

import json
import os
import resource
import sys

import torch

from gradclip_cli.watch import launch, watcher


def forked() -> dict[str, object]:
    """The request this process is the answer to."""
    # The first optimizer loads torch's compiler, which takes as long again.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    assert watcher.Watcher.current is None
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            return dict(json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    sys.exit()


request = forked()
os.chdir(str(request["cwd"]))
for fd, name in ((0, os.devnull), (1, "out"), (2, "err")):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), fd)
if request["most_bytes"]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (request["most_bytes"], request["most_bytes"]))  # type: ignore[arg-type]
settings = {"as_module": False, "quiet": False, "watch": {"directory": "run"} | dict(request["watch"])}  # type: ignore[call-overload]
sys.argv = ["-c", json.dumps(settings), "main.py"]
launch.main()
