"""JUnit XML and workflow annotations, which `verify` prints as well, and the tables of `gradclip check`."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as ET

import pytest

from gradclip_cli.model.check import Check, Status, Suite
from gradclip_cli.model.finding import Severity
from gradclip_cli.report.check import CHECK_FORMATS, InForce, render_policy
from gradclip_cli.report.check_text import render_check_text
from gradclip_cli.report.github import render_github
from gradclip_cli.report.junit import render_junit

# The schema of Ant's JUnit reports, the strictest in use: element -> required and optional attributes with the form of each,
# children in their order ("*" any number, "|" at most one of these).
_TOKEN = r"(?!\s)(?=.)[^\n\t]*(?<!\s)"
_INT, _DECIMAL, _STRING = r"\d+", r"\d+\.\d+", r"[\s\S]*"
SCHEMA = {
    "testsuites": ({}, {}, ["testsuite*"]),
    "testsuite": (
        {
            "name": _TOKEN,
            "package": _TOKEN,
            "id": _INT,
            "timestamp": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d",
            "hostname": _TOKEN,
            "tests": _INT,
            "failures": _INT,
            "errors": _INT,
            "time": _DECIMAL,
        },
        {"skipped": _INT},
        ["properties", "testcase*", "system-out", "system-err"],
    ),
    "properties": ({}, {}, []),
    "testcase": ({"name": _TOKEN, "classname": _TOKEN, "time": _DECIMAL}, {}, ["skipped|error|failure"]),
    "failure": ({"type": _STRING}, {"message": _STRING}, []),
    "error": ({"type": _STRING}, {"message": _STRING}, []),
    "skipped": ({}, {"message": _STRING}, []),
    "system-out": ({}, {}, []),
    "system-err": ({}, {}, []),
}
_WITH_TEXT = {"failure", "error", "system-out", "system-err"}


def assert_valid(element: ET.Element) -> None:
    required, optional, children = SCHEMA[element.tag]
    assert required.keys() <= element.attrib.keys() <= required.keys() | optional.keys(), element.attrib
    for name, value in element.attrib.items():
        assert re.fullmatch((required | optional)[name], value), (element.tag, name, value)
    assert element.tag in _WITH_TEXT or not (element.text or "").strip()
    tags = " ".join(child.tag for child in element) + " "
    pattern = "".join(f"(?:{c.rstrip('*')} )*" if c.endswith("*") else f"(?:(?:{c}) )?" if "|" in c else f"{c} " for c in children)
    assert re.fullmatch(pattern, tags if len(element) else ""), (element.tag, tags)
    for child in element:
        assert_valid(child)


def parse(suites: list[Suite]) -> ET.Element:
    root = ET.fromstring(render_junit(suites).encode("utf-8"))
    assert_valid(root)
    return root


PASS = Check("GC101", "exploding-step", Status.PASS, "nothing found")
FAIL = Check("GC103", "diverged", Status.FAIL, "the loss rose", {"ratio": 12.5, "worst": float("inf")})
WARN = Check("GC102", "loss-spike", Status.FAIL, "it came back", severity=Severity.WARNING)
NOTE = Check("GC301", "sparse-log", Status.FAIL, "one in 10", severity=Severity.INFO)
SKIP = Check("GC108", "overflow-streak", Status.SKIP, "no loss scale")
MISSING = Check("require", "grad-norm", Status.SKIP, "no gradient norm", required=True)
IN_CODE = Check("GC401", "clip-before-unscale", Status.FAIL, "clipped too early", file="src/a,b:c.py", line=12, seconds=1.25)
SUITE = Suite("runs/a", (PASS, FAIL, WARN, NOTE, SKIP, MISSING, IN_CODE))
HOSTILE = "a\x00\x1b[31m\n::error::x\r]]>&<\"'\u202e\ud800\ufffe %0A, ##[error]é"


def test_junit_counts_and_kinds() -> None:
    (suite,) = parse([SUITE])
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {"tests": "7", "failures": "2", "errors": "1", "skipped": "1", "time": "1.250"}
    kinds = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert kinds == {
        "GC101 exploding-step": [],
        "GC103 diverged": ["failure"],
        "GC102 loss-spike": [],
        "GC301 sparse-log": [],
        "GC108 overflow-streak": ["skipped"],
        "require grad-norm": ["error"],
        "GC401 clip-before-unscale": ["failure"],
    }
    first, second = suite.iter("failure")
    assert (first.get("message"), first.get("type")) == ("the loss rose", "GC103")
    assert first.text == "the loss rose\nratio = 12.5\nworst = inf"
    assert (second.text or "").startswith("src/a,b:c.py:12: clipped too early")
    (skipped,) = suite.iter("skipped")
    assert skipped.get("message") == "no loss scale"
    assert suite.findtext("system-out") == "warning: GC102 loss-spike: it came back\ninfo: GC301 sparse-log: one in 10\n"


def test_junit_of_several_and_of_none() -> None:
    root = parse([SUITE, Suite("", ()), SUITE])
    assert [s.get("id") for s in root] == ["0", "1", "2"]
    assert len(parse([])) == 0


def test_junit_holds_whatever_a_name_or_a_message_may_be() -> None:
    hostile = Check(HOSTILE, HOSTILE, Status.FAIL, HOSTILE, {HOSTILE: float("nan")}, file=HOSTILE)
    root = parse(
        [Suite(f"  {HOSTILE}\t ", (hostile, Check("a", "a", Status.SKIP, HOSTILE), Check("b", "b", Status.SKIP, HOSTILE, required=True)))]
    )
    (failure,) = root.iter("failure")
    assert "\\x00\\x1b[31m\\n::error::x\\r]]>&<\"'\\u202e\\ud800\\ufffe %0A, ##[error]é" in (failure.get("message") or "")


def undone(text: str) -> str:
    """What the runner makes of a message."""
    return text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


def commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Annotations as the runner reads them: kind, properties, message."""
    found = []
    for line in text.split("\n"):
        if (m := re.fullmatch(r"::(\w+) ([^:]*)::(.*)", line)) is None:
            assert re.match(r"gradclip: |$", line), line
            continue
        properties = dict(pair.split("=", 1) for pair in m[2].split(","))
        found.append((m[1], {k: undone(v.replace("%3A", ":").replace("%2C", ",")) for k, v in properties.items()}, undone(m[3])))
    return found


