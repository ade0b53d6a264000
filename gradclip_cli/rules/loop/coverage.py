"""GC406-409, GC412: the clip does not act on the set of gradients it should act on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradclip_cli.detect.loop import Clip, Hand, Phase, Update
from gradclip_cli.model.detection import Detection
from gradclip_cli.model.finding import Hit
from gradclip_cli.model.run import Run
from gradclip_cli.rules.loop.ranks import counted_by_several
from gradclip_cli.rules.loop.view import HandKind, View, views
from gradclip_cli.rules.loop.wording import Pair, at, beside_bound, hit, in_updates, same_place
from gradclip_cli.rules.wording import count, number

# Clips that scale by norms closer than this scale by one.
_ONE_NORM = 1e-5
# A norm in float32 of many elements is off by as much.
_UNREAD = 0.02
_NAMED = 3


def partial_params(run: Run, found: Detection) -> list[Hit]:
    """Tensors that the optimizer updates and no clip covers.

    What it finds: Parameters with gradients that are in no clipping call of their update: of the wrong model, missing
    from a list made before they were unfrozen, left out because they are sparse, or owned by a second optimizer.

    Why it matters: Their gradients are not bounded, and the norm that is logged leaves them out.

    How it decides: For every update the tensors with non-zero gradients that the optimizer used are compared with those
    the clips before it covered; the share of the squared norm that is uncovered is told, and from which update on.

    What to do: Clip what the optimizer owns:
    `clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], max_norm)`.

    When it is wrong: Where a part is left unclipped on purpose.
    """
    hits = []
    for view in views(run):
        uncovered = []
        for u in view.called:
            covered = frozenset().union(*(c.covers for c in view.acting(u)))
            if missing := set(u.norms) - covered:
                uncovered.append((u, view.acting(u)[0], missing))
        if uncovered:
            hits.append(_partly(view, uncovered))
        elif not view.called and (pairs := _others_only(view)):
            hits.append(_not_at_all(view, pairs))
        elif view.hand.kind is HandKind.PARTIAL:
            u = next(u for u in view.taken if u.edits)
            missing = set(u.norms) - view.hand.tensors
            text = (
                f"{view.label}the clip by hand at {at(view.hand.site)} scales {len(view.hand.tensors)} of {count(len(u.norms), 'tensor')}; "
                f"not {_names(view, missing)}; scale those by the same factor"
            )
            hits.append(hit(text, [(u, None)], {"num_uncovered": len(missing), "uncovered_fraction": _share(u, missing)}))
    return hits


def _partly(view: View, uncovered: Sequence[tuple[Update, Clip, set[int]]]) -> Hit:
    everything = frozenset().union(*(m for _, _, m in uncovered))
    first = uncovered[0][0]
    start = "" if first is view.taken[0] else f" from update {first.u + 1} on"
    u, c, missing = max(uncovered, key=lambda x: (len(x[2]), _share(x[0], x[2])))
    share = max(_share(u, m) for u, _, m in uncovered)
    text = (
        f"{view.label}the clip at {at(c.site)} covers {len(u.norms) - len(missing)} of the {count(len(u.norms), 'tensor')} the optimizer "
        f"updates{start}; "
        f"not {_names(view, everything)}, up to {share:.0%} of the squared norm it used; in update {u.u + 1} the optimizer "
        f"used {number(u.used)}, max_norm is {number(c.bound)}; {_remedy(u, missing, 'clip them in the same call')}"
    )
    evidence = {"num_uncovered": len(everything), "uncovered_fraction": share, "norm_used": u.used, "max_norm": c.bound}
    return hit(text, [(u, c) for u, c, _ in uncovered], evidence)


def _others_only(view: View) -> list[tuple[Update, Clip]]:
    """Clips of this optimizer's updates that act on tensors of others, where nothing else explains why it has none."""
    if view.bounded_by_hand or view.hand.kind is not HandKind.NONE or view.stale() or not _has_gradients(view):
        return []
    if any(view.clips(p) for p in (Phase.EARLY, Phase.OUTSIDE, Phase.DISCARDED)) or any(u.zeroed for u in view.taken):
        return []
    return [
        (u, c)
        for u in view.taken
        for c in u.clips
        if not c.covers and c.given and c.bounds and not c.copies and not u.in_backward and c.how == "norm"
    ]


def _not_at_all(view: View, pairs: Sequence[tuple[Update, Clip]]) -> Hit:
    u, c = pairs[-1]
    used = max((x.used for x in view.taken if not math.isnan(x.used)), default=math.nan)
    its = f"any of its {len(u.norms)} tensors" if len(u.norms) > 1 else f"its one tensor ({_names(view, set(u.norms))})"
    text = (
        f"{view.label}no clip covers {its}; the one at {at(c.site)} acts on {count(c.given, 'other')}: "
        f"{beside_bound([(x, None) for x in view.taken], c.bound)}; {_remedy(u, set(u.norms), 'clip the parameters this optimizer owns')}"
    )
    return hit(text, pairs, {"num_uncovered": len(u.norms), "uncovered_fraction": 1.0, "largest_norm_used": used, "max_norm": c.bound})


