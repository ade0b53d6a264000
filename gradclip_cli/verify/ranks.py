"""The process group a check of several ranks runs in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class Parted(Exception):
    """Ranks met at different places: some had left a check early.

    Attributes:
        others: What those gave that were not where this rank is, by rank.
    """

    def __init__(self, others: dict[int, Any]) -> None:
        super().__init__(f"ranks {', '.join(map(str, others))} are elsewhere")
        self.others = others


@dataclass(frozen=True, slots=True)
class Ranks:
    """This rank among the others."""

    rank: int
    world_size: int

    def gather(self, value: Any, place: str = "check") -> list[Any]:
        """What every rank gave, by rank. A collective.

        Args:
            place: Where this rank is.

        Raises:
            Parted: Where another one is elsewhere; every rank gets to know.
        """
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, (place, value))
        if others := {r: v for r, (where, v) in enumerate(gathered) if where != place}:
            raise Parted(others)
        return [v for _, v in gathered]


def backend(device: torch.device) -> str:
    """Objects are exchanged on the CPU, gradients where they are."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def join(device: torch.device, timeout_s: float, **rendezvous: Any) -> Ranks:
    """Form the process group.

    Args:
        rendezvous: As `init_process_group` takes it; nothing under `torchrun`.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend(device), timeout=timedelta(seconds=timeout_s), **rendezvous)
    return Ranks(dist.get_rank(), dist.get_world_size())
