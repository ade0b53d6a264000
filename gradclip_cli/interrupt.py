"""Ctrl-C while modules are imported: there Python may lose an interrupt, or answer it with a traceback."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def end_at_once() -> Iterator[None]:
    """Within this Ctrl-C ends the process where it is; for imports, which leave nothing to tidy up.

    Whoever handles interrupts otherwise, or ignores them (`nohup`), keeps to that.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(signum: int, frame: FrameType | None) -> None:
    # Not through `sys.stderr`: the signal may have come in the middle of a write to it.
    os.write(2, b"gradclip: interrupted\n")
    os._exit(130)
