"""Checksummed blocks, one behind the other in a file that is only appended to.

```
"GCB1"  kind (1 byte)  3 bytes of 0  payload bytes (u32)  CRC-32 of the payload (u32)  CRC-32 of the 16 bytes before (u32)  payload
```

Numbers are little-endian. The checksum of the header makes a damaged length known as such, so that reading goes on at the next block.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

_MAGIC = b"GCB1"
_HEAD = struct.Struct("<4sB3xII")
_CHECK = struct.Struct("<I")
_SIZE = _HEAD.size + _CHECK.size

UPDATES, TENSORS = 1, 2
"""Kinds of blocks; see `updates`."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block whose checksums are right."""

    at: int
    kind: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes that are no valid block.

    Attributes:
        start, stop: Where in the file.
        is_tail: They reach to the end of the file and begin as a block does: the writer was stopped in the middle.
    """

    start: int
    stop: int
    is_tail: bool


def packed(kind: int, payload: bytes) -> bytes:
    """The bytes of one block."""
    head = _HEAD.pack(_MAGIC, kind, len(payload), zlib.crc32(payload))
    return head + _CHECK.pack(zlib.crc32(head)) + payload


def scan(data: bytes) -> Iterator[Block | Gap]:
    """Every valid block in order, and what lies between them. Each byte is checked once."""
    view = memoryview(data)
    at = bad = 0
    while at < len(data):
        if (block := _header_at(view, at)) is None:
            # What follows a damaged header may be anything; the next block says where it begins.
            at = data.find(_MAGIC, at + 1)
            at = len(data) if at < 0 else at
            continue
        end = at + _SIZE + block.size
        if zlib.crc32(view[at + _SIZE : end]) == block.crc:
            if bad < at:
                yield Gap(bad, at, is_tail=False)
            yield Block(at, block.kind, view[at + _SIZE : end])
            bad = end
        at = end
    if bad < len(data):
        yield Gap(bad, len(data), is_tail=_MAGIC.startswith(data[bad : bad + 4]))


@dataclass(frozen=True, slots=True)
class _Header:
    kind: int
    size: int
    crc: int


def _header_at(view: memoryview, at: int) -> _Header | None:
    """A header whose payload is there in full."""
    if len(view) - at < _SIZE:
        return None
    magic, kind, size, crc = _HEAD.unpack_from(view, at)
    (check,) = _CHECK.unpack_from(view, at + _HEAD.size)
    if magic != _MAGIC or check != zlib.crc32(view[at : at + _HEAD.size]) or size > len(view) - at - _SIZE:
        return None
    return _Header(kind, size, crc)
