"""The report of `gradclip verify` taken over into a check: its checks, judged by the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradclip_cli.model.check import Check, Status, Suite
from gradclip_cli.model.finding import Severity
from gradclip_cli.policy.judge import strict
from gradclip_cli.policy.policy import Policy

SCHEMA = "gradclip.verify/1"


@dataclass(frozen=True, slots=True)
class _Named:
    """A finding's rule, as far as a policy must know it."""

    id: str
    name: str
    severity: Severity


def verified(name: str, document: Any, policy: Policy) -> Suite:
    """A suite of what a `gradclip.verify/1` document reports.

    A check is named by its rule, or, in the device battery, by an id of its own; a failed one has a finding,
    which tells the rule it stands for.

    Raises:
        ValueError: Where it is none; says what is wrong with it.
    """
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"no {SCHEMA} document")
    raw_checks, findings = _objects(document, "checks"), _objects(document, "findings")
    if document.get("verdict") == "fail" and not any(raw.get("status") == Status.FAIL for raw in raw_checks):
        raise ValueError("the verdict is fail, and no check failed")
    checks = [c for raw in raw_checks if (c := _check(raw, _finding_of(raw, findings), policy)) is not None]
    notes = tuple(str(n) for n in document.get("notes") or ())
    if document.get("verdict") not in ("pass", "fail"):
        reason = "; ".join(notes) or "verify could not judge"
        checks.append(Check("verdict", "verdict", Status.SKIP, reason, required=True))
        notes = ()
    return Suite(name, strict(checks) if policy.strict else tuple(checks), notes)


def _objects(document: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    values = document.get(key)
    if not isinstance(values, list) or not all(isinstance(v, dict) for v in values):
        raise ValueError(f"{key} is no list of objects")
    return values


def _finding_of(raw: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The gravest finding of a check: by its rule, or by the check's title before the message."""
    title = f"{raw.get('id')} {raw.get('name')}: "
    mine = [f for f in findings if f.get("rule") == raw.get("id") or str(f.get("message")).startswith(title)]
    return min(mine, key=lambda f: list(Severity).index(Severity(str(f.get("severity")))), default=None)


def _check(raw: Mapping[str, Any], finding: Mapping[str, Any] | None, policy: Policy) -> Check | None:
    """One check with the finding that belongs to it; None where its rule is not selected."""
    severity = Severity.ERROR if finding is None else Severity(str(finding.get("severity")))
    rule = _Named(str((finding or raw).get("rule", raw.get("id"))), str((finding or raw).get("name")), severity)
    # A check of the battery that did not fail does not say which rule it stands for.
    if rule.id.startswith("GC") and policy.bar(rule) is None:
        return None
    evidence = raw.get("evidence")
    if not isinstance(evidence, dict):
        raise ValueError("evidence is no object")
    return Check(
        str(raw.get("id")),
        str(raw.get("name")),
        Status(str(raw.get("status"))),
        str(raw.get("detail") or ""),
        {str(name): float(value) for name, value in evidence.items()},
        Severity.ERROR if finding is None or policy.counts(rule, severity) else severity,
        file=raw.get("file"),
        line=raw.get("line"),
    )
