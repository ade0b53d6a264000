"""Neighbouring bytes of many records, copied out of the file once for all that need them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_WORD = np.dtype("<u4")

HEADER = 12
FOOTER = 4
"""Bytes around the payload of a record."""


class Words:
    """The columns of a matrix of bytes, four at a time.

    Walking over the file once for a column is what reading costs; checksums, steps and values share the result.

    Attributes:
        rows: uint8, shape (n, width), contiguous within a row.
    """

    def __init__(self, rows: npt.NDArray[np.uint8]) -> None:
        self.rows = rows
        self._words: dict[int, npt.NDArray[np.uint32]] = {}

    @classmethod
    def of_records(cls, records: npt.NDArray[np.uint8]) -> tuple[Words, npt.NDArray[np.uint32]]:
        """The payloads of whole records, a row each, and the masked CRCs behind them, shape (n,).

        The last word of the payload, which mostly is the value, comes along without another walk over the file.
        """
        payloads = cls(records[:, HEADER:-FOOTER])
        last, crcs = records[:, -FOOTER - 4 :].view("V8")[:, 0].copy().view(_WORD).reshape(-1, 2).T
        payloads._words[payloads.rows.shape[1] - 4] = last.copy()
        return payloads, crcs.copy()

    def __getitem__(self, column: int) -> npt.NDArray[np.uint32]:
        """Columns `column` to `column + 3` as little-endian numbers, shape (n,), not to be written to."""
        word = self._words.get(column)
        if word is None:
            word = self._words[column] = self.rows[:, column : column + 4].view(_WORD)[:, 0].copy()
        return word

    def column(self, column: int) -> npt.NDArray[np.uint8]:
        """One column, shape (n,), not to be written to. There are four columns or more."""
        for first in range(column, column - 4, -1):
            if first in self._words:
                break
        else:
            first = min(column, self.rows.shape[1] - 4)
        return self[first].view(np.uint8)[column - first :: 4]
