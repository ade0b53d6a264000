"""Reading the tensors of a step block by block and measuring each block: memory is a few buffers a thread, whatever the step holds."""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from gradclip_cli.clipping.dtypes import Decoder, Dtype, Floats
from gradclip_cli.clipping.norms import BLOCK, PowerSum, dot, exactly, power_sum, total
from gradclip_cli.clipping.ranks import Ranks
from gradclip_cli.clipping.store import Piece, StoredTensor, damaged, open_regular
from gradclip_cli.errors import GradclipError

# Bytes that are read at a time, while other threads measure: large beside a system call, and they stay in a cache until they are measured.
_SPAN_BYTES = 1 << 20
# Elements that are measured at a time. Between two calls of numpy a thread may have to wait for the interpreter, so these are few and long;
# longer, and the float64 copies no longer stay in a cache.
_CHUNK = 1 << 19
# What every stored number may be aligned to; without, numpy copies it first.
_ALIGNMENT = 16
# One thread reads at a time, which takes a third of the work on float32.
_MOST_THREADS = 4
_NUM_POSITIONS = 3
NUM_EXPONENTS = 2048
"""Bins of a histogram: bin k counts magnitudes in [2**(k - 1023), 2**(k - 1022)), bin 0 zeros and what is below 2**-1022."""


