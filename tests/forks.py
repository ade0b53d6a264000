"""Processes by fork from one that has torch loaded: what a test runs there takes a moment, and is otherwise as real as one of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

Done = subprocess.CompletedProcess[str]


class Zygote:
    """Started with the first request."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    def __call__(
        self, become: str, *args: str, cwd: Path, env: Mapping[str, str] | None = None, ranks: int = 1, most_bytes: int = 0, **watch: Any
    ) -> Done:
        """Run to its end what the process becomes: `gradclip`, the `recording` of a script, or the `script` alone.

        Args:
            ranks: That many at once, as torchrun starts them.
            most_bytes: What any file of the process may hold.
            watch: What the watcher of a recording is told.
        """
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            request = {
                "become": become,
                "args": args,
                "cwd": str(cwd),
                "env": {**self._environment, **(_launched(ranks) if ranks > 1 else {}), **(env or {})},
                "ranks": ranks,
                "most_bytes": most_bytes,
                "watch": {"directory": "run"} | watch,
                "out": str(out),
                "err": str(err),
            }
            status = self._ask(json.dumps(request))
            said = (path.read_text(encoding="utf-8", errors="replace") if path.exists() else "" for path in (out, err))
            return subprocess.CompletedProcess(args, status, *said)

    def _ask(self, request: str) -> int:
        if self._process is None:
            command = [sys.executable, "-m", "tests.zygote"]
            env = {**self._environment, "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(request, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()


@contextmanager
def zygote() -> Iterator[Zygote]:
    unwanted = ("RANK", "WORLD_SIZE", "FORCE_COLOR")
    env = {k: v for k, v in os.environ.items() if k not in unwanted} | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    started = Zygote(env | {"OMP_NUM_THREADS": "1"})
    try:
        yield started
    finally:
        started.close()


def _launched(ranks: int) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
