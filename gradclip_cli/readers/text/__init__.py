"""Console logs: one reader for all of them, a row for each kind that is known."""

from __future__ import annotations

from gradclip_cli.readers.log import Reader, Source
from gradclip_cli.readers.text.format import Format
from gradclip_cli.readers.text.formats import FORMATS
from gradclip_cli.readers.text.read import looks_like, read

__all__ = ["READERS"]


def _reader(format: Format) -> Reader:
    return Reader(format.name, format.summary, lambda source: looks_like(format, source), read)


def _is_text(source: Source) -> bool:
    return bool(source.text.strip())


READERS: tuple[Reader, ...] = (
    *(_reader(format) for format in FORMATS),
    Reader("text", "any text with lines such as `step 10 loss: 2.3` or `loss=2.3, grad_norm=0.5`", _is_text, read),
)
