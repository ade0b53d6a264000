"""Checks with a status each: what `verify` and `check` report, and what JUnit and workflow annotations are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        severity: Of a failure: an error counts, a warning or info is told and no more.
        required: Without it there is no verdict: as a skip it leaves the whole unjudged.
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
    required: bool = False

    @property
    def title(self) -> str:
        """Id and name; once where they are the same."""
        return self.id if self.id == self.name else f"{self.id} {self.name}"

    @property
    def counts(self) -> bool:
        """Whether it fails the whole."""
        return self.status is Status.FAIL and self.severity is Severity.ERROR

    @property
    def missing(self) -> bool:
        """Whether it leaves the whole unjudged."""
        return self.status is Status.SKIP and self.required


class Judgement(StrEnum):
    """What a set of checks comes to."""

    PASS = "pass"
    FAIL = "fail"
    CANNOT_JUDGE = "cannot-judge"


@dataclass(frozen=True, slots=True)
class Suite:
    """Checks of one target: a run, a script, a device.

    Attributes:
        name: The target as people know it.
        notes: What could not be seen, or was guessed, one sentence each.
    """

    name: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()

    @property
    def judgement(self) -> Judgement:
        """A failure that counts is the answer, whatever else could not be judged; without one, nothing that is required may be missing."""
        if any(c.counts for c in self.checks):
            return Judgement.FAIL
        if any(c.missing for c in self.checks) or not any(c.status is Status.PASS for c in self.checks):
            return Judgement.CANNOT_JUDGE
        return Judgement.PASS


def overall(suites: Sequence[Suite]) -> Judgement:
    """The worst of several: fail, then cannot-judge, then pass; without any, cannot-judge."""
    found = {s.judgement for s in suites}
    order = (Judgement.FAIL, Judgement.CANNOT_JUDGE, Judgement.PASS)
    return next((j for j in order if j in found), Judgement.CANNOT_JUDGE)


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

    @property
    def suite(self) -> Suite:
        """The checks as a suite whose judgement is the verdict: one that could not be reached is a check that is missing."""
        suite = Suite(self.source, self.checks, self.notes)
        if self.verdict != Judgement.CANNOT_JUDGE or suite.judgement is Judgement.CANNOT_JUDGE:
            return suite
        missing = Check("verdict", "verdict", Status.SKIP, "; ".join(self.notes) or "could not be judged", required=True)
        return Suite(self.source, (missing, *self.checks))
