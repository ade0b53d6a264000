"""What the reports of `gradclip verify` for people share in words."""

from __future__ import annotations

from gradclip_cli.model.check import Check, Judgement, Suite, Verification
from gradclip_cli.model.finding import Finding
from gradclip_cli.report.check_wording import EXIT_STATUS, TITLE, Row, tally, word
from gradclip_cli.wording import count, id_ranges


def title(verification: Verification) -> str:
    """PASS, FAIL or CANNOT JUDGE."""
    return TITLE[Judgement(verification.verdict)]


def target(verification: Verification) -> str:
    """On what was judged, a line."""
    t = verification.target
    parts = [t.device, t.dtype, count(t.world_size, "rank"), f"torch {t.torch.partition('+')[0]}" if t.torch else None]
    if verification.updates is not None:
        parts.append(count(verification.updates, "update"))
    return ", ".join(p for p in parts if p)


_ORDER = ("FAIL", "MISSING", "warn", "note", "pass", "skip")


def table(verification: Verification) -> list[Row]:
    """What became of the checks: failures first, what could not be judged last; those with the same to say together."""
    by_answer: dict[tuple[str, str], list[Check]] = {}
    for check in verification.checks:
        by_answer.setdefault((word(check), check.detail), []).append(check)
    rows = [
        Row(said, f"{checks[0].id} {checks[0].name}" if len(checks) == 1 else id_ranges([c.id for c in checks]), detail)
        for (said, detail), checks in by_answer.items()
    ]
    return sorted(rows, key=lambda r: _ORDER.index(r.word))


def rules(verification: Verification) -> list[Finding]:
    """A finding for each rule that was broken and is no check itself, in the order found."""
    ids = {c.id for c in verification.checks}
    return list({f.rule: f for f in verification.findings if f.rule not in ids}.values())


def verdict_line(verification: Verification) -> str:
    """The answer with its exit status and the numbers of checks."""
    judgement = Judgement(verification.verdict)
    return f"{TITLE[judgement]}, exit status {EXIT_STATUS[judgement]}: {tally(_suite(verification))}"


def _suite(verification: Verification) -> Suite:
    return Suite(verification.source, verification.checks)
