"""What rules say of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Not every command that tells findings has these.
    from gradclip_cli.model.detection import Detection
    from gradclip_cli.model.run import Run
    from gradclip_cli.model.threshold import Effect, WhatIf


class Verdict(StrEnum):
    """The worst that holds for a run; see `gradclip explain verdicts`."""

    STABLE = "stable"
    EXPLODED = "exploded"
    SPIKED = "spiked"
    NONFINITE = "nonfinite"
    DIVERGED = "diverged"
    CANNOT_JUDGE = "cannot-judge"


class Severity(StrEnum):
    """How much a finding weighs; `info` never counts against a run."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Lead:
    """The explosion that preceded a spike. Steps are None where the log has none."""

    rule: str
    first_step: int | None
    lead_steps: int | None


@dataclass(frozen=True, slots=True)
class Hit:
    """What a rule function yields; the engine adds id, name and severity from the table.

    Attributes:
        message: One sentence for people.
        first_step, last_step: As `Series.steps` counts (rows where steps are unknown; the engine
            turns those into None), or None where no place applies.
        evidence: Name with unit -> number.
        severity: When it differs from the rule's own.
        place: File and line in the user's code.
    """

    message: str
    first_step: int | None = None
    last_step: int | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)
    led_by: Lead | None = None
    severity: Severity | None = None
    place: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A hit with its rule. `evidence` numbers may be nan or inf; `what_if` is there where somebody asked."""

    rule: str
    name: str
    severity: Severity
    message: str
    first_step: int | None
    last_step: int | None
    evidence: Mapping[str, float]
    led_by: Lead | None = None
    what_if: Effect | None = None
    place: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A rule that could not judge, and why."""

    rule: str
    reason: str


@dataclass(frozen=True, eq=False, slots=True)
class Analysis:
    """A run and everything that was found in it: what reports are made of."""

    run: Run
    detection: Detection
    verdict: Verdict
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    what_if: WhatIf | None = None
