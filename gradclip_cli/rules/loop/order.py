"""GC401-405, GC417-419: the clip comes at the wrong moment."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from gradclip_cli.detect.loop import Clip, Edit, Phase, Update
from gradclip_cli.model.detection import Detection
from gradclip_cli.model.finding import Hit
from gradclip_cli.model.run import Run
from gradclip_cli.rules.loop.view import HandKind, View, views
from gradclip_cli.rules.loop.wording import at, beside_bound, hit, in_updates, is_above, same_place
from gradclip_cli.rules.wording import Unjudged, number, times
from gradclip_cli.wording import share


def clip_before_unscale(run: Run, found: Detection) -> list[Hit]:
    """Clipping that acts on gradients which still hold the loss scale.

    What it finds: A clip between the backward of a scaled loss and the moment the scaler divides the gradients.

    Why it matters: The norm is the true one times the loss scale (often 2^16), so practically every step is clipped,
    and the division afterwards leaves max_norm / scale: updates thousands of times too small with SGD, and a
    threshold that moves whenever the scale does.

    How it decides: The loss went through `GradScaler.scale`, the clipping call came before `unscale_` of that
    optimizer, and the scaler (or the fused optimizer) divided afterwards.

    What to do: Call `scaler.unscale_(optimizer)` right before the clip.

    When it is wrong: Where max_norm is meant in units of the scaled gradient.
    """
    hits = []
    for view in views(run):
        for clips in same_place((u, c) for u in view.taken for c in u.clips if c.scale is not None and c.covers and c.bounds):
            u, c = clips[0]
            scale = c.scale or math.nan
            used = (
                ""
                if math.isnan(u.used)
                else f"; the optimizer used a norm of {number(u.used)} where max_norm {number(c.bound)} was asked for"
            )
            text = (
                f"{view.label}clipped at {at(c.site)} while the gradients were scaled by {number(scale)} (norm {number(c.returned)}, "
                f"really {number(c.returned / scale)}){used}; call scaler.unscale_({view.variable or 'optimizer'}) before the clip"
            )
            hits.append(hit(text, clips, {"loss_scale": scale, "norm_scaled": c.returned, "norm_used": u.used, "max_norm": c.bound}))
        # In parts, by hand; a factor for all of them may be anything.
        edits = [(u, e) for u in view.taken for e in u.edits if e.scale is not None and not e.uniform]
        if edits and view.hand.kind in (HandKind.UNITS, HandKind.SEPARATE, HandKind.VALUE):
            u, e = edits[0]
            text = (
                f"{view.label}clipped by hand at {at(e.site)} while the gradients were scaled by {number(e.scale or math.nan)}: the "
                f"optimizer used a norm of {number(u.used)}; call scaler.unscale_({view.variable or 'optimizer'}) before the clip"
            )
            hits.append(hit(text, [(u, None) for u, _ in edits], {"loss_scale": e.scale or math.nan, "norm_used": u.used}))
    return hits


def clip_after_step(run: Run, found: Detection) -> list[Hit]:
    """Clipping that comes when the optimizer has already used the gradients.

    What it finds: A clip behind `optimizer.step`, or a loop whose optimizer steps inside the backward, where a later
    clip finds nothing.

    Why it matters: The log shows norms and a max_norm, and no step was ever bounded.

    How it decides: Between the clip and the step before it no backward gave new gradients, and no clip came between
    the last backward and the step that used it. It is told apart from GC403 by which of clip and step comes first.

    What to do: Move the clip between `backward` and `step`. An optimizer that steps inside the backward cannot clip
    the global norm; clip in a second pass or leave that optimizer.

    When it is wrong: It counts also where the norm never exceeded max_norm in this run.
    """
    hits = []
    for view in views(run):
        for clips in same_place(view.stale()):
            if _comes_first(view, clips):
                continue
            u, c = clips[0]
            used = [x.used for x, _ in clips if not math.isnan(x.used)]
            text = (
                f"{view.label}the clip at {at(c.site)} comes after the step at {at(u.step_site)}; {beside_bound(clips, c.bound)}; clip "
                f"between backward and step"
            )
            hits.append(hit(text, clips, {"max_norm": c.bound, "largest_norm_used": max(used, default=math.nan)}))
    return _once(hits) or _steps_in_backward(run)


def _steps_in_backward(run: Run) -> list[Hit]:
    inside = [v for v in views(run) if v.taken and all(u.in_backward for u in v.taken) and not v.called]
    clips = [(u, c) for v in inside for u in v.taken for c in u.clips if c.bounds and not c.in_backward]
    if not inside or not clips:
        return []
    u, c = clips[0]
    tensors = len({t for v in inside for t in v.loop.tensors})
    text = (
        f"the optimizer steps inside the backward ({tensors} tensors), so the clip at {at(c.site)} finds gradients that were used "
        f"and dropped; "
        "a global norm cannot be clipped that way"
    )
    return [hit(text, clips, {"max_norm": c.bound, "num_tensors": tensors})]


def clip_before_backward(run: Run, found: Detection) -> list[Hit]:
    """Clipping that comes before the gradients it is meant for.

    What it finds: A clip ahead of `backward`: it sees no gradients, or those of the step before.

    Why it matters: It bounds nothing, and the norm it returns (0, or the previous step's) looks plausible in a log.

    How it decides: Within an update the clip comes before the first backward, none follows, and in the first update of
    the run it came before any step (else it is GC402).

    What to do: Move the clip behind `backward` (in a Lightning module: into `configure_gradient_clipping`, not
    `training_step`).

    When it is wrong: Where gradients are made without a backward of torch's that we can see.
    """
    hits = []
    for view in views(run):
        for clips in same_place((u, c) for u, c in view.stale() if not _recomputes(u, c)):
            if not _comes_first(view, clips):
                continue
            _, c = clips[0]
            seen = (
                "no gradients"
                if c.returned == 0 or c.empty >= len(c.covers)
                else f"gradients of the step before (norm {number(c.returned)})"
            )
            used = [u.used for u, _ in clips if not math.isnan(u.used)]
            text = (
                f"{view.label}the clip at {at(c.site)} comes before backward and sees {seen}; {beside_bound(clips, c.bound)}; move it "
                f"behind backward"
            )
            hits.append(hit(text, clips, {"max_norm": c.bound, "largest_norm_used": max(used, default=math.nan)}))
    return _once(hits)


def _comes_first(view: View, clips: Sequence[tuple[Update, Clip]]) -> bool:
    """Whether the clip belongs to the step behind it: by the lines of the function that calls both, else by what came first in the run."""
    u, c = clips[-1]
    before_backward, before_step = is_above(c.stack, u.backward_stack), is_above(c.stack, u.step_stack)
    if before_backward:
        return True
    if before_step is False:
        return False
    return view.loop.clipped_first


def clip_per_microbatch(run: Run, found: Detection) -> list[Hit]:
    """Clipping of every micro-batch instead of the accumulated gradient.

    What it finds: Several rounds of backward and clip before one step, the gradients adding up.

    Why it matters: What the first micro-batches gave is shrunk again with every further clip, so the batches weigh
    differently, and the result is not the clipped gradient of the large batch.

    How it decides: At least two clips before one step, with a backward between them that adds to the clipped gradients.

    What to do: Clip once, when the last micro-batch is in: `if (i + 1) % accumulation_steps == 0:` around clip and step
    (`if accelerator.sync_gradients:` with Accelerate).

    When it is wrong: Where every loss is to be bounded on its own, on purpose.
    """
    hits = []
    for view in views(run):
        for clips in same_place(_rounds(view)):
            kept = {u.u: _first_weight(u) for u, _ in clips}
            u, c = min(clips, key=lambda pair: kept[pair[0].u])
            count, least = sum(x.covers != frozenset() and x.bounds for x in u.clips), kept[u.u]
            # By hand a clip shows only where it acts.
            verb = "scales" if c.by_hand else "runs"
            often = f"the least {in_updates(clips, view.taken)} (their median is {share(statistics.median(kept.values()))})"
            text = (
                f"{view.label}the clip at {at(c.site)} {verb} {count} times before one step, among {u.backwards} backward calls; in update "
                f"{u.u + 1} the first micro-batch keeps {share(least)} of its weight, {often}; clip once, before the step"
            )
            hits.append(hit(text, clips, {"num_clips": count, "num_backwards": u.backwards, "first_weight_fraction": least}))
    return _once(hits)


def _first_weight(u: Update) -> float:
    """What the clips of an update left of the gradients that were there before all of them."""
    return math.prod(min(1.0, x.bound / x.returned) for x in u.clips if x.covers and x.returned > 0 and x.bound > 0)


def _rounds(view: View) -> list[tuple[Update, Clip]]:
    """Clips of updates with several, each behind a backward of its own."""
    early = view.early()
    return [(u, c) for u, c in early if sum(x is u for x, _ in early) + len(view.acting(u)) >= 2]


def grads_changed_after_clip(run: Run, found: Detection) -> list[Hit]:
    """Gradients that are no longer the clipped ones when the optimizer uses them.

    What it finds: Between the clip and the step something changed the gradients: another backward, a factor, a reduction
    over ranks, noise.

    Why it matters: The norm the optimizer uses is not the one that was bounded.

    How it decides: The gradients are read behind the clip and again right before the optimizer uses them (in a recording
    without exact norms: the norm used differs from what the clip left), or a backward added to them in between.

    What to do: Do it before the clip; clip last.

    When it is wrong: Where the change is meant to act on the clipped gradient, such as noise for privacy.
    """
    hits = []
    for view in views(run):
        early = view.early()
        # By hand only what exceeds the bound is clipped: one round of many may show.
        repeated = {c.site for _, c in _rounds(view)}
        single = [(u, c) for u, c in early if not view.acting(u) and sum(x is u for x, _ in early) == 1 and c.site not in repeated]
        for clips in same_place(single):
            u, c = clips[0]
            text = (
                f"{view.label}another backward at {at(u.backward_site)} adds to the gradients clipped at {at(c.site)}; "
                f"{beside_bound(clips, c.bound)}; clip after the last backward"
            )
            largest = max((x.used for x, _ in clips if not math.isnan(x.used)), default=math.nan)
            hits.append(hit(text, clips, {"norm_used": largest, "max_norm": c.bound}))
        hits += _edited_behind(view)
    if not hits and (site := _clipped_and_collected(run)):
        raise Unjudged(
            f"gradients are clipped and cleared in turn at {at(site)}, and others are put in their place: a clip for each sample?"
        )
    return _once(hits)


def _clipped_and_collected(run: Run) -> str | None:
    """Where gradients are clipped several times before a step, each time from nothing, and the optimizer uses others."""
    for view in views(run):
        for u in view.called:
            if any(e.late for e in u.edits) and _collects(u, view.acting(u)[-1]):
                return view.acting(u)[-1].site
    return None


def _collects(u: Update, last: Clip) -> bool:
    return any(c.phase is Phase.DISCARDED and c.site == last.site for c in u.clips)


def _edited_behind(view: View) -> list[Hit]:
    edited = [(u, view.acting(u)[-1]) for u in view.called if any(e.late for e in u.edits) and not _collects(u, view.acting(u)[-1])]
    if not edited:
        return _other_than_clipped(view)
    u, c = edited[0]
    edit = next(e for e in u.edits if e.late)
    how = f"multiplied by {number(edit.factors[0])}" if edit.uniform else "changed"
    text = (
        f"{view.label}the gradients clipped at {at(c.site)} are {how} {_where_edited(u, edit)}: in update {u.u + 1} the clip left "
        f"{number(c.after)}, the optimizer used {number(u.used)}; do that before the clip"
    )
    evidence = {"norm_clipped": c.after, "norm_used": u.used, "max_norm": c.bound}
    return [hit(text, edited, evidence)]


def _where_edited(u: Update, edit: Edit) -> str:
    """Within a step the line is not always seen."""
    return (
        f"within the step at {at(u.step_site)}, by a hook or its own code"
        if edit.site == u.step_site
        else f"at {at(edit.site)} before the step"
    )


def _other_than_clipped(view: View) -> list[Hit]:
    """Where gradients were not read: the norm that was recorded with the step is not the one the clip left."""
    if view.loop.sharded:
        return []
    changed = []
    for u in view.called:
        (c, *more) = view.acting(u)
        comparable = not u.exact and not more and c.covers >= u.norms.keys() and c.leaves(c.factor * c.returned)
        if comparable and not c.leaves(u.used):
            changed.append((u, c, c.factor * c.returned))
    if not changed:
        return []
    u, c, left = changed[0]
    text = (
        f"{view.label}the gradients clipped at {at(c.site)} are changed before the step at {at(u.step_site)}: in update {u.u + 1} the clip "
        f"left {number(left)}, the optimizer used {number(u.used)}; do that before the clip"
    )
    evidence = {"norm_clipped": left, "norm_used": u.used, "max_norm": c.bound}
    return [hit(text, [(u, c) for u, c, _ in changed], evidence)]


def zero_grad_before_step(run: Run, found: Detection) -> list[Hit]:
    """Gradients cleared between the backward and the step.

    What it finds: `zero_grad` (or setting gradients to None) after `backward` and before `step`.

    Why it matters: The optimizer steps on nothing: the model does not learn, and the log shows a loss and a norm.

    How it decides: A backward gave gradients, they were cleared, and none were there when the optimizer stepped.

    What to do: Clear after the step, or before the backward.

    When it is wrong: Not known to be.
    """
    hits = []
    for view in views(run):
        zeroed = [(u, None) for u in view.taken if u.zeroed and not u.wiped_by]
        if zeroed:
            u = zeroed[0][0]
            text = (
                f"{view.label}the gradients are cleared at {at(u.clear_site)} after backward and before the step at {at(u.step_site)}: "
                f"the optimizer used none {in_updates(zeroed, view.taken)}; clear them after the step"
            )
            hits.append(hit(text, zeroed, {"num_updates": len(zeroed)}))
    return hits


def closure_recomputes_grads(run: Run, found: Detection) -> list[Hit]:
    """A clip outside a closure that makes the gradients anew.

    What it finds: `optimizer.step(closure)` whose closure calls `backward`, with the clip before the step.

    Why it matters: The optimizer (LBFGS, SAM and others) uses the gradients of the closure; the clipped ones are gone.

    How it decides: A backward ran inside `step`, the clip came before it, and none came inside. What the clip saw may be
    gradients that the closure left in the step before.

    What to do: Clip inside the closure, behind its backward.

    When it is wrong: Where the closure only evaluates.
    """
    hits = []
    for view in views(run):
        outside = [(u, c) for u, c in view.clips(Phase.OUTSIDE) if not any(x.in_step for x in view.acting(u))]
        left_over = same_place((u, c) for u, c in view.stale() if _recomputes(u, c))
        outside += [pair for clips in left_over if _comes_first(view, clips) for pair in clips]
        for clips in same_place(sorted(outside, key=lambda pair: pair[0].u)):
            u, c = clips[0]
            often = f" ({u.evaluations} times)" if u.evaluations > 1 else ""
            text = (
                f"{view.label}the clip at {at(c.site)} comes before step(closure), and the closure computes the gradients anew{often}: "
                f"{beside_bound(clips, c.bound)}; clip inside the closure"
            )
            hits.append(hit(text, clips, {"norm_used": u.used, "max_norm": c.bound, "num_evaluations": u.evaluations}))
    return _once(hits)


def _recomputes(u: Update, c: Clip) -> bool:
    """Whether a closure made the gradients, and the clip came outside of it."""
    return u.made_in_step and not c.in_step


def double_unscale(run: Run, found: Detection) -> list[Hit]:
    """Gradients divided by the loss scale twice.

    What it finds: `unscale_` called on a wrapper of the optimizer and again by `scaler.step`, or a division by hand
    beside the scaler's own.

    Why it matters: The gradients are smaller by the loss scale (often 2^16): the clip never binds, and training hardly
    moves.

    How it decides: Two divisions by the scale, of the same gradients, before one step.

    What to do: Unscale once; give `unscale_` and `step` the same optimizer object.

    When it is wrong: Not known to be.
    """
    hits = []
    for view in views(run):
        twice = [(u, None) for u in view.loop.updates if len(u.unscaled) + u.divided > 1]
        if twice:
            u = twice[0][0]
            by_hand = f", once by hand at {at(u.unscaled_at)}" if u.unscaled_at else ""
            text = (
                f"{view.label}the gradients are divided by the loss scale {number(u.unscaled[0])} twice before the step at "
                f"{at(u.step_site)} {in_updates(twice, view.loop.updates)}{by_hand}: in update {u.u + 1} the optimizer used "
                f"{number(u.used)}, {times(u.unscaled[0])} too small; " + ("leave that out" if u.unscaled_at else "unscale once")
            )
            hits.append(hit(text, twice, {"loss_scale": u.unscaled[0], "norm_used": u.used}))
    return hits


def _once(hits: Iterable[Hit]) -> list[Hit]:
    """One finding a place, where several optimizers share a clip."""
    seen: dict[tuple[float | None, str], Hit] = {}
    for h in hits:
        seen.setdefault((h.evidence.get("max_norm"), h.message.split(": ", 1)[-1][:60]), h)
    return list(seen.values())