def _remedy(u: Update, missing: set[int], otherwise: str) -> str:
    """What to do about tensors that no clip covers."""
    if not missing <= u.sparse:
        return otherwise
    return (
        "clip_grad_norm_ takes no sparse gradients: make one norm of all by hand (of g.coalesce().values() where g is sparse), and "
        "g.mul_(max_norm / norm) each where it exceeds max_norm"
    )


def _has_gradients(view: View) -> bool:
    return any(u.norms or not u.exact for u in view.taken)


def empty_clip_list(run: Run, found: Detection) -> list[Hit]:
    """A clip that is given nothing.

    What it finds: A clipping call whose list of parameters is empty: a generator or `filter` that something else has
    used up, most often.

    Why it matters: It returns 0.0 and bounds nothing. PyTorch warns for generators only.

    How it decides: The call was given no tensor at all while the optimizer used gradients.

    What to do: Make a list of it: `params = [p for p in model.parameters() if p.requires_grad]`, or pass
    `model.parameters()` anew each time.

    When it is wrong: Not known to be.
    """
    hits = []
    for view in views(run):
        if not _has_gradients(view):
            continue
        for clips in same_place((u, c) for u in view.taken for c in u.clips if not c.given and c.bounds and not view.acting(u)):
            u, c = clips[0]
            used = max((x.used for x, _ in clips if not math.isnan(x.used)), default=math.nan)
            text = (
                f"{view.label}the clip at {at(c.site)} is given no parameters {in_updates(clips, view.taken)} (an iterator that "
                f"is used up, a selection without a match?), while the optimizer used norms up to {number(used)}; pass a list of what "
                f"the optimizer owns"
            )
            hits.append(hit(text, clips, {"largest_norm_used": used, "max_norm": c.bound}))
    return hits[:1]


def norm_not_applied(run: Run, found: Detection) -> list[Hit]:
    """A norm that is computed, and gradients that stay as they are.

    What it finds: `get_total_norm` without `clip_grads_with_norm_`; a helper that computes a norm, compares it with a
    bound and scales a copy, or nothing.

    Why it matters: The log looks like a clipped run.

    How it decides: The clip was given copies of the gradients, or the norm exceeded the bound it was compared with, and the
    gradients the optimizer used are those of the backward.

    What to do: Scale the gradients in place (`p.grad.mul_(coef)`), or use `clip_grad_norm_`.

    When it is wrong: A norm that is computed only to be logged is not meant to be applied.
    """
    hits = []
    for view in views(run):
        if view.called or _acts_otherwise(view):
            continue
        for clips in same_place((u, c) for u in view.taken for c in u.clips if c.copies and not c.covers):
            u, c = clips[0]
            text = (
                f"{view.label}the clip at {at(c.site)} acts on copies of the gradients ({count(c.copies, 'tensor')}): "
                f"{beside_bound(clips, c.bound)}; clip the parameters themselves"
            )
            hits.append(hit(text, clips, {"norm_used": u.used, "max_norm": c.bound}))
        over = [(u, h) for u in view.taken for h in u.hands if meant_to_clip(u, h)]
        # Unread gradients that are not what was measured were scaled by hand.
        as_measured = ((u, m) for u in view.taken for m in u.measured if u.exact or math.isclose(u.used, m[0], rel_tol=_UNREAD))
        measured = [(u, m) for u, m in as_measured if not any(c.covers for c in u.clips)]
        if not hits and over:
            u, h = max(over, key=lambda pair: pair[1].norm)
            bound = "" if math.isnan(h.bound) else f" and compared with {number(h.bound)}"
            # One of torch's is made at its call; by hand at the first norm of a gradient.
            site = next((s for n, s in u.measured if n == h.norm), h.site)
            text = (
                f"{view.label}a norm is computed at {at(site)} (up to {number(h.norm)}){bound}, and the gradients stay as they were: in "
                f"update {u.u + 1} the optimizer used {number(u.used)}; scale p.grad in place"
            )
            hits.append(hit(text, [(u, None) for u, _ in over], {"norm_used": u.used, "max_norm": h.bound}))
        elif not hits and measured and (view.unreached is None or any(h.scaled_copy for h in view.hands)):
            u, (norm, site) = measured[0]
            text = (
                f"{view.label}get_total_norm at {at(site)} computes {number(norm)}, and nothing is scaled by it: the optimizer "
                f"used {number(u.used)}; scale by it with clip_grads_with_norm_"
            )
            hits.append(hit(text, [(u, None) for u, _ in measured], {"norm_used": u.used}))
    return hits


def _acts_otherwise(view: View) -> bool:
    """The gradients did change by hand: what is wrong with it is another rule's."""
    return view.hand.kind not in (HandKind.NONE, HandKind.RESCALE, HandKind.OTHER) or any(c.by_hand for u in view.taken for c in u.clips)


