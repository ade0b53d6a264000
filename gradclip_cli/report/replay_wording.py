"""The sentences and rows that the text and Markdown reports of `gradclip replay` share. Nothing here judges."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradclip_cli.model.finding import Finding
from gradclip_cli.model.replay import Replay, ReplayStep
from gradclip_cli.model.run import NormStage
from gradclip_cli.wording import count, number, span

# A report for people: what is longer is in the JSON.
_MOST_STEPS = 16
_MOST_BARS = 24
_MOST_OF_A_RULE = 3
_HOW = {
    "global": "global norm",
    "per-tensor": "each tensor on its own",
    "per-group": "each group on its own",
    "value": "values (clip_grad_value_)",
}


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: its title, the names of its columns, and cells that may quote names and must be escaped."""

    title: str
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    remark: str = ""


def headline(replay: Replay) -> str:
    """One or two sentences: what was read, and what clipping does to it."""
    steps = replay.steps
    numbers = f"step {steps[0].step:,}" if len(steps) == 1 else f"{count(len(steps), 'step')} ({span(steps[0].step, steps[-1].step)})"
    most = max(steps, key=lambda s: s.numel)
    first = f"NOT THE WHOLE GRADIENT: {replay.partial}. " if replay.partial else ""
    sentence = f"{first}{numbers}, {count(len(most.tensors), 'tensor')}, {count(most.numel, 'element')}, {' and '.join(replay.dtypes)}."
    bad = sum(not math.isfinite(s.total_norm) for s in steps)
    if bad:
        sentence += f" The norm is not finite at {count(bad, 'step')}."
    if not replay.max_norms or replay.partial:
        return sentence
    coefficients = [s.clips[0].coefficient for s in steps if s.clips[0].acts]
    bound = number(replay.max_norms[0], 4)
    if not coefficients:
        return f"{sentence} Clipping at {bound} changes none of them."
    often = f"{len(coefficients):,} of {len(steps):,}"
    return f"{sentence} Clipping at {bound} acts on {often}, by a factor down to {number(min(coefficients))}."


def tables(replay: Replay) -> list[Rows]:
    """Everything that is numbers, in the order of interest."""
    shown = _shown(replay.steps)
    wanted = (_norms(replay, shown), _updates(replay, shown), _others(replay), _bounds(replay), _histogram(replay))
    return [rows for rows in wanted if rows is not None]


def findings(replay: Replay) -> tuple[list[Finding], dict[str, int]]:
    """The findings a report for people shows, and how many of each rule it leaves out."""
    seen = Counter[str]()
    shown = []
    for f in replay.findings:
        seen[f.rule] += 1
        if seen[f.rule] <= _MOST_OF_A_RULE:
            shown.append(f)
    return shown, {rule: n - _MOST_OF_A_RULE for rule, n in seen.items() if n > _MOST_OF_A_RULE}


def _shown(steps: Sequence[ReplayStep]) -> list[ReplayStep]:
    """The steps with the largest norms, where there are many; those that are not finite first of all."""
    if len(steps) <= _MOST_STEPS:
        return list(steps)
    order = sorted(steps, key=lambda s: (math.isfinite(s.total_norm), -s.total_norm if math.isfinite(s.total_norm) else 0.0))
    return sorted(order[:_MOST_STEPS], key=lambda s: s.step)


def _norms(replay: Replay, shown: Sequence[ReplayStep]) -> Rows:
    bound = replay.max_norms[0] if replay.max_norms else None
    # What the training saw before it clipped, where the values are those from afterwards.
    told = any(s.stage is NormStage.POST_CLIP and s.claimed_total_norm is not None for s in replay.steps)
    clipping = () if bound is None else ("coefficient", "after", "cosine")
    header = ("step", *(("in training",) if told else ()), "norm", *clipping, "largest share")
    cells = []
    for step in shown:
        clip = step.clips[0] if step.clips else None
        clipped = () if clip is None else (number(clip.coefficient, 4), number(clip.clipped_norm, 4), number(round(clip.cosine, 9), 4))
        before = () if not told else ("" if step.claimed_total_norm is None else number(step.claimed_total_norm, 4),)
        cells.append((f"{step.step:,}", *before, number(step.total_norm, 6), *clipped, _largest(step)))
    norm = "largest absolute value" if math.isinf(replay.norm_type) else f"{number(replay.norm_type)}-norm"
    norm += " of a part of the gradient" if replay.partial else ""
    title = f"{norm}, added up in float64" + ("" if bound is None else f", clipped at max_norm {number(bound, 4)}")
    left_out = len(replay.steps) - len(shown)
    remark = f"{count(left_out, 'step')} with smaller norms left out: --format json lists them all" if left_out else ""
    return Rows(title[:1].upper() + title[1:], header, tuple(cells), remark)


