"""What a check of the battery comes to: comparisons gathered, the worst of them told with its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


class Unjudged(Exception):
    """A check that cannot be made here; the message says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of one check.

    Attributes:
        detail: One sentence with the numbers.
        evidence: Name with unit -> number.
        note: What was seen that is no matter of clipping, yet must not go unsaid; "" where there is nothing.
    """

    ok: bool
    detail: str
    evidence: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value:.3g}"


def first_line(error: BaseException, longest: int = 160) -> str:
    """An exception in one line; those of PyTorch run to hundreds."""
    text = str(error).strip().splitlines()
    line = text[0].strip() if text else ""
    line = line if len(line) <= longest else f"{line[:longest]}…"
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


@dataclass(frozen=True, slots=True)
class _Comparison:
    case: str
    measured: float
    expected: float
    error: float
    allowed: float

    @property
    def excess(self) -> float:
        return self.error / self.allowed


class Tally:
    """Comparisons of one quantity over many cases.

    Args:
        quantity: What is compared, as it stands in a sentence: "the returned norm".
        right: What holds where all comparisons do; "<quantity> is right" unless given.
    """

    def __init__(self, quantity: str, right: str = "") -> None:
        self._quantity = quantity
        self._right = right or f"{quantity} is right"
        self._num = 0
        self._wrong = 0
        self._worst: _Comparison | None = None

    def compare(self, case: str, measured: float, expected: float, allowed: float) -> None:
        """A measured value against the expected one; `allowed` is relative, absolute where 0 is expected."""
        if measured == expected or (math.isnan(measured) and math.isnan(expected)):
            error = 0.0
        else:
            error = abs(measured - expected) / (abs(expected) or 1.0)
        comparison = _Comparison(case, measured, expected, math.inf if math.isnan(error) else error, allowed)
        self._num += 1
        self._wrong += comparison.error > comparison.allowed
        if self._worst is None or comparison.excess > self._worst.excess:
            self._worst = comparison

    def outcome(self, more: str = "") -> Outcome:
        """The worst comparison in words.

        Args:
            more: Further facts, appended to the sentence of a pass.

        Raises:
            Unjudged: Where nothing was compared.
        """
        worst = self._worst
        if worst is None:
            raise Unjudged("no dtype here can hold such gradients")
        evidence = {
            "relative_error": worst.error,
            "allowed_relative_error": worst.allowed,
            "measured": worst.measured,
            "expected": worst.expected,
            "num_cases": float(self._num),
            "num_wrong": float(self._wrong),
        }
        if self._wrong:
            apart = f"off by {number(worst.error)} where {number(worst.allowed)} is allowed"
            detail = f"{self._quantity} is {worst.measured:.6g}, expected {worst.expected:.6g}: {apart} ({worst.case})"
            detail += f"; wrong in {self._wrong} of {self._num} cases" if self._num > 1 else ""
            return Outcome(False, detail, evidence)
        limit = f"relative error {number(worst.error)} of {number(worst.allowed)} allowed" if worst.error else "no difference at all"
        if self._num == 1:
            said = f" ({worst.case}): {limit}"
        elif worst.error:
            said = f" in {self._num} cases; nearest to its limit: {worst.case}, {limit}"
        else:
            said = f" in {self._num} cases: {limit}"
        return Outcome(True, f"{self._right}{said}{more}", evidence)
