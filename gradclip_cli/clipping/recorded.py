"""What a recorded run tells of the gradients in it that their files do not: whether each rank held a shard of them."""

from __future__ import annotations

import json
import os
from os.path import isfile
from pathlib import Path
from typing import Any

from gradclip_cli.clipping.store import open_regular
from gradclip_cli.errors import GradclipError

RUN_HEADER = "run.json"
GRADIENTS = "grads"
_TRACE, _RANK_HEADER = "trace.jsonl", "header.json"
# The optimizers are named when they are first seen, long before this.
_MOST_BYTES = 1 << 26


def holds_shards(folder: Path) -> bool:
    """Whether the gradients in a folder are one rank's shards, by the trace that was recorded beside them; False where none tells.

    Args:
        folder: `RUN/grads`, which is rank 0's, or `RUN/rank-00001/grads`; any other is of no recorded run.
    """
    owner = folder.parent
    if folder.name != GRADIENTS:
        return False
    rank = owner / "rank-00000" if isfile(owner / RUN_HEADER) else owner
    for line in _start(rank / _TRACE).splitlines():
        # Most lines are of other calls; to parse them all would take longer than the gradients.
        event = _object(line) if b'"optimizer"' in line else {}
        if event.get("k") == "optimizer" and event.get("sharded"):
            alone = _object(_start(rank / _RANK_HEADER)).get("world_size") == 1
            return any(len(together) > 1 if together else not alone for together in _groups(event))
    return False


def _groups(event: dict[str, Any]) -> list[list[Any]]:
    """For each group of sharded tensors, the ranks that hold one copy of them together; none where these are not known."""
    groups = event.get("groups")
    pairs = groups if isinstance(groups, list) and groups else [None]
    return [pair[1] if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], list) else [] for pair in pairs]


def _start(path: Path) -> bytes:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read(_MOST_BYTES)
    except (GradclipError, OSError):
        return b""


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
