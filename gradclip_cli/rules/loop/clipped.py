"""The norms and the bounds of a watched loop as each of its clips had them, for the rules that judge the bound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradclip_cli.detect.loop import Clip, Update
from gradclip_cli.model.run import GRAD_NORM, MAX_NORM, Run, Series
from gradclip_cli.rules.loop.view import View, views
from gradclip_cli.rules.loop.wording import at, where
from gradclip_cli.rules.wording import Unjudged

# Clips that scale by norms closer than this scale by one.
_ONE_NORM = 1e-5


@dataclass(frozen=True, eq=False, slots=True)
class Clipped:
    """What one clip of the loop did.

    Attributes:
        run: Its norms and bounds alone. A step that it did not bound has the norm that was used, and the bound inf.
        name: Which clip it is, for people; empty where no trace tells.
        place: File and line of the clip.
        unjudged: Why its norms are none to hold a bound against; empty where they are.
    """

    run: Run
    name: str = ""
    place: tuple[str, int] | None = None
    unjudged: str = ""


def by_clip(run: Run) -> list[Clipped]:
    """Every clip of each optimizer, or the run as it was recorded where the trace does not hold all updates.

    What is recorded is the norm of one optimizer's gradients; a clip may cover more, and what code of the user's own does to
    gradients before they are used is recorded as if they came so.
    """
    try:
        every = views(run)
    except Unjudged:
        return [Clipped(run)]
    # Processes that train for themselves run the same code.
    found = [view for view in every if view.part is every[0].part]
    series = run.grad_norm
    steps = {u.u + 1 for view in found for u in view.taken if u.exact}
    if series is not None and not set(series.steps.tolist()) <= steps:
        return [Clipped(run)]
    clips: dict[tuple[str | None, tuple[float, ...]], Clipped] = {}
    for view in found:
        for site, clipped in _clips(run, view):
            norms = clipped.run.series[GRAD_NORM].values if GRAD_NORM in clipped.run.series else np.empty(0)
            key = (site, tuple(norms.tolist()))
            # One call for several optimizers is one clip.
            if key in clips:
                clipped = replace(clipped, name=f"the clip at {at(site)}: ")
            clips[key] = clipped
    if clips:
        return list(clips.values())
    bounded = any(c.bounds and c.how == "norm" for view in found for u in view.taken for c in u.clips)
    compared = any(not math.isnan(h.bound) for view in found for u in view.taken for h in u.hands)
    reason = "no clip acts on the gradients that the optimizer uses" if bounded or compared else "no max_norm is known"
    return [Clipped(run, unjudged=reason)]


def _clips(run: Run, view: View) -> Iterator[tuple[str | None, Clipped]]:
    """The clips of one optimizer, by their places."""
    acting = [(u, view.acting(u)) for u in view.taken]
    sites = dict.fromkeys(c.site for _, clips in acting for c in clips)
    if not sites and view.unreached is not None and not view.dropped:
        hand = view.unreached
        yield hand.site, _clipped(run, view, hand.site, [(u, u.used, hand.bound) for u in view.taken])
    for site in sites:
        mine = [(u, [c for c in clips if c.site == site]) for u, clips in acting]
        each = [(u, *_norm_and_bound(u, clips)) for u, clips in mine]
        yield site, replace(_clipped(run, view, site, each), unjudged=_why_not(view, [clips for _, clips in mine]))


def _norm_and_bound(u: Update, clips: Sequence[Clip]) -> tuple[float, float]:
    """The norm that the clip compared with its bound; where there is none, what was used was not bounded."""
    if not clips:
        return u.used, math.inf
    return clips[-1].returned, clips[-1].bound


def _why_not(view: View, by_update: Sequence[Sequence[Clip]]) -> str:
    if any(c.scale is not None for clips in by_update for c in clips):
        return f"{view.label}the clip holds max_norm against norms that still have the loss scale in them"
    if any(not math.isclose(c.returned, clips[0].returned, rel_tol=_ONE_NORM) for clips in by_update for c in clips[1:]):
        return f"{view.label}parts are clipped by norms of their own in one step"
    return ""


def _clipped(run: Run, view: View, site: str | None, each: Sequence[tuple[Update, float, float]]) -> Clipped:
    steps = np.array([u.u + 1 for u, _, _ in each], np.int64)
    norms = Series(GRAD_NORM, GRAD_NORM, steps, np.array([norm for _, norm, _ in each]))
    bounds = Series(MAX_NORM, MAX_NORM, steps, np.array([bound for _, _, bound in each]))
    place = where(site)
    own = replace(run, series={GRAD_NORM: norms, MAX_NORM: bounds})
    return Clipped(own, f"{view.label}the clip at {at(site)}: ", place[:2] if place else None)
