"""Checks with a status each: what `verify` and `check` report, and what JUnit and workflow annotations are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gradclip_cli.model.finding import Finding, Severity


class Status(StrEnum):
    """What became of one check."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        id: Stable: a rule id, or an id of the device battery.
        name: What it is called, lower-case with hyphens.
        detail: One sentence: the evidence, or why it was skipped.
        evidence: Name with unit -> number.
        severity: Of a failure; a warning or info counts only where the caller says so.
        file, line: Where in the user's code, if anywhere (line counted from 1).
        seconds: How long it took, where that means something.
    """

    id: str
    name: str
    status: Status
    detail: str
    evidence: Mapping[str, float] = field(default_factory=dict)
    severity: Severity = Severity.ERROR
    file: str | None = None
    line: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Suite:
    """Checks of one target: a run, a script, a device.

    Attributes:
        name: The target as people know it.
    """

    name: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """What `verify` judged on."""

    device: str
    world_size: int
    torch: str
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `verify`, of a script or of the device.

    Attributes:
        source: The script, or "device battery".
        updates: Optimizer updates watched; None for the battery.
        verdict: "pass", "fail" or "cannot-judge".
        notes: What could not be seen, one sentence each.
    """

    source: str
    target: Target
    updates: int | None
    verdict: str
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
