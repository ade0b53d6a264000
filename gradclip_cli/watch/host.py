"""Numbers that lie on devices, brought to the host: all of a block at once, in one copy for each device and type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Vector = npt.NDArray[np.float64]


class Progress:
    """How far each CUDA stream had come when an update was over.

    A script may train in streams of its own, and another one may be current when a block is read. That one waits for what it reads, and for
    nothing that came after: a transfer that a later call of the script completes would never end.
    """

    def __init__(self) -> None:
        self._reached: dict[torch.cuda.Stream, torch.cuda.Event] = {}

    def mark(self, tensors: Iterable[torch.Tensor]) -> None:
        """What made these has been sent to the streams that are current now."""
        for device in {t.device for t in tensors if t.is_cuda}:
            stream = torch.cuda.current_stream(device)
            self._reached.setdefault(stream, torch.cuda.Event()).record(stream)

    def wait(self, device: torch.device) -> None:
        """Let what comes next in the stream that is current now run behind all that was marked on its device."""
        for stream, event in self._reached.items():
            if stream.device == device:
                torch.cuda.current_stream(device).wait_event(event)


class Host:
    """What tensors hold.

    Args:
        scalars: Asked for by the very tensor; of one with several elements the first.
        vectors: Given back in their order, as `vectors`, float64.
        progress: Of the streams they were made in.
    """

    def __init__(self, scalars: Sequence[torch.Tensor], vectors: Sequence[torch.Tensor], progress: Progress) -> None:
        fetched = _fetched([*map(_local_scalar, scalars), *vectors], progress)
        self._scalars = dict(zip(map(id, scalars), fetched[: len(scalars)], strict=True))
        self.vectors = fetched[len(scalars) :]

    def __call__(self, value: Any, default: float = math.nan) -> float:
        """A number, or what a tensor that was named holds."""
        if value is None:
            return default
        if not isinstance(value, torch.Tensor):
            return float(value)
        held = self._scalars[id(value)]
        return float(held[0]) if len(held) else math.nan


def _local_scalar(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    return (value.to_local() if hasattr(value, "to_local") else value).reshape(-1)[:1]


def _fetched(vectors: Sequence[torch.Tensor], progress: Progress) -> list[Vector]:
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, v in enumerate(vectors):
        groups.setdefault((v.device, v.dtype), []).append(i)
    copies = []
    for (device, _), members in groups.items():
        progress.wait(device)
        # A copy that waited by itself would be told of, or refused, where the script has asked for that (`set_sync_debug_mode`).
        copies.append(torch.cat([vectors[i] for i in members]).to("cpu", non_blocking=device.type == "cuda"))
    for device in {d for d, _ in groups if d.type == "cuda"}:
        torch.cuda.current_stream(device).record_event().synchronize()
    out: list[Vector] = [np.empty(0)] * len(vectors)
    for members, copy in zip(groups.values(), copies, strict=True):
        ends = np.cumsum([len(vectors[i]) for i in members])
        for i, part in zip(members, np.split(copy.double().numpy(), ends[:-1]), strict=True):
            out[i] = part
    return out
