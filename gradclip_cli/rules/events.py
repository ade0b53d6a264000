"""GC1xx: what went wrong in the run."""

from __future__ import annotations

import numpy as np

from gradclip_cli.model.detection import Detection, Spike
from gradclip_cli.model.finding import Hit, Lead, Severity
from gradclip_cli.model.run import LOSS_SCALE, TENSOR_PREFIX, Run, Series
from gradclip_cli.rules.batch import batch_of
from gradclip_cli.rules.wording import Unjudged, count, number, place, times, unit

# Non-finite stretches are reported one by one up to this many; beyond, as one finding with the count.
_MAX_STRETCHES = 5


def exploding_step(run: Run, found: Detection) -> list[Hit]:
    """A step whose gradient norm is many times the usual one.

    What it finds: Steps whose logged global gradient norm stands far above the norms just before them.
    Neighbouring ones (up to 3 logged rows apart) are one event.

    Why it matters: The optimizer takes such a step in full unless clipping bounds it, and a loss spike
    often follows within a few steps. It is the earliest sign a log can give: in published spikes of
    large runs the norm rose several steps before the loss did.

    How it decides: With b the usual log-norm (the lower of the medians of the last 32 and the last 9
    rows before it, flagged and non-finite rows left out) and s the noise of the log-norm (1.4826 x the
    median distance from b over 150 rows, at least 0.10): a row is flagged when log(norm) - b >=
    max(log 10, 3.5 s) and the norm is at least 3 times the median of the last 500 rows. At least one row
    of the event must be 4 times the median of the 5 rows before it, and below 20 times the usual norm the
    log ratio must exceed the second largest within 200 rows 1.35 times. No verdict before 8 rows of
    history, but a leap within them that comes back within 64 rows counts. Severity is error when a loss
    spike followed.

    What to do: Look at the batch of the first exploding step (data, length, labels); of a run that gradclip
    recorded, what stood out in it is told. If clipping is on and the loss spiked all the same, check that
    it acts, and lower max_norm towards the usual norm.

    When it is wrong: A change of the loss (a new term, another weighting) or of the data mixture that lifts
    every later norm is a change of level, reported once at most. Norms logged after clipping never
    explode: see GC302. Between two logged steps anything may have happened: see GC301.
    """
    norm = run.series["grad_norm"]
    _enough(found.judged_norm, len(norm))
    led = {s.led_by for s in found.spikes if s.led_by is not None}
    hits = []
    for i, e in enumerate(found.explosions):
        first, last, peak = (int(norm.steps[k]) for k in (e.first, e.last, e.peak))
        value = float(norm.values[e.peak])
        where = f" (peak at {place(run, peak)})" if e.first != e.last else ""
        said, measured = batch_of(run, peak)
        hits.append(
            Hit(
                f"the gradient norm reached {number(value)}, {times(e.ratio)} the usual {number(e.level)}{where}{said}",
                first,
                last,
                {"norm": value, "usual_norm": e.level, "ratio": e.ratio, "num_points": e.last - e.first + 1} | measured,
                severity=Severity.ERROR if i in led else None,
            )
        )
    return hits


def loss_spike(run: Run, found: Detection) -> list[Hit]:
    """A jump of the loss that came back.

    What it finds: A stretch of steps on which the training loss stood well above what was expected, and
    from which it returned to its course (or whose end the log does not show).

    Why it matters: A recovered spike costs the steps it lasted, and tells that the run is near its edge:
    the next one may not come back.

    How it decides: The level is the lower of the medians of the last 32 and the last 9 rows, the noise the
    robust residual over 150 rows (at least 0.3 % of the level); events and non-finite rows enter neither.
    The rise must reach the largest of 12 % of the level, 2 % of the fall in loss so far (both doubled
    after a rise of the learning rate) and 9 times the noise: 6.5 times where two of three rows stay up
    or the norm exploded within two rows before, 4 times where the median of nine rows does. A short one
    that no explosion led must also stand 1.75 to 3 times (the heavier the tail, the more) above the
    largest residual within 200 rows. Recovered: the median of the next 9 rows is back to where the loss
    was heading (the trend before, damped) within the largest of 1.25 noise, 6 % of the level and 1 % of
    the fall so far, without a new alarm for 3 rows. When an explosion of the norm began at or up to 8
    rows before it, the finding carries `led_by` and the lead in steps.

    What to do: See which step led (led_by) and look at its batch. If an explosion led it, a max_norm between
    the usual norm and the exploding one would have bounded that update.

    When it is wrong: A loss averaged over many steps smears a one-step spike below the threshold. A
    curriculum, a new data source or a changed loss gives a jump that is no fault. Short rises that come
    round regularly, or ten times within 200 rows, without explosions are taken for the way of the data
    (hard batches, starts of epochs) and told once, as an info; but irregular ones at least 1.5 times the
    level high, with nothing between them and the noise, are spikes however many.
    """
    hits = [_spike_hit(run, found, s) for s in _judged_spikes(run, found) if s.recovered is not False]
    if found.recurring:
        loss = run.series["loss"]
        first, last = (int(loss.steps[found.recurring[k]]) for k in (0, -1))
        text = (
            f"{len(found.recurring):,} short rises of the loss recur so regularly or so often, without explosions, "
            "that they were taken for the way of these data (hard batches, starts of epochs) and not for spikes"
        )
        highest = float(loss.values[list(found.recurring)].max())
        evidence = {"num_rises": len(found.recurring), "highest_loss": highest}
        hits.append(Hit(text, first, last, evidence, severity=Severity.INFO))
    return hits


