"""What the reports of `gradclip check` share in words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from gradclip_cli.model.check import Check, Judgement, Status, Suite, overall
from gradclip_cli.model.finding import Severity
from gradclip_cli.wording import NUMBERED, count, cut, id_ranges

EXIT_STATUS = {Judgement.PASS: 0, Judgement.FAIL: 1, Judgement.CANNOT_JUDGE: 3}
TITLE = {Judgement.PASS: "PASS", Judgement.FAIL: "FAIL", Judgement.CANNOT_JUDGE: "CANNOT JUDGE"}


@dataclass(frozen=True, slots=True)
class InForce:
    """A setting with its value (a number, a text, a path, None or a tuple of such) and where that came from."""

    key: str
    value: object
    origin: str


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: what became of a check, or of several with the same to say."""

    word: str
    check: str
    detail: str


def word(check: Check) -> str:
    """One word for what became of a check: FAIL counts, MISSING leaves the whole unjudged."""
    if check.status is Status.PASS:
        return "pass"
    if check.status is Status.SKIP:
        return "MISSING" if check.missing else "skip"
    return "FAIL" if check.counts else "warn" if check.severity is not Severity.INFO else "note"


_WORDS = ("FAIL", "MISSING", "warn", "note")


def rows(suite: Suite) -> list[Row]:
    """The table of a suite, the gravest first: what failed or is told, then skips by reason, then what passed, by id."""
    by_word: dict[str, list[Check]] = {}
    for check in suite.checks:
        by_word.setdefault(word(check), []).append(check)
    table = [Row(w, c.title, c.detail) for w in _WORDS for c in by_word.get(w, ())]
    by_reason: dict[str, list[Check]] = {}
    for c in by_word.get("skip", ()):
        by_reason.setdefault(c.detail, []).append(c)
    table += [Row("skip", cs[0].title if len(cs) == 1 else id_ranges([c.id for c in cs]), reason) for reason, cs in by_reason.items()]
    # Where a rule or a check of the device battery passed, its number is all there is to say.
    passed = by_word.get("pass", ())
    table += [Row("pass", c.title, c.detail) for c in passed if not NUMBERED.fullmatch(c.id)]
    if numbered := [c.id for c in passed if NUMBERED.fullmatch(c.id)]:
        table.append(Row("pass", count(len(numbered), "check"), id_ranges(numbered)))
    return table


def tally(suite: Suite) -> str:
    """How many checks came to what: "2 of 21 checks failed, 4 could not judge, 1 warning"."""
    words = [word(c) for c in suite.checks]
    parts = [f"{words.count('FAIL')} of {count(len(words), 'check')} failed" if "FAIL" in words else f"{words.count('pass')} passed"]
    if missing := words.count("MISSING"):
        parts.append(f"{missing} required but not judged")
    if told := words.count("warn"):
        parts.append(count(told, "warning"))
    if skipped := words.count("skip"):
        parts.append(f"{skipped} skipped")
    return ", ".join(parts)


def notes(suite: Suite) -> list[str]:
    """What could not be seen, a long list cut. They may quote the source and must be escaped."""
    return cut(suite.notes)


def shown(value: object) -> str:
    """The value of a setting for people."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ", ".join(shlex.join(v) if isinstance(v, tuple) else str(v) for v in value) or "-"
    return "-" if value is None else str(value)


def verdict_line(suites: Sequence[Suite]) -> str:
    """The answer to all of it, with the exit status."""
    judgement = overall(suites)
    num = [sum(s.judgement is j for s in suites) for j in (Judgement.FAIL, Judgement.CANNOT_JUDGE, Judgement.PASS)]
    words = ("failed", "could not be judged", "passed")
    what = ", ".join(f"{n} {w}" for n, w in zip(num, words, strict=True) if n)
    of = f" ({what})" if len(suites) > 1 else ""
    return f"{TITLE[judgement]}{of}, exit status {EXIT_STATUS[judgement]}"
