"""Golden values of Megatron-LM's tests: for each metric its values by step."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import Damage
from gradclip_cli.readers import names, numbers
from gradclip_cli.readers.log import Column, Log, Reader, Source, Wanted

_SHAPE = re.compile(r'\s*\{\s*"[^"]+"\s*:\s*\{(?=[^{}]*"(?:start_step|step_interval)"\s*:)[^{}\[\]]*"values"\s*:\s*[{\[]')
_METRIC = re.compile(r'"([^"]+)"\s*:\s*\{[^{}]*?"values"\s*:\s*\{')
_VALUE = re.compile(r'"(\d{1,15})"\s*:\s*("[^"]{1,20}"|[-+\w.]+)\s*[,}]')


def _claims(source: Source) -> bool:
    return _SHAPE.match(source.text) is not None


def _read(source: Source, wanted: Wanted) -> Log:
    text = source.read_utf8().decode("utf-8", "replace")
    damage: tuple[Damage, ...] = ()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as e:
        document = _salvaged(text)
        damage = (Damage(*_place(text, e), "the values behind it"),)
    if not isinstance(document, dict):
        raise GradclipError(f"{source.path}: no object of metrics; expected golden values")
    metrics = {k: points for k, v in document.items() if (points := _points(v))}
    if not metrics:
        raise GradclipError(f"{source.path}: no metric with values; expected golden values by step")
    columns = {}
    num_unlogged = 0
    for key in names.to_read(list(metrics), wanted):
        logged = [(step, n.value) for step, value in metrics[key] if (n := _number(value)) is not None]
        num_unlogged += sum(value == "nan" for _, value in metrics[key])
        texts = [v for _, v in metrics[key] if isinstance(v, str) and v != "nan" and numbers.parse(v) is None and not numbers.is_absent(v)]
        if texts:
            what = f"{len(texts)} values are text such as {texts[0][:40]!r}, expected numbers"
            damage += (Damage(f"{key!r}", what, "those values", key),)
        logged.sort(key=lambda p: p[0])
        columns[key] = Column(np.array([s for s, _ in logged], np.int64), np.array([v for _, v in logged], np.float64))
    notes = (f"{num_unlogged} values are the text 'nan', which stands for steps without a value: left out",) if num_unlogged else ()
    return Log("megatron-golden-values", columns, by_step=True, damage=damage, notes=notes)


def _number(value: Any) -> numbers.Number | None:
    """A logged number. The text "nan" fills steps that were not logged; a loss that was nan is the bare literal."""
    if isinstance(value, bool) or value == "nan" or not isinstance(value, int | float | str):
        return None
    return numbers.parse(str(value))


def _points(metric: Any) -> list[tuple[int, Any]]:
    """Step and value; older files list the values, one each `step_interval`."""
    if not isinstance(metric, Mapping):
        return []
    values = metric.get("values")
    if isinstance(values, dict):
        return [(int(k), v) for k, v in values.items() if k.isascii() and k.isdigit() and len(k) < 16]
    if isinstance(values, list):
        start, interval = metric.get("start_step"), metric.get("step_interval")
        start = start if isinstance(start, int) else 0
        interval = interval if isinstance(interval, int) and interval > 0 else 1
        return [(start + i * interval, v) for i, v in enumerate(values)]
    return []


def _salvaged(text: str) -> dict[str, Any]:
    """What stands before the damage."""
    out: dict[str, Any] = {}
    starts = list(_METRIC.finditer(text))
    for metric, following in zip(starts, [*starts[1:], None], strict=True):
        part = text[metric.end() : following.start() if following else len(text)]
        out[metric[1]] = {"values": {step: value.strip('"') if value != '"nan"' else "nan" for step, value in _VALUE.findall(part)}}
    return out


def _place(text: str, e: Exception) -> tuple[str, str]:
    if isinstance(e, json.JSONDecodeError):
        return f"character {e.pos}", "expected more of the JSON document" if e.pos >= len(text) - 1 else f"{e.msg} in JSON"
    return "some place", "JSON nested too deep or a number too long"


READER = Reader("megatron-golden-values", "Megatron-LM golden values (JSON)", _claims, _read)
