"""What the lines of one layout hold: the numbers that have a name, and what the names make of the line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradclip_cli.readers.text.format import Format

RANK, LABEL, COUNT, BAR, BAR_TOTAL, SCALE = "<rank>", "<label>", "<count>", "<bar>", "<bar total>", "<scale>"
"""Keys of our own; no printed key has angle brackets."""

TOTAL = "<total> "
"""Before a key: how many of it there will be (the 1000 of `iteration 3/1000`)."""


@dataclass(frozen=True, eq=False, slots=True)
class Field:
    """A number in a line.

    Attributes:
        start: Where it begins.
        pattern: Its text with every digit as 0.
        digits: Where the printed key has digits (`loss_2`).
    """

    start: int
    pattern: bytes
    digits: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """What the lines of one layout hold.

    Attributes:
        fields: By key, in order.
        shape: The keys it prints.
        length: Bytes in the line.
        format: Whose lines they look like.
        in_table: A row `| key | value |` of a table.
        rule: The line between two tables.
        header: The names above the columns of a table, in each way that the line can be parted.
        num_cells: How many cells a row below such a header has; its fields are called `<0>`, `<1>`, ...
        overflow: A loss scaler's message.
        says_nan: A message that the loss is no number or has diverged.
        texts: What stands where a loss or a norm has its number, by key: where the key ends, and the text.
        training: It holds a loss or a gradient norm of training.
        sums_up: It repeats what the lines of an epoch told.
        counts: It holds steps and epochs only.
        step: The key of its step counter, or None; an epoch is none.
        epoch: The key of its epoch, or None.
    """

    fields: Mapping[str, Field]
    shape: tuple[str, ...]
    length: int
    format: Format | None = None
    in_table: bool = False
    rule: bool = False
    header: tuple[tuple[str, ...], ...] = ()
    num_cells: int = 0
    overflow: bool = False
    says_nan: bool = False
    texts: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    training: bool = False
    sums_up: bool = False
    counts: bool = False
    step: str | None = None
    epoch: str | None = None

    @property
    def fixed(self) -> tuple[int, ...]:
        """Where the digits of its keys stand."""
        return tuple(i for f in self.fields.values() for i in f.digits)
