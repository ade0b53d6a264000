"""What a reader returns: the numbers of one source as they were logged, before anyone decides what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gradclip_cli.model.recorded import Recorded
from gradclip_cli.model.run import Damage, NormStage, Overflow, Sampling


@dataclass(frozen=True, eq=False, slots=True)
class Column:
    """One logged key.

    Attributes:
        at: int64, shape (n,), in logged order. The step of each value where `Log.by_step`, else the
            number of the row (line, record) it stood in, non-decreasing from 0.
        values: float64, shape (n,). A cell that was left blank is absent, a logged nan is here.
        rounded: The source printed these numbers rounded so that neighbours collide
            (`1K`, `1.08e+04`); matters for a step column.
    """

    at: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    rounded: bool = False


@dataclass(frozen=True, eq=False)
class Log:
    """Everything numeric in one source.

    Attributes:
        format: The reader's name.
        columns: By key, in the order of first appearance.
        by_step: True where `Column.at` holds steps (event files); False where it holds rows, and one
            of the columns may be the step.
        step_key: The key that is the step, where the format fixes it.
        roles: Name of a series (`loss`, `grad_norm`, ...) -> key, where the format fixes it.
        norm_stage, stage_reason: Where in the loop this format takes its norm, and how we know.
        sampling: Series name -> what a value stands for, where the format fixes it.
        max_norm: The clipping bound, where the source tells it.
        steps_per_epoch: Where rows count the step within an epoch and the source says how many there are.
        empty: Keys called like a loss or a norm that hold no number -> what they hold instead.
        recorded: What only our own recorder knows.
    """

    format: str
    columns: Mapping[str, Column]
    by_step: bool = False
    step_key: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    norm_stage: NormStage = NormStage.UNKNOWN
    stage_reason: str = ""
    sampling: Mapping[str, Sampling] = field(default_factory=dict)
    max_norm: float | None = None
    steps_per_epoch: int | None = None
    overflows: tuple[Overflow, ...] = ()
    damage: tuple[Damage, ...] = ()
    notes: tuple[str, ...] = ()
    empty: Mapping[str, str] = field(default_factory=dict)
    recorded: Recorded | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A file as a reader sees it.

    Attributes:
        path: The file.
        head: Its first 64 KiB, decompressed where the file is gzip; binary formats look here.
        text: `head` decoded (byte-order mark, UTF-16, undecodable bytes replaced), "" where it looks
            binary; text formats look here.
        damage: What `read_bytes` could not unpack is added here.
    """

    path: Path
    head: bytes
    text: str
    damage: list[Damage] = field(default_factory=list)

    def read_bytes(self) -> bytes:
        """The whole file, decompressed where it is gzip.

        Raises:
            GradclipError: Where it cannot be opened, or unpacks to more than a sane multiple of its size.
        """
        from gradclip_cli.readers.open import read_bytes

        data, damage = read_bytes(self.path)
        self.damage[:] = damage
        return data

    def read_utf8(self) -> bytes:
        """The whole file as UTF-8 bytes without a byte-order mark, whatever it was encoded in. Undecodable bytes stay as they are."""
        from gradclip_cli.readers.open import to_utf8

        return to_utf8(self.read_bytes())


@dataclass(frozen=True, slots=True)
class Wanted:
    """Keys the user named with --loss, --grad-norm, --lr, --step (None: find them).

    A reader may use it, with `names.worth_reading`, to leave out columns nobody will ask for.
    """

    loss: str | None = None
    grad_norm: str | None = None
    lr: str | None = None
    step: str | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """A row of the table in `readers/__init__.py`.

    Attributes:
        name: What reports call the format.
        summary: One line for the help.
        claims: Whether the content is of this format. Asked in the table's order; the first yes wins.
        read: The whole file. Raises GradclipError where nothing of it is readable; damage that leaves
            something readable goes into `Log.damage`.
    """

    name: str
    summary: str
    claims: Callable[[Source], bool]
    read: Callable[[Source, Wanted], Log]
