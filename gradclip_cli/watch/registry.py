"""The parameters and optimizers of the watched process, by small numbers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch

from gradclip_cli.model.recorded import TensorInfo
from gradclip_cli.watch.groups import Group, shard_groups
from gradclip_cli.watch.sites import user_frame

_WRAPPERS = ("_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module.", "module.")


class Registry:
    """Numbers parameters and optimizers in the order in which optimizers take them. Keeps none of them alive.

    A script may make thousands, one after the other: what is asked at every call looks at those alive only.
    """

    def __init__(self) -> None:
        self._parameters: dict[int, weakref.ref[torch.Tensor]] = {}  # those alive
        self._num_parameters = 0
        self._index: dict[int, int] = {}
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}  # those alive
        self._optimizer_index: dict[int, int] = {}
        self.owned: list[list[int]] = []  # per optimizer
        self.sharded: list[list[Group]] = []  # per optimizer
        self._given_names: dict[int, str] = {}
        self._sizes: list[int] = []
        self._described: list[TensorInfo] = []
        self._used_names: set[str] = set()

    def __len__(self) -> int:
        return self._num_parameters

    def index(self, parameter: torch.Tensor) -> int | None:
        """The number of a parameter some optimizer owns."""
        i = self._index.get(id(parameter))
        return i if i is not None and self.parameter(i) is parameter else None

    def parameters(self) -> dict[int, torch.Tensor]:
        """Those still alive."""
        # They may die while we go through them.
        return {i: parameter for i, ref in self._parameters.copy().items() if (parameter := ref()) is not None}

    def parameter(self, index: int) -> torch.Tensor | None:
        ref = self._parameters.get(index)
        return None if ref is None else ref()

    def owned_by(self, o: int) -> Iterator[torch.Tensor]:
        """The parameters of an optimizer that are alive."""
        get = self._parameters.get
        return (parameter for i in self.owned[o] if (ref := get(i)) is not None and (parameter := ref()) is not None)

    def gradients_of(self, o: int) -> dict[int, torch.Tensor]:
        """Those there are, of the parameters of an optimizer."""
        get = self._parameters.get
        return {
            i: gradient
            for i in self.owned[o]
            if (ref := get(i)) is not None and (parameter := ref()) is not None and (gradient := parameter.grad) is not None
        }

    def optimizers(self) -> Iterator[tuple[int, list[int]]]:
        """Those still alive, and the parameters they own."""
        for o, ref in list(self._optimizers.items()):
            if ref() is not None:
                yield o, self.owned[o]

    def optimizer(self, optimizer: torch.optim.Optimizer) -> tuple[int, bool]:
        """Its number, taking it and its present parameters in; and whether anything was new."""
        o = self._optimizer_index.get(id(optimizer))
        new = o is None or self.find_optimizer(o) is not optimizer
        if new:
            o = len(self.owned)
            self._optimizers[o] = weakref.ref(optimizer, partial(self._optimizers.pop, o))
            self._optimizer_index[id(optimizer)] = o
            self.owned.append([])
            self.sharded.append([])
            self._sizes.append(-1)
        assert o is not None
        size = sum(len(group["params"]) for group in optimizer.param_groups)
        if size != self._sizes[o]:
            self._sizes[o], new = size, True
            self.owned[o] = list(dict.fromkeys(self._take(p, n) for p, n in _named(optimizer.param_groups)))
            self.sharded[o] = shard_groups({i: p for i in self.owned[o] if (p := self.parameter(i)) is not None})
        return o, new

    def find_optimizer(self, o: int) -> torch.optim.Optimizer | None:
        ref = self._optimizers.get(o)
        return None if ref is None else ref()

    def _take(self, parameter: torch.Tensor, name: str | None) -> int:
        i = self.index(parameter)
        if i is None:
            i = self._num_parameters
            self._num_parameters += 1
            self._parameters[i] = weakref.ref(parameter, partial(self._parameters.pop, i))
            self._index[id(parameter)] = i
        if name:
            self._given_names[i] = name
        return i

    def describe(self) -> list[TensorInfo]:
        """Name, shape and dtype of every parameter, in the order of their numbers; as they were when they were first asked for."""
        names = _module_names() if len(self._described) < len(self) and len(self._given_names) < len(self) else {}
        for i in range(len(self._described), len(self)):
            parameter = self.parameter(i)
            name = self._given_names.get(i) or (names.get(id(parameter)) if parameter is not None else None) or f"parameter {i}"
            while name in self._used_names:
                name += "'"
            self._used_names.add(name)
            shape = () if parameter is None else tuple((parameter.to_local() if hasattr(parameter, "to_local") else parameter).shape)
            dtype = "" if parameter is None else str(parameter.dtype).removeprefix("torch.")
            self._described.append(TensorInfo(name, shape, dtype))
        return self._described


def _named(groups: Iterable[dict[str, Any]]) -> Iterator[tuple[torch.Tensor, str | None]]:
    for group in groups:
        names = group.get("param_names") or [None] * len(group["params"])
        yield from zip(group["params"], names, strict=True)


def _module_names() -> dict[int, str]:
    """Names of all parameters, by id, as the outermost modules that hold them say.

    A name that several outermost modules share is told apart by the variable that holds the module.
    """
    # `isinstance` would ask lazy proxies for their class and so wake them.
    modules = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module)]
    inner = {id(child) for m in modules for child in m.children()}
    roots = [m for m in modules if id(m) not in inner]
    holders = _variables(roots) if len(roots) > 1 else {}
    names: dict[int, str] = {}
    counts: dict[str, int] = {}
    found: list[tuple[int, str, torch.nn.Module]] = []
    for root in roots:
        for name, parameter in root.named_parameters():
            for wrapper in _WRAPPERS:
                name = name.replace(wrapper, "")
            if id(parameter) not in names:
                names[id(parameter)] = name
                counts[name] = counts.get(name, 0) + 1
                found.append((id(parameter), name, root))
    for key, name, root in found:
        if counts[name] > 1:
            names[key] = f"{holders.get(id(root), type(root).__name__)}.{name}"
    return names


def _variables(modules: list[torch.nn.Module]) -> dict[int, str]:
    wanted = {id(m) for m in modules}
    names: dict[int, str] = {}
    frame = user_frame()
    while frame is not None:
        for scope in (frame.f_locals, frame.f_globals):
            for name, value in list(scope.items()):
                if id(value) in wanted:
                    names.setdefault(id(value), name)
                elif name == "self":
                    for attribute, held in list(getattr(value, "__dict__", {}).items()):
                        if id(held) in wanted:
                            names.setdefault(id(held), attribute)
        frame = frame.f_back
    return names