def diverged(run: Run, found: Detection) -> list[Hit]:
    """A jump or rise of the loss that never came back.

    What it finds: The loss left its course and had not returned when the log ended: a flat high loss, a
    rise to the end, or a spike that kept part of its height.

    Why it matters: The steps after it are lost compute; the run should go back to a checkpoint from before
    the first step named here.

    How it decides: Found as a loss spike (GC102) is, without recovery in the rows after it (30, in short logs a
    fifth of them, at least 12), or standing 10 times above everything seen before when the log ends; or a leap
    within the first 8 rows that stays at least three times as high, or is ten times as high and does not come
    back; or a run that never learned: the loss leaves its start upwards within 100 rows (or a fifth of the
    log), is never again below 1.5 times it and ends at twice or more; or a slow rise: the last block medians
    lie 50 % above the best one and 30 % of the progress made until then is lost, or the loss only rises from
    its first rows, to at least twice its first level. It is an error, and the run counts as diverged, when the
    loss ends at least 10 % above what was expected, or 60 % of the progress is lost, or the loss ends
    non-finite; else a warning. A run that never learned is a warning unless it ends at 5 times its start or had
    been 1.5 times as high as it ends. A leap behind the first row alone (which may measure something else) is
    told from 30 times on, as a warning. Growth from the start is a warning unless it gathers pace (5 times in
    all, 2.5 in the second half), ends 10,000 times its level above it, or an explosion led it. A loss that
    falls within one row to exactly 0 and stays there, or from above 0 to below it by more than its whole range,
    is a warning too: no learning does that.

    What to do: Restart from the last checkpoint before the first step named here, with the cause removed:
    skip the batch, lower the learning rate, or clip so that the leading explosion is bounded.

    When it is wrong: A deliberate change (new data, new loss, longer sequences) that lifts the loss for good
    looks the same; so does a loss that is a running sum, a penalty that is phased in, or a critic's. (A running
    mean that fills up from 0 is known by its first rows, and judged from where it is filled.) A log
    that ends soon after a spike cannot tell: then GC102 says so.
    """
    hits = [_spike_hit(run, found, s) for s in _judged_spikes(run, found) if s.recovered is False]
    if found.collapses:
        loss = run.series["loss"]
        first, count = found.collapses[0][0], len(found.collapses)
        value = float(loss.values[first])
        often = f", {count} times in all" if count > 1 else ""
        text = (
            f"the loss fell from {number(float(loss.values[first - 1]))} to {number(value)} within one row{often}, "
            "which no learning does: a filter that writes 0 for nan, or a broken loss"
        )
        evidence = {"loss_after": value, "num_collapses": count}
        end = int(loss.steps[found.collapses[-1][1]])
        hits.append(Hit(text, int(loss.steps[first]), end, evidence, severity=Severity.WARNING))
    return hits


def _judged_spikes(run: Run, found: Detection) -> tuple[Spike, ...]:
    _enough(found.judged_loss, len(run.series["loss"]), bool(found.spikes))
    return found.spikes


