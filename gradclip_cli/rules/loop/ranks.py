"""GC411, and what of GC412 is between ranks: several processes that train one model do not clip by its one norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

from gradclip_cli.detect.loop import Phase, Update
from gradclip_cli.model.detection import Detection
from gradclip_cli.model.finding import Hit
from gradclip_cli.model.recorded import Recorded
from gradclip_cli.model.run import Run
from gradclip_cli.rules.loop.view import View, is_alone, own_loops, recorded, views, views_of_ranks
from gradclip_cli.rules.loop.wording import Pair, at, hit
from gradclip_cli.rules.wording import Unjudged, number

_RANKS_DIFFER = 1e-3
# Two ranks hold a copy of a tensor where its norms agree so far in every update, and in so many at least.
_SAME_COPY, _MIN_SAME = 1e-5, 2
# So many updates are compared for copies: what is replicated is so in all.
_MOST_COMPARED = 8
# So many times another norm is more.
_MORE = 1.01
_COPY = "copy of the same gradients"


def ranks_disagree(run: Run, found: Detection) -> list[Hit]:
    """Ranks that clip by different coefficients.

    What it finds: A rank that scales its gradients (or its shard of them, its stage, its experts) otherwise than the others,
    or not at all.

    Why it matters: Replicas drift apart without a message; parts of one model are scaled by different factors.

    How it decides: Update by update, over all ranks. Those that hold parts of one model must scale by one factor: shards of
    the same tensors, stages of a pipeline (some ranks start every backward from gradients they were handed, others from a
    loss), copies of some tensors (their norms agree in every update), shares of the parameters whose gradients the script
    all-reduces or which it gathers after every step, or layers that sum over ranks within an autograd function. Replicated
    gradients that were equal before the clip must be equal when the optimizers use them.

    What to do: Make the norm over all ranks first (`get_total_norm` of DTensors is, FSDP1's `model.clip_grad_norm_` does; of
    plain tensors all-reduce the sum of squares, replicated ones once), and run the same code on every rank.

    When it is wrong: Where ranks train different models.
    """
    ranks = views_of_ranks(run)
    whole = recorded(run)
    if sum(not is_alone(part) for part in whole.parts.values()) < 2:
        raise Unjudged("one rank was watched; there is no other to compare it with")
    first, pipeline = min(ranks), _is_pipeline(whole)
    unknown = ""
    for view in ranks[first]:
        others = {r: v for r, vs in ranks.items() if r != first for v in vs if v.loop.o == view.loop.o and not is_alone(v.part)}
        pairs: list[Pair] = []
        told: list[tuple[bool, str]] = []
        for rank, other in others.items():
            one_model = pipeline or _are_one_model(view, rank, other)
            for u, v in zip(view.taken, other.taken, strict=False):
                if text := _told(view, u, rank, other, v, one_model):
                    pairs.append((u, None))
                    told.append((_differing(view, u, other, v) is None, text))
                elif not (one_model or unknown) and (differing := _differing(view, u, other, v)):
                    unknown = (
                        f"rank {view.part.rank} scales by {number(differing[0])} and rank {rank} by {number(differing[1])} in update "
                        f"{u.u + 1}, and whether they hold parts of one model cannot be seen; parts of one need one norm over all ranks"
                    )
        if pairs:
            # The first that shows it in its numbers.
            return [hit(min(told, key=lambda t: t[0])[1], sorted(pairs, key=lambda pair: pair[0].u), {})]
    if unknown:
        raise Unjudged(unknown)
    return []


def _are_one_model(view: View, rank: int, other: View) -> bool:
    """Whether two ranks hold parts of one model, or of one optimizer's share in a replica of it."""
    if rank in view.loop.ranks:
        return True
    uses = [e for e in view.part.events if e["k"] == "use" and e["o"] == view.loop.o]
    reduced, computed, gathered = (sum(rank in e.get(f"{how}_with", ()) for e in uses) for how in ("reduced", "computed", "gathered"))
    replicated = bool(view.part.header.get("replicated"))
    if _hold_the_same(view, other):
        # Replicas may sum statistics of their batches, and gather their weights at times.
        parts = computed > 0 and not (reduced or replicated) or gathered > max(1, len(uses) // 2)
    else:
        parts = reduced + computed + gathered > 0 or replicated and view.loop.tensors != other.loop.tensors
    return parts or bool(_copies(view, other))


def _is_pipeline(whole: Recorded) -> bool:
    """Some ranks start every backward from gradients they were handed, others from a loss."""
    from_loss = [
        {bool(e["from_loss"]) for e in part.events if e["k"] == "backward" and "from_loss" in e}
        for part in whole.parts.values()
        if not is_alone(part)
    ]
    return {True} in from_loss and {False} in from_loss


def _copies(view: View, other: View) -> set[int]:
    """Tensors whose gradients had the same norm on two ranks before they were scaled, in every update."""
    counts: dict[int, int] = {}
    differ: set[int] = set()
    for u, v in zip(view.taken[:_MOST_COMPARED], other.taken[:_MOST_COMPARED], strict=False):
        mine, theirs = _scalings(view, u), _scalings(other, v)
        if mine is None or theirs is None:
            continue
        f, g = math.prod(mine), math.prod(theirs)
        for t in u.norms.keys() & v.norms.keys():
            if math.isclose(u.norms[t] * g, v.norms[t] * f, rel_tol=_SAME_COPY):
                counts[t] = counts.get(t, 0) + 1
            else:
                differ.add(t)
    return {t for t, n in counts.items() if n >= _MIN_SAME and t not in differ and view.tensor(t) == other.tensor(t)}


def _told(view: View, u: Update, rank: int, other: View, v: Update, one_model: bool) -> str:
    """How the two updates differ that should be alike; empty where they do not, or it cannot be told."""
    if one_model and (differing := _differing(view, u, other, v)):
        copies = _hold_the_same(view, other) and _were_the_same(view, u, other, v)
        what = "shards" if view.loop.sharded else _COPY if copies else "part of the gradients"
        return _scaled_differently(view, u, differing[0], rank, other, v, differing[1], what)
    if view.loop.sharded or other.loop.sharded or not _hold_the_same(view, other):
        return ""
    a, b = _factor(view, u), _factor(other, v)
    if math.isnan(a) or math.isnan(b):
        return ""
    same_gradients = _close(_before(view, u), _before(other, v))
    idle = _is_idle(view, u) != _is_idle(other, v)
    if (same_gradients or _lets_pass(view, u, other, v)) and not _close(a, b) or same_gradients and idle:
        return _scaled_differently(view, u, a, rank, other, v, b, _COPY)
    if _drifted(view, u, v) or same_gradients and not _close(u.used, v.used):
        return (
            f"{view.label}rank {view.part.rank} used a gradient norm of {number(u.used)} and rank {rank} {number(v.used)} in update "
            f"{u.u + 1} (step at {at(u.step_site)}), of a model they share; reduce the gradients over ranks before the clip"
        )
    return ""


def _hold_the_same(view: View, other: View) -> bool:
    return view.loop.tensors == other.loop.tensors and view.part.tensors == other.part.tensors


def _is_idle(view: View, u: Update) -> bool:
    """Nothing was done to the gradients."""
    return not view.acting(u) and not u.edits


def _lets_pass(view: View, u: Update, other: View, v: Update) -> bool:
    """Whether one of them did nothing about a norm that the other would have scaled. By hand nothing is done about a smaller one."""
    if _is_idle(view, u) == _is_idle(other, v):
        return False
    passing, clipping, by = (u, v, other) if _is_idle(view, u) else (v, u, view)
    return passing.used > _MORE * max((c.bound for c in by.acting(clipping)), default=clipping.used)


def _scaled_differently(view: View, u: Update, mine: float, rank: int, other: View, v: Update, theirs: float, what: str) -> str:
    sites = [c.site for c in (*view.acting(u), *other.acting(v))] + [e.site for e in (*u.edits, *v.edits)]
    place = at(sites[0] if sites else None)
    return (
        f"{view.label}the clip at {place} multiplied rank {view.part.rank}'s {what} by {number(mine)} and rank {rank}'s by "
        f"{number(theirs)} in update {u.u + 1} (step at {at(u.step_site)}); {_fix(view, u, rank, other, v, copies=what == _COPY)}"
    )


def _fix(view: View, u: Update, rank: int, other: View, v: Update, *, copies: bool) -> str:
    """What is to be changed: who clips, the bound, or the norm."""
    sides = ((view.part.rank, view, u), (rank, other, v))
    bounds = [[c.bound for c in w.acting(x)] for _, w, x in sides]
    for (r, w, x), of_other in zip(sides, reversed(bounds), strict=True):
        # A norm of its own part may lie below the bound, at times.
        never = all(_is_idle(w, y) for y in w.taken)
        if not w.acting(x) and not _scalings(w, x) and (copies or never and x.used > _MORE * max(of_other, default=0.0)):
            return f"rank {r} does not clip: run the same code on every rank"
    if copies and len(bounds[0]) == len(bounds[1]) == 1 and not _close(bounds[0][0], bounds[1][0]):
        told = " and ".join(f"{number(b[0])} on rank {r}" for (r, _, _), b in zip(sides, bounds, strict=True))
        return f"max_norm is {told}: give every rank the same"
    return "use one norm over all ranks"


def _were_the_same(view: View, u: Update, other: View, v: Update) -> bool:
    """Whether both used one gradient but for what it was scaled by; a reduction over ranks may have made it one."""
    mine, theirs = _scalings(view, u), _scalings(other, v)
    return mine is not None and theirs is not None and _close(u.used * math.prod(theirs), v.used * math.prod(mine))


def _differing(view: View, u: Update, other: View, v: Update) -> tuple[float, float] | None:
    """The first factors that differ; None where none do, or they are not known."""
    mine, theirs = _scalings(view, u), _scalings(other, v)
    if mine is None or theirs is None:
        return None
    return next(((a, b) for a, b in zip_longest(mine, theirs, fillvalue=1.0) if not _close(a, b)), None)


def _scalings(view: View, u: Update) -> list[float] | None:
    """The factors that this rank's gradients were multiplied by, one after another, once they were all there (a reduction over ranks
    may come before); None where something else was done to them afterwards, or not to all of them."""
    acting = view.acting(u)
    last_other = max((i for i, e in enumerate(u.edits) if not e.uniform), default=-1)
    if last_other >= 0 and u.edits[last_other].late:
        return None
    found = [c.factor for c in acting] + [e.factors[0] for e in u.edits[last_other + 1 :]]
    return None if any(map(math.isnan, found)) else [f for f in found if not _close(f, 1.0)]


def _factor(view: View, u: Update) -> float:
    """What became of the norm from before everything; nan where that is not known."""
    before = _before(view, u)
    return u.used / before if before > 0 and math.isfinite(before) and math.isfinite(u.used) else math.nan


def _before(view: View, u: Update) -> float:
    """The norm before the first clip, or the first edit where there is none; where it was not read, the calls are taken back."""
    if not u.exact:
        factor = math.prod(c.factor for c in view.acting(u))
        return u.used / factor if factor > 0 else math.nan
    firsts = [c.before for c in u.clips if c.covers and c.phase is Phase.EFFECTIVE and not math.isnan(c.before)]
    edits = [e.before for e in u.edits if not e.late]
    return firsts[0] if firsts else edits[0] if edits else u.used


def _drifted(view: View, u: Update, v: Update) -> bool:
    """A model that is wrapped as a replica, with gradients that were never reduced."""
    return bool(view.part.header.get("replicated")) and not _close(u.used, v.used)


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_RANKS_DIFFER)


