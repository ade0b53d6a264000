"""Whether an optimizer clips in code of its own, where the gradients do not show it: by its options, or by what its source compares."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from gradclip_cli.watch.comparisons import compared, is_named_bound
from gradclip_cli.watch.sites import is_library

_OPTIONS = ("max_grad_norm", "clip_grad_norm", "grad_clip", "gradient_clipping", "percentile_clipping", "clip_threshold", "max_norm")
# A smaller number beside a norm keeps a quotient finite.
_LEAST_BOUND = 1e-3


def clips_inside(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """What it bounds by and the value, by name; of the classes of torch none clips."""
    if _is_torch(type(optimizer)):
        return {}
    # A number may be the 1 above which no coefficient goes; a name tells more.
    found = sorted(_in_source(optimizer), key=lambda bound: bound[0] == "norm")
    return options(optimizer.defaults) or dict(found[:1])


def options(values: Mapping[str, Any]) -> dict[str, str]:
    """Those that are known to clip, and are on."""
    return {k: str(values[k]) for k in _OPTIONS if isinstance(values.get(k), int | float) and values[k]}


def _is_torch(kind: type) -> bool:
    return kind.__module__.startswith("torch.optim")


def _in_source(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, str]]:
    """Bounds that the methods of its own classes compare a norm with, or divide by one."""
    for kind in type(optimizer).__mro__:
        if _is_torch(kind):
            return
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
            numbers = not is_library(inspect.getfile(kind))
        except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
            continue
        for side, other in compared(tree):
            if "norm" not in ast.unparse(other).lower():
                continue
            if isinstance(side, ast.Constant):
                # Libraries normalize much else.
                if numbers and isinstance(side.value, int | float) and side.value >= _LEAST_BOUND:
                    yield "norm", str(side.value)
            elif (value := _value(side, optimizer)) is not None:
                yield ast.unparse(side), value


def _value(node: ast.expr, optimizer: torch.optim.Optimizer) -> str | None:
    """Of an option that is a bound by its name, empty where it is not known; None where it is none, or off."""
    if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript) or not is_named_bound(ast.unparse(node)):
        return None
    key = node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else ast.unparse(node).split(".")[-1]
    known = {**vars(optimizer), **optimizer.defaults}
    if key not in known:
        return ""
    return str(known[key]) if isinstance(known[key], int | float) and known[key] else None
