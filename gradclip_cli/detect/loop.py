"""From the trace of a watched loop to what happened to the gradients of each optimizer, update by update.

Events in, updates out; no judgement and no words. What the events are is told in `gradclip_cli.watch.observer`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

Event = Mapping[str, Any]
# A norm that is summed in float32, of many elements, is off by as much.
_NORM_ERROR = 0.02


class Phase(StrEnum):
    """Where in an update a clip came."""

    EFFECTIVE = "effective"  # after the last backward of what it covers, before the step
    STALE = "stale"  # no gradients of this update were there yet
    EARLY = "early"  # more gradients were added behind it
    DISCARDED = "discarded"  # what it clipped was zeroed, and made anew
    OUTSIDE = "outside"  # before a closure that made the gradients anew


@dataclass(frozen=True, eq=False, slots=True)
class Clip:
    """One clipping call as one optimizer sees it.

    Attributes:
        how: `norm` or `value`.
        bound: `max_norm` or `clip_value`; nan where it was no number (`kind` tells what).
        kind: Type of the bound as it was given.
        returned: The norm it scaled by (of all it was given), nan where there is none.
        covers: Tensors of this optimizer among those it was given.
        given, foreign, foreign_gradients, copies, empty: Numbers of tensors: given in all; owned by no optimizer; those with a
            gradient; those whose gradient is a copy of an owned one; owned but without gradient.
        repeated: Tensors given more than once.
        scale: The loss scale still in this optimizer's gradients, or None.
        before, after: This optimizer's norm around the call; nan where it was not read.
        whole: The norm is that over all ranks.
        by_hand: No call of torch's: the user's own code scaled the gradients as a clip does.
        factor: What it multiplied gradients by, in this process; nan for a value clip.
    """

    how: str
    bound: float
    kind: str
    p: float
    returned: float
    covers: frozenset[int]
    given: int
    foreign: int
    foreign_gradients: int
    copies: int
    empty: int
    repeated: tuple[int, ...]
    scale: float | None
    before: float
    after: float
    whole: bool
    in_backward: bool
    in_step: bool
    site: str | None
    stack: tuple[str, ...] = ()
    by_hand: bool = False
    factor: float = math.nan
    phase: Phase = Phase.EFFECTIVE

    def leaves(self, norm: float) -> bool:
        """Whether what it was given alone has this norm behind it; False where that cannot be told."""
        whole = self.how == "norm" and self.p == 2 and self.given == len(self.covers) and self.scale is None
        left = self.factor * self.returned
        return whole and abs(norm - left) <= _NORM_ERROR * left

    @property
    def bounds(self) -> bool:
        """Whether it can bound anything at all; `max_norm=inf` is the usual way to only compute a norm."""
        return self.how == "value" or self.bound != math.inf


@dataclass(frozen=True, eq=False, slots=True)
class Edit:
    """Gradients changed by no call that we know.

    Attributes:
        tensors: Which changed (those cleared apart).
        scaled, clamped, shrunk, other, made: How many were scaled by a factor, clamped, made smaller by factors that differ within
            the tensor, changed otherwise, or made from nothing.
        factors, scaled_tensors: Of the scaled ones; which they are is told where nothing else changed.
        clamp: The bound of the clamped ones, nan where none.
        before, after: This optimizer's norm around it.
        late: It came behind the last effective clip.
        scale: The loss scale still in the gradients, or None.
    """

    tensors: frozenset[int]
    scaled: int
    clamped: int
    shrunk: int
    other: int
    made: int
    factors: tuple[float, ...]
    scaled_tensors: tuple[int, ...]
    clamp: float
    before: float
    after: float
    in_step: bool
    site: str | None
    late: bool = False
    scale: float | None = None

    @property
    def uniform(self) -> bool:
        """All that changed was scaled by one factor."""
        return bool(self.factors) and not (self.clamped or self.shrunk or self.other or self.made) and self.spread < 1e-3

    @property
    def spread(self) -> float:
        """Relative distance of the largest factor from the smallest."""
        high, low = max(self.factors), min(self.factors)
        return (high - low) / max(abs(high), abs(low)) if high != low else 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Hand:
    """A norm that the user's own code made of the gradients.

    Attributes:
        bound: What it was compared with; nan where that was not seen.
        over: It exceeded the bound.
        scaled_copy: Something made from a gradient, not the gradient, was multiplied.
    """

    norm: float
    bound: float
    over: bool
    scaled_copy: bool
    function: str
    site: str | None


@dataclass(eq=False, slots=True)
class Update:
    """One update of one optimizer.

    Attributes:
        u: Updates of the process before it.
        exact: Gradients were read at every point.
        used: The norm the optimizer used; nan where not read.
        norms: By tensor with a non-zero gradient.
        largest: Largest magnitude of an element.
        peaks: Tensors that have one so large, and a hook.
        hook_site: Where the first hook on a tensor begins.
        sparse: Tensors whose gradient is sparse.
        evaluations: How often a closure was called (0 where there is none).
        in_backward: `step` was called by the autograd engine.
        zeroed: Gradients were made and cleared again, and none were there at the step.
        wiped: No `zero_grad` did that.
        skipped: The scaler let the step go by.
        backwards: How many backward calls gave it gradients.
        made_in_step: All of them came within `step`: a closure made them.
        measured: Norms computed by `get_total_norm` and not used to scale.
        unscaled: Loss scales it was divided by, in order.
        unscaled_by_hand: The user's own code did that.
        unscaled_at: Where it did.
        divided: The optimizer's own kernel divides by the loss scale.
    """

    u: int
    exact: bool = False
    used: float = math.nan
    norms: dict[int, float] = field(default_factory=dict)
    largest: float = math.nan
    peaks: frozenset[int] = frozenset()
    hook_site: str | None = None
    nonfinite: tuple[int, ...] = ()
    sparse: frozenset[int] = frozenset()
    evaluations: int = 0
    in_backward: bool = False
    zeroed: bool = False
    wiped: bool = False
    skipped: bool = False
    backwards: int = 0
    made_in_step: bool = False
    clips: list[Clip] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    hands: list[Hand] = field(default_factory=list)
    measured: list[tuple[float, str | None]] = field(default_factory=list)
    unscaled: list[float] = field(default_factory=list)
    step_site: str | None = None
    step_stack: tuple[str, ...] = ()
    backward_stack: tuple[str, ...] = ()
    backward_site: str | None = None
    clear_site: str | None = None
    divided: bool = False
    unscaled_by_hand: bool = False
    unscaled_at: str | None = None

    @property
    def wiped_by(self) -> Hand | None:
        """A norm of the user's own that made all gradients 0: infinite, or compared with 0."""
        return next((h for h in self.hands if h.over and (h.norm == math.inf or h.bound == 0)), None) if self.wiped else None

    def effective(self, how: str = "norm") -> list[Clip]:
        """Clips that the used gradients went through and that can bound them."""
        return [c for c in self.clips if c.phase is Phase.EFFECTIVE and c.how == how and c.covers and c.bounds]


