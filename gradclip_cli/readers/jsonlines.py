"""JSON records: one a line, an array of them, one after another, or one document that holds them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import GRAD_NORM, LOSS, LR, Damage, NormStage, Sampling
from gradclip_cli.readers import frame, names
from gradclip_cli.readers.log import Column, Log, Reader, Source, Wanted
from gradclip_cli.readers.open import HEAD_BYTES
from gradclip_cli.readers.records import Found, Records, from_regular_lines
from gradclip_cli.readers.unread import without_zeroed

_MAX_SHOWN_DAMAGE = 5
_HEAD_LINES = 50
# Where so many records cannot be read, the rest cannot either; trying takes time.
_MAX_BROKEN = 1000

_OBJECT = re.compile(r'\s*\{\s*["}]')
_ARRAY = re.compile(r'\s*\[\s*\{\s*["}]')
# TensorBoard's JSON download of one tag: [[wall time, step, value], ...].
_TRIPLES = re.compile(r"\s*\[\s*\[\s*\d+(?:\.\d+)?,\s*\d+,\s*[-+.\w]+\s*\]")
_PAYLOADS = ("data", "log", "message", "msg", "text")
# A notebook's console as JSON records: its text is what holds the log.
_CONSOLE = re.compile(r'"stream_name"\s*:.*?"data"\s*:', re.DOTALL)
_JSON_LINE = re.compile(r'\s*(?:[{}\[\]"]|-?\d|true|false|null|NaN|-?Infinity|$)')
# nan and inf as Python and C print them, which JSON does not know.
_BARE = re.compile(r"(?<=[:\[,\s])([-+]?)(nan|inf|infinity)(?=\s*[,}\]])", re.I)
_NEXT_RECORD = re.compile(r"(?:\n[\s,]*|\}\s*,\s*)(?=\{)")
_BETWEEN = re.compile(r"[\s,]*")
# Numbers where records are expected: millions of them are passed at once.
_BARE_NUMBERS = re.compile(r"-?\d[-+.\deE\s,]*")
# So many lines are parsed as one array, in half the time of one by one.
_BATCH_LINES = 500
_BROKEN = object()
_decoder = json.JSONDecoder()


def _claims(source: Source) -> bool:
    text = source.text
    if _TRIPLES.match(text):
        return True
    if _ARRAY.match(text):
        return not _CONSOLE.search(text[:2000])
    if not _OBJECT.match(text):
        return False
    lines = [line for line in text.split("\n") if line.strip()][:_HEAD_LINES]
    whole = len(source.head) < HEAD_BYTES
    complete = lines if whole or len(lines) == _HEAD_LINES else lines[:-1]
    records = [v for line in complete for v in _values_in_line(line)[0] if type(v) is dict]
    if len(records) >= max(1, 0.5 * len(complete)):
        return not all(map(_is_console, records))
    # One document over many lines, or one line longer than what we see: JSON all the way, and nothing behind it.
    try:
        _, end = _decoder.raw_decode(text, len(text) - len(text.lstrip()))
    except (ValueError, RecursionError):
        return all(_JSON_LINE.match(line) for line in lines) and (not whole or len(lines) > 1)
    rest = text[end:].lstrip(" \t\r\n,")
    return not rest or rest[0] == "{"


def _is_console(record: Mapping[str, Any]) -> bool:
    """Whether a record wraps a line of text, as container and notebook services do."""
    return any(type(record.get(k)) is str for k in _PAYLOADS) and not any(map(names.is_evidence, record))


def _is_record(line: str) -> bool:
    return any(type(v) is dict for v in _values_in_line(line)[0])


def _read(source: Source, wanted: Wanted) -> Log:
    damage: list[Damage] = []
    notes: list[str] = []
    found = _read_large(source, wanted, damage) if frame.is_large(source) else None
    if found is None:
        data = source.read_utf8()
        records = Records()
        lines, damage = without_zeroed(data)
        if _is_by_line(lines):
            _by_line(lines, records, damage, notes)
        else:
            damage.clear()
            _one_after_another(data, records, damage)
        if not records.num_rows:
            what = damage[0].what if damage else "no record"
            raise GradclipError(f"{source.path}: no JSON record can be read ({what}); expected objects of keys and numbers")
        found = records.found(wanted)
    log = Log("json-lines", found.columns, damage=(*damage, *found.damage), notes=(*notes, *found.notes), empty=found.empty)
    return _known_writer(log)


# A record a line ------------------------------------------------------------------------------------------------------


def _is_by_line(data: bytes) -> bool:
    start = data.find(b"{")
    end = data.find(b"\n", start)
    if data[:start].strip() or end < 0 or not data[end : end + HEAD_BYTES].strip():
        return False
    found = 0
    for line in io.BytesIO(data):
        if line.strip():
            if _is_record(line.decode("utf-8", "replace")):
                return True
            found += 1
            if found >= _HEAD_LINES:
                return False
    return False


def _by_line(data: bytes, records: Records, damage: list[Damage], notes: list[str]) -> None:
    broken: list[tuple[int, str]] = []
    num_other = 0
    number = 0
    for number, raw, value in _parsed_lines(data):
        if value is _BROKEN:
            line = raw.decode("utf-8", "replace").strip()
            if not line:
                continue
            values, complete = _values_in_line(line)
            for value in values:
                if type(value) is dict:
                    records.add(value)
            if not values and line[0] != "{":
                num_other += 1
            elif not complete:
                broken.append((number, _excerpt(line)))
            continue
        if type(value) is dict:
            records.add(value)
    if broken and broken[-1][0] == number and not data.endswith(b"\n"):
        last, _ = broken.pop()
        damage.append(_cut_line(last))
    damage += [Damage(f"line {n}", f"{what}, expected a JSON object", "that record") for n, what in broken[:_MAX_SHOWN_DAMAGE]]
    if len(broken) > _MAX_SHOWN_DAMAGE:
        first = broken[_MAX_SHOWN_DAMAGE][0]
        damage.append(
            Damage(f"line {first} and after", f"{len(broken) - _MAX_SHOWN_DAMAGE} more lines that are no JSON objects", "those records")
        )
    if num_other:
        notes.append(f"{num_other} lines that are no JSON were left out")


def _parsed_lines(data: bytes) -> Iterator[tuple[int, bytes, Any]]:
    """Number, text and value of each line; `_BROKEN` where it is not one JSON value."""
    lines = io.BytesIO(data)
    first = 1
    while batch := list(islice(lines, _BATCH_LINES)):
        values = _objects_of(batch)
        if values is None:
            values = list(map(_value_of, batch))
        yield from zip(range(first, first + len(batch)), batch, values, strict=True)
        first += len(batch)


def _objects_of(lines: list[bytes]) -> list[Any] | None:
    """The object on each line, or None where one of them is not just that."""
    if not all(line[:1] == b"{" and line.endswith((b"}\n", b"}\r\n")) for line in lines):
        return None
    # The zeros between come out between the objects, unless one line goes on in the next or holds two objects.
    values = _value_of(b"[" + b",0,".join(lines) + b"]")
    alone = type(values) is list and len(values) == 2 * len(lines) - 1 and values[1::2].count(0) == len(lines) - 1
    return values[::2] if alone else None


def _value_of(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _BROKEN


def _values_in_line(line: str) -> tuple[list[Any], bool]:
    """The JSON values in one line, and whether they are all of it.

    There may be several, run together by two writers, or one behind the beginning of another that a job
    left when it was killed.
    """
    line = line.strip().rstrip(",")
    values: list[Any] = []
    at = 0
    try:
        while at < len(line):
            value, at = _decoder.raw_decode(line, at)
            values.append(value)
            at = _skip(line, at)
    except (ValueError, RecursionError):
        if not values and (repaired := _BARE.sub(_spelled, line)) != line:
            return _values_in_line(repaired)
    else:
        return values, True
    last = line.rfind('{"', at + 1)
    if last > 0:
        try:
            value, end = _decoder.raw_decode(line, last)
        except (ValueError, RecursionError):
            return values, False
        if end == len(line):
            values.append(value)
    return values, False


def _spelled(bare: re.Match[str]) -> str:
    if bare[2].lower() == "nan":
        return "NaN"
    return "-Infinity" if bare[1] == "-" else "Infinity"


def _skip(text: str, at: int) -> int:
    between = _BETWEEN.match(text, at)
    return between.end() if between else at


def _cut_line(number: int) -> Damage:
    return Damage(f"line {number}", "the last line ends within a record", "that record")


def _excerpt(line: str) -> str:
    return f"found {line[:40]!r}" + ("..." if len(line) > 40 else "")


# Records one after another --------------------------------------------------------------------------------------------


def _one_after_another(data: bytes, records: Records, damage: list[Damage]) -> None:
    text = data.decode("utf-8", "replace")
    if _TRIPLES.match(text):
        _triples(text, records, damage)
        return
    found = 0
    only: Any = None
    for value in values_in(text, damage):
        found += 1
        if found == 1:
            only = value
            continue
        if found == 2 and type(only) is dict:
            records.add(only)
        if type(value) is dict:
            records.add(value)
    if found == 1 and type(only) is dict:
        _document(only, records)


def values_in(text: str, damage: list[Damage], at: int = 0) -> Iterator[Any]:
    """The elements of an array, or values one after another, from a place on.

    Numbers are passed over. A broken value is skipped with what follows on its line.

    Ends at the end of the array or of the text. Whatever cannot be read goes into `damage`.
    """
    at = _skip(text, at)
    in_array = text[at : at + 1] == "["
    at += in_array
    num_broken = 0
    while (at := _skip(text, at)) < len(text):
        if text[at] == "]" and in_array:
            return
        if passed := _BARE_NUMBERS.match(text, at):
            at = passed.end()
            continue
        try:
            value, at = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as e:
            num_broken += 1
            following = _NEXT_RECORD.search(text, at + 1) if num_broken < _MAX_BROKEN else None
            if following is None or num_broken <= _MAX_SHOWN_DAMAGE:
                what = "objects nested too deep" if isinstance(e, RecursionError) else _excerpt(text[at : at + 60])
                lost = "that record" if following else "that record and all that follows"
                damage.append(Damage(f"line {text.count(chr(10), 0, at) + 1}", f"{what}, expected a complete JSON object", lost))
            if following is None:
                return
            at = following.end()
            continue
        yield value
    if in_array:
        damage.append(Damage(f"line {text.count(chr(10)) + 1}", "the array is not closed", "what would follow"))


def _triples(text: str, records: Records, damage: list[Damage]) -> None:
    for value in values_in(text, damage):
        if type(value) is list and len(value) == 3:
            records.add(dict(zip(("Wall time", "Step", "Value"), value, strict=True)))


def _document(document: Mapping[str, Any], records: Records) -> None:
    """One JSON object that holds a run: a list of records, a list for each key, or an object of numbers for each key."""
    lists = {k: v for k, v in document.items() if type(v) is list and v}
    tables = [v for v in lists.values() if type(v[0]) is dict]
    if tables:
        # Several tables of the same keys are several runs; they come one behind the other, and the step tells them apart.
        keys = max(tables, key=len)[0].keys()
        for table in tables:
            if len(keys & table[0].keys()) > 0.5 * len(keys):
                for record in table:
                    if type(record) is dict:
                        records.add(record)
        return
    if lists:
        records.add_lists(lists)
        return
    objects = {k: v for k, v in document.items() if type(v) is dict and v}
    if objects and all(_is_int(k) for k in objects):  # {"1": {"loss": ...}, "2": {...}}
        rows = {int(k): record for k, record in objects.items()}
    elif objects and all(_is_int(i) for v in objects.values() for i in v):  # {"loss": {"1": ..., "2": ...}}
        numbers = dict.fromkeys(i for v in objects.values() for i in v)
        rows = {int(i): {k: v[i] for k, v in objects.items() if i in v} for i in numbers}
    else:
        records.add(document)
        return
    has_step = any(names.rank("step", k) is not None for record in rows.values() for k in record)
    for i, record in rows.items():
        records.add(record if has_step else {"step": i, **record})


def _is_int(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


# Large files ----------------------------------------------------------------------------------------------------------


def _read_large(source: Source, wanted: Wanted, damage: list[Damage]) -> Found | None:
    """Regular lines, or a regular array of records, through polars; None where they are not regular."""
    if source.text[:1] == "[":
        data = source.read_utf8()
        return from_regular_lines(_array_pieces(data), wanted) if data[-100:].rstrip().endswith(b"]") else None
    return from_regular_lines(_whole_lines(source, damage), wanted) if source.text[:1] == "{" else None


def _whole_lines(source: Source, damage: list[Damage]) -> Iterator[bytes]:
    for piece in frame.pieces(source):
        end = len(piece)
        if not piece.endswith((b"\n", b"}")):  # the last line
            end = piece.rfind(b"\n") + 1
            num_lines = sum(frame.count(p, b"\n") for p in frame.pieces(source))
            damage.append(_cut_line(num_lines + 1))
        if end:
            yield piece[:end]


def _array_pieces(data: bytes) -> Iterator[bytes]:
    """The records of an array as lines; irregular where one of them is not flat."""
    at, end = 1, data.rfind(b"]")
    while at < end:
        cut = data.rfind(b"}", at, at + frame.PIECE_BYTES) + 1 if end - at > frame.PIECE_BYTES else end
        cut = cut if cut > at else end
        # A line end within a number stays a break in it.
        yield data[at:cut].replace(b"\n", b" ").lstrip(b", \r").replace(b"},", b"}\n")
        at = cut


# Who wrote it ---------------------------------------------------------------------------------------------------------


def _known_writer(log: Log) -> Log:
    """With what follows from the keys of trainers built on Hugging Face's (ms-swift, LLaMA-Factory)."""
    step = next((k for k in log.columns if k in ("global_step/max_steps", "current_steps")), None)
    if step is None or LOSS not in log.columns:
        return log
    return replace(
        log,
        step_key=step,
        roles={LOSS: LOSS},
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="the Hugging Face Trainer logs what clip_grad_norm_ returned",
        sampling={LOSS: window_of(log.columns[step], log.columns[LOSS]), GRAD_NORM: Sampling.INSTANT, LR: Sampling.INSTANT},
    )


def window_of(step: Column, loss: Column) -> Sampling:
    """A Hugging Face loss is the mean since the value before: of one step where every step is logged."""
    at = np.searchsorted(step.at, loss.at)
    at = at[at < len(step.at)]
    gaps = np.diff(step.values[at])
    gaps = gaps[gaps > 0]
    return Sampling.WINDOW_MEAN if len(gaps) and np.median(gaps) > 1 else Sampling.INSTANT


READER = Reader("json-lines", "JSON lines, JSON arrays of records, JSON with a list for each key", _claims, _read)
