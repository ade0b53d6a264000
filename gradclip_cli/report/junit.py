"""The report for continuous integration: JUnit XML, a test suite a target, a test case a check."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from gradclip_cli.model.check import Check, Status, Suite
from gradclip_cli.report.escape import visible


def render_junit(suites: Sequence[Suite]) -> str:
    """XML that holds against both schemas in use, that of Ant (Windy Road, the stricter one) and that of Jenkins.

    A failure that counts is a `failure`; what is required and could not be judged is an `error`; any
    other check that could not judge is `skipped`, with its reason. Warnings and infos do not fail
    their test case; they stand in the suite's `system-out`, and so do its notes. Characters XML cannot hold are spelled out.
    """
    root = ET.Element("testsuites")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    for index, suite in enumerate(suites):
        checks = suite.checks
        element = ET.SubElement(
            root,
            "testsuite",
            name=_token(suite.name),
            package="gradclip",
            id=str(index),
            timestamp=now,
            # The name of the machine is nobody's business; the schema wants something here.
            hostname="localhost",
            tests=str(len(checks)),
            failures=str(sum(c.counts for c in checks)),
            errors=str(sum(c.missing for c in checks)),
            skipped=str(sum(c.status is Status.SKIP and not c.missing for c in checks)),
            time=_seconds(sum(c.seconds or 0.0 for c in checks)),
        )
        ET.SubElement(element, "properties")
        for check in checks:
            _case(element, suite, check)
        told = [f"{c.severity.value}: {c.title}: {c.detail}" for c in checks if c.status is Status.FAIL and not c.counts]
        told += [f"note: {note}" for note in suite.notes]
        ET.SubElement(element, "system-out").text = "".join(f"{visible(line)}\n" for line in told)
        ET.SubElement(element, "system-err")
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _case(parent: ET.Element, suite: Suite, check: Check) -> None:
    case = ET.SubElement(
        parent, "testcase", name=_token(check.title), classname=f"gradclip.{_token(suite.name)}", time=_seconds(check.seconds or 0.0)
    )
    detail, kind = visible(check.detail), visible(check.id)
    if check.counts:
        where = f"{visible(check.file)}:{check.line or 1}: " if check.file else ""
        numbers = "".join(f"\n{visible(name)} = {value}" for name, value in check.evidence.items())
        ET.SubElement(case, "failure", message=detail, type=kind).text = f"{where}{detail}{numbers}"
    elif check.missing:
        ET.SubElement(case, "error", message=detail, type=kind).text = detail
    elif check.status is Status.SKIP:
        ET.SubElement(case, "skipped", message=detail)


def _token(text: str) -> str:
    """At least one character, without white space at the ends: what the schema calls a token."""
    return " ".join(visible(text).split()) or "-"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}"
