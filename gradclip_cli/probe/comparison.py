"""Twins side by side: the same seed under another `max_norm`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gradclip_cli.model.finding import Analysis, Verdict
from gradclip_cli.model.probe import Planted, Sighting, Twin
from gradclip_cli.model.run import LOSS
from gradclip_cli.probe.run import Trained
from gradclip_cli.probe.training import MAX_DROPPED
from gradclip_cli.wording import count, number, times

_LAST_FRACTION, _LEAST_LAST = 0.1, 10
# Final losses closer than this are the same, as are those closer than twice the error of their paired difference.
_SAME_FRACTION, _SAME_ERRORS = 0.02, 2.0
_SAME_FIRST = 1e-3
# The largest movements are about the same within this factor.
_SAME_MOVEMENT = 1.25
# A finding belongs to a fault that lies so many updates from its begin.
_NEAR = 1


def twin(label: str, max_norm: float, analysis: Analysis, trained: Trained, planted: Sequence[Planted]) -> Twin:
    """What a training came to, and what was found in its recorded run."""
    made = [u for u in trained.updates if not u.dropped]
    steps = np.array([u.step for u in made], np.int64)
    moved = np.array([u.moved for u in made])
    late = moved[len(moved) // 10 :]
    worst = len(moved) - len(late) + int(np.argmax(np.nan_to_num(late, nan=math.inf))) if len(late) else None
    dropped = sum(u.dropped for u in trained.updates)
    losses = np.array([u.loss for u in made])[_usual(steps, planted)]
    given_up = len(trained.updates) >= MAX_DROPPED and all(u.dropped for u in trained.updates[-MAX_DROPPED:])
    return Twin(
        label=label,
        max_norm=max_norm,
        analysis=analysis,
        sightings=tuple(Sighting(p, _found(analysis, p)) for p in planted),
        steps=steps,
        moved=moved,
        final_loss=math.nan if given_up else float(np.mean(_last(losses))),
        worst_update=math.nan if worst is None else float(moved[worst]),
        worst_step=0 if worst is None else int(steps[worst]),
        num_clipped=sum(u.norm > max_norm for u in made),
        num_dropped=dropped,
        recovered=_recovered(analysis),
        step_s=float(np.median([u.seconds for u in trained.updates])),
        ended=f"given up: the gradients of {MAX_DROPPED} batches in a row were not finite" if given_up else "",
    )


def compare(twins: Sequence[Twin]) -> tuple[str, ...]:
    """A sentence for each twin but the one that was not clipped (the first, where all were)."""
    base = next((t for t in twins if math.isinf(t.max_norm)), twins[0])
    return tuple(_sentence(base, t) for t in twins if t is not base)


def _usual(steps: npt.NDArray[np.int64], planted: Sequence[Planted]) -> npt.NDArray[np.bool_]:
    """Which updates nothing was planted in: the loss of a batch that was spoiled is not where the run ended. All, if none is left."""
    usual = np.ones(len(steps), np.bool_)
    for p in planted:
        usual &= (steps < p.step) | (steps > p.last_step)
    return usual if usual.any() else ~usual


def _last(losses: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return losses[-max(_LEAST_LAST, int(_LAST_FRACTION * len(losses))) :]


def _found(analysis: Analysis, planted: Planted) -> tuple[tuple[str, int], ...]:
    first, last = planted.step - _NEAR, planted.last_step + _NEAR
    return tuple(
        (f.rule, f.first_step)
        for f in sorted(analysis.findings, key=lambda f: f.rule)
        if f.rule.startswith("GC1") and f.first_step is not None and first <= f.first_step <= last
    )


def _recovered(analysis: Analysis) -> bool | None:
    if analysis.verdict is Verdict.DIVERGED:
        return False
    ends = [s.recovered for s in analysis.detection.spikes]
    if not ends or None in ends:
        return None
    return all(ends)


def _sentence(base: Twin, other: Twin) -> str:
    name = f"max_norm {number(other.max_norm, 4)}"
    rival = "without clipping" if math.isinf(base.max_norm) else f"at {number(base.max_norm, 4)}"
    if (firsts := _unlike(base, other)) is not None:
        return (
            f"{name} cannot be compared: its first loss was {firsts[1]:.6g}, {rival} {firsts[0]:.6g}, where twins begin alike. For the "
            "same seed the function must make the same model and batches, and make them anew whenever it is called."
        )
    if not other.num_clipped and not base.num_clipped:
        same = " The two runs are the same bit for bit." if _is_same(base, other) else ""
        return f"{name} never acted: every norm lay below it.{same}"
    acted = f"{name} acted on {other.num_clipped:,} of {count(len(other.steps), 'update')}"
    losses = f"final loss {number(other.final_loss)}, {rival} {number(base.final_loss)}"
    if not math.isfinite(other.final_loss) or not math.isfinite(base.final_loss):
        if math.isfinite(other.final_loss):
            return f"{acted} and the run survived what ended the one {rival}: {losses}."
        ended = "neither run" if not math.isfinite(base.final_loss) else "the run"
        return f"{acted}, and {ended} ended with a finite loss: {losses}."
    difference, error = _difference(base, other)
    if abs(difference) <= max(_SAME_FRACTION * abs(base.final_loss), _SAME_ERRORS * error):
        return f"{acted} and made no difference to where the run ended: {losses}.{_why(base, other)}"
    if difference < 0:
        saved = base.analysis.verdict is Verdict.DIVERGED and other.analysis.verdict is not Verdict.DIVERGED
        return f"{acted} and {'saved the run' if saved else 'helped'}: {losses}."
    return f"{acted} and cost something: {losses}."


def _unlike(base: Twin, other: Twin) -> tuple[float, float] | None:
    """The losses of the first update, before which no clipping could act, where they differ by more than the order of a sum makes."""
    a, b = base.analysis.run.series[LOSS], other.analysis.run.series[LOSS]
    first, second = float(a.values[0]), float(b.values[0])
    alike = a.steps[0] != b.steps[0] or math.isclose(first, second, rel_tol=_SAME_FIRST) or math.isnan(first) or math.isnan(second)
    return None if alike else (first, second)


def _difference(base: Twin, other: Twin) -> tuple[float, float]:
    """Of the final losses, on the same batches, and its standard error."""
    a, b = base.analysis.run.series[LOSS], other.analysis.run.series[LOSS]
    common, i, j = np.intersect1d(a.steps, b.steps, return_indices=True)
    paired = _last((b.values[j] - a.values[i])[_usual(common, [s.planted for s in base.sightings])])
    return float(paired.mean()), float(paired.std(ddof=1) / math.sqrt(len(paired))) if len(paired) > 1 else 0.0


def _is_same(base: Twin, other: Twin) -> bool:
    a, b = (t.analysis.run.series[LOSS].values for t in (base, other))
    return np.array_equal(base.moved, other.moved, equal_nan=True) and np.array_equal(a, b, equal_nan=True)


def _why(base: Twin, other: Twin) -> str:
    moved, rival = other.worst_update, base.worst_update
    if not (math.isfinite(moved) and math.isfinite(rival) and moved > 0 and rival > 0):
        return ""
    ratio = rival / moved
    if max(ratio, 1 / ratio) <= _SAME_MOVEMENT:
        return (
            f" The largest movement of the parameters was about the same as well ({number(moved)} and {number(rival)}): max_norm bounds "
            "the gradient, and the optimizer and its learning rate make a movement of it."
        )
    return f" The largest movement of the parameters was {times(ratio)} as large without it." if ratio > 1 else ""
