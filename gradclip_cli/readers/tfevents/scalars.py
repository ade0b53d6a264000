"""From the records of an event file to columns of scalars, many records of one length at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from gradclip_cli.readers.log import Column
from gradclip_cli.readers.tfevents import crc32c, weighing
from gradclip_cli.readers.tfevents.event import Layout, Number, layout_of, plugin_of
from gradclip_cli.readers.tfevents.framing import Cycles, Records, varying_bits
from gradclip_cli.readers.tfevents.words import FOOTER, HEADER, Words
from gradclip_cli.readers.wire import WireError

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

# Below this many records of one length numpy's cost per call outweighs the vectors.
_MIN_ROWS = 8
# So many records are cheaper added up than looked up.
_MIN_WEIGHED = 256
# Longer records are hardly ever of one length: graphs, images.
_MAX_ROW_BYTES = (1 << 16) - 2
_ROWS_BYTES = 1 << 22
# Records of one length but of other fields or another width of the step are told apart so often; the rest is taken one by one.
_MAX_LAYOUTS = 16

_SCALAR_PLUGINS = ("", "scalars")


@dataclass(slots=True)
class _Pieces:
    """What was read of one tag, in no particular order, in the types of the file: converting waits until all is put together."""

    starts: list[Places | range] = field(default_factory=list)
    steps: list[npt.NDArray[np.integer]] = field(default_factory=list)
    values: list[npt.NDArray[np.generic]] = field(default_factory=list)
    has_tensors: bool = False

    def column(self) -> tuple[int, Column]:
        """Where the tag first appears, and all of it in the order of the file."""
        order = sorted(range(len(self.starts)), key=lambda i: int(self.starts[i][0]))
        steps = np.concatenate([self.steps[i] for i in order], dtype=np.int64)
        values = np.concatenate([self.values[i] for i in order], dtype=np.float64)
        if any(self.starts[i][-1] > self.starts[j][0] for i, j in pairwise(order)):
            by_start = np.argsort(np.concatenate([_places(self.starts[i]) for i in order]), kind="stable")
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
        foreign = self.foreign()
        found = {tag: pieces.column() for tag, pieces in self._pieces.items() if tag not in foreign}
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
        firsts = [0, *accumulate(block.sizes)]
        records = [Words.of_records(block.rows[:, first:stop]) for first, stop in pairwise(firsts)]
        checked = _all_match(block.rows, block.varying, block.sizes, [crcs for _, crcs in records])
        for (payloads, crcs), (first, stop) in zip(records, pairwise(firsts), strict=True):
            starts = range(block.start + first, block.start + num_cycles * period, period)
            self._add_rows(payloads, block.varying[first + HEADER : stop - FOOTER], starts, None if checked else crcs)

    def _add_records(self, records: Records) -> None:
        # A radix sort, as the key has 16 bits.
        key = np.minimum(records.sizes, _MAX_ROW_BYTES + 1).astype(np.uint16)
        order = np.argsort(key, kind="stable")
        counts = np.bincount(key)
        loose = []
        first = 0
        for size in np.flatnonzero(counts).tolist():
            group = order[first : first + counts[size]]
            first += counts[size]
            few = len(group) < _MIN_ROWS or size > _MAX_ROW_BYTES
            if few or not self._has_scalars(int(records.starts[group[0]]), size):
                loose.append(group)
                continue
            windows = np.ndarray((len(self._data) - size + 1,), f"V{size}", self._data, strides=(1,))
            for part in np.array_split(group, -(-len(group) * size // _ROWS_BYTES)):
                starts = records.starts[part]
                rows = windows[starts].view(np.uint8).reshape(-1, size)
                varying = varying_bits(rows)
                payloads, crcs = Words.of_records(rows)
                checked = _all_match(rows, varying, (size,), [crcs])
                self._add_rows(payloads, varying[HEADER:-FOOTER], starts, None if checked else crcs)
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
            layout = self._layout_of(payload.tobytes()) if len(payload) <= crc32c.MAX_WIDTH else layout_of(payload.data)
        except WireError:
            self.malformed.append(start)
            return
        self._take(Words(payload[None]), np.zeros(len(payload), np.uint8), np.array([start]), layout)

    def _has_scalars(self, start: int, size: int) -> bool:
        """Whether a record looks like one with scalars, so that others of its length probably are."""
        try:
            return bool(self._layout_of(self._data[start + HEADER : start + size - FOOTER].tobytes()).scalars)
        except WireError:
            return False

    def _add_rows(self, payloads: Words, varying: Bytes, starts: Places | range, unchecked: crc32c.Crcs | None) -> None:
        """Payloads of one length, a row each, and their masked CRCs where those are still to be checked."""
        if unchecked is not None:
            if crc32c.MIN_WIDTH <= len(varying) <= crc32c.MAX_WIDTH:
                crcs = crc32c.of_rows(payloads, varying)
            else:
                crcs = crc32c.of_spans(self._data, _places(starts) + HEADER, np.full(len(starts), len(varying)))
            whole = crcs == crc32c.unmasked(unchecked)
            if not whole.all():
                starts = _places(starts)
                self.broken += starts[~whole].tolist()
                payloads, starts = Words(payloads.rows[whole]), starts[whole]
        for _ in range(_MAX_LAYOUTS):
            if not len(starts):
                return
            try:
                layout = self._layout_of(payloads.rows[0].tobytes())
            except WireError:
                self.malformed.append(int(starts[0]))
                payloads, starts = Words(payloads.rows[1:]), starts[1:]
                continue
            alike = _alike(payloads.rows, varying, layout)
            if alike is None:
                self._take(payloads, varying, starts, layout)
                return
            starts = _places(starts)
            self._take(Words(payloads.rows[alike]), varying, starts[alike], layout)
            payloads, starts = Words(payloads.rows[~alike]), starts[~alike]
        for payload, start in zip(payloads.rows, starts, strict=True):
            self._add_one(np.ascontiguousarray(payload), int(start))

    def _layout_of(self, payload: bytes) -> Layout:
        """The layout of an event, looked up where one of the same length was parsed last."""
        known = self._layouts.get(len(payload))
        if known is None or not known.fits(payload):
            known = self._layouts[len(payload)] = layout_of(payload)
        return known

    def _take(self, payloads: Words, varying: Bytes, starts: Places | range, layout: Layout) -> None:
        """Events of one layout, a row each."""
        self.num_events += len(starts)
        if not layout.scalars:
            return
        steps = _integers(payloads, varying, layout.step)
        values = [_numbers(payloads, varying, scalar.number) for scalar in layout.scalars]
        order, bounds = _by_name(payloads.rows, varying & layout.naming)
        if order is not None:
            starts, steps = _places(starts)[order], steps[order]
            values = [numbers[order] for numbers in values]
        for first, stop in pairwise(bounds):
            event = payloads.rows[first if order is None else order[first]].tobytes()
            for scalar, numbers in zip(layout.scalars, values, strict=True):
                tag = event[slice(*scalar.tag)].decode("utf-8", "backslashreplace")
                pieces = self._pieces.get(tag)
                if pieces is None:
                    pieces = self._pieces[tag] = _Pieces()
                pieces.starts.append(starts[first:stop])
                pieces.steps.append(steps[first:stop])
                pieces.values.append(numbers[first:stop])
                pieces.has_tensors |= scalar.is_tensor
                if scalar.metadata[1] and (plugin := plugin_of(event[slice(*scalar.metadata)])):
                    self._plugins.setdefault(tag, plugin)


def _all_match(rows: Bytes, varying: Bytes, sizes: tuple[int, ...], crcs: list[crc32c.Crcs]) -> bool:
    """Whether all records in a contiguous matrix, one or more behind one another in each row, match their masked CRCs.

    False also where checking them one by one is as good.
    """
    stops = accumulate(sizes)
    spans = [(stop - size + HEADER, stop - FOOTER) for size, stop in zip(sizes, stops, strict=True)]
    if len(rows) < _MIN_WEIGHED or not all(crc32c.MIN_WIDTH <= stop - start <= crc32c.MAX_WIDTH for start, stop in spans):
        return False
    return weighing.all_match(rows, varying, spans, crc32c.unmasked(np.stack(crcs, axis=1)))


def _alike(payloads: Bytes, varying: Bytes, layout: Layout) -> Flags | None:
    """Which rows have the layout of the first; None where all have."""
    differing = varying & layout.fixed_bits
    if not differing.any():
        return None
    alike = np.ones(len(payloads), np.bool_)
    for column in np.flatnonzero(differing).tolist():
        alike &= (payloads[:, column] ^ payloads[0, column]) & layout.fixed_bits[column] == 0
    return None if alike.all() else alike


def _by_name(payloads: Bytes, naming: Bytes) -> tuple[Places | None, list[int]]:
    """An order in which rows that agree in all `naming` columns are together and else stay as they are (None: as
    they are), and where each group begins in it, with the end behind the last."""
    if not naming.any():
        return None, [0, len(payloads)]
    names = payloads[:, naming != 0]
    order = np.lexsort(names.T)
    names = names[order]
    changes = np.flatnonzero((names[1:] != names[:-1]).any(axis=1)) + 1
    return order, [0, *changes.tolist(), len(order)]


def _integers(payloads: Words, varying: Bytes, number: Number) -> npt.NDArray[np.integer]:
    """Varints: seven bits in each byte, the lowest first. uint32 where that is enough, else int64."""
    start, stop = number.span
    if stop - start > 4 or start + 4 > payloads.rows.shape[1]:
        return _long_integers(payloads.rows[:, start:stop])
    total = np.zeros(len(payloads.rows), np.uint32)
    for i in range(stop - start):
        if varying[start + i]:
            digit = payloads[start] >> i
            digit &= 0x7F << 7 * i
            total |= digit
        else:
            total |= (int(payloads.rows[0, start + i]) & 0x7F) << 7 * i
    return total


def _long_integers(digits: Bytes) -> npt.NDArray[np.int64]:
    total = np.zeros(len(digits), np.uint64)
    for i, digit in enumerate(digits.T):
        total |= (digit.astype(np.uint64) & 0x7F) << 7 * i
    return total.view(np.int64)


def _numbers(payloads: Words, varying: Bytes, number: Number) -> npt.NDArray[np.generic]:
    """The numbers in their own type (bfloat16 as float32)."""
    if number.dtype == "f4" and not number.varint:
        return payloads[number.span[0]].view("<f4")
    bits = _integers(payloads, varying, number) if number.varint else payloads.rows[:, slice(*number.span)]
    if number.dtype == "bfloat16":
        halves = bits.astype(np.uint16) if number.varint else bits.view("<u2")[:, 0]
        return (halves.astype(np.uint32) << 16).view(np.float32)
    dtype = np.dtype(number.dtype)
    return bits.astype(f"u{dtype.itemsize}").view(dtype) if number.varint else bits.view(dtype)[:, 0].copy()


def _places(starts: Places | range) -> Places:
    return np.arange(starts.start, starts.stop, starts.step) if isinstance(starts, range) else starts
