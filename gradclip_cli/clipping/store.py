"""Where gradients lie: what a file of gradients turns out to hold, whatever its format. Nothing here reads a value of a tensor."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

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
class Stored:
    """What one file, or one distributed checkpoint, holds.

    Attributes:
        metadata: What it says of itself: `step`, `scale`, `stage`, `max_norm`, `norm_type`, `total_norm`, as text or numbers, unchecked.
        num_empty: Parameters that are named and have no gradient.
        notes: What people should know of how it was read.
    """

    path: Path
    format: str
    tensors: tuple[StoredTensor, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    num_empty: int = 0
    notes: tuple[str, ...] = ()


METADATA_KEYS = ("step", "scale", "stage", "max_norm", "norm_type", "total_norm")
_LONGEST_NAME = 4096
_MOST_DIMENSIONS = 64


def whole(name: str, dtype: Dtype, shape: tuple[int, ...], path: Path, offset: int, axes: tuple[int, ...] | None = None) -> StoredTensor:
    """A tensor in one piece."""
    order = tuple(range(len(shape))) if axes is None else axes
    return StoredTensor(name, dtype, shape, (Piece(path, offset, shape, (0,) * len(shape), order),))


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
