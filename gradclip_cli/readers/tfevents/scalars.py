"""From the records of an event file to columns of scalars, many records of one length at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gradclip_cli.readers.log import Column
from gradclip_cli.readers.tfevents import crc32c
from gradclip_cli.readers.tfevents.event import Layout, MalformedEvent, Number, layout_of, plugin_of
from gradclip_cli.readers.tfevents.framing import FOOTER, HEADER, Cycles, Records, varying_bits

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

# Below this many records of one length numpy's cost per call outweighs the vectors.
_MIN_ROWS = 8
# Longer records are images and graphs, hardly two of one length; and a row needs 1 KiB of CRC table for each byte.
_MAX_ROW_BYTES = 2048
# Records of one length but of other fields or another width of the step are told apart so often; the rest is taken one by one.
_MAX_LAYOUTS = 16

_SCALAR_PLUGINS = ("", "scalars")


@dataclass(slots=True)
class _Pieces:
    """What was read of one tag, in no particular order."""

    starts: list[Places] = field(default_factory=list)
    steps: list[Places] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)
    has_tensors: bool = False

    def column(self) -> tuple[int, Column]:
        """Where the tag first appears, and all of it in the order of the file."""
        order = sorted(range(len(self.starts)), key=lambda i: int(self.starts[i][0]))
        steps, values = np.concatenate([self.steps[i] for i in order]), np.concatenate([self.values[i] for i in order])
        if any(self.starts[i][-1] > self.starts[j][0] for i, j in pairwise(order)):
            by_start = np.argsort(np.concatenate([self.starts[i] for i in order]), kind="stable")
            steps, values = steps[by_start], values[by_start]
        return int(self.starts[order[0]][0]), Column(steps, values)


class Scalars:
    """Collects the scalars of one file.

    Attributes:
        num_events: Records that hold an event, with scalars or without.
        broken: Where the records start whose payload does not match its checksum.
        malformed: Where the records start whose checksum is right but which hold no event.
    """

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._pieces: dict[str, _Pieces] = {}
        self._plugins: dict[str, str] = {}
        self._layouts: dict[int, Layout] = {}
        self.num_events = 0
        self.broken: list[int] = []
        self.malformed: list[int] = []

    def columns(self) -> dict[str, Column]:
        """By tag, in order of first appearance; tags whose tensors belong to another plugin than TensorBoard's scalars are left out."""
        found = {tag: pieces.column() for tag, pieces in self._pieces.items() if tag not in self.foreign()}
        return {tag: column for tag, (_, column) in sorted(found.items(), key=lambda item: item[1][0])}

    def foreign(self) -> dict[str, str]:
        """Tags with single numbers that are another plugin's business -> that plugin."""
        return {t: p for t, p in self._plugins.items() if p not in _SCALAR_PLUGINS and t in self._pieces and self._pieces[t].has_tensors}

    def add(self, block: Cycles | Records) -> None:
        """Check and decode what the framing found."""
        if isinstance(block, Records):
            self._add_records(block)
            return
        num_cycles, period = block.rows.shape
        first = 0
        for size in block.sizes:
            part = slice(first, first + size)
            starts = np.arange(num_cycles) * period + (block.start + first)
            self._add_rows(block.rows[:, part], block.varying[part], starts)
            first += size

    def _add_records(self, records: Records) -> None:
        # A radix sort, as the key has 16 bits.
        key = np.minimum(records.sizes, _MAX_ROW_BYTES + 1).astype(np.uint16)
        order = np.argsort(key, kind="stable")
        stops = np.cumsum(np.bincount(key))
        loose = []
        first = 0
        for size in np.unique(key).tolist():
            group = order[first : stops[size]]
            first = stops[size]
            if size <= _MAX_ROW_BYTES and len(group) >= _MIN_ROWS:
                starts = records.starts[group]
                windows = np.ndarray((len(self._data) - size + 1,), f"V{size}", self._data, strides=(1,))
                rows = windows[starts].view(np.uint8).reshape(-1, size)
                self._add_rows(rows, varying_bits(rows), starts)
            else:
                loose.append(group)
        if loose:
            group = np.concatenate(loose)
            self._add_loose(records.starts[group], records.sizes[group])

    def _add_loose(self, starts: Places, sizes: Places) -> None:
        """Records one by one, except for their checksums."""
        stored = np.ndarray((len(self._data) - 3,), "<u4", self._data, strides=(1,))[starts + sizes - FOOTER]
        whole = crc32c.of_spans(self._data, starts + HEADER, sizes - (HEADER + FOOTER)) == crc32c.unmasked(stored)
        self.broken += starts[~whole].tolist()
        for start, size in zip(starts[whole].tolist(), sizes[whole].tolist(), strict=True):
            self._add_one(self._data[start + HEADER : start + size - FOOTER], start)

    def _add_one(self, payload: Bytes, start: int) -> None:
        try:
            layout = layout_of(payload.data)
        except MalformedEvent:
            self.malformed.append(start)
            return
        self._take(payload[None], np.zeros(len(payload), np.uint8), np.array([start]), layout)

    def _add_rows(self, rows: Bytes, varying: Bytes, starts: Places) -> None:
        """Whole records of one length, a row each."""
        payloads, varying = rows[:, HEADER:-FOOTER], varying[HEADER:-FOOTER]
        stored = rows[:, -FOOTER:].view("<u4")[:, 0]
        whole = crc32c.of_rows(payloads, varying) == crc32c.unmasked(stored)
        if not whole.all():
            self.broken += starts[~whole].tolist()
            payloads, starts = payloads[whole], starts[whole]
        for _ in range(_MAX_LAYOUTS):
            if not len(starts):
                return
            try:
                layout = self._layout_of(payloads[0].tobytes())
            except MalformedEvent:
                self.malformed.append(int(starts[0]))
                payloads, starts = payloads[1:], starts[1:]
                continue
            alike = _alike(payloads, varying, layout)
            if alike is None:
                self._take(payloads, varying, starts, layout)
                return
            self._take(payloads[alike], varying, starts[alike], layout)
            payloads, starts = payloads[~alike], starts[~alike]
        for payload, start in zip(payloads, starts.tolist(), strict=True):
            self._add_one(np.ascontiguousarray(payload), start)

    def _layout_of(self, payload: bytes) -> Layout:
        """The layout of an event, looked up where one of the same length was parsed last."""
        known = self._layouts.get(len(payload))
        if known is None or not known.fits(payload):
            known = self._layouts[len(payload)] = layout_of(payload)
        return known

    def _take(self, payloads: Bytes, varying: Bytes, starts: Places, layout: Layout) -> None:
        """Events of one layout, a row each."""
        self.num_events += len(starts)
        if not layout.scalars:
            return
        steps = _integers(payloads, varying, layout.step).astype(np.int64)
        values = [_numbers(payloads, varying, scalar.number) for scalar in layout.scalars]
        for group in _by_name(payloads, varying & layout.naming):
            event = payloads[group][0].tobytes()
            for scalar, numbers in zip(layout.scalars, values, strict=True):
                tag = event[slice(*scalar.tag)].decode("utf-8", "backslashreplace")
                pieces = self._pieces.setdefault(tag, _Pieces())
                pieces.starts.append(starts[group])
                pieces.steps.append(steps[group])
                pieces.values.append(numbers[group])
                pieces.has_tensors |= scalar.is_tensor
                if plugin := plugin_of(event[slice(*scalar.metadata)]):
                    self._plugins.setdefault(tag, plugin)


