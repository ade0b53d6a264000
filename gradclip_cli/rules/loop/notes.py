"""What a watched loop did not show."""

from __future__ import annotations

import math

from gradclip_cli.model import Run
from gradclip_cli.rules.loop.view import views
from gradclip_cli.rules.loop.wording import at
from gradclip_cli.rules.wording import number

# So far above every norm a bound was not put to the test.
_FAR = 1.0


def loop_notes(run: Run) -> list[str]:
    """One sentence each."""
    assert run.recorded is not None
    notes = []
    if missing := run.recorded.world_size - len(run.recorded.parts):
        notes.append(f"{missing} of {run.recorded.world_size} ranks left no record here; they were not judged")
    for view in views(run):
        if view.unreached is not None:
            hand = view.unreached
            notes.append(
                f"{view.label}the clip by hand at {at(hand.site)} had nothing to do: no norm exceeded {number(hand.bound)}, so it "
                f"was not put to the test"
            )
        elif view.bounded_by_hand and not view.called:
            notes.append(f"{view.label}no clip was seen, but norms end at {number(view.hand.bound)}: something in the backward bounds them")
        elif view.called and not any(c.returned > c.bound * _FAR for u in view.called for c in view.acting(u) if math.isfinite(c.returned)):
            notes.append(
                f"{view.label}no norm exceeded max_norm in these updates: where the clip stands is right, its effect was not put "
                f"to the test"
            )
        if skipped := sum(u.skipped for u in view.loop.updates):
            notes.append(f"{view.label}{skipped} of {len(view.loop.updates)} updates were skipped by the loss scaler")
    return notes
