"""Hooks of the script's own on parameters: they may change a gradient while the backward runs, before anybody could look at it."""

from __future__ import annotations

import dis
from collections import deque
from collections.abc import Iterable
from functools import lru_cache, partial
from types import CodeType
from typing import Any

import torch

from gradclip_cli.watch.sites import is_library, site_of


def is_hooked(parameter: torch.Tensor | None) -> bool:
    """Whether any hook is there, whoever set it."""
    return bool(getattr(parameter, "_backward_hooks", None) or getattr(parameter, "_post_accumulate_grad_hooks", None))


def may_change_gradients(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether a hook of the script's own may. One that returns nothing only looks, unless it is given the parameter itself."""
    for parameter in parameters:
        if is_hooked(parameter):
            on_gradient = (getattr(parameter, "_backward_hooks", None) or {}).values()
            on_parameter = (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()
            if any(_may_change(h, by_return=True) for h in on_gradient) or any(_may_change(h, by_return=False) for h in on_parameter):
                return True
    return False


def hook_site(parameter: torch.Tensor | None) -> str | None:
    """Where the first hook of the script's own on it begins."""
    for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        for hook in (getattr(parameter, kind, None) or {}).values():
            if (site := site_of(hook)) is not None:
                return site
    return None


def _may_change(hook: Any, *, by_return: bool) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    # `seen.append`, say.
    if isinstance(getattr(hook, "__self__", None), list | set | deque):
        return False
    code = getattr(hook, "__code__", None) or getattr(type(hook).__call__, "__code__", None)
    if code is None:
        return True
    # Those of libraries log, or reduce over ranks.
    return not is_library(code.co_filename) and (not by_return or _returns_something(code))


@lru_cache(maxsize=256)
def _returns_something(code: CodeType) -> bool:
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RETURN_CONST" and instruction.argval is not None:
            return True
        if instruction.opname == "RETURN_VALUE" and not (before is not None and before.opname == "LOAD_CONST" and before.argval is None):
            return True
        before = instruction
    return False
