"""safetensors: the header is read and checked here, so that the package is not needed and a header that lies is damage.

Layout (github.com/huggingface/safetensors, "Format"): the header's size (u64, little-endian), the header (JSON), the tensors without
gaps. `data_offsets` count from the end of the header.
"""

from __future__ import annotations

import json
import os
from math import prod
from pathlib import Path
from typing import Any

from gradclip_cli.clipping import shards
from gradclip_cli.clipping.dtypes import DTYPES
from gradclip_cli.clipping.store import METADATA_KEYS, Stored, StoredTensor, checked_name, checked_shape, damaged, open_regular, whole
from gradclip_cli.model.recorded import SHARDS_KEY

# The format's own bound.
_MOST_HEADER_BYTES = 100_000_000
_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64"},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"},
    **{f"{sign.upper()}{bits}": f"{'u' if sign == 'u' else ''}int{bits}" for sign in ("i", "u") for bits in (8, 16, 32, 64)},
    "BOOL": "bool",
}


def claims(head: bytes) -> bool:
    """Whether a file begins as this format does."""
    return len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= _MOST_HEADER_BYTES


def read(path: Path) -> Stored:
    """What the file holds.

    Raises:
        GradclipError: The header is damaged or contradicts the file.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        size = int.from_bytes(file.read(8), "little")
        if size > min(num_bytes - 8, _MOST_HEADER_BYTES):
            raise damaged(path, f"a header of {size:,} bytes in a file of {num_bytes:,}", "one that fits into the file")
        header = _header(file.read(size), path)
    begin = 8 + size
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise damaged(path, "__metadata__ that is no object")
    tensors = []
    ends = 0
    for entry in sorted((_Entry(path, name, value) for name, value in header.items()), key=lambda e: (e.start, e.stop)):
        if entry.start != ends:
            how = "overlaps the tensor before it" if entry.start < ends else "leaves a gap before it"
            raise damaged(path, f"tensor {entry.name}, which {how} (byte {begin + entry.start:,})", "tensors one behind the other")
        ends = entry.stop
        if begin + ends > num_bytes:
            raise damaged(
                path,
                f"the end of the file at byte {num_bytes:,} inside tensor {entry.name}",
                f"it to reach to byte {begin + ends:,}",
                hint="the file was truncated; copy it again",
            )
        tensors.append(entry.tensor(begin))
    if begin + ends != num_bytes:
        raise damaged(path, f"{num_bytes - begin - ends:,} bytes behind the last tensor", "the file to end there")
    told = {k: metadata[k] for k in METADATA_KEYS if k in metadata}
    places = shards.read(metadata[SHARDS_KEY], path, {t.name: t.shape for t in tensors}) if SHARDS_KEY in metadata else None
    return Stored(path, "safetensors", tuple(tensors), told, shards=places)


def _header(text: bytes, path: Path) -> dict[str, Any]:
    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError
        return found

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as e:
        raise damaged(path, "a header that is not JSON, or names something twice", "a safetensors header") from e
    if not isinstance(header, dict):
        raise damaged(path, "a header that is no JSON object", "a safetensors header")
    return header


class _Entry:
    """A tensor as the header describes it, checked."""

    def __init__(self, path: Path, name: str, value: Any) -> None:
        self.path, self.name = path, checked_name(name, path)
        offsets = value.get("data_offsets") if isinstance(value, dict) else None
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(x) is int and 0 <= x < 2**62 for x in offsets):
            raise damaged(path, f"tensor {name} without a place in the file", "data_offsets [begin, end]")
        self.start, self.stop = offsets
        self.shape = checked_shape(value.get("shape"), path, name)
        dtype = value.get("dtype")
        known = _DTYPES.get(dtype) if type(dtype) is str else None
        if known is None:
            raise damaged(path, f"tensor {name} of dtype {dtype if type(dtype) is str else '?'}", f"one of {', '.join(_DTYPES)}")
        self.dtype = DTYPES[known]
        if self.stop - self.start != prod(self.shape) * self.dtype.num_bytes:
            raise damaged(
                path,
                f"tensor {name} of shape {list(self.shape)} and {known} in {self.stop - self.start:,} bytes",
                f"{prod(self.shape) * self.dtype.num_bytes:,} bytes",
            )

    def tensor(self, begin: int) -> StoredTensor:
        return whole(self.name, self.dtype, self.shape, self.path, begin + self.start)
