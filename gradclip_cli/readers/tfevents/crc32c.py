"""CRC-32C of very many records at once, exact for each of them.

The algebra that makes this fast. A CRC register that starts at zero is a linear function of the message over
GF(2), the field where adding is XOR: crc(a ^ b) = crc(a) ^ crc(b) for messages of equal length. A message is the
XOR of its single bytes, each padded with zeros to its place, so

    crc(message) = XOR over all places i of table[d_i][message[i]],  d_i = number of bytes behind place i,

where `table[d][b]` is the register after byte b and d zero bytes: 256 numbers for each distance. Three things follow.

1. Many records of equal length that agree in most places (the header, the tag, the high bytes of the clock): the
   sum over those places is the same for all and computed once; only the places that differ are looked up, each
   for all records in one numpy call.
2. The sum of many records of equal length has the sum of their CRCs: `weighing` tells by that whether all are right.
3. Zeros in front of a message change nothing while the register is zero. So records of any lengths can be cut
   into pieces of one width from their ends, the first piece padded in front, and the registers of the pieces be
   added up after each was moved over the zero bytes that stand for the pieces behind it.

The real CRC-32C starts at 0xFFFFFFFF, which is the same as complementing the first four bytes of the message and
starting at zero, and it complements the result.

The reflected polynomial is 0x82F63B78 (RFC 3720, appendix B.4). TFRecord files store CRCs "masked":
rotated right by 15 bits plus a constant (TensorFlow, core/lib/hash/crc32c.h).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gradclip_cli.readers.tfevents.words import Words

Bytes = npt.NDArray[np.uint8]
Crcs = npt.NDArray[np.uint32]
Places = npt.NDArray[np.int64]

_POLYNOMIAL = np.uint32(0x82F63B78)
_MASK_DELTA = np.uint32(0xA282EAD8)
_ALL_ONES = np.uint32(0xFFFFFFFF)

MIN_WIDTH, MAX_WIDTH = 4, 512
"""What `of_rows` takes; the upper bound is a power of two."""

_PIECE = 64
_PIECES_AT_ONCE = 4096


def _move(crcs: Crcs, operator: Crcs) -> Crcs:
    """Registers moved over as many zero bytes as the operator, shape (4, 256), stands for."""
    moved: Crcs = operator[0].take(crcs & 0xFF)
    moved ^= operator[1].take((crcs >> 8) & 0xFF)
    moved ^= operator[2].take((crcs >> 16) & 0xFF)
    moved ^= operator[3].take(crcs >> 24)
    return moved


@lru_cache(maxsize=1)
def table() -> Crcs:
    """`table[d][b]`, the register after byte b and d zero bytes; shape (MAX_WIDTH, 256)."""
    after = np.empty((MAX_WIDTH, 256), np.uint32)
    after[0] = np.arange(256)
    for _ in range(8):
        after[0] = np.where(after[0] & 1, (after[0] >> 1) ^ _POLYNOMIAL, after[0] >> 1)
    for d in range(1, 4):
        after[d] = after[0, after[d - 1] & 0xFF] ^ (after[d - 1] >> 8)
    d = 4
    while d < MAX_WIDTH:
        # A register is like four bytes of message, the first of which has d - 1 bytes behind it in d zero bytes.
        after[d : 2 * d] = _move(after[:d], after[d - 4 : d][::-1])
        d *= 2
    return after


def unmasked(stored: Crcs) -> Crcs:
    """The CRCs that a file stores masked."""
    crcs = stored - _MASK_DELTA
    low = crcs << np.uint32(15)
    crcs >>= np.uint32(17)
    crcs |= low
    return crcs


def masked(crcs: Crcs) -> Crcs:
    """As a file stores them."""
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + _MASK_DELTA


def of_lengths(lengths: npt.NDArray[np.integer]) -> Crcs:
    """The masked CRC-32C of record lengths, as a record header stores it behind the length (uint64, little endian)."""
    if not len(lengths):
        return np.empty(0, np.uint32)
    numbers = lengths.astype("<u8")
    varying = np.bitwise_or.reduce(numbers, keepdims=True) ^ np.bitwise_and.reduce(numbers, keepdims=True)
    return masked(of_rows(Words(numbers.view(np.uint8).reshape(-1, 8)), varying.view(np.uint8)))


def of_rows(words: Words, varying: Bytes) -> Crcs:
    """The CRC-32C of each row.

    Args:
        words: One row or more of MIN_WIDTH to MAX_WIDTH bytes. The fewer columns vary, the faster.
        varying: uint8, shape (width,): non-zero at least for every column whose bytes are not all equal.
    """
    n, width = words.rows.shape
    crcs = np.full(n, of_common(words.rows[0], varying), np.uint32)
    index, found = np.empty(n, np.intp), np.empty(n, np.uint32)
    for column in np.flatnonzero(varying).tolist():
        index[:] = words.column(column)
        # No index is out of bounds; "wrap" spares the check, and with it a copy.
        crcs ^= table()[width - 1 - column].take(index, out=found, mode="wrap")
    return crcs


def of_common(row: Bytes, varying: Bytes) -> np.uint32:
    """The CRC-32C of a row whose varying columns, as `of_rows` has them, are zero."""
    common = np.flatnonzero(varying == 0)
    # The starting value is the complement of the first four bytes.
    start = np.bitwise_xor.reduce(table()[len(row) - 4 : len(row), 0xFF]) ^ _ALL_ONES
    return np.bitwise_xor.reduce(table()[len(row) - 1 - common, row[common]]) ^ start  # type: ignore[no-any-return]


def of_spans(data: Bytes, starts: Places, lengths: Places) -> Crcs:
    """The CRC-32C of each span `data[start : start + length]`; spans may be of any length.

    Args:
        data: uint8, shape (size,).
        starts, lengths: int64, shape (n,), n >= 1.
    """
    if len(data) < _PIECE:
        data = np.pad(data, (0, _PIECE - len(data)))
    pieces = np.maximum(-(-lengths // _PIECE), 1)
    last = np.cumsum(pieces) - 1
    span = np.repeat(np.arange(len(starts)), pieces)
    behind = last[span] - np.arange(len(span))
    # Where the span begins within its piece: negative for all but the first piece.
    begin = behind * _PIECE + (_PIECE - lengths[span])
    registers = np.empty(len(span), np.uint32)
    for block in range(0, len(span), _PIECES_AT_ONCE):
        part = slice(block, block + _PIECES_AT_ONCE)
        registers[part] = _of_pieces(data, starts[span[part]], begin[part], lengths[span[part]])
    _move_over_pieces(registers, behind)
    crcs: Crcs = np.bitwise_xor.reduceat(registers, last - pieces + 1)
    short = lengths < 4
    crcs[short] ^= _tail_of_start(lengths[short])
    return crcs ^ _ALL_ONES


def _of_pieces(data: Bytes, starts: Places, begin: Places, lengths: Places) -> Crcs:
    """The register after each piece taken alone: zero before the span, the span's first four bytes complemented."""
    windows = np.ndarray((len(data) - _PIECE + 1,), f"V{_PIECE}", data, strides=(1,))
    at = starts - begin
    rows = windows[np.maximum(at, 0)].view(np.uint8).reshape(-1, _PIECE)
    for i in np.flatnonzero(at < 0).tolist():  # only spans in the first 64 bytes of the file
        rows[i] = np.roll(rows[i], -at[i])
    heads = np.flatnonzero(begin > -4)
    place = np.arange(_PIECE) - begin[heads, None]
    head = np.where(place < 0, 0, rows[heads])
    head ^= np.where((place >= 0) & (place < np.minimum(lengths[heads, None], 4)), 0xFF, 0).astype(np.uint8)
    rows[heads] = head
    registers = np.zeros(len(rows), np.uint32)
    for column in range(_PIECE):
        registers ^= table()[_PIECE - 1 - column].take(rows[:, column])
    return registers


def _move_over_pieces(registers: Crcs, behind: Places) -> None:
    """Move each register over the zeros that stand for the pieces behind it, in place: square and multiply."""
    operator = table()[_PIECE - 4 : _PIECE][::-1]
    for bit in range(int(behind.max()).bit_length()):
        moving = np.flatnonzero(behind >> bit & 1)
        registers[moving] = _move(registers[moving], operator)
        operator = np.stack([_move(part, operator) for part in operator])


def _tail_of_start(width: Places) -> Crcs:
    """What the starting register adds to messages shorter than the four bytes it complements."""
    shift = np.minimum(8 * width, 32).astype(np.uint64)
    return (np.uint64(0xFFFFFFFF) >> shift).astype(np.uint32)
