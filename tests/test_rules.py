"""Every rule: a run on which it fires, at the right place, and a near miss on which it stays quiet.

A rule without both fails `test_every_rule_has_both`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from gradclip_cli.analysis import analyze
from gradclip_cli.model.finding import Analysis, Finding, Severity, Verdict
from gradclip_cli.model.run import Damage, NormStage, Overflow, Rewind, Run
from gradclip_cli.rules import RULES
from tests import watched
from tests.conftest import make_run

_RNG_SEED = 7
Case = Callable[[], Run]


def norms(n: int = 400, seed: int = _RNG_SEED) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(-0.7, 0.15, n))


def losses(n: int = 400, seed: int = _RNG_SEED) -> np.ndarray:
    return 2.0 + 2.0 * np.exp(-np.arange(n) / 80) + np.random.default_rng(seed + 1).normal(0, 0.02, n)


def at(values: np.ndarray, where: int | slice, value: object) -> np.ndarray:
    values = values.copy()
    values[where] = value
    return values


def spiked(n: int = 400, where: int = 200, height: float = 3.0, width: float = 6.0) -> np.ndarray:
    out = losses(n)
    out[where:] += height * np.exp(-np.arange(n - where) / width)
    return out


def lost(n: int = 400, where: int = 200) -> np.ndarray:
    out = losses(n)
    out[where:] += 3.0
    return out


def branch() -> Run:
    full = make_run(spiked(), at(norms(), 198, 60.0))
    return make_run(losses(), norms(), rewinds=(Rewind(150, 399, 250, full.series),))


def tensor_run(share: float) -> Run:
    n = norms()
    return make_run(losses(), n, more={"grad_norm/a": n * math.sqrt(share), "grad_norm/b": n * math.sqrt(1 - share)})


def scale_run(drops: int, first: int) -> Run:
    scale = np.full(400, 65536.0)
    for k in range(drops):
        scale[first + k :] /= 2
    return make_run(losses(), norms(), more={"loss_scale": scale})


# rule -> (fires, first and last step of the finding or None, stays quiet)
CASES: dict[str, tuple[Case, tuple[int, int] | None, Case]] = {
    "GC101": (lambda: make_run(losses(), at(norms(), 200, 30.0)), (200, 200), lambda: make_run(losses(), at(norms(), 200, 1.8))),
    "GC102": (lambda: make_run(spiked(), norms()), None, lambda: make_run(at(losses(), 200, 2.3), norms())),
    "GC103": (lambda: make_run(lost(), norms()), None, lambda: make_run(spiked(), norms())),
    "GC104": (lambda: make_run(losses(), at(norms(), slice(50, 53), np.inf)), (50, 52), lambda: make_run(losses(), at(norms(), 50, 1e30))),
    "GC105": (
        lambda: make_run(at(losses(), slice(390, 400), np.nan), norms()),
        (390, 399),
        lambda: make_run(losses(), at(norms(), 50, np.nan)),
    ),
    "GC106": (
        lambda: make_run(losses(800), norms(800) * np.concatenate([np.ones(500), np.geomspace(1, 40, 300)])),
        None,
        lambda: make_run(losses(800), norms(800) * np.geomspace(1, 2, 800)),
    ),
    "GC107": (
        lambda: make_run(losses(), at(norms(), slice(100, 120), 0.0)),
        (100, 119),
        lambda: make_run(losses(), at(norms(), slice(100, 109), 0.0)),
    ),
    "GC108": (lambda: scale_run(6, 200), (200, 205), lambda: scale_run(6, 1)),
    "GC109": (lambda: tensor_run(0.97), (0, 399), lambda: tensor_run(0.6)),
    "GC201": (lambda: make_run(losses(), norms() * 20, max_norm=1.0), (0, 399), lambda: make_run(losses(), norms(), max_norm=0.6)),
    "GC202": (lambda: make_run(losses(), norms(), max_norm=10.0), (0, 399), lambda: make_run(losses(), norms(), max_norm=1.0)),
    "GC203": (
        lambda: make_run(losses(), at(np.minimum(norms(), 0.5), 7, 0.9), max_norm=0.5, norm_stage=NormStage.POST_CLIP),
        (7, 7),
        lambda: make_run(losses(), np.minimum(norms(), 0.5), max_norm=0.5, norm_stage=NormStage.POST_CLIP),
    ),
    "GC301": (lambda: make_run(losses(), norms(), every=10), (0, 3990), lambda: make_run(losses(), norms())),
    "GC302": (
        lambda: make_run(losses(), np.minimum(norms(), 0.5), norm_stage=NormStage.POST_CLIP, stage_reason="the key says so"),
        (0, 399),
        lambda: make_run(losses(), np.minimum(norms(), 0.5), norm_stage=NormStage.PRE_CLIP),
    ),
    "GC303": (
        lambda: make_run(at(losses(), slice(300, 400), 0.0), at(norms(), slice(300, 400), np.nan)),
        (300, 399),
        lambda: make_run(at(losses(), 300, 0.0), at(norms(), 301, np.nan)),
    ),
    "GC304": (branch, (150, 399), lambda: make_run(losses(), norms())),
    "GC305": (lambda: make_run(losses()), None, lambda: make_run(losses(), norms())),
    "GC306": (lambda: make_run(losses(20), norms(20)), None, lambda: make_run(losses(30), norms(30))),
    "GC307": (
        lambda: make_run(losses(), norms(), damage=(Damage("byte 4096", "the file ends inside a record", "one record"),)),
        None,
        lambda: make_run(losses(), norms()),
    ),
}

_EVERY = (1, watched.UPDATES)


def loop(function: Callable[[], None]) -> Case:
    return lambda: watched.watched(function)


CASES |= {
    "GC401": (loop(watched.scaled(unscale=False)), _EVERY, loop(watched.scaled(unscale=True))),
    "GC402": (loop(watched.after_step), (2, watched.UPDATES), loop(watched.right)),
    "GC403": (loop(watched.before_backward), _EVERY, loop(watched.right)),
    "GC404": (loop(watched.per_microbatch), _EVERY, loop(watched.right_accumulated)),
    "GC405": (loop(watched.changed_behind), _EVERY, loop(watched.right)),
    "GC406": (loop(watched.partial), _EVERY, loop(watched.frozen_part)),
    "GC407": (loop(watched.empty_list), _EVERY, loop(watched.right)),
    "GC408": (loop(watched.on_copies), _EVERY, loop(watched.right_by_hand)),
    "GC409": (loop(watched.separate), _EVERY, loop(watched.right)),
    "GC410": (loop(watched.unclipped), _EVERY, loop(watched.right_by_hand)),
    "GC411": (lambda: watched.ranks(watched.right, watched.unclipped), _EVERY, lambda: watched.ranks(watched.right, watched.right)),
    "GC412": (loop(watched.repeated), _EVERY, loop(watched.right)),
    "GC413": (loop(watched.nonfinite(skip=False)), (6, watched.UPDATES), loop(watched.nonfinite(skip=True))),
    "GC414": (loop(watched.bound(-1.0)), _EVERY, loop(watched.bound(float("inf")))),
    "GC415": (loop(watched.by_value), _EVERY, loop(watched.right)),
    "GC416": (loop(watched.twice(5.0)), _EVERY, loop(watched.twice(float("inf")))),
    "GC417": (loop(watched.cleared), _EVERY, loop(watched.cleared_late)),
    "GC418": (loop(watched.closure(inside=False)), _EVERY, loop(watched.closure(inside=True))),
    "GC419": (loop(watched.scaled(unscale=True, twice=True)), _EVERY, loop(watched.scaled(unscale=True))),
}


def found(analysis: Analysis, rule: str) -> list[Finding]:
    return [f for f in analysis.findings if f.rule == rule]


def test_every_rule_has_both() -> None:
    assert set(CASES) == {r.id for r in RULES}


@pytest.mark.parametrize("rule", CASES)
def test_fires(rule: str) -> None:
    make, where, _ = CASES[rule]
    hits = found(analyze(make()), rule)
    assert hits, rule
    if where is not None:
        assert (hits[0].first_step, hits[0].last_step) == where
    assert hits[0].message[:1] != " "
    assert all(isinstance(v, int | float) for h in hits for v in h.evidence.values())


@pytest.mark.parametrize("rule", CASES)
def test_stays_quiet(rule: str) -> None:
    assert not found(analyze(CASES[rule][2]()), rule)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_explain_page_has_every_part(rule: object) -> None:
    page = rule.page  # type: ignore[attr-defined]
    places = [page.find(f"\n{part}:") for part in ("What it finds", "Why it matters", "How it decides", "What to do", "When it is wrong")]
    assert -1 not in places
    assert places == sorted(places)
    assert len({r.id for r in RULES}) == len({r.name for r in RULES}) == len(RULES)


@pytest.mark.parametrize(
    ("run", "verdict"),
    [
        (lambda: make_run(losses(), norms()), Verdict.STABLE),
        (lambda: make_run(losses(), at(norms(), 200, 30.0)), Verdict.EXPLODED),
        (lambda: make_run(spiked(), at(norms(), 199, 30.0)), Verdict.SPIKED),
        (lambda: make_run(losses(), at(norms(), 200, np.nan)), Verdict.NONFINITE),
        (lambda: make_run(lost(), norms()), Verdict.DIVERGED),
        (lambda: make_run(lost(), at(norms(), 100, np.nan)), Verdict.DIVERGED),
        (lambda: make_run(losses(5), norms(5)), Verdict.CANNOT_JUDGE),
        (lambda: make_run(np.full(5, np.nan)), Verdict.NONFINITE),
    ],
)
def test_verdicts(run: Case, verdict: Verdict) -> None:
    got = analyze(run()).verdict
    # A loss that ends non-finite is as lost as one that ends high.
    assert got is verdict or (verdict is Verdict.NONFINITE and got is Verdict.DIVERGED and not np.isfinite(run().loss.values[-1]))  # type: ignore[union-attr]


def test_a_spike_names_the_explosion_that_led_it() -> None:
    analysis = analyze(make_run(spiked(where=200), at(norms(), 197, 40.0)))
    (spike,) = found(analysis, "GC102")
    assert spike.led_by is not None
    assert (spike.led_by.rule, spike.led_by.first_step, spike.led_by.lead_steps) == ("GC101", 197, 3)
    assert found(analysis, "GC101")[0].severity is Severity.ERROR


def test_without_steps_rows_are_evidence() -> None:
    (hit,) = found(analyze(make_run(losses(), at(norms(), 200, 30.0), steps_known=False)), "GC101")
    assert hit.first_step is None
    assert hit.evidence["first_row"] == 200
    assert "row" not in hit.message or "step" not in hit.message


RIGHT = [
    watched.right,
    watched.right_by_hand,
    watched.right_accumulated,
    watched.frozen_part,
    watched.cleared_late,
    watched.nonfinite(skip=True),
    watched.scaled(unscale=True),
    watched.closure(inside=True),
    watched.twice(float("inf")),
]


@pytest.mark.parametrize("function", RIGHT, ids=range(len(RIGHT)))
def test_a_loop_that_clips_rightly_has_no_finding_of_the_loop(function: Callable[[], None]) -> None:
    assert [f for f in analyze(watched.watched(function)).findings if f.rule.startswith("GC4")] == []


def test_the_numbers_of_a_clip_before_unscale() -> None:
    (hit,) = found(analyze(watched.watched(watched.scaled(unscale=False))), "GC401")
    assert hit.evidence["loss_scale"] == 256
    assert hit.evidence["norm_used"] == pytest.approx(1 / 256, rel=1e-4)
    assert "watched.py" in hit.message


def test_missing_series_are_skipped_with_a_reason() -> None:
    analysis = analyze(make_run(losses()))
    assert {s.rule: s.reason for s in analysis.skipped}["GC101"] == "no gradient norm in this log"
    assert "GC102" not in {s.rule for s in analysis.skipped}


def test_an_overflow_the_scaler_skipped_is_an_info() -> None:
    scale = np.full(400, 65536.0)
    scale[200:] /= 2
    analysis = analyze(make_run(losses(), at(norms(), 200, np.inf), more={"loss_scale": scale}))
    (hit,) = found(analysis, "GC104")
    assert hit.severity is Severity.INFO
    assert analysis.verdict is Verdict.STABLE
    assert not found(analysis, "GC108")


def test_overflow_messages() -> None:
    spiral = tuple(Overflow(None, 2.0**-k) for k in range(12))
    (hit,) = found(analyze(make_run(losses(), norms(), overflows=spiral)), "GC108")
    assert hit.evidence["num_overflows"] == 12
    start = tuple(Overflow(k, 2.0 ** (16 - k)) for k in range(5))
    assert not found(analyze(make_run(losses(), norms(), overflows=start)), "GC108")


def test_an_abandoned_branch_with_events_is_a_warning() -> None:
    (hit,) = found(analyze(branch()), "GC304")
    assert hit.severity is Severity.WARNING
    assert hit.evidence["abandoned_exploding_steps"] == 1
    quiet = make_run(losses(), norms())
    harmless = make_run(losses(), norms(), rewinds=(Rewind(390, 399, 10, quiet.series),))
    assert found(analyze(harmless), "GC304")[0].severity is Severity.INFO


def test_never_clipping_is_a_warning_where_steps_exploded_below_the_bound() -> None:
    analysis = analyze(make_run(losses(), at(norms(), 200, 30.0), max_norm=1000.0))
    assert found(analysis, "GC202")[0].severity is Severity.WARNING


def test_many_nonfinite_stretches_are_one_finding_with_the_count() -> None:
    values = norms()
    values[50:70:2] = np.nan
    (hit,) = found(analyze(make_run(losses(), values)), "GC104")
    assert (hit.first_step, hit.last_step) == (50, 68)
    assert hit.evidence["num_nonfinite"] == 10


def test_rises_that_recur_are_told_once_and_are_no_spikes() -> None:
    values = losses(600)
    values[60::60] += 1.0
    analysis = analyze(make_run(values, norms(600)))
    (hit,) = found(analysis, "GC102")
    assert hit.severity is Severity.INFO
    assert hit.evidence["num_rises"] >= 8
    assert analysis.verdict is Verdict.STABLE


def test_a_rise_of_the_learning_rate_before_a_spike_is_named() -> None:
    lr = np.full(400, 1e-3)
    lr[199:] = 1e-2
    (hit,) = found(analyze(make_run(spiked(height=6.0), norms(), more={"lr": lr})), "GC102")
    assert hit.evidence["lr_rise_ratio"] == pytest.approx(10)
    assert "learning rate had just risen 10×" in hit.message
    (hit,) = found(analyze(make_run(spiked(height=6.0), norms(), more={"lr": np.full(400, 1e-3)})), "GC102")
    assert "lr_rise_ratio" not in hit.evidence


def test_a_loss_that_falls_to_zero_at_once_is_no_learning() -> None:
    analysis = analyze(make_run(at(losses(), slice(300, 400), 0.0), norms()))
    (hit,) = found(analysis, "GC103")
    assert (hit.first_step, hit.last_step, hit.severity) == (300, 399, Severity.WARNING)
    assert "no learning does" in hit.message
    assert analysis.verdict is Verdict.SPIKED
    assert not found(analyze(make_run(losses() * np.exp(-np.arange(400) / 20), norms())), "GC103")


def test_a_loss_that_rises_from_its_first_rows() -> None:
    (hit,) = found(analyze(make_run(np.linspace(2, 7, 400) + losses() / 100, norms())), "GC103")
    assert "from its first rows on" in hit.message


def test_values_near_the_largest_float_leave_no_rule_astray() -> None:
    result = analyze(make_run(np.full(60, 1e308), np.full(60, 1e308)))
    assert found(result, "GC107") == []
    assert result.verdict is Verdict.STABLE
