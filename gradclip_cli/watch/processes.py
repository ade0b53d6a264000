"""Which process this is among those that train together, and how its children are watched too."""

from __future__ import annotations

import json
import multiprocessing.spawn
import multiprocessing.util
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradclip_cli.launch_environment import launched_rank

SETTINGS = "GRADCLIP_WATCH"
"""Environment variable by which a spawned child learns what to watch."""

# Neither the working directory nor what lies in it stands before the standard library while ours is imported.
_FIRST = """import sys; _ = sys.path[:]; sys.path[:] = [*filter(None, _), {root!r}]
import gradclip_cli.watch.spawned; sys.path[:] = _; """


def group_member() -> tuple[int, int] | None:
    """Rank and size of the process group this process is in now; None where it is in none."""
    import torch.distributed as dist

    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else None


def rank_and_world(directory: Path, *, is_child: bool, member: tuple[int, int] | None) -> tuple[int, int]:
    """This process's rank and how many there are.

    A forked child that belongs to no process group takes the first number nobody has.

    Args:
        member: What `group_member` said when this process trained; by the time its first block is written the group may be gone.
    """
    if member is not None:
        return member
    rank, world_size = launched_rank()
    if world_size > 1:
        return rank, world_size
    while is_child and (directory / f"rank-{rank:05d}").exists():
        rank += 1
    return rank, 1


def watch_spawned(settings: Mapping[str, Any]) -> Callable[[], None]:
    """Let children that `multiprocessing` spawns watch themselves; returns what undoes it."""
    original = multiprocessing.spawn.get_command_line
    before = os.environ.get(SETTINGS)
    os.environ[SETTINGS] = json.dumps(dict(settings))

    def get_command_line(**kwargs: Any) -> list[str]:
        return _watching_first(original(**kwargs), "from multiprocessing.spawn")

    multiprocessing.spawn.get_command_line = get_command_line

    def undo() -> None:
        multiprocessing.spawn.get_command_line = original
        if before is None:
            os.environ.pop(SETTINGS, None)
        else:
            os.environ[SETTINGS] = before

    return undo


def watch_fork_server() -> None:
    """Let the children of multiprocessing's fork server watch themselves. The server lives as long as this process, and so does that."""
    original = multiprocessing.util.spawnv_passfds

    def spawnv_passfds(path: Any, args: Sequence[Any], passfds: Any) -> Any:
        return original(path, _watching_first(args, "from multiprocessing.forkserver"), passfds)

    multiprocessing.util.spawnv_passfds = spawnv_passfds


def _watching_first(command: Sequence[Any], code: str) -> list[Any]:
    """A command of an interpreter that begins to watch before it runs `code`. The executable in it may be bytes."""
    first = _FIRST.format(root=str(Path(__file__).resolve().parents[2]))
    return [first + part if isinstance(part, str) and part.startswith(code) else part for part in command]
