"""Is this PyTorch training run stable, and does gradient norm clipping really protect it?

>>> from gradclip_cli import analyze, read_run, suggest_threshold
>>> run = read_run("runs/a")
>>> run.to_frame()
>>> analyze(run).findings
>>> suggest_threshold(run).max_norm
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradclip_cli.analysis import analyze
    from gradclip_cli.errors import GradclipError
    from gradclip_cli.model.finding import Analysis, Finding
    from gradclip_cli.model.run import Run, Series
    from gradclip_cli.model.threshold import Suggestion
    from gradclip_cli.threshold import suggest_threshold
    from gradclip_cli.watch import watch

__version__ = "0.1.0"
__all__ = [
    "Analysis",
    "Finding",
    "GradclipError",
    "Run",
    "Series",
    "Suggestion",
    "__version__",
    "analyze",
    "read_run",
    "read_runs",
    "suggest_threshold",
    "watch",
]


def read_runs(
    path: str | os.PathLike[str], *, loss: str | None = None, grad_norm: str | None = None, lr: str | None = None, step: str | None = None
) -> list[Run]:
    """Every run in a file or below a directory, in any of the formats `gradclip analyze` reads.

    Args:
        path: A file, or a directory that is searched.
        loss, grad_norm, lr, step: Keys to use instead of the ones found by name.

    Raises:
        GradclipError: Where nothing can be read. A file below a directory that cannot be read is left out.
    """
    from pathlib import Path

    from gradclip_cli.model.run import Run
    from gradclip_cli.readers import Wanted, read

    return [r for r in read(Path(path), Wanted(loss, grad_norm, lr, step)) if isinstance(r, Run)]


def read_run(
    path: str | os.PathLike[str], *, loss: str | None = None, grad_norm: str | None = None, lr: str | None = None, step: str | None = None
) -> Run:
    """The one run in a file or directory; see `read_runs`.

    Raises:
        GradclipError: Where nothing can be read, or there are several runs.
    """
    from gradclip_cli.errors import GradclipError

    runs = read_runs(path, loss=loss, grad_norm=grad_norm, lr=lr, step=step)
    if len(runs) != 1:
        listed = ", ".join(r.source for r in runs[:5])
        raise GradclipError(f"{path}: holds {len(runs)} runs ({listed}); expected one", hint="use read_runs, or name one of them")
    return runs[0]


def __getattr__(name: str) -> Any:
    # numpy and the readers are not loaded before somebody asks: `gradclip --help` must not wait for them.
    if name == "watch":
        # The package, which can be called, and not its function alone: `watch.hf_callback` must be there on the first access too.
        from importlib import import_module

        return import_module("gradclip_cli.watch")
    homes = {
        "Analysis": "model.finding",
        "Finding": "model.finding",
        "GradclipError": "errors",
        "Run": "model.run",
        "Series": "model.run",
        "Suggestion": "model.threshold",
        "analyze": "analysis",
        "suggest_threshold": "threshold",
    }
    if name in homes:
        from importlib import import_module

        return getattr(import_module(f"gradclip_cli.{homes[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
