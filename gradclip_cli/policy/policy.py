"""The policy in force, and which findings count under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gradclip_cli.model.finding import Severity
from gradclip_cli.model.run import GRAD_NORM, LOSS

_ORDER = list(Severity)


class Known(Protocol):
    """A rule as far as a policy knows it."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def severity(self) -> Severity: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """What is asked of a run. A field a key of the configuration file; see `settings.SETTINGS` for what each means.

    Attributes:
        origins: Key -> where its value came from; keys left at their default are absent.
    """

    select: tuple[str, ...] = ("GC",)
    ignore: tuple[str, ...] = ()
    fail_on: Severity = Severity.ERROR
    strict: bool = False
    require: tuple[str, ...] = (LOSS, GRAD_NORM)
    min_steps: int = 30
    max_clipped_fraction: float | None = None
    max_exploding_per_1000: float | None = None
    max_norm: float | None = None
    baseline: Path | None = None
    tolerance: float = 0.1
    loss: str | None = None
    grad_norm: str | None = None
    lr: str | None = None
    step: str | None = None
    runs: tuple[Path, ...] = ()
    preflight: tuple[tuple[str, ...], ...] = ()
    timeout: float = 1800.0
    folder: Path = Path()
    origins: Mapping[str, str] = field(default_factory=dict)

    def bar(self, rule: Known) -> Severity | None:
        """The least severity at which a finding of this rule counts; None where the rule is not selected.

        A rule that `select` names in full counts from its own severity on, whatever `fail-on` says:
        who names always-clipping, a warning, wants it to fail.
        """
        if any(matches(token, rule) for token in self.ignore):
            return None
        matching = [token for token in self.select if matches(token, rule)]
        if not matching:
            return None
        named = any(token.lower() in (rule.id.lower(), rule.name) for token in matching)
        return max(self.fail_on, rule.severity, key=_ORDER.index) if named else self.fail_on

    def counts(self, rule: Known, severity: Severity) -> bool:
        """Whether a finding of this severity fails the check."""
        bar = self.bar(rule)
        return bar is not None and _ORDER.index(severity) <= _ORDER.index(bar)


def matches(token: str, rule: Known) -> bool:
    """Whether an id, the beginning of one, or a name means this rule."""
    return rule.id.lower().startswith(token.lower()) or rule.name == token.lower()
