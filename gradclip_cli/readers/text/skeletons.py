"""Lines that differ in their numbers only, however long these are printed: taken apart once.

Numbers printed in full (`0.8690457344055176`) have so many lengths that in a line of a dozen of them hardly a
layout comes twice. What comes again is the *skeleton*: the text between the numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

from gradclip_cli.readers.text.fields import Field, Layout
from gradclip_cli.readers.text.format import pattern
from gradclip_cli.readers.text.layouts import pattern_of
from gradclip_cli.readers.text.tables import header_of
from gradclip_cli.readers.text.tokens import is_rule

# Not the digits of a name (`loss_2`, `layer/2`) nor of a date. It begins with the set of first characters, for speed.
_NUMBER = pattern(r"([\d.+\-](?<![\w./@\-].)\d*+(?:\.\d++)?(?:[eE][+-]?\d++)?(?<=\d))")
_NONFINITE = pattern(r"(?i)nan|inf|finite|diverged")

_Place = tuple[int, int]


class Skeletons:
    """`take_apart` with a memory for skeletons.

    Args:
        take_apart: One line (bytes as Latin-1) -> what its layout holds, or None.
    """

    def __init__(self, take_apart: Callable[[str], Layout | None]) -> None:
        self._take_apart = take_apart
        self._known: dict[str, tuple[Layout, list[tuple[str, _Place, _Place, list[_Place]]]]] = {}

    def __call__(self, line: str) -> Layout | None:
        parts = _NUMBER.split(line)
        skeleton = "\0".join(parts[::2])
        begins = [0, *accumulate(map(len, parts))]
        known = self._known.get(skeleton)
        if known is None:
            if len(parts) == 1 and not (_NONFINITE.search(line) or is_rule(line) or header_of(line)):
                return None
            layout = self._take_apart(line)
            if layout is not None and (places := _places(layout, begins)) is not None:
                self._known[skeleton] = layout, places
            return layout
        layout, places = known
        fields = {}
        for key, first, stop, digits in places:
            start = begins[first[0]] + first[1]
            text = line[start : begins[stop[0]] + stop[1]]
            fields[key] = Field(start, pattern_of(text), tuple(begins[part] + offset for part, offset in digits))
        return replace(layout, fields=fields, length=len(line))


def _places(layout: Layout, begins: list[int]) -> list[tuple[str, _Place, _Place, list[_Place]]] | None:
    """Where each field begins and stops and where its key has digits, counted from the beginning of a part of the line.

    None where a field begins or stops within a number: then it is no matter of the skeleton alone.
    """
    places = []
    for key, field in layout.fields.items():
        stop = field.start + len(field.pattern)
        # A value that ends with a number stops where the text behind it begins.
        spots = [_place(at, begins) for at in (field.start, stop, *field.digits)]
        if any(part % 2 and offset for part, offset in spots):
            return None
        places.append((key, spots[0], spots[1], spots[2:]))
    return places


def _place(at: int, begins: list[int]) -> _Place:
    part = bisect_right(begins, at, hi=len(begins) - 1) - 1
    return part, at - begins[part]
