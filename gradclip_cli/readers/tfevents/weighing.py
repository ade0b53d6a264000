"""Whether thousands of records of one shape all match their checksums: they are added up and checked together.

The CRC is linear over GF(2) (see `crc32c`): the XOR of some messages has the XOR of their CRCs, but for the starting
value, which remains where their number is odd. Adding up costs a fraction of looking up every byte.

What could go unseen is damage that cancels out. Each record is therefore weighed twice, in two groups: by its number
modulo s and modulo s - 1. As s (s - 1) is at least the number of records, no two records share both groups, so that
damage in one, two or three records is found exactly as by their own CRCs. Damage in four or more goes unseen only
where they pair up in every group and the errors of each pair have the same CRC: for random errors a chance below
2^-90. Where a group is wrong, whoever asked checks the records one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import isqrt
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gradclip_cli.readers.tfevents import crc32c

Bytes = npt.NDArray[np.uint8]
Span = tuple[int, int]
_Number = TypeVar("_Number", np.uint8, np.uint32)


def all_match(rows: Bytes, varying: Bytes, spans: Sequence[Span], stored: crc32c.Crcs) -> bool:
    """Whether the spans of all rows have the CRCs that are stored for them.

    Args:
        rows: Contiguous, shape (n, width), n >= 2.
        varying: uint8, shape (width,): non-zero at least for every column whose bytes are not all equal.
        spans: Begin and end of each span in a row; of `crc32c.MIN_WIDTH` to `crc32c.MAX_WIDTH` bytes.
        stored: CRCs, unmasked, shape (n, number of spans).
    """
    varying = varying.copy()
    varying[[start for start, _ in spans]] = 0xFF  # so that there is something to look up in each
    columns = [start + np.flatnonzero(varying[start:stop]) for start, stop in spans]
    behind = np.concatenate([stop - 1 - of_span for of_span, (_, stop) in zip(columns, spans, strict=True)])
    firsts = [0, *accumulate(len(of_span) for of_span in columns[:-1])]
    common = np.array([crc32c.of_common(rows[0, start:stop], varying[start:stop]) for start, stop in spans], np.uint32)
    n = len(rows)
    num_groups = min(isqrt(n) + 2, n)
    for groups in (num_groups, num_groups - 1):
        sums = _add_up(rows, groups)[:, np.concatenate(columns)]
        crcs = np.bitwise_xor.reduceat(crc32c.table().take(sums + 256 * behind), firsts, axis=1)
        is_odd = (n - 1 - np.arange(groups)) // groups % 2 == 0
        crcs[is_odd] ^= common
        if not np.array_equal(crcs, _add_up(stored, groups)):
            return False
    return True


def _add_up(rows: npt.NDArray[_Number], groups: int) -> npt.NDArray[_Number]:
    """XOR of the rows i, i + groups, i + 2 groups, ... for each i below `groups`, which is at most the number of rows."""
    n, width = rows.shape
    whole = n - n % groups
    total: npt.NDArray[_Number] = np.bitwise_xor.reduce(rows[:whole].reshape(-1, groups * width), axis=0).reshape(groups, width)
    total[: n - whole] ^= rows[whole:]
    return total
