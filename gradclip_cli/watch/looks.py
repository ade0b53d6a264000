"""What the gradients were at the last look, and what has changed since: each is read, where an observer reads them at every point."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch

from gradclip_cli.watch.events import Event
from gradclip_cli.watch.parameter_hooks import hook_site, is_hooked
from gradclip_cli.watch.registry import Registry
from gradclip_cli.watch.states import Change, Reader, State, compare, state_of

States = Mapping[int, State | None]
Changes = list[tuple[int, Change, float]]


class Looks:
    """The states of all gradients at the last look.

    Attributes:
        states: By parameter; None where it had no gradient.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._reader = Reader()
        self.states: dict[int, State | None] = {}

    def let_go(self) -> None:
        """Nothing is compared any more."""
        self._reader = Reader()
        self.states.clear()

    def drop_the_gone(self) -> None:
        """A state is some kB: those of tensors that are gone are not kept."""
        self.states = {i: self.states.get(i) for i in self._registry.parameters()}

    def changes(self, parameters: Mapping[int, torch.Tensor]) -> tuple[dict[int, Changes], dict[int, float]]:
        """Read all gradients; what changed since the last look, by optimizer, and the norm of each optimizer's gradients now."""
        before = self.states
        now = self._reader.read({i: parameter.grad for i, parameter in parameters.items()})
        self.states = before | now
        changes = {
            i: change
            for i, state in now.items()
            if (old := before.get(i)) is not state and (change := compare(old, state))[0] is not Change.NONE
        }
        by_optimizer = {}
        if changes:
            for o, owned in self._registry.optimizers():
                mine = [(i, *changes[i]) for i in owned if i in changes]
                if mine:
                    by_optimizer[o] = mine
        return by_optimizer, self.norms(self.states)

    def norms(self, states: States) -> dict[int, float]:
        """Of each optimizer's gradients."""
        norms = {}
        for o, owned in self._registry.optimizers():
            squares = sum(s.norm**2 for i in owned if (s := states.get(i)) is not None)
            norms[o] = math.sqrt(squares) if squares == squares else math.nan
        return norms

    def norms_of_shards(self, o: int, states: States, of: set[int] | None = None) -> list[float]:
        """Of each group of the optimizer's sharded tensors, or of some of them, the norm of what this process holds."""
        return [norm_of((i for i in tensors if of is None or i in of), states) for tensors, _ in self._registry.sharded[o]]

    def copies(self, foreign: list[torch.Tensor]) -> int:
        """How many tensors that no optimizer owns carry the very gradient of one that is owned, or all of an optimizer's in one."""
        if not foreign or len(foreign) > len(self._registry) * 2:
            return 0
        states = [(s.norm, s.largest) for s in list(self.states.values()) if s is not None and not s.is_zero]
        for _, owned in self._registry.optimizers():
            own = [s for i in owned if (s := self.states.get(i)) is not None]
            states.append((math.hypot(*(s.norm for s in own)), max((s.largest for s in own), default=0.0)))
        marks = set(states)
        # Scaled in float32; of a tensor with one element the quotient tells nothing.
        scaled = {f"{norm / largest:.4g}" for norm, largest in states if norm > largest > 0}
        copies = 0
        for state in map(state_of, (q.grad for q in foreign if q.grad is not None)):
            copies += (state.norm, state.largest) in marks or (state.largest > 0 and f"{state.norm / state.largest:.4g}" in scaled)
        return copies

    def used(self, o: int, scale: float) -> Event:
        """What a `use` tells of an optimizer's gradients, which it divides by a scale."""
        norms, used, empty, nonfinite, sparse, largest = [], [], 0, [], [], 0.0
        peaks: dict[int, float] = {}
        hook = None
        squares = 0.0
        for i in self._registry.owned[o]:
            parameter = self._registry.parameter(i)
            gradient = None if parameter is None else parameter.grad
            if gradient is None:
                empty += 1
                continue
            state = state_of(gradient, scale) if scale != 1.0 else self.states.get(i) or state_of(gradient)
            if state.nonfinite:
                nonfinite.append(i)
            if gradient.layout is torch.sparse_coo:
                sparse.append(i)
            largest = max(largest, state.largest)
            if is_hooked(parameter):
                peaks[i] = state.largest
                hook = hook or hook_site(parameter)
            if not state.is_zero:
                used.append(i)
                norms.append(state.norm)
                squares += state.norm**2
        return {
            "norm": math.sqrt(squares) if not math.isnan(squares) else math.nan,
            "largest": largest,
            "nonfinite": nonfinite,
            "sparse": sparse,
            "hook": hook,
            "tensors": used,
            "norms": norms,
            "empty": empty,
            "peaks": [i for i, top in peaks.items() if top == largest],
        }


def norm_of(tensors: Iterable[int], states: States) -> float:
    """Of some tensors together."""
    return math.hypot(*(s.norm for i in tensors if (s := states.get(i)) is not None))
