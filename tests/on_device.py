"""A device without hardware: its tensors hold values that only a read brings to the host, and every read is counted.

A tensor of it says that it is on `meta`; what it is made of lies on the CPU. Whatever would wait for the stream of a real device (reading a
value, a size that depends on values, a copy to or from the host that does not return at once) is a read.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

DEVICE = torch.device("meta")
_READS = {
    "_local_scalar_dense",
    "_unique2",
    "_coalesce",
    "bincount",
    "equal",
    "is_set_to",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique_consecutive",
    "unique_dim",
}


class Held(torch.Tensor):
    """A tensor on the device."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=DEVICE
        )

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of the device")


class Device(TorchDispatchMode):
    """While it is on, tensors may be made on `DEVICE`, and `reads` counts what waits for it, by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat, _ = tree_flatten((args, kwargs))
        ours = any(isinstance(x, Held) for x in flat)
        made_here = kwargs.get("device") == DEVICE
        if not ours and not made_here:
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        crosses = (name == "_to_copy" and ours != made_here and kwargs.get("device") is not None) or (
            name == "copy_" and isinstance(args[0], Held) != isinstance(args[1], Held) and args[1].dim() > 0
        )
        by_mask = name.startswith("index") and any(isinstance(x, Held) and x.dtype is torch.bool for x in flat)
        if name in _READS or by_mask or (crosses and not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))):
            self.reads[name] += 1
        elif crosses:
            self.reads["copy without a wait"] += 1
        inner_args, inner_kwargs = tree_map_only(Held, lambda x: x.held, (args, kwargs))
        if made_here:
            inner_kwargs["device"] = torch.device("cpu")
        out = func(*inner_args, **inner_kwargs)
        if name == "_to_copy" and ours and kwargs.get("device") is not None and not made_here:
            return out.clone()
        by_id = {id(x.held): x for x in flat if isinstance(x, Held)}
        return tree_map_only(torch.Tensor, lambda x: by_id[id(x)] if id(x) in by_id else Held(x), out)
