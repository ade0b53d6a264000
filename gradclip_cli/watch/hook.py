"""What every hook keeps to: a script must not notice that it is watched, whatever its tensors are and whatever goes wrong on our side."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch._compile import _disable_dynamo as not_compiled

M = TypeVar("M", bound=Callable[..., Any])


def hook(method: M) -> M:
    """A method of an observer that torch calls in the middle of the script: not compiled, and asking no tensor class of the script's.

    It never raises: the first error is told to the observer's `on_fault`, and from then on no hook does anything (they return None).
    What ends the script on purpose (`SystemExit`) goes through. The observer's `lock` is held: a script may train in several threads.
    """

    @functools.wraps(method)
    def guarded(observer: Any, *args: Any, **kwargs: Any) -> Any:
        if observer.failed:
            return None
        try:
            with observer.lock, torch._C.DisableTorchFunction():
                return method(observer, *args, **kwargs)
        except Exception as e:  # noqa: BLE001 - tensors may be of any kind
            observer.failed = True
            observer.on_fault(e)
            return None

    return cast("M", not_compiled(guarded))
