"""One of several local ranks: `python -m gradclip_cli.verify.rank_process`, started and watched by `gradclip_cli.verify.local`."""

from __future__ import annotations

import base64
import contextlib
import faulthandler
import importlib
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from gradclip_cli.verify.bench import Bench
from gradclip_cli.verify.clip import ClipRaised
from gradclip_cli.verify.device import resolve_device
from gradclip_cli.verify.judge import answer
from gradclip_cli.verify.local import Job
from gradclip_cli.verify.outcome import first_line
from gradclip_cli.verify.ranks import join
from gradclip_cli.verify.table import TRIALS

# The process that started this one ends hung ranks itself; the group's own time-out comes later, for when it could not.
_LATER_S = 30.0
# What checks would import in their own time, which is limited.
_LOADED_LATE = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel")


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Join the group and make the checks of the job that stands on standard input; a line in the journal for each begin and end."""
    job: Job = pickle.loads(base64.b64decode(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(job.num_threads)
    for module in _LOADED_LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    directory = Path(job.directory)
    with contextlib.ExitStack() as stack:
        if hasattr(signal, "SIGUSR1"):
            stacks = stack.enter_context((directory / f"rank-{job.rank}.stacks").open("wb"))
            faulthandler.register(signal.SIGUSR1, file=stacks)
        journal = stack.enter_context((directory / f"rank-{job.rank}.journal").open("ab", buffering=0))

        def note(kind: str, trial: str, value: Any = None) -> None:
            journal.write(base64.b64encode(pickle.dumps((kind, trial, value))) + b"\n")

        options = job.options
        device = resolve_device(options.device, job.rank)
        where = {"init_method": f"file://{directory / 'rendezvous'}", "rank": job.rank, "world_size": job.world_size}
        group = join(device, options.timeout_s + _LATER_S, **where)
        bench = Bench(device, job.dtypes, options.max_norm, options.elements, options.clip, group)
        trials = {t.id: t for t in TRIALS}
        for trial in job.ids:
            note("begin", trial)
            begin = time.perf_counter()
            try:
                status, outcome = answer(trials[trial], bench)
            except ClipRaised as e:
                note("raised", trial, (str(e), True))
                break
            except Exception as e:  # noqa: BLE001 - the other ranks decide what it means
                note("raised", trial, (first_line(e), False))
                break
            note("end", trial, (status, outcome, time.perf_counter() - begin))
        # To wait for the end rather than to leave: a rank that leaves early looks like one that died.
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