def _spike_hit(run: Run, found: Detection, s: Spike) -> Hit:
    loss = run.series["loss"]
    first, last, peak = (int(loss.steps[k]) for k in (s.first, s.last, s.peak))
    value = float(loss.values[s.peak])
    lead, led_text = None, ""
    if s.led_by is not None and (norm := run.grad_norm) is not None:
        e = found.explosions[s.led_by]
        began = int(norm.steps[e.first])
        lead = Lead("GC101", began, first - began)
        ahead = f"{unit(run, first - began)} before" if first > began else f"in the same {'step' if run.steps_known else 'row'}"
        led_text = f"; the gradient norm had exploded {ahead}"
    rose = f"the loss rose from {number(s.level)} to {number(value)}"
    evidence = {"peak_loss": value, "expected_loss": s.level, "height": s.height, "num_points": s.last - s.first + 1}
    severity = None
    if s.recovered:
        text = f"{rose} and was back after {unit(run, last - first + 1)}{led_text}"
    elif s.recovered is None:
        text = f"{rose}; the log ends too soon to tell whether it came back{led_text}"
    else:
        evidence["lasting_excess_fraction"] = s.excess
        severity = Severity.ERROR if s.fatal else Severity.WARNING
        from_start = s.first <= 1
        how = "from its first rows on" if from_start else "and never came back" if s.fatal else "and did not come back fully"
        much = f"{s.excess:.0%} above" if s.excess < 2 else f"at {times(1 + s.excess)}"
        tail = f" (it ends {much} what the trend before promised)" if s.excess > 0 else ""
        text = f"{rose} {how}{tail}{led_text}"
    if (raised := _lr_rise(run, first)) is not None:
        text += f"; the learning rate had just risen {times(raised)}"
        evidence["lr_rise_ratio"] = raised
    if s.peak != s.first:
        text = text.replace(f"to {number(value)}", f"to {number(value)} (peak at {place(run, peak)})", 1)
    return Hit(text, first, last, evidence, lead, severity)


# A rise of the learning rate this large, so few logged rows before a spike, is named as what may have caused it.
_LR_RISE, _LR_ROWS = 1.5, 10


def _lr_rise(run: Run, step: int) -> float | None:
    """By what factor the learning rate rose just before a step, or None. Warm-up's steady small rises do not count."""
    lr = run.series.get("lr")
    if lr is None:
        return None
    end = int(np.searchsorted(lr.steps, step, side="right"))
    near = lr.values[max(0, end - _LR_ROWS) : end]
    if len(near) < 2 or not (near > 0).all():
        return None
    ratio = float((near[1:] / near[:-1]).max())
    return ratio if ratio >= _LR_RISE else None


def nonfinite_norm(run: Run, found: Detection) -> list[Hit]:
    """A gradient norm that is nan or inf.

    What it finds: Logged gradient norms that are nan or infinite, grouped into stretches.

    Why it matters: Clipping does not repair it. `clip_grad_norm_` multiplies by max_norm / norm: one inf
    makes every finite gradient zero, one nan makes every gradient nan, and the optimizer takes that step.

    How it decides: Every logged value that is not finite counts. Where a loss scale is logged too and it drops
    at that very step while the loss stays finite, the scaler found the overflow and skipped the step:
    that is its normal rhythm and only an info (streaks of them are GC108).

    What to do: Pass `error_if_nonfinite=True` to `clip_grad_norm_`, or skip such steps; find the first
    parameter that is not finite; in fp16 use a GradScaler; check that the norm is not accumulated in half
    precision (finite gradients, infinite norm).

    When it is wrong: Some trainers write nan where a norm was not computed. A column that is never finite is
    reported as such.
    """
    norm = run.series["grad_norm"]
    return _nonfinite(run, norm, "gradient norm")


def nonfinite_loss(run: Run, found: Detection) -> list[Hit]:
    """A training loss that is nan or inf.

    What it finds: Logged training losses that are nan or infinite, grouped into stretches.

    Why it matters: A nan loss gives nan gradients; one optimizer step later every parameter is nan and the
    run is lost, unless that step was skipped.

    How it decides: Every logged value that is not finite counts. A stretch that reaches the end of the log
    means the run never recovered.

    What to do: Go back to the checkpoint before the first step named here. Look for a division by zero or
    log of zero, an all-masked batch (mean over no labels), an overflow in half precision.

    When it is wrong: Trainers that filter non-finite losses hide them: see GC303.
    """
    return _nonfinite(run, run.series["loss"], "loss")


