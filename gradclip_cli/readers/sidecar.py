"""The clipping bound from a configuration file beside a log: what a trainer was told, as it wrote it down."""

from __future__ import annotations

import re
from pathlib import Path

_NAMES = (
    "hparams.yaml",
    "hparams.yml",
    "config.yaml",
    "config.yml",
    "config.json",
    "args.json",
    "args.yaml",
    "training_args.json",
    "params.json",
)
_MAX_BYTES = 1 << 18
_BOUND = re.compile(
    r"""^[\s"'{,-]*(?:max_grad_norm|max_norm|gradient_clip_val|grad_clip|clip_grad|clip_grad_norm|grad_clip_norm|gradient_clipping|clip_norm)["']?\s*[:=]\s*"""
    r"""["']?([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)["']?\s*(?:[,}#]|$)""",
    re.M,
)


def max_norm_beside(path: Path) -> tuple[float, str] | None:
    """The bound and the name of the file that tells it; None where there is none, or several that differ.

    A line such as `gradient_clip_val: 1.0` or `"max_grad_norm": 1.0`, in a file of a known name in the log's own folder.
    Nothing is loaded or executed.
    """
    found: dict[float, str] = {}
    for name in _NAMES:
        beside = path.parent / name
        try:
            if beside == path or beside.is_symlink() or not beside.is_file() or beside.stat().st_size > _MAX_BYTES:
                continue
            text = beside.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for m in _BOUND.finditer(text):
            found.setdefault(float(m[1]), name)
    if len(found) != 1:
        return None
    ((bound, name),) = found.items()
    return (bound, name) if bound > 0 else None
