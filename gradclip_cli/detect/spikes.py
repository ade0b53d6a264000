"""Loss spikes: where the loss left its course, and whether it came back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradclip_cli.detect import creep, early, ordinary, outcome, recovery, untrained
from gradclip_cli.detect.baseline import MIN_HISTORY, Index, Mask, Usual, highest, moving_max, outside, stretches, usual, usual_without
from gradclip_cli.detect.event import Event
from gradclip_cli.detect.rises import Rise, alarms, rises
from gradclip_cli.model.run import Values

GAP = 4
"""Alarms up to so many rows apart are one event."""
ONSET_ROWS = 32
"""An event begins where the rise began, at most so many rows before the first alarm."""
HIGHEST_OF = 8
"""And its alarms must top the calm rows before it: a loss that swings is no spike."""
MAX_MASKED, MAX_MASKED_BACK = 16, 100
"""Rows of an event that stay out of the baseline: more where the loss came back; where it did not, the new level is the usual one."""
SHORT = 3
"""An event of fewer alarmed rows may be an outlier of the noise ..."""
MARGIN, MARGIN_MOST = 1.75, 3.0
"""... and must be so many times as high as the largest residual nearby: the more, the heavier the tail of the residuals."""
TALL = 1.5
"""Times the level: rises as high as that, with nothing between them and the noise, are spikes however many there are ..."""
REGULAR_SHARE = 0.5
"""... unless so many of them come round regularly; fewer may do so by chance."""
TEETH, TEETH_SHARE = 6, 0.8
"""So many rises of at least half the height, nearly all there are, at a regular spacing make an alarm of one of them ordinary."""
OWN_AFTER, OWN_HEIGHT = 100, 0.5
"""Within an open event a later rise is one of its own after so many rows and if it is half as high."""
AGAIN_WITHIN, AGAIN_BELOW = 0.5, 0.5
"""An event that restarts within half its length, less than half as high, is the same."""
EARLY_RATIO, EARLY_BACK_RATIO = 1.75, 1.06
"""A leap within the first rows: times the highest loss before it, and how near to that it must come back ..."""
EARLY_STAYS_RATIO = 3.0
"""... or that it stays at least so many times as high ..."""
EARLY_HUGE_RATIO, EARLY_HUGE_ALONE_RATIO = 10.0, 30.0
"""... or is so many times as high, wherever it goes from there; the latter where only the first row came before it."""


@dataclass(frozen=True, eq=False, slots=True)
class Watched:
    """A finite loss and what is known about its rows from elsewhere.

    Attributes:
        y: The loss.
        forward: Median of each row and the eight after it.
        led: Rows within an explosion of the norm, or up to two rows after one.
        raised: Rows shortly after a rise of the learning rate.
        early: First row of a leap before there is a baseline, and its row of return; of one that stays, where there is a baseline.
    """

    y: Values
    forward: Values
    led: Mask
    raised: Mask
    early: tuple[int, int] | None


def find(y: Values, exploded: Mask, raised: Mask, ends_nonfinite: bool) -> tuple[list[Event], list[Event], Values, Usual]:
    """Spikes of a finite loss, in two rounds: what the first finds stays out of the baseline of the second.

    Args:
        exploded: Rows within an explosion of the norm.
        raised: Rows shortly after a rise of the learning rate.
        ends_nonfinite: The log goes on after the last row, with nan or inf only.

    Returns:
        The spikes in order, the rises that recur (taken for the way of these data), the loss that each row had to reach
        for an alarm, and the baseline.
    """
    n = len(y)
    led = exploded.copy()
    led[1:] |= exploded[:-1]
    led[2:] |= exploded[:-2]
    watched = Watched(y, recovery.forward_median(y), led, raised, _early_leap(y))
    calm = np.ones(n, np.bool_)
    seen = usual(y, calm, steady_rise=True)
    events, r = _round(watched, calm, seen)
    if events:
        calm = outside(n, *_masked(events, n))
        seen = usual_without(seen, y, calm, steady_rise=True)
        events, r = _round(watched, calm, seen)
    events, recurring = _extraordinary(events, watched.forward, r)
    outcome.judge(events, y, watched.forward, ends_nonfinite)
    if not any(e.fatal for e in events) and (never := untrained.find(y, watched.forward)):
        return [never], recurring, r.base + r.alone, seen
    slow = None if any(e.end == n for e in events) else creep.find(y)
    if slow:
        events = sorted([*events, slow], key=lambda e: e.first)
    return events, recurring, r.base + r.alone, seen


def _early_leap(y: Values) -> tuple[int, int] | None:
    start = y[: early.ROWS]
    if not (start > 0).all():
        return None
    leap = early.leap(np.log(start), float(np.log(EARLY_RATIO)), float(np.log(EARLY_BACK_RATIO)))
    if leap is None and (y > 0).all():
        x = np.log(y)
        ratios = (EARLY_HUGE_RATIO, EARLY_HUGE_ALONE_RATIO, EARLY_BACK_RATIO)
        if huge := early.huge_leap(x, *(float(np.log(ratio)) for ratio in ratios)):
            return huge
        first = early.leap_for_good(x, float(np.log(EARLY_STAYS_RATIO)))
        return None if first is None else (first, first + MIN_HISTORY)
    return leap


def _masked(events: list[Event], n: int) -> tuple[Index, Index]:
    first = np.array([e.first for e in events], np.intp)
    stop = np.array([min(e.end, e.first + (MAX_MASKED_BACK if e.end < n else MAX_MASKED), n) for e in events], np.intp)
    return first, stop - 1


def _round(w: Watched, calm: Mask, seen: Usual) -> tuple[list[Event], Rise]:
    r = rises(w.y, calm, seen, w.raised)
    alarm, half = alarms(r, w.forward, w.led)
    if w.early:
        alarm[slice(*w.early)] = half[slice(*w.early)] = True
    first, last = _stretches(w.y, calm, seen, alarm, half)
    return _events(w, calm, seen, r, first, last, alarm) if len(first) else [], r


def _stretches(y: Values, calm: Mask, seen: Usual, alarm: Mask, half: Mask) -> tuple[Index, Index]:
    """Stretches of alarms, from where the rise began, that top the calm rows before them."""
    first, last = stretches(alarm, GAP)
    rising_since = np.maximum.accumulate(np.where(half, -1, np.arange(len(y)))) + 1
    first = np.maximum(np.minimum(rising_since[first], first), first - ONSET_ROWS)
    first[1:] = np.maximum(first[1:], last[:-1] + 1)
    top = moving_max(y[calm], HIGHEST_OF)
    new_high = highest(y, first, last) > top[np.clip(seen.history[first] - 1, 0, len(top) - 1)]
    return first[new_high], last[new_high]


def _events(w: Watched, calm: Mask, seen: Usual, r: Rise, first: Index, last: Index, alarm: Mask) -> list[Event]:
    """Stretches joined into events: each from where the loss left its course to where it is back."""
    n = len(w.y)
    so_far = np.cumsum(np.r_[0, alarm])
    quiet = so_far[np.minimum(np.arange(n) + recovery.QUIET_ROWS, n)] == so_far[:-1]
    level, scale, noise, fallen = (v[first] for v in (r.base, r.scale, r.noise, r.fallen))
    if w.early and first[0] == w.early[0]:
        level[0] = scale[0] = np.median(w.y[: w.early[0]])
        fallen[0] = noise[0] = 0.0
    drift, tau = recovery.trend(w.y, calm, seen.history[first], fallen, scale)
    near = np.maximum(np.maximum(recovery.BACK_Z * noise, recovery.BACK_RISE * scale), recovery.BACK_FALL * fallen)
    back = recovery.back_at(w.forward, quiet, first, level + near, drift, tau)
    expected = level + drift * (1 - np.exp(-(n - 1 - first) / tau))
    height = highest(w.y, first, last) - level
    led = highest(w.led.astype(float), first, last) > 0
    events: list[Event] = []
    for i in range(len(first)):
        begin, end = int(first[i]), int(back[i])
        if events:
            before = events[-1]
            if begin < before.end:
                if begin - before.first <= OWN_AFTER or height[i] < OWN_HEIGHT * before.height:
                    continue
            elif begin < before.end + AGAIN_WITHIN * (before.end - before.first) and height[i] < AGAIN_BELOW * before.height:
                before.end = max(before.end, end)
                continue
        events.append(
            Event(
                first=begin,
                end=end,
                alarmed=int(last[i]),
                led=bool(led[i]),
                level=float(level[i]),
                height=float(height[i]),
                scale=float(scale[i]),
                fallen=float(fallen[i]),
                expected=float(expected[i]),
            )
        )
    return events


def _extraordinary(events: list[Event], forward: Values, r: Rise) -> tuple[list[Event], list[Event]]:
    """Without what is ordinary for these data: regular or frequent leaps, and outliers that the noise nearby reaches too.

    Returns:
        What is left, and the regular or frequent leaps.
    """
    unled = [e for e in events if not e.led]
    tall = [e for e in unled if e.height >= TALL * e.scale]
    first, height = _rows_and_heights(tall)
    apart = set(first[ordinary.apart(r.rise, first, _last_rows(tall), height)].tolist())
    short = [e for e in unled if e.alarmed - e.first < SHORT]
    gone = {short[i].first for i in ordinary.regular(*_rows_and_heights(short))}
    if len(gone & apart) >= REGULAR_SHARE * len(apart):
        apart = set()
    gone -= apart
    gone |= {unled[i].first for i in ordinary.frequent(*_rows_and_heights(unled)) if unled[i].first not in apart}
    gone |= _teeth([e for e in unled if e.first not in gone], r)
    recurring = [e for e in events if e.first in gone]
    events = [e for e in events if e.first not in gone]
    for _ in range(ordinary.ROUNDS):
        first, _ = _rows_and_heights(events)
        largest, expected = ordinary.reach(r.rise, first, _last_rows(events), 1)
        need = np.clip(expected, MARGIN * largest, MARGIN_MOST * largest)
        kept = [
            e
            for e, reached, needed in zip(events, largest, need, strict=True)
            if e.led
            or e.first in apart
            or e.height >= needed
            or (e.alarmed - e.first >= SHORT and forward[e.first : e.alarmed + 1].max() - e.level >= reached)
        ]
        if len(kept) == len(events):
            break
        events = kept
    return events, recurring


def _teeth(events: list[Event], r: Rise) -> set[int]:
    """First rows of the events that are one of many like rises at a regular spacing, most of which stayed below the alarm."""
    if len(events) < 2:
        return set()
    onset, height = _rows_and_heights(events)
    spacing = int(np.diff(onset).min())
    first, last = stretches(r.rise >= height.min() / ordinary.LIKE, max(GAP, spacing // 4))
    teeth = ordinary.regular(first, highest(r.rise, first, last))
    if len(teeth) < max(TEETH, TEETH_SHARE * len(first)):
        return set()
    over = [e for e in events if e.end - e.first <= spacing]  # one that lasts longer is more than a tooth
    return {e.first for e in over if ((first[teeth] - GAP <= e.first) & (e.first <= last[teeth])).any()}


def _rows_and_heights(events: list[Event]) -> tuple[Index, Values]:
    return np.array([e.first for e in events], np.intp), np.array([e.height for e in events])


def _last_rows(events: list[Event]) -> Index:
    """Last row of each event, or of its first stretch of alarms: with lone outliers between, the loss is back before that ends."""
    return np.array([max(e.end - 1, e.alarmed) for e in events], np.intp)
