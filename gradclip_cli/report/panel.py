"""What the pictures show, whichever way they are drawn: a panel for the loss, one for the gradient norm, events marked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from gradclip_cli.model.finding import Analysis
from gradclip_cli.model.run import MAX_NORM, NormStage, Run, Series
from gradclip_cli.report import wording
from gradclip_cli.report.decimate import Floats
from gradclip_cli.wording import count, number, times

if TYPE_CHECKING:
    from gradclip_cli.model.detection import Baseline

# Where a linear axis would show most of the run as a flat line: a range of two decades, or one of which
# nearly all points take up a small part only.
_LINEAR_RATIO = 100.0
_FLAT_RATIO = 5.0
_FLAT_FRACTION = 0.15
_SAMPLE = 10_000


@dataclass(frozen=True, slots=True)
class Scale:
    """How values become heights. Heights and their range are finite for whatever finite float64.

    Attributes:
        kind: `asinh` is linear near zero and logarithmic beyond, for a huge range of both signs.
        unit: log: the smallest positive value, everything at or below zero stands a factor of 2 below
            it; asinh: where linear turns into logarithmic; linear: the largest magnitude.
    """

    kind: Literal["linear", "log", "asinh"]
    unit: float = 1.0

    def height(self, values: Floats) -> Floats:
        """Heights on the scale, NaN for what is not finite."""
        values = np.where(np.isfinite(values), values, np.nan)
        if self.kind == "log":
            return np.log10(np.where(values <= 0, self.unit / 2, values))
        with np.errstate(over="ignore"):
            ratio = np.clip(values / self.unit, -1e300, 1e300)
        return np.arcsinh(ratio) if self.kind == "asinh" else ratio


@dataclass(frozen=True, slots=True)
class Mark:
    """An event on a panel.

    Attributes:
        first, last, peak: Indices into the series.
        at: Index of the point that its sign stands at: where a spike began, where a norm was highest.
        size: For choosing what to label when there is no room for all.
        label: A few words.
        fatal: The run is diverged because of it.
    """

    first: int
    last: int
    peak: int
    at: int
    size: float
    label: str
    fatal: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Panel:
    """One series with its events.

    Attributes:
        title: "loss" or "gradient norm".
        event: What a mark is called, singular and plural.
        max_norm: The clipping bound, where it is known.
        clipped_fraction: Share of the finite norms above it, where the norm is the one before clipping.
    """

    title: str
    event: tuple[str, str]
    series: Series
    scale: Scale
    marks: tuple[Mark, ...]
    baseline: Baseline | None
    max_norm: float | None = None
    clipped_fraction: float | None = None


def panels(analysis: Analysis) -> list[Panel]:
    """The panels of a run from top to bottom: loss, gradient norm, as far as they have points."""
    run, found = analysis.run, analysis.detection
    result = []
    if run.loss is not None and len(run.loss):
        steps = run.loss.steps
        marks = []
        for spike in found.spikes:
            label = f"{wording.place(run, steps, spike.first)}: +{number(spike.height)}"
            if spike.led_by is not None and run.grad_norm is not None and run.steps_known:
                lead = int(steps[spike.first]) - int(run.grad_norm.steps[found.explosions[spike.led_by].first])
                label += f", {count(lead, 'step')} after the explosion" if lead > 0 else ", with the explosion"
            if spike.fatal:
                label += ", never came back"
            size = np.inf if spike.fatal else spike.height
            marks.append(Mark(spike.first, spike.last, spike.peak, spike.first, size, label, spike.fatal))
        result.append(Panel("loss", ("spike", "spikes"), run.loss, _loss_scale(run.loss.values), tuple(marks), found.loss))
    if run.grad_norm is not None and len(run.grad_norm):
        norm = run.grad_norm
        marks = [
            Mark(e.first, e.last, e.peak, e.peak, e.ratio, f"{wording.place(run, norm.steps, e.peak)}: {times(e.ratio)}")
            for e in found.explosions
        ]
        max_norm = _max_norm(analysis)
        clipped = None
        if max_norm is not None and run.norm_stage is NormStage.PRE_CLIP and (num_finite := int(np.isfinite(norm.values).sum())):
            clipped = int((np.isfinite(norm.values) & (norm.values > max_norm)).sum()) / num_finite
        result.append(
            Panel(
                "gradient norm",
                ("explosion", "explosions"),
                norm,
                _norm_scale(norm.values),
                tuple(marks),
                found.norm,
                max_norm,
                clipped,
            )
        )
    return result


def step_range(run: Run, shown: list[Panel]) -> tuple[int, int]:
    """First and last step of the common axis."""
    return min(int(p.series.steps[0]) for p in shown), max(int(p.series.steps[-1]) for p in shown)


def _max_norm(analysis: Analysis) -> float | None:
    # One that varies is no line.
    if MAX_NORM in analysis.run.series:
        return None
    known = [analysis.run.max_norm, *(f.evidence.get("max_norm") for f in analysis.findings)]
    return next((v for v in known if v is not None and np.isfinite(v) and v > 0), None)


def _loss_scale(values: Floats) -> Scale:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Scale("linear")
    low, high = float(finite.min()), float(finite.max())
    # Halved: the distance of two float64 may not be one.
    q05, q50, q95 = np.percentile(finite[:: max(1, len(finite) // _SAMPLE)] / 2, (5, 50, 95)).tolist()
    if low > 0:
        flat = q95 - low / 2 < _FLAT_FRACTION * (high / 2 - low / 2) and high / low > _FLAT_RATIO
        if flat or high / low > _LINEAR_RATIO:
            return Scale("log", low)
    usual = max(q95 - q05, abs(q50))
    if low <= 0 < usual and (high / 2 - low / 2) / usual > _LINEAR_RATIO:
        return Scale("asinh", usual)
    return Scale("linear", max(abs(low), abs(high)) or 1.0)


def _norm_scale(values: Floats) -> Scale:
    finite = values[np.isfinite(values)]
    positive = finite[finite > 0]
    if len(positive):
        return Scale("log", float(positive.min()))
    return Scale("linear", float(np.abs(finite).max(initial=0)) or 1.0)
