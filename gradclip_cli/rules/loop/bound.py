"""GC410, GC413-416: there is no bound, or it is not the bound that was meant."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradclip_cli.detect.loop import Hand, Phase, Update
from gradclip_cli.model.detection import Detection
from gradclip_cli.model.finding import Hit
from gradclip_cli.model.run import Run
from gradclip_cli.rules.loop.coverage import meant_to_clip
from gradclip_cli.rules.loop.view import HandKind, View, views
from gradclip_cli.rules.loop.wording import Pair, at, hit, in_updates, same_place
from gradclip_cli.rules.wording import Unjudged, number

_SLACK = 1.01


def no_clipping(run: Run, found: Detection) -> list[Hit]:
    """A loop that does not clip.

    What it finds: Updates whose gradients nothing bounded: no clipping call, none by hand, though an option for it may
    exist; or a clip that some updates do not go through.

    Why it matters: One odd batch goes into the weights at full size.

    How it decides: No call of torch's clipping functions covers what the optimizer used, and the gradients it used are
    those the backward gave (or scaled by a constant), with no pile-up of norms at a bound. A loop that clips by hand
    is recognised by what it does to the gradients.

    What to do: `torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)` between backward and step.

    When it is wrong: Where the loop is meant to run without clipping.
    """
    hits = []
    for view in views(run):
        if _explained(view):
            continue
        if view.called:
            hits += _sometimes(view)
            continue
        if view.loop.inside:
            option, value = next(iter(view.loop.inside.items()))
            bound = f"{option}={value}" if value else option
            raise Unjudged(f"{view.loop.name} clips inside ({bound}), where gradients do not show it")
        if not view.exact:
            raise Unjudged("no clipping call was seen, and a recording cannot tell clipping by hand; `gradclip verify SCRIPT` can")
        with_gradients = [(u, None) for u in view.taken if u.norms]
        if not with_gradients or view.bounded_by_hand or view.unreached:
            continue
        if view.hand.kind in (HandKind.VALUE, HandKind.SEPARATE, HandKind.UNITS, HandKind.REPEATED, HandKind.PARTIAL):
            continue
        if _changed_unread(view):
            raise Unjudged("something changed gradients in updates where a recording does not read them; `gradclip verify SCRIPT` does")
        if view.hand.kind is HandKind.OTHER and view.loop.around:
            # Each sample clipped on its own, and noise besides, say.
            option, value = next(iter(view.loop.around.items()))
            raise Unjudged(f"what wraps the optimizer ({option}={value}) writes other gradients before the step; their bound does not show")
        used = max(u.used for u, _ in with_gradients)
        text = f"{view.label}nothing clips the gradients: the optimizer used norms up to {number(used)} as the backward gave them"
        only_measures = next((c for u in view.taken for c in u.clips if c.covers and not c.bounds), None)
        if only_measures is not None:
            text += f"; the call at {at(only_measures.site)} has max_norm=inf and only computes the norm"
        elif view.hand.kind is HandKind.RESCALE:
            text += f", but for a factor at {at(view.hand.site)}"
        text += f"; call clip_grad_norm_ before the step at {at(view.taken[0].step_site)}"
        hits.append(hit(text, with_gradients, {"largest_norm_used": used}))
    if not any(u.norms or u.nonfinite or u.zeroed for view in views(run) for u in view.taken):
        raise Unjudged("no update used a gradient other than zero, so there was nothing to clip")
    return hits


def _changed_unread(view: View) -> bool:
    """Whether the norm from before clipping is unknown in an update behind those whose gradients were read at every point."""
    columns, steps = view.part.columns, view.part.steps
    if not {"optimizer", "has_grad_norm", "has_grad_norm_used"} <= columns.keys():
        return False
    unknown = (columns["optimizer"] == view.loop.o) & (columns["has_grad_norm_used"] == 1) & (columns["has_grad_norm"] == 0)
    return bool((unknown & (steps > max(u.u for u in view.taken if u.exact) + 1)).any())


def _explained(view: View) -> bool:
    """Another rule says why nothing bounds this optimizer."""
    if all(u.in_backward for u in view.taken) and any(c.bounds for u in view.taken for c in u.clips):
        return not view.called
    if view.stale() or any(u.zeroed for u in view.taken) or any(u.nonfinite and view.acting(u) for u in view.taken):
        return not view.called
    if any(view.clips(p) for p in (Phase.EARLY, Phase.OUTSIDE)):
        return True
    if view.called:
        return False
    if view.hand.kind is HandKind.NONE and any(meant_to_clip(u, h) for u in view.taken for h in u.hands):
        return True
    return any(u.effective("value") for u in view.taken) or any(
        c.bounds and (not c.given or c.copies or (not c.covers and c.how == "norm")) for u in view.taken for c in u.clips
    )


def _sometimes(view: View) -> list[Hit]:
    """A clip that some updates do not go through, where it would have acted. A call that was given nothing is told as that."""
    bounds = [c.bound for u in view.called for c in view.acting(u) if c.bound > 0]
    if not bounds or any(len(view.acting(u)) > 1 for u in view.called):
        return []
    start = view.called[0].u
    missed: list[Pair] = [
        (u, None)
        for u in view.taken
        if u.u > start
        and u.exact
        and not view.acting(u)
        and not u.edits
        and u.used > max(bounds) * _SLACK
        and not u.nonfinite
        and all(c.given or not c.bounds for c in u.clips)
        # The norm of a shard lies below the bound more often than that of all: ranks that scale differently are told as that.
        and not (view.loop.sharded and any(h.norm <= h.bound for h in u.hands))
    ]
    if not missed:
        return []
    u = missed[0][0]
    site = view.acting(view.called[0])[0].site
    text = (
        f"{view.label}the clip at {at(site)} is skipped {in_updates(missed, view.taken)}: in update {u.u + 1} the optimizer used "
        f"{number(u.used)} where max_norm is {number(max(bounds))}; clip in every update"
    )
    return [hit(text, missed, {"norm_used": u.used, "max_norm": max(bounds)})]


def nonfinite_norm_used(run: Run, found: Detection) -> list[Hit]:
    """A step on gradients that hold inf or nan.

    What it finds: A non-finite norm that the loop let through to the optimizer.

    Why it matters: Clipping does not repair it: one inf makes the coefficient 0 and wipes out every finite gradient, one
    nan makes all gradients nan, and with them the weights.

    How it decides: Gradients with inf or nan in the moment the optimizer used them, in a step that no scaler skipped, or
    gradients that an infinite norm made 0.

    What to do: `clip_grad_norm_(..., error_if_nonfinite=True)`, or skip the step where `not norm.isfinite()`.

    When it is wrong: Not known to be.
    """
    hits = []
    for view in views(run):
        bad = [u for u in view.taken if u.nonfinite]
        wiped = [(u, c) for u in view.taken if u.exact for c in view.acting(u) if math.isinf(c.returned) and u.used == 0]
        by_hand = [(u, h) for u in view.taken if (h := u.wiped_by) and math.isinf(h.norm)]
        if by_hand and not bad and not wiped:
            hits.append(_wiped_by_hand(view, by_hand))
        if not bad and not wiped:
            continue
        u = bad[0] if bad else wiped[0][0]
        clips = view.acting(u)
        returned = f"the clip at {at(clips[0].site)} returned {clips[0].returned}, and " if clips else ""
        tensors = ", ".join(view.tensor(i) for i in u.nonfinite[:3]) + (f" and {len(u.nonfinite) - 3} more" if len(u.nonfinite) > 3 else "")
        what = f"the optimizer stepped on inf or nan in {tensors}" if bad else "it wiped out all gradients"
        pairs: list[Pair] = [(x, None) for x in bad] or list(wiped)
        text = (
            f"{view.label}{returned}{what} in update {u.u + 1} (step at {at(u.step_site)}), {in_updates(pairs, view.taken)}; skip "
            f"such a step, or "
            "pass error_if_nonfinite=True"
        )
        hits.append(hit(text, pairs, {"num_tensors": len(u.nonfinite)}))
    return hits


def _wiped_by_hand(view: View, wiped: Sequence[tuple[Update, Hand]]) -> Hit:
    u, h = wiped[0]
    pairs: list[Pair] = [(x, None) for x, _ in wiped]
    text = (
        f"{view.label}the norm computed at {at(h.site)} is inf, and scaling by it at {at(u.clear_site)} wiped out all gradients "
        f"{in_updates(pairs, view.taken)}; sum its squares in float32, and skip a step whose norm is not finite"
    )
    return hit(text, pairs, {})


def max_norm_invalid(run: Run, found: Detection) -> list[Hit]:
    """A bound that is none.

    What it finds: A max_norm of 0, below 0, nan, or a truth value.

    Why it matters: 0 stops all learning, a negative one turns every update round (ascent), nan makes the weights nan, and
    True is 1. PyTorch checks none of it.

    How it decides: The value the clipping call was given; by hand, a norm that was compared with 0, or factors below 0 behind
    which norms end at one value.

    What to do: A positive number; leave the call out where clipping is off.

    When it is wrong: Not known to be.
    """
    hits = []
    remedy = "give a positive number, or leave the clip out"
    for view in views(run):
        invalid = ((u, c) for u in view.taken for c in u.clips if c.covers and (not c.bound > 0 or c.kind == "bool"))
        for clips in same_place(invalid):
            u, c = min(clips, key=lambda pair: pair[1].bound if pair[1].bound < 0 else 0)
            given = "True" if c.kind == "bool" else number(c.bound) if not math.isnan(c.bound) or c.kind == "float" else c.kind
            effect = "turns the gradients round" if c.bound < 0 else "makes all gradients 0" if c.bound == 0 else "is no bound"
            if c.kind == "bool" and c.bound == 1:
                effect = "counts as 1"
            others = "it is no bound" if len({str(x.bound) for _, x in clips}) > 1 else "it is so"
            text = (
                f"{view.label}the clip at {at(c.site)} has max_norm {given} in update {u.u + 1}, which {effect}: the optimizer used "
                f"{number(u.used)}; {others} {in_updates(clips, view.taken)}; {remedy}"
            )
            hits.append(hit(text, clips, {"max_norm": c.bound, "norm_used": u.used}))
        wiped: list[Pair] = [(u, None) for u in view.taken if (h := u.wiped_by) and h.bound == 0]
        if wiped:
            place = at(wiped[0][0].clear_site)
            often = in_updates(wiped, view.taken)
            text = f"{view.label}the clip by hand at {place} has max_norm 0, which makes all gradients 0 {often}; {remedy}"
            hits.append(hit(text, wiped, {"max_norm": 0.0}))
    return hits


def value_clip(run: Run, found: Detection) -> list[Hit]:
    """Elements clipped one by one, where the norm was to be bounded.

    What it finds: `clip_grad_value_`, or a clamp by hand, as the only bound.

    Why it matters: It bounds each element and not the norm, which may reach the value times the square root of the number
    of parameters, and it changes the direction of the update.

    How it decides: The call, or gradients whose elements were cut at one value, in updates without a norm clip.

    What to do: `clip_grad_norm_` bounds the norm.

    When it is wrong: Where clipping by value is the recipe.
    """
    hits = []
    for view in views(run):
        clips = [(u, c) for u in view.taken if not view.acting(u) for c in u.effective("value")]
        for group in same_place(clips):
            u, c = group[0]
            used = max((x.used for x, _ in group if not math.isnan(x.used)), default=math.nan)
            text = (
                f"{view.label}clip_grad_value_ at {at(c.site)} bounds elements at {number(c.bound)}, not the norm: the optimizer "
                f"used norms up to "
                f"{number(used)}; clip_grad_norm_ bounds the norm"
            )
            hits.append(hit(text, group, {"clip_value": c.bound, "largest_norm_used": used}))
        if not clips and view.hand.kind is HandKind.VALUE:
            place = f"at {at(view.hand.site)}" if view.hand.site else view.in_hooks
            used = max((u.used for u in view.taken if not math.isnan(u.used)), default=math.nan)
            text = (
                f"{view.label}elements are cut at {number(view.hand.bound)} {place}, the norm is not bounded: it reached {number(used)}; "
                f"clip_grad_norm_ before the step bounds it"
            )
            hits.append(hit(text, [(u, None) for u in view.taken], {"clip_value": view.hand.bound, "largest_norm_used": used}))
    return hits


def double_clip(run: Run, found: Detection) -> list[Hit]:
    """The same gradients clipped twice.

    What it finds: Two clips with bounds of their own before one step, on the same tensors.

    Why it matters: Only the smaller bound acts; the other is a knob without effect, and the norm that the second call
    returns (often the logged one) is not the raw one.

    How it decides: At least two norm clips of one update, in the right place, share tensors, and both bounds are finite. A
    call with max_norm=inf only computes the norm and does not count.

    What to do: Remove one.

    When it is wrong: Not known to be.
    """
    hits = []
    for view in views(run):
        twice = []
        for u in view.called:
            clips = view.acting(u)
            pairs = [(a, b) for i, b in enumerate(clips) for a in clips[:i] if a.covers & b.covers]
            if pairs:
                twice.append((u, pairs[0]))
        if twice:
            u, (a, b) = twice[0]
            binding = "the first binds" if a.bound < b.bound else "the second binds" if b.bound < a.bound else "they are equal"
            text = (
                f"{view.label}clipped twice before one step: at {at(a.site)} with max_norm {number(a.bound)} and at {at(b.site)} with "
                f"{number(b.bound)}; {binding}; remove one"
            )
            hits.append(hit(text, [(u, p[0]) for u, p in twice], {"max_norm": a.bound, "second_max_norm": b.bound, "norm_used": u.used}))
    return hits
