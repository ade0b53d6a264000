"""Reading a run directory, wherever it comes from: nothing in it is executed, followed or believed without the bytes to back it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.recorded import RankPart, Recorded, TensorInfo
from gradclip_cli.model.run import Damage, Steps, Values
from gradclip_cli.runfile import blocks, files, strict_json
from gradclip_cli.runfile.layout import (
    GRADIENTS,
    GRADIENTS_FOLDER,
    HEADER_FILE,
    PART,
    RUN_FILE,
    SCHEMA,
    TRACE_FILE,
    UPDATES_FILE,
    part_folder,
)
from gradclip_cli.runfile.trace import is_event
from gradclip_cli.runfile.updates import Updates, read_tensors, read_updates

_MAX_HEADER_BYTES = 1 << 22
_MAX_TRACE_BYTES = 1 << 26
_MAX_PARTS = 100_000
# What arrays may take beyond a file's own bytes: a column may be stored as one number for all updates.
_MAX_EXPANSION, _FREE_BYTES = 64, 1 << 26

STILL_RUNNING = "still running"
"""`RankPart.ended` of a part whose writer is at work on this machine."""


def is_recorded(directory: Path) -> bool:
    """Whether this is a run directory of ours."""
    try:
        return _read_header(directory / RUN_FILE).get("schema") == SCHEMA
    except (OSError, ValueError):
        return False


def read_recorded(path: Path) -> tuple[Recorded, tuple[Damage, ...]]:
    """All ranks of a run directory, and what of it is lost.

    Raises:
        GradclipError: Where no part of a recorded run is there.
    """
    damage: list[Damage] = []
    parts = {rank: part for rank in _ranks(path) if (part := _read_part(path, rank, damage)) is not None}
    if not parts:
        found = damage[0] if damage else None
        what = f"holds no part of a recorded run ({found.where}: {found.what})" if found else "holds no part of a recorded run"
        raise GradclipError(f"{path}: {what}; expected a directory that `gradclip record` wrote")
    world_size = _world_size(parts)
    missing = [rank for rank in range(min(world_size, _MAX_PARTS)) if rank not in parts]
    if missing:
        listed = ", ".join(map(str, missing[:5])) + (f" and {world_size - len(parts) - 5} more" if len(missing) > 5 else "")
        damage.append(Damage("this directory", f"no part of rank {listed}; expected {world_size} ranks", "what they recorded"))
    return Recorded(world_size, parts, _gradients(path)), tuple(damage)


def _ranks(directory: Path) -> list[int]:
    try:
        with os.scandir(directory) as entries:
            names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError as e:
        raise GradclipError(f"{directory}: cannot be read ({e.strerror or e})") from e
    return sorted(int(m[1]) for n in names if (m := PART.fullmatch(n)) and part_folder(directory, int(m[1])).name == n)[:_MAX_PARTS]


def _world_size(parts: Mapping[int, RankPart]) -> int:
    claimed = next(iter(parts.values())).header.get("world_size")
    return max(claimed if type(claimed) is int and 0 < claimed <= _MAX_PARTS else 1, max(parts) + 1)


def _read_header(path: Path) -> dict[str, Any]:
    data, size = files.read(path, _MAX_HEADER_BYTES)
    if size > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of {size} bytes")
    header = strict_json.loads(data)
    if not isinstance(header, dict):
        raise ValueError("a header that is no JSON object")
    return header


def _read_part(directory: Path, rank: int, damage: list[Damage]) -> RankPart | None:
    folder = part_folder(directory, rank)
    header: dict[str, Any] = {}
    try:
        header = _read_header(folder / HEADER_FILE)
    except (OSError, ValueError) as e:
        damage.append(Damage(f"{folder.name}/{HEADER_FILE}", f"no readable header ({_reason(e)})", "what was measured and how it ended"))
    where = f"{folder.name}/{UPDATES_FILE}"
    try:
        alive = _is_locked(folder / UPDATES_FILE)
        data, _ = files.read(folder / UPDATES_FILE, -1)
    except OSError as e:
        damage.append(Damage(where, f"cannot be read ({_reason(e)})", "every update of this rank"))
        return None
    updates, tensors = _read_blocks(data, where, alive, damage)
    steps, columns, norms = _joined(updates, len(tensors), len(data), where, damage)
    if missing := norms.shape[1] - len(tensors):
        damage.append(Damage(where, f"{missing} tensors without a name", "their names"))
        tensors += [_unnamed(i) for i in range(len(tensors), norms.shape[1])]
    ended = header.get("ended")
    ended = ended if isinstance(ended, str) else ""
    if not ended and alive:
        ended = STILL_RUNNING
    elif not ended:
        last = f"after step {steps[-1]}" if len(steps) else "there were"
        damage.append(Damage(folder.name, "nobody wrote how it ended: it was killed", f"at most the updates {last} that were not flushed"))
    return RankPart(rank, header, tuple(tensors), steps, columns, norms, _read_trace(folder, len(tensors), alive, damage), ended)


def _unnamed(i: int) -> TensorInfo:
    return TensorInfo(f"tensor {i}", (), "")


def _is_locked(path: Path) -> bool:
    """Whether a writer holds the file, as far as this machine can tell."""
    try:
        import fcntl
    except ImportError:
        return False
    fd = files.open_to_read(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _read_blocks(data: bytes, where: str, alive: bool, damage: list[Damage]) -> tuple[list[Updates], list[TensorInfo]]:
    """What the blocks hold, as long as the steps go up."""
    updates: list[Updates] = []
    tensors: list[TensorInfo] = []
    last = -1
    for item in blocks.scan(data):
        try:
            if isinstance(item, blocks.Gap):
                if not (item.is_tail and alive):
                    size = item.stop - item.start
                    what = f"the last {size} bytes are a block cut off" if item.is_tail else f"{size} bytes that are no valid block"
                    damage.append(Damage(f"{where}, byte {item.start}", what, "the updates in it"))
            elif item.kind == blocks.UPDATES:
                block = read_updates(item.payload)
                if len(block.steps) and (int(block.steps[0]) <= last or not (np.diff(block.steps) > 0).all()):
                    raise ValueError(f"steps that do not count up from {last}")
                if len(block.steps):
                    last = int(block.steps[-1])
                    updates.append(block)
            elif item.kind == blocks.TENSORS:
                first, named = read_tensors(item.payload)
                if not 0 <= first <= len(tensors) + len(data):
                    raise ValueError(f"tensors from number {first:,} on in {len(data):,} bytes")
                tensors[first:] = [*(_unnamed(i) for i in range(len(tensors), first)), *named]
            else:
                raise ValueError(f"a block of unknown kind {item.kind}")
        except ValueError as e:
            at = item.at if isinstance(item, blocks.Block) else item.start
            damage.append(Damage(f"{where}, byte {at}", f"a block with a right checksum that holds {e}", "what it held"))
    return updates, tensors


def _joined(
    updates: Sequence[Updates], num_tensors: int, num_bytes: int, where: str, damage: list[Damage]
) -> tuple[Steps, dict[str, Values], npt.NDArray[np.float32]]:
    """The blocks one behind the other. A column or tensor that a block lacks is NaN there."""
    n = sum(len(u.steps) for u in updates)
    names = list(dict.fromkeys(name for u in updates for name in u.columns))
    width = max(num_tensors, max((u.tensor_norms.shape[1] for u in updates), default=0))
    allowed = num_bytes * _MAX_EXPANSION + _FREE_BYTES
    if n * 8 * len(names) > allowed:
        damage.append(Damage(where, f"{len(names)} columns of {n} updates claimed in {num_bytes} bytes", "all columns"))
        names = []
    if n * 4 * width > allowed:
        damage.append(Damage(where, f"norms of {width} tensors at {n} updates claimed in {num_bytes} bytes", "the norms per tensor"))
        width = 0
    steps = np.concatenate([u.steps for u in updates]).astype(np.int64) if updates else np.empty(0, np.int64)
    columns = {name: np.full(n, np.nan) for name in names}
    norms = np.full((n, width), np.nan, np.float32)
    at = 0
    for u in updates:
        rows = slice(at, at + len(u.steps))
        if names:
            for name, values in u.columns.items():
                columns[name][rows] = values
        if width:
            norms[rows, : u.tensor_norms.shape[1]] = u.tensor_norms
        at = rows.stop
    return steps, columns, norms


def _read_trace(folder: Path, num_tensors: int, alive: bool, damage: list[Damage]) -> tuple[Mapping[str, Any], ...]:
    where = f"{folder.name}/{TRACE_FILE}"
    try:
        data, size = files.read(folder / TRACE_FILE, _MAX_TRACE_BYTES)
    except FileNotFoundError:
        return ()
    except OSError as e:
        damage.append(Damage(where, f"cannot be read ({_reason(e)})", "the trace of calls"))
        return ()
    lines = data.split(b"\n")
    if lines.pop() and size == len(data) and not alive:
        damage.append(Damage(f"{where}, line {len(lines) + 1}", "the last line is cut off", "that call"))
    if size > len(data):
        damage.append(Damage(f"{where}, line {len(lines) + 1}", f"a trace of {size} bytes; {len(data)} were read", "the calls after it"))
    events: list[Mapping[str, Any]] = []
    bad: list[int] = []
    for i, line in enumerate(lines, 1):
        try:
            event = strict_json.loads(line)
        except ValueError:
            event = None
        if is_event(event, num_tensors):
            events.append(event)
        else:
            bad.append(i)
    if bad:
        damage.append(Damage(f"{where}, line {bad[0]}", f"{len(bad)} lines that are no calls as the watcher writes them", "those calls"))
    return tuple(events)


def _gradients(directory: Path) -> dict[int, str]:
    """Steps whose gradients rank 0 saved."""
    folder = directory / GRADIENTS_FOLDER
    if folder.is_symlink() or not folder.is_dir():
        return {}
    with os.scandir(folder) as entries:
        found = {int(m[1]): e.path for e in entries if (m := GRADIENTS.fullmatch(e.name)) and e.is_file(follow_symlinks=False)}
    return dict(sorted(found.items()))


def _reason(e: OSError | ValueError) -> str:
    return e.strerror or str(e) if isinstance(e, OSError) else str(e)