@dataclass(frozen=True, slots=True)
class Block:
    """`num` elements of a piece from element `start` on, as they are stored.

    Attributes:
        tensor: Its number in the step.
    """

    tensor: int
    piece: Piece
    dtype: Dtype
    start: int
    num: int

    @property
    def num_bytes(self) -> int:
        return self.num * self.dtype.num_bytes


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure beside the squares.

    Attributes:
        norm_type: p, a positive number or inf.
        clip_values: Bounds of value clipping, in the units of the stored numbers.
    """

    norm_type: float
    clip_values: tuple[float, ...] = ()
    histogram: bool = False


@dataclass(frozen=True, slots=True)
class ValueSums:
    """Of x clipped to [-v, v]: sum of x * clipped, sum of clipped^2, and how many elements were changed; only where all x are finite."""

    dot: float
    squared: float
    num_changed: int


@dataclass(frozen=True, slots=True)
class TensorSums:
    """What was measured of one tensor.

    Attributes:
        powers: Sum of |x|^p.
        squares: Sum of |x|^2.
        num_nan, num_inf, num_neg_inf: Elements that are not finite.
        positions: Of the first of those, at most three.
        clipped: One for each clip value.
    """

    powers: PowerSum
    squares: PowerSum
    num_nan: int
    num_inf: int
    num_neg_inf: int
    positions: tuple[tuple[int, ...], ...]
    clipped: tuple[ValueSums, ...]


# Columns of the table of blocks; three more for each clip value.
_POWER, _POWER_EXPONENT, _SQUARE, _SQUARE_EXPONENT, _NAN, _INF, _NEG_INF, _FIRST_POSITION = range(8)
_FIRST_CLIPPED = _FIRST_POSITION + _NUM_POSITIONS


def blocks_of(tensors: Sequence[StoredTensor]) -> list[Block]:
    """All blocks of a step; the cut depends on nothing but the tensors."""
    return [
        Block(i, piece, tensor.dtype, start, min(BLOCK, piece.numel - start))
        for i, tensor in enumerate(tensors)
        for piece in tensor.pieces
        for start in range(0, piece.numel, BLOCK)
    ]


def measure(tensors: Sequence[StoredTensor], wanted: Wanted, ranks: Ranks) -> tuple[list[TensorSums], npt.NDArray[np.int64] | None]:
    """Read every element once; with several ranks each reads a part, and all get the whole result.

    Returns:
        The sums, one a tensor, and, where wanted, the histogram, shape (NUM_EXPONENTS,).

    Raises:
        GradclipError: A file cannot be read to its end.
    """
    blocks = blocks_of(tensors)
    table = np.zeros((len(blocks), _FIRST_CLIPPED + 3 * len(wanted.clip_values)))
    histogram = np.zeros(NUM_EXPONENTS, np.int64)
    error = None
    try:
        _fill(table, histogram, blocks, wanted, ranks)
    except GradclipError as e:
        error = e
    ranks.raise_any(error)
    ranks.join(table)
    if wanted.histogram:
        ranks.join(histogram)
    sums = [_tensor_sums(wanted, rows, part) for rows, part in _by_tensor(table, blocks, len(tensors))]
    return sums, histogram if wanted.histogram else None


def _fill(table: Floats, histogram: npt.NDArray[np.int64], blocks: Sequence[Block], wanted: Wanted, ranks: Ranks) -> None:
    left = deque(share(blocks, ranks))
    num_threads = min(_num_threads(), len(left))
    # One thread reads at a time, always what comes next, and the others measure meanwhile: the kernel reads ahead of who goes straight on.
    turn = threading.Lock()

    def work(reader: Reader) -> None:
        measurer = _Measurer(wanted)
        while True:
            with turn:
                if not left:
                    histogram[:] += measurer.histogram
                    return
                span = left.popleft()
                try:
                    stored = measurer.read([blocks[i] for i in span], reader)
                except GradclipError:
                    left.clear()
                    raise
            with np.errstate(all="ignore"):
                for i, raw in zip(span, stored, strict=True):
                    measurer.measure(blocks[i], raw, table[i])

    with Reader() as reader:
        if num_threads < 2:
            work(reader)
            return
        pool = ThreadPoolExecutor(num_threads)
        try:
            for done in [pool.submit(work, reader) for _ in range(num_threads)]:
                done.result()
        finally:
            # After Ctrl-C what is left is not worth waiting for.
            with turn:
                left.clear()
            pool.shutdown()


def share(blocks: Sequence[Block], ranks: Ranks) -> list[range]:
    """The blocks of this rank, in spans that are read at once: neighbouring parts, of about the same number of bytes a rank."""
    ends = np.cumsum([b.num_bytes for b in blocks] or [0])
    first, last = (int(np.searchsorted(ends, ends[-1] * r // ranks.world_size, side="right")) for r in (ranks.rank, ranks.rank + 1))
    if ranks.rank == 0:
        first = 0
    if ranks.rank == ranks.world_size - 1:
        last = len(blocks)
    spans, begin, num = [], first, 0
    for i in range(first, last):
        num += blocks[i].num_bytes
        if num >= _SPAN_BYTES:
            spans.append(range(begin, i + 1))
            begin, num = i + 1, 0
    return [*spans, range(begin, last)] if begin < last else spans


def _num_threads() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, min(cores // max(int(processes) if processes.isdecimal() else 1, 1), _MOST_THREADS))


def _by_tensor(table: Floats, blocks: Sequence[Block], num_tensors: int) -> Iterator[tuple[Floats, Sequence[Block]]]:
    edges = np.searchsorted([b.tensor for b in blocks], range(num_tensors + 1))
    for first, last in zip(edges[:-1], edges[1:], strict=True):
        yield table[first:last], blocks[first:last]


def _tensor_sums(wanted: Wanted, rows: Floats, blocks: Sequence[Block]) -> TensorSums:
    def added(mantissa: int, exponent: int, p: float) -> PowerSum:
        return total((PowerSum(float(r[mantissa]), int(r[exponent])) for r in rows), p)

    positions = [b.piece.position(int(at) - 1) for r, b in zip(rows, blocks, strict=True) for at in r[_FIRST_POSITION:_FIRST_CLIPPED] if at]
    columns = range(_FIRST_CLIPPED, rows.shape[1], 3)
    return TensorSums(
        powers=added(_POWER, _POWER_EXPONENT, wanted.norm_type),
        squares=added(_SQUARE, _SQUARE_EXPONENT, 2.0),
        num_nan=int(rows[:, _NAN].sum()),
        num_inf=int(rows[:, _INF].sum()),
        num_neg_inf=int(rows[:, _NEG_INF].sum()),
        positions=tuple(sorted(positions)[:_NUM_POSITIONS]),
        clipped=tuple(ValueSums(exactly(rows[:, k]), exactly(rows[:, k + 1]), int(rows[:, k + 2].sum())) for k in columns),
    )


class Reader:
    """Reads blocks; keeps the last file open until its `with` block ends."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: BinaryIO | None = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        self._path = self._file = None

    def read(self, block: Block, out: npt.NDArray[np.uint8]) -> None:
        """Write the bytes of a block to `out`, shape (block.num_bytes,).

        Raises:
            GradclipError: The file ends before, or cannot be read.
        """
        path = block.piece.path
        if self._file is None or path != self._path:
            self.__exit__()
            self._file, self._path = _open_to_read_on(path), path
        view = out.data
        try:
            self._file.seek(block.piece.offset + block.start * block.dtype.num_bytes)
            while view and (got := self._file.readinto(view)):  # type: ignore[attr-defined]
                view = view[got:]
        except OSError as e:
            raise GradclipError(f"{path}: cannot be read ({e.strerror or e}); expected gradients", hint="copy it again") from e
        if view:
            raise damaged(path, "the end of the file while it was read", "the file to stay as it is", hint="is it being written?")


