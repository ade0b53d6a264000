"""Console logs: one reader for all of them, a row for each kind that is known."""

from __future__ import annotations

from gradclip_cli.readers.log import Reader, Source
from gradclip_cli.readers.text.format import TEXT, Format
from gradclip_cli.readers.text.formats import FORMATS
from gradclip_cli.readers.text.read import looks_like, read

__all__ = ["READERS"]


# ASCII and what continues it in UTF-8, tabs, line ends, escapes, backspaces.
_PRINTABLE = bytes((8, 9, 10, 13, 27, *range(32, 127), *range(128, 256)))


def _reader(format: Format) -> Reader:
    return Reader(format.name, format.summary, lambda source: looks_like(format, source), read)


def _is_text(source: Source) -> bool:
    if source.text:
        return bool(source.text.strip())
    # A machine that went down leaves zero bytes in its logs.
    rest = source.head.replace(b"\0", b"")
    return b"\n" in rest and len(rest.translate(None, _PRINTABLE)) < 0.01 * len(rest)


READERS: tuple[Reader, ...] = (
    *(_reader(format) for format in FORMATS),
    Reader(TEXT.name, TEXT.summary, _is_text, read),
)
