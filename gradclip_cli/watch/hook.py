"""What every hook keeps to: a script must not notice that it is watched, whatever its tensors are and whatever goes wrong on our side."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch._compile import _disable_dynamo as not_compiled

from gradclip_cli.errors import GradclipError

M = TypeVar("M", bound=Callable[..., Any])


def is_capturing() -> bool:
    """Whether what is sent to the device now becomes a CUDA graph, and is not run."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def hook(method: M) -> M:
    """A method of an observer that torch calls in the middle of the script: not compiled, and asking no tensor class of the script's.

    It never raises: the first error is told to the observer's `on_fault`, and from then on no hook does anything (they return None).
    What ends the script on purpose (`SystemExit`) goes through. The observer's `lock` is held: a script may train in several threads.
    Where a CUDA graph is captured nothing can be measured: it would become a part of the graph, and waiting for it would end the capture.
    """

    @functools.wraps(method)
    def guarded(observer: Any, *args: Any, **kwargs: Any) -> Any:
        if observer.failed:
            observer.let_go()
            return None
        try:
            with observer.lock, torch._C.DisableTorchFunction():
                if is_capturing():
                    raise GradclipError("a CUDA graph is captured, and what is replayed from one cannot be seen")
                return method(observer, *args, **kwargs)
        except Exception as e:  # noqa: BLE001 - tensors may be of any kind
            observer.failed = True
            observer.on_fault(e)
            return None

    return cast("M", not_compiled(guarded))
