"""Sharing the work among the processes that `torchrun` started; alone, everything here does nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from gradclip_cli.errors import GradclipError

_STARTED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# For a peer that reads a slower disk, not for one that died: torchrun ends the others then.
_PATIENCE = timedelta(hours=2)


class Ranks:
    """The processes of one job. Sums are of numbers of which all ranks but one hold a zero, so they are exact in any order.

    Attributes:
        rank, world_size: 0 and 1 where there is one process.
    """

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size = rank, world_size

    def join(self, array: npt.NDArray[Any]) -> None:
        """Add up an array over all ranks, in place."""
        if self.world_size > 1 and array.size:
            import torch
            import torch.distributed as dist

            dist.all_reduce(torch.from_numpy(array))

    def raise_any(self, error: GradclipError | None) -> None:
        """Raise on all ranks what went wrong on one, so that none waits for the others.

        Raises:
            GradclipError: That of the lowest rank which has one.
        """
        said = [(error.message, error.hint) if error else None]
        if self.world_size > 1:
            import torch.distributed as dist

            said = [None] * self.world_size
            dist.all_gather_object(said, (error.message, error.hint) if error else None)
        for words in said:
            if words is not None:
                raise GradclipError(words[0], hint=words[1])

    def agree(self, seen: object) -> None:
        """Check that all ranks see the same, by its `repr`.

        Raises:
            GradclipError: They do not.
        """
        if self.world_size == 1:
            return
        import hashlib

        fingerprint = hashlib.sha256(repr(seen).encode("utf-8", "surrogateescape")).digest()
        numbers = np.frombuffer(fingerprint[:16], np.uint8).astype(np.int64)
        added = numbers.copy()
        self.join(added)
        differs = np.array([int((added != numbers * self.world_size).any())])
        self.join(differs)
        if differs[0]:
            raise GradclipError(
                "the ranks do not see the same files of gradients; expected one directory that all of them can read",
                hint="use a shared file system, or one process",
            )


@contextmanager
def started_ranks() -> Iterator[Ranks]:
    """The ranks of this job: those of `torchrun`, or this process alone.

    Raises:
        GradclipError: torchrun started several processes, and torch cannot be imported or they do not find each other.
    """
    told = os.environ["WORLD_SIZE"] if all(k in os.environ for k in _STARTED) else "1"
    world_size = int(told) if told.isdecimal() else 1
    if world_size < 2:
        yield Ranks()
        return
    try:
        import torch.distributed as dist
    except ImportError as e:
        raise GradclipError("several ranks were started and torch is missing; expected it", hint="pip install 'gradclip-cli[torch]'") from e
    try:
        dist.init_process_group("gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as e:
        first = (str(e).splitlines() or [""])[0]
        raise GradclipError(f"the {world_size} ranks did not find each other ({first}); expected what torchrun sets up") from e
    try:
        yield Ranks(dist.get_rank(), world_size)
    finally:
        dist.destroy_process_group()
