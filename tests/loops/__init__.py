"""Small training programs, each with a known verdict, and the judging of what `gradclip verify` says about them.

Half of them clip as they should, the others make one mistake each. `verdicts.json` says of each which rule `verify` must
find (null: the loop is right, so no GC4xx at all) and which further rules may honestly stand beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TIMEOUT_S = 180.0


class Verdict(TypedDict):
    expect: str | None
    allow: list[str]


VERDICTS: dict[str, Verdict] = json.loads((HERE / "verdicts.json").read_text(encoding="utf-8"))


def representative() -> list[str]:
    """Every sixth program of each expected rule, and at least one of each."""
    by_rule: dict[str, list[str]] = {}
    for name in sorted(VERDICTS):
        by_rule.setdefault(VERDICTS[name]["expect"] or "", []).append(name)
    return sorted(name for names in by_rule.values() for name in names[::6])


def judge(name: str, cwd: Path) -> str | None:
    """What is wrong with the answer of `gradclip verify` for this program; None where it is right."""
    want = VERDICTS[name]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "80"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gradclip_cli", "verify", "--format", "json", str(HERE / name)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=cwd,
            env=env,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {TIMEOUT_S:.0f} s"
    try:
        found = [finding["rule"] for finding in json.loads(done.stdout)["findings"]]
    except (ValueError, KeyError, TypeError) as error:
        return f"no verdict on standard output ({error!r}; exit {done.returncode}): {done.stderr.strip()[-300:]}"
    return compare(want, found, done.returncode)


def compare(want: Verdict, found: Sequence[str], code: int) -> str | None:
    """What is wrong with these findings and this exit status."""
    expect = want["expect"]
    wrong = []
    if expect and expect not in found:
        wrong.append(f"{expect} is missing")
    false_alarms = sorted({rule for rule in found if rule.startswith("GC4")} - {*want["allow"], expect})
    if false_alarms:
        wrong.append(f"false alarm {', '.join(false_alarms)}")
    if expect and expect.startswith("GC4") and code != 1:
        wrong.append(f"exit {code}, not 1")
    # A threshold that cuts every update may count or not; nothing else may make a right loop fail.
    if expect is None and code != 0 and not (code == 1 and "GC201" in found):
        wrong.append(f"exit {code}, not 0")
    return f"{'; '.join(wrong)} (found {', '.join(found) or 'nothing'})" if wrong else None
