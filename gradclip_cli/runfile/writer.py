"""Writing a run while it runs. Whatever becomes of the disk, the training goes on."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gradclip_cli import __version__
from gradclip_cli.errors import GradclipError
from gradclip_cli.model.recorded import TensorInfo
from gradclip_cli.model.run import Steps, Values
from gradclip_cli.runfile import blocks, files, strict_json, tensorboard
from gradclip_cli.runfile.layout import (
    EVENTS,
    EVENTS_SUFFIX,
    GRADIENTS,
    HEADER_FILE,
    PART,
    RUN_FILE,
    SCHEMA,
    TRACE_FILE,
    UPDATES_FILE,
    gradients_folder,
    part_folder,
)
from gradclip_cli.runfile.updates import packed_tensors, packed_updates

_TAGS = {name: f"train/{name}" for name in ("loss", "grad_norm", "grad_norm_used", "lr", "clip_coef", "loss_scale")}


class RunWriter:
    """One rank's part of a run directory.

    Args:
        directory: Made where it is missing; a directory that holds a run of this rank is refused.
        header: What was measured and how; the schema, our version, the rank and the time are added.
        rank: 0 where there is one process. Rank 0 also writes the run's own header and the event file.
        on_problem: Told once, in a few words, when the disk is full or read-only. From then on nothing is written, and no method raises.

    Attributes:
        num_updates: How many were written.

    Raises:
        GradclipError: Where a recorded run lies there already, or something else is called as its files are.
    """

    def __init__(
        self, directory: Path, header: Mapping[str, Any], *, rank: int = 0, on_problem: Callable[[str], None] | None = None
    ) -> None:
        self.directory = directory
        self.rank = rank
        self._on_problem = on_problem
        self._part = part_folder(directory, rank)
        own = {"schema": SCHEMA, "gradclip_version": __version__, "rank": rank, "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        self._header: dict[str, Any] = own | dict(header)
        self._fds: dict[str, files.Opened] = {}
        self._speaks_for_all = False
        self._num_tensors = 0
        self.num_updates = 0
        # A forked child has the descriptors too, but writes nothing.
        self._pid = os.getpid()
        self._broken = False
        check_free(directory, rank=rank)
        with self._survived():
            directory.mkdir(parents=True, exist_ok=True)
            try:
                # Of two that came at once only one makes it.
                self._part.mkdir()
            except FileExistsError:
                raise _taken(directory, rank) from None
            self._speaks_for_all = rank == 0 or not os.path.lexists(directory / RUN_FILE)
            self._append(UPDATES_FILE, b"")
            _lock(self._fds[UPDATES_FILE].fd)
            self._replace_header()

    @property
    def header(self) -> Mapping[str, Any]:
        """The header as it stands."""
        return self._header

    def set_header(self, **values: Any) -> None:
        """Add to the header, or change it; the file is replaced as a whole."""
        self._header |= values
        with self._survived():
            self._replace_header()

    def add_tensors(self, tensors: Sequence[TensorInfo]) -> None:
        """Name more tensors, behind those before; the norms of later updates have a column for each."""
        with self._survived():
            self._append(UPDATES_FILE, blocks.packed(blocks.TENSORS, packed_tensors(self._num_tensors, tensors)))
        self._num_tensors += len(tensors)

    def append(
        self,
        steps: Steps,
        columns: Mapping[str, Values],
        tensor_norms: npt.NDArray[np.float32] | None,
        *,
        in_events: Mapping[str, Values] | None = None,
    ) -> None:
        """Some updates, as one block that is there or not.

        Args:
            steps: int64, shape (n,), strictly increasing, above those of the calls before.
            columns: Name -> float64, shape (n,); see `gradclip_cli.runfile`.
            tensor_norms: float32, shape (n, number of tensors named so far).
            in_events: Columns that the event file shows in place of those.
        """
        with self._survived():
            self._append(UPDATES_FILE, blocks.packed(blocks.UPDATES, packed_updates(steps, columns, tensor_norms)))
            self.num_updates += len(steps) if self._can_write() else 0
            if self.rank == 0:
                self._append(_events_name(self._fds), b"".join(_events(steps, {**columns, **(in_events or {})})), beside=self.directory)

    def append_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Calls of the trace, a JSON line each."""
        with self._survived():
            self._append(TRACE_FILE, b"".join(strict_json.dumps(e) + b"\n" for e in events))

    def gradients_path(self, step: int) -> Path:
        """Where the gradients of an update go; their folder is made."""
        folder = gradients_folder(self.directory, self.rank)
        with self._survived():
            files.make_folder(folder)
        return folder / f"step-{step:08d}.safetensors"

    def report(self, problem: str) -> None:
        """Say what went wrong, once a run; nothing is written any more."""
        if not self._broken:
            self._broken = True
            self._header["fault"] = problem
            if self._on_problem is not None:
                self._on_problem(problem)

    def close(self, ended: str) -> None:
        """How it ended; nothing can be written afterwards."""
        self._header["ended"] = ended
        # A disk may be full for the updates and still have room for what became of them.
        was_broken, self._broken = self._broken, False
        with suppress(OSError) if was_broken else self._survived():
            self._replace_header()
        self._broken = True
        for opened in self._fds.values():
            with suppress(OSError):
                opened.close()
        self._fds.clear()

    @contextmanager
    def _survived(self) -> Iterator[None]:
        """Do it where that is still possible."""
        try:
            yield
        except OSError as e:
            self.report(f"{self.directory}: {e.strerror or e}")

    def _can_write(self) -> bool:
        return not self._broken and os.getpid() == self._pid

    def _append(self, name: str, data: bytes, *, beside: Path | None = None) -> None:
        if not self._can_write():
            return
        if name not in self._fds:
            self._fds[name] = files.Opened(files.create((beside or self._part) / name))
        self._fds[name].append(data)

    def _replace_header(self) -> None:
        if not self._can_write():
            return
        data = strict_json.dumps(self._header, indent=1) + b"\n"
        files.replace(self._part / HEADER_FILE, data)
        if self._speaks_for_all:
            files.replace(self.directory / RUN_FILE, data)


