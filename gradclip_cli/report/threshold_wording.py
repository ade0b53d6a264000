"""The words and rows that the reports of `gradclip suggest-threshold` share. Nothing here judges."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

import numpy as np

from gradclip_cli.model.threshold import Candidate, Method, Phase, Suggestion
from gradclip_cli.report.snippet import pasted
from gradclip_cli.wording import count, cut, number, share, span

_DIGITS = 3
_LONGEST_SOURCE = 40
_MOST_NOTES = 16
_EXCLUDED = (
    ("warmup", "warm-up"),
    ("nonfinite", "not finite"),
    ("exploding", "exploding"),
    ("aftermath", "around explosions and loss spikes, or after divergence"),
    ("zero", "zero"),
)


def answer(s: Suggestion) -> str:
    """ "max_norm 1.37 (1.31 to 1.46)", or that there is none."""
    if s.max_norm is None or s.low is None or s.high is None:
        return "no number"
    return f"max_norm {number(s.max_norm, _DIGITS)} ({number(s.low, _DIGITS)} to {number(s.high, _DIGITS)})"


def headline(s: Suggestion) -> str:
    """One or two plain sentences. May quote the source, so escape it."""
    if s.max_norm is None:
        return f"{sentence(s.refusal)} To do: {s.hint}."
    chosen = recommended(s)
    clips = share(chosen.clipped_fraction)
    if not len(s.exploding):
        caught = "; no step exploded in this log"
    elif chosen.exploding_caught == len(s.exploding):
        caught = f", and {'all ' if len(s.exploding) > 1 else ''}{count(len(s.exploding), 'exploding one')}"
    else:
        caught = f", but only {chosen.exploding_caught:,} of {count(len(s.exploding), 'exploding one')}"
    kind = {
        Method.SAFETY_NET: "A safety net",
        Method.PERCENTILE: "As asked",
        Method.TARGET_CLIP_FRACTION: "As asked",
    }[s.method]
    return f"{kind}: it would have clipped {clips} of the healthy steps{caught}."


def recommended(s: Suggestion) -> Candidate:
    """The row of the suggestion itself."""
    return next(c for c in s.candidates if c.label == "recommended")


def facts(s: Suggestion) -> list[tuple[str, str]]:
    """What was read, name and detail."""
    rows = [("runs", f"{len(s.pooled):,}")] if s.pooled else [("source", s.format)]
    if len(s.norms):
        unit = "step" if s.steps_known else "row"
        first, last = int(s.steps.min()), int(s.steps.max())
        rows.append(("healthy", f"{count(len(s.norms), 'norm')}, {unit}{'s' if last > first else ''} {span(first, last)}"))
    left_out = [f"{n:,} {what}" for name, what in _EXCLUDED if (n := getattr(s.excluded, name))]
    if left_out:
        rows.append(("left out", ", ".join(left_out)))
    if len(s.norms):
        median, high = np.percentile(s.norms / 2, (50, 100)) * 2
        rows.append(("usual", f"median {number(median, _DIGITS)}, largest {number(high, _DIGITS)}"))
    if s.own_max_norm is not None:
        rows.append(("own", f"max_norm {number(s.own_max_norm, 4)}"))
    return rows


CANDIDATE_HEADER = ("", "max_norm", "clips", "exploding", "median coef", "worst coef")


def candidate_rows(s: Suggestion) -> list[tuple[str, ...]]:
    """The table of candidates; `CANDIDATE_HEADER` names the columns. The suggestion has a ">" before its name."""
    return [_candidate(s, c) for c in s.candidates]


def _candidate(s: Suggestion, c: Candidate) -> tuple[str, ...]:
    names = {"own": "run's own", "recommended": f"> p{c.percentile:.12g}" if c.percentile is not None else ">"}
    total = len(s.exploding)
    coefs = (number(c.median_coef, 2), number(c.worst_coef, 2)) if c.clipped_fraction else ("", "")
    value = number(c.max_norm, _DIGITS)
    return (names.get(c.label, c.label), value, share(c.clipped_fraction), f"{c.exploding_caught:,} of {total:,}" if total else "-", *coefs)


def phase_header(s: Suggestion) -> tuple[str, ...]:
    """The columns of `phase_rows`."""
    where = "run" if s.pooled else "steps" if s.steps_known else "rows"
    adaptive = tuple({"autoclip": "AutoClip", "zclip": "ZClip"}[a.rule] for a in s.adaptive)
    clips = () if s.max_norm is None else ("clips",)
    return (where, "norms", "median", f"p{s.percentile:.12g}", *clips, *adaptive)


def phase_rows(s: Suggestion) -> list[tuple[str, ...]]:
    """The parts of the run side by side."""
    return [_phase(s, i, phase) for i, phase in enumerate(s.phases)]


def _phase(s: Suggestion, index: int, phase: Phase) -> tuple[str, ...]:
    known = phase.first_step is not None
    where = phase.source or (span(phase.first_step, phase.last_step) if known and phase.first_step is not None else f"part {index + 1}")
    clips = () if s.max_norm is None else (share(phase.clipped_fraction),)
    adaptive = (number(a.phase_bounds[index], _DIGITS) for a in s.adaptive)
    return (where, f"{phase.count:,}", number(phase.median, _DIGITS), number(phase.max_norm, _DIGITS), *clips, *adaptive)


def notes_title(s: Suggestion) -> str:
    """What stands above the notes."""
    return "Notes" if s.max_norm is None else "Before you use it"


def notes(s: Suggestion) -> list[str]:
    """What to know before using it, a long list cut. They may quote the source and must be escaped."""
    return cut(s.notes, _MOST_NOTES)


def shows_phases(s: Suggestion) -> bool:
    """Whether the parts differ enough to be worth a table, or are runs."""
    return bool(s.pooled) or bool(s.adaptive)


def short_sources(suggestions: Sequence[Suggestion]) -> list[str]:
    """The sources without the directory that all are in."""
    sources = [s.source for s in suggestions]
    folders = {os.path.dirname(source) for source in sources}
    if len(sources) < 2 or len({os.path.isabs(folder) for folder in folders}) > 1:
        return sources
    shared = os.path.commonpath(folders)
    return [os.path.relpath(source, shared) if shared else source for source in sources]


def next_commands(s: Suggestion) -> list[str]:
    """Commands worth typing now."""
    source = s.source
    if s.max_norm is None or s.pooled or not source.isprintable() or len(source) > _LONGEST_SOURCE or "#" in source:
        return []
    quoted = shlex.quote(source)
    return [
        f"gradclip suggest-threshold {quoted} --snippet torch",
        f"gradclip analyze {quoted} --max-norm {pasted(s.max_norm)}",
    ]


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