def counted_by_several(run: Run) -> list[Hit]:
    """GC412 over ranks: a norm in which gradients that several ranks hold count once for each of them."""
    parts = recorded(run).parts
    together = {rank for rank, part in parts.items() if not is_alone(part)}
    for view in views(run):
        for ranks in (together, together & {view.part.rank, *view.loop.ranks}):
            if len(ranks) > 1 and (found := _counted_on_each(run, view, sorted(ranks))):
                return [found]
    return []


def _counted_on_each(run: Run, view: View, ranks: Sequence[int]) -> Hit | None:
    loops = [next((loop for loop in own_loops(run).get(r, ()) if loop.o == view.loop.o), None) for r in ranks]
    taken = [[u for u in loop.updates if not u.skipped] for loop in loops if loop is not None]
    if len(taken) < len(ranks):
        return None
    pairs: list[Pair] = []
    before: list[list[dict[int, float]]] = []
    norms: list[float] = []
    for u, *held in zip(view.taken, *taken, strict=False):
        if not math.isnan(norm := _scaled_by(u)):
            gradients = [_before_clip(v) for v in held]
            counted = math.hypot(*(n for g in gradients for n in g.values()))
            if not math.isclose(norm, counted, rel_tol=_RANKS_DIFFER):
                return None
            pairs.append((u, next(c for c in u.clips if c.phase is Phase.EFFECTIVE)))
            before.append(gradients)
            norms.append(norm)
        if len(pairs) == _MOST_COMPARED:
            break
    if len(pairs) < _MIN_SAME:
        return None
    several: set[int] = set()
    squares = [0.0] * len(pairs)
    for t in set[int]().union(*(g for gradients in before for g in gradients)):
        # Copies come one behind the other.
        held = sorted([gradients[r].get(t, 0.0) for gradients in before] for r in range(len(ranks)))
        for one, next_one in zip(held, held[1:], strict=False):
            if any(one) and all(math.isclose(a, b, rel_tol=_SAME_COPY) for a, b in zip(one, next_one, strict=True)):
                several.add(t)
                squares = [s + n * n for s, n in zip(squares, next_one, strict=True)]
    really = [math.sqrt(max(0.0, n * n - s)) for n, s in zip(norms, squares, strict=True)]
    if not several or any(n < _MORE * r for n, r in zip(norms, really, strict=True)):
        return None
    u, c = pairs[0]
    assert c is not None
    names = ", ".join(view.tensor(t) for t in sorted(several)[:3]) + (f" and {len(several) - 3} more" if len(several) > 3 else "")
    text = (
        f"{view.label}the clip at {at(c.site)} scales by a norm of {number(norms[0])} summed over {len(ranks)} ranks, in which gradients "
        f"that several of them hold ({names}) count on each: really it is {number(really[0])}, so it clips too hard (max_norm is "
        f"{number(c.bound)}); count what is replicated once"
    )
    return hit(text, pairs, {"norm_counted": norms[0], "norm": really[0], "max_norm": c.bound})


def _scaled_by(u: Update) -> float:
    """The one norm that the gradients of an update were scaled by; nan where there is none, or it is no L2 norm of plain gradients."""
    clips = [c for c in u.clips if c.phase is Phase.EFFECTIVE and c.covers and c.bounds and c.how == "norm"]
    # A norm that was given to the call is of a p that it does not tell.
    if not u.exact or not clips or any(not (c.p == 2 or math.isnan(c.p)) or c.scale or c.returned != clips[0].returned for c in clips):
        return math.nan
    return clips[0].returned if math.isfinite(clips[0].returned) else math.nan


def _before_clip(v: Update) -> dict[int, float]:
    """The norm of each tensor before the clip that scaled all of them."""
    before = next((c.before for c in v.clips if c.phase is Phase.EFFECTIVE and c.covers), math.nan)
    return {t: n * before / v.used for t, n in v.norms.items()} if v.used > 0 else {}
