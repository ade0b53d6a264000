"""Putting the hooks into torch, and taking every one of them out again."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._compile import _disable_dynamo as not_compiled
from torch.nn.utils import clip_grad
from torch.optim.optimizer import (
    Optimizer,
    _global_optimizer_pre_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradclip_cli.watch.observer import Observer

_ABSENT = object()


class Patches:
    """Everything that was changed in torch for one observer."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._undo: list[Callable[[], None]] = []
        self._hooks: list[Any] = []
        self._last_hooks: dict[int, Any] = {}
        self._parents: set[type] = set()
        self._observers = [observer]
        self._unscaling = 0
        self._fsdp_done = False

    def install(self) -> None:
        """Hook everything."""
        self._replace(torch.autograd, "backward", self._backward)
        for name, wrap in (("_get_total_norm", self._total_norm), ("_clip_grads_with_norm_", self._clip_with_norm)):
            self._replace_everywhere(clip_grad, name, wrap)
        self._replace_everywhere(clip_grad, "clip_grad_value_", self._clip_value)
        if torch.distributed.is_available():
            self._replace_everywhere(torch.distributed.distributed_c10d, "all_reduce", self._all_reduce)
            for name in ("all_gather", "all_gather_into_tensor"):
                self._replace_everywhere(torch.distributed.distributed_c10d, name, self._all_gather)
        scaler = torch.amp.GradScaler
        for name, wrap in (("scale", self._scale), ("unscale_", self._unscale), ("step", self._scaler_step)):
            self._replace(scaler, name, wrap)
        self._replace(Optimizer, "add_param_group", self._add_param_group)
        self._replace(Optimizer, "zero_grad", self._zero_grad)
        self._replace(torch.nn.Module, "zero_grad", self._zero_grad)
        self._hooks += [register_optimizer_step_pre_hook(self._before_step), register_optimizer_step_post_hook(self._after_step)]
        import gc

        # Those made before we came.
        for thing in gc.get_objects():
            if issubclass(type(thing), Optimizer) and hasattr(thing, "param_groups"):
                self._observer.optimizer(thing)

    def put_back(self) -> None:
        """Functions and methods as they were. Hooks of optimizers stay: torch may be going through them."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._observers.clear()

    def remove(self) -> None:
        """Leave torch as it was."""
        self.put_back()
        for handle in (*self._hooks, *self._last_hooks.values()):
            handle.remove()
        self._hooks.clear()
        self._last_hooks.clear()

    # --- replacing

    def _replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        own = vars(owner).get(name, _ABSENT)
        original = getattr(owner, name)
        replacement = functools.wraps(original)(wrap(original))
        setattr(owner, name, replacement)

        def undo() -> None:
            if vars(owner).get(name) is replacement:
                if own is _ABSENT:
                    delattr(owner, name)
                else:
                    setattr(owner, name, own)

        self._undo.append(undo)

    def _replace_everywhere(self, home: types.ModuleType, name: str, wrap: Callable[[Any], Any]) -> None:
        """Also where it was imported by name before."""
        original = getattr(home, name)
        self._replace(home, name, wrap)
        replacement = getattr(home, name)
        for module in list(sys.modules.values()):
            if not isinstance(module, types.ModuleType) or module is home:
                continue
            for alias, value in list(vars(module).items()):
                if value is original:
                    setattr(module, alias, replacement)
                    self._undo.append(functools.partial(_put_back, module, alias, replacement, original))

    # --- wrappers. Where torch is compiling they step aside: the compiler must see torch's own code.

    def _backward(self, original: Any) -> Any:
        observer = self._observer

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            observer.backward_begins()
            try:
                out = original(tensors, *args, **kwargs)
            except BaseException:
                observer.backward_failed()
                raise
            observer.backward_ends(tensors)
            return out

        return backward

    def _total_norm(self, original: Any) -> Any:
        observer = self._observer

        def get_total_norm(tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None) -> Any:
            if torch.compiler.is_compiling():
                return original(tensors, norm_type, error_if_nonfinite, foreach)
            observer.norm_begins()
            seen, passed = _seen(tensors)
            try:
                total = original(passed, norm_type, error_if_nonfinite, foreach)
            except RuntimeError:
                observer.norm_computed(None, seen, float(norm_type))
                raise
            observer.norm_computed(total, seen, float(norm_type))
            return total

        return get_total_norm

    def _clip_with_norm(self, original: Any) -> Any:
        observer = self._observer

        def clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: Any, foreach: bool | None = None) -> Any:
            if torch.compiler.is_compiling():
                return original(parameters, max_norm, total_norm, foreach)
            observer.clip_begins()
            seen, passed = _seen(parameters)
            out = original(passed, max_norm, total_norm, foreach)
            observer.clip_ends("norm", max_norm, seen, total_norm)
            return out

        return clip_grads_with_norm_

    def _clip_value(self, original: Any) -> Any:
        observer = self._observer

        def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> Any:
            if torch.compiler.is_compiling():
                return original(parameters, clip_value, foreach)
            observer.clip_begins()
            seen, passed = _seen(parameters)
            out = original(passed, clip_value, foreach)
            observer.clip_ends("value", clip_value, seen)
            return out

        return clip_grad_value_

    def _all_reduce(self, original: Any) -> Any:
        observer = self._observer

        def all_reduce(tensor: Any, op: Any = torch.distributed.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
            if not torch.compiler.is_compiling() and torch.distributed.is_initialized():
                observer.reduces(tensor, lambda: torch.distributed.get_process_group_ranks(group))
            return original(tensor, op, group, async_op)

        return all_reduce

    def _all_gather(self, original: Any) -> Any:
        observer = self._observer

        @functools.wraps(original)
        def all_gather(output: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Any:
            if not torch.compiler.is_compiling() and torch.distributed.is_initialized():
                observer.gathers(tensor, lambda: torch.distributed.get_process_group_ranks(group))
            return original(output, tensor, group, async_op)

        return all_gather

    def _scale(self, original: Any) -> Any:
        observer = self._observer

        def scale(scaler: Any, outputs: Any) -> Any:
            out = original(scaler, outputs)
            if scaler._enabled and scaler._scale is not None:
                observer.scaled_loss(scaler._scale.detach().clone())
            return out

        return scale

    def _unscale(self, original: Any) -> Any:
        observer = self._observer

        def unscale_(scaler: Any, optimizer: Any) -> Any:
            if not scaler._enabled:
                return original(scaler, optimizer)
            observer.unscale_begins()
            out = original(scaler, optimizer)
            observer.unscale_ends(optimizer, scaler._scale.detach().clone(), automatic=self._unscaling > 0)
            return out

        return unscale_

    def _scaler_step(self, original: Any) -> Any:
        observer = self._observer

        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not scaler._enabled:
                return original(scaler, optimizer, *args, **kwargs)
            before = observer.steps_begun
            observer.unscale_begins()
            self._unscaling += 1
            try:
                out = original(scaler, optimizer, *args, **kwargs)
            finally:
                self._unscaling -= 1
            if observer.steps_begun == before:
                observer.skipped(optimizer, scaler._scale.detach().clone())
            return out

        return step

    def _add_param_group(self, original: Any) -> Any:
        observer = self._observer

        def add_param_group(optimizer: Any, param_group: Any) -> Any:
            out = original(optimizer, param_group)
            self._watch_fsdp()
            observer.optimizer(optimizer)
            self._watch_parent(type(optimizer))
            return out

        return add_param_group

    def _watch_parent(self, cls: type) -> None:
        """What the step of a class of the user's own does before it calls that of torch's is apart from what it does behind it."""
        parent = next((c for c in cls.__mro__ if c.__module__.startswith("torch.optim") and "step" in vars(c)), Optimizer)
        if parent not in (cls, Optimizer, *self._parents):
            self._parents.add(parent)
            self._replace(parent, "step", self._parents_step)

    def _parents_step(self, original: Any) -> Any:
        # Torch may wrap it for its own hooks, and then it stays: emptied, it knows nothing of the observer.
        observers, parents = self._observers, self._parents

        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if type(optimizer) not in parents and not torch.compiler.is_compiling():
                for observer in observers:
                    observer.update_begins(optimizer)
            return original(optimizer, *args, **kwargs)

        return step

    def _zero_grad(self, original: Any) -> Any:
        observer = self._observer

        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                observer.zero_begins(owner)
            out = original(owner, *args, **kwargs)
            if not torch.compiler.is_compiling():
                observer.zeroed(owner)
            return out

        return zero_grad

    def _watch_fsdp(self) -> None:
        """FSDP1 clips with a method of its own; hooked once somebody has imported it."""
        module = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
        if self._fsdp_done or module is None:
            return
        self._fsdp_done = True
        observer = self._observer

        def wrap(original: Any) -> Any:
            def clip_grad_norm_(owner: Any, max_norm: float, norm_type: float = 2.0) -> Any:
                observer.clip_begins()
                before = observer.clips_seen
                total = original(owner, max_norm, norm_type)
                # Where nothing is sharded the method calls the function of torch.nn.utils.
                if observer.clips_seen == before:
                    observer.clip_ends("norm", max_norm, list(owner.parameters()), total, p=float(norm_type), whole=True)
                return total

            return clip_grad_norm_

        self._replace(module.FullyShardedDataParallel, "clip_grad_norm_", wrap)

    # --- optimizer hooks

    @not_compiled
    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 and callable(args[1]) else None)
        hooked = len(_global_optimizer_pre_hooks) + len(optimizer._optimizer_step_pre_hooks) > 1 + (id(optimizer) in self._last_hooks)
        self._observer.step_begins(optimizer, closure=closure is not None, by_scaler=self._unscaling > 0, hooked=hooked)
        self._come_last(optimizer)
        return None

    def _come_last(self, optimizer: Optimizer) -> None:
        """Have a hook of this optimizer's own behind all others: theirs may still change the gradients."""
        handle = self._last_hooks.get(id(optimizer))
        hooks: Any = optimizer._optimizer_step_pre_hooks
        if handle is None or handle.id not in hooks:
            self._last_hooks[id(optimizer)] = optimizer.register_step_pre_hook(self._at_last)
        elif next(reversed(hooks)) != handle.id:
            hooks.move_to_end(handle.id)

    @not_compiled
    def _at_last(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        observer = self._observer
        closure = kwargs.get("closure", args[1] if len(args) > 1 and callable(args[1]) else None)
        if closure is None:
            observer.step_uses(optimizer)
            return None

        @functools.wraps(closure)
        def watched(*a: Any, **k: Any) -> Any:
            out = closure(*a, **k)
            observer.step_uses(optimizer)
            return out

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    @not_compiled
    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._observer.step_ends(optimizer)


def _put_back(module: types.ModuleType, alias: str, replacement: Any, original: Any) -> None:
    if vars(module).get(alias) is replacement:
        setattr(module, alias, original)


def _seen(tensors: Any) -> tuple[list[torch.Tensor], Any]:
    """What a call will look at, without taking it away: the list fills as the call iterates, and a generator stays one."""
    if isinstance(tensors, torch.Tensor):
        return [tensors], tensors
    if isinstance(tensors, list | tuple):
        return list(tensors), tensors
    seen: list[torch.Tensor] = []

    def passing() -> Iterator[torch.Tensor]:
        for t in tensors:
            seen.append(t)
            yield t

    passed: Iterable[torch.Tensor] = passing()
    return seen, passed
