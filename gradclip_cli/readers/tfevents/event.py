"""Where in an `Event` message the step, the tags and the scalar values stand.

Protocol buffers are decoded by hand and only as deep as scalars lie: Event.summary.value[].simple_value or .tensor.
Graphs, histograms, images, text and profiles are stepped over. Nothing is allocated for a length that a field claims.

The result is a `Layout`: places, not values. Records of one tag share their layout, so one record is parsed and
the layout then applied to thousands of them at once. For that it says which bytes must be as in the parsed record
(field keys, lengths, continuation bits of numbers), which bytes name the columns, and leaves the others free.

Field numbers are those of TensorFlow's event.proto, summary.proto, tensor.proto, tensor_shape.proto, types.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gradclip_cli.readers.wire import BYTES, FIXED32, FIXED64, VARINT, WireError, varint

Span = tuple[int, int]


# DataType -> numpy type of one element; "bfloat16" has none in numpy.
_DTYPES = {
    1: "f4", 2: "f8", 3: "i4", 4: "u1", 5: "i2", 6: "i1", 9: "i8", 10: "u1", 14: "bfloat16", 17: "u2", 19: "f2", 22: "u4", 23: "u8",
}  # fmt: skip
# TensorProto's repeated fields: number -> size in bytes of one packed element, 0 for varints.
_ELEMENTS = {5: 4, 6: 8, 7: 0, 10: 0, 11: 0, 13: 0, 16: 0, 17: 0}
_TENSOR_CONTENT = 4
# What else a Summary.Value may hold instead of a scalar: histograms of two kinds, an image, audio. The last one counts.
_OTHER_VALUES = (3, 4, 5, 6)


@dataclass(frozen=True, slots=True)
class Number:
    """Where a number stands.

    Attributes:
        span: Its bytes; empty for a zero that was left out.
        dtype: numpy type of the number, or "bfloat16".
        varint: Whether it is a varint or little-endian bytes.
    """

    span: Span
    dtype: str
    varint: bool


@dataclass(frozen=True, slots=True)
class Scalar:
    """One scalar of an event.

    Attributes:
        tag: The bytes of its tag.
        metadata: The bytes of its SummaryMetadata; empty where there is none.
        number: Its value.
        is_tensor: False for `simple_value`.
    """

    tag: Span
    metadata: Span
    number: Number
    is_tensor: bool


@dataclass
class Layout:
    """Places within the payload of a record.

    Attributes:
        payload: The event that was parsed.
        scalars: In the order of the event.
        step: The varint of the step; an empty span stands for 0.
        fixed: Spans, with the bits in each byte that must agree for another record to have this layout.
        names: Spans that say which columns the values belong to.
    """

    payload: bytes | memoryview
    scalars: list[Scalar] = field(default_factory=list)
    step: Number = Number((0, 0), "i8", True)
    fixed: list[tuple[Span, int]] = field(default_factory=list)
    names: list[Span] = field(default_factory=list)

    @cached_property
    def fixed_bits(self) -> npt.NDArray[np.uint8]:
        """`fixed` as a mask for each byte of the payload."""
        mask = bytearray(len(self.payload))
        for (start, stop), bits in self.fixed:
            for i in range(start, stop):
                mask[i] |= bits
        return np.frombuffer(mask, np.uint8)

    @cached_property
    def naming(self) -> npt.NDArray[np.uint8]:
        """`names` as a mask for each byte of the payload."""
        mask = bytearray(len(self.payload))
        for start, stop in self.names:
            mask[start:stop] = b"\xff" * (stop - start)
        return np.frombuffer(mask, np.uint8)

    def fits(self, payload: bytes | memoryview) -> bool:
        """Whether another event, of the same length, has this layout."""
        return not (int.from_bytes(payload) ^ int.from_bytes(self.payload)) & self._fixed_number

    @cached_property
    def _fixed_number(self) -> int:
        return int.from_bytes(self.fixed_bits.tobytes())


def layout_of(payload: bytes | memoryview) -> Layout:
    """The layout of one event.

    Raises:
        WireError: Where the bytes are no event.
    """
    layout = Layout(payload)
    for number, kind, span in _fields(layout, (0, len(payload))):
        if number == 2 and kind == VARINT:
            layout.step = Number(span, "i8", True)
        elif number == 5 and kind == BYTES:
            for inner, inner_kind, inner_span in _fields(layout, span):
                if inner == 1 and inner_kind == BYTES:
                    _value(layout, inner_span)
    return layout


def plugin_of(metadata: bytes) -> str:
    """The plugin named in a SummaryMetadata; "" where none is, or the bytes are no such message."""
    message = Layout(metadata)
    try:
        for number, kind, span in _fields(message, (0, len(metadata))):
            if number == 1 and kind == BYTES:
                for inner, inner_kind, (start, stop) in _fields(message, span):
                    if inner == 1 and inner_kind == BYTES:
                        return metadata[start:stop].decode("utf-8", "backslashreplace")
    except WireError:
        pass
    return ""


def _value(layout: Layout, span: Span) -> None:
    """One Summary.Value."""
    tag = metadata = (0, 0)
    number: Number | None = None
    is_tensor = False
    for field_number, kind, inner in _fields(layout, span):
        if field_number == 1 and kind == BYTES:
            tag = inner
            layout.names.append(inner)
        elif field_number == 9 and kind == BYTES:
            metadata = inner
            layout.names.append(inner)
        elif field_number == 2 and kind == FIXED32:
            number, is_tensor = Number(inner, "f4", False), False
        elif field_number == 8 and kind == BYTES:
            number, is_tensor = _tensor(layout, inner), True
        elif field_number in _OTHER_VALUES:
            number = None
    if number is not None:
        layout.scalars.append(Scalar(tag, metadata, number, is_tensor))


def _tensor(layout: Layout, span: Span) -> Number | None:
    """The only element of a TensorProto, or None where it has another number of them or is not numeric."""
    dtype: str | None = None
    single = True
    content: Span | None = None
    elements: list[Number] = []
    for number, kind, inner in _fields(layout, span):
        if number == 1 and kind == VARINT:
            layout.fixed.append((inner, 0xFF))
            dtype = _DTYPES.get(varint(layout.payload, *inner)[0])
        elif number == 2 and kind == BYTES:
            layout.fixed.append((inner, 0xFF))
            single = _is_single(layout, inner)
        elif number == _TENSOR_CONTENT and kind == BYTES:
            content = inner if inner[1] > inner[0] else None
        elif number in _ELEMENTS:
            elements += _elements(layout, kind, inner, _ELEMENTS[number])
    if dtype is None or not single or len(elements) > 1:
        return None
    if content is not None:
        itemsize = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
        return Number(content, dtype, False) if content[1] - content[0] == itemsize else None
    if not elements:
        return Number((0, 0), dtype, True)
    if not elements[0].varint:
        return elements[0]
    return None if dtype in ("f4", "f8") else Number(elements[0].span, dtype, True)


def _elements(layout: Layout, kind: int, span: Span, size: int) -> list[Number]:
    """At most two elements of a repeated number field, packed or not: more than one is no scalar."""
    start, stop = span
    if size:
        if kind == VARINT or (stop - start) % size:
            raise WireError(f"numbers of {size} bytes at byte {start} in {stop - start} bytes")
        return [Number((at, at + size), f"f{size}", False) for at in range(start, min(stop, start + 2 * size), size)]
    if kind == VARINT:
        return [Number(span, "", True)]
    found: list[Number] = []
    while start < stop and len(found) < 2:
        _, end = varint(layout.payload, start, stop)
        layout.fixed.append(((start, end), 0x80))
        found.append(Number((start, end), "", True))
        start = end
    return found


def _is_single(layout: Layout, span: Span) -> bool:
    """Whether a TensorShapeProto is a scalar's or has one element in all."""
    for number, kind, inner in _fields(layout, span):
        if number == 3 and kind == VARINT and varint(layout.payload, *inner)[0]:
            return False
        if number == 2 and kind == BYTES:
            sizes = [varint(layout.payload, *s)[0] for n, k, s in _fields(layout, inner) if n == 1 and k == VARINT]
            if sizes[-1:] != [1]:
                return False
    return True


def _fields(layout: Layout, span: Span) -> Iterator[tuple[int, int, Span]]:
    """The fields of a message: number, wire type, place of the value. Keys, lengths and continuation bits become fixed."""
    payload = layout.payload
    at, stop = span
    while at < stop:
        begin = at
        key, at = varint(payload, at, stop)
        kind = key & 7
        if kind == BYTES:
            size, at = varint(payload, at, stop)
            layout.fixed.append(((begin, at), 0xFF))
            end = at + size
        elif kind == VARINT:
            layout.fixed.append(((begin, at), 0xFF))
            _, end = varint(payload, at, stop)
            layout.fixed.append(((at, end), 0x80))
        elif kind in (FIXED64, FIXED32):
            layout.fixed.append(((begin, at), 0xFF))
            end = at + (8 if kind == FIXED64 else 4)
        else:
            raise WireError(f"wire type {kind} at byte {begin}")
        if end > stop:
            raise WireError(f"a field at byte {begin} ends behind its message")
        yield key >> 3, kind, (at, end)
        at = end
