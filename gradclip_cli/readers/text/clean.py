"""Console bytes -> plain lines: colours stripped, every redraw of a progress bar on a line of its own."""

from __future__ import annotations

import re

# CSI and OSC sequences, then the two-character escapes. Possessive: no backtracking on a broken one.
_ESCAPES = re.compile(rb"\x1b\[[0-?]*+[ -/]*+[@-~]|\x1b\][^\x07\x1b\n]*+(?:\x07|\x1b\\)|\x1b[@-Z\\^_]")
# Keras moves back over the bar it is about to redraw.
_BACKSPACES = re.compile(rb"\x08++")


def plain(data: bytes) -> bytes:
    """Text whose lines end in a line feed and hold neither terminal escapes nor NUL bytes."""
    if b"\x1b" in data:
        data = _ESCAPES.sub(b"", data)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\x08" in data:
        data = _BACKSPACES.sub(b"\n", data)
    return data.replace(b"\0", b" ") if b"\0" in data else data
