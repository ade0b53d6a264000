"""What every hook keeps to: a script must not notice that it is watched, whatever its tensors are and whatever goes wrong on our side."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import RLock
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch._compile import _disable_dynamo as not_compiled


class Watching(Protocol):
    """What has hooks.

    Attributes:
        lock: Held while a hook runs: a script may train in several threads.
        failed: A hook has raised; from then on none does anything.
        on_fault: Told what it raised.
    """

    lock: RLock
    failed: bool
    on_fault: Callable[[Exception], None]


S = TypeVar("S", bound=Watching)
P = ParamSpec("P")
R = TypeVar("R")


def hook(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R | None]:
    """A method that torch calls in the middle of the script: not compiled, asking no tensor class of the script's own, and never raising.

    What ends the script on purpose (`SystemExit`) goes through.
    """

    @functools.wraps(method)
    def guarded(watching: S, /, *args: P.args, **kwargs: P.kwargs) -> R | None:
        if watching.failed:
            return None
        try:
            with watching.lock, torch._C.DisableTorchFunction():
                return method(watching, *args, **kwargs)
        except Exception as e:  # noqa: BLE001 - tensors may be of any kind
            watching.failed = True
            watching.on_fault(e)
            return None

    return not_compiled(guarded)  # type: ignore[no-any-return]