def test_annotations() -> None:
    text = render_github([SUITE])
    assert commands(text) == [
        ("error", {"title": "GC103 diverged"}, "runs/a: the loss rose"),
        ("error", {"file": "src/a,b:c.py", "line": "12", "title": "GC401 clip-before-unscale"}, "runs/a: clipped too early"),
        ("warning", {"title": "GC102 loss-spike"}, "runs/a: it came back"),
        ("notice", {"title": "GC301 sparse-log"}, "runs/a: one in 10"),
        ("error", {"title": "require grad-norm"}, "runs/a: could not be judged: no gradient norm"),
        ("notice", {"title": "1 that could not judge"}, "runs/a\nGC108 overflow-streak: no loss scale"),
    ]
    assert text.endswith("\ngradclip: fail: 2 of 7 checks failed\n")
    assert "src/a%2Cb%3Ac.py" in text


def test_skips_of_one_reason_share_a_line_of_the_notice() -> None:
    skips = [Check(f"GC40{i}", f"GC40{i} rule", Status.SKIP, "a log does not show it") for i in range(1, 5)]
    ((kind, properties, message),) = commands(render_github([Suite("runs/a", tuple(skips))]))
    assert (kind, properties) == ("notice", {"title": "4 that could not judge"})
    assert message == "runs/a\nGC401–GC404: a log does not show it"


def test_nothing_breaks_out_of_an_annotation() -> None:
    hostile = Check(HOSTILE, HOSTILE, Status.FAIL, f"100 % {HOSTILE}", file=HOSTILE, line=1)
    text = render_github([Suite(HOSTILE, (hostile, Check(HOSTILE, "a", Status.SKIP, HOSTILE)))])
    shown = HOSTILE.encode("unicode_escape").decode("ascii").replace("\\xe9", "é")
    (kind, properties, message), (_, _, notice) = commands(text)
    assert (kind, properties["file"], properties["line"]) == ("error", shown, "1")
    assert message == f"{shown}: 100 % {shown}"
    assert notice.split("\n") == [shown, f"{shown} a: {shown}"]


@pytest.mark.parametrize("format", CHECK_FORMATS)
def test_every_format_tells_the_notes(format: str) -> None:
    suite = Suite("runs/a", (PASS,), tuple(f"note number {i} of <{HOSTILE}>" for i in range(20)))
    text = CHECK_FORMATS[format]([suite], SETTINGS, color=False)
    shown = 20 if format in ("json", "junit") else 12
    assert text.count("note number") == shown
    assert ("+8 more: --format json lists them all" in text) is (shown == 12)
    assert "\x1b" not in text
    if format == "json":
        assert json.loads(text)["suites"][0]["notes"][19] == suite.notes[19].encode("utf-8", "backslashreplace").decode("utf-8")
    if format == "junit":
        assert (parse([suite]).findtext("testsuite/system-out") or "").count("\n") == 20
    if format == "github":
        assert [c[0] for c in commands(text)] == [], "no note begins a command"


