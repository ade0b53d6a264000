"""Console bytes -> plain lines: colours stripped, every redraw of a progress bar on a line of its own."""

from __future__ import annotations

import re

# CSI and OSC sequences, then the two-character escapes. Possessive: no backtracking on a broken one.
_ESCAPES = re.compile(rb"\x1b\[[0-?]*+[ -/]*+[@-~]|\x1b\][^\x07\x1b\n]*+(?:\x07|\x1b\\)|\x1b[@-Z\\^_]")
# Keras moves back over the bar it is about to redraw.
_BACKSPACES = re.compile(rb"\x08++")
# pprint and json.dumps(indent=) break after a comma or an opening brace, before the next quoted key.
_BROKEN_DICT = re.compile(rb"(?<=[,{])[ \t]*+\n[ \t]++(?=['\"])")


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
