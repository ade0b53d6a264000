"""Signals that come while something is being written.

A SIGTERM without a handler still takes with it what waits to be written. A handler of ours that saved it would be called only once the main
thread is back in Python: a rank that waits in a collective for one that has failed would live on until somebody kills it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Those that stop and tell programs; to ask for every one there is takes longer than what is written.
_TOLD = [
    number
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM")
    if (number := getattr(signal, name, None)) is not None
]


@contextmanager
def signals_wait() -> Iterator[None]:
    """What Python does at a signal (raise `KeyboardInterrupt`, call a handler of the script's) it does when this is left.

    A signal that has no handler does what it always does: it ends the process at once.
    """
    if threading.current_thread() is not threading.main_thread():
        # No handler is called in another one.
        yield
        return
    came: list[int] = []
    waits = True
    handlers = {number: handler for number in _TOLD if callable(handler := signal.getsignal(number))}

    def handle(number: int, frame: FrameType | None) -> None:
        if waits:
            came.append(number)
        else:
            handlers[number](number, frame)

    try:
        for number in handlers:
            signal.signal(number, handle)
        yield
    finally:
        # From here on `handle` is as good as what stood there: a handler that raises may leave some of it behind.
        waits = False
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(came):
            signal.raise_signal(number)
