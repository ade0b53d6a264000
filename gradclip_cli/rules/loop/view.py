"""What the updates of one optimizer come to, for the rules of this family to judge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from gradclip_cli.detect.loop import Clip, Edit, Hand, OptimizerLoop, Phase, Update, loops
from gradclip_cli.detect.ranks import whole_norms
from gradclip_cli.model.recorded import RankPart, Recorded
from gradclip_cli.model.run import Run
from gradclip_cli.rules.loop.wording import at
from gradclip_cli.rules.wording import Unjudged
from gradclip_cli.wording import ordinal

# A coefficient or a norm that is the same within this is the same.
_SAME = 2e-3
# Norms that pile up at one value so often were bounded there, by code that nothing else shows.
_PILE_FRACTION = 0.25
_PILE_POINTS = 4
# A bound so far above every norm, beside another one, is there to get the norm computed.
_MEASURING = 1000.0


class HandKind(StrEnum):
    """What changes by hand amount to that are no clip of the whole (those are told as clips)."""

    NONE = "none"
    NORM = "norm"  # norms end at one bound
    VALUE = "value"
    SEPARATE = "separate"  # a coefficient for each tensor or group
    UNITS = "units"  # a coefficient for each row or element, as adaptive gradient clipping has it
    REPEATED = "repeated"  # one coefficient for all, and some tensors got it twice
    PARTIAL = "partial"  # one coefficient, for some of the tensors
    RESCALE = "rescale"  # a constant or arbitrary factor: no bound
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class HandClip:
    """Clipping without a call of torch's.

    Attributes:
        bound: Where norms end (or elements, for VALUE), else nan.
        site: Of the write to the gradients, where seen.
        count: In how many updates it acted.
        tensors: Those it ever scaled.
    """

    kind: HandKind
    bound: float = math.nan
    site: str | None = None
    count: int = 0
    tensors: frozenset[int] = frozenset()


@dataclass(eq=False)
class View:
    """One optimizer of one rank.

    Attributes:
        part: The rank's part of the recorded run.
        num_optimizers: How many there are to tell apart.
        clips_elsewhere: Clipping calls of the run bound something, of whichever optimizer.
        variable: What the script calls this optimizer and no other; empty where that is not known.
    """

    loop: OptimizerLoop
    part: RankPart
    num_optimizers: int
    clips_elsewhere: bool
    variable: str = ""

    @cached_property
    def taken(self) -> list[Update]:
        """Updates that were not skipped by a scaler."""
        return [u for u in self.loop.updates if not u.skipped]

    @cached_property
    def called(self) -> list[Update]:
        """Those with a norm clip by a call, in the right place."""
        return [u for u in self.taken if self.acting(u)]

    def acting(self, u: Update, how: str = "norm") -> list[Clip]:
        """Effective clips, without those that are only there to compute the norm."""
        clips = u.effective(how)
        largest = max((c.returned for c in clips if math.isfinite(c.returned)), default=0.0)
        if len(clips) > 1 and how == "norm":
            real = [c for c in clips if not c.bound > _MEASURING * max(largest, 1e-30)]
            clips = real or clips
        return clips

    @cached_property
    def hand(self) -> HandClip:
        """What the edits of all updates without an acting call amount to. What becomes of inf and nan tells nothing."""
        updates = [u for u in self.taken if u.exact and not self.acting(u) and not u.nonfinite]
        found = _by_hand(updates)
        return _piled_up(updates) if found.kind is HandKind.NONE else found

    @cached_property
    def bounded_by_hand(self) -> bool:
        """Norms end at a bound, though no clip was seen."""
        return self.hand.kind is HandKind.NORM

    @cached_property
    def hands(self) -> list[Hand]:
        """Norms of the user's own making, in updates without an acting call."""
        return [h for u in self.taken if not self.acting(u) for h in u.hands]

    @cached_property
    def unreached(self) -> Hand | None:
        """A comparison with a bound that no norm the optimizer used exceeded: a clip by hand that had nothing to do."""
        finite = [u for u in self.taken if not self.acting(u) and not u.nonfinite]
        bounded = [(u, h) for u in finite for h in u.hands if not math.isnan(h.bound)]
        if self.hand.kind is not HandKind.NONE or any(u.wiped_by or any(c.by_hand for c in u.clips) for u in self.taken):
            return None
        return bounded[0][1] if bounded and not any(h.over and not u.used <= h.bound for u, h in bounded) else None

    @cached_property
    def dropped(self) -> int:
        """How many gradients that exceeded that bound no step used."""
        return 0 if self.unreached is None else sum(h.over for u in self.taken for h in u.hands)

    @property
    def in_hooks(self) -> str:
        """Where gradients are changed within the backward."""
        site = next((u.hook_site for u in self.taken if u.hook_site), None)
        return f"in the hook on tensors at {at(site)}" if site else "in hooks on tensors"

    @property
    def exact(self) -> bool:
        """Whether gradients were read at every point at least for some updates."""
        return any(u.exact for u in self.taken)

    def clips(self, phase: Phase, how: str = "norm") -> list[tuple[Update, Clip]]:
        """Clips of a phase that cover something of this optimizer. Where all gradients are zero there was nothing to clip."""
        taken = [u for u in self.taken if u.used != 0 or u.zeroed]
        return [(u, c) for u in taken for c in u.clips if c.phase is phase and c.covers and c.how == how and c.bounds]

    def stale(self) -> list[tuple[Update, Clip]]:
        """Clips in updates that no clip in the right place follows."""
        return [(u, c) for u, c in self.clips(Phase.STALE) if not self.acting(u) and not u.in_backward and not u.zeroed]

    def early(self) -> list[tuple[Update, Clip]]:
        """Clips with more gradients behind them. A call that also comes where there are none yet is told as that."""
        told = {c.site for _, c in self.stale()}
        return [(u, c) for u, c in self.clips(Phase.EARLY) if c.site not in told]

    @property
    def label(self) -> str:
        """How messages call the optimizer: nothing where there is one."""
        if self.num_optimizers == 1:
            return ""
        process = f" of process {self.part.rank}" if self.part.rank and is_alone(self.part) else ""
        return f"{self.loop.name} ({self.variable or f'the {ordinal(self.loop.o + 1)} optimizer'}{process}): "

    def tensor(self, i: int) -> str:
        """The name of a tensor."""
        return self.part.tensors[i].name if i < len(self.part.tensors) else f"parameter {i}"


