"""What the user's own code does with the gradients between `backward` and `step`, seen call by call.

A loop that clips by hand leaves no call that we could hook. In this window, and only in it, a torch function mode
sees every call: reading a gradient, making a norm of it, comparing that with a bound, writing a gradient.
The mode lies below every mode of the user's own, so that theirs come and go as they would without it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch._compile import _disable_dynamo as not_compiled
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from gradclip_cli.watch.comparisons import bound_in_source
from gradclip_cli.watch.sites import call_site, user_frame, user_stack

_NORMS = {"norm", "vector_norm", "matrix_norm", "_foreach_norm", "linalg_vector_norm", "dot", "vdot", "inner"}
_REDUCTIONS = {"sum", "max", "amax", "mean", "aminmax"}
_COMPARISONS = {"gt", "ge", "lt", "le", "__gt__", "__ge__", "__lt__", "__le__", "greater", "less"}
_CAPS = {"clamp", "clamp_", "clip", "clip_", "clamp_max", "clamp_max_", "minimum", "min", "fmin"}
_QUOTIENTS = {"__rtruediv__", "__rdiv__", "reciprocal", "div", "true_divide", "__truediv__", "rtruediv"}
_OVER_NUMBER = {"__truediv__", "div", "true_divide"}
_PRODUCTS = {"mul", "mul_", "__mul__", "__imul__", "__rmul__", "multiply", "div", "div_", "__itruediv__", "_foreach_mul", "_foreach_mul_"}
_READS = {"item", "__float__", "tolist"}
# Assignments: `p.grad = ...`, `p.grad.data = ...`.
_SET_GRAD = vars(torch._C.TensorBase)["grad"].__set__
_GET_GRAD = vars(torch._C.TensorBase)["grad"].__get__
_SET_DATA = vars(torch._C.TensorBase)["data"].__set__


class Window(TorchFunctionMode):
    """Open between a backward and the step that uses it.

    Args:
        on_norm: Called where the first norm of the gradients is made: what was done to them before is apart from what is done by it.

    Attributes:
        wrote: Site of the last write to a gradient, or None.
        stack: The user's frames that led to it.
        is_left_over: Closed, and still on the stack of modes: a call passed here meanwhile.
    """

    def __init__(self, on_norm: Callable[[], None]) -> None:
        from torch._dynamo.eval_frame import skip_code

        super().__init__()
        # Between the graphs of a compiled function every call passes here; compiled anew for each, it would only warn of that.
        skip_code(Window.__torch_function__.__code__)
        self._is_open = self._is_passing = self.is_left_over = False
        self._parameters: Callable[[], Mapping[int, torch.Tensor]] | None = None
        self._on_norm = on_norm
        self._owned: set[int] = set()
        self._storages: set[int] = set()
        self._derived: dict[int, weakref.ref[torch.Tensor]] = {}
        self._norms: dict[int, weakref.ref[torch.Tensor]] = {}
        self._coefficients: dict[int, weakref.ref[torch.Tensor]] = {}
        self.wrote: str | None = None
        self.stack: list[str] = []
        self._forget()

    def _forget(self) -> None:
        self._norm_site: str | None = None
        self._function = ""
        self._bound: float | None = None
        self._over = False
        self._scaled_copy = False
        self._value: float | None = None

    def open(self, parameters: Callable[[], Mapping[int, torch.Tensor]]) -> None:
        """Begin to look at what is done with the gradients there are now.

        Args:
            parameters: Asked at the first call, which most loops never make.
        """
        self._parameters = parameters
        self.wrote, self.stack = None, []
        if not self._is_open:
            self._is_open = True
            self._place()

    def pause(self) -> None:
        """Look away while torch clips: its own norms are no work of the user's hands."""
        if self._is_open:
            self._is_open = False
            self._place()

    def took_norm(self, total: torch.Tensor) -> None:
        """Torch computed this norm for the user; what becomes of it is of interest."""
        self._derived[id(total)] = self._norms[id(total)] = weakref.ref(total)

    def close(self) -> list[dict[str, Any]]:
        """Stop looking; what was computed from the gradients, if a norm was."""
        self.pause()
        if self.is_left_over:
            self._place()
        found: list[dict[str, Any]] = []
        if self._norm_site is not None or self._bound is not None:
            found.append(
                {
                    "site": self._norm_site,
                    "function": self._function,
                    "norm": self._value,
                    "bound": self._bound,
                    "over": self._over,
                    "scaled_copy": self._scaled_copy,
                }
            )
        self._forget()
        self._derived.clear()
        self._norms.clear()
        self._coefficients.clear()
        return found

    def _place(self) -> None:
        """Onto the stack of modes while open, else off it."""
        # While a call passes here, torch has the mode off the stack; it puts it back afterwards, whatever became of it meanwhile.
        self.is_left_over = self._is_passing and not self._is_open
        if self._is_passing:
            return
        stack = [m for m in _get_current_function_mode_stack() if m is not self]
        for _ in _get_current_function_mode_stack():
            _pop_mode()
        for m in ([self] if self._is_open else []) + stack:
            _push_mode(m)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function as it is, then look at what it was."""
        kwargs = kwargs or {}
        # Taking a gradient, as code does for every parameter and often, tells nothing yet.
        if func == _GET_GRAD or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        if self._is_open and self._parameters is not None:
            self._find_gradients(self._parameters)
        self._is_passing = True
        try:
            out = func(*args, **kwargs)
            if self._is_open:
                # A tensor without storage or value (fake, meta, a subclass of its own kind) tells nothing here.
                with suppress(RuntimeError, NotImplementedError, TypeError, ValueError), torch._C.DisableTorchFunction():
                    self._look(func, args, kwargs, out)
            return out
        finally:
            self._is_passing = False

    @not_compiled
    def _find_gradients(self, parameters: Callable[[], Mapping[int, torch.Tensor]]) -> None:
        self._parameters = None
        with torch._C.DisableTorchFunction():
            owned = parameters().values()
            self._owned = set(map(id, owned))
            self._storages = {a for q in owned if (g := q.grad) is not None and (a := address(g))}

    @not_compiled
    def _look(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        name = getattr(func, "__name__", "")
        if func == _SET_GRAD and id(args[0]) in self._owned and args[1] is not None and (where := address(args[1])):
            # What comes from elsewhere (a part of other gradients, a sum over ranks) is the gradient from here on.
            self._storages.add(where)
        inputs = list(_tensors((*args, *kwargs.values())))
        from_gradient = any(address(t) in self._storages for t in inputs)
        derived = from_gradient or any(self._has(self._derived, t) for t in inputs)
        if not derived:
            return
        if from_gradient and (
            name.endswith("_") and not name.endswith("__") or name in ("__imul__", "__itruediv__", "__setitem__", "__isub__", "__iadd__")
        ):
            first = next(iter(_tensors(args)), None)
            if first is not None and address(first) in self._storages:
                self.wrote, self.stack = call_site(), user_stack()
        elif func in (_SET_GRAD, _SET_DATA):
            self.wrote, self.stack = call_site(), user_stack()
            # The copy became the gradient.
            self._scaled_copy = False
        outputs = list(_tensors((out,)))
        is_norm = name in _NORMS or (name in _REDUCTIONS and all(t.numel() == 1 for t in outputs))
        from_norm = any(self._has(self._norms, t) for t in inputs)
        is_coefficient = any(self._has(self._coefficients, t) for t in inputs) or (
            from_norm and name in _QUOTIENTS and not (name in _OVER_NUMBER and self._has(self._norms, args[0]))
        )
        for t in outputs:
            if address(t) not in self._storages:
                self._derived[id(t)] = weakref.ref(t)
                if is_norm or (from_norm and t.numel() <= max(i.numel() for i in inputs) and name not in _PRODUCTS | {"cat"}):
                    self._norms[id(t)] = weakref.ref(t)
                    if is_coefficient:
                        self._coefficients[id(t)] = weakref.ref(t)
        if is_norm and self._norm_site is None:
            self._norm_site = call_site()
            frame = user_frame()
            self._function = frame.f_code.co_name if frame is not None else ""
            self._on_norm()
            self.wrote, self.stack = None, []
        if from_norm:
            self._judge(name, args, inputs, out)
        if (
            (
                name in _PRODUCTS
                and not from_norm
                and inputs
                and inputs[0].numel() > 1
                and not (address(inputs[0]) in self._storages and name.endswith("_"))
            )
            or name in _PRODUCTS
            and from_norm
            and any(t.numel() > 1 and address(t) not in self._storages for t in outputs)
        ):
            self._scaled_copy = True

    def _judge(self, name: str, args: Any, inputs: list[torch.Tensor], out: Any) -> None:
        norm = next(t for t in inputs if self._has(self._norms, t))
        others = [a for a in args if a is not norm and isinstance(a, int | float | torch.Tensor) and not isinstance(a, bool)]
        if name in _COMPARISONS and others and norm.numel() == 1:
            # A coefficient is compared with 1 when the norm has been divided by already.
            if self._has(self._coefficients, norm):
                return
            self._against(float(norm), float(others[0]))
        elif name in _QUOTIENTS and norm.numel() == 1:
            numerator = float(others[0]) if others else None
            if name in _OVER_NUMBER and args[0] is norm:
                return
            if numerator is not None:
                self._against(float(norm), numerator)
        elif name in _CAPS and isinstance(out, torch.Tensor) and out.numel() == 1 and norm.numel() == 1 and self._bound is None:
            self._over |= float(out) < 1
        elif name in _READS and norm.numel() == 1:
            self._against_names(float(norm))

    def _against(self, norm: float, bound: float) -> None:
        self._value, self._bound = norm, bound
        self._norm_site = self._norm_site or call_site()
        self._over |= norm > bound

    def _against_names(self, norm: float) -> None:
        """A norm that became a Python number is compared out of our sight; the source tells with what."""
        self._value = norm
        frame = user_frame()
        if frame is None or self._bound is not None:
            return
        bound = bound_in_source(frame)
        if bound is not None:
            self._against(norm, bound)

    def _has(self, table: dict[int, weakref.ref[torch.Tensor]], t: torch.Tensor) -> bool:
        ref = table.get(id(t))
        return ref is not None and ref() is t


def _tensors(values: Any) -> Any:
    for v in values:
        if isinstance(v, torch.Tensor):
            yield v
        elif isinstance(v, list | tuple):
            yield from (x for x in v if isinstance(x, torch.Tensor))


def address(t: torch.Tensor) -> int:
    """Of the memory a tensor lies in; 0 where there is none to ask for."""
    try:
        with torch._C.DisableTorchFunction():
            if hasattr(t, "_local_tensor"):
                t = t._local_tensor
            return t.untyped_storage().data_ptr() if t.layout == torch.strided else 0
    except (RuntimeError, NotImplementedError):
        return 0