@dataclass(eq=False, slots=True)
class OptimizerLoop:
    """One optimizer and its updates.

    Attributes:
        name: Its class.
        names: What the script calls it, in the innermost of its functions first.
        tensors: All it ever owned.
        sharded: Those of which this process holds a part.
        ranks: Those that hold parts of any of them together with this process.
        inside: Options by which its class clips out of sight.
        around: Such options of an object that wraps it.
        clipped_first: A clipping call came before its first gradients.
    """

    o: int
    name: str
    names: tuple[str, ...] = ()
    tensors: frozenset[int] = frozenset()
    sharded: frozenset[int] = frozenset()
    ranks: frozenset[int] = frozenset()
    inside: Mapping[str, str] = field(default_factory=dict)
    around: Mapping[str, str] = field(default_factory=dict)
    updates: list[Update] = field(default_factory=list)
    clipped_first: bool = False


def loops(events: Iterable[Event]) -> list[OptimizerLoop]:
    """What happened to each optimizer that took a step, in the order of their numbers."""
    events = list(events)
    joint = _joint(events)
    found: dict[int, OptimizerLoop] = {}
    for e in events:
        if e["k"] == "optimizer":
            loop = found.setdefault(e["o"], OptimizerLoop(e["o"], e["class"], tuple(e.get("names", ()))))
            loop.tensors |= frozenset(e["tensors"])
            loop.sharded |= frozenset(e["sharded"])
            loop.ranks = frozenset(r for _, ranks in e.get("groups", ()) for r in ranks)
            loop.inside, loop.around = e["inside"], e.get("around", {})
    for loop in found.values():
        _follow(loop, _with_hand_clips(loop, joint))
    return [loop for _, loop in sorted(found.items()) if loop.updates]


