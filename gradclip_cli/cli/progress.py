"""Telling a person at a terminal that something takes a while."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Below this a run is read and judged before anyone wonders.
_LARGE_BYTES = 20_000_000


def _takes_a_while(path: Path) -> bool:
    try:
        return path.is_dir() or path.stat().st_size > _LARGE_BYTES
    except OSError:
        return False


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Show that a large file or a directory is being read; nothing where standard error is not a terminal."""
    if sys.stderr is None or not sys.stderr.isatty() or not _takes_a_while(path):
        yield
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(f"reading {escape(path.name)}", total=None)
        yield


@contextmanager
def counting(total: int) -> Iterator[Callable[[str], None]]:
    """A bar that moves on with each name it is told; nothing where standard error is not a terminal, or there is nothing to count."""
    if sys.stderr is None or not sys.stderr.isatty() or not total:
        yield lambda name: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)

        def tell(name: str) -> None:
            progress.update(task, description=name)
            progress.advance(task)

        yield tell
