"""Where things lie in a run directory."""

from __future__ import annotations

import re
from pathlib import Path

SCHEMA = "gradclip.run/1"

RUN_FILE = "run.json"
HEADER_FILE = "header.json"
UPDATES_FILE = "updates.blocks"
TRACE_FILE = "trace.jsonl"
GRADIENTS_FOLDER = "grads"
EVENTS_SUFFIX = ".gradclip"

PART = re.compile(r"rank-(\d{5,9})")
GRADIENTS = re.compile(r"step-(\d{8,18})\.safetensors")
EVENTS = re.compile(rf"events\.out\.tfevents\..*{re.escape(EVENTS_SUFFIX)}")


def part_folder(directory: Path, rank: int) -> Path:
    """Where a rank keeps what it recorded."""
    return directory / f"rank-{rank:05d}"


def gradients_folder(directory: Path, rank: int) -> Path:
    """Where a rank keeps saved gradients: in the open for rank 0, in its own part for the others."""
    return (directory if rank == 0 else part_folder(directory, rank)) / GRADIENTS_FOLDER