def _joint(events: list[Event]) -> list[Event]:
    """The events with the norm of all gradients, of whichever optimizer, that one piece of code scaled by one factor, in each edit."""
    out: list[Event] = []
    together: list[Event] = []
    for e in [*events, None]:
        if together and (e is None or not _goes_with(e, together[0])):
            whole = {key: math.hypot(*(_float(t.get(f"{key}_of_them")) for t in together)) for key in ("before", "after")}
            out += [{**t, "whole": whole} for t in together]
            together = []
        if e is not None and e["k"] == "edit" and _is_scaling(e):
            together.append(e)
        elif e is not None:
            out.append(e)
    return out


def _goes_with(e: Event, first: Event) -> bool:
    if e["k"] != "edit" or e["o"] == first["o"] or e["site"] != first["site"] or not _is_scaling(e):
        return False
    return _same([_float(e["factors"][0]), _float(first["factors"][0])], 1e-3)


def _with_hand_clips(loop: OptimizerLoop, events: list[Event]) -> list[Event]:
    """The events with every edit that is a clip by hand told as one.

    Edits of one place are a clip where each scales all by one factor of at most 1, the factors vary, and the norms (over all
    optimizers whose gradients it scales) end at one bound, or each factor is a bound over a norm that the code computed; or, in a
    loop that has no clip of torch's, where they do not act on every update or the code compared the norm with a bound that it
    exceeded. Factors below 0 are those of a negative bound where the norms end at it.
    """
    groups: dict[str | None, list[Event]] = {}
    apart = set()
    for e in events:
        if e["k"] == "edit" and e["o"] == loop.o:
            if _is_scaling(e):
                groups.setdefault(e["site"], []).append(e)
            elif set(e["counts"]) == {"scaled"}:
                apart.add(e["site"])
    bounds: dict[int, float] = {}
    calls = any(e["k"] == "clip" and e["how"] == "norm" and set(e["tensors"]) & loop.tensors for e in events)
    updates = sum(e["k"] == "exit" and e["o"] == loop.o and not e["wrapper"] for e in events)
    quotients = _quotients(events)
    over = [_float(e["bound"]) for e in events if e["k"] == "hand" and e["over"]]
    unclear: list[list[Event]] = []
    for site, edits in groups.items():
        factors = [math.prod(map(_float, e["factors"][:1])) for e in edits]
        ends = [e["whole"]["after"] for e in edits]
        # Code that also scales each tensor by a factor of its own.
        if site in apart or not (all(0 <= f < 1 + 1e-3 for f in factors) or all(f < 0 for f in factors)):
            continue
        constant = len(factors) > 1 and _same(factors, 1e-3)
        if factors[0] < 0:
            # min(1, max_norm / norm) of a negative max_norm.
            if len(ends) > 1 and not constant and _same(ends, 2e-2):
                bounds |= dict.fromkeys(map(id, edits), -max(ends))
            continue
        hands = [quotients.get(id(e)) for e in edits]
        if not constant and all(hands):
            bounds |= {id(e): _float(h["bound"]) for e, h in zip(edits, hands, strict=True) if h is not None}
        elif len(ends) > 1 and not constant and _same(ends, 2e-2):
            bounds |= dict.fromkeys(map(id, edits), max(ends))
        elif not calls and not constant and (over or 1 < len(edits) < updates):
            unclear.append(edits)
    # Beside code that is known to clip, a factor that varies is some other: one over the number of tokens, say.
    for edits in unclear if not bounds else []:
        ends = [e["whole"]["after"] for e in edits]
        told = [b for b in over if math.isfinite(b) and _same([b, ends[0]], 2e-2)]
        bounds |= {id(e): told[0] if told else end for e, end in zip(edits, ends, strict=True)}
    norms = {i: _float(h["norm"]) for i, h in quotients.items()}
    return [_as_clip(loop, e, bounds[id(e)], norms.get(id(e), e["whole"]["before"])) if id(e) in bounds else e for e in events]


