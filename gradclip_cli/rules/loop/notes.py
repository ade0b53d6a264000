"""What a watched loop did not show."""

from __future__ import annotations

import math

from gradclip_cli.model.run import Run
from gradclip_cli.rules.loop.view import HandKind, View, views
from gradclip_cli.rules.loop.wording import at
from gradclip_cli.rules.wording import Unjudged, count, number

# So far above every norm a bound was not put to the test.
_FAR = 1.0


def loop_notes(run: Run) -> list[str]:
    """One sentence each."""
    assert run.recorded is not None
    notes = []
    if missing := run.recorded.world_size - len(run.recorded.parts):
        notes.append(f"{missing} of {run.recorded.world_size} ranks left no record here; they were not judged")
    try:
        found = views(run)
    except Unjudged:
        # Without a trace every rule says so itself.
        return notes
    untested = []
    for view in found:
        if view.unreached is not None and view.dropped:
            hand = view.unreached
            notes.append(
                f"{view.label}nothing scales the gradients, but none above {number(hand.bound)} are used: {view.dropped} times the norm "
                f"computed at {at(hand.site)} exceeded it, and no step was taken"
            )
        elif view.unreached is not None:
            hand = view.unreached
            notes.append(
                f"{view.label}the clip by hand at {at(hand.site)} had nothing to do: no norm exceeded {number(hand.bound)}, so it "
                f"was not put to the test"
            )
        elif view.hand.kind is HandKind.UNITS:
            notes.append(
                f"{view.label}rows or elements are clipped at {at(view.hand.site)}, each by a factor of its own, as adaptive gradient "
                f"clipping does on purpose: nothing bounds the norm of the whole"
            )
        elif view.bounded_by_hand and not view.called:
            notes.append(f"{view.label}no clip was seen, but norms end at {number(view.hand.bound)}: what makes them bounds them")
        elif view.called and not any(c.returned > c.bound * _FAR for u in view.called for c in view.acting(u) if math.isfinite(c.returned)):
            untested.append(view)
        if view.called and not view.stale() and (before := _before_the_first_clip(view)):
            notes.append(
                f"{view.label}clipping begins with update {view.called[0].u + 1}: {count(before, 'update')} before it went without"
            )
        if skipped := sum(u.skipped for u in view.loop.updates):
            notes.append(f"{view.label}{skipped} of {len(view.loop.updates)} updates were skipped by the loss scaler")
    if untested:
        where = "" if len(untested) == len(found) else untested[0].label if len(untested) == 1 else f"{len(untested)} optimizers: "
        notes.append(
            f"{where}no norm exceeded max_norm in these updates: where the clip stands is right, its effect was not put to the test"
        )
    return notes


def _before_the_first_clip(view: View) -> int:
    """Updates on gradients that no clip had touched; one that only computes the norm is none, and one by hand shows only where it acts."""
    if any(c.by_hand for c in view.acting(view.called[0])):
        return 0
    return sum(u.u < view.called[0].u and bool(u.norms) for u in view.taken)
