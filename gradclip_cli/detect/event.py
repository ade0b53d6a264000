"""A loss spike in the making."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Event:
    """Rows first .. end - 1; `end` is n while it is open. Other names as in `model.Spike` and `rises.Rise`."""

    first: int
    end: int
    alarmed: int  # last alarm of its first stretch
    led: bool
    level: float
    height: float
    scale: float
    fallen: float
    expected: float  # loss at the end of the log, had the event not been
    peak: int = 0
    recovered: bool | None = True
    excess: float = 0.0
    fatal: bool = False