def views(run: Run) -> list[View]:
    """The optimizers of the first rank, and of every process that trains for itself.

    Raises:
        Unjudged: Where the run has no trace.
    """
    whole = recorded(run)
    first = min(whole.parts)
    return [v for rank, part in sorted(whole.parts.items()) if rank == first or is_alone(part) for v in _views(whole, rank)]


def is_alone(part: RankPart) -> bool:
    """Whether it is no rank among others: a process that the script started for work of its own."""
    return part.header.get("world_size") == 1


def recorded(run: Run) -> Recorded:
    """The recording.

    Raises:
        Unjudged: Where there is none.
    """
    if run.recorded is None or not run.recorded.parts:
        raise Unjudged("a log does not show the loop itself; `gradclip verify SCRIPT` watches it")
    if not any(part.events for part in run.recorded.parts.values()):
        raise Unjudged("this run was recorded without the trace of its calls")
    return run.recorded


def views_of_ranks(run: Run) -> dict[int, list[View]]:
    """The optimizers of every rank."""
    whole = recorded(run)
    return {rank: _views(whole, rank) for rank in sorted(whole.parts)}


def own_loops(run: Run) -> dict[int, list[OptimizerLoop]]:
    """The optimizers of every rank, each norm that of what the rank itself holds."""
    return _own_loops(recorded(run))


@lru_cache(maxsize=2)
def _own_loops(whole: Recorded) -> dict[int, list[OptimizerLoop]]:
    return {rank: loops(part.events) for rank, part in whole.parts.items()}


@lru_cache(maxsize=16)
def _views(whole: Recorded, rank: int) -> list[View]:
    part = whole.parts[rank]
    found = loops(_traces(whole)[rank])
    for loop in found:
        _add_recorded_norms(loop, part)
    clips = any(c.covers and c.bounds for loop in found for u in loop.updates for c in u.clips)
    alone = sum(map(is_alone, whole.parts.values()))
    return [View(loop, part, max(len(found), alone), clips, _variable(loop, found)) for loop in found]


def _variable(loop: OptimizerLoop, of: Sequence[OptimizerLoop]) -> str:
    """One helper may step several by one name."""
    others = {name for other in of if other is not loop for name in other.names}
    return next((name for name in loop.names if name not in others), "")


def _add_recorded_norms(loop: OptimizerLoop, part: RankPart) -> None:
    """To updates whose gradients the trace did not read: the norms that were recorded with each step."""
    missing = {u.u + 1: u for u in loop.updates if not u.exact and not u.skipped}
    if not missing:
        return
    optimizer, used = part.columns.get("optimizer"), part.columns.get("grad_norm_used")
    for row in np.flatnonzero(np.isin(part.steps, list(missing))).tolist():
        if optimizer is None or optimizer[row] == loop.o:
            update = missing[int(part.steps[row])]
            norms = part.tensor_norms[row]
            update.norms = {i: float(norms[i]) for i in np.flatnonzero(norms > 0).tolist()}
            update.used = math.nan if used is None else float(used[row])
            _believe_norm(update)


def _believe_norm(update: Update) -> None:
    """Where no clip seems to act, and yet the norm used is what the last one left: gradients came there in a way that is not traced."""
    clips = [i for i, c in enumerate(update.clips) if c.bounds and c.covers >= update.norms.keys() and c.leaves(update.used)]
    if clips and update.norms and not update.effective():
        update.clips[clips[-1]] = replace(update.clips[clips[-1]], phase=Phase.EFFECTIVE)


