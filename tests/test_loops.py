"""`gradclip verify` on small training programs: the mistake is named, and a loop that clips rightly is left in peace.

By default a sixth of the programs is taken, with every rule in it, most of them in forks of one process; GRADCLIP_ALL_LOOPS=1
takes all. `python -m tests.loops` runs each in a process of its own, outside pytest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.loops import HERE, VERDICTS, judge, representative

CHOSEN = sorted(VERDICTS) if os.environ.get("GRADCLIP_ALL_LOOPS") else representative()
# Every way a program can be run: plain, with a scaler, compiled, by several ranks, with a clip by hand, and one that is right.
IN_A_PROCESS_OF_THEIR_OWN = (
    "clip_in_post_step_hook.py",
    "norm_of_own_shard.py",
    "ok_compiled_training_step.py",
    "ok_by_hand_foreach.py",
    "scaled_gradients_clipped.py",
    "hand_bound_far_below.py",
)
RULES = {f"GC4{n:02d}" for n in range(1, 20)} | {"GC201", "GC202"}


@pytest.mark.parametrize("name", IN_A_PROCESS_OF_THEIR_OWN, ids=lambda name: name.removesuffix(".py"))
def test_verdict_on_a_training_program(name: str, tmp_path: Path) -> None:
    assert judge(name, tmp_path) is None


def test_verdicts_on_training_programs() -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "tests.loops.forked", *CHOSEN], capture_output=True, text=True, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}


def test_every_program_has_a_verdict() -> None:
    programs = {path.name for path in HERE.glob("*.py") if not path.name.startswith("__") and path.name != "forked.py"}
    assert programs == VERDICTS.keys()


def test_every_mistake_occurs_in_several_shapes_and_in_the_sixth_that_is_always_run() -> None:
    count = Counter(verdict["expect"] for verdict in VERDICTS.values())
    assert count.keys() - {None} == RULES
    assert all(count[rule] >= 2 for rule in RULES), count
    assert count[None] >= 0.4 * len(VERDICTS)
    assert {VERDICTS[name]["expect"] for name in representative()} == RULES | {None}
