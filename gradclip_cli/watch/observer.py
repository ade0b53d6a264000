"""What the hooks see, turned into the trace: one event (see `events`) for every call that matters for clipping, in order."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from gradclip_cli.watch.collectives import Collectives
from gradclip_cli.watch.events import Event, plain
from gradclip_cli.watch.hook import hook
from gradclip_cli.watch.inside import clips_inside, options
from gradclip_cli.watch.looks import Looks, norm_of
from gradclip_cli.watch.marks import Marks
from gradclip_cli.watch.registry import Registry
from gradclip_cli.watch.sites import call_site, names_of, user_stack, wrapper_of
from gradclip_cli.watch.states import Change
from gradclip_cli.watch.window import Window

# Events whose place in the user's functions tells what was meant to come first.
_STACKED = {"backward", "clip", "enter"}


@dataclass(slots=True)
class _Step:
    """An optimizer step that is going on."""

    o: int
    in_backward: bool
    versions: int  # of the parameters when the step began or a backward within it ended: they grow when they are written
    in_hooks: bool = False  # hooks of the user's own run, and are watched
    inner_used: bool = False
    update_began: bool = False  # a class of the user's own has called the step of torch's that it derives from
    evaluations: int = 0
    clipped_inside: bool = False
    used: bool = False


@dataclass(slots=True)
class _Norm:
    """A norm that torch computed and may be about to clip by."""

    total: torch.Tensor
    given: list[int]
    p: float
    site: str | None
    raised: bool = False


@dataclass(eq=False, slots=True)
class _Here:
    """What is going on in one thread."""

    steps: list[_Step] = field(default_factory=list)
    backward_depth: int = 0
    norm: _Norm | None = None
    scale: float | torch.Tensor = 1.0  # of the loss that comes next
    losses: list[tuple[torch.Tensor, float | torch.Tensor]] = field(default_factory=list)
    losses_taken: bool = False
    window: Window | None = None
    unused: set[int] = field(default_factory=set)


@dataclass
class Observer:
    """Keeps the state of the loop and gives events to `emit`.

    Attributes:
        emit: Takes every event.
        exact_updates: For so many updates gradients are read at every point; later only what is free is told.
        on_use: Called right before an optimizer uses its gradients with its number and whether it is a
            further evaluation of a closure; measures for the recorded series.
        on_update: Called when a step is over.
        on_fault: Called with what a hook raised; from then on nothing is told.
    """

    emit: Callable[[Event], None]
    exact_updates: float
    on_use: Callable[[int, torch.optim.Optimizer, Event], None]
    on_update: Callable[[int], None]
    on_fault: Callable[[Exception], None]
    failed: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)
    registry: Registry = field(default_factory=Registry)
    updates: int = 0
    steps_begun: int = 0
    clips_seen: int = 0
    _told: set[int] = field(default_factory=set)
    _scaled: dict[int, float | torch.Tensor] = field(default_factory=dict)  # o -> scale still in its gradients
    _threads: dict[int, _Here] = field(default_factory=dict)
    _last_here: _Here = field(default_factory=_Here)
    _stepped_in: dict[int, int] = field(default_factory=dict)  # o -> thread

    def __post_init__(self) -> None:
        """What refers to other fields."""
        self._looks = Looks(self.registry)
        self._marks = Marks(self.registry)
        self._collectives = Collectives(self.registry)

    @property
    def _here(self) -> _Here:
        """What belongs to this thread. Threads of the autograd engine do the work of the one that called it last."""
        ident = threading.get_ident()
        here = self._threads.get(ident)
        if here is None:
            if type(threading.current_thread()).__name__ == "_DummyThread":
                return self._last_here
            here = self._threads[ident] = _Here()
        self._last_here = here
        return here

    @property
    def thread(self) -> int:
        """Tells the loops of several threads apart."""
        return id(self._here)

    @property
    def exact(self) -> bool:
        """Whether gradients are read at every point now."""
        return self.updates < self.exact_updates

    # --- what hooks call

    @hook
    def optimizer(self, optimizer: torch.optim.Optimizer) -> int:
        """Take an optimizer in, or its new parameters."""
        o, new = self.registry.optimizer(optimizer)
        thread = threading.current_thread()
        if new and thread is not threading.main_thread() and type(thread).__name__ != "_DummyThread":
            self._threads.setdefault(threading.get_ident(), _Here())
            self._stepped_in.setdefault(o, threading.get_ident())
        if new:
            self._looks.drop_the_gone()
            self._told.discard(o)
        return o

    def _tell_optimizer(self, o: int, optimizer: torch.optim.Optimizer) -> None:
        owned = self.registry.owned[o]
        inside = clips_inside(optimizer)
        wrapper = wrapper_of(optimizer)
        around = {f"{type(wrapper).__qualname__}.{k}": v for k, v in options(getattr(wrapper, "__dict__", {})).items()}
        groups = self.registry.sharded[o]
        sharded = sorted(i for tensors, _ in groups for i in tensors)
        name = {"class": type(optimizer).__qualname__, "names": names_of(optimizer)}
        self._say("optimizer", o=o, **name, tensors=owned, sharded=sharded, groups=groups, inside=inside, around=around)
        self._told.add(o)

    @hook
    def backward_begins(self) -> None:
        """Before the engine runs: changes by hand since the last point belong to what came before."""
        self._look()
        if not self._here.backward_depth:
            for o in self._marked_here():
                self._marks.note(o)
                self._marks.drop(o)
        self._close_window()
        self._here.backward_depth += 1

    @hook
    def backward_failed(self) -> None:
        """The engine raised."""
        self._here.backward_depth -= 1

    @hook
    def backward_ends(self, roots: Any) -> None:
        """After the engine ran."""
        self._here.backward_depth -= 1
        for step in self._here.steps:
            step.versions = self._versions(step.o)
        loss = roots if isinstance(roots, torch.Tensor) else next(iter(roots), None) if isinstance(roots, Iterable) else None
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            if self._here.losses_taken:
                self._here.losses.clear()
                self._here.losses_taken = False
            self._here.losses.append((loss.detach().clone().reshape(()), self._here.scale))
        from_loss = isinstance(loss, torch.Tensor) and loss.numel() == 1
        event: Event = {"scale": self._here.scale, "in_step": bool(self._here.steps), "from_loss": from_loss}
        if self.exact:
            changed, norms = self._looks.changes(self._parameters())
            event |= {"changed": {o: [i for i, _, _ in c] for o, c in changed.items()}, "norms": norms}
            touched = set(changed)
        else:
            touched = {o for o, _ in self.registry.optimizers()}
        if _number(self._here.scale) != 1:
            self._scaled |= dict.fromkeys(touched, self._here.scale)
        self._say("backward", **event)
        if not self._here.backward_depth:
            for o, _ in self.registry.optimizers():
                if not self._is_elsewhere(o):
                    self._marks.take(o)
        self._here.scale = 1.0
        self._open_window()

    @hook
    def scaled_loss(self, scale: float | torch.Tensor) -> None:
        """A loss was multiplied by a loss scale."""
        self._here.scale = scale

    @hook
    def norm_begins(self) -> None:
        """Before torch computes a total norm."""
        self._pause_window()
        self._look()

    @hook
    def norm_computed(self, total: torch.Tensor | None, gradients: list[torch.Tensor], p: float) -> None:
        """After it did; `total` is None where it raised because of a non-finite norm."""
        self._settle_norm()
        by_gradient = {id(q.grad): i for i, q in self._parameters().items() if q.grad is not None}
        given = [by_gradient.get(id(g), -1) for g in gradients]
        site = call_site()
        if total is None:
            self._say("measure", returned=math.nan, given=len(given), p=p, raised=True, site=site)
            return
        self._open_window()
        if self._here.window is not None:
            self._here.window.took_norm(total)
        self._here.norm = _Norm(total, given, p, site)

    @hook
    def norm_by_hand(self) -> None:
        """The script's own code makes a norm of gradients, and may scale them by it: what it did to them before is told first."""
        self._look()

    @hook
    def clip_begins(self) -> None:
        """Before gradients are scaled or clamped by torch."""
        self._pause_window()
        self._look()

    @hook
    def clip_ends(
        self,
        how: str,
        bound: Any,
        parameters: list[torch.Tensor],
        total: torch.Tensor | None = None,
        *,
        p: float | None = None,
        whole: bool = False,
    ) -> None:
        """After they were.

        Args:
            how: `norm` or `value`.
            parameters: As given to the call.
            total: The norm it scaled by.
            whole: It is the norm over all ranks, by FSDP1's own method.
        """
        self.clips_seen += 1
        norm, self._here.norm = self._here.norm, None
        if norm is not None and norm.total is not total:
            self._here.norm = norm
            self._settle_norm()
            norm = None
        numbers = [self.registry.index(q) for q in parameters]
        known = [i for i in numbers if i is not None]
        distinct = dict.fromkeys(known)
        foreign = [q for q, i in zip(parameters, numbers, strict=True) if i is None]
        event: Event = {
            "how": how,
            "bound": plain(bound),
            "p": norm.p if norm else p,
            "returned": None if total is None else total.detach().clone(),  # a script may go on and average it over ranks, in place
            "whole": whole or (total is not None and hasattr(total, "full_tensor")),
            "given": len(parameters),
            "tensors": list(distinct),
            "repeated": sorted(i for i, n in Counter(known).items() if n > 1) if len(known) != len(distinct) else [],
            "empty": sum(q is None or q.grad is None for q in map(self.registry.parameter, distinct)),
            "foreign": len(foreign),
            "foreign_gradients": sum(q.grad is not None for q in foreign),
            "scaled": {o: s for o, s in self._scaled.items() if set(known) & set(self.registry.owned[o])},
            "in_backward": self._here.backward_depth > 0,
            "in_step": bool(self._here.steps),
        }
        if self.exact:
            states, before = self._looks.states, self._looks.norms(self._looks.states)
            copies = self._looks.copies(foreign)
            changed, after = self._looks.changes(self._parameters())
            factors = {}
            for o, changes in changed.items():
                scalings = [f for _, c, f in changes if c is Change.SCALED]
                factors[o] = [min(scalings), max(scalings)] if scalings else []
            event |= {"before": before, "after": after, "factors": factors, "copies": copies}
            sharded = [o for o in before if self.registry.sharded[o]]
            event["shards"] = {
                name: {o: self._looks.norms_of_shards(o, at) for o in sharded}
                for name, at in (("before", states), ("after", self._looks.states))
            }
        event["behind_update"] = bool(self._here.steps) and self._here.steps[-1].versions != self._versions(self._here.steps[-1].o)
        for step in self._here.steps:
            step.clipped_inside |= not event["behind_update"]
        self._say("clip", site=norm.site if norm else call_site(), **event)
        if how == "norm" and is_bound(bound):
            for o in self._marks.marked():
                if not distinct.keys().isdisjoint(self.registry.owned[o]):
                    self._marks.clipped(o)
        elif how == "norm" and bound == math.inf:
            # It only computed the norm, and multiplied by 1.
            for o in self._marked_here():
                self._marks.take_again(o)
        self._open_window()

    @hook
    def unscale_begins(self) -> None:
        """Before a scaler divides gradients, or looks through them."""
        self._look()
        for o in self._marked_here():
            self._marks.note(o)

    @hook
    def unscale_ends(self, optimizer: torch.optim.Optimizer, scale: float | torch.Tensor, *, automatic: bool) -> None:
        """After it did."""
        groups = getattr(optimizer, "param_groups", [])
        numbers = {i for g in groups for i in (self.registry.index(q) for q in g["params"]) if i is not None}
        owners = [o for o, owned in self.registry.optimizers() if numbers & set(owned)]
        if self.exact:
            self._looks.changes(self._parameters())
        for o in owners:
            self._scaled.pop(o, None)
            self._say("unscale", o=o, scale=scale, automatic=automatic)
            self._marks.take(o)
        self._open_window()

    @hook
    def reduces(self, tensor: torch.Tensor, ranks: Callable[[], list[int]]) -> None:
        """The script sums a tensor over ranks."""
        if self.exact:
            self._collectives.sums(tensor, ranks)

    @hook
    def gathers(self, tensor: torch.Tensor, ranks: Callable[[], list[int]]) -> None:
        """The script puts the tensors of several ranks together."""
        if self.exact:
            self._collectives.gathers(tensor, ranks)

    @hook
    def zero_begins(self, owner: Any) -> None:
        """Before `zero_grad` of an optimizer or a module."""
        self._look()
        if not isinstance(owner, torch.optim.Optimizer):
            # It may clear those of some optimizers, or a part of them.
            for o in self._marked_here():
                self._marks.note(o)
        # Gradients that no step has used are worth a look also where they are not read: a loop may drop a batch.
        unused = not self.exact and self._here.losses and not self._here.losses_taken
        self._here.unused = {i for i, q in self._parameters().items() if q.grad is not None} if unused else set()

    @hook
    def zeroed(self, owner: Any) -> None:
        """After it."""
        self._look(zero=True)
        if isinstance(owner, torch.optim.Optimizer):
            self._marks.forget(self.optimizer(owner))
        else:
            for o in self._marked_here():
                self._marks.take_again(o)
        if self._here.unused:
            self._tell_cleared()

    @hook
    def skipped(self, optimizer: torch.optim.Optimizer, scale: float | torch.Tensor) -> None:
        """A scaler found inf or nan and did not call `step`."""
        o = self.optimizer(optimizer)
        self._scaled.pop(o, None)
        self._say("skip", o=o, scale=scale)
        self._marks.forget(o)
        self._here.losses_taken = True
        self.updates += 1
        self.on_update(o)

    @hook
    def step_begins(self, optimizer: torch.optim.Optimizer, *, closure: bool, by_scaler: bool, hooked: bool) -> None:
        """At the door of `step`, before the hooks of others, where there are any (`hooked`)."""
        self._settle_norm()
        o = self.optimizer(optimizer)
        if by_scaler:
            # It looks for infinities by a call that writes gradients also where the optimizer is the one to divide them.
            self._marks.take_again(o)
        self._look()
        self._close_window()
        if o not in self._told:
            self._tell_optimizer(o, optimizer)
        self.steps_begun += 1
        if threading.get_ident() in self._threads:
            self._stepped_in[o] = threading.get_ident()
        self._here.steps.append(_Step(o, self._here.backward_depth > 0, self._versions(o)))
        self._say("enter", o=o, closure=closure, in_backward=self._here.backward_depth > 0)
        if self.exact and hooked and not closure and not self._here.backward_depth:
            self._here.steps[-1].in_hooks = True
            self._show_window()

    @hook
    def step_uses(self, optimizer: torch.optim.Optimizer) -> None:
        """Behind all hooks, right before the optimizer's own code, or when a closure has returned."""
        if not self._here.steps:
            return
        step = self._here.steps[-1]
        self._settle_norm()
        self._look()
        if step.in_hooks and self._here.window is not None:
            # What they compute is no clip by the loop: only where they write is of interest.
            self._here.window.close()
        step.in_hooks = False
        self._use(step, optimizer)

    @hook
    def update_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """The step of the user's own class calls that of torch's, which writes the parameters."""
        step = self._here.steps[-1] if self._here.steps else None
        if step is not None and step.o == self.optimizer(optimizer):
            self._look()
            step.versions, step.update_began = self._versions(step.o), True

    @hook
    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """Behind `step`."""
        if not self._here.steps:
            return
        step = self._here.steps[-1]
        self._settle_norm()
        if step.clipped_inside and not step.inner_used:
            # A step that clips in its own code: what counts is what the gradients were after that.
            self._use(step, optimizer, again=True)
        else:
            self._look(by_step=True)
        self._here.steps.pop()
        self._say("exit", o=step.o, wrapper=step.inner_used)
        if self._here.steps:
            self._here.steps[-1].inner_used = True
        self._scaled.pop(step.o, None)
        self._marks.forget(step.o)
        self._here.losses_taken = True
        # A loop that clips behind the step by hand is seen doing it.
        self._open_window()
        if not step.inner_used:
            self.updates += 1
            if self._looks.states and not self.exact:
                self._looks.let_go()
            self.on_update(step.o)

    def begin_again(self) -> None:
        """In a forked child: what the parent saw is the parent's."""
        # Another thread of the parent's may have held it.
        self.lock = threading.RLock()
        self._close_window()
        self.registry = Registry()
        self.__post_init__()
        self.updates = 0
        for held in (self._told, self._scaled, self._threads, self._stepped_in):
            held.clear()
        self._last_here = _Here()

    def let_go(self) -> None:
        """After a fault: what was held is free, and no window of this thread's stays open."""
        here = self._threads.get(threading.get_ident())
        if here is None:
            return
        for held in (self._told, self._scaled, self._stepped_in, self._marks):
            held.clear()
        self._looks.let_go()
        self._last_here = _Here()
        if here.window is not None:
            here.window.close()
        # Closed in the middle of a call it leaves the stack of modes the next time.
        if here.window is None or not here.window.is_left_over:
            del self._threads[threading.get_ident()]

    def finish(self) -> None:
        """Nothing more comes."""
        self._close_window()
        self._settle_norm()

    def losses(self) -> list[tuple[torch.Tensor, float | torch.Tensor]]:
        """The values whose backward was taken for the update that goes on, with the loss scale in each."""
        return self._here.losses

    # --- reading gradients

    def _use(self, step: _Step, optimizer: torch.optim.Optimizer, *, again: bool = False) -> None:
        divided = getattr(optimizer, "grad_scale", None)
        found_inf = getattr(optimizer, "found_inf", None)
        event: Event = {
            "o": step.o,
            "evaluation": step.evaluations,
            "divided": divided,
            "skipped": found_inf,
            # Where the backward goes on, a gradient is used as it comes.
            "by_own_code": not step.in_backward and self._marks.changed(step.o),
            **self._collectives.told(step.o),
        }
        if self.exact:
            event |= self._looks.used(step.o, float(divided) if divided is not None else 1.0)
        self._say("use", **event)
        step.evaluations += 1
        if not step.used or again or step.evaluations > 1:
            self.on_use(step.o, optimizer, event)
        step.used = True

    def _versions(self, o: int) -> int:
        return sum(p._version for i in self.registry.owned[o] if (p := self.registry.parameter(i)) is not None)

    def _marked_here(self) -> list[int]:
        """Optimizers whose gradients are marked, and that no other thread steps."""
        return [o for o in self._marks.marked() if not self._is_elsewhere(o)]

    def _parameters(self) -> dict[int, torch.Tensor]:
        """Those that no other thread trains."""
        elsewhere = {i for o in self._stepped_in if self._is_elsewhere(o) for i in self.registry.owned[o]}
        parameters = self.registry.parameters()
        return {i: q for i, q in parameters.items() if i not in elsewhere} if elsewhere else parameters

    def _is_elsewhere(self, o: int) -> bool:
        """Whether another thread steps the optimizer: its gradients change while we look, and one that is freed meanwhile would end the
        process."""
        ident = threading.get_ident()
        return ident in self._threads and self._stepped_in.get(o, ident) != ident

    def _look(self, *, zero: bool = False, by_step: bool = False) -> None:
        """Tell of changes that no call we know made, or the optimizer did, which may write gradients where it divides them."""
        if not self.exact:
            return
        states = self._looks.states
        changed, after = self._looks.changes(self._parameters())
        if not changed:
            return
        now = self._looks.states
        before = self._looks.norms(states)
        step = self._here.steps[-1] if self._here.steps else None
        behind = step is not None and step.update_began and step.versions != self._versions(step.o)
        window = self._here.window
        site = call_site() if zero or step is not None or window is None else window.wrote
        if step is not None and step.in_hooks and window is not None:
            site = window.wrote or site
        for o in changed.keys() & before.keys() & after.keys():
            changes = changed[o]
            if not by_step and any(change is not Change.CLEARED for _, change, _ in changes):
                self._marks.saw_change(o)
            them = {i for i, _, _ in changes}
            shards = {
                "before": self._looks.norms_of_shards(o, states),
                "after": self._looks.norms_of_shards(o, now),
                "before_of_them": self._looks.norms_of_shards(o, states, them),
                "after_of_them": self._looks.norms_of_shards(o, now, them),
            }
            counts: dict[str, int] = {}
            for _, change, _ in changes:
                counts[change.value] = counts.get(change.value, 0) + 1
            self._say(
                "edit",
                o=o,
                tensors=[i for i, c, _ in changes if c is not Change.CLEARED],
                cleared=[i for i, c, _ in changes if c is Change.CLEARED],
                counts=counts,
                factors=[f for _, c, f in changes if c is Change.SCALED],
                clamp=next((f for _, c, f in changes if c is Change.CLAMPED), None),
                before=before[o],
                after=after[o],
                before_of_them=norm_of(them, states),
                after_of_them=norm_of(them, now),
                shards=shards if self.registry.sharded[o] else {},
                zero=zero,
                in_step=bool(self._here.steps),
                behind_update=behind,
                site=site,
                stack=[] if window is None else window.stack,
            )

    def _tell_cleared(self) -> None:
        """Tell of gradients that were set to None before any step used them; those that were filled with zeros cannot be told unread."""
        empty = {i for i, q in self._parameters().items() if q.grad is None}
        for o, owned in self.registry.optimizers():
            if cleared := [i for i in owned if i in self._here.unused & empty]:
                self._say(
                    "edit",
                    o=o,
                    tensors=[],
                    cleared=cleared,
                    counts={Change.CLEARED.value: len(cleared)},
                    factors=[],
                    clamp=None,
                    before=None,
                    after=0.0 if empty >= set(owned) else None,
                    zero=True,
                    in_step=bool(self._here.steps),
                    site=call_site(),
                )

    # --- smaller things

    def _settle_norm(self) -> None:
        norm, self._here.norm = self._here.norm, None
        if norm is not None:
            self._say("measure", returned=norm.total, given=len(norm.given), p=norm.p, site=norm.site)

    def _open_window(self) -> None:
        if self.exact and not self._here.steps and not self._here.backward_depth:
            self._show_window()

    def _show_window(self) -> None:
        if self._here.window is None:
            self._here.window = Window(self.norm_by_hand)
        self._here.window.open(self._parameters)

    def _pause_window(self) -> None:
        if self._here.window is not None:
            self._here.window.pause()

    def _close_window(self) -> None:
        if self._here.window is not None:
            for found in self._here.window.close():
                self._say("hand", **found)

    def _say(self, kind: str, **event: Any) -> None:
        site = event.pop("site") if "site" in event else call_site()
        if self.exact and kind in _STACKED:
            event.setdefault("stack", user_stack())
        self.emit({"k": kind, "u": self.updates, "site": site, **event})


def is_bound(bound: Any) -> bool:
    """Whether gradients clipped to it still tell their norm: it is a finite number above 0, or a tensor, which is not read now."""
    return isinstance(bound, torch.Tensor) or (isinstance(bound, int | float) and 0 < bound < math.inf)


def _number(value: float | torch.Tensor) -> float:
    """For asking whether there is a scale at all: a tensor stands for one, and is not read."""
    return math.nan if isinstance(value, torch.Tensor) else float(value)
