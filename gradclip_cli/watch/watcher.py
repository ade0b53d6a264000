"""Watching the training loop of this process."""

from __future__ import annotations

import math
import multiprocessing
import multiprocessing.util
import os
import platform
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from gradclip_cli.errors import GradclipError
from gradclip_cli.runfile import RunWriter
from gradclip_cli.watch.batches import BatchWatcher
from gradclip_cli.watch.gradients import GradientKeeper
from gradclip_cli.watch.hook import is_capturing
from gradclip_cli.watch.observer import Observer
from gradclip_cli.watch.patches import Patches
from gradclip_cli.watch.processes import group_member, rank_and_world, watch_spawned
from gradclip_cli.watch.recorder import Recorder
from gradclip_cli.watch.signals import signals_wait
from gradclip_cli.wording import count

# Of a recording on a CPU, where reading a gradient makes nobody wait, the first updates are read as exactly as `verify` does it:
# what the trace says of the loop is then as good as there.
_EXACT_AT_FIRST = 20


class StopTraining(SystemExit):
    """Ends the script after the updates that were asked for, as `sys.exit(0)` would."""

    def __init__(self) -> None:
        super().__init__(0)


class Watcher:
    """Hooks the loop of this process, and of the children it makes, and records into a run directory.

    Args:
        directory: The run; each rank writes its own part when it takes its first update.
        exact: Read gradients at every point, in float64, in every update.
        max_updates: End the script after so many.
        save_grads: `never`, `explosions` or `every:K`.
        command: The command line, for the header.
        header: More for the header.
        on_problem: Told once, in a sentence, why recording stopped.
        parent: The process that wants to judge the run: killed, it leaves no script behind that runs for nobody.
    """

    current: Watcher | None = None

    def __init__(
        self,
        directory: Path,
        *,
        exact: bool = False,
        max_updates: int | None = None,
        save_grads: str = "never",
        command: list[str] | None = None,
        header: Mapping[str, Any] | None = None,
        on_problem: Callable[[str], None] | None = None,
        parent: int | None = None,
    ) -> None:
        self.directory = Path(directory).absolute()
        self._exact = exact
        self._max_updates = max_updates
        self._save_grads = save_grads
        self._command = list(sys.argv) if command is None else command
        self._header = dict(header or {})
        self._on_problem = on_problem
        self._parent = parent
        self._pid = os.getpid()
        self._is_child = False
        self._member: tuple[int, int] | None = None
        self._finalizer: multiprocessing.util.Finalize | None = None
        self._undo: list[Callable[[], None]] = []
        self._batches = BatchWatcher()
        self._new_recorder()

    def _new_recorder(self) -> None:
        keeper = None if self._save_grads == "never" else GradientKeeper(self._save_grads, lambda: self._recorder.writer)
        self._recorder = Recorder(
            self._writer, every_update=self._exact, batch=self._batches.take, keep=None if keeper is None else keeper.on_update
        )

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The watcher of a spawned child."""
        values = dict(settings)
        watcher = cls(Path(values.pop("directory")), **values)
        watcher._became_child()
        return watcher

    def settings(self) -> dict[str, Any]:
        """What a spawned child needs to know."""
        return {
            "directory": str(self.directory),
            "exact": self._exact,
            "max_updates": self._max_updates,
            "save_grads": self._save_grads,
            "command": self._command,
            "header": self._header,
        }

    def start(self) -> Self:
        """Begin to watch.

        Raises:
            GradclipError: Where something is watched already.
        """
        if Watcher.current is not None:
            raise GradclipError("this process is being watched already; one watcher at a time", hint="end the other one first")
        on_cpu = not torch.accelerator.is_available() if hasattr(torch, "accelerator") else not torch.cuda.is_available()
        exact_updates = math.inf if self._exact else _EXACT_AT_FIRST if on_cpu else 0
        self._observer = Observer(self._event, exact_updates, self._use, self._update, self._fault)
        self._recorder.observer = self._observer
        self._patches = Patches(self._observer)
        self._patches.install()
        self._undo += [self._patches.remove, self._batches.remove, watch_spawned(self.settings())]
        self._batches.install()
        Watcher.current = self
        _watch_forks()
        return self

    def stop(self, ended: str = "finished") -> None:
        """End watching, take every hook out, and write what is left."""
        if Watcher.current is not self:
            return
        with signals_wait():
            Watcher.current = None
            self._observer.finish()
            for undo in reversed(self._undo):
                undo()
            self._undo.clear()
            with self._observer.lock:
                try:
                    self._recorder.close(ended)
                except Exception as e:  # noqa: BLE001 - numbers may come from tensors of any kind
                    self._stopped(e)
                    # What could not be written is gone from it by now.
                    self._recorder.close(ended)

    @property
    def updates(self) -> int:
        """Optimizer updates this process has taken."""
        return self._observer.updates

    @property
    def num_recorded(self) -> int:
        """Those that can be read from the disk."""
        return self._recorder.num_written

    @property
    def failed(self) -> bool:
        """Whether it could not follow the script to the end."""
        return self._observer.failed

    # The recorder changes in a forked child, so the observer is given these and not its methods.

    def _event(self, event: dict[str, Any]) -> None:
        self._recorder.event(event)

    def _use(self, o: int, optimizer: torch.optim.Optimizer, event: dict[str, Any]) -> None:
        if self._member is None:
            self._member = group_member()
        self._recorder.use(o, optimizer, event)

    def _update(self, o: int) -> None:
        if self._is_child and self._finalizer is None:
            # What was registered before a child has begun, `multiprocessing` forgets.
            self._finalizer = multiprocessing.util.Finalize(None, self.stop, args=("finished",), exitpriority=100)
        self._recorder.update(o)
        if self._max_updates is not None and self._observer.updates >= self._max_updates:
            raise StopTraining
        if self._parent is not None and not self._is_child and os.getppid() != self._parent:
            raise StopTraining

    def _fault(self, error: Exception) -> None:
        """A hook failed. The script goes on unseen, unless it was to end after some updates, which nobody counts now."""
        self._stopped(error)
        if not is_capturing():
            # It may be hours until the end.
            with suppress(Exception), self._observer.lock:
                self._recorder.flush()
        self._end_if_counted()

    def _cannot_write(self, problem: str) -> None:
        """The disk is full, or gone: the same."""
        if not self._observer.failed:
            self._stopped(GradclipError(problem))
            self._end_if_counted()

    def _stopped(self, error: Exception) -> None:
        """Nothing is measured any more, nothing that was only for measuring is kept, and it is told."""
        self._observer.failed = True
        self._patches.put_back()
        self._batches.remove()
        self._recorder.let_go()
        fault = error.message if isinstance(error, GradclipError) else how_it_ended(error)
        self._header["fault"] = fault
        self._recorder.set_header(fault=fault)
        if self._on_problem is not None:
            what_next = "the training goes on" if self._max_updates is None else "the training ends here"
            stopped = f"recording stopped after {count(self._observer.updates, 'update')} ({fault})"
            self._on_problem(f"{stopped}; {what_next}" if Watcher.current is self else stopped)

    def _end_if_counted(self) -> None:
        if self._max_updates is not None and Watcher.current is self:
            raise StopTraining

    def _writer(self) -> RunWriter:
        rank, world_size = self._rank_and_world()
        devices = sorted({p.device.type for p in self._observer.registry.parameters().values()})
        header = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": "+".join(devices),
            "world_size": world_size,
            "command": self._command,
            "seed": torch.initial_seed(),
            "norm_type": 2.0,
            "stages": {"grad_norm": "pre_clip", "grad_norm_used": "used by the optimizer"},
            "loss_reduction": "sum",
            "exact": self._exact,
            "replicated": world_size > 1 and _has_replicas(),
        } | self._header
        while True:
            try:
                return RunWriter(self.directory, header, rank=rank, on_problem=self._cannot_write)
            except GradclipError:
                # Of two children that took the first free number at once, one takes the next.
                taken, (rank, _) = rank, self._rank_and_world()
                if rank == taken:
                    raise

    def _rank_and_world(self) -> tuple[int, int]:
        return rank_and_world(self.directory, is_child=self._is_child, member=self._member)

    def _became_child(self) -> None:
        self._is_child = True
        self._member = None
        self._finalizer = None
        self._pid = os.getpid()

    def _forked(self) -> None:
        self._became_child()
        self._new_recorder()
        self._recorder.observer = self._observer
        self._observer.begin_again()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop(how_it_ended(error))


def how_it_ended(error: BaseException | None) -> str:
    """In the words of the run's header."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "finished"
    if isinstance(error, SystemExit):
        return f"exit {error.code if isinstance(error.code, int) else 1}"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0][:200]}" if first else type(error).__name__


def _has_replicas() -> bool:
    """Whether this process trains a replica that DistributedDataParallel keeps equal to others."""
    import gc

    return any(issubclass(type(m), torch.nn.parallel.DistributedDataParallel) for m in gc.get_objects())


_forks_are_watched = False


def _watch_forks() -> None:
    global _forks_are_watched
    if not _forks_are_watched:
        # There is no taking this out again; without a watcher it does nothing.
        os.register_at_fork(after_in_child=_after_fork)
        _forks_are_watched = True


def _after_fork() -> None:
    if Watcher.current is not None:
        Watcher.current._forked()
