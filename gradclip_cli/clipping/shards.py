"""The files of several ranks as one step: what each says of the place of its shards, and whole tensors put together of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from os.path import isfile
from pathlib import Path
from typing import Any

from gradclip_cli.clipping.recorded import GRADIENTS, RUN_HEADER
from gradclip_cli.clipping.store import (
    Copy,
    Piece,
    Place,
    Shards,
    Stored,
    StoredTensor,
    checked_name,
    checked_shape,
    damaged,
    is_partition,
)

# What the ranks of one step must say alike; the norm is another thing, as without clipping each knows that of its shards only.
_COMMON = ("scale", "stage", "max_norm", "norm_type")
_MOST_RANKS = 1 << 24
# A tensor is cut once along one dimension for each dimension of the mesh, or where a range of its elements begins and ends.
_MOST_BOXES = 128
_LONGEST_REASON = 200


def read(text: Any, path: Path, tensors: Mapping[str, tuple[int, ...]]) -> Shards:
    """What `record` wrote (see `gradclip_cli.watch.shards`).

    Args:
        tensors: The stored shapes by name.

    Raises:
        GradclipError: It is something else, or contradicts the tensors.
    """
    try:
        told = json.loads(text) if type(text) is str else None
    except (ValueError, RecursionError):
        told = None
    rank, world_size, places = (told.get(k) if isinstance(told, dict) else None for k in ("rank", "world_size", "tensors"))
    if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size <= _MOST_RANKS or not isinstance(places, dict):
        raise damaged(path, "metadata that do not tell the rank and its shards", "what record wrote")
    return Shards(rank, world_size, {checked_name(n, path): _place(path, n, value, tensors.get(n)) for n, value in places.items()})


def _place(path: Path, name: str, value: Any, stored: tuple[int, ...] | None) -> Place:
    told = value if isinstance(value, dict) else {}
    unknown, boxes, padding = told.get("unknown", ""), told.get("boxes", []), told.get("padding", 0)
    if stored is None or type(unknown) is not str or not isinstance(boxes, list) or len(boxes) > _MOST_BOXES or type(padding) is not int:
        raise damaged(path, f"a place of tensor {name} that is none", "what record wrote")
    if unknown:
        return Place(unknown=unknown[:_LONGEST_REASON])
    shape = checked_shape(told.get("shape"), path, name)
    found = []
    for box in boxes:
        if not isinstance(box, list) or len(box) != 2:
            raise damaged(path, f"a place of tensor {name} that is none", "what record wrote")
        found.append((checked_shape(box[0], path, name), checked_shape(box[1], path, name)))
    if padding < 0 or sum(prod(size) for _, size in found) + padding != prod(stored):
        raise damaged(path, f"a place of tensor {name} that is not that of the {prod(stored):,} elements in the file")
    return Place(shape, tuple(found))


def joined(stored: Sequence[Stored]) -> list[Stored]:
    """The same, where the files of all ranks of a step are there as one with whole tensors, in the place of the first of them.

    Where they are not, or contradict each other, that of the lowest rank stays, and says why it is alone.
    """
    groups: dict[tuple[Path, str], list[Stored]] = {}
    for s in stored:
        if s.shards is not None:
            groups.setdefault(_step_of(s), []).append(s)
    sharded = {key: parts for key, parts in groups.items() if any(map(is_sharded, parts))}
    result = []
    for s in stored:
        key = None if s.shards is None else _step_of(s)
        if key is None or key not in sharded:
            result.append(s)
        elif sharded[key]:
            result.append(_joined(sharded[key]))
            sharded[key] = []
    return result


def is_sharded(stored: Stored) -> bool:
    """Whether the file says that it holds less than the whole of a tensor."""
    return any(_place_of(stored, t) != _all_of(t) for t in stored.tensors)


def is_known_whole(stored: Stored) -> bool:
    """Whether the file says of each tensor in it that it is the whole of it."""
    return stored.shards is not None and all(t.name in stored.shards.places for t in stored.tensors) and not is_sharded(stored)


def _step_of(stored: Stored) -> tuple[Path, str]:
    """The run a file belongs to, else its folder; and its step, else its name."""
    folder = stored.path.absolute().parent
    if folder.name == GRADIENTS:
        run = next((p for p in (folder.parent, folder.parent.parent) if isfile(p / RUN_HEADER)), None)
        folder = folder if run is None else run
    return folder, str(stored.metadata.get("step", stored.path.stem))


class _ApartError(Exception):
    """Why the files of a step are not put together."""


def _joined(parts: Sequence[Stored]) -> Stored:
    by_rank = {s.shards.rank: s for s in reversed(parts) if s.shards is not None}
    ranks = sorted(by_rank)
    first = by_rank[ranks[0]]
    try:
        _check(parts, by_rank)
        held: dict[str, list[tuple[int, StoredTensor, Place]]] = {}
        for rank in ranks:
            for tensor in by_rank[rank].tensors:
                held.setdefault(tensor.name, []).append((rank, tensor, _place_of(by_rank[rank], tensor)))
        whole = [_whole(name, shards) for name, shards in held.items()]
    except _ApartError as e:
        return replace(first, alone=str(e))
    metadata, notes = dict(first.metadata), [note for rank in ranks for note in by_rank[rank].notes]
    if len({str(s.metadata.get("total_norm")) for s in parts}) > 1:
        metadata.pop("total_norm", None)
        notes.append("the ranks tell different total norms, as of their own shards; none of them was taken")
    return replace(
        first,
        tensors=tuple(tensor for tensor, _ in whole),
        metadata=metadata,
        notes=tuple(dict.fromkeys(notes)),
        world_size=len(ranks),
        copies=tuple(copy for _, copies in whole for copy in copies),
    )


def _check(parts: Sequence[Stored], by_rank: Mapping[int, Stored]) -> None:
    """Whether each rank is there once and all tell the same step.

    Raises:
        _ApartError: They are not, or do not.
    """
    sizes = {s.shards.world_size for s in parts if s.shards is not None}
    if len(sizes) > 1:
        raise _ApartError(f"the files are of {' and '.join(map(str, sorted(sizes)))} ranks")
    if len(by_rank) < len(parts):
        raise _ApartError("a rank has several files of this step")
    (world_size,) = sizes
    if len(by_rank) < world_size:
        missing = next(r for r in range(world_size) if r not in by_rank)
        others = world_size - len(by_rank) - 1
        raise _ApartError(
            f"rank {missing} of {world_size:,} has no readable file of it here{f', nor have {others:,} others' if others else ''}"
        )
    first = min(by_rank)
    for key in _COMMON:
        for rank, stored in by_rank.items():
            if stored.metadata.get(key) != by_rank[first].metadata.get(key):
                raise _ApartError(f"rank {rank} tells another {key} than rank {first}")


def _place_of(stored: Stored, tensor: StoredTensor) -> Place:
    told = None if stored.shards is None else stored.shards.places.get(tensor.name)
    return _all_of(tensor) if told is None else told


def _all_of(tensor: StoredTensor) -> Place:
    return Place(tensor.shape, (((0,) * len(tensor.shape), tensor.shape),))


def _whole(name: str, held: Sequence[tuple[int, StoredTensor, Place]]) -> tuple[StoredTensor, list[Copy]]:
    """The tensor of which the ranks held shards, and what more than one of them held.

    Raises:
        _ApartError: The shards do not make it up.
    """
    rank, tensor, place = held[0]
    pieces: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, Piece]] = {}
    copies = []
    for other, stored, there in held:
        if there.unknown:
            raise _ApartError(f"{name} cannot be put together: {there.unknown}")
        if there.shape != place.shape or stored.dtype is not tensor.dtype:
            raise _ApartError(f"{name} has another shape or dtype on rank {other} than on rank {rank}")
        offset = stored.pieces[0].offset
        for origin, shape in there.boxes:
            piece = Piece(stored.pieces[0].path, offset, shape, origin, tuple(range(len(shape))))
            offset += piece.numel * stored.dtype.num_bytes
            if (origin, shape) in pieces:
                keeper, kept = pieces[origin, shape]
                copies.append(Copy(name, stored.dtype, kept, piece, (keeper, other)))
            elif piece.numel:
                pieces[origin, shape] = other, piece
    found = [piece for _, (_, piece) in sorted(pieces.items())]
    if not is_partition(place.shape, found):
        raise _ApartError(f"the shards of {name} do not make up its shape {list(place.shape)}")
    return StoredTensor(name, tensor.dtype, place.shape, tuple(found)), copies
