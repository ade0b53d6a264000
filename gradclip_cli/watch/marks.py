"""Whether gradients are still what a backward, or a call that we know, has made of them; without reading all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from gradclip_cli.watch.measure import tensor_norms
from gradclip_cli.watch.parameter_hooks import may_change_gradients
from gradclip_cli.watch.registry import Registry

# What is read of one gradient to see what is written through `.data`, which tells nobody: so many elements.
_MOST_READ = 1 << 16
# Norms of the same numbers differ by less.
_ROUNDING = 1e-4


@dataclass(frozen=True, slots=True)
class _Mark:
    """An optimizer's gradients at one moment.

    Attributes:
        written: Another number where one was written in place, or is another tensor; 0 where there is none.
        read: The parameter of which some was read; None where none could be.
        norm: Of what was read.
    """

    written: int
    read: int | None
    norm: torch.Tensor | None


class Marks:
    """The marks of optimizers, by their numbers, from a backward to the step that uses it."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._marks: dict[int, _Mark | None] = {}  # None: a clip that was seen told the norm
        self._changed: set[int] = set()
        self._writes_unseen: set[int] = set()
        self._read: dict[int, int] = {}  # the parameter whose gradient is read

    def marked(self) -> list[int]:
        """The optimizers that have one."""
        return list(self._marks)

    def take(self, o: int) -> None:
        """The gradients are what they should be."""
        self._marks[o] = self._mark(o)

    def take_again(self, o: int) -> None:
        """What has changed them is known, and was no clip."""
        if self._marks.get(o) is not None:
            self.take(o)

    def clipped(self, o: int) -> None:
        """From here on the norm from before is that of a clip."""
        self._marks[o] = None

    def note(self, o: int) -> None:
        """Whether they were changed since."""
        mark = self._marks.get(o)
        # Gradients that were let go were not changed.
        if mark is not None and o not in self._changed and _written(self._registry.gradients_of(o).values()) not in (mark.written, 0):
            self._changed.add(o)

    def saw_change(self, o: int) -> None:
        """By their values they were. Where nothing else shows it, it may happen again when values are not read any more."""
        self.note(o)
        if self._marks.get(o) is not None and o not in self._changed:
            self._writes_unseen.add(o)

    def drop(self, o: int) -> None:
        """A backward is about to write them."""
        self._marks.pop(o, None)

    def forget(self, o: int) -> None:
        """They were used, or cleared."""
        self._marks.pop(o, None)
        self._changed.discard(o)

    def changed(self, o: int) -> bool | torch.Tensor:
        """Whether anything that was not seen may have changed them; on their device where that is not known yet.

        Gradients that no backward made (`torch.autograd.grad`, say) may have been, and those that went through hooks.
        """
        self.note(o)
        mark = self._marks.get(o)
        if o in self._changed or o in self._writes_unseen or o not in self._marks:
            return True
        if mark is None:
            return False
        if may_change_gradients(self._registry.owned_by(o)):
            return True
        if mark.norm is None:
            return False
        parameter = None if mark.read is None else self._registry.parameter(mark.read)
        now = None if parameter is None or parameter.grad is None else _norm(parameter.grad)
        # Of the type that norms have: a block of numbers of one type is brought to the host in one copy.
        return now is not None and ((now - mark.norm).abs() > _ROUNDING * mark.norm).to(now.dtype)

    def clear(self) -> None:
        """Let all go."""
        for held in (self._marks, self._changed, self._writes_unseen, self._read):
            held.clear()

    def _mark(self, o: int) -> _Mark:
        gradients = self._registry.gradients_of(o)
        read = self._read.get(o)
        if read not in gradients:
            # The largest of the small ones: a few elements may stay as they are, and large tensors take time.
            read = max(gradients, key=lambda i: n if (n := gradients[i].numel()) <= _MOST_READ else -n, default=None)
            if read is not None:
                self._read[o] = read
        return _Mark(_written(gradients.values()), read, None if read is None else _norm(gradients[read]))


def _written(gradients: Iterable[torch.Tensor]) -> int:
    # There may be ten thousand of them, at every micro-batch.
    try:
        return sum(map(hash, [(id(g), g._version) for g in gradients]))
    except RuntimeError:
        # Those of inference mode have no version.
        return sum(map(hash, [(id(g), 0 if g.is_inference() else g._version) for g in gradients]))


@torch.no_grad()
def _norm(gradient: torch.Tensor) -> torch.Tensor | None:
    """Of the first elements that this process holds; None where they cannot be had without a copy."""
    values = gradient.detach()
    values = values.to_local() if hasattr(values, "to_local") else values
    if values.layout is torch.sparse_coo:
        values = values._values()
    if values.layout is not torch.strided or not values.is_contiguous() or not values.numel():
        return None
    return tensor_norms([values.view(-1)[:_MOST_READ]])[0][0]