def _events_name(fds: Mapping[str, object]) -> str:
    opened = next((name for name in fds if EVENTS.fullmatch(name)), None)
    return opened or f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}{EVENTS_SUFFIX}"


def _events(steps: Steps, columns: Mapping[str, Values]) -> Iterator[bytes]:
    """Event records: what each update has."""
    shown = {tag: columns[name] for name, tag in _TAGS.items() if name in columns}
    there = {tag: _there(name, columns) for name, tag in _TAGS.items() if name in columns}
    step_s = np.nan_to_num(columns.get("step_s", np.zeros(len(steps))))
    # The last update is taken to be now, those before it as much earlier as they took.
    walls = time.time() - (step_s.sum() - np.cumsum(step_s))
    for i, step in enumerate(steps.tolist()):
        scalars = {tag: float(values[i]) for tag, values in shown.items() if there[tag][i]}
        if scalars:
            yield tensorboard.scalars_record(float(walls[i]), step, scalars)


def _there(name: str, columns: Mapping[str, Values]) -> npt.NDArray[np.bool_]:
    marked = columns.get(f"has_{name}")
    return ~np.isnan(columns[name]) if marked is None else marked == 1


def _lock(fd: int) -> None:
    """Hold the file for as long as this process lives; file systems without locks do without."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_ours(path: Path) -> bool:
    try:
        data, _ = files.read(path, 1 << 20)
        header = json.loads(data)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(header, dict) and header.get("schema") == SCHEMA


def _taken(directory: Path, rank: int) -> GradclipError:
    return GradclipError(
        f"{directory}: already holds a recorded run (rank {rank}); nothing is overwritten",
        hint="name another directory (-o), or replace the run (--force, force=True)",
    )


def check_free(directory: Path, *, rank: int = 0) -> None:
    """Whether a rank may record there.

    Raises:
        GradclipError: Where a recorded run lies there already, or something else is called as its files are.
    """
    if os.path.lexists(part_folder(directory, rank)):
        raise _taken(directory, rank)
    if os.path.lexists(directory / RUN_FILE) and not _is_ours(directory / RUN_FILE):
        raise GradclipError(f"{directory / RUN_FILE}: is no header of a recorded run", hint="name another directory (-o)")


def check_writable(directory: Path) -> None:
    """Whether the directory may be written into, or made: worth asking before a long run, which would go on without being recorded.

    Raises:
        GradclipError: Where it may not.
    """
    there = next(p for p in (directory, *directory.absolute().parents) if os.path.lexists(p))
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        what = "may not be written into" if os.path.isdir(there) else "is no directory"
        raise GradclipError(f"{there}: {what}; expected a directory to record in", hint="name another directory (-o)")


def remove_recorded(directory: Path, *, rank: int = 0, world_size: int = 1) -> None:
    """Remove what an earlier recording of this rank left: files and folders that we name so, nothing else, and through no link.

    Rank 0 also removes what belongs to the whole run and the parts of ranks that there are no longer.

    Raises:
        GradclipError: Where it cannot be removed.
    """
    if not _is_ours(directory / RUN_FILE) and not os.path.lexists(part_folder(directory, rank)):
        return
    try:
        _remove_part(part_folder(directory, rank))
        if rank == 0:
            _remove_files(gradients_folder(directory, 0), GRADIENTS.fullmatch)
            _remove_files(directory, lambda name: name == RUN_FILE or EVENTS.fullmatch(name), keep=True)
            for path in list(directory.iterdir()):
                if (part := PART.fullmatch(path.name)) and int(part[1]) >= world_size:
                    _remove_part(path)
    except OSError as e:
        raise GradclipError(f"{e.filename or directory}: cannot be removed ({e.strerror or e})", hint="name another directory (-o)") from e


def _remove_part(folder: Path) -> None:
    _remove_files(folder / gradients_folder(folder, 0).name, GRADIENTS.fullmatch)
    _remove_files(folder, lambda name: name in (HEADER_FILE, UPDATES_FILE, TRACE_FILE) or name.startswith(f".{HEADER_FILE}."))


def _remove_files(folder: Path, ours: Callable[[str], object], *, keep: bool = False) -> None:
    """The files of ours in a folder, then the folder, unless something else is in it."""
    if folder.is_symlink():
        folder.unlink()
        return
    if not folder.is_dir():
        return
    for name in os.listdir(folder):
        if ours(name):
            os.unlink(folder / name)
    if not keep and not os.listdir(folder):
        folder.rmdir()