def _largest(step: ReplayStep) -> str:
    if step.nonfinite:
        names = ", ".join(t.name for t in step.nonfinite[:2])
        return f"not finite: {names}" + (f" and {len(step.nonfinite) - 2:,} more" if len(step.nonfinite) > 2 else "")
    if not step.top_tensors:
        return ""
    top = step.top_tensors[0]
    return f"{'>99%' if 0.995 <= top.share < 1 else f'{top.share:.0%}'} {top.name}"


def _updates(replay: Replay, shown: Sequence[ReplayStep]) -> Rows | None:
    if replay.optimizer is None or not replay.max_norms:
        return None
    cells = []
    for step in shown:
        clip = step.clips[0]
        if step.update_norm is not None and clip.update_norm is not None:
            kept = clip.update_norm / step.update_norm if step.update_norm else math.nan
            cells.append(
                (
                    f"{step.step:,}",
                    number(clip.coefficient, 4),
                    number(step.update_norm, 4),
                    number(clip.update_norm, 4),
                    number(kept, 4) if math.isfinite(kept) else "-",
                )
            )
    arguments = ", ".join(f"{key}={value}" for key, value in replay.optimizer.arguments.items())
    title = f"How far {replay.optimizer.name}({arguments}) moves the parameters"
    header = ("step", "gradient kept", "unclipped", "clipped", "movement kept")
    return Rows(title, header, tuple(cells), _removed(replay))


def _removed(replay: Replay) -> str:
    """What clipping took away in all, over the steps on which it acts."""
    pairs = [
        (s.total_norm, s.clips[0].clipped_norm, s.update_norm, s.clips[0].update_norm)
        for s in replay.steps
        if s.clips[0].acts and s.update_norm is not None and s.clips[0].update_norm is not None and math.isfinite(s.update_norm)
    ]
    if not pairs:
        return ""
    before, after, moved, clipped = (math.fsum(column) for column in zip(*pairs, strict=True))
    if not before or not moved:
        return ""
    gradient, movement = 1 - after / before, 1 - clipped / moved
    rest = f"{movement:.0%} of" if round(movement, 2) >= 0 else f"added {-movement:.0%} to"
    return f"Over {count(len(pairs), 'clipped step')} clipping took away {gradient:.0%} of the gradient and {rest} the movement."


def _others(replay: Replay) -> Rows | None:
    """Other ways of clipping on the step where the difference is largest."""
    finite = (s for s in replay.steps if math.isfinite(s.total_norm))
    candidates = [s for s in finite if s.alternatives and (s.clips and s.clips[0].acts or replay.clip_values)]
    if not candidates:
        return None
    step = max(candidates, key=lambda s: s.total_norm)
    cells = tuple(
        (
            _HOW[a.how],
            number(a.bound, 4),
            number(a.clipped_norm, 4),
            f"{a.angle_degrees:.3g}°",
            f"{a.changed_fraction:.3g}",
            "" if a.lowest_coefficient is None else number(a.lowest_coefficient),
        )
        for a in step.alternatives
    )
    header = ("clipped by", "bound", "after", "turned by", "changed", "lowest coefficient")
    return Rows(f"Other ways, on step {step.step:,} (norm {number(step.total_norm, 4)})", header, cells)


def _bounds(replay: Replay) -> Rows | None:
    """Several bounds side by side."""
    if len(replay.max_norms) < 2:
        return None
    finite = [s for s in replay.steps if math.isfinite(s.total_norm)]
    cells = []
    for i, bound in enumerate(replay.max_norms):
        clipped = np.array([s.clips[i].coefficient for s in finite if s.clips[i].acts])
        typical, lowest = (number(float(f(clipped))) if len(clipped) else "-" for f in (np.median, np.min))
        cells.append((number(bound, 4), f"{len(clipped):,} of {len(finite):,}", typical, lowest))
    return Rows("Bounds", ("max_norm", "steps clipped", "median coefficient", "lowest"), tuple(cells))


def _histogram(replay: Replay) -> Rows | None:
    counted = [s.histogram for s in replay.steps if s.histogram is not None]
    if not counted:
        return None
    counts = np.sum(counted, axis=0)
    total = max(int(counts.sum()), 1)
    used = np.flatnonzero(counts[1:]) + 1
    cells = [("0", f"{counts[0] / total:.2%}", _bar(counts[0] / total))] if counts[0] else []
    if len(used):
        width = 1
        while (used[-1] - used[0]) // width >= _MOST_BARS:
            width *= 2
        for k in range(int(used[0]), int(used[-1]) + 1, width):
            share = counts[k : k + width].sum() / total
            cells.append((f"from {number(2.0 ** (k - 1023), 2)} (2^{k - 1023})", f"{share:.2%}", _bar(share)))
    return Rows("Magnitudes of the finite elements, all steps", ("", "share", ""), tuple(cells))


def _bar(share: float) -> str:
    return "━" * round(40 * share)
