"""Where the records of an event file (TFRecord) begin and end, damage included.

A record is: length (uint64), masked CRC-32C of the length, payload, masked CRC-32C of the payload; all little endian.
The next record can only be found by adding up lengths, one after the other. Three ways to do that, by speed:

- *cycles*: a training loop logs the same tags in every step, so the record lengths repeat. k guessed cycles are
  looked at as one (k, P) matrix of bytes, without copying; that all its header columns hold the expected constants
  proves the guess, because each header leads to the next.
- *lanes*: a stretch without such a rhythm is cut into lanes of some 16 KiB. In each the first valid header is
  searched, and all lanes are walked at the same time, one numpy step for one record of every lane. A lane is proved
  by ending exactly where the next one begins.
- *walking*: record by record, in Python, for everything else; where a header is wrong, the next place with a valid
  header and a valid payload is searched.

Every header's checksum is verified here; the checksums of the payloads are left to whoever takes the records,
except while searching.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradclip_cli.readers.tfevents import crc32c
from gradclip_cli.readers.tfevents.words import FOOTER, HEADER

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

_HEADER = struct.Struct("<QI")

# The walk looks for a rhythm after so many records; looking in vain so often hands over to the lanes.
_LOOK = 64
_MAX_MISSES = 16
# Longer cycles are better served by lanes: numpy is called some 60 times for each record of a cycle.
_MAX_PERIOD = 16
_MAX_CYCLE_BYTES = 4096
_FIRST_CYCLES = 1024
_MIN_CYCLES = 64
# Larger arrays than 128 KiB cost a visit to the operating system each, and there are eight bytes for each cycle.
_MAX_CYCLES = 16_000
_CYCLES_BYTES = 1 << 22
_STRIP_BYTES = 1 << 16

_LANE_BYTES = 1 << 14
_MAX_LANES = 1024
_MIN_LANES = 16

# A search looks at this much of the file at once, and at payloads of this size in all.
_SEARCH_BYTES = 1 << 16
_SEARCH_PAYLOAD = 1 << 22
# Searching may check this many times the file's size in payloads: only a forged file has more that overlap.
_SEARCH_FACTOR = 4
# Record lengths below this have the checksum of their header in a table.
_SHORT = 4096


@dataclass(frozen=True, eq=False, slots=True)
class Cycles:
    """Equally long cycles of records, one behind the other.

    Attributes:
        start: Where the first begins.
        rows: uint8, shape (k, P): a cycle a row, a view of the file.
        varying: uint8, shape (P,): the bits that are not the same in all rows.
        sizes: Bytes of each record of a cycle, header and footer included; their sum is P.
    """

    start: int
    rows: Bytes
    varying: Bytes
    sizes: tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Records:
    """Any records, in any order.

    Attributes:
        starts, sizes: int64, shape (n,); sizes include header and footer.
    """

    starts: Places
    sizes: Places


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes that belong to no record.

    Attributes:
        start, stop: The bytes.
        claimed: Size of the record that a valid header at `start` announces, where it ends behind the file; else 0.
    """

    start: int
    stop: int
    claimed: int