def meant_to_clip(u: Update, hand: Hand) -> bool:
    """Whether a norm exceeded what it was compared with, and was used so: where gradients are not used, they were dropped on purpose."""
    return hand.over and (not math.isnan(hand.bound) or hand.scaled_copy) and not u.used <= hand.bound


def separate_norms(run: Run, found: Detection) -> list[Hit]:
    """A norm and a coefficient for each group or tensor.

    What it finds: Several clips before one step, each on a part of what the optimizer updates.

    Why it matters: The direction of the update changes (parts with large gradients are scaled, others not), and the
    total norm may reach max_norm times the square root of the number of parts.

    How it decides: At least two clips of one update cover disjoint sets of one optimizer's tensors, and scale by norms that
    differ; by hand: tensors are scaled by different factors, or norms per tensor pile up at one value.

    What to do: One call over all parameters: `clip_grad_norm_(model.parameters(), max_norm)`.

    When it is wrong: Where it is a deliberate recipe (per-block clipping, DINO, detectron2's default).
    """
    hits = []
    for view in views(run):
        split = []
        for u in view.called:
            clips = view.acting(u)
            apart = any(not a.covers & b.covers for i, a in enumerate(clips) for b in clips[:i])
            if apart and not _by_one_norm(clips):
                split.append((u, clips))
        if split:
            u, clips = split[0]
            used = max((x.used for x, _ in split if not math.isnan(x.used)), default=math.nan)
            text = (
                f"{view.label}{len(clips)} separate clips before one step ({at(clips[0].site)}), each on a part of its tensors: "
                f"the optimizer used "
                f"norms up to {number(used)} where max_norm is {number(clips[0].bound)}; clip all parameters in one call"
            )
            evidence = {"num_clips": len(clips), "largest_norm_used": used, "max_norm": clips[0].bound}
            hits.append(hit(text, [(u, c[0]) for u, c in split], evidence))
        elif view.hand.kind is HandKind.SEPARATE:
            updates: list[Pair] = [(u, None) for u in view.taken if u.edits] or [(u, None) for u in view.taken]
            how = (
                f"at {at(view.hand.site)}" if view.hand.site else f"{view.in_hooks}: norms per tensor pile up at {number(view.hand.bound)}"
            )
            hits.append(
                hit(f"{view.label}tensors are clipped one by one {how}, each by a factor of its own; clip all in one call", updates, {})
            )
    return hits


def _by_one_norm(clips: Sequence[Clip]) -> bool:
    """Several calls with one bound and one total norm do what one call does."""
    first = clips[0]
    return all(c.bound == first.bound and math.isclose(c.returned, first.returned, rel_tol=_ONE_NORM) for c in clips)


def duplicate_params(run: Run, found: Detection) -> list[Hit]:
    """A tensor that is given to one clip more than once.

    What it finds: The same parameter twice in the list of a clipping call; tied weights, most often, collected module by
    module. Or gradients that several ranks hold, counted on each of them in a norm that is summed over ranks.

    Why it matters: Its norm counts twice in the total, and its gradient is scaled twice: the update is clipped too hard,
    and its direction changes.

    How it decides: The list of the call holds one tensor object more than once. Over ranks: the norm that was scaled by is the
    root of the sum of all their squares, though some of their tensors have the same norm in every update.

    What to do: Pass `model.parameters()`, which gives each once, or `list(dict.fromkeys(params))`. Over ranks: sum the squares
    over the ranks of one copy only, and add those of replicated tensors once.

    When it is wrong: Not known to be.
    """
    hits = []
    for view in views(run):
        for clips in same_place((u, c) for u in view.taken for c in u.clips if c.repeated and c.bounds):
            u, c = clips[0]
            text = (
                f"{view.label}the clip at {at(c.site)} is given {_names(view, set(c.repeated))} more than once: counted twice in "
                f"the norm and scaled "
                f"twice (the optimizer used {number(u.used)}, max_norm is {number(c.bound)}); give each parameter once"
            )
            hits.append(hit(text, clips, {"num_repeated": len(c.repeated), "norm_used": u.used, "max_norm": c.bound}))
        if view.hand.kind is HandKind.REPEATED:
            u = next(u for u in view.taken if u.edits)
            text = (
                f"{view.label}the clip by hand at {at(view.hand.site)} scales {_names(view, view.hand.tensors)} twice "
                f"({number(min(u.edits[0].factors))} where the others get {number(max(u.edits[0].factors))}); take each parameter once"
            )
            hits.append(
                hit(text, [(u, None) for u in view.taken if u.edits], {"num_repeated": len(view.hand.tensors), "norm_used": u.used})
            )
    return hits or counted_by_several(run)


def _share(u: Update, tensors: set[int]) -> float:
    whole = sum(n * n for n in u.norms.values())
    return sum(u.norms.get(t, 0.0) ** 2 for t in tensors) / whole if whole > 0 else math.nan


def _names(view: View, tensors: set[int] | frozenset[int]) -> str:
    names = [view.tensor(t) for t in sorted(tensors)]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