def _nonfinite(run: Run, series: Series, what: str) -> list[Hit]:
    bad = ~np.isfinite(series.values)
    if not bad.any():
        return []
    edges = np.flatnonzero(np.diff(np.concatenate([[0], bad.view(np.int8), [0]])))
    stretches = edges.reshape(-1, 2)
    skipped = _skipped_by_scaler(run, series)
    if len(stretches) > _MAX_STRETCHES:
        groups = [(int(stretches[0, 0]), int(stretches[-1, 1]) - 1, len(stretches))]
    else:
        groups = [(int(a), int(b) - 1, 1) for a, b in stretches]
    hits = []
    for a, b, num_stretches in groups:
        values = series.values[a : b + 1][bad[a : b + 1]]
        num_nan = int(np.isnan(values).sum())
        kinds = "nan" if num_nan == len(values) else "inf" if num_nan == 0 else "nan and inf"
        first, last = int(series.steps[a]), int(series.steps[b])
        to_end = bool(bad[b]) and b == len(bad) - 1
        if bad.all():
            text = f"the {what} is {kinds} at every one of its {len(values):,} logged points"
        elif len(values) == 1 and not to_end:
            text = f"the {what} is {kinds}"
        else:
            times_text = f"{len(values):,} times" if len(values) > 1 else "once"
            text = f"the {what} is {kinds} {times_text}"
            if num_stretches > 1:
                text += f" in {num_stretches} stretches"
            if to_end and len(values) > 1:
                text += ", to the end of the log"
            elif to_end:
                text += ", at the end of the log"
        severity = None
        if skipped is not None and skipped[a : b + 1][bad[a : b + 1]].all() and not to_end:
            text += "; the loss scaler skipped these steps"
            severity = Severity.INFO
        evidence = {"num_nonfinite": len(values), "num_nan": num_nan, "num_stretches": num_stretches}
        hits.append(Hit(text, first, last, evidence, severity=severity))
    return hits


def _skipped_by_scaler(run: Run, series: Series) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
    """Which points of a series stand at a step where the loss scale drops (here or at the next logged step)."""
    scale = run.series.get(LOSS_SCALE)
    if scale is None or len(scale) < 2 or series.name == "loss":
        return None
    fell = scale.steps[1:][np.diff(scale.values) < 0]
    before = scale.steps[:-1][np.diff(scale.values) < 0]
    loss = run.loss
    finite_loss = np.ones(len(series), bool)
    if loss is not None:
        at = np.searchsorted(loss.steps, series.steps).clip(0, len(loss) - 1)
        finite_loss = np.isfinite(loss.values[at]) | (loss.steps[at] != series.steps)
    return (np.isin(series.steps, fell) | np.isin(series.steps, before)) & finite_loss


def norm_growth(run: Run, found: Detection) -> list[Hit]:
    """A gradient norm that keeps growing.

    What it finds: A sustained rise of the norm's level over many steps, of the kind that precedes a spike.

    Why it matters: Clipping hides it: the update stays bounded while its direction gets worse. A learning
    rate too high for this stage, or a precision problem, often shows so long before the loss does.

    How it decides: The level (medians of 10 rows) rises at least threefold within 30 to 300 logged rows and
    within the last fifth of what was logged by then, steadily (correlation with time 0.9, no single leap
    of more than 60 % of it), to 1.5 times every level before, while the learning rate changes by less
    than half; and it ends in an explosion, a loss spike, a non-finite value or the end of the log. Or,
    over forty blocks of the whole log, it rises steadily at least tenfold up to such an end.

    What to do: Lower the learning rate or lengthen its warm-up; compare the norm of the largest tensors at the
    beginning and the end of the rise.

    When it is wrong: Norms often grow two- to threefold over a long run without harm; a growth slower than a
    fifth of the run is reported from tenfold on.
    """
    norm = run.series["grad_norm"]
    _enough(found.judged_norm, len(norm))
    hits = []
    for g in found.growths:
        first, last = int(norm.steps[g.first]), int(norm.steps[g.last])
        text = f"the level of the gradient norm rose {times(g.factor)} over {unit(run, last - first)}"
        hits.append(Hit(text, first, last, {"factor": g.factor, "num_points": g.last - g.first + 1}))
    return hits


# A norm this small moves no parameter in float32; the same bound as published vanishing-gradient rules use.
_VANISHED = 1e-7
_VANISHED_FRACTION = 1e-6
_VANISHED_POINTS = 10