def varying_bits(rows: Bytes) -> Bytes:
    """The bits in each column of a contiguous matrix, shape (n, width), n >= 1, that are not the same in all rows."""
    n, width = rows.shape
    # Folded in strips that stay in the cache; whole strips are one long vector for numpy.
    strip = min(max(_STRIP_BYTES // width, 1), n)
    whole = n - n % strip
    strips = rows[:whole].reshape(-1, strip * width)
    either = np.bitwise_or.reduce(strips, axis=0).reshape(strip, width)
    both = np.bitwise_and.reduce(strips, axis=0).reshape(strip, width)
    either[: n - whole] |= rows[whole:]
    both[: n - whole] &= rows[whole:]
    while len(either) > 1:
        # The halves overlap by a row where the number is odd, which changes neither OR nor AND.
        half = (len(either) + 1) // 2
        either, both = either[:half] | either[-half:], both[:half] & both[-half:]
    varying: Bytes = either[0] ^ both[0]
    return varying


class Framing:
    """Iterating yields `Cycles` and `Records` that together hold every record of the file once.

    Attributes:
        gaps: What was skipped, in the order of the file; filled while iterating.
    """

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._size = len(data)
        self._lengths = np.ndarray((max(self._size - 7, 0),), "<i8", data, strides=(1,))
        self._crcs = np.ndarray((max(self._size - 3, 0),), "<u4", data, strides=(1,))
        self._view = data.data
        self._short = crc32c.of_lengths(np.arange(_SHORT))
        self._short_list = self._short.tolist()
        self._walked: list[tuple[int, int]] = []
        self._previous = (0, 0)
        self._found = -1
        self._search_budget = _SEARCH_FACTOR * self._size + _SEARCH_PAYLOAD
        self._searched = (0, 0, np.empty(0, np.int64))
        self.gaps: list[Gap] = []

    def __iter__(self) -> Iterator[Cycles | Records]:
        at = misses = 0
        while at < self._size:
            at = self._walk(at, self._size, _LOOK)
            misses += 1
            for cycles in self._cycles(at, self._rhythm()):
                yield cycles
                at += cycles.rows.size
                misses = 0
            if misses >= _MAX_MISSES and self._size - at >= _MIN_LANES * _LANE_BYTES:
                at, records = self._lanes(at)
                yield records
                misses = _MAX_MISSES // 2
            if len(self._walked) >= 1 << 16 or at >= self._size:
                walked = np.array(self._walked, np.int64).reshape(-1, 2)
                self._walked.clear()
                yield Records(walked[:, 0], walked[:, 1])

    def _walk(self, at: int, stop: int, max_records: int) -> int:
        """Record by record to `stop` or a little further. Returns where the next record begins."""
        for _ in range(max_records):
            if at >= stop:
                break
            size = self._record_size(at)
            if 0 < size <= self._size - at:
                self._previous = (at, size)
                self._walked.append(self._previous)
                at += size
            else:
                at = self._skip(at, size)
        return at

    def _record_size(self, at: int) -> int:
        """Size of the record at a place, or 0 where there is no valid header. It may be more than the file has."""
        if self._size - at < HEADER:
            return 0
        length, crc = _HEADER.unpack_from(self._view, at)
        expected = self._short_list[length] if length < _SHORT else int(crc32c.of_lengths(np.array([length], np.uint64))[0])
        return int(HEADER + length + FOOTER) if crc == expected else 0

    # -- cycles ------------------------------------------------------------------------------------------------

    def _rhythm(self) -> tuple[int, ...]:
        """The sizes of the records of one cycle, in the order in which they come next; empty where there is no rhythm."""
        recent = [size for _, size in self._walked[-_LOOK:]]
        for period in range(1, _MAX_PERIOD + 1):
            if len(recent) == _LOOK and recent[period:] == recent[:-period]:
                return tuple(recent[-period:])
        return ()

    def _cycles(self, at: int, sizes: tuple[int, ...]) -> Iterator[Cycles]:
        """As many cycles as follow, in blocks."""
        period = sum(sizes)
        if not 0 < period <= _MAX_CYCLE_BYTES:
            return
        header, is_header = self._cycle_headers(sizes)
        fewest = k = min(_FIRST_CYCLES, (self._size - at) // period)
        if self._record_size(at + (k - 1) * period) != sizes[0]:
            return
        while k >= _MIN_CYCLES:
            rows = self._data[at : at + k * period].reshape(k, period)
            varying = varying_bits(rows)
            lasts = not varying[is_header].any() and bool((rows[0, is_header] == header).all())
            if not lasts:
                k = self._num_right(rows, sizes)
                if k < fewest:
                    return
                rows = rows[:k]
                varying = varying_bits(rows)
            yield Cycles(at, rows, varying, sizes)
            at += k * period
            self._previous = (at - sizes[-1], sizes[-1])
            if not lasts:
                return
            fewest = _MIN_CYCLES
            k = min(max(_CYCLES_BYTES // period, _FIRST_CYCLES), _MAX_CYCLES, (self._size - at) // period)

    def _num_right(self, rows: Bytes, sizes: tuple[int, ...]) -> int:
        """How many cycles there are before the first with a wrong header."""
        right = np.ones(len(rows), np.bool_)
        lengths = np.array(sizes) - (HEADER + FOOTER)
        first = 0
        for size, length, crc in zip(sizes, lengths, self._expected_crcs(lengths), strict=True):
            right &= rows[:, first : first + 8].view("<i8")[:, 0] == length
            right &= rows[:, first + 8 : first + HEADER].view("<u4")[:, 0] == crc
            first += size
        return len(rows) if right.all() else int(right.argmin())

    def _cycle_headers(self, sizes: tuple[int, ...]) -> tuple[Bytes, npt.NDArray[np.bool_]]:
        """The header bytes of a cycle, and which of its columns they stand in."""
        lengths = np.array(sizes) - (HEADER + FOOTER)
        crcs = self._expected_crcs(lengths)
        headers = b"".join(_HEADER.pack(*header) for header in zip(lengths.tolist(), crcs.tolist(), strict=True))
        is_header = np.concatenate([np.arange(size) < HEADER for size in sizes])
        return np.frombuffer(headers, np.uint8), is_header

    # -- lanes -------------------------------------------------------------------------------------------------

    def _lanes(self, at: int) -> tuple[int, Records]:
        """The records of the next some 16 MiB, and where the one behind them begins."""
        num_lanes = min((self._size - at) // _LANE_BYTES, _MAX_LANES)
        bounds = self._headers_behind(at + _LANE_BYTES * np.arange(1, num_lanes))
        bounds = np.concatenate([[at], bounds])
        starts, counts, arrived = self._walk_lanes(bounds[:-1], bounds[1:])
        lane = np.repeat(np.arange(len(counts)), counts)
        lengths = self._lengths[starts]
        proved = arrived
        proved[lane[self._crcs[starts + 8] != self._expected_crcs(lengths)]] = False
        ends = np.cumsum(counts)
        for k, (begin, stop) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
            if at == begin and proved[k]:
                at = stop
                last = ends[k] - 1
                self._previous = (int(starts[last]), int(lengths[last]) + HEADER + FOOTER)
            else:
                proved[k] = False
                at = self._walk(at, stop, stop)
        if len(bounds) == 1:
            at = self._walk(at, self._size, _LOOK)
        kept = proved[lane]
        return at, Records(starts[kept], lengths[kept] + (HEADER + FOOTER))

    def _headers_behind(self, places: Places) -> Places:
        """The first valid header at or behind each place, where there is one before the next lane; increasing."""
        found = []
        offset, width = 0, 64
        while len(places) and offset < _LANE_BYTES:
            looked_at = places[:, None] + np.arange(offset, min(offset + width, _LANE_BYTES))
            valid = self._is_header(looked_at)
            hit = valid.any(axis=1)
            found.append(looked_at[hit, valid[hit].argmax(axis=1)])
            places = places[~hit]
            offset += width
            width = max(64, min(2 * width, (1 << 17) // max(len(places), 1)))
        return np.sort(np.concatenate(found)) if found else places

    def _walk_lanes(self, at: Places, stops: Places) -> tuple[Places, Places, npt.NDArray[np.bool_]]:
        """Follow the lengths in all lanes at once.

        Returns:
            Where records start, lane by lane; how many those are in each lane; whether the lane arrived at its stop.
        """
        end = self._size - HEADER
        steps = [at]
        # A lane of smallest records takes this many steps; a longer one is lost in damage.
        for _ in range(2 * _LANE_BYTES // (HEADER + FOOTER)):
            if not (at < stops).any():
                break
            length = np.minimum(self._lengths[at].view(np.uint64), np.uint64(self._size)).view(np.int64)
            at = np.minimum(at + length + (HEADER + FOOTER), end)
            steps.append(at)
        visited = np.array(steps).T.copy()
        inside = visited < stops[:, None]
        counts = inside.sum(axis=1)
        last = visited[np.arange(len(stops)), np.minimum(counts, len(steps) - 1)]
        return visited[inside], counts, last == stops

    # -- searching ---------------------------------------------------------------------------------------------

    def _is_header(self, places: Places) -> npt.NDArray[np.bool_]:
        """Whether a valid header of a record that ends within the file stands at each place."""
        if self._size < HEADER + FOOTER:
            return np.zeros(places.shape, np.bool_)
        lengths = self._lengths[np.minimum(places, self._size - 8)]
        valid = (lengths >= 0) & (lengths <= self._size - (HEADER + FOOTER) - places)
        maybe = np.nonzero(valid)
        valid[maybe] = self._crcs[places[maybe] + 8] == self._expected_crcs(lengths[maybe])
        return valid

    def _expected_crcs(self, lengths: Places) -> npt.NDArray[np.uint32]:
        crcs = self._short[np.clip(lengths, 0, _SHORT - 1)]
        long = np.flatnonzero((lengths < 0) | (lengths >= _SHORT))
        crcs[long] = crc32c.of_lengths(lengths[long])
        return crcs

    def _skip(self, at: int, claimed: int) -> int:
        """Where the next whole record begins when there is none at a place."""
        start, size = self._previous
        # Bytes may be missing from the record before, so that its length leads over the beginning of the next.
        behind = start if size and start + size == at and not self._is_whole(start, size) else at
        found = self._found = self._next_whole(behind + 1)
        if found > at:
            self.gaps.append(Gap(at, found, claimed))
        return found

    def _is_whole(self, start: int, size: int) -> bool:
        if start == self._found:
            return True
        self._search_budget -= size
        return self._search_budget > 0 and bool(self._whole(np.array([start]))[0])

    def _next_whole(self, at: int) -> int:
        """The first place at or behind `at` with a record whose checksums both match; the end of the file if none."""
        while at < self._size and self._search_budget > 0:
            start, stop, found = self._searched
            if not start <= at < stop:
                self._searched = start, stop, found = self._search(at)
            i = int(np.searchsorted(found, at))
            if i < len(found):
                return int(found[i])
            at = stop
        return self._size

    def _search(self, at: int) -> tuple[int, int, Places]:
        """A stretch of the file from `at` on, and where whole records begin in it."""
        places = np.arange(at, min(at + _SEARCH_BYTES, self._size))
        stop = int(places[-1]) + 1
        self._search_budget -= len(places) // (HEADER + FOOTER)
        places = places[self._is_header(places)]
        payload = np.cumsum(self._lengths[places])
        num_checked = max(int(np.searchsorted(payload, _SEARCH_PAYLOAD)), 1)
        if num_checked < len(places):
            stop = int(places[num_checked])
            places = places[:num_checked]
        if len(places):
            self._search_budget -= int(payload[num_checked - 1])
            places = places[self._whole(places)]
        return at, stop, places

    def _whole(self, starts: Places) -> npt.NDArray[np.bool_]:
        """Whether the payloads of records with valid headers match their checksums."""
        lengths = self._lengths[starts]
        stored = crc32c.unmasked(self._crcs[starts + HEADER + lengths])
        whole: npt.NDArray[np.bool_] = crc32c.of_spans(self._data, starts + HEADER, lengths) == stored
        return whole
