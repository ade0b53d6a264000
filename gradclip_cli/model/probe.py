"""What `gradclip probe` did: what was planted, and the twins side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradclip_cli.model.finding import Analysis
from gradclip_cli.model.run import Steps, Values


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault and where it was planted.

    Attributes:
        kind: As `gradclip probe --list-faults` names it.
        step, last_step: Optimizer updates, inclusive; the same but for faults that last.
        size: In the unit of its kind; None for a kind without.
    """

    kind: str
    step: int
    last_step: int
    size: float | None

    def __str__(self) -> str:
        return f"{self.kind}@{self.step}" + ("" if self.size is None else f":{self.size:g}")


@dataclass(frozen=True, slots=True)
class Sighting:
    """Which findings begin where a fault was planted, give or take an update.

    Attributes:
        found: Rule and its first step, in the order of the rules; empty where nothing was seen there.
    """

    planted: Planted
    found: tuple[tuple[str, int], ...]


@dataclass(frozen=True, eq=False)
class Twin:
    """One of several trainings that differ in `max_norm` alone.

    Attributes:
        label: As asked for: "none", "1.0", "suggested".
        max_norm: inf where the norm was only measured.
        analysis: Of the recorded run.
        sightings: What became of each planted fault.
        steps, moved: Updates, and how far each moved the parameters (L2 norm of their change), shape (n,).
        final_loss: Mean over the last tenth of the updates (ten at least), without dropped batches and planted faults; nan where the
            run was given up.
        worst_update, worst_step: The largest movement behind the first tenth, and where; nan and 0 where there is none.
        num_clipped: Updates whose norm lay above `max_norm`.
        num_dropped: Batches dropped because their gradient was not finite.
        recovered: Whether the loss came back from every spike; None where it had none, or the run ends too soon to tell.
        step_s: Median seconds an update took.
        ended: How it ended, "" where it made all its updates.
    """

    label: str
    max_norm: float
    analysis: Analysis
    sightings: tuple[Sighting, ...]
    steps: Steps
    moved: Values
    final_loss: float
    worst_update: float
    worst_step: int
    num_clipped: int
    num_dropped: int
    recovered: bool | None
    step_s: float
    ended: str = ""


@dataclass(frozen=True, eq=False)
class Probe:
    """Everything `gradclip probe` reports.

    Attributes:
        source: The run directory, or the one that holds those of the twins.
        subject: What was trained, for people.
        num_parameters: Of the model.
        conditions: Under which: steps, lr, optimizer, dtype, ...
        planted: The faults; the same in every twin.
        twins: At least one.
        comparison: What clipping did and did not change, a sentence for each twin but the one compared with.
        notes: What was left out and why.
    """

    source: str
    subject: str
    num_parameters: int
    conditions: Mapping[str, str | int | float]
    planted: tuple[Planted, ...]
    twins: tuple[Twin, ...]
    comparison: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
