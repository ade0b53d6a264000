"""MLflow's file store: `metrics/<key>`, a line `<milliseconds> <value> <step>` for each value."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import Damage
from gradclip_cli.readers import numbers
from gradclip_cli.readers.log import Column, Log, Reader, Source, Wanted
from gradclip_cli.readers.open import HEAD_BYTES

# Milliseconds since 1970: 1990 to 2100. Versions before 1.0 wrote no step, versions from 3.0 append a run and a dataset.
_LINE = re.compile(r"\d{12,13} (?P<value>\S{1,40})(?: (?P<step>-?\d{1,18})(?: \S+){0,4})?")
_HEAD_LINES = 50
_MAX_SHOWN_DAMAGE = 5


def _claims(source: Source) -> bool:
    lines = source.text.split("\n")
    if len(source.head) >= HEAD_BYTES:
        lines.pop()
    lines = [line.strip() for line in lines[:_HEAD_LINES] if line.strip()]
    return bool(lines) and sum(_parsed(line) is not None for line in lines) >= 0.8 * len(lines)


def _read(source: Source, wanted: Wanted) -> Log:
    values: list[float] = []
    steps: list[int | None] = []
    broken: list[tuple[int, str]] = []
    data = source.read_utf8()
    number = 0
    for number, raw in enumerate(data.splitlines(), 1):
        line = raw.decode("utf-8", "replace").strip()
        point = _parsed(line)
        if point is not None:
            values.append(point[0])
            steps.append(point[1])
        elif line:
            broken.append((number, line[:40]))
    if not values:
        raise GradclipError(f"{source.path}: no line of milliseconds, value and step; expected an MLflow metric file")
    # A line cut within its value or step may still look whole: only one without its step shows it.
    if len(values) > 1 and steps[-1] is None and steps[0] is not None:
        values.pop()
        steps.pop()
        broken.append((number, "a line without its step"))
    damage = [Damage(f"line {n}", f"found {what!r}, expected milliseconds, value and step", "that value") for n, what in broken]
    if len(damage) > _MAX_SHOWN_DAMAGE:
        more = len(damage) - _MAX_SHOWN_DAMAGE
        damage[_MAX_SHOWN_DAMAGE:] = [Damage(f"line {broken[_MAX_SHOWN_DAMAGE][0]} and after", f"{more} more broken lines", "those values")]
    key = _key(source.path)
    rows = np.arange(len(values), dtype=np.int64)
    logged = [-1 if s is None else s for s in steps]
    by_step = len(logged) == 1 or len(set(logged)) > 1
    at = np.array(logged, np.int64) if by_step else rows
    keep = at >= 0
    notes = () if by_step else (f"every value of {key!r} was logged at the same step: values are counted instead",)
    return Log("mlflow", {key: Column(at[keep], np.array(values, np.float64)[keep])}, by_step=by_step, damage=tuple(damage), notes=notes)


def _parsed(line: str) -> tuple[float, int | None] | None:
    m = _LINE.fullmatch(line)
    if m is None or (number := numbers.parse(m["value"])) is None:
        return None
    return number.value, None if m["step"] is None else int(m["step"])


def _key(path: Path) -> str:
    """The path below `metrics/` (MLflow keeps `train/loss` as a folder), or the file's name."""
    parts = path.parts
    below = parts[len(parts) - parts[::-1].index("metrics") :] if "metrics" in parts else ()
    return "/".join(below) or path.name


READER = Reader("mlflow", "MLflow metric files (mlruns/.../metrics/KEY)", _claims, _read)
