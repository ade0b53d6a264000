"""Where in the user's code a call was made."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from types import FrameType
from typing import Any

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# The loop of `gradclip probe` is watched like any other.
_LOOP = os.path.join(_HERE, "probe") + os.sep
_LIBRARY = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("purelib", "platlib", "stdlib"))
_TORCH = tuple(os.path.join(path, "torch") + os.sep for path in _LIBRARY[:2])

_DEEPEST = 8
# In longer lists nobody tells optimizers by their places.
_MOST_LISTED = 64


def _is_ours(file: str) -> bool:
    return file.startswith((_HERE, "<frozen")) and not file.startswith(_LOOP)


def is_library(file: str) -> bool:
    """Whether code of this file is neither the user's nor a training loop of ours."""
    return _real(file).startswith(_LIBRARY) and not file.startswith(_LOOP)


def call_site() -> str | None:
    """`file:line:function` of the innermost frame that is the user's own code.

    A call that a library makes (a trainer, say) is told by the user's frame that led to it, and by the
    library's own frame behind ` via `. None where no frame of the user's is on the stack.
    """
    frame: FrameType | None = sys._getframe(1)
    library: FrameType | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not _is_ours(file) and not file.startswith(_TORCH):
            if not is_library(file) and not file.startswith("<"):
                site = _written(frame)
                return site if library is None else f"{site} via {_written(library)}"
            if library is None and not _real(file).startswith(_LIBRARY[2]):
                library = frame
        frame = frame.f_back
    return None if library is None else _written(library)


def site_of(function: Any) -> str | None:
    """Where a function of the user's own begins; None for any other."""
    code = getattr(function, "__code__", None)
    if code is None or _is_ours(code.co_filename) or code.co_filename.startswith(_TORCH) or is_library(code.co_filename):
        return None
    return f"{_short(code.co_filename)}:{code.co_firstlineno}:{code.co_qualname}"


def user_stack() -> list[str]:
    """The user's own frames, innermost first, each as `file:line:function`: in which order a function calls things is told by its lines.

    Without one that leaves a `with`: its line is where that began.
    """
    frames: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    leaves = False
    while frame is not None and len(frames) < _DEEPEST:
        file = frame.f_code.co_filename
        if not _is_ours(file) and not file.startswith(_TORCH) and not is_library(file):
            if not leaves:
                frames.append(_written(frame))
            leaves = False
        leaves |= frame.f_code.co_name in ("__exit__", "__aexit__")
        frame = frame.f_back
    return frames


def user_frame() -> FrameType | None:
    """The innermost frame outside torch and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (_is_ours(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(_TORCH)):
        frame = frame.f_back
    return frame


def names_of(thing: object) -> list[str]:
    """What the user's functions that lead here call it, innermost first: `opt`, `self.opt`, `opts[1]`."""
    found: dict[str, None] = {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not _is_ours(file) and not file.startswith(_TORCH) and not is_library(file):
            for name, value in list(frame.f_locals.items()):
                if value is thing:
                    found[name] = None
                elif type(value) in (list, tuple) and len(value) <= _MOST_LISTED:
                    found |= {f"{name}[{i}]": None for i, item in enumerate(value) if item is thing}
                elif type(value) is dict and len(value) <= _MOST_LISTED:
                    found |= {f"{name}[{key!r}]": None for key, item in value.items() if item is thing and type(key) is str}
            itself = frame.f_locals.get("self")
            found |= {f"self.{name}": None for name, value in list(getattr(itself, "__dict__", {}).items()) if value is thing}
        frame = frame.f_back
    return [name for name in found if not name.startswith("_")]


def wrapper_of(optimizer: Any) -> Any:
    """The object whose method `step` called that of the optimizer, None where there is none."""
    frame = user_frame()
    wrapper = frame.f_locals.get("self") if frame is not None and frame.f_code.co_name == "step" else None
    return None if wrapper is optimizer else wrapper


def _written(frame: FrameType) -> str:
    return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}:{frame.f_code.co_qualname}"


# Asked several times an update, of a handful of files.
@lru_cache(maxsize=4096)
def _real(file: str) -> str:
    return os.path.realpath(file)


@lru_cache(maxsize=4096)
def _short(file: str) -> str:
    for root in (os.path.dirname(_HERE.rstrip(os.sep)) + os.sep,) if file.startswith(_LOOP) else _LIBRARY:
        if file.startswith(root):
            return file[len(root) :]
    try:
        relative = os.path.relpath(file)
    except ValueError:
        return file
    return file if relative.startswith("..") else relative
