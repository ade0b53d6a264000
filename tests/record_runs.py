"""Running training scripts in processes of their own, for what the recorder makes of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

ENV = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def write(folder: Path, name: str, code: str) -> Path:
    """A script in a folder that is made for it."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(code))
    return path


def objects(stdout: str) -> list[dict[str, Any]]:
    """The lines that are JSON objects."""
    return [json.loads(line) for line in stdout.splitlines() if line.startswith('{"')]


def results(folder: Path, code: str, *, command: Sequence[str] = (sys.executable,)) -> list[dict[str, Any]]:
    """What a script prints as JSON objects, a line each."""
    write(folder, "main.py", code)
    done = subprocess.run([*command, "main.py"], cwd=folder, env=ENV, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return objects(done.stdout)
