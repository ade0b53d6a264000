"""Watching a running loop: hooks on torch, a trace of the calls that matter for clipping, and a recorded run."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradclip_cli.watch.callbacks import hf_callback, lightning_callback
    from gradclip_cli.watch.watcher import StopTraining, Watcher

__all__ = ["StopTraining", "Watcher", "hf_callback", "lightning_callback", "watch"]


def watch(
    directory: str | os.PathLike[str],
    *,
    exact: bool = False,
    max_updates: int | None = None,
    save_grads: str = "never",
    force: bool = False,
) -> Watcher:
    """Record the training loop inside `with watch("runs/a"):`.

    Args:
        directory: The run directory to make.
        exact: Read gradients at every point in float64; slow, and right also for loops that clip by hand.
        max_updates: Leave the block (by `SystemExit(0)`) after so many optimizer updates.
        save_grads: Which gradients to keep: `never`, `explosions`, or `every:K`.
        force: Replace a recorded run that lies there.

    Raises:
        GradclipError: Where a recorded run lies there, or this process is being watched already.
    """
    from gradclip_cli.runfile import check_free, remove_recorded
    from gradclip_cli.watch.launch import say
    from gradclip_cli.watch.processes import group_member, rank_and_world
    from gradclip_cli.watch.watcher import Watcher

    path = Path(directory)
    rank, world_size = rank_and_world(path, is_child=False, member=group_member())
    if force:
        remove_recorded(path, rank=rank, world_size=world_size)
    check_free(path, rank=rank)
    return Watcher(path, exact=exact, max_updates=max_updates, save_grads=save_grads, on_problem=lambda text: say(f"warning: {text}"))


def __getattr__(name: str) -> Any:
    # A script that `launch` runs imports torch itself, when it is ready for it.
    homes = {"StopTraining": "watcher", "Watcher": "watcher", "hf_callback": "callbacks", "lightning_callback": "callbacks"}
    if name in homes:
        return getattr(import_module(f"{__name__}.{homes[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Callable(ModuleType):
    """`gradclip_cli.watch("runs/a")` means the function, and once this package is imported it stands under that name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Watcher:
        return watch(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
