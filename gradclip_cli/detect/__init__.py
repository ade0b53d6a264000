"""Judging: from series to events. Arrays in, events out; nothing is read or printed here.

`baseline` says what was usual, `explosions` where the norm left it, `rises` and `spikes` where the loss did, `recovery`
whether it came back. `early` and `creep` see what a trailing baseline cannot, `collapse` a fall that is none of learning,
`ordinary` takes out what is normal for the data, `growth` looks at the norm before an event, `align` links series that
were logged at different steps.
"""

from __future__ import annotations

import numpy as np

from gradclip_cli.detect import align, collapse, early, explosions, growth, spikes
from gradclip_cli.detect.baseline import LARGEST_LOG, Index, outside, stretches
from gradclip_cli.detect.event import Event
from gradclip_cli.model.detection import Baseline, Detection, Explosion, Growth, Spike
from gradclip_cli.model.run import Series, Steps, Values

LARGEST = 1e150
"""Losses beyond this are taken as this, so that their differences and products stay finite."""
NONFINITE_ROWS = 3
"""So many rows of nan or inf at the end of the loss end the run; fewer do if it came back from no such stretch before."""


def detect(loss: Series | None, grad_norm: Series | None, lr: Series | None) -> Detection:
    """Exploding steps, loss spikes, growth of the norm, and whether the run diverged.

    All counts are logged rows, so that logs of every step and of every hundredth are judged alike. Values that are not
    finite disturb nothing; they only count where the loss ends with them. Scaling the loss or the norm by a positive
    constant, or shifting the steps, changes no event.

    Args:
        loss, grad_norm, lr: Each with its own steps; None where it was not logged.
    """
    none = Series("", "", np.empty(0, np.int64), np.empty(0))
    loss_log, norm_log, lr_log = loss or none, grad_norm or none, lr or none
    loss_rows = np.flatnonzero(np.isfinite(loss_log.values))
    norm_rows = np.flatnonzero(np.isfinite(norm_log.values) & (norm_log.values > 0))
    loss_rows = loss_rows[early.rows_to_fill(loss_log.values[loss_rows]) :]
    loss_steps, norm_steps = loss_log.steps[loss_rows], norm_log.steps[norm_rows]
    y = np.clip(loss_log.values[loss_rows], -LARGEST, LARGEST)
    x = np.log(norm_log.values[norm_rows])

    norm = explosions.find(x)
    exploded = align.covered(loss_steps, norm_steps[norm.first], norm_steps[norm.last])
    raised = align.lr_raised(align.lr_at(loss_steps, lr_log.steps, lr_log.values))
    nonfinite_end = ends_nonfinite(loss_log.values)
    events, recurring, loss_bound, usual_loss = spikes.find(y, exploded, raised, nonfinite_end)
    led_by = align.leads(norm_rows[norm.first], norm_log.steps, loss_rows[[e.first for e in events]], loss_log.steps)

    broke = [loss_steps[[e.first for e in events]], _first_nonfinite(loss_log), _first_nonfinite(norm_log)]
    ends = np.unique(np.r_[norm.first, np.searchsorted(norm_steps, np.concatenate(broke)), len(x)])
    calm = outside(len(x), norm.first, norm.last)
    grown = growth.find(x, calm, norm.usual.level, ends, align.lr_at(norm_steps, lr_log.steps, lr_log.values))

    return Detection(
        explosions=tuple(
            Explosion(int(norm_rows[first]), int(norm_rows[last]), int(norm_rows[peak]), level, ratio)
            for first, last, peak, level, ratio in zip(norm.first, norm.last, norm.peak, norm.level, norm.ratio, strict=True)
        ),
        spikes=tuple(_spike(e, loss_rows, lead) for e, lead in zip(events, led_by, strict=True)),
        collapses=tuple((int(loss_rows[first]), int(loss_rows[last])) for first, last in collapse.find(y)),
        recurring=tuple(int(loss_rows[e.first]) for e in recurring),
        growths=tuple(Growth(int(norm_rows[first]), int(norm_rows[last]), factor) for first, last, factor in grown),
        norm=_baseline(norm_log, norm_rows, np.exp(norm.usual.level), np.exp(np.minimum(norm.bound, LARGEST_LOG))),
        loss=_baseline(loss_log, loss_rows, usual_loss.level, loss_bound),
        judged_norm=int(np.isfinite(norm.bound).sum()),
        judged_loss=int(np.isfinite(loss_bound).sum()),
        diverged=nonfinite_end or any(e.fatal for e in events),
    )


def ends_nonfinite(values: Values) -> bool:
    """Whether a series that was finite ends with nan or inf for good, rather than with one of the isolated ones it had before."""
    first, last = stretches(~np.isfinite(values), gap=1)
    if not len(first) or last[-1] < len(values) - 1 or (len(first) == 1 and first[0] == 0):
        return False
    rows = last - first + 1
    return bool(rows[-1] >= NONFINITE_ROWS or rows[-1] > rows[:-1].max(initial=0))


def _spike(e: Event, rows: Index, led_by: int | None) -> Spike:
    return Spike(
        first=int(rows[e.first]),
        last=int(rows[e.end - 1]),
        peak=int(rows[e.peak]),
        level=e.level,
        height=e.height,
        recovered=e.recovered,
        excess=e.excess,
        fatal=e.fatal,
        led_by=led_by,
    )


def _first_nonfinite(series: Series) -> Steps:
    return series.steps[np.flatnonzero(~np.isfinite(series.values))[:1]]


def _baseline(series: Series, rows: Index, level: Values, bound: Values) -> Baseline | None:
    if not len(series):
        return None
    out = np.full((2, len(series)), np.nan)
    out[:, rows] = level, bound
    return Baseline(out[0], out[1])
