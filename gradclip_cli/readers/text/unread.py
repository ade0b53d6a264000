"""What a console log says in words where its numbers should be: texts in place of a loss, messages that the loss is no number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np

from gradclip_cli.model.run import GRAD_NORM, LOSS, Damage
from gradclip_cli.readers import names, numbers
from gradclip_cli.readers.log import Column, Wanted
from gradclip_cli.readers.text.layouts import Positions
from gradclip_cli.readers.text.records import Records

_MAX_QUOTED = 120
# Fewer lines without a value may be an unlucky moment to stop, or a setting of the same name.
_FEW = 3
_NUMBER = re.compile(r"[+-]?\d[\d.,]*+(?:[eE][+-]?\d++)?|(?i:\bnan\b|\binf\b)")
# The possessive parts keep it linear in a line.
_KEY_VALUE = re.compile(rb"(?<![\w./\-])([A-Za-z_][\w./\-]{0,60}+)['\"]?(?:[ \t]*+[:=][ \t]*+|[ \t]++)[+-]?(?:\d|nan|inf)")
_HEAD = 1 << 20
_MAX_KEYS = 20
_SPACES = re.compile(r"\s++")


def texts(records: Records, wanted: Wanted) -> list[Damage]:
    """Damage where lines like those of a loss or a norm hold text in its place.

    Text that says there is no value counts at the end only, and where it goes on for longer than before.
    """
    damage = []
    kinds, first = np.unique(records.layout, return_index=True)
    first_line = dict(zip(kinds.tolist(), first.tolist(), strict=True))
    told = [i for i in first_line if records.layouts[i].texts]
    for key in dict.fromkeys(key for i in told for key in records.layouts[i].texts):
        at, _, _ = records.values(key)
        if not (key in (wanted.loss, wanted.grad_norm) or names.rank(LOSS, key) is not None or names.rank(GRAD_NORM, key) is not None):
            continue
        if not len(at):
            continue
        like = {_skeleton(records.line(int(i)), records.layouts[records.layout[i]].fields[key].start) for i in _one_each(records, at)}
        absent = [False] * len(records.layouts)
        lost = [False] * len(records.layouts)
        for i in told:
            if key not in records.layouts[i].texts:
                continue
            stop, text = records.layouts[i].texts[key]
            if _skeleton(records.line(first_line[i]), stop) in like:
                (absent if numbers.is_absent(text) else lost)[i] = True
        bad = np.flatnonzero(np.array(lost)[records.layout])
        bad = bad[bad > at[0]]
        none = np.flatnonzero(np.array(absent)[records.layout])
        behind = none[none > at[-1]]
        gaps = np.diff(np.searchsorted(none, at))
        if len(behind) >= _FEW and len(behind) > 2 * gaps.max(initial=0):
            bad = np.union1d(bad, behind)
        if len(bad) >= _FEW or (len(bad) and any("0" in s for s in like)):
            text = records.layouts[records.layout[bad[0]]].texts[key][1]
            counted = "1 line" if len(bad) == 1 else f"{len(bad):,} lines"
            what = f"from here on {key!r} is text in {counted}, such as {text!r}, expected numbers"
            damage.append(Damage(f"line {records.line_number(int(bad[0]))}", what, "those values", key))
    return damage


def numeric_keys(text: bytes) -> str:
    """The words before numbers in the beginning of a text, the most frequent first, for a hint."""
    counts = Counter(m[1].decode("latin-1") for m in _KEY_VALUE.finditer(text, 0, _HEAD))
    return ", ".join(repr(key) for key, n in counts.most_common(_MAX_KEYS) if n >= _FEW)


def _one_each(records: Records, at: Positions) -> list[int]:
    """A line of each layout among some lines."""
    _, first = np.unique(records.layout[at], return_index=True)
    return [int(i) for i in at[first]]


def _skeleton(line: str, stop: int) -> str:
    """The beginning of a line, whatever its numbers."""
    return _SPACES.sub("", _NUMBER.sub("0", line[:stop])).rstrip(":='\"([{")


def says_nan(records: Records, columns: Mapping[str, Column]) -> tuple[list[str], list[Damage]]:
    """A note on the first message that the loss is no number, and damage where no value shows it."""
    said = np.flatnonzero(np.array([layout.says_nan for layout in records.layouts], bool)[records.layout])
    if not len(said):
        return [], []
    quoted = _SPACES.sub(" ", records.line(int(said[0])).strip())[:_MAX_QUOTED].encode("latin-1").decode("utf-8", "replace")
    where, what = f"line {records.line_number(int(said[0]))}", f"the log says: {quoted!r}"
    seen = any(
        not np.isfinite(c.values).all()
        for k, c in columns.items()
        if names.rank(LOSS, k) is not None or names.rank(GRAD_NORM, k) is not None
    )
    return [f"{where}: {what}"], [] if seen else [Damage(where, what, "the values of that step")]
