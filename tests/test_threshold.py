"""suggest_threshold: which norms count, what number follows, when there is none."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

import gradclip_cli
from gradclip_cli.errors import UsageError
from gradclip_cli.model.recorded import RankPart, Recorded
from gradclip_cli.model.run import NormStage, Run, Sampling, Series
from gradclip_cli.model.threshold import Method
from gradclip_cli.threshold import suggest_threshold
from tests.conftest import make_run
from tests.threshold_cases import norms


def run_of(values: np.ndarray, **fields: object) -> Run:
    return make_run(grad_norm=values, **fields)  # type: ignore[arg-type]


def test_the_number_is_the_99th_percentile_of_the_healthy_norms() -> None:
    values = norms()
    s = suggest_threshold(run_of(values))
    assert (s.method, s.percentile) == (Method.SAFETY_NET, 99)
    assert s.max_norm == np.percentile(values, 99)
    assert s.low is not None and s.high is not None and s.low < s.max_norm < s.high  # type: ignore[operator]
    assert s.clipped_fraction == 10 / 1000
    assert s.excluded == dataclasses.replace(s.excluded, warmup=0, nonfinite=0, exploding=0, aftermath=0, zero=0)


@pytest.mark.parametrize("chosen", [{"percentile": 90}, {"target_clip_fraction": 0.1}], ids=str)
def test_another_percentile_may_be_asked(chosen: dict[str, float]) -> None:
    values = norms()
    s = suggest_threshold(run_of(values), **chosen)  # type: ignore[arg-type]
    assert s.max_norm == pytest.approx(np.percentile(values, 90), rel=1e-12)
    assert s.clipped_fraction == pytest.approx(0.1, abs=1e-3)


@pytest.mark.parametrize(
    "chosen",
    [
        {"percentile": 0},
        {"percentile": 100},
        {"percentile": float("nan")},
        {"target_clip_fraction": 1},
        {"target_clip_fraction": -0.1},
        {"percentile": 99, "target_clip_fraction": 0.01},
    ],
    ids=str,
)
def test_a_choice_out_of_range_is_a_usage_error(chosen: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        suggest_threshold(run_of(norms(50)), **chosen)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [2, 10, 1 / 3, 1e-7, 1e9])
@pytest.mark.parametrize("seed", range(3))
def test_scaling_the_norms_scales_everything(factor: float, seed: int) -> None:
    values = norms(600, seed=seed)
    values[[50, 300]] *= 40
    before, after = suggest_threshold(run_of(values)), suggest_threshold(run_of(values * factor))
    for name in ("max_norm", "low", "high"):
        assert getattr(after, name) == pytest.approx(factor * getattr(before, name), rel=1e-12)
    assert after.excluded == before.excluded
    assert [c.clipped_fraction for c in after.candidates if c.percentile] == [c.clipped_fraction for c in before.candidates if c.percentile]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_change_nothing_but_their_count(bad: float) -> None:
    values = norms(500)
    before = suggest_threshold(run_of(values))
    after = suggest_threshold(run_of(np.insert(values, [0, 7, 200, 200, 500], bad)))
    assert (after.max_norm, after.low, after.high) == (before.max_norm, before.low, before.high)
    assert after.candidates == before.candidates
    assert after.excluded == dataclasses.replace(before.excluded, nonfinite=5)


@pytest.mark.parametrize("ratio", [15, 30, 1000, 1e12])
@pytest.mark.parametrize("count", [1, 5, 20])
def test_explosions_do_not_move_the_number_beyond_its_interval(ratio: float, count: int) -> None:
    values = norms(1000, seed=count)
    before = suggest_threshold(run_of(values))
    at = np.random.default_rng(count).choice(np.arange(20, 1000), count, replace=False)
    values[at] = ratio
    after = suggest_threshold(run_of(values))
    assert before.low <= after.max_norm <= before.high  # type: ignore[operator]
    assert after.excluded.exploding == count
    assert len(after.norms) + count == 1000
    assert next(c for c in after.candidates if c.label == "recommended").exploding_caught == count


def test_the_start_is_left_out() -> None:
    values = norms(1000)
    values[:60] *= np.geomspace(12, 1.5, 60)
    s = suggest_threshold(run_of(values))
    assert 45 <= s.excluded.warmup <= 80
    assert s.max_norm == np.percentile(values[s.excluded.warmup :], 99)
    assert any("warm-up: the norm had not settled" in n for n in s.notes)


def test_a_rising_learning_rate_is_a_warmup() -> None:
    lr = np.minimum(np.arange(1000) / 100, 1.0)
    s = suggest_threshold(make_run(grad_norm=norms(1000), more={"lr": lr.tolist()}))
    assert s.excluded.warmup == 99
    assert s.steps[0] == 99


def test_a_learning_rate_that_rises_for_long_leaves_nothing_out_and_is_told() -> None:
    half = np.r_[np.linspace(0.1, 1, 500), np.linspace(1, 0.1, 500)]
    s = suggest_threshold(make_run(grad_norm=norms(1000), more={"lr": half.tolist()}))
    assert s.excluded.warmup == 0
    assert any("more than a quarter" in n for n in s.notes)
    s = suggest_threshold(make_run(grad_norm=norms(1000), more={"lr": np.linspace(0.1, 1, 1000).tolist()}))
    assert any("shows the warm-up only" in n for n in s.notes)


def test_a_steady_fall_is_drift_and_no_endless_warmup() -> None:
    values = norms(2000) * np.geomspace(8, 1, 2000)
    s = suggest_threshold(run_of(values))
    assert s.excluded.warmup == 0
    # Quarters of an exponential fall by 8: their middles lie a factor of 8 ** (3/4) apart.
    assert s.drift == pytest.approx(8**0.75, rel=0.1)
    assert len(s.phases) == 4
    assert sum(p.count for p in s.phases) == 2000
    quarter = np.split(values, 4)[3]
    assert s.phases[3].median == np.median(quarter)
    assert s.phases[3].clipped_fraction == 0
    assert (s.phases[3].first_step, s.phases[3].last_step) == (1500, 1999)
    assert [a.rule for a in s.adaptive] == ["autoclip", "zclip"]
    text = " ".join(s.notes)
    assert "--from-step 1500" in text and "AutoClip" in text and "ZClip" in text


def test_a_steady_run_has_no_adaptive_series() -> None:
    s = suggest_threshold(run_of(norms()))
    assert s.drift < 1.3 and not s.adaptive


def test_what_follows_a_divergence_is_left_out() -> None:
    generator = np.random.default_rng(1)
    loss = 2 + np.exp(-np.arange(600) / 50) + 0.01 * generator.standard_normal(600)
    values = norms(600, sigma=0.1)
    loss[400:] += 6
    values[400:] *= 3
    values[398] = 80
    s = suggest_threshold(make_run(loss, values))
    assert s.steps[-1] == 397
    assert s.excluded.exploding == 1
    assert s.excluded.aftermath + 1 == 600 - 398
    assert s.max_norm == np.percentile(values[s.excluded.warmup : 398], 99)
    assert any("diverged at step 398" in n for n in s.notes)


def test_a_divergence_that_leaves_nothing_out_says_no_number() -> None:
    generator = np.random.default_rng(1)
    loss = 2 + np.exp(-np.arange(600) / 50) + 0.01 * generator.standard_normal(600)
    values = norms(600, sigma=0.1)
    values[398:401] = 80, 8e3, 8e6
    values[401:] = np.nan
    loss[399:401] = 50, 5e5
    loss[401:] = np.nan
    s = suggest_threshold(make_run(loss, values))
    assert s.excluded.aftermath == 0
    (note,) = [n for n in s.notes if "diverged" in n]
    assert note == "the run diverged at step 398"


def test_a_loss_spike_is_left_out_until_it_is_over() -> None:
    generator = np.random.default_rng(1)
    loss = 2 + np.exp(-np.arange(800) / 50) + 0.005 * generator.standard_normal(800)
    values = norms(800, sigma=0.1)
    loss[400:420] += np.linspace(3, 0.5, 20)
    values[400:420] *= 4
    s = suggest_threshold(make_run(loss, values))
    assert 15 <= s.excluded.aftermath <= 40
    assert s.max_norm is not None and s.max_norm < 1.4
    assert len(s.norms) + s.excluded.aftermath + s.excluded.warmup == 800


def test_zeros_are_no_norms() -> None:
    values = norms(500)
    zeros = np.insert(values, [3, 100, 400], 0.0)
    s = suggest_threshold(run_of(zeros))
    assert s.excluded.zero == 3
    assert s.max_norm == suggest_threshold(run_of(values)).max_norm


@pytest.mark.parametrize(
    ("values", "why", "to_do"),
    [
        ([1.0] * 29, "only 29 healthy of 29", "take a longer run"),
        ([0.0] * 100, "100 zero or below", "log what clip_grad_norm_ returns"),
        ([-1.0] * 100, "100 zero or below", "log what clip_grad_norm_ returns"),
        ([np.nan] * 50, "50 not finite", "take a run that stays finite"),
    ],
    ids=["few", "zeros", "negative", "nan"],
)
def test_too_few_healthy_norms_are_refused(values: list[float], why: str, to_do: str) -> None:
    s = suggest_threshold(run_of(np.array(values)))
    assert s.max_norm is s.low is s.high is s.clipped_fraction is None
    assert why in s.refusal and to_do in s.hint
    assert not s.candidates and not s.reasons


def test_equal_norms_have_an_interval_of_no_width() -> None:
    s = suggest_threshold(run_of(np.full(100, 0.7)))
    assert s.max_norm == pytest.approx(0.7) == s.low == s.high


def test_a_run_without_norms_is_refused() -> None:
    s = suggest_threshold(make_run(loss=np.ones(100)))
    assert s.max_norm is None and "no gradient norm" in s.refusal


@pytest.mark.parametrize("given", [{"loss": np.ones(100)}, {"grad_norm": norms(100)}, {"grad_norm": norms(20)}], ids=["none", "all", "few"])
def test_what_the_reader_noted_is_told(given: dict[str, np.ndarray]) -> None:
    s = suggest_threshold(make_run(**given, notes=("a column was left out",)))
    assert s.notes.count("a column was left out") == 1


@pytest.mark.parametrize(
    ("percentile", "said"), [(99.0, "99th"), (91.0, "91st"), (99.9, "99.9th"), (99.99999, "99.99999th"), (2.0, "2nd"), (13.0, "13th")]
)
def test_a_percentile_is_told_in_full(percentile: float, said: str) -> None:
    s = suggest_threshold(run_of(norms(2000)), percentile=percentile)
    assert f"the {said} percentile" in " ".join((s.refusal, *s.reasons))


def post_clip(values: np.ndarray, bound: float, **fields: object) -> Run:
    return run_of(np.minimum(values, bound), norm_stage=NormStage.POST_CLIP, stage_reason="made so", **fields)


@pytest.mark.parametrize("known", [None, 1.2], ids=["bound-guessed", "bound-known"])
def test_above_a_pile_up_there_is_no_number(known: float | None) -> None:
    values = norms(2000)
    run = post_clip(values, 1.2, max_norm=known)
    s = suggest_threshold(run)
    assert s.max_norm is None
    healthy = np.minimum(values, 1.2)[s.excluded.warmup :]
    share = np.mean(healthy >= 1.2 * (1 - 1e-3))
    told = re.search(r"([0-9.]+)% of them sit at 1.2 ", s.refusal)
    assert told is not None and float(told[1]) == pytest.approx(100 * share, abs=0.06)
    assert "clip_grad_norm_" in s.hint
    assert all(c.max_norm < 1.2 for c in s.candidates)
    visible = suggest_threshold(run, percentile=50)
    assert visible.max_norm == np.percentile(healthy, 50)
    near = suggest_threshold(run, percentile=100 * (1 - share) - 0.01)
    assert near.max_norm is None, "its interval reaches the bound"


def test_a_post_clip_log_that_never_reached_its_bound_shows_everything() -> None:
    values = norms(1000)
    s = suggest_threshold(post_clip(values, 1e9, max_norm=50.0))
    assert s.max_norm == np.percentile(values, 99)


def sampled(values: np.ndarray, every: int, sampling: Sampling) -> Run:
    series = Series("grad_norm", "grad_norm", every * np.arange(len(values), dtype=np.int64), values, sampling)
    return Run("a", "test", {"grad_norm": series})


def test_means_over_steps_are_refused_unless_their_percentile_is_asked() -> None:
    run = sampled(norms(500), 20, Sampling.WINDOW_MEAN)
    s = suggest_threshold(run)
    assert s.max_norm is None and "mean over 20 steps" in s.refusal and "--percentile" in s.hint
    assert suggest_threshold(run, target_clip_fraction=0.01).max_norm is None
    s = suggest_threshold(run, percentile=99)
    assert s.max_norm is not None
    assert any("single steps vary more" in n for n in s.notes)


def test_sampled_norms_are_a_fair_sample_with_a_note() -> None:
    s = suggest_threshold(sampled(norms(500), 10, Sampling.INSTANT))
    assert s.max_norm is not None
    assert any("one norm in 10 steps" in n and "no trace" in n for n in s.notes)


def test_norms_that_say_nothing_of_the_tail_are_refused() -> None:
    values = norms(60, phi=0.9, sigma=1.5, seed=0)
    s = suggest_threshold(run_of(values))
    assert s.max_norm is None
    assert "no more than that the 99th percentile lies between" in s.refusal


def test_a_window_is_a_run_of_its_own() -> None:
    values = norms(1000)
    values[500:] *= 5
    s = suggest_threshold(run_of(values, start=100), from_step=600, to_step=899)
    alone = suggest_threshold(run_of(values[500:800]))
    assert (s.max_norm, s.low, s.high) == (alone.max_norm, alone.low, alone.high)
    assert (s.steps[0], s.steps[-1]) == (600, 899)
    s = suggest_threshold(run_of(values), from_step=5000)
    assert s.max_norm is None and "from step 5,000 on" in s.refusal


def test_pooled_runs_are_one_set_of_norms() -> None:
    a, b = norms(400, seed=1), norms(600, seed=2)
    b[100] = 50
    runs = [run_of(a), run_of(b), make_run(loss=np.ones(50))]
    s = suggest_threshold(runs)
    assert s.max_norm == np.percentile(np.r_[a, np.delete(b, 100)], 99)
    assert s.excluded.exploding == 1
    assert len(s.pooled) == 2 and [p.count for p in s.phases] == [400, 599]
    assert any("was left out: no gradient norm" in n for n in s.notes)
    apart = suggest_threshold([run_of(a), run_of(10 * b)])
    assert any("the runs differ 10" in n for n in apart.notes)


def test_nothing_that_can_be_pooled_is_refused() -> None:
    s = suggest_threshold([make_run(loss=np.ones(50)), run_of(np.ones(10))])
    assert s.max_norm is None
    assert len(s.notes) == 2
    with pytest.raises(UsageError):
        suggest_threshold([])


def test_candidates_tell_what_each_would_have_done() -> None:
    values = norms(1000)
    values[500] = 30
    s = suggest_threshold(run_of(values, max_norm=0.9))
    healthy = np.delete(values, 500)
    assert {c.label for c in s.candidates} == {"p50", "p75", "p90", "p95", "recommended", "p99.9", "0.1", "0.5", "1", "5", "own"}
    assert [c.max_norm for c in s.candidates] == sorted(c.max_norm for c in s.candidates)
    for c in s.candidates:
        clipped = healthy[healthy > c.max_norm]
        coef = np.minimum(1, c.max_norm / (clipped + 1e-6))
        assert c.clipped_fraction == len(clipped) / 999
        assert c.exploding_caught == (c.max_norm < 30)
        assert c.median_coef == pytest.approx(np.median(coef) if len(coef) else 1, rel=1e-12)
        assert c.worst_coef == pytest.approx(coef.min() if len(coef) else 1, rel=1e-12)
    assert any("the run was clipped at 0.9" in n for n in s.notes)
    assert any("own max_norm 0.9 clips" in n for n in s.notes)


def test_explosions_below_the_threshold_are_told() -> None:
    values = norms(2000, sigma=0.1)
    values[:1000] *= 40
    values[1500] = 15
    s = suggest_threshold(run_of(values))
    assert s.excluded.exploding == 1
    chosen = next(c for c in s.candidates if c.label == "recommended")
    assert chosen.exploding_caught == 0
    assert any("only 0 of 1 exploding step" in r and "just below 15" in r for r in s.reasons)


def test_huge_and_tiny_norms_are_norms() -> None:
    for scale in (1e-300, 1e300):
        s = suggest_threshold(run_of(norms(200) * scale))
        assert s.max_norm == pytest.approx(scale * np.percentile(norms(200), 99), rel=1e-9)


def test_it_is_part_of_the_python_interface() -> None:
    values = norms(100)
    s = gradclip_cli.suggest_threshold(run_of(values), percentile=95)
    assert isinstance(s, gradclip_cli.Suggestion)
    assert s.max_norm == np.percentile(values, 95)


@pytest.mark.parametrize(
    ("header", "calls", "expected"),
    [
        (2.0, [1.0, 1.0], 1.0),
        (1.0, [], 1.0),
        (2.0, [1.0, 2.0], 2.0),
        ("x", [], 2.0),
        (2.0, [[1.0]], 2.0),
        (2.0, [float("inf")], float("inf")),
    ],
    ids=str,
)
def test_the_norm_type_is_that_of_the_watched_calls(header: object, calls: list[object], expected: float) -> None:
    events = tuple({"k": "clip", "how": "norm", "p": p} for p in calls)
    part = RankPart(0, {"norm_type": header}, (), np.empty(0, np.int64), {}, np.empty((0, 0), np.float32), events)
    assert suggest_threshold(run_of(norms(50), recorded=Recorded(1, {0: part}))).norm_type == expected
