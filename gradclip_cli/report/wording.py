"""The sentences and numbers that the text and Markdown reports share. Nothing here judges: it says what was found."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradclip_cli.model.finding import Analysis, Finding, Severity, Skipped, Verdict
from gradclip_cli.model.run import (
    CLIP_COEF,
    GRAD_NORM,
    LOSS,
    LOSS_SCALE,
    LR,
    MAX_NORM,
    TENSOR_PREFIX,
    NormStage,
    Run,
    Sampling,
    Series,
    Steps,
)
from gradclip_cli.wording import count, cut, id_ranges, number, span, times

if TYPE_CHECKING:
    from gradclip_cli.model.threshold import WhatIf

_STAGE = {
    NormStage.PRE_CLIP: "before clipping",
    NormStage.POST_CLIP: "after clipping",
    NormStage.UNKNOWN: "before or after clipping: unknown",
}
_NAMES = {LOSS: "loss", GRAD_NORM: "norm", LR: "lr", LOSS_SCALE: "loss scale", CLIP_COEF: "clip coef", MAX_NORM: "max_norm"}
# The rules that make a verdict.
_DECIDING = {
    Verdict.DIVERGED: ("GC103", "GC105"),
    Verdict.NONFINITE: ("GC105", "GC104", "GC303"),
    Verdict.SPIKED: ("GC102", "GC103"),
    Verdict.EXPLODED: ("GC101",),
    Verdict.STABLE: (),
    Verdict.CANNOT_JUDGE: ("GC306",),
}
# Rules after which the next question is what max_norm should be.
_THRESHOLD_RULES = ("GC101", "GC201", "GC410")
_SEVERITIES = list(Severity)
# Evidence that stands in for the steps of a finding where the log has none.
_ROWS = ("first_row", "last_row")
# A report for people: what is longer is in the JSON.
_MOST_ROWS = 12
_MOST_ROWS_A_RULE = 4
_LONGEST_SOURCE = 36


@dataclass(frozen=True, slots=True)
class Fact:
    """A line about what was read. `key` comes from the source and must be escaped."""

    name: str
    key: str
    detail: str


def step_range(first: int | None, last: int | None) -> str:
    """Inclusive, "" where there is none."""
    if first is None:
        return "" if last is None else f"{last:,}"
    return span(first, last)


def where(finding: Finding) -> str:
    """The steps of a finding, or its rows where the log has no steps."""
    rows = [int(v) for k in _ROWS if (v := finding.evidence.get(k)) is not None]
    if finding.first_step is not None or not rows:
        return step_range(finding.first_step, finding.last_step)
    return f"row {step_range(rows[0], rows[-1])}"


def place(run: Run, steps: Steps, index: int) -> str:
    """The place of a point: "step 4,120", or "row 17" where the log has no steps."""
    return f"{'step' if run.steps_known else 'row'} {int(steps[index]):,}"


def interval(series: Series) -> str:
    """How often a quantity was logged, "" where that cannot be said."""
    if len(series) < 2:
        return ""
    gaps = np.diff(series.steps)
    usual = int(np.median(gaps))
    if np.mean(gaps == usual) < 0.9:
        return f"at irregular steps, {int(gaps.min()):,} to {int(gaps.max()):,} apart"
    return "every step" if usual == 1 else f"every {usual:,} steps"


def short_sources(analyses: Sequence[Analysis]) -> list[str]:
    """The sources without the directory that all of them are in; the whole source of a single run."""
    sources = [a.run.source for a in analyses]
    folders = {os.path.dirname(source) for source in sources}
    if len(sources) < 2 or len({os.path.isabs(folder) for folder in folders}) > 1:
        return sources
    shared = os.path.commonpath(folders)
    return [os.path.relpath(source, shared) if shared else source for source in sources]


def steps_logged(run: Run) -> str:
    """How many steps the log has, and which."""
    steps = run.steps
    if not len(steps):
        return "no points"
    if not run.steps_known:
        return f"{count(len(steps), 'row')} without step numbers"
    return f"{count(len(steps), 'logged step')} ({step_range(int(steps[0]), int(steps[-1]))})"


def headline(analysis: Analysis) -> str:
    """One or two plain sentences that a person in a hurry believes rightly. May quote a finding, so escape it."""
    match analysis.verdict:
        case Verdict.DIVERGED:
            return _diverged(analysis)
        case Verdict.NONFINITE:
            return _nonfinite(analysis)
        case Verdict.SPIKED:
            return _spiked(analysis)
        case Verdict.EXPLODED:
            return _exploded(analysis)
        case Verdict.STABLE:
            return _stable(analysis)
        case Verdict.CANNOT_JUDGE:
            return _cannot_judge(analysis)


def facts(run: Run) -> list[Fact]:
    """What was read: steps, then a line for every series; tensors are counted."""
    result = [Fact("source", "", f"{run.format}, {steps_logged(run)}")]
    result += [Fact(name, run.series[s].key, _describe(run, run.series[s])) for s, name in _NAMES.items() if s in run.series]
    if num_tensors := sum(name.startswith(TENSOR_PREFIX) for name in run.series):
        result.append(Fact("tensors", "", f"{count(num_tensors, 'per-tensor gradient norm')}"))
    return result


def shortened(analysis: Analysis) -> tuple[list[Finding], dict[str, int]]:
    """The findings a report for people shows, and how many of each rule it leaves out: what made the verdict first, then by severity."""
    deciding = _deciding(analysis)
    ordered = sorted(analysis.findings, key=lambda f: (f is not deciding, _SEVERITIES.index(f.severity)))
    if len(ordered) <= _MOST_ROWS:
        return ordered, {}
    seen: dict[str, int] = {}
    shown = []
    for f in ordered:
        seen[f.rule] = seen.get(f.rule, 0) + 1
        if seen[f.rule] <= _MOST_ROWS_A_RULE:
            shown.append(f)
    return shown, {rule: n - _MOST_ROWS_A_RULE for rule, n in seen.items() if n > _MOST_ROWS_A_RULE}


def more(left_out: Mapping[str, int]) -> str:
    """Says what `shortened` left out."""
    return f"{', '.join(f'+{n:,} {rule}' for rule, n in left_out.items())}: --format json lists them all"


def notes(run: Run) -> list[str]:
    """The notes of a run, a long list cut. They may quote the source and must be escaped."""
    return cut(run.notes, _MOST_ROWS)


def evidence(finding: Finding) -> list[str]:
    """The numbers behind a finding, "ratio 57.3" each, what led to it last."""
    parts = [f"{name} {number(value)}" for name, value in finding.evidence.items() if name not in _ROWS]
    if finding.led_by is not None:
        led = f"led by {finding.led_by.rule}"
        if finding.led_by.first_step is not None:
            led += f" at step {finding.led_by.first_step:,}"
        if finding.led_by.lead_steps is not None:
            led += f", {count(finding.led_by.lead_steps, 'step')} before" if finding.led_by.lead_steps else ", in the same step"
        parts.append(led)
    return parts


def skipped(rules: Sequence[Skipped]) -> list[tuple[str, str]]:
    """Rules that could not judge and the reason, those of one reason together."""
    by_reason: dict[str, list[str]] = {}
    for s in rules:
        by_reason.setdefault(s.reason, []).append(s.rule)
    return [(id_ranges(ids), reason) for reason, ids in by_reason.items()]


def next_commands(analysis: Analysis) -> list[tuple[str, str]]:
    """Commands worth typing now, each with what it gives."""
    commands = []
    if analysis.findings:
        finding = _deciding(analysis) or min(analysis.findings, key=lambda f: _SEVERITIES.index(f.severity))
        commands.append((f"gradclip explain {finding.rule}", "what it means and what to do"))
    source = analysis.run.source
    typable = source.isprintable() and len(source) <= _LONGEST_SOURCE and "#" not in source
    if typable and _needs_threshold(analysis):
        commands.append((f"gradclip suggest-threshold {shlex.quote(source)}", "what max_norm should be"))
    if typable and analysis.run.series:
        commands.append((f"gradclip analyze {shlex.quote(source)} --plot run.png", "the large picture"))
    return commands


def _needs_threshold(analysis: Analysis) -> bool:
    """Whether another bound may be the remedy, and the norms are such that one can be taken from them."""
    norm = analysis.run.grad_norm
    if norm is None or norm.sampling is Sampling.WINDOW_MEAN or analysis.run.norm_stage is NormStage.POST_CLIP:
        return False
    return any(f.rule in _THRESHOLD_RULES for f in analysis.findings)


def what_if(analysis: Analysis, finding: Finding) -> str:
    """What another threshold would have done to the steps of a finding, "" where nobody asked or nothing can be said."""
    if analysis.what_if is None or finding.what_if is None:
        return ""
    return f"at max_norm {number(analysis.what_if.max_norm, 4)}: {finding.what_if.message}"


def what_if_summary(asked: WhatIf) -> tuple[str, str]:
    """A title and two sentences on the whole run."""
    return f"Clipping at {number(asked.max_norm, 4)} instead", f"{_sentence(asked.summary)} {_sentence(asked.limit)}"


def tally(findings: Sequence[Finding]) -> str:
    """The rules that fired, the gravest first: "GC103, 3 × GC101"."""
    counts: dict[str, int] = {}
    for f in sorted(findings, key=lambda f: _SEVERITIES.index(f.severity)):
        counts[f.rule] = counts.get(f.rule, 0) + 1
    return ", ".join(rule if n == 1 else f"{n:,} × {rule}" for rule, n in counts.items())


def _describe(run: Run, series: Series) -> str:
    values = series.values
    finite = values[np.isfinite(values)]
    parts = [count(len(values), "point"), interval(series) if run.steps_known else ""]
    if len(finite) < len(values):
        parts.append(f"{len(values) - len(finite):,} not finite")
    if len(finite):
        low, high = finite.min(), finite.max()
        parts.append(f"always {number(low, 3)}" if low == high else f"{number(low, 3)} to {number(high, 3)}")
    if series.name == GRAD_NORM:
        if len(finite):
            # Halved: the sum of two float64 may not be one.
            parts.append(f"median {number(2 * np.median(finite / 2), 3)}")
        parts.append(_STAGE[run.norm_stage] + (f" ({run.stage_reason})" if run.stage_reason else ""))
        if run.max_norm is not None and MAX_NORM not in run.series:
            parts.append(f"max_norm {number(run.max_norm, 4)}")
    if series.sampling is Sampling.WINDOW_MEAN:
        parts.append("each a mean over the steps since the one before")
    return ", ".join(filter(None, parts))


def _diverged(analysis: Analysis) -> str:
    run, found, loss = analysis.run, analysis.detection, analysis.run.loss
    if loss is not None and len(loss):
        finite = np.isfinite(loss.values)
        fatal = next((s for s in found.spikes if s.fatal), None)
        if fatal is not None:
            cause = ""
            if fatal.led_by is not None and run.grad_norm is not None:
                explosion = found.explosions[fatal.led_by]
                peak = f"exploded to {times(explosion.ratio)} its usual level"
                lead = int(loss.steps[fatal.first]) - int(run.grad_norm.steps[explosion.first])
                unit = "step" if run.steps_known else "row"
                cause = f", {count(lead, unit)} after the gradient norm had {peak}," if lead > 0 else f" as the gradient norm {peak},"
            end = "never came back" if finite[-1] else "ended non-finite"
            return f"The loss left its trend at {place(run, loss.steps, fatal.first)}{cause} and {end}."
        if not finite[-1]:
            since = int(np.flatnonzero(finite)[-1]) + 1 if finite.any() else 0
            return f"The loss is not a finite number from {place(run, loss.steps, since)} to the end."
    return _quote(analysis) or "The run never came back."


def _nonfinite(analysis: Analysis) -> str:
    run = analysis.run
    parts = []
    for name, series in (("the loss", run.loss), ("the gradient norm", run.grad_norm)):
        if series is not None and len(bad := np.flatnonzero(~np.isfinite(series.values))):
            to_end = ", to the end of the log" if len(bad) > 1 and bad[-1] == len(series) - 1 else ""
            parts.append(f"{name} at {count(len(bad), 'logged step')} (first: {place(run, series.steps, int(bad[0]))}{to_end})")
    if not parts:
        return _quote(analysis) or "Values that are not finite were logged."
    sentence = f"Not a finite number: {', '.join(parts)}."
    if hidden := next((f for f in analysis.findings if f.rule == "GC303"), None):
        sentence += f" {_capital(hidden.message)}."
    if analysis.detection.spikes:
        sentence += f" {_spiked(analysis)}"
    elif analysis.detection.explosions:
        sentence += f" {_exploded(analysis)}"
    return sentence


def _spiked(analysis: Analysis) -> str:
    spikes, loss = analysis.detection.spikes, analysis.run.loss
    if not spikes or loss is None or (len(spikes) == 1 and spikes[0].first <= 1 and spikes[0].recovered is False):
        return _sentence(_quote(analysis) or "the loss spiked")
    top = max(spikes, key=lambda s: s.height)
    size = f"{number(top.height, 3)} above {number(top.level, 3)}"
    led = sum(s.led_by is not None for s in spikes)
    open_ = sum(s.recovered is None for s in spikes)
    lasting = sum(s.recovered is False for s in spikes)
    if len(spikes) == 1:
        cause = ", after the gradient norm exploded" if led else ""
        end = "the log ends too soon to tell whether it came back" if open_ else "it did not come back fully" if lasting else "it came back"
        return f"The loss spiked at {place(analysis.run, loss.steps, top.first)} ({size}){cause}; {end}."
    cause = f", {led:,} after the gradient norm exploded" if led else ""
    ends = [
        f"{lasting:,} did not come back fully" if lasting else "",
        f"for {open_:,} the log ends too soon to tell" if open_ else "",
    ]
    end = ", ".join(filter(None, ends)) or "all came back"
    return f"{len(spikes):,} loss spikes, the highest at {place(analysis.run, loss.steps, top.first)} ({size}){cause}; {end}."


def _exploded(analysis: Analysis) -> str:
    explosions, norm = analysis.detection.explosions, analysis.run.grad_norm
    if not explosions or norm is None:
        return _quote(analysis) or "The gradient norm exploded."
    top = max(explosions, key=lambda e: e.ratio)
    peak = f"{times(top.ratio)} its usual level at {place(analysis.run, norm.steps, top.peak)}"
    often = "" if len(explosions) == 1 else f" {len(explosions):,} times, at worst"
    what = f"The gradient norm exploded{often} to {peak}"
    if analysis.run.loss is None:
        return f"{what}; no loss is logged to tell whether it followed."
    if not analysis.detection.judged_loss:
        return f"{what}; whether the loss followed could not be judged."
    gap = _gap(analysis.run, analysis.run.loss)
    return f"{what}; the loss did not spike." if gap is None else f"{what}; no spike shows in the loss, but {gap}."


def _stable(analysis: Analysis) -> str:
    run, found = analysis.run, analysis.detection
    events = " and ".join(filter(None, ["no exploding step" if found.judged_norm else "", "no loss spike" if found.judged_loss else ""]))
    limits = "; ".join(_limits(analysis))
    if limits:
        sentence = f"As far as this log can show, {events} in {steps_logged(run)}. {_capital(limits)}."
    else:
        sentence = f"{_capital(events)} in {steps_logged(run)}."
    # Stable says nothing of a threshold that does not fit, a growing norm or a damaged file.
    return sentence + _but_see(analysis)


def _but_see(analysis: Analysis) -> str:
    """Warnings and errors beside what made the verdict, "" where there are none."""
    deciding = _DECIDING[analysis.verdict]
    warned = dict.fromkeys(f"{f.name} ({f.rule})" for f in analysis.findings if f.severity is not Severity.INFO and f.rule not in deciding)
    return f" But see {', '.join(warned)}." if warned else ""


def _limits(analysis: Analysis) -> list[str]:
    """Why a run without events may still have had some."""
    run, found = analysis.run, analysis.detection
    limits = []
    for name, series, judged, event in (
        ("gradient norm", run.grad_norm, found.judged_norm, "an exploding step"),
        ("loss", run.loss, found.judged_loss, "a spike"),
    ):
        if series is None or not len(series):
            limits.append(f"no {name} is logged, so {event} cannot be seen")
        elif not judged:
            limits.append(f"the {name} could not be judged")
        elif judged < len(series) / 2:
            limits.append(f"only {judged:,} of {len(series):,} points of the {name} had enough history to be judged")
    norm = run.grad_norm
    if norm is not None and run.norm_stage is NormStage.POST_CLIP:
        limits.append("the norm was logged after clipping, which hides its peaks")
    main = norm if norm is not None else run.loss
    if main is not None and (gap := _gap(run, main)) is not None:
        limits.append(gap)
    if run.damage:
        limits.append("a part of the source could not be read")
    return limits


def _gap(run: Run, series: Series) -> str | None:
    """What lies unseen between the points of a series, None where every step was logged."""
    if not run.steps_known:
        return "how many steps lie between its rows is not known"
    gap = int(np.median(np.diff(series.steps))) if len(series) > 1 else 1
    if gap < 2:
        return None
    if series.sampling is Sampling.WINDOW_MEAN:
        return f"each point is a mean over {gap:,} steps, in which a short one drowns"
    return f"only one step in {gap:,} is logged, and what happens in between leaves no trace"


def _cannot_judge(analysis: Analysis) -> str:
    reason = _quote(analysis) or next((s.reason for rule in ("GC103", "GC102", "GC101") for s in analysis.skipped if s.rule == rule), "")
    reason = reason.rstrip(".") or "it holds neither a loss nor a gradient norm with enough points"
    return f"This log is no basis for a verdict. {_capital(reason)}.{_but_see(analysis)}"


def _sentence(text: str) -> str:
    return f"{_capital(text.rstrip('.'))}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _quote(analysis: Analysis) -> str:
    finding = _deciding(analysis)
    return "" if finding is None else finding.message


def _deciding(analysis: Analysis) -> Finding | None:
    """The finding that made the verdict."""
    return next((f for rule in _DECIDING[analysis.verdict] for f in analysis.findings if f.rule == rule), None)
