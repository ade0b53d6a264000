"""Hugging Face `trainer_state.json`: everything the Trainer logged, in `log_history`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import GRAD_NORM, LOSS, LR, Damage, NormStage, Sampling
from gradclip_cli.readers import frame
from gradclip_cli.readers.jsonlines import values_in, window_of
from gradclip_cli.readers.log import Column, Log, Reader, Source, Wanted
from gradclip_cli.readers.records import Found, Records, from_regular_lines, without_rows

_HISTORY = re.compile(r'"log_history"\s*:\s*(?=\[)')
_LOGGING_STEPS = re.compile(rb'"logging_steps"\s*:\s*([\d.]+)')
# The record that ends a training: means over the whole of it.
_SUMMARY_KEY = "train_runtime"


def _claims(source: Source) -> bool:
    text = source.text.lstrip()
    if not text.startswith("{") or not (history := _HISTORY.search(text)):
        return False
    # JSON lines may end in such a record; here it is in the first and only one.
    first_line = text.split("\n", 1)[0]
    if history.start() < len(first_line):
        return True
    try:
        json.loads(first_line)
    except (ValueError, RecursionError):
        return True
    return False


def _read(source: Source, wanted: Wanted) -> Log:
    data = source.read_utf8()
    damage: list[Damage] = []
    found = _read_large(data, wanted) if len(data) >= frame.LARGE_BYTES else None
    if found is None:
        text = data.decode("utf-8", "replace")
        history = _HISTORY.search(text)
        if history is None:
            raise GradclipError(f"{source.path}: no log_history; expected the state of a Hugging Face Trainer")
        records = Records()
        for record in values_in(text, damage, history.end()):
            if type(record) is dict:
                records.add(record)
        if not records.num_rows:
            what = f"a broken log_history ({damage[0].what})" if damage else "an empty log_history"
            raise GradclipError(f"{source.path}: {what}; expected what the Trainer logged", hint="was the run saved before its first log?")
        found = records.found(wanted, also=[_SUMMARY_KEY])
    columns = found.columns
    summary = columns.pop(_SUMMARY_KEY, None)
    if summary is not None:
        columns = without_rows(columns, summary.at)
    roles = {role: key for role, key in ((LOSS, "loss"), (GRAD_NORM, "grad_norm"), (LR, "learning_rate")) if key in columns}
    return Log(
        "trainer-state",
        columns,
        step_key="step" if "step" in columns else None,
        roles=roles,
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="the Hugging Face Trainer logs what clip_grad_norm_ returned",
        sampling={LOSS: _loss_sampling(data, columns), GRAD_NORM: Sampling.INSTANT, LR: Sampling.INSTANT},
        damage=(*damage, *found.damage),
        notes=tuple(found.notes),
        empty=found.empty,
    )


def _read_large(data: bytes, wanted: Wanted) -> Found | None:
    """A history of flat records through polars, or None where it is not so."""
    start = data.find(b"[", data.find(b'"log_history"')) + 1
    end = data.find(b"]", start)
    return from_regular_lines(_pieces(data, start, end), wanted, also=[_SUMMARY_KEY]) if 0 < start < end else None


def _pieces(data: bytes, at: int, end: int) -> Iterator[bytes]:
    """The records as lines."""
    while at < end:
        cut = data.rfind(b"}", at, min(end, at + frame.PIECE_BYTES)) + 1
        cut = cut if cut > at else end
        # A line end within a number stays a break in it.
        yield data[at:cut].replace(b"\n", b" ").lstrip(b", \r").replace(b"},", b"}\n")
        at = cut


def _loss_sampling(data: bytes, columns: dict[str, Column]) -> Sampling:
    # The Trainer sorts its keys: this one stands behind the history.
    at = data.rfind(b'"logging_steps"')
    logging_steps = _LOGGING_STEPS.match(data, at) if at >= 0 else None
    if logging_steps and float(logging_steps[1]) == 1:
        return Sampling.INSTANT
    if logging_steps and float(logging_steps[1]) > 1:
        return Sampling.WINDOW_MEAN
    if "step" in columns and LOSS in columns:
        return window_of(columns["step"], columns[LOSS])
    return Sampling.UNKNOWN


READER = Reader("trainer-state", "Hugging Face trainer_state.json", _claims, _read)