@lru_cache(maxsize=2)
def _traces(whole: Recorded) -> Mapping[int, Sequence[Mapping[str, Any]]]:
    return whole_norms({rank: part.events for rank, part in whole.parts.items()})


def _by_hand(updates: Sequence[Update]) -> HandClip:
    edited = [(u, u.edits) for u in updates if u.edits]
    if not edited:
        return HandClip(HandKind.NONE)
    edits = [e for _, es in edited for e in es]
    site = next((e.site for e in edits if e.site), None)
    touched = frozenset(t for e in edits for t in e.tensors)
    clamped = sum(e.clamped for e in edits)
    if clamped and not any(e.other for e in edits):
        bound = max(e.clamp for e in edits if e.clamped)
        # A tensor of one element that is cut looks scaled.
        if all(u.largest <= bound * (1 + _SAME) for u, _ in edited):
            return HandClip(HandKind.VALUE, bound, site, len(edited), touched)
    if any(e.shrunk for e in edits) and not any(e.other or e.made for e in edits):
        return HandClip(HandKind.UNITS, math.nan, site, len(edited), touched)
    if any(e.clamped or e.other or e.made for e in edits):
        ends = [es[-1].after for _, es in edited]
        kind = HandKind.NORM if len(ends) > 2 and _spread(ends) < _SAME else HandKind.OTHER
        return HandClip(kind, max(ends) if kind is HandKind.NORM else math.nan, site, len(edited), touched)
    if twice := _scaled_twice(edits):
        return HandClip(HandKind.REPEATED, math.nan, site, len(edited), twice)
    if not all(e.uniform for e in edits):
        return HandClip(HandKind.SEPARATE, math.nan, site, len(edited), touched)
    missing = [u for u, es in edited if not set(u.norms) <= {t for e in es for t in e.tensors}]
    if len(missing) == len(edited):
        return HandClip(_some_or_each(edited), math.nan, site, len(edited), touched)
    return HandClip(HandKind.RESCALE, math.nan, site, len(edited), touched)


def _scaled_twice(edits: Sequence[Edit]) -> frozenset[int]:
    """Tensors whose factor is the square of that of all others, in every edit."""
    tensors: frozenset[int] = frozenset()
    for e in edits:
        if not e.scaled_tensors or e.uniform:
            return frozenset()
        once, squared = max(e.factors), max(e.factors) ** 2
        low = [f for f in e.factors if not math.isclose(f, once, rel_tol=1e-3)]
        if once > 1 or not low or not all(math.isclose(f, squared, rel_tol=1e-3) for f in low):
            return frozenset()
        tensors |= {t for t, f in zip(e.scaled_tensors, e.factors, strict=True) if not math.isclose(f, once, rel_tol=1e-3)}
    return tensors if len(edits) > 1 else frozenset()


def _some_or_each(edited: Sequence[tuple[Update, list[Edit]]]) -> HandKind:
    """Some tensors are left alone in every update: always the same ones, or each time those below their own bound."""
    touched = {t for _, es in edited for e in es for t in e.tensors}
    everywhere = {t for u, _ in edited for t in u.norms}
    return HandKind.PARTIAL if everywhere - touched else HandKind.SEPARATE


def _piled_up(updates: Sequence[Update]) -> HandClip:
    """Bounds that nothing shows but where the values end: hooks on tensors clip within the backward."""
    exact = [u for u in updates if u.exact and u.norms and not u.nonfinite]
    if len(exact) < _PILE_POINTS:
        return HandClip(HandKind.NONE)
    if any(len(u.norms) > 1 for u in exact):
        each_tensor = [n for u in exact for n in u.norms.values()]
        at_top = {t for u in exact for t, n in u.norms.items() if n >= max(each_tensor) * (1 - _SAME / 10)}
        if len(at_top) > 1 and sum(n >= max(each_tensor) * (1 - _SAME / 10) for n in each_tensor) >= _PILE_POINTS:
            return HandClip(HandKind.SEPARATE, max(each_tensor), None, len(exact), frozenset(at_top))
    if (bound := _pile([u.used for u in exact])) is not None:
        return HandClip(HandKind.NORM, bound, None, len(exact))
    # The bias of a last layer under an absolute error, say, has a largest gradient of its own.
    if (bound := _pile([u.largest for u in exact])) is not None and len(frozenset().union(*(u.peaks for u in exact))) > 1:
        return HandClip(HandKind.VALUE, bound, None, len(exact))
    return HandClip(HandKind.NONE)


def _pile(values: Sequence[float]) -> float | None:
    top = max(values)
    at_top = sum(v >= top * (1 - 1e-5) for v in values)
    return top if top > 0 and at_top >= max(_PILE_POINTS, _PILE_FRACTION * len(values)) else None


def _spread(values: Iterable[float]) -> float:
    values = list(values)
    high, low = max(values), min(values)
    return abs(high - low) / max(abs(high), abs(low)) if high != low else 0.0