def _open_to_read_on(path: Path) -> BinaryIO:
    """A file that the kernel knows will be read from one end to the other."""
    file = os.fdopen(open_regular(path), "rb", buffering=0)
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
    return file


class _Measurer:
    """The buffers of one thread, and what is done to a block in them."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.histogram = np.zeros(NUM_EXPONENTS, np.int64)
        self._stored = np.empty(_SPAN_BYTES, np.uint8)
        self._values = np.empty(_CHUNK)
        self._scratch = np.empty(_CHUNK)
        self._decode = Decoder(_CHUNK)

    def read(self, blocks: Sequence[Block], reader: Reader) -> list[npt.NDArray[np.uint8]]:
        """The bytes of each block, overwritten by the next call."""
        starts = [0, *accumulate(-(-b.num_bytes // _ALIGNMENT) * _ALIGNMENT for b in blocks)]
        if self._stored.size < starts[-1]:
            self._stored = np.empty(starts[-1], np.uint8)
        parts = [self._stored[at : at + b.num_bytes] for at, b in zip(starts, blocks, strict=False)]
        for block, part in zip(blocks, parts, strict=True):
            reader.read(block, part)
        return parts

    def measure(self, block: Block, stored: npt.NDArray[np.uint8], row: Floats) -> None:
        """Write what is measured of a block to its row of the table."""
        powers, squares = [], []
        clipped: list[Floats] = []
        size = block.dtype.num_bytes
        for start in range(0, block.num, _CHUNK):
            values = self._values[: min(_CHUNK, block.num - start)]
            self._decode(stored[start * size : (start + len(values)) * size], block.dtype, values)
            square = power_sum(values, 2.0, self._scratch)
            squares.append(square)
            if math.isfinite(square.mantissa):
                powers.append(self._more(values, square, clipped))
            else:
                self._not_finite(values, block.start + start, row)
                powers.append(square)
        for column, sums, p in ((_POWER, powers, self.wanted.norm_type), (_SQUARE, squares, 2.0)):
            added = total(sums, p)
            row[column : column + 2] = added.mantissa, added.exponent
        if clipped:
            row[_FIRST_CLIPPED:] = [exactly(column) for column in np.transpose(clipped)]

    def _more(self, values: Floats, square: PowerSum, clipped: list[Floats]) -> PowerSum:
        """What needs magnitudes; returns the sum of |x|^p."""
        wanted = self.wanted
        if wanted.norm_type == 2 and not wanted.clip_values and not wanted.histogram:
            return square
        np.abs(values, out=values)
        if wanted.histogram:
            self._count(values)
        if wanted.clip_values:
            clipped.append(np.array([self._clipped(values, v) for v in wanted.clip_values]).ravel())
        return square if wanted.norm_type == 2 else power_sum(values, wanted.norm_type, self._scratch)

    def _count(self, magnitudes: Floats) -> None:
        # The exponent is what stands above the 52 bits of the mantissa.
        self.histogram += np.bincount(magnitudes.view(np.int64) >> 52, minlength=NUM_EXPONENTS)

    def _clipped(self, values: Floats, bound: float) -> tuple[float, float, float]:
        small = np.minimum(values, bound, out=self._scratch[: len(values)])
        return dot(values, small), dot(small, small), float(np.count_nonzero(values > bound))

    def _not_finite(self, values: Floats, start: int, row: Floats) -> None:
        finite = np.isfinite(values)
        if self.wanted.histogram:
            self._count(np.abs(values[finite]))
        bad = np.flatnonzero(~finite)
        found = values[bad]
        row[_NAN] += np.isnan(found).sum()
        row[_INF] += np.isposinf(found).sum()
        row[_NEG_INF] += np.isneginf(found).sum()
        free = np.flatnonzero(row[_FIRST_POSITION:_FIRST_CLIPPED] == 0)
        for place, at in zip(free, bad, strict=False):
            row[_FIRST_POSITION + place] = start + at + 1
