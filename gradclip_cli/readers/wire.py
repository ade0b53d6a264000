"""Protocol buffers on the wire, decoded without a schema: only what a claimed length can back with bytes."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, int | bytes]


class WireError(ValueError):
    """Bytes that are no protocol buffer message: truncated, or of an unknown wire type."""


def fields(message: bytes) -> Iterator[Field]:
    """The fields of a message in order: number, wire type, value.

    A varint is an unsigned int; fixed and length-delimited values are their bytes.

    Raises:
        WireError: At the first byte that cannot be right; what came before has been yielded.
    """
    i, n = 0, len(message)
    while i < n:
        tag = message[i]
        i += 1
        if tag & 0x80:
            tag, i = varint(message, i - 1, n)
        kind = tag & 7
        if kind == BYTES:
            if i >= n:
                raise WireError("the message ends before a length")
            size = message[i]
            i += 1
            if size & 0x80:
                size, i = varint(message, i - 1, n)
            if size > n - i:
                raise WireError(f"a field claims {size} bytes where {n - i} are left")
            yield tag >> 3, kind, message[i : i + size]
            i += size
        elif kind == VARINT:
            value, i = varint(message, i, n)
            yield tag >> 3, kind, value
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            if size > n - i:
                raise WireError("the message ends within a number")
            yield tag >> 3, kind, message[i : i + size]
            i += size
        else:
            raise WireError(f"wire type {kind} is unknown")


def varint(message: bytes | memoryview, at: int, stop: int) -> tuple[int, int]:
    """A base-128 number and where it ends.

    Raises:
        WireError: Where it does not end before `stop`, or within ten bytes.
    """
    value = 0
    for shift in range(0, 70, 7):
        if at >= stop:
            raise WireError(f"the message ends within a number, at byte {at}")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise WireError(f"a number is longer than ten bytes, at byte {at}")
