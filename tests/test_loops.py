"""`gradclip verify` on small training programs: the mistake is named, and a loop that clips rightly is left in peace.

By default a third of the programs is taken, with every rule in it; GRADCLIP_ALL_LOOPS=1 takes all. `python -m tests.loops`
runs them outside pytest.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.loops import HERE, VERDICTS, judge, representative

CHOSEN = sorted(VERDICTS) if os.environ.get("GRADCLIP_ALL_LOOPS") else representative()
RULES = {f"GC4{n:02d}" for n in range(1, 20)} | {"GC201", "GC202"}


@pytest.mark.parametrize("name", CHOSEN, ids=lambda name: name.removesuffix(".py"))
def test_verdict_on_a_training_program(name: str, tmp_path: Path) -> None:
    assert judge(name, tmp_path) is None


def test_every_program_has_a_verdict() -> None:
    assert {path.name for path in HERE.glob("*.py") if not path.name.startswith("__")} == VERDICTS.keys()


def test_every_mistake_occurs_in_several_shapes_and_in_the_third_that_is_always_run() -> None:
    count = Counter(verdict["expect"] for verdict in VERDICTS.values())
    assert count.keys() - {None} == RULES
    assert all(count[rule] >= 2 for rule in RULES), count
    assert count[None] >= 0.4 * len(VERDICTS)
    assert {VERDICTS[name]["expect"] for name in representative()} == RULES | {None}
