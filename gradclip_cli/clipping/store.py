"""Where gradients lie: what a file of gradients turns out to hold, whatever its format. Nothing here reads a value of a tensor."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from gradclip_cli.clipping.dtypes import Dtype
from gradclip_cli.errors import GradclipError


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of bytes that holds a box of a tensor; of an unsharded tensor all of it.

    Attributes:
        path, offset: The file and the first byte.
        shape: Of the box.
        origin: Where in the tensor its first element stands.
        axes: Its dimensions in the order of storage, the slowest first; `range(len(shape))` for a contiguous box.
    """

    path: Path
    offset: int
    shape: tuple[int, ...]
    origin: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def position(self, index: int) -> tuple[int, ...]:
        """Where in the tensor the element stands that is stored as number `index` of the box."""
        at = [0] * len(self.shape)
        for axis in reversed(self.axes):
            index, at[axis] = divmod(index, self.shape[axis])
        return tuple(a + o for a, o in zip(at, self.origin, strict=True))


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The gradient of one parameter; its pieces hold every element once."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.numel * self.dtype.num_bytes


@dataclass(frozen=True, slots=True)
class Copy:
    """What two ranks hold of the same box of a tensor, which should be the same.

    Attributes:
        kept: The piece that is part of the tensor.
        ranks: Which two, that of `kept` first.
    """

    name: str
    dtype: Dtype
    kept: Piece
    other: Piece
    ranks: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the whole tensor the elements of a stored one lie.

    Attributes:
        boxes: Origin and shape of each, in the order in which they are stored, one behind the other.
        unknown: Why it cannot be told; empty where it is.
    """

    shape: tuple[int, ...] = ()
    boxes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Shards:
    """What a file says of the rank that wrote it.

    Attributes:
        places: By the name of the tensor; one that is not named is there as a whole.
    """

    rank: int
    world_size: int
    places: Mapping[str, Place]


@dataclass(frozen=True, slots=True)
class Stored:
    """What one file, or one distributed checkpoint, holds, or what the files of several ranks hold together.

    Attributes:
        metadata: What it says of itself: `step`, `scale`, `stage`, `max_norm`, `norm_type`, `total_norm`, as text or numbers, unchecked.
        num_empty: Parameters that are named and have no gradient.
        notes: What people should know of how it was read.
        shards: Where in the whole tensors these lie; None where the file does not say.
        world_size: Of how many ranks' files it was put together.
        copies: What several ranks held, to be compared.
        alone: Why it was not put together with the shards of the other ranks; empty where nothing says that it is one rank's.
    """

    path: Path
    format: str
    tensors: tuple[StoredTensor, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    num_empty: int = 0
    notes: tuple[str, ...] = ()
    shards: Shards | None = None
    world_size: int = 1
    copies: tuple[Copy, ...] = ()
    alone: str = ""


METADATA_KEYS = ("step", "scale", "stage", "max_norm", "norm_type", "total_norm")
_LONGEST_NAME = 4096
_MOST_DIMENSIONS = 64


def whole(name: str, dtype: Dtype, shape: tuple[int, ...], path: Path, offset: int, axes: tuple[int, ...] | None = None) -> StoredTensor:
    """A tensor in one piece."""
    order = tuple(range(len(shape))) if axes is None else axes
    return StoredTensor(name, dtype, shape, (Piece(path, offset, shape, (0,) * len(shape), order),))


def is_partition(shape: tuple[int, ...], pieces: Sequence[Piece]) -> bool:
    """Whether boxes cover a tensor, and no element twice."""
    if any(len(p.shape) != len(shape) or len(p.origin) != len(shape) for p in pieces):
        return False
    if any(o + n > whole for p in pieces for o, n, whole in zip(p.origin, p.shape, shape, strict=True)):
        return False
    if sum(p.numel for p in pieces) != prod(shape):
        return False
    boxes = [p for p in pieces if p.numel]
    if len(boxes) < 2:
        return True
    low = np.array([p.origin for p in boxes], np.int64)
    high = low + np.array([p.shape for p in boxes], np.int64)
    # Along the dimension that is cut most, few boxes stand side by side.
    axis = max(range(len(shape)), key=lambda k: len(np.unique(low[:, k])))
    order = np.argsort(low[:, axis], kind="stable")
    low, high = low[order], high[order]
    ends = np.searchsorted(low[:, axis], high[:, axis])
    beside = np.flatnonzero(ends > np.arange(1, len(boxes) + 1))
    return not any(((low[i] < high[i + 1 : ends[i]]) & (low[i + 1 : ends[i]] < high[i])).all(axis=1).any() for i in beside.tolist())


def checked_name(name: Any, path: Path) -> str:
    """The name of a tensor.

    Raises:
        GradclipError: It is no text, or longer than any module path is.
    """
    if type(name) is not str or len(name) > _LONGEST_NAME:
        raise damaged(path, f"a tensor name of {len(name):,} characters" if type(name) is str else "a tensor name that is no text")
    return name


def checked_shape(shape: Any, path: Path, name: str) -> tuple[int, ...]:
    """A shape as a file gives it.

    Raises:
        GradclipError: Not a list of integers from 0 on, or more elements than any file can hold.
    """
    ok = isinstance(shape, (list, tuple)) and len(shape) <= _MOST_DIMENSIONS and all(type(n) is int and n >= 0 for n in shape)
    if not ok or prod(shape) >= 2**60 or any(n >= 2**60 for n in shape):
        raise damaged(path, f"tensor {name}: a shape that no tensor has")
    return tuple(shape)


def damaged(path: Path, found: str, expected: str = "an undamaged file", hint: str | None = None) -> GradclipError:
    """The error of a file that is not what it should be."""
    return GradclipError(f"{path}: found {found}; expected {expected}", hint=hint)


def open_regular(path: Path) -> int:
    """A descriptor for reading; never waits, as opening a pipe would.

    Raises:
        GradclipError: No such file, not a regular file, or not readable.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as e:
        raise GradclipError(f"{path}: {(e.strerror or str(e)).lower()}; expected a file of gradients", hint="check the path") from e
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise GradclipError(f"{path}: found something that is no regular file; expected a file of gradients", hint="check the path")
    return descriptor