def _alike(payloads: Bytes, varying: Bytes, layout: Layout) -> Flags | None:
    """Which rows have the layout of the first; None where all have."""
    differing = np.flatnonzero(varying & layout.fixed_bits)
    if not len(differing):
        return None
    alike = np.ones(len(payloads), np.bool_)
    for column in differing.tolist():
        alike &= (payloads[:, column] ^ payloads[0, column]) & layout.fixed_bits[column] == 0
    return None if alike.all() else alike


def _by_name(payloads: Bytes, naming: Bytes) -> list[Places | slice]:
    """Groups of rows that agree in all `naming` columns, each group in the order of the rows."""
    columns = np.flatnonzero(naming).tolist()
    if not columns:
        return [slice(None)]
    # The bytes of the names, packed into numbers; renumbered whenever another byte would not fit.
    key, num_keys = np.zeros(len(payloads), np.int64), 1
    for column in columns:
        if num_keys >= 1 << 55:
            key, num_keys = np.unique(key, return_inverse=True)[1], len(payloads)
        key, num_keys = key << 8 | payloads[:, column], num_keys << 8
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)


def _integers(payloads: Bytes, varying: Bytes, number: Number) -> npt.NDArray[np.unsignedinteger]:
    """Varints: seven bits in each byte, the lowest first."""
    columns = range(*number.span)
    dtype = np.dtype(np.uint32 if len(columns) <= 4 else np.uint64)
    constant = 0
    parts = []
    for shift, column in zip(range(0, 70, 7), columns, strict=False):
        if varying[column]:
            bits = payloads[:, column].astype(dtype)
            bits &= 0x7F
            bits <<= shift
            parts.append(bits)
        else:
            constant |= (int(payloads[0, column]) & 0x7F) << shift
    total = np.full(len(payloads), constant & (1 << 8 * dtype.itemsize) - 1, dtype)
    for bits in parts:
        total |= bits
    return total


def _numbers(payloads: Bytes, varying: Bytes, number: Number) -> Values:
    """The numbers as float64."""
    bits = _integers(payloads, varying, number) if number.varint else payloads[:, slice(*number.span)]
    if number.dtype == "bfloat16":
        halves = bits.astype(np.uint16) if number.varint else bits.view("<u2")[:, 0]
        return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    dtype = np.dtype(number.dtype)
    numbers = bits.astype(f"u{dtype.itemsize}").view(dtype) if number.varint else bits.view(dtype)[:, 0]
    return numbers.astype(np.float64)