def vanishing_norm(run: Run, found: Detection) -> list[Hit]:
    """A gradient norm that is practically zero.

    What it finds: Ten or more logged norms in a row that are zero or vanishingly small.

    Why it matters: Nothing is learned: parameters outside the graph, a loss that does not depend on them, a
    reward without variance, gradients underflowing in fp16, or gradients zeroed before the step.

    How it decides: A norm counts when it is at most 1e-7, or at most a millionth of the run's median norm, on
    at least 10 logged rows in a row. Where the loss has fallen to a millionth of its beginning too, the
    task is solved and it is an info.

    What to do: Check `requires_grad`, the parameters given to the optimizer and the order of zero_grad,
    backward and step; in fp16 use a loss scale.

    When it is wrong: Some trainers print 0 where a norm was not computed.
    """
    norm = run.series["grad_norm"]
    finite = np.isfinite(norm.values)
    if np.count_nonzero(finite) < _VANISHED_POINTS:
        raise Unjudged(f"only {count(int(finite.sum()), 'finite gradient norm')}; it takes {_VANISHED_POINTS}")
    positive = norm.values[finite & (norm.values > 0)]
    # Halved: the sum of two float64 may not be one.
    bound = max(_VANISHED, _VANISHED_FRACTION * 2 * float(np.median(positive / 2))) if len(positive) else _VANISHED
    small = finite & (np.abs(norm.values) <= bound)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], small.view(np.int8), [0]]))).reshape(-1, 2)
    hits = []
    solved = _solved(run.loss)
    for a, b in edges[(edges[:, 1] - edges[:, 0]) >= _VANISHED_POINTS][:_MAX_STRETCHES].tolist():
        throughout = b - a == len(norm)
        where = "at every logged step" if throughout else f"on {b - a:,} logged rows in a row"
        largest = float(norm.values[a:b].max())
        text = f"the gradient norm is {f'at most {number(largest)}' if largest else 'zero'} {where}"
        evidence = {"num_points": b - a, "largest_norm": largest}
        severity = Severity.INFO if solved else None
        hits.append(Hit(text, int(norm.steps[a]), int(norm.steps[b - 1]), evidence, severity=severity))
    return hits


def _solved(loss: Series | None) -> bool:
    if loss is None or not len(loss):
        return False
    finite = np.abs(loss.values[np.isfinite(loss.values)])
    return len(finite) > 0 and bool(finite[-1] <= 1e-6 * finite[0])


# A scaler halves its scale on overflow and doubles it after some 2,000 good steps; at the start it searches
# downwards from 2**16 or more, which takes up to a few dozen halvings.
_SEARCH_STEPS = 50
_STREAK = 4
_MAX_OVERFLOW_FRACTION = 0.05


def overflow_streak(run: Run, found: Detection) -> list[Hit]:
    """Loss-scaler overflows beyond its normal rhythm.

    What it finds: Steps skipped in a row because fp16 gradients overflowed, after the scaler's search at the
    start is over, or a loss scale driven below 1.

    Why it matters: An isolated overflow is how dynamic loss scaling works. A streak means that the gradients
    themselves are exploding or not finite, and that training stands still meanwhile.

    How it decides: From the logged loss scale and from overflow messages: 4 or more halvings in a row after
    the first 50 steps, or a scale below 1, or more than 5 % of the steps skipped. No more than 50 halvings
    at the very start are taken for the search.

    What to do: Look at the norm and the batches where the streak begins; prefer bf16; lower the learning rate.

    When it is wrong: A scale that is logged once in many steps shows several halvings as one.
    """
    scale = run.series.get(LOSS_SCALE)
    if scale is None and not run.overflows:
        raise Unjudged("no loss scale and no overflow message in this log")
    hits = []
    if run.overflows:
        hits += _from_messages(run)
    if scale is not None and len(scale) > 1:
        hits += _from_scale(run, scale)
    return hits


def _from_messages(run: Run) -> list[Hit]:
    scales = [o.loss_scale for o in run.overflows if o.loss_scale is not None]
    steps = [o.step for o in run.overflows if o.step is not None]
    first, last = (min(steps), max(steps)) if steps else (None, None)
    count = len(run.overflows)
    num_steps = max(len(run.steps), 1)
    evidence = {"num_overflows": count} | ({"lowest_loss_scale": min(scales)} if scales else {})
    if scales and min(scales) < 1:
        text = f"{count} overflow messages drove the loss scale down to {number(min(scales))}"
    elif run.series and count > max(_SEARCH_STEPS, _MAX_OVERFLOW_FRACTION * num_steps):
        text = f"{count:,} steps were skipped for overflow in {num_steps:,} logged ones"
    elif first is not None and len(steps) >= _STREAK and min(steps) > _SEARCH_STEPS and _longest_streak(sorted(steps)) >= _STREAK:
        text = f"{_longest_streak(sorted(steps))} steps in a row were skipped for overflow"
    else:
        return []
    return [Hit(text, first, last, evidence)]


