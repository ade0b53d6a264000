"""Which ranks train one model together, as far as the script's own collective calls tell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from gradclip_cli.watch.registry import Registry
from gradclip_cli.watch.window import address

# From a function of the user's down to here: torch's own logging, the patch and the hook lie in between.
_FRAMES = 10


class Collectives:
    """Told of every sum and gather."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._reduced: list[int] = []
        self._computed: list[int] = []
        self._gathered: dict[int, list[int]] = {}

    def sums(self, tensor: torch.Tensor, ranks: Callable[[], list[int]]) -> None:
        """Before a tensor is summed over ranks. One call of a kind is enough to know."""
        if not self._reduced and (where := address(tensor)):
            gradients = (q.grad for q in self._registry.parameters().values())
            if any(g is not None and address(g) == where for g in gradients):
                self._reduced = ranks()
        if not self._computed and _is_in_autograd_function():
            self._computed = ranks()

    def gathers(self, tensor: torch.Tensor, ranks: Callable[[], list[int]]) -> None:
        """Before the tensors of all ranks are put together."""
        if where := address(tensor):
            for o, owned in self._registry.optimizers():
                # What torch shards it also gathers.
                if o in self._gathered or self._registry.sharded[o]:
                    continue
                parameters = map(self._registry.parameter, owned)
                if any(p is not None and address(p) == where for p in parameters):
                    self._gathered[o] = ranks()

    def told(self, o: int) -> dict[str, list[int]]:
        """For the event of a use; gathers count from one use to the next."""
        return {"reduced_with": self._reduced, "computed_with": self._computed, "gathered_with": self._gathered.pop(o, [])}


def _is_in_autograd_function() -> bool:
    """Whether the forward or backward of one made the call: the values of all ranks go into one loss then."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            return False
        first: Any = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_argcount else None
        if issubclass(type(first), torch._C._FunctionBase):
            return True
        frame = frame.f_back
    return False
