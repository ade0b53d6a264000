"""One watched training: a run directory, and what no recorder sees."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from gradclip_cli.model.probe import Planted
from gradclip_cli.probe.conditions import Conditions
from gradclip_cli.probe.subject import Subject
from gradclip_cli.probe.training import Update, prepared, train
from gradclip_cli.watch import Watcher


@dataclass(frozen=True, eq=False)
class Trained:
    """What became of it.

    Attributes:
        updates: Every attempt, in order.
        num_parameters: Of the model.
        optimizer, lr: Its class; its learning rate, of the first group.
    """

    subject: str
    updates: tuple[Update, ...]
    num_parameters: int
    optimizer: str
    lr: float


def run_probe(
    build: Callable[[], Subject],
    conditions: Conditions,
    planted: Sequence[Planted],
    directory: Path,
    *,
    command: Sequence[str] = (),
    on_update: Callable[[Update], None] = lambda update: None,
    on_problem: Callable[[str], None] | None = None,
) -> Trained:
    """Train once, watched as any loop is. The same seed gives the same training, on a CPU bit for bit.

    Args:
        build: Makes the subject; called with every source of chance set to the seed.
        directory: The run directory to make. Its header says what was planted.

    Raises:
        GradclipError: A recorded run lies there, or as `train`.
        KeyboardInterrupt: Behind the update in which it was asked for; all updates so far are recorded.
    """
    set_seed(conditions.seed)
    subject = build()
    header = {"probe": {"subject": subject.name, "planted": [asdict(p) for p in planted]}}
    updates = []
    num_parameters = sum(p.numel() for p in subject.model.parameters())
    with Watcher(directory, command=list(command), header=header, on_problem=on_problem), _between_updates() as check_interrupt:
        model, optimizer = prepared(subject, conditions)
        lr = float(optimizer.param_groups[0]["lr"])
        for update in train(subject, model, optimizer, conditions, planted):
            updates.append(update)
            on_update(update)
            check_interrupt()
    return Trained(subject.name, tuple(updates), num_parameters, type(optimizer).__name__, lr)


def set_seed(seed: int) -> None:
    """Of every source of chance.

    Args:
        seed: Below 2**32.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def _between_updates() -> Iterator[Callable[[], None]]:
    """Hold an interrupt back until it is asked for: within an update it could tear a block that is being written. A second one is not.

    A request to end (a cancelled job, a closed terminal) is one, unless it is to be ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    asked = False

    def on_signal(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    before = {n: h for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if (h := signal.getsignal(n)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, on_signal)
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
