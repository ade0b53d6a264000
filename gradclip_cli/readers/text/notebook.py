"""The stream log of a notebook service: a JSON array of `{"stream_name", "time", "data"}` records of console text."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from gradclip_cli.model.run import Damage

_STREAM = re.compile(r'\s*+\[?\s*+\{\s*+"stream_name"\s*+:')


class Console(NamedTuple):
    """What the notebook printed, UTF-8."""

    data: bytes
    damage: tuple[Damage, ...]


def is_stream(text: str) -> bool:
    """Whether a text begins as a stream log does."""
    return bool(_STREAM.match(text))


def unwrap(data: bytes) -> Console:
    """The console text in a stream log, standard output and standard error as they came."""
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        return _unwrap_lines(data)
    return Console("".join(filter(None, map(_text, whole if isinstance(whole, list) else [whole]))).encode("utf-8", "replace"), ())


def _unwrap_lines(data: bytes) -> Console:
    """The same from a file that is cut off or damaged: each record stands on a line of its own."""
    parts: list[str] = []
    bad: list[int] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        record = line.strip(b" \t\r,[]")
        if not record:
            continue
        try:
            parts.append(_text(json.loads(record)) or "")
        except (ValueError, RecursionError):
            bad.append(number)
    damage = (Damage(f"line {bad[0]}", "not a complete JSON record of a stream log", f"the text of {len(bad)} records"),) if bad else ()
    return Console("".join(parts).encode("utf-8", "replace"), damage)


def _text(record: object) -> str | None:
    text = record.get("data") if isinstance(record, dict) else None
    return text if isinstance(text, str) else None
