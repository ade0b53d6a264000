"""TensorBoard event files: `events.out.tfevents.*`, written by PyTorch, TensorFlow, Keras, Megatron-LM and others.

Every point of every scalar is read, never a sample, and every checksum is verified.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

import numpy as np

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import Damage
from gradclip_cli.readers.log import Log, Reader, Source, Wanted
from gradclip_cli.readers.tfevents import crc32c
from gradclip_cli.readers.tfevents.framing import Framing, Gap
from gradclip_cli.readers.tfevents.scalars import Scalars
from gradclip_cli.readers.tfevents.words import HEADER

_TEXT_SUFFIXES = frozenset({".csv", ".tsv", ".txt", ".log", ".json", ".jsonl", ".md", ".html"})


def claims(source: Source) -> bool:
    """By the first record, or by the name that every writer gives, so that a damaged file is called damaged."""
    if "tfevents" in source.path.name and source.path.suffix.lower() not in _TEXT_SUFFIXES:
        return True
    head = source.head
    if len(head) < HEADER + 9:
        return False
    # An event begins with its clock, or, where that was left out as 0, with the version of the format.
    has_clock = head[HEADER] == 0x09 and 0 <= struct.unpack_from("<d", head, HEADER + 1)[0] < 1e11
    has_version = head[HEADER] == 0x1A and head.startswith(b"brain.Event:", HEADER + 2)
    length, crc = struct.unpack_from("<QI", head)
    return (has_clock or has_version) and crc == int(crc32c.of_lengths(np.array([length], np.uint64))[0])


def read(source: Source, wanted: Wanted) -> Log:
    """All scalars of the file.

    Raises:
        GradclipError: Where the file has no whole event.
    """
    data = np.frombuffer(source.read_bytes(), np.uint8)
    framing, scalars = Framing(data), Scalars(data)
    for block in framing:
        scalars.add(block)
    if not scalars.num_events:
        raise GradclipError(
            f"{source.path}: no whole record in {len(data)} bytes; expected a TensorBoard event file",
            hint="copy it again from where it was written; a run that has just started may not have flushed yet",
        )
    notes = []
    if foreign := scalars.foreign():
        plugins = ", ".join(sorted(set(foreign.values())))
        tags = "1 tag" if len(foreign) == 1 else f"{len(foreign)} tags"
        notes.append(f"{tags} of other TensorBoard plugins ({plugins}) left out")
    columns = scalars.columns()
    if (of_one := of_add_scalars(source)) and list(columns) == [of_one.tag]:
        columns = {f"{of_one.tag}/{of_one.name}": columns[of_one.tag]}
    if not columns:
        notes.append(f"none of the {scalars.num_events} events holds a scalar")
    return Log(
        format="tensorboard",
        columns=columns,
        by_step=True,
        damage=tuple(_damage(framing.gaps, scalars.broken, scalars.malformed, len(data))),
        notes=tuple(notes),
    )


class OneScalar(NamedTuple):
    """One of the values that `SummaryWriter.add_scalars(tag, {name: value})` writes into a file each."""

    tag: str
    name: str


def of_add_scalars(source: Source) -> OneScalar | None:
    """Which one the file holds: it lies in a directory TAG_NAME below its writer's own, and has that tag alone."""
    folder = source.path.parent
    try:
        beside = os.listdir(folder.parent)
    except OSError:
        return None
    if "_" not in folder.name or not any("tfevents" in name for name in beside):
        return None
    data = np.frombuffer(source.head, np.uint8)
    scalars = Scalars(data)
    for block in Framing(data):
        scalars.add(block)
    tags = list(scalars.columns())
    prefix = tags[0].replace("/", "_") + "_" if len(tags) == 1 else ""
    return OneScalar(tags[0], folder.name[len(prefix) :]) if prefix and folder.name.startswith(prefix) else None


def _damage(gaps: list[Gap], broken: list[int], malformed: list[int], size: int) -> list[Damage]:
    """One entry for each kind of damage, however often it occurs."""
    found = []
    if broken:
        found.append(_entry(broken, "whose content does not match the checksum"))
    if malformed:
        found.append(_entry(malformed, "with a right checksum but no event inside"))
    tail = gaps[-1] if gaps and gaps[-1].stop == size else None
    cut_off = tail is not None and (tail.claimed > 0 or size - tail.start < HEADER)
    between = gaps[:-1] if cut_off else gaps
    if between:
        num_bytes = sum(gap.stop - gap.start for gap in between)
        where = f"byte {between[0].start}" + (f" and {len(between) - 1} more places" if len(between) > 1 else "")
        found.append(Damage(where, f"{num_bytes} bytes that are no valid record", "what was logged there"))
    if cut_off and tail is not None:
        of = f"{tail.claimed} bytes" if tail.claimed else "its header"
        found.append(Damage(f"byte {tail.start}", f"the last record ends after {size - tail.start} of {of}", "that record"))
    return found


def _entry(starts: list[int], what: str) -> Damage:
    if len(starts) == 1:
        return Damage(f"byte {starts[0]}", f"a record {what}", "that record")
    return Damage(f"byte {min(starts)} and after", f"{len(starts)} records {what}", "those records")


READER = Reader("tensorboard", "TensorBoard event files", claims, read)
