"""Untrusted text made safe to show: names, paths, keys and notes come from files that may come from anywhere."""

from __future__ import annotations

import re

_LONGEST = 1000
# Our own typography and the chart's, one character for one, so that a layout survives it.
_ASCII = str.maketrans("▲×─━…·–’", "^x-=~;-'")
_ASCII |= {0x2800 + dots: ord(" .':"[bool(dots & 0b11100100) + 2 * bool(dots & 0b00011011)]) for dots in range(256)}
_MARKDOWN = re.compile(r"[\\`*_\[\]~$#!]")
# A mention, an issue number or an address would be turned into a link (and a notice to somebody) after all escaping.
_LINK = re.compile(r"@|:(?=//)|www(?=\.)|#(?=\w)")


def visible(text: str, longest: int = _LONGEST) -> str:
    r"""The text with everything unprintable spelled out: control codes, line breaks, invisible and bidirectional marks, lone surrogates.

    `\x1b[31m` stands for a terminal escape code. What is longer than `longest` is shortened in the middle.
    """
    text = _shorten(text, longest)
    if text.isprintable():
        return text
    return _shorten("".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text), longest)


def _shorten(text: str, longest: int) -> str:
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"


def markdown(text: str) -> str:
    """Prose for Markdown with nothing in it interpreted: no markup, no HTML, no mention, no link."""
    text = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # The entities above must keep their marks: their "&", ";" and letters are none of the characters below.
    text = _LINK.sub(lambda m: f"{m[0]}\0", text)
    text = _MARKDOWN.sub(lambda m: f"\\{m[0]}", text)
    return text.replace("\0", "<!-- -->")


def markdown_code(text: str) -> str:
    """A Markdown code span that holds the text."""
    text = visible(text)
    fence = "`" * (1 + max((len(m) for m in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}" if text else "` `"


def ascii_only(text: str) -> str:
    """The finished text for an output that cannot do more than ASCII; the chart's braille cells become dots and colons."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