def _quotients(events: list[Event]) -> dict[int, Event]:
    """By the `id` of an edit: the norm that the user's own code made before, where it scaled by just the bound over that norm.

    Over several ranks the norm may be that of more than this process holds, and norms here end anywhere below the bound.
    """
    found: dict[int, Event] = {}
    waiting: list[Event] = []
    for e in events:
        if e["k"] == "edit" and _is_scaling(e):
            waiting.append(e)
        elif e["k"] == "hand":
            norm, bound = _float(e["norm"]), _float(e["bound"])
            if norm > 0 and math.isfinite(bound):
                found |= {id(w): e for w in waiting if _same([_float(w["factors"][0]), bound / norm], 1e-3)}
            waiting = []
        elif e["k"] in ("backward", "use"):
            waiting = []
    return found


def _is_scaling(e: Event) -> bool:
    return bool(e["factors"]) and set(e["counts"]) == {"scaled"} and _same([_float(f) for f in e["factors"]], 1e-3)


def _same(values: list[float], within: float) -> bool:
    return max(values) - min(values) <= within * max(map(abs, values))


def _as_clip(loop: OptimizerLoop, e: Event, bound: float, norm: float) -> Event:
    o = str(loop.o)
    plain = {
        "given": len(e["tensors"]),
        "repeated": [],
        "empty": 0,
        "foreign": 0,
        "foreign_gradients": 0,
        "in_backward": False,
        "whole": False,
    }
    norms = {"returned": norm, "before": {o: e["before"]}, "after": {o: e["after"]}}
    return {**e, **plain, **norms, "k": "clip", "how": "norm", "bound": bound, "p": 2.0, "scaled": {}, "by_hand": True}


def _follow(loop: OptimizerLoop, events: list[Event]) -> None:
    items: list[Event] = []
    behind: list[Event] = []
    seen_backward = False
    depth = 0
    for e in events:
        kind = e["k"]
        own = e.get("o") == loop.o
        if kind == "backward":
            if _touches(e, loop):
                seen_backward = True
                items.append(e)
        elif (kind == "clip" or own and kind == "edit") and e.get("behind_update") and depth:
            behind.append(e)
        elif kind == "clip":
            if not seen_backward and not e["in_backward"]:
                loop.clipped_first = True
            items.append(e)
        elif kind in ("measure", "hand") or own and kind in ("edit", "unscale", "use"):
            items.append(e)
        elif own and kind == "enter":
            depth += 1
            items.append(e)
        elif own and kind in ("exit", "skip"):
            depth = max(0, depth - 1)
            if e.get("wrapper"):
                continue
            if kind == "skip" or any(i["k"] == "use" for i in items):
                loop.updates.append(_update(loop, items, e))
            items, behind = behind, []


def _touches(backward: Event, loop: OptimizerLoop) -> bool:
    changed = backward.get("changed")
    return changed is None or bool(changed.get(str(loop.o), ()))