SETTINGS = [InForce("fail-on", "error", "default"), InForce("runs", ("a", "b"), "x.toml"), InForce("preflight", (("verify",),), "x.toml")]


@pytest.mark.parametrize("format", CHECK_FORMATS)
def test_every_format_tells_what_failed_and_what_could_not_be_judged(format: str) -> None:
    text = CHECK_FORMATS[format]([SUITE], SETTINGS, color=False)
    for said in ("GC103", "the loss rose", "GC102", "it came back", "GC108", "no loss scale", "require", "no gradient norm"):
        assert said in text, said
    assert text.endswith("\n")


def test_the_table() -> None:
    lines = render_check_text([SUITE], width=80).splitlines()
    assert lines == [
        "FAIL  runs/a",
        "2 of 7 checks failed, 1 required but not judged, 1 warning, 1 skipped",
        "",
        "FAIL     GC103 diverged             the loss rose",
        "FAIL     GC401 clip-before-unscale  clipped too early",
        "MISSING  require grad-norm          no gradient norm",
        "warn     GC102 loss-spike           it came back",
        "note     GC301 sparse-log           one in 10",
        "skip     GC108 overflow-streak      no loss scale",
        "pass     1 check                    GC101",
        "",
        "`gradclip explain GC103` tells what it means and what to do.",
        "FAIL, exit status 1",
    ]


def test_the_table_of_several_ends_with_all_of_them() -> None:
    lines = render_check_text([SUITE, Suite("b", (PASS,)), Suite("c", (PASS, MISSING))], width=80).splitlines()
    assert lines[-8:-3] == [
        "",
        "FAIL          runs/a  2 of 7 checks failed, 1 required but not judged, 1",
        "                      warning, 1 skipped",
        "PASS          b       1 passed",
        "CANNOT JUDGE  c       1 passed, 1 required but not judged",
    ]
    assert lines[-1] == "FAIL (1 failed, 1 could not be judged, 1 passed), exit status 1"


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_table_fits_and_shows_nothing_raw(width: int) -> None:
    hostile = Check("GC103", HOSTILE, Status.FAIL, HOSTILE * 3)
    text = render_check_text([Suite(HOSTILE, (hostile, FAIL)), SUITE], width=width)
    assert max(map(len, text.splitlines())) <= max(width, 40)
    assert "\x1b" not in text
    assert "\x1b[" in render_check_text([SUITE], width=80, color=True)


def test_markdown_escapes_names() -> None:
    suite = Suite("a|b", (Check("GC103", "diverged", Status.FAIL, "<b>|@x"),))
    text = CHECK_FORMATS["markdown"]([suite], SETTINGS, color=False)
    assert text.startswith("### gradclip check: FAIL, exit status 1\n")
    assert "| **FAIL** | GC103 diverged | &lt;b&gt;\\|@<!-- -->x |" in text
    assert "| runs | a, b | x.toml |" in text
    assert "fail-on" not in text, "defaults are not worth a line"


def test_json_is_strict() -> None:
    doc = json.loads(CHECK_FORMATS["json"]([SUITE], SETTINGS, color=False), parse_constant=lambda c: pytest.fail(f"bare {c}"))
    assert (doc["schema"], doc["verdict"], doc["exit_status"]) == ("gradclip.check/1", "fail", 1)
    assert doc["policy"]["preflight"] == {"value": [["verify"]], "from": "x.toml"}
    (suite,) = doc["suites"]
    assert (suite["name"], suite["verdict"]) == ("runs/a", "fail")
    assert [c["status"] for c in suite["checks"]] == ["pass", "fail", "fail", "fail", "skip", "skip", "fail"]
    assert suite["checks"][1]["evidence"] == {"ratio": 12.5, "worst": "inf"}
    assert [c["counts"] for c in suite["checks"]].count(True) == 2
    assert [c["required"] for c in suite["checks"]].count(True) == 1
    assert (suite["checks"][6]["file"], suite["checks"][6]["line"], suite["checks"][6]["seconds"]) == ("src/a,b:c.py", 12, 1.25)


def test_the_policy_fits() -> None:
    settings = [*SETTINGS, InForce("select", tuple(f"GC{n}" for n in range(101, 140)), "pyproject.toml [tool.gradclip.check]")]
    text = render_policy(settings, [("GC101", "error"), ("GC201", ""), ("GC202", "warning")], as_json=False)
    assert max(map(len, text.splitlines())) <= 80
    assert "Count from error on:\n  GC101\n" in text
    assert text.endswith("Do not count:\n  GC201\n")
    doc = json.loads(render_policy(settings, [("GC101", "error"), ("GC201", "")], as_json=True))
    assert doc["rules"] == {"GC101": "error", "GC201": None}
