"""What a block holds: some updates in columns, or names of tensors.

An `UPDATES` payload: number of updates n (u32), of columns (u16), of tensors (u32), the steps (n times i64); for each column its name
(u8 length, UTF-8) and its values in the shortest form that gives them back bit for bit (1 byte: 0 = one float64 for all, 1 = n times
float32, 2 = n times float64); then n rows of float32 norms, one for each tensor. A `TENSORS` payload: a JSON list of the
number of the first tensor and a [name, shape, dtype] for each. Every count is backed by bytes that are there.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradclip_cli.model.recorded import TensorInfo
from gradclip_cli.model.run import Steps, Values
from gradclip_cli.runfile import strict_json

_COUNTS = struct.Struct("<IHI")
_SAME, _SINGLE, _DOUBLE = 0, 1, 2


@dataclass(frozen=True, eq=False, slots=True)
class Updates:
    """A block of updates as read: the arrays lie in the block's own bytes.

    Attributes:
        columns: Name -> float64 or float32, shape (n,), or (1,) where all are the same.
        tensor_norms: float32, shape (n, num_tensors).
    """

    steps: Steps
    columns: Mapping[str, npt.NDArray[np.floating]]
    tensor_norms: npt.NDArray[np.float32]


def packed_updates(steps: Steps, columns: Mapping[str, Values], tensor_norms: npt.NDArray[np.float32] | None) -> bytes:
    """The payload of an `UPDATES` block."""
    norms = np.empty((len(steps), 0), np.float32) if tensor_norms is None else tensor_norms
    parts = [_COUNTS.pack(len(steps), len(columns), norms.shape[1]), steps.astype("<i8", copy=False).tobytes()]
    for name, values in columns.items():
        encoded = name.encode()
        form, data = _shortest(np.ascontiguousarray(values, "<f8"))
        parts += [bytes([len(encoded)]), encoded, bytes([form]), data]
    parts.append(norms.astype("<f4", copy=False).tobytes())
    return b"".join(parts)


def _shortest(values: Values) -> tuple[int, bytes]:
    bits = values.view(np.int64)
    if len(values) and (bits == bits[0]).all():
        return _SAME, values[:1].tobytes()
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        single = values.astype("<f4")
    if np.array_equal(single.astype(np.float64), values, equal_nan=True):
        return _SINGLE, single.tobytes()
    return _DOUBLE, values.tobytes()


def read_updates(payload: memoryview) -> Updates:
    """The payload of an `UPDATES` block.

    Raises:
        ValueError: Where counts and bytes do not fit each other.
    """
    if len(payload) < _COUNTS.size:
        raise ValueError("a block of updates without its counts")
    n, num_columns, num_tensors = _COUNTS.unpack_from(payload)
    at = _COUNTS.size

    def take(count: int, dtype: str) -> npt.NDArray[np.generic]:
        nonlocal at
        size = count * np.dtype(dtype).itemsize
        if size > len(payload) - at:
            raise ValueError(f"{n} updates of {num_columns} columns and {num_tensors} tensors claimed in {len(payload)} bytes")
        array = np.frombuffer(payload, dtype, count, at)
        at += size
        return array

    steps: Steps = take(n, "<i8")  # type: ignore[assignment]
    columns: dict[str, npt.NDArray[np.floating]] = {}
    for _ in range(num_columns):
        (length,) = take(1, "u1")
        name = take(int(length), "u1").tobytes().decode("utf-8", "strict")
        (form,) = take(1, "u1")
        if form not in (_SAME, _SINGLE, _DOUBLE):
            raise ValueError(f"column {name!r} is stored in an unknown form ({form})")
        columns[name] = take(1 if form == _SAME else n, "<f4" if form == _SINGLE else "<f8")  # type: ignore[assignment]
    norms = take(n * num_tensors, "<f4").reshape(n, num_tensors)
    return Updates(steps, columns, norms)  # type: ignore[arg-type]


def packed_tensors(first: int, tensors: Sequence[TensorInfo]) -> bytes:
    """The payload of a `TENSORS` block; `first` is the number of the first of them."""
    return strict_json.dumps([first, *([t.name, list(t.shape), t.dtype] for t in tensors)])


def read_tensors(payload: memoryview) -> tuple[int, list[TensorInfo]]:
    """The payload of a `TENSORS` block: the number of the first, and all.

    Raises:
        ValueError: Where it is something else.
    """
    match strict_json.loads(bytes(payload)):
        case [int(first), *rows]:
            return first, [_tensor(row) for row in rows]
    raise ValueError("no list of tensors")


def _tensor(row: Any) -> TensorInfo:
    match row:
        case [name, [*shape], str(dtype)] if all(type(n) is int for n in shape):
            # A parameter may be called "nan", which JSON gives back as the number.
            return TensorInfo(str(name), tuple(shape), dtype)
    raise ValueError("tensors without name, shape and dtype")