def _update(loop: OptimizerLoop, items: list[Event], end: Event) -> Update:
    update = Update(u=end["u"], skipped=end["k"] == "skip")
    # A clip that the engine called came within the backward whose event follows it.
    items = _engine_clips_behind(items)
    uses = [i for i, e in enumerate(items) if e["k"] == "use"]
    last = uses[-1] if uses else len(items)
    backwards = [i for i, e in enumerate(items) if e["k"] == "backward" and i < last]
    clears = [i for i, e in enumerate(items) if e["k"] == "edit" and e["cleared"] and e["after"] == 0 and i < last]
    made = [i for i, e in enumerate(items) if e["k"] == "edit" and i < last and _makes(e, before=not any(b < i for b in backwards))]
    update.backwards = sum(b > max(clears, default=-1) for b in backwards)
    if uses:
        _take_use(update, items[last])
        update.evaluations = (
            sum(items[i]["evaluation"] is not None for i in uses) if any(e["k"] == "enter" and e["closure"] for e in items) else 0
        )
    for e in items:
        if e["k"] == "enter":
            update.in_backward |= bool(e["in_backward"])
            update.step_site = e["site"]
            update.step_stack = tuple(e.get("stack", ()))
    if backwards:
        update.made_in_step = all(items[b]["in_step"] for b in backwards)
        update.backward_site = items[backwards[-1]]["site"]
        update.backward_stack = tuple(items[backwards[-1]].get("stack", ()))
    if clears:
        update.clear_site = items[clears[-1]]["site"]
        fresh = [i for i in (*backwards, *made) if i > clears[-1]]
        spent = [i for i in (*backwards, *made) if i < clears[-1]]
        update.zeroed = update.exact and not update.norms and not fresh and bool(spent)
        update.wiped = update.zeroed and not items[clears[-1]]["zero"]
    scale: float | None = None
    positions: list[int] = []
    edited: list[int] = []
    for i, e in enumerate(items[:last] if uses else items):
        kind = e["k"]
        if kind == "backward":
            scale = _finite(e["scale"]) if e["scale"] not in (None, 1.0) else None
        elif kind == "unscale":
            update.unscaled.append(_float(e["scale"]))
            scale = None
        elif kind == "clip":
            positions.append(i)
            clip = _clip(loop, e, _phase(e, i, items, backwards, made, clears, loop))
            if update.unscaled_by_hand:
                clip = replace(clip, scale=None)
            elif clip.by_hand:
                clip = replace(clip, scale=scale)
            update.clips.append(clip)
        elif kind == "edit" and _changes(e):
            edit = _edit(e)
            in_them = scale or (update.unscaled[-1] if update.unscaled else None)
            if in_them is not None and edit.uniform and abs(edit.factors[0] * in_them - 1) < 1e-2:
                update.unscaled_by_hand, update.unscaled_at = True, e["site"]
                update.unscaled.append(in_them)
                scale = None
                continue
            if i in made:
                continue
            update.edits.append(replace(edit, scale=scale))
            edited.append(i)
        elif kind == "hand":
            update.hands.append(
                Hand(_float(e["norm"]), _float(e["bound"]), bool(e["over"]), bool(e["scaled_copy"]), str(e["function"]), e["site"])
            )
        elif kind == "measure":
            update.measured.append((_float(e["returned"]), e["site"]))
    acting = [i for i, c in zip(positions, update.clips, strict=True) if c.phase is Phase.EFFECTIVE and c.covers and c.bounds]
    if acting:
        update.edits = [replace(e, late=i > acting[-1]) for i, e in zip(edited, update.edits, strict=True)]
    if uses:
        _take_inside(update, loop, items[last:])
    return update


def _take_inside(update: Update, loop: OptimizerLoop, events: list[Event]) -> None:
    """An optimizer that scales in its own step, behind what every hook can see."""
    inside = [e for e in events if e["k"] == "edit" and e["in_step"] and _changes(e) and not e["cleared"]]
    edits = [_edit(e) for e in inside]
    clips = [_clip(loop, e, Phase.EFFECTIVE) for e in events if e["k"] == "clip" and e["in_step"] and e.get("by_hand")]
    if all(e.uniform for e in edits) and (edits or clips):
        update.edits += edits
        update.clips += clips
        update.used = edits[-1].after if edits else clips[-1].after


def _makes(e: Event, *, before: bool) -> bool:
    """Whether gradients were put there by hand: from nothing, or in place of used ones where no backward came `before`."""
    counts = e["counts"]
    return "set" in counts or (before and counts.get("other", 0) > 0)


def _changes(e: Event) -> bool:
    """Whether gradients that were there are others now."""
    return not set(e["counts"]) <= {"set", "cleared"}


def _engine_clips_behind(items: list[Event]) -> list[Event]:
    out: list[Event] = []
    waiting: list[Event] = []
    for e in items:
        if e["k"] == "clip" and e["in_backward"] and not e["in_step"]:
            waiting.append(e)
        else:
            if e["k"] in ("use", "enter"):
                out += waiting
                waiting = []
            out.append(e)
            if e["k"] == "backward":
                out += waiting
                waiting = []
    return out + waiting


def _take_use(update: Update, e: Event) -> None:
    update.exact = "norm" in e
    update.divided = e["divided"] is not None
    update.skipped |= e["skipped"] is not None and _float(e["skipped"]) > 0
    if update.exact:
        update.used = _float(e["norm"])
        update.largest = _float(e["largest"])
        update.peaks = frozenset(e.get("peaks", ()))
        update.hook_site = e.get("hook")
        update.nonfinite = tuple(e["nonfinite"])
        update.sparse = frozenset(e.get("sparse", ()))
        update.norms = {i: _float(n) for i, n in zip(e["tensors"], e["norms"], strict=True)}


