"""Recording from within a trainer: a callback for the Hugging Face Trainer, and one for Lightning. Accelerate's loops need none."""

from __future__ import annotations

import atexit
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gradclip_cli.errors import GradclipError
from gradclip_cli.watch import watch
from gradclip_cli.watch.watcher import Watcher, how_it_ended

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from transformers import TrainerCallback


def hf_callback(directory: str | os.PathLike[str], **options: Any) -> TrainerCallback:
    """Records what `transformers.Trainer` trains: `Trainer(..., callbacks=[hf_callback("runs/a")])`.

    Args:
        directory: The run directory to make, as for `gradclip_cli.watch.watch`.
        options: `exact`, `max_updates`, `save_grads`, `force`, likewise.

    Raises:
        GradclipError: Where transformers is not installed.
    """
    base: Any = _base("TrainerCallback", "transformers")

    class GradclipCallback(base):  # type: ignore[misc]
        """Watches from the beginning of the training to its end."""

        def __init__(self) -> None:
            self._recording = _Recording(directory, options)

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self._recording.begin()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self._recording.end(None)

    callback: TrainerCallback = GradclipCallback()
    return callback


def lightning_callback(directory: str | os.PathLike[str], **options: Any) -> Callback:
    """Records what a Lightning `Trainer` fits: `Trainer(..., callbacks=[lightning_callback("runs/a")])`.

    Args:
        directory: The run directory to make, as for `gradclip_cli.watch.watch`.
        options: `exact`, `max_updates`, `save_grads`, `force`, likewise.

    Raises:
        GradclipError: Where Lightning is not installed.
    """
    # The package under its old name has classes of its own; the one the script uses is loaded by now.
    names = ("lightning.pytorch", "pytorch_lightning")
    base: Any = _base("Callback", *sorted(names, key=lambda name: name not in sys.modules))

    class GradclipCallback(base):  # type: ignore[misc]
        """Watches from the beginning of the training to its end, or to the exception that ends it."""

        def __init__(self) -> None:
            self._recording = _Recording(directory, options)

        def on_train_start(self, *_: Any) -> None:
            self._recording.begin()

        def on_train_end(self, *_: Any) -> None:
            self._recording.end(None)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self._recording.end(exception)

    callback: Callback = GradclipCallback()
    return callback


class _Recording:
    """The watcher of one training. Where nobody says how it ended, the end of the process does."""

    def __init__(self, directory: str | os.PathLike[str], options: dict[str, Any]) -> None:
        self._directory = directory
        self._options = options
        self._watcher: Watcher | None = None

    def begin(self) -> None:
        self._watcher = watch(self._directory, **self._options).start()
        atexit.register(self._end_of_process)

    def end(self, error: BaseException | None) -> None:
        if self._watcher is not None:
            self._watcher.stop(how_it_ended(error))
            self._watcher = None
            atexit.unregister(self._end_of_process)

    def _end_of_process(self) -> None:
        self.end(getattr(sys, "last_value", None))


def _base(name: str, *modules: str) -> Any:
    """A class of the first of these packages that is there."""
    for module in modules:
        if find_spec(module.partition(".")[0]) is not None:
            return getattr(import_module(module), name)
    raise GradclipError(
        f"{modules[0].partition('.')[0]} is not installed here; a callback for it needs it", hint=f"pip install {modules[0]}"
    )
