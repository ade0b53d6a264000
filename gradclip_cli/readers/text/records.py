"""The lines of a log that hold its series, told from the configuration, code and prose around them."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import numpy.typing as npt

from gradclip_cli.model.run import GRAD_NORM, LOSS, Values
from gradclip_cli.readers import names
from gradclip_cli.readers.text.fields import LABEL, RANK, Field, Layout
from gradclip_cli.readers.text.format import TEXT, Format
from gradclip_cli.readers.text.layouts import Lines, Positions, values_at
from gradclip_cli.readers.text.ranks import far_above, nearest

Mask = npt.NDArray[np.bool_]

_SEPARATOR = re.compile(rb"[\s|,;)\]}'\"]")
# A shape that occurs this often is no accident.
_REPEATS = 3
# Printed code and configuration may repeat too, with the same numbers; not this often.
_SURELY = 10
# Lines read at a time: what fits a cache.
_BLOCK = 1 << 16
# A counter may be off this often (a restart, a torn line) and is a counter still.
_SLIPS = 0.02


class Records:
    """The lines of a scanned log, and the numbers in them.

    Attributes:
        layouts: What each layout holds.
        layout: int32, shape (n,): the layout of each line.
        alive: bool, shape (n,): the lines that count. What finds a line to be none of a series strikes it out.
        notes: What was struck out and why.
    """

    def __init__(self, text: bytes, lines: Lines[Layout]) -> None:
        self._text = text
        self._starts = lines.starts
        self.layouts = lines.layouts
        self.layout = lines.layout
        self.alive = np.ones(len(lines.starts), bool)
        self.notes: list[str] = []
        self._read: dict[str, tuple[Positions, Values, bool]] = {}
        self._fields: dict[str, list[tuple[int, Field]]] = {}
        kinds, first = np.unique(lines.layout, return_index=True)
        for i in kinds[np.argsort(first)].tolist():
            for key, field in self.layouts[i].fields.items():
                self._fields.setdefault(key, []).append((i, field))

    def __len__(self) -> int:
        return len(self._starts)

    def line(self, i: int) -> str:
        """A line, bytes seen as Latin-1."""
        begin = int(self._starts[i])
        return self._text[begin : begin + self.layouts[self.layout[i]].length].decode("latin-1")

    def line_number(self, i: int) -> int:
        """Counted from 1, in the whole text."""
        return 1 + self._text.count(b"\n", 0, int(self._starts[i]))

    @property
    def keys(self) -> list[str]:
        """In the order of first appearance."""
        return list(self._fields)

    def of_layouts(self, which: list[bool]) -> Mask:
        """The living lines of some layouts, bool, shape (n,)."""
        return self.alive & np.array(which, bool)[self.layout] if which else self.alive.copy()

    @property
    def training(self) -> Mask:
        return self.of_layouts([layout.training for layout in self.layouts])

    @property
    def main(self) -> Mask:
        """The lines of the most frequent shape of training lines, bool, shape (n,)."""
        counts = np.bincount(self.layout[self.training], minlength=len(self.layouts))
        shapes: Counter[tuple[str, ...]] = Counter()
        for layout, n in zip(self.layouts, counts.tolist(), strict=True):
            shapes[layout.shape] += n
        most = max(shapes, key=lambda s: shapes[s], default=())
        return self.training & self.of_layouts([layout.shape == most for layout in self.layouts])

    def values(self, key: str) -> tuple[Positions, Values, bool]:
        """Index of the line, value, and whether it was printed rounded, wherever a living line has a key."""
        if key not in self._read:
            self._read[key] = self._parse(key)
        at, values, rounded = self._read[key]
        living = self.alive[at]
        return (at, values, rounded) if living.all() else (at[living], values[living], rounded)

    def once_only(self) -> set[str]:
        """Keys that a single line prints: no series, and there may be one a line."""
        num_lines = np.bincount(self.layout, minlength=len(self.layouts)).tolist()
        return {key for key, fields in self._fields.items() if sum(num_lines[i] for i, _ in fields) < 2}

    def _parse(self, key: str) -> tuple[Positions, Values, bool]:
        offset = np.zeros(len(self.layouts), np.int64)
        printed = np.full(len(self.layouts), -1, np.int32)
        patterns: dict[bytes, int] = {}
        for i, field in self._fields.get(key, ()):
            offset[i] = field.start
            printed[i] = patterns.setdefault(field.pattern, len(patterns))
        names = list(patterns)
        found: list[Positions] = []
        made: list[Values] = []
        rounded = False
        for low in range(0, len(self), _BLOCK):
            kinds = self.layout[low : low + _BLOCK]
            of_line = printed[kinds]
            begin = self._starts[low : low + _BLOCK] + offset[kinds]
            at = np.flatnonzero(of_line >= 0)
            if len(at) < len(of_line):
                of_line, begin = of_line[at], begin[at]
            values = np.empty(len(at))
            present = np.flatnonzero(np.bincount(of_line)).tolist()
            for i in present:
                some = np.flatnonzero(of_line == i) if len(present) > 1 else slice(None)
                values[some] = values_at(self._text, begin[some], names[i])
                rounded = rounded or _is_rounded(names[i], values[some])
            if present:
                found.append(low + at)
                made.append(values)
        if not found:
            return np.empty(0, np.int64), np.empty(0), False
        return np.concatenate(found), np.concatenate(made), rounded

    def dense(self, key: str | None) -> Values:
        """A key's value in every line, float64, shape (n,); NaN where it is not logged."""
        out = np.full(len(self), np.nan)
        if key is not None:
            at, values, _ = self.values(key)
            out[at] = values
        return out

    def main_format(self) -> Format:
        """Whose lines most of the training lines are."""
        votes: Counter[Format | None] = Counter()
        counts = np.bincount(self.layout[self.training], minlength=len(self.layouts))
        for layout, n in zip(self.layouts, counts.tolist(), strict=True):
            votes[layout.format] += n
        return max(votes, key=lambda f: (votes[f], f is not None), default=None) or TEXT

    def strike_summaries(self) -> None:
        """Strike out the lines that sum up an epoch, where it has lines of its own."""
        summaries = self.of_layouts([layout.sums_up for layout in self.layouts])
        if not summaries.any():
            return
        if (self.training & ~summaries).any():
            self.alive &= ~summaries
        else:
            self.notes.append("the log has a line an epoch: means over it")

    def strike_chance_lines(self) -> None:
        """Strike out lines whose shape, the keys they print, does not repeat as that of a series does."""
        counts = np.bincount(self.layout[self.alive], minlength=len(self.layouts)).tolist()
        num_lines: Counter[tuple[str, ...]] = Counter()
        first: dict[tuple[str, ...], Layout] = {}
        for layout, n in zip(self.layouts, counts, strict=True):
            if layout.shape and not layout.counts and not layout.in_table:
                num_lines[layout.shape] += n
                first.setdefault(layout.shape, layout)
        training = [s for s in num_lines if first[s].training]
        main = max(training, key=lambda s: (first[s].step is not None and num_lines[s] >= _REPEATS, num_lines[s]), default=())
        main_step = first[main].step if main else None
        struck = set()
        kinds: dict[tuple[str, ...], list[int]] = {}
        for i, layout in enumerate(self.layouts):
            kinds.setdefault(layout.shape, []).append(i)
        for shape, n in num_lines.items():
            layout = first[shape]
            kin = shape == main or (layout.step == main_step and not set(shape).isdisjoint(set(main) - {main_step}))
            if (
                (n < _REPEATS and not kin and (layout.training or layout.step is None))
                or (layout.training and main_step is not None and layout.step is None)
                or (
                    layout.training
                    and layout.format is None
                    and not self._is_series(shape, kinds[shape], n, layout.step, alone=num_lines[main] == 1)
                )
            ):
                struck.add(shape)
        num_struck = sum(num_lines[s] for s in struck if first[s].training and num_lines[s] >= _REPEATS)
        if num_struck:
            self.notes.append(f"{num_struck} lines with a loss or a norm but no step were left out, as others have one")
        self.alive &= ~self.of_layouts([layout.shape in struck and not layout.in_table for layout in self.layouts])

    def _is_series(self, shape: tuple[str, ...], kinds: list[int], num_lines: int, step: str | None, *, alone: bool) -> bool:
        """Whether lines of a shape are a series and not a sentence, an assignment or a configuration that was printed."""
        if num_lines >= _SURELY or (num_lines == 1 and step is not None and not alone):
            return True
        if len(shape) == 1 and num_lines < _REPEATS:
            return False
        for key in (step,) if step is not None else shape:
            at, values, _ = self.values(key)
            if len(np.unique(values[np.isin(self.layout[at], kinds)])) > 1:
                return True
        return False

    def strike_other_ranks(self) -> None:
        """Of several processes that print the same shape, keep the first one to do so."""
        labels = self.dense(LABEL)
        numbered = self.training & np.isfinite(labels)
        # srun numbers the lines of a task as `3: `; so do people their steps.
        if numbered.any() and not is_counter(labels[numbered]):
            self._strike_ranks(labels)
        self._strike_ranks(self.dense(RANK))

    def _strike_ranks(self, ranks: Values) -> None:
        marked = np.isfinite(ranks) & self.of_layouts([bool(layout.shape) for layout in self.layouts])
        if not marked.any() or len(np.unique(ranks[marked])) < 2:
            return
        shapes: dict[tuple[str, ...], list[int]] = {}
        for i in np.unique(self.layout[marked]).tolist():
            shapes.setdefault(self.layouts[i].shape, []).append(i)
        lost = np.zeros(len(self), bool)
        num_nonfinite = num_far = 0
        for members in shapes.values():
            own = marked & np.isin(self.layout, members)
            others = own & (ranks != ranks[np.argmax(own)])
            taken = self._take_worse(others, own & ~others, ranks)
            num_nonfinite += taken[0]
            num_far += taken[1]
            lost |= others
        if lost.any():
            but = ", but for " if num_nonfinite or num_far else ""
            but += f"{num_nonfinite} values of another that are not finite" if num_nonfinite else ""
            but += " and " if num_nonfinite and num_far else ""
            but += f"{num_far} values of another that are far above them" if num_far else ""
            self.notes.append(
                f"several processes wrote to this log; of lines that more than one printed, those of the first "
                f"({ranks[np.argmax(marked)]:.0f}) were kept{but}"
            )
            self.alive &= ~lost

    def _take_worse(self, others: Mask, kept: Mask, ranks: Values) -> tuple[int, int]:
        """Put losses and norms of other ranks that are not finite, or far above, in the lines of the first rank.

        They go to the nearest of its lines of the same step, or of all where none has it. Of several the worst is taken.

        Returns:
            How many lines got a value that is not finite, and how many one that is.
        """
        layouts = [self.layouts[i] for i in np.unique(self.layout[kept]).tolist()]
        keys = {k for layout in layouts for k in layout.fields if names.rank(LOSS, k) is not None or names.rank(GRAD_NORM, k) is not None}
        step = self.dense(next((layout.step for layout in layouts), None))
        num_nonfinite = num_far = 0
        for key in sorted(keys):
            at, values, rounded = self.values(key)
            mine, theirs = np.flatnonzero(kept[at]), np.flatnonzero(others[at])
            if not len(mine) or not len(theirs):
                continue
            into = mine[nearest(at[theirs], at[mine], step)]
            bad = ~np.isfinite(values[theirs])
            worse = (bad | far_above(values[theirs], values[into], ranks[at[theirs]])) & np.isfinite(values[into])
            # Of values assigned to one place the last stays.
            order = np.flatnonzero(worse)
            height = np.where(bad, np.inf, values[theirs])[order]
            order = order[np.lexsort([height, np.isnan(values[theirs[order]])])]
            values = values.copy()
            values[into[order]] = values[theirs[order]]
            taken = values[np.unique(into[order])]
            num_far += int(np.isfinite(taken).sum())
            num_nonfinite += int((~np.isfinite(taken)).sum())
            self._read[key] = at, values, rounded
        return num_nonfinite, num_far

    def strike_cut_number(self) -> None:
        """Take the last number of a text that ends within a training line, unless it is printed like the ones before it."""
        if not len(self) or self._text.endswith(b"\n"):
            return
        last = self.layouts[self.layout[-1]]
        if not last.training or int(self._starts[-1]) + last.length != len(self._text) or not self.alive[-1]:
            return
        key, field = max(last.fields.items(), key=lambda f: f[1].start)
        tail = self._text[int(self._starts[-1]) + field.start + len(field.pattern) :]
        if _SEPARATOR.search(tail) or np.count_nonzero(self.layout == self.layout[-1]) > 1:
            return
        kin = (layout.fields for layout in self.layouts if layout is not last and layout.shape == last.shape)
        if any(fields[key].pattern == field.pattern for fields in kin):
            return
        self._fields[key].remove((int(self.layout[-1]), field))
        self._read.pop(key, None)
        self.notes.append(f"the text ends within a line; its last number, of {key!r}, may be cut and was left out")


def is_counter(values: Values) -> bool:
    """Whether numbers rise from one to the next, but for a restart or a slip here and there."""
    if not len(values) or not np.isfinite(values).all():
        return False
    rise = np.diff(values)
    slips = _SLIPS * len(values)
    restarts = slips if len(values) < _SURELY else max(1.0, slips)
    return int(np.count_nonzero(rise == 0)) <= slips and int(np.count_nonzero(rise < 0)) <= restarts


def _is_rounded(pattern: bytes, values: Values) -> bool:
    """Whether neighbouring whole numbers print alike: `1K`, `1.08e+04`."""
    if pattern[-1:] in b"KMBk":
        return True
    return b"e" in pattern.lower() and bool((values >= 1000).any())
