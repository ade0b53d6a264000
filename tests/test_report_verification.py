"""The reports of `gradclip verify`: what they must say, and that names from outside cannot break out of them."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from gradclip_cli.model.check import Check, Status, Target, Verification
from gradclip_cli.report.verification import VERIFICATION_FORMATS
from gradclip_cli.report.verification_text import render_verification_text
from gradclip_cli.rules import device_rule


def verification(*checks: Check, verdict: str = "fail", updates: int | None = None, source: str = "device battery") -> Verification:
    findings = tuple(device_rule("GC502").finding(f"{c.id}: {c.detail}", c.evidence) for c in checks if c.status is Status.FAIL)
    return Verification(source, Target("cuda:0", 2, "2.13.0", "float32"), updates, verdict, findings, checks, ("something was not seen",))


BAD = Check(
    "B102", "coefficient", Status.FAIL, "the coefficient is 1, expected 0.27", {"measured": 1.0, "expected": 0.27, "error": math.inf}
)
GOOD = Check("B101", "total-norm", Status.PASS, "the total norm is right in 32 cases", {"relative_error": 1e-7})
SKIPPED = [Check(f"B60{i}", "ranks", Status.SKIP, "needs at least 2 ranks") for i in range(3)]


def test_json_is_strict_and_has_the_documented_shape() -> None:
    document = json.loads(VERIFICATION_FORMATS["json"](verification(BAD, GOOD, *SKIPPED), color=False), parse_constant=pytest.fail)
    assert document["target"] == {"device": "cuda:0", "dtype": "float32", "world_size": 2, "torch": "2.13.0"}
    assert "updates" not in document
    assert document["findings"][0] == {
        "rule": "GC502",
        "name": "wrong-coefficient",
        "severity": "error",
        "message": "B102: the coefficient is 1, expected 0.27",
        "first_step": None,
        "last_step": None,
        "evidence": {"measured": 1.0, "expected": 0.27, "error": "inf"},
    }
    assert document["checks"][1] == {
        "id": "B101",
        "name": "total-norm",
        "status": "pass",
        "detail": "the total norm is right in 32 cases",
        "evidence": {"relative_error": 1e-7},
    }
    assert document["notes"] == ["something was not seen"]
    watched = json.loads(VERIFICATION_FORMATS["json"](verification(GOOD, verdict="pass", updates=100), color=False))
    assert watched["updates"] == 100


def test_text_puts_failures_first_and_the_answer_last() -> None:
    text = render_verification_text(verification(GOOD, BAD, *SKIPPED), width=80)
    lines = text.splitlines()
    assert lines[0] == "FAIL  device battery"
    assert lines[1] == "cuda:0, float32, 2 ranks, torch 2.13.0"
    assert lines[3] == "FAIL  B102 coefficient  the coefficient is 1, expected 0.27"
    assert lines[4].startswith("pass  B101 total-norm")
    assert lines[5].split() == ["skip", "B600–B602", "needs", "at", "least", "2", "ranks"]
    assert "note: something was not seen" in lines
    assert lines[-2] == "GC502 wrong-coefficient: see `gradclip explain GC502`"
    assert lines[-1] == "FAIL, exit status 1: 1 of 5 checks failed, 3 skipped"
    assert "\x1b" not in text
    assert "\x1b[" in render_verification_text(verification(BAD), width=80, color=True)


def test_other_formats() -> None:
    suite = ET.fromstring(VERIFICATION_FORMATS["junit"](verification(BAD, GOOD, *SKIPPED), color=False)).find("testsuite")
    assert suite is not None
    assert [suite.get(k) for k in ("tests", "failures", "skipped", "errors")] == ["5", "1", "3", "0"]
    assert VERIFICATION_FORMATS["github"](verification(BAD), color=False).startswith("::error title=B102 coefficient::")
    markdown = VERIFICATION_FORMATS["markdown"](verification(BAD, GOOD), color=False)
    assert markdown.startswith("### gradclip verify `device battery`: FAIL, exit status 1")
    assert "| **FAIL** | B102 coefficient |" in markdown


def test_names_from_outside_are_harmless() -> None:
    evil = verification(
        Check("GC402", "clip-after-step", Status.PASS, "at \x1b[31mtrain.py|<b>\n::error::x"), source="a\x1b[2J\n::error::.py"
    )
    for name, render in VERIFICATION_FORMATS.items():
        text = render(evil, color=False)
        assert "\x1b" not in text, name
        assert "\n::error" not in text, name
        assert name != "markdown" or "<b>" not in text


@pytest.mark.parametrize("verdict", ["pass", "fail", "cannot-judge"])
def test_the_reports_for_ci_agree_with_the_verdict(verdict: str) -> None:
    checks = (GOOD, SKIPPED[0], *([BAD] if verdict == "fail" else []))
    judged = verification(*checks, verdict=verdict)
    assert judged.suite.judgement == verdict
    suite = ET.fromstring(VERIFICATION_FORMATS["junit"](judged, color=False)).find("testsuite")
    assert suite is not None
    assert (suite.get("failures"), suite.get("errors")) == {"pass": ("0", "0"), "fail": ("1", "0"), "cannot-judge": ("0", "1")}[verdict]
    text = VERIFICATION_FORMATS["github"](judged, color=False)
    assert ("::error " in text) is (verdict != "pass")
    assert f"\ngradclip: {verdict}: " in text
    assert "something was not seen" in text


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("clip(2.0)\n    clip(1.0)", 1, "clipped twice before one step"),
        ("clip(1.0)\n    if step == 5: raise SystemExit(4)", 3, "the script ended with exit status 4 after 5 updates"),
    ],
    ids=["double-clip", "crash"],
)
def test_the_report_of_a_script_agrees_with_the_exit_status(
    gradclip: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, body: str, code: int, said: str
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCRIPT.replace("BODY", body))
    junit = gradclip("verify", "-f", "junit", "train.py", code=code, env={"OMP_NUM_THREADS": "1"})
    suite = ET.fromstring(junit.stdout).find("testsuite")
    assert suite is not None
    assert (suite.get("failures"), suite.get("errors")) == (("1", "0") if code == 1 else ("0", "1"))
    told = suite.find("testcase/failure") if code == 1 else suite.find("testcase/error")
    assert told is not None
    assert said in told.get("message", "")


SCRIPT = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def clip(bound):
    torch.nn.utils.clip_grad_norm_(model.parameters(), bound)
for step in range(10):
    optimizer.zero_grad()
    (9 * model(torch.randn(8, 4))).square().mean().backward()
    BODY
    optimizer.step()
"""
