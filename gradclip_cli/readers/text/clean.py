"""Console bytes -> plain lines: colours stripped, every redraw of a progress bar on a line of its own."""

from __future__ import annotations

import re

# CSI and OSC sequences, then the two-character escapes. Possessive: no backtracking on a broken one.
_ESCAPES = re.compile(rb"\x1b\[[0-?]*+[ -/]*+[@-~]|\x1b\][^\x07\x1b\n]*+(?:\x07|\x1b\\)|\x1b[@-Z\\^_]")
# Keras moves back over the bar it is about to redraw.
_BACKSPACES = re.compile(rb"\x08++")
# pprint and json.dumps(indent=) break after a comma or an opening brace, before the next quoted key.
_BROKEN_DICT = re.compile(rb"(?<=[,{])[ \t]*+\n[ \t]++(?=['\"])")

# A number with a comma behind the key of a metric, one with a point, and any number with a comma behind a key.
_WITH_COMMA = re.compile(rb"(?i)(?:loss|norm|\blr)['\"]?(?:\s*+[:=]\s*+|\s++)[+-]?(\d++),(\d++)(?![\d,.])")
_WITH_POINT = re.compile(rb"(?i)(?:loss|norm|\blr)['\"]?(?:\s*+[:=]\s*+|\s++)[+-]?\d[\d,]*+\.\d")
_AFTER_KEY = re.compile(rb"([A-Za-z_)]['\"]?(?:[ \t]*+[:=][ \t]*+|[ \t]++)[+-]?\d++),(?=\d++(?![\d,.]))")
_HEAD = 1 << 20
# So few may be anything.
_FEW = 3


def with_points(text: bytes) -> tuple[bytes, bool]:
    """Decimal commas as points (`loss: 3,1234`), where the beginning of a text has them and no points; and whether it has."""
    head = text[:_HEAD]
    found = [m.groups() for m in _WITH_COMMA.finditer(head)]
    # What `1,234` is they do not say; `0,234`, `1,2345` and `1,2` do, and `1234,567`.
    telling = sum(len(behind) != 3 or before[:1] == b"0" or len(before) > 3 for before, behind in found)
    if telling < _FEW or _WITH_POINT.search(head):
        return text, False
    return _AFTER_KEY.sub(rb"\1.", text), True


def plain(data: bytes) -> bytes:
    """Text whose lines end in a line feed and hold neither terminal escapes nor NUL bytes."""
    if b"\x1b" in data:
        data = _ESCAPES.sub(b"", data)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\x08" in data:
        data = _BACKSPACES.sub(b"\n", data)
    return data.replace(b"\0", b" ") if b"\0" in data else data


def whole_dicts(text: bytes) -> bytes:
    """Each dict that was printed over several lines on one, so that its step belongs to all of it."""
    return _BROKEN_DICT.sub(b" ", text)
