"""Each behaviour as a pair: where it fires, and the like of it where it stays quiet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradclip_cli.detect import align, baseline, creep, detect, early, ends_nonfinite, ordinary, recovery
from gradclip_cli.model.detection import Detection
from gradclip_cli.model.run import Series, Values
from tests.detect_cases import decay, falling_loss, judge, raised, series, usual_norm, with_bump

ROWS = np.arange(600)


def explosions(found: Detection) -> list[tuple[int, int]]:
    return [(e.first, e.last) for e in found.explosions]


def onsets(found: Detection) -> list[int]:
    return [s.first for s in found.spikes]


# --- exploding steps


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({300: 30}, [(300, 300)]),
        ({300: 30, 301: 60, 303: 30}, [(300, 303)]),  # alarms up to three rows apart are one event
        ({300: 30, 310: 30}, [(300, 300), (310, 310)]),
        ({599: 30}, [(599, 599)]),
        ({12: 30}, [(12, 12)]),
        ({4: 60}, [(4, 4)]),  # before there is a baseline: what follows tells
    ],
)
def test_a_norm_many_times_the_usual_is_an_explosion(rows: dict[int, float], expected: list[tuple[int, int]]) -> None:
    found = judge(norm=raised(usual_norm(), rows))
    assert explosions(found) == expected
    assert not found.spikes
    assert not found.diverged


def test_an_explosion_knows_its_peak_and_the_level_before() -> None:
    (e,) = judge(norm=raised(np.full(100, 2.0), {50: 20, 51: 40})).explosions
    assert (e.first, e.last, e.peak) == (50, 51, 51)
    assert e.level == pytest.approx(2.0)
    assert e.ratio == pytest.approx(40.0)


def rising(factor: float, rows: int, start: int = 200) -> Values:
    return np.exp(np.log(factor) * np.clip((ROWS - start) / rows, 0, 1))


@pytest.mark.parametrize(
    "norm",
    [
        usual_norm(),
        raised(usual_norm(), {300: 5}),
        usual_norm() * (1 + 80 * np.exp(-ROWS / 10)),  # a steep start
        usual_norm() * rising(12, 300),  # a slow rise is a change of level
        usual_norm() * np.where(ROWS >= 300, 4, 1),
        usual_norm() * np.exp(np.sin(ROWS / 20)),
        usual_norm(sigma=0.6),
        np.minimum(usual_norm(), 1.0),  # logged after clipping
        raised(usual_norm(), dict.fromkeys(range(40, 600, 13), 7) | {300: 12}),  # the noise reaches nearly as far
        np.where(ROWS % 50 == 0, 0.0, usual_norm()),
        np.ones(600),
    ],
    ids=["clean", "outlier", "start", "slow", "step", "swing", "noisy", "clipped", "bimodal", "zeros", "constant"],
)
def test_norms_that_are_usual_for_their_run_are_no_explosions(norm: Values) -> None:
    assert explosions(judge(norm=norm)) == []


def test_one_explosion_does_not_hide_the_next() -> None:
    rows = dict.fromkeys(range(300, 400, 9), 20.0)
    assert explosions(judge(norm=raised(usual_norm(), rows))) == [(row, row) for row in rows]


# --- loss spikes and recovery


@pytest.mark.parametrize(
    ("bump", "onset", "last"),
    [
        (np.array([1.5]), (300, 300), (300, 300)),
        (np.full(6, 0.8), (300, 300), (305, 306)),
        (decay(1.5, 10), (300, 300), (320, 345)),
        (decay(1.0, 60), (300, 300), (380, 520)),
        (1.2 * np.minimum(np.arange(1, 80) / 15, 1) * np.r_[np.ones(20), decay(1, 10, 59)], (300, 304), (330, 360)),
    ],
    ids=["one row", "few rows", "decay", "slow decay", "ramp"],
)
def test_a_rise_that_goes_back_is_a_recovered_spike(bump: Values, onset: tuple[int, int], last: tuple[int, int]) -> None:
    found = judge(with_bump(falling_loss(), 300, bump))
    (s,) = found.spikes
    assert onset[0] <= s.first <= onset[1]
    assert last[0] <= s.last <= last[1]
    assert s.recovered is True
    assert s.level == pytest.approx(2.16, abs=0.08)
    assert s.height == pytest.approx(bump.max(), abs=0.15)
    assert not found.diverged


@pytest.mark.parametrize(
    "bump",
    [np.full(300, 1.0), 0.5 + decay(1.5, 20, 300), np.minimum(np.arange(300) / 20, 1), np.linspace(0.5, 8, 300)],
    ids=["flat high", "partial", "ramp", "rising"],
)
def test_a_rise_that_stays_is_a_divergence(bump: Values) -> None:
    found = judge(with_bump(falling_loss(), 300, bump))
    s = found.spikes[0]
    assert 298 <= s.first <= 306
    assert s.recovered is False
    assert s.fatal
    assert s.last == 599
    assert found.diverged


def test_a_log_that_ends_too_soon_leaves_it_undecided() -> None:
    found = judge(with_bump(falling_loss(), 590, np.full(10, 1.0)))
    assert [(s.first, s.recovered, s.fatal) for s in found.spikes] == [(590, None, False)]
    assert not found.diverged


def test_a_return_that_the_end_cuts_off_is_undecided() -> None:
    found = judge(with_bump(falling_loss(), 540, decay(1.5, 30)))
    assert [(s.first, s.recovered) for s in found.spikes] == [(540, None)]


def test_a_loss_beyond_all_measure_at_the_end_is_a_divergence() -> None:
    found = judge(np.r_[falling_loss(100), 240.0, 8e5, 1e18])
    assert [(s.first, s.last, s.recovered) for s in found.spikes] == [(100, 102, False)]
    assert found.spikes[0].level == pytest.approx(2 + 2 * np.exp(-100 / 120), abs=0.1)
    assert found.diverged


@pytest.mark.parametrize(
    "loss",
    [
        falling_loss(),
        falling_loss(noise=0.3),
        with_bump(falling_loss(), 300, np.array([0.15])),  # 7 %
        10 * np.exp(-ROWS / 15) + falling_loss(),
        falling_loss() * (1 + 0.1 * np.sin(ROWS / 30)),
        falling_loss() + 0.5 * ROWS / 600,
        2.0 * 0.85 ** (ROWS // 100) + 0.01 * usual_norm(),
        np.round(falling_loss(noise=0.004), 2),
        0.05 * np.random.default_rng(3).standard_t(4, 600),
        -0.9 + 0.5 * np.exp(-ROWS / 60) + 0.01 * np.random.default_rng(3).normal(size=600),
        np.exp(0.4 * np.random.default_rng(3).normal(size=600)),
        2 + 0.02 * np.random.default_rng(5).standard_t(3, 600),
        5 * np.exp(-ROWS / 40) + 1e-4 * usual_norm(sigma=0.8),
        np.full(600, 0.693147),
        np.zeros(600),
    ],
    ids=[
        "clean",
        "noisy",
        "small",
        "steep",
        "swing",
        "drift",
        "stairs",
        "rounded",
        "around0",
        "negative",
        "batch1",
        "tails",
        "near0",
        "constant",
        "zero",
    ],
)
def test_losses_that_are_usual_for_their_run_are_no_spikes(loss: Values) -> None:
    found = judge(loss)
    assert found.spikes == ()
    assert not found.diverged


def test_a_lasting_rise_is_seen_at_half_the_height_of_an_outlier() -> None:
    noisy = falling_loss(noise=0.15)
    assert onsets(judge(with_bump(noisy, 300, np.array([0.8])))) == []
    assert judge(with_bump(noisy, 300, np.full(300, 0.8))).diverged


def test_an_outlier_must_stand_out_of_the_tail_of_the_noise() -> None:
    quiet = falling_loss(noise=0.01)
    tailed = raised(quiet, dict.fromkeys((150, 190, 240, 270, 330, 371, 420), 1.25))
    assert onsets(judge(with_bump(quiet, 300, np.array([0.7])))) == [300]
    assert 300 not in onsets(judge(with_bump(tailed, 300, np.array([0.7]))))


def test_regular_leaps_are_an_effect_of_the_data_and_irregular_ones_are_spikes() -> None:
    regular, irregular = range(100, 600, 80), [100, 171, 290, 333, 452, 517]
    assert onsets(judge(raised(falling_loss(), dict.fromkeys(regular, 1.5)))) == []
    assert onsets(judge(raised(falling_loss(), dict.fromkeys(irregular, 1.5)))) == irregular


def test_regular_leaps_that_explosions_lead_are_spikes() -> None:
    rows = list(range(100, 600, 80))
    found = judge(raised(falling_loss(), dict.fromkeys(rows, 1.5)), raised(usual_norm(), dict.fromkeys(rows, 30)))
    assert onsets(found) == rows


def test_tall_irregular_rises_are_spikes_however_many_there_are() -> None:
    rows = np.flatnonzero(np.random.default_rng(7).random(600) < 0.06)
    found = judge(np.where(np.isin(ROWS, rows), 20.0, falling_loss()))
    assert len(found.spikes) > 0.5 * len(rows)
    assert set(onsets(found)) <= set(rows.tolist())
    regular = judge(np.where(ROWS % 50 == 25, 20.0, falling_loss()))
    assert regular.spikes == ()
    assert len(regular.recurring) >= 10


def test_teeth_that_mostly_stay_below_the_alarm_are_regular_all_the_same() -> None:
    rows = np.arange(3000)
    teeth = 2.5 - rows % 200 / 750
    found = judge(teeth + 0.02 * np.random.default_rng(5).normal(size=3000))
    assert found.spikes == ()
    assert found.recurring
    lone = np.where(rows // 200 == 7, teeth, 2.24)
    assert onsets(judge(lone + 0.02 * np.random.default_rng(5).normal(size=3000))) == [1400]


def test_data_of_two_kinds_leap_between_them() -> None:
    hard = np.random.default_rng(7).random(600) < 0.15
    assert len(onsets(judge(falling_loss() * np.where(hard, 1.6, 1.0)))) <= 1


def test_after_a_rise_of_the_learning_rate_twice_the_rise_is_needed() -> None:
    warm = with_bump(falling_loss(), 300, decay(0.38, 30))
    lr = np.where(ROWS < 300, 1e-4, 1e-3)
    assert onsets(judge(warm, lr=np.full(600, 1e-4))) == [300]
    assert onsets(judge(warm, lr=lr)) == []
    assert onsets(judge(with_bump(falling_loss(), 300, decay(0.9, 30)), lr=lr)) == [300]


def test_spikes_after_a_return_are_their_own() -> None:
    loss = with_bump(with_bump(falling_loss(), 250, decay(1.5, 6)), 350, decay(1.5, 6))
    assert onsets(judge(loss)) == [250, 350]


def test_a_return_that_wavers_is_one_spike() -> None:
    bump = decay(1.5, 40)
    bump[60:75] = 0.0  # back for a moment, then up again by less than half
    bump[75:90] += 0.3
    assert len(judge(with_bump(falling_loss(), 250, bump)).spikes) == 1


@pytest.mark.parametrize("row", [2, 3, 5, 7])
def test_a_leap_before_there_is_a_baseline_is_seen_by_its_return(row: int) -> None:
    start = np.r_[np.full(row, 12.4), 44, 48, 40, 33, 26, 20, 16, 13, np.linspace(12, 8, 60)]
    (s,) = judge(start).spikes
    assert s.first == row
    assert s.recovered is True


@pytest.mark.parametrize("row", [2, 4, 7])
def test_a_leap_before_there_is_a_baseline_that_stays_is_a_divergence(row: int) -> None:
    found = judge(np.r_[np.full(row, 2.9), 50, 500, 5000, np.full(60, 9999.0)])
    assert [(s.first, s.recovered, s.fatal) for s in found.spikes] == [(row, False, True)]
    assert found.diverged


@pytest.mark.parametrize(
    "start",
    [
        np.r_[12.4, 11, 44, 30, 25, 22, np.linspace(21, 19, 60)],  # never back: it may be the start
        np.r_[0.1, 0.4, 1.0, 2.0, 3.0, np.linspace(3, 2, 60)],  # a mean that starts at 0
        np.r_[40, 22, 14, np.linspace(12, 8, 60)],
        np.r_[2.9, 3.0, 8.0, np.full(60, 8.2)],  # stays up, but not three times as high
        np.r_[2.9, 3.0, 9.5, np.full(20, 9.8)],  # three times as high, but too few rows to say that it stays
        np.r_[0.1, 2.5, np.linspace(2.4, 2, 60)],  # the first row alone may measure something else
        np.r_[0.05, falling_loss() - 1.0],  # as does one that is a mean over more steps: all behind it learn
        np.r_[0.02, (1 + 3 * ROWS[:200] / 200) * usual_norm(200, sigma=0.5)],  # an agent's, before it found a reward
    ],
    ids=["stays", "grows", "falls", "low", "short", "first row", "learns", "agent"],
)
def test_a_start_is_no_leap(start: Values) -> None:
    assert early.leap(np.log(start), float(np.log(1.75)), float(np.log(1.06))) is None
    assert judge(start).spikes == ()


@pytest.mark.parametrize("rows", [10, 25, 300])
@pytest.mark.parametrize(
    "before", [[5.0, 5.1], [5.0, 5.1, 4.9], [7.0, 6.0, 5.2], [5.0] * 7], ids=["two rows", "three rows", "falling", "seven rows"]
)
def test_a_huge_leap_within_the_first_rows_is_a_divergence_however_short_the_log(before: list[float], rows: int) -> None:
    found = judge(np.r_[before, 900 * usual_norm(rows, sigma=0.05)])
    assert [(s.first, s.recovered, s.fatal) for s in found.spikes] == [(len(before), False, True)]
    assert found.diverged


@pytest.mark.parametrize("rows", [10, 25, 300])
def test_a_huge_leap_behind_the_first_row_alone_is_told_but_ends_no_run(rows: int) -> None:
    found = judge(np.r_[5.0, 900 * usual_norm(rows, sigma=0.05)])
    assert [(s.first, s.recovered, s.fatal) for s in found.spikes] == [(1, False, False)]
    assert not found.diverged


@pytest.mark.parametrize("tau", [1, 5, 20, 60])
@pytest.mark.parametrize("before", [[5.0], [5.0, 5.1], [5.0, 5.1, 4.9]], ids=["one row", "two rows", "three rows"])
def test_a_huge_leap_within_the_first_rows_that_comes_back_is_a_spike_however_long_it_takes(before: list[float], tau: float) -> None:
    loss = np.r_[before, 4 + decay(900, tau, rows=600)]
    (s,) = judge(loss).spikes
    assert (s.first, s.recovered) == (len(before), True)
    # Back at 1.06 times the highest before it; judged by medians of nine rows.
    back = len(before) + int(tau * np.log(900 / (1.06 * max(before) - 4)))
    assert abs(s.last - back) <= 9


def test_a_loss_that_creeps_up_for_good_diverged() -> None:
    up = np.clip((ROWS - 250) / 300, 0, 1)
    found = judge(falling_loss() + 2.0 * up)
    assert found.diverged
    assert 230 <= found.spikes[0].first <= 330
    assert creep.find(falling_loss() + 0.4 * up) is None
    assert creep.find(falling_loss() + 2.0 * up * (ROWS < 500)) is None


@pytest.mark.parametrize(
    ("loss", "fatal"),
    [
        (2 + 5 * ROWS / 600, False),
        (2 + 9 * ROWS / 600, False),
        (0.3 + 2 * ROWS / 600, False),
        (2 * np.exp(ROWS / 200), True),  # gathers pace
    ],
    ids=["linear", "more", "from little", "pace"],
)
def test_a_loss_that_only_ever_rises_is_an_event_and_a_divergence_where_it_gathers_pace(loss: Values, fatal: bool) -> None:
    found = judge(loss + 0.02 * usual_norm())
    (s,) = found.spikes
    assert (s.first, s.last, s.recovered, s.fatal) == (0, 599, False, fatal)
    assert found.diverged is fatal


@pytest.mark.parametrize(
    "loss",
    [
        2 + 1.5 * ROWS / 600 + 0.02 * usual_norm(),
        (2 + 5 * ROWS / 600) * usual_norm(),  # scatters like an agent's
        2 + 5 * np.sin(ROWS / 600 * np.pi) + 0.02 * usual_norm(),  # comes down again
        3 * (1 - np.exp(-(ROWS + 1) / 60)) + 0.02 * usual_norm(),  # a running mean that starts at 0
        6 + 3 * np.minimum(ROWS / 60, 1) - ROWS / 600 + 0.02 * usual_norm(),
    ],
    ids=["little", "scatters", "returns", "running mean", "start"],
)
def test_other_losses_that_rise_from_their_start_are_none(loss: Values) -> None:
    assert creep.find(loss) is None
    assert not judge(loss).diverged


@pytest.mark.parametrize(
    ("loss", "fatal"),
    [
        # Up to 86 within 90 rows, then down, but not to where it began: with any noise, however the rise began.
        (np.where(ROWS < 90, 3.4 * np.exp(ROWS / 28), 8.7 + 77 * np.exp((90 - ROWS) / 80)), True),
        (3.4 + 30 * (1 - np.exp(-ROWS / 50)), True),  # to a plateau ten times as high
        (3.4 + 5 * (1 - np.exp(-ROWS / 30)), False),  # to one at 2.5 times: perhaps a penalty that is phased in
    ],
    ids=["overshoots", "plateau", "low plateau"],
)
@pytest.mark.parametrize("sigma", [0.02, 0.15])
def test_a_loss_that_left_its_start_upwards_for_good_is_no_recovered_spike(loss: Values, fatal: bool, sigma: float) -> None:
    found = judge(loss * usual_norm(sigma=sigma))
    (s,) = found.spikes
    assert s.first < 60
    assert (s.last, s.recovered, s.fatal) == (599, False, fatal)
    assert found.diverged is fatal


@pytest.mark.parametrize(
    "loss",
    [
        np.where(ROWS < 90, 3.4 * np.exp(ROWS / 28), 2.0 + 83 * np.exp((90 - ROWS) / 60)) * usual_norm(sigma=0.02),  # comes back
        (0.8 + 4 * (1 - np.exp(-ROWS / 30))) * usual_norm(sigma=0.4),  # a generator's
        3.4 * (1 - 0.9 ** (ROWS + 1)) * usual_norm(sigma=0.02),  # a mean that starts at 0
        (3.4 + 2 * (1 - np.exp(-ROWS / 30))) * usual_norm(sigma=0.02),  # not twice as high
    ],
    ids=["returns", "scatters", "running mean", "little"],
)
def test_other_early_rises_are_no_divergence(loss: Values) -> None:
    found = judge(loss)
    assert not found.diverged
    assert all(s.recovered for s in found.spikes)


def running_mean_from_0(loss: Values, weight: float) -> Values:
    mean, out = 0.0, []
    for value in loss:
        mean = weight * mean + (1 - weight) * float(value)
        out.append(mean)
    return np.array(out)


@pytest.mark.parametrize("weight", [0.9, 0.98, 0.99, 0.995])
def test_a_running_mean_that_fills_up_from_0_is_no_event(weight: float) -> None:
    loss = falling_loss(2000, noise=0.1)
    mean = running_mean_from_0(loss, weight)
    rows = early.rows_to_fill(mean)
    # In one row it still rises by what is missing times (1 - weight).
    assert mean[rows] > 0.7 * loss[rows]
    assert judge(mean).spikes == ()
    spiked = judge(running_mean_from_0(with_bump(loss, 1500, np.full(300, 4.0)), weight))
    assert onsets(spiked) == [pytest.approx(1502, abs=20)]


@pytest.mark.parametrize(
    "loss",
    [falling_loss(), 2 * np.exp(ROWS / 6), 2.0 + ROWS, 2.0 * 1.3**ROWS, np.minimum(2.0 + ROWS**2, 1e6), np.r_[0.0, falling_loss()]],
    ids=["falling", "exponential", "linear", "geometric", "square", "zero first"],
)
def test_other_starts_are_no_running_mean(loss: Values) -> None:
    assert early.rows_to_fill(loss) == 0


def test_an_explosive_growth_from_the_start_is_a_divergence() -> None:
    found = judge(np.minimum(2 * np.exp(ROWS / 6), 1e30))
    assert [(s.recovered, s.fatal) for s in found.spikes] == [(False, True)]
    assert found.diverged


def test_a_loss_that_grows_from_its_start_on_is_not_called_diverged() -> None:
    growing = (0.02 + 1.0 * np.clip(ROWS / 500, 0, 1)) * usual_norm(sigma=0.25)
    assert not judge(growing).diverged


# --- what the two series say of each other


@pytest.mark.parametrize(("lag", "led"), [(0, True), (2, True), (8, True), (20, False), (-3, False)])
def test_a_spike_is_led_by_the_explosion_just_before_it(lag: int, led: bool) -> None:
    found = judge(with_bump(falling_loss(), 300 + lag, decay(1.5, 10)), raised(usual_norm(), {300: 30}))
    assert [s.led_by for s in found.spikes] == [0 if led else None]


def test_series_are_linked_by_steps_not_rows() -> None:
    loss = series("loss", with_bump(falling_loss(60), 30, decay(1.5, 4)), every=10)
    norm = series("grad_norm", raised(usual_norm(600), {100: 30, 297: 30}))
    found = detect(loss, norm, None)
    assert explosions(found) == [(100, 100), (297, 297)]
    assert [(s.first, s.led_by) for s in found.spikes] == [(30, 1)]


def test_an_explosion_backs_a_lone_row() -> None:
    loss = with_bump(falling_loss(noise=0.05), 300, np.array([0.42]))
    assert onsets(judge(loss)) == []
    assert onsets(judge(loss, raised(usual_norm(), {299: 30}))) == [300]


def test_a_learning_rate_logged_less_often_holds_until_the_next() -> None:
    at = align.lr_at(np.arange(6), np.array([1, 4]), np.array([0.1, np.nan]))
    assert at.tolist() == [0.1, 0.1, 0.1, 0.1, 0.0, 0.0]


# --- growth of the norm


def growing(to: float, stop: int) -> Values:
    rows = np.arange(stop)
    return usual_norm(stop) * np.exp(np.log(to) * np.clip((rows - (stop - 120)) / 120, 0, 1))


def test_a_norm_that_grows_up_to_the_end_is_reported() -> None:
    (g,) = judge(norm=growing(6, 800)).growths
    assert 640 <= g.first <= 740
    assert g.last == 799
    assert 3.5 < g.factor < 8


def test_a_norm_that_grows_up_to_an_explosion_is_reported() -> None:
    norm = np.r_[growing(6, 800), 6 * usual_norm(100)]
    norm[800] = 300
    found = judge(norm=norm)
    assert explosions(found) == [(800, 800)]
    assert [g.last for g in found.growths] == [799]


@pytest.mark.parametrize(
    ("norm", "lr"),
    [
        (growing(2.3, 800), None),
        (np.r_[growing(6, 800), 6 * usual_norm(200)], None),  # and nothing came of it
        (usual_norm(800) * np.where(np.arange(800) < 700, 1, 5), None),  # a step
        (usual_norm(800) * np.exp(np.log(5) * np.arange(800) / 800), None),  # over the whole run
        (usual_norm(800) * np.exp(0.8 * np.sin(np.arange(800) / 40 + 1.0)), None),  # a swing
        (growing(6, 800), np.where(np.arange(800) < 720, 1e-3, 1e-4)),
        (growing(6, 140), None),  # too short to tell from a warm-up
    ],
    ids=["little", "stays", "step", "slow", "swing", "lr", "short"],
)
def test_other_rises_of_the_norm_are_no_growth(norm: Values, lr: Values | None) -> None:
    assert judge(norm=norm, lr=lr).growths == ()


def slowly_growing(to: float, rows: int = 3000) -> Values:
    return usual_norm(rows) * np.exp(np.log(to) * np.clip((np.arange(rows) / rows - 0.2) / 0.8, 0, 1))


def test_a_norm_that_grows_over_most_of_the_log_is_reported() -> None:
    (g,) = judge(norm=slowly_growing(100)).growths
    assert 300 <= g.first <= 900
    assert g.last == 2999
    assert 40 < g.factor < 150


def test_a_slow_growth_of_the_norm_that_ends_in_a_divergence_is_reported() -> None:
    loss = np.r_[falling_loss(2500), np.full(500, 9.0)]
    found = judge(loss, np.r_[slowly_growing(100, 2500), usual_norm(500)])
    assert [2400 <= g.last < 2500 for g in found.growths] == [True]


THOUSANDS = np.arange(3000)


@pytest.mark.parametrize(
    ("norm", "lr"),
    [
        (slowly_growing(7), None),
        (np.r_[slowly_growing(100, 2000), 10 * usual_norm(1000)], None),  # came down
        (usual_norm(3000) * 5.0 ** (THOUSANDS // 1000), None),  # by stairs
        (usual_norm(3000) * (1 - 0.97 * np.exp(-THOUSANDS / 200)), None),  # finds its level
        (usual_norm(3000) * np.exp(1.5 * np.sin(THOUSANDS / 300)), None),
        (slowly_growing(100), 1e-6 * (1 + THOUSANDS)),
    ],
    ids=["little", "down", "stairs", "start", "swing", "lr"],
)
def test_other_slow_rises_of_the_norm_are_no_growth(norm: Values, lr: Values | None) -> None:
    assert judge(norm=norm, lr=lr).growths == ()


# --- collapse of the loss


def test_a_loss_that_falls_to_zero_or_far_below_within_a_row_collapsed() -> None:
    loss = falling_loss()
    assert judge(np.where(ROWS >= 400, 0.0, loss)).collapses == ((400, 599),)
    assert judge(np.where((ROWS >= 400) & (ROWS < 420), 0.0, loss)).collapses == ((400, 419),)
    assert judge(np.where(ROWS >= 400, -1e6, loss)).collapses == ((400, 599),)
    assert judge(np.r_[2.3, 2.2, 2.4, np.zeros(40)]).collapses == ((3, 42),)
    gap = np.where(ROWS >= 400, 0.0, loss)
    gap[100] = np.nan
    assert judge(gap).collapses == ((400, 599),)  # indices into the series, not its finite rows


@pytest.mark.parametrize(
    "loss",
    [
        np.where((ROWS >= 400) & (ROWS < 405), 0.0, falling_loss()),
        np.where(ROWS % 50 == 9, 0.0, falling_loss()),  # written for nan
        np.zeros(600),
        np.r_[np.zeros(100), falling_loss(500)],
        np.round(2 * np.exp(-ROWS / 30), 4),  # solved
        np.round(2 * np.exp(-ROWS / 30), 1),
        np.maximum(2 - ROWS / 100, 0.0),
        falling_loss() - 2.5 * ROWS / 600,  # passes zero by and by
        0.05 * np.random.default_rng(3).standard_t(4, 600),
        np.round(np.abs(4e-4 * np.random.default_rng(3).normal(size=600)), 4) * (ROWS < 500),
    ],
    ids=["few", "single", "always", "first", "solved", "coarse", "linear", "negative", "around0", "tiny"],
)
def test_losses_that_may_be_zero_or_negative_collapse_nowhere(loss: Values) -> None:
    assert judge(loss).collapses == ()


# --- values that are not finite, and other nonsense


@pytest.mark.parametrize(
    ("tail", "ends"),
    [([], False), ([np.nan], True), ([np.inf] * 5, True), ([np.nan, 2.0, 2.0], False), ([np.nan, np.nan, 2.0, np.nan], False)],
)
def test_a_loss_that_ends_non_finite_diverged(tail: list[float], ends: bool) -> None:
    loss = np.r_[falling_loss(200), tail]
    assert ends_nonfinite(loss) is ends
    assert judge(loss).diverged is ends


def test_a_loss_that_never_was_finite_did_not_diverge() -> None:
    assert not judge(np.full(100, np.nan), usual_norm(100)).diverged
    assert judge(np.r_[2.0, np.full(100, np.nan)]).diverged


def test_a_spike_that_turns_non_finite_never_came_back() -> None:
    found = judge(np.r_[with_bump(falling_loss(200), 194, np.full(6, 2.0)), np.full(50, np.nan)])
    assert [(s.first, s.last, s.recovered) for s in found.spikes] == [(194, 199, False)]


def test_non_finite_rows_hide_nothing_and_raise_no_alarm() -> None:
    loss, norm = with_bump(falling_loss(), 300, decay(1.5, 10)), raised(usual_norm(), {300: 30})
    plain = judge(loss, norm)
    loss[[100, 101, 295, 450]] = np.nan
    norm[[120, 299, 450]] = [np.inf, np.nan, -np.inf]
    found = judge(loss, norm)
    assert explosions(found) == explosions(plain) == [(300, 300)]
    assert onsets(found) == onsets(plain) == [300]
    assert found.judged_loss == plain.judged_loss - 4
    assert found.loss is not None
    assert np.isnan(found.loss.level[[100, 295]]).all()
    assert not found.diverged


SPECIAL = [np.nan, np.inf, -np.inf, 1e38, -1e38, 1.7e308, 5e-324, 0.0, -0.0, 1.0, -1.0, 1e-300]


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 9, 50, 300])
@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_too_strange(rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def strange() -> Values:
        kind = rng.integers(4)
        if kind == 0:
            return np.full(rows, rng.choice(SPECIAL))
        if kind == 1:
            return rng.choice(SPECIAL, rows)
        if kind == 2:
            return 10.0 ** rng.uniform(-300, 300, rows) * rng.choice([-1, 1], rows)
        return np.where(rng.random(rows) < 0.1, rng.choice(SPECIAL, rows), np.exp(rng.normal(size=rows)))

    def far_apart() -> np.ndarray:
        return np.cumsum(rng.integers(1, 10**9, rows)).astype(np.int64)

    given = [Series(name, name, far_apart(), strange()) for name in ("loss", "grad_norm", "lr")]
    found = detect(*given)
    for e in (*found.explosions, *found.spikes):
        assert 0 <= e.first <= e.peak <= e.last < rows
    for series_, line in zip(given, (found.loss, found.norm), strict=False):
        assert (line is None) == (len(series_) == 0)
        assert line is None or len(line.level) == len(line.bound) == rows


def test_absent_series_are_no_fault() -> None:
    found = detect(None, None, None)
    assert found.norm is found.loss is None
    assert (found.judged_norm, found.judged_loss, found.diverged) == (0, 0, False)


def test_too_few_rows_are_not_judged() -> None:
    found = judge(np.r_[np.full(7, 2.0), 90.0], np.r_[np.full(7, 1.0), 90.0])
    assert (found.judged_loss, found.judged_norm) == (0, 0)
    assert not found.explosions
    assert not found.spikes


# --- what must change nothing


def eventful() -> tuple[Values, Values, Values]:
    loss = with_bump(with_bump(falling_loss(), 200, decay(1.5, 10)), 450, np.full(150, 1.0))
    norm = raised(usual_norm(), {100: 20, 200: 50, 201: 30, 449: 15})
    return loss, norm, 1e-3 * np.cos(ROWS / 500)


def events(found: Detection) -> tuple[object, ...]:
    spikes = [(s.first, s.last, s.peak, s.recovered, s.fatal, s.led_by) for s in found.spikes]
    return explosions(found), spikes, [(g.first, g.last) for g in found.growths], found.diverged


def test_the_eventful_series_has_its_events() -> None:
    found = judge(*eventful())
    assert explosions(found) == [(100, 100), (200, 201), (449, 449)]
    assert [(s.first, s.recovered, s.led_by) for s in found.spikes] == [(200, True, 1), (450, False, 2)]


@pytest.mark.parametrize("factor", [1e-12, 0.37, 3.0, 1e9])
def test_units_change_nothing(factor: float) -> None:
    loss, norm, lr = eventful()
    assert events(judge(loss * factor, norm, lr)) == events(judge(loss, norm, lr))
    assert events(judge(loss, norm * factor, lr)) == events(judge(loss, norm, lr))
    assert events(judge(loss, norm, lr * factor)) == events(judge(loss, norm, lr))


@pytest.mark.parametrize(("scale", "shift"), [(1, 10**9), (100, 0), (7, 3)])
def test_the_count_of_steps_changes_nothing(scale: int, shift: int) -> None:
    given = [series(name, values) for name, values in zip(("loss", "grad_norm", "lr"), eventful(), strict=True)]
    moved = [replace(s, steps=s.steps * scale + shift) for s in given]
    assert events(detect(*moved)) == events(detect(*given))


@pytest.mark.parametrize("row", [50, 199, 205, 449, 520])
def test_a_row_of_nan_changes_nothing(row: int) -> None:
    loss, norm, lr = eventful()

    def back(rows: tuple[int, ...]) -> list[int]:
        return [r - (r > row) for r in rows]

    found = judge(*(np.insert(v, row + 1, np.nan) for v in (loss, norm)), np.insert(lr, row + 1, lr[row]))
    plain = judge(loss, norm, lr)
    assert [back((e.first, e.last)) for e in found.explosions] == [[e.first, e.last] for e in plain.explosions]
    assert [back((s.first, s.last, s.peak)) for s in found.spikes] == [[s.first, s.last, s.peak] for s in plain.spikes]
    assert [(s.recovered, s.led_by) for s in found.spikes] == [(s.recovered, s.led_by) for s in plain.spikes]


# --- the parts


def slow_usual(y: Values, calm: np.ndarray, row: int) -> tuple[float, float, float, float]:
    """`baseline.usual` at one row, from its definition."""

    def level(z: Values) -> float:
        return float(min(np.median(z[-32:]), np.median(z[-9:])))

    def residuals(z: Values) -> tuple[list[float], list[float]]:
        above = [z[i] - level(z[:i]) for i in range(1, len(z))]
        return above, [float(np.median(above[max(0, i - 31) : i + 1])) for i in range(len(above))]

    z = y[:row][calm[:row]]
    if len(z) < 8:
        return (np.nan,) * 4
    everything = y[calm]
    seen = everything[: max(len(z), min(42, len(everything)))]  # rows before the 40th residual take its noise
    above, lag = residuals(seen)
    size = np.abs([above[0], *(a - b for a, b in zip(above[1:], lag, strict=False))])
    noise = max(np.median(size[-150:]), 0.8 * np.median(size[-32:]))
    if len(z) - 2 < 100:
        noise = min(noise, 1.6 * np.median(np.abs(np.diff(everything[:100], 2))) / 6**0.5)
    return level(z), float(np.median(z[-9:])), lag[len(z) - 2], 1.4826 * float(noise)


@pytest.mark.parametrize("seed", range(3))
def test_the_baseline_is_what_it_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y = 3 * np.exp(-np.arange(260) / 30) + rng.normal(size=260)
    calm = rng.random(260) < 0.9
    seen = baseline.usual(y, calm, steady_rise=True)
    for row in [0, 5, 9, 12, 30, 41, 60, 99, 110, 180, 259]:
        fast = (seen.level[row], seen.short[row], seen.lag[row], seen.noise[row])
        assert fast == pytest.approx(slow_usual(y, calm, row), nan_ok=True), row
        assert seen.history[row] == calm[:row].sum()


@pytest.mark.parametrize("steady_rise", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_the_baseline_worked_out_anew_in_part_is_the_whole_one(seed: int, steady_rise: bool) -> None:
    rng = np.random.default_rng(seed)
    y, calm = rng.normal(size=6000), np.ones(6000, np.bool_)
    for start in rng.integers(0, 6000, rng.integers(1, 4)):
        calm[start : start + rng.integers(1, 120)] = False
    whole = baseline.usual(y, calm, steady_rise=steady_rise)
    plain = baseline.usual(y, np.ones(6000, np.bool_), steady_rise=steady_rise)
    part = baseline.usual_without(plain, y, calm, steady_rise=steady_rise)
    for name in ("level", "short", "lag", "noise", "history"):
        assert np.array_equal(getattr(part, name), getattr(whole, name), equal_nan=True), name


def test_stretches_and_what_lies_outside() -> None:
    first, last = baseline.stretches(np.array([0, 1, 0, 1, 0, 0, 0, 1], np.bool_), gap=2)
    assert (first.tolist(), last.tolist()) == ([1, 7], [3, 7])
    assert baseline.outside(8, first, last).tolist() == [True, False, False, False, True, True, True, False]
    assert baseline.highest(np.array([9, 1, 5, 2, 9, 9, 9, 4.0]), first, last).tolist() == [5, 4]


def test_a_far_return_is_the_one_a_plain_search_finds() -> None:
    rng = np.random.default_rng(0)
    forward = 5 + np.abs(rng.normal(size=9000))
    quiet = rng.random(9000) < 0.8
    forward[[3000, 8000]], quiet[[3000, 8000]] = [4.0, 3.5], True
    onset = np.array([10, 100, 2500, 3500, 8990])
    goal = np.array([4.2, 3.6, 9.0, 3.0, 9.0])
    drift, tau = np.array([-0.1, -0.05, -1.0, 0.0, 0.0]), np.full(5, 100.0)
    expected = []
    for o, g, d in zip(onset, goal, drift, strict=True):
        t = np.arange(1, 9000 - o)
        hits = np.flatnonzero(quiet[o + 1 :] & (forward[o + 1 :] <= g + d * (1 - np.exp(-t / 100))))
        expected.append(int(o + 1 + hits[0]) if len(hits) else 9000)
    assert recovery.back_at(forward, quiet, onset, goal, drift, tau).tolist() == expected
    assert expected[:2] == [3000, 8000]


def test_a_trend_is_continued_and_damped() -> None:
    y = 10 - 0.01 * np.arange(300.0)
    one = np.array([300])
    drift, tau = recovery.trend(y, np.ones(300, np.bool_), one, np.array([3.0]), np.array([7.0]))
    assert drift == pytest.approx(-1.0)
    assert tau == pytest.approx(100.0)
    flattening = 5 + 5 * np.exp(-np.arange(300) / 50)
    _, faster = recovery.trend(flattening, np.ones(300, np.bool_), one, np.array([5.0]), np.array([5.0]))
    assert 30 < faster[0] < 70


def test_how_far_a_power_law_reaches() -> None:
    alpha = 2.0
    quantiles = (np.arange(1, 385) / 385) ** (-1 / alpha)  # of a Pareto distribution
    tail = np.r_[np.random.default_rng(0).permutation(quantiles), np.full(17, np.nan)]
    tail[[200, *range(192, 200), *range(201, 209)]], tail[384:] = np.nan, tail[192:209].copy()
    largest, expected = ordinary.reach(tail, np.array([200]), np.array([200]), 1)
    second, _ = ordinary.reach(tail, np.array([200]), np.array([200]), 2)
    assert (largest[0], second[0]) == (quantiles[0], quantiles[1])
    assert expected[0] == pytest.approx((384 * 100) ** (1 / alpha), rel=0.5)  # the quantile at one in a hundred times the rows


def test_reach_needs_rows_and_leaves_events_out() -> None:
    rows = np.arange(100.0)
    largest, expected = ordinary.reach(rows, np.array([20, 90]), np.array([80, 95]), 1)
    assert largest.tolist() == [11, 11]  # rows 12 .. 99 belong to the events or lie next to them
    assert expected.tolist() == [0, 0]
