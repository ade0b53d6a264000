"""What clipping at another threshold would have done to the flagged steps."""

from __future__ import annotations

import numpy as np
import pytest

from gradclip_cli.analysis import analyze
from gradclip_cli.errors import UsageError
from gradclip_cli.model.finding import Analysis
from gradclip_cli.model.run import NormStage, Run
from gradclip_cli.model.threshold import Effect
from gradclip_cli.threshold import what_if
from tests.conftest import make_run
from tests.threshold_cases import norms


def spiky_run(**fields: object) -> Run:
    """An explosion over three rows at 300, a loss spike behind it, a nan norm at 500."""
    generator = np.random.default_rng(1)
    loss = 2 + np.exp(-np.arange(700) / 50) + 0.005 * generator.standard_normal(700)
    loss[303:330] += np.linspace(3, 0.5, 27)
    values = norms(700, sigma=0.1)
    values[300:303] = [30, 60, 20]
    values[500] = np.nan
    return make_run(loss, values, **fields)  # type: ignore[arg-type]


def effect(analysis: Analysis, rule: str) -> Effect | None:
    return next(f.what_if for f in analysis.findings if f.rule == rule)


def test_each_flagged_step_is_told() -> None:
    asked = what_if(analyze(spiky_run()), 2.0)
    exploded = effect(asked, "GC101")
    assert exploded is not None
    assert (exploded.num_norms, exploded.num_clipped, exploded.norm) == (3, 3, 60)
    assert exploded.coefficient == pytest.approx(2 / (60 + 1e-6), rel=1e-12)
    assert exploded.clipped_norm == pytest.approx(2, rel=1e-6)
    spiked = effect(asked, "GC102")
    assert spiked is not None and spiked.norm == 60
    assert spiked.message.startswith("the explosion before it")
    broken = effect(asked, "GC104")
    assert broken is not None and np.isnan(broken.coefficient)
    assert "repairs nothing" in broken.message
    values = np.delete(spiky_run().series["grad_norm"].values, 500)
    assert asked.what_if is not None
    assert asked.what_if.clipped_fraction == pytest.approx(np.mean(values > 2), rel=1e-12)


def test_a_threshold_above_everything_changes_nothing() -> None:
    asked = what_if(analyze(spiky_run()), 100.0)
    exploded = effect(asked, "GC101")
    assert exploded is not None and (exploded.num_clipped, exploded.coefficient) == (0, 1)
    assert "nothing would have changed" in exploded.message
    assert asked.what_if is not None and asked.what_if.clipped_fraction == 0


def test_the_run_s_own_bound_stands_beside_it() -> None:
    exploded = effect(what_if(analyze(spiky_run(max_norm=5.0)), 2.0), "GC101")
    assert exploded is not None and exploded.own_coefficient == pytest.approx(5 / 60, rel=1e-6)
    assert "by 0.0833 at the run's own max_norm" in exploded.message


def test_rows_stand_in_where_the_log_has_no_steps() -> None:
    known, unknown = (effect(what_if(analyze(spiky_run(steps_known=k)), 2.0), "GC101") for k in (True, False))
    assert known == unknown


def test_what_the_log_cannot_show_is_not_told() -> None:
    clipped = what_if(analyze(spiky_run(norm_stage=NormStage.POST_CLIP)), 2.0)
    assert clipped.what_if is not None and "after clipping" in clipped.what_if.summary
    assert all(f.what_if is None for f in clipped.findings)
    without = what_if(analyze(make_run(loss=np.linspace(3, 2, 100))), 2.0)
    assert without.what_if is not None and "no gradient norm" in without.what_if.summary
    broken = what_if(analyze(make_run(np.ones(50), np.full(50, np.nan))), 2.0)
    assert broken.what_if is not None and "no finite gradient norm" in broken.what_if.summary


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_must_bound(bound: float) -> None:
    with pytest.raises(UsageError):
        what_if(analyze(spiky_run()), bound)
