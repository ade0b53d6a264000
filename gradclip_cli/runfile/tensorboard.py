"""A TensorBoard event file of scalars, written without TensorBoard.

A file is a row of records: length (u64), its masked CRC-32C, the data, their masked CRC-32C; the data are an `Event` protocol buffer:
wall_time = 1 (double), step = 2 (int64), file_version = 3 (string), summary = 5 {value = 1 {tag = 1, simple_value = 2 (float)}}
(tensorflow/core/util/event.proto, core/framework/summary.proto; masking: core/lib/hash/crc32c.h; CRC-32C: RFC 3720, appendix B.4).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache


@lru_cache(maxsize=1)
def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


def _masked_crc32c(data: bytes) -> int:
    crc, table = 0xFFFFFFFF, _table()
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join((length, struct.pack("<I", _masked_crc32c(length)), data, struct.pack("<I", _masked_crc32c(data))))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def first_record(wall_time: float) -> bytes:
    """What every event file begins with."""
    return _record(b"\x09" + struct.pack("<d", wall_time) + _field(3, b"brain.Event:2"))


def scalars_record(wall_time: float, step: int, scalars: Mapping[str, float]) -> bytes:
    """The scalars of one step, tag -> value (kept as float32, as TensorBoard does)."""
    values = b"".join(_field(1, _field(1, tag.encode()) + b"\x15" + _single(value)) for tag, value in scalars.items())
    return _record(b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step) + _field(5, values))


def _single(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))