def _longest_streak(steps: list[int]) -> int:
    longest = run = 1
    for a, b in zip(steps, steps[1:], strict=False):
        run = run + 1 if b - a <= 1 else 1
        longest = max(longest, run)
    return longest


def _from_scale(run: Run, scale: Series) -> list[Hit]:
    values = scale.values
    fell = np.flatnonzero(np.diff(values) < 0) + 1
    late = fell[scale.steps[fell] - scale.steps[0] > _SEARCH_STEPS]
    hits = []
    for group in np.split(late, np.flatnonzero(np.diff(late) > 1) + 1) if len(late) else []:
        before, after = float(values[group[0] - 1]), float(values[group[-1]])
        halvings = float(np.log2(before / after)) if after > 0 else float(len(group))
        if halvings >= _STREAK - 0.01:
            text = f"the loss scale fell from {number(before)} to {number(after)}, {halvings:.0f} halvings without one good stretch between"
            evidence = {"loss_scale_before": before, "loss_scale_after": after, "num_halvings": halvings}
            hits.append(Hit(text, int(scale.steps[group[0]]), int(scale.steps[group[-1]]), evidence))
    low = np.flatnonzero(np.isfinite(values) & (values < 1) & (values > 0))
    # A scale that was never above 1 is a fixed one.
    if len(low) and np.nanmax(values) > 1:
        lowest = float(values[low].min())
        text = f"the loss scale fell below 1, to {number(lowest)}"
        hits.append(Hit(text, int(scale.steps[low[0]]), int(scale.steps[low[-1]]), {"lowest_loss_scale": lowest}))
    return hits[:_MAX_STRETCHES]


_DOMINANT_SHARE = 0.9
_DOMINANT_AT_EXPLOSION = 0.5


def dominant_tensor(run: Run, found: Detection) -> list[Hit]:
    """One tensor that makes up most of the gradient norm.

    What it finds: A parameter tensor whose share of the squared global norm is over 90 % throughout, or over
    half of it at an exploding step.

    Why it matters: Clipping scales all gradients by one coefficient: one huge tensor scales everyone else's
    update down with it. At an explosion its name tells where to look.

    How it decides: From the logged norms per tensor: share = norm_i^2 / sum of norm_j^2 over the tensors
    logged at that step; the median over all steps, and the value at the peak of each explosion (GC101).

    What to do: Look at that layer's input, initialisation and precision; consider a smaller learning rate or
    a group of its own for it.

    When it is wrong: Where only a few of the tensors are logged the shares are too large.
    """
    tensors = {n.removeprefix(TENSOR_PREFIX): s for n, s in run.series.items() if n.startswith(TENSOR_PREFIX)}
    if len(tensors) < 2:
        raise Unjudged("no norms per tensor in this log")
    steps = next(iter(tensors.values())).steps
    for s in tensors.values():
        steps = np.intersect1d(steps, s.steps, assume_unique=True)
    if not len(steps):
        raise Unjudged("the norms per tensor are logged at different steps")
    squared = np.stack([s.values[np.searchsorted(s.steps, steps)] ** 2 for s in tensors.values()])
    with np.errstate(invalid="ignore", divide="ignore"):
        share = squared / squared.sum(axis=0)
    named = list(tensors)
    hits = []
    finite = np.isfinite(share).all(axis=0)
    if finite.any():
        median = np.median(share[:, finite], axis=1)
        top = int(median.argmax())
        if median[top] > _DOMINANT_SHARE:
            text = f"{named[top]} makes up {median[top]:.0%} of the squared gradient norm (median over {int(finite.sum()):,} logged steps)"
            hits.append(Hit(text, int(steps[0]), int(steps[-1]), {"share_fraction": float(median[top])}, severity=Severity.WARNING))
    norm = run.series["grad_norm"]
    for e in found.explosions:
        at = int(np.searchsorted(steps, norm.steps[e.peak]))
        if at < len(steps) and steps[at] == norm.steps[e.peak] and finite[at]:
            top = int(share[:, at].argmax())
            part = float(share[top, at])
            if part > _DOMINANT_AT_EXPLOSION:
                step = int(steps[at])
                text = f"{named[top]} made up {part:.0%} of the squared norm when it exploded"
                hits.append(Hit(text, step, step, {"share_fraction": part}))
    return hits


def _enough(judged: int, num_points: int, found_any: bool = False) -> None:
    if judged == 0 and not found_any:
        raise Unjudged(f"too few finite points to know what is usual ({num_points} logged)")