def _phase(e: Event, i: int, items: list[Event], backwards: list[int], made: list[int], clears: list[int], loop: OptimizerLoop) -> Phase:
    covers = set(e["tensors"]) & loop.tensors
    behind = [b for b in backwards if b > i and _adds_to(items[b], covers, loop)]
    cleared_before = max((c for c in clears if c < i), default=-1)
    cleared_after = [c for c in clears if c > i and set(items[c]["cleared"]) & covers]
    fresh = [b for b in (*backwards, *made) if cleared_before < b < i]
    # What the closure only adds to, or what the step before has used, is no clip outside of it.
    anew = bool(behind) and items[behind[0]]["in_step"] and not e["in_step"]
    if anew and (fresh and cleared_after or not fresh and loop.clipped_first):
        return Phase.OUTSIDE
    if not fresh and not e["in_backward"]:
        return Phase.STALE
    if cleared_after and (behind or not covers):
        return Phase.DISCARDED
    return Phase.EARLY if behind else Phase.EFFECTIVE


def _adds_to(backward: Event, covers: set[int], loop: OptimizerLoop) -> bool:
    changed = backward.get("changed")
    return changed is None or not covers or bool(covers & set(changed.get(str(loop.o), ())))


def _clip(loop: OptimizerLoop, e: Event, phase: Phase) -> Clip:
    o = str(loop.o)
    bound = e["bound"]
    number = _is_number(bound)
    return Clip(
        how=e["how"],
        bound=_float(bound) if number else math.nan,
        kind=type(bound).__name__ if number and not isinstance(bound, str) else "float" if number else str(bound),
        p=_float(e["p"]),
        returned=_float(e["returned"]),
        covers=frozenset(e["tensors"]) & loop.tensors,
        given=e["given"],
        foreign=e["foreign"],
        foreign_gradients=e["foreign_gradients"],
        copies=e.get("copies", 0),
        empty=e["empty"],
        repeated=tuple(i for i in e["repeated"] if i in loop.tensors),
        scale=_finite(e["scaled"].get(o)),
        before=_float(e.get("before", {}).get(o)),
        after=_float(e.get("after", {}).get(o)),
        whole=bool(e["whole"]),
        in_backward=bool(e["in_backward"]),
        in_step=bool(e["in_step"]),
        site=e["site"],
        stack=tuple(e.get("stack", ())),
        by_hand=e.get("by_hand", False),
        factor=_factor(e),
        phase=phase,
    )


def _factor(e: Event) -> float:
    if e.get("by_hand"):
        return statistics.median(map(_float, e["factors"]))
    bound = _float(e["bound"]) if e["how"] == "norm" and _is_number(e["bound"]) else math.nan
    # What PyTorch's clip_grads_with_norm_ computes.
    return min(1.0, bound / (_float(e["returned"]) + 1e-6)) if not math.isnan(bound) else math.nan


def _is_number(bound: Any) -> bool:
    return isinstance(bound, int | float) or bound in ("nan", "inf", "-inf")


def _edit(e: Event) -> Edit:
    counts = e["counts"]
    return Edit(
        tensors=frozenset(e["tensors"]),
        scaled=counts.get("scaled", 0),
        clamped=counts.get("clamped", 0),
        shrunk=counts.get("shrunk", 0),
        other=counts.get("other", 0),
        made=counts.get("set", 0),
        factors=tuple(_float(f) for f in e["factors"]),
        scaled_tensors=tuple(e["tensors"]) if len(e["tensors"]) == len(e["factors"]) else (),
        clamp=_float(e["clamp"]),
        before=_float(e["before"]),
        after=_float(e["after"]),
        in_step=bool(e["in_step"]),
        site=e["site"],
    )


def _float(value: Any) -> float:
    """Numbers as the trace writes them: non-finite ones are text."""
    return math.nan if value is None else float(value)


def _finite(value: Any) -> float | None:
    number = _float(value)
    return number if math.isfinite(number) and number != 1.0 else None
