"""Policies: where they come from, what they mean, and how a run is judged by one. No processes here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from gradclip_cli.analysis import analyze
from gradclip_cli.errors import UsageError
from gradclip_cli.model.check import Check, Judgement, Status, Suite, overall
from gradclip_cli.model.finding import Analysis, Finding, Severity, Skipped, Verdict
from gradclip_cli.model.run import NormStage, Run, Series
from gradclip_cli.policy import SETTINGS, Layer, Policy, find_config, in_force, judge, load_config, settle, unreadable, verified
from gradclip_cli.rules import RULES
from tests.conftest import make_run

N = 300


def values(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A loss that falls from 4 to 2 and norms around 0.5, both noisy."""
    rng = np.random.default_rng(seed)
    loss = 2 + 2 * np.exp(-np.arange(n) / 60) + 0.02 * rng.standard_normal(n)
    return loss, 0.5 * np.exp(0.15 * rng.standard_normal(n))


def calm(**fields: object) -> Run:
    loss, norm = values()
    return make_run(loss, norm, **fields)


def policy(**values: object) -> Policy:
    return settle([Layer("test", {key.replace("_", "-"): value for key, value in values.items()})], RULES)


def checks_of(run: Run | Analysis, asked: Policy | None = None, baseline: Run | None = None) -> dict[tuple[str, str], Check]:
    analysis = analyze(run) if isinstance(run, Run) else run
    suite = judge(analysis, asked or Policy(), RULES, None if baseline is None else analyze(baseline))
    return {(c.id, c.name): c for c in suite.checks}


def judgement(run: Run, asked: Policy | None = None) -> Judgement:
    return judge(analyze(run), asked or Policy(), RULES).judgement


def with_findings(*found: tuple[str, Severity]) -> Analysis:
    """A calm run of which rules say what the test wants."""
    by_id = {r.id: r for r in RULES}
    findings = tuple(Finding(i, by_id[i].name, s, "seen", 10, 12, {"ratio": 20.0}) for i, s in found)
    return replace(analyze(calm()), findings=findings, verdict=Verdict.STABLE)


# Where the values come from


def test_every_setting_is_a_field() -> None:
    assert {s.field for s in SETTINGS} == {f.name for f in fields(Policy)} - {"folder", "origins"}
    assert settle([], RULES) == Policy()


def test_a_later_layer_wins_key_by_key() -> None:
    settled = settle([Layer("file", {"fail-on": "warning", "min-steps": 100}), Layer("command line", {"min-steps": 200})], RULES)
    assert (settled.fail_on, settled.min_steps, settled.tolerance) == (Severity.WARNING, 200, 0.1)
    assert settled.origins == {"fail-on": "file", "min-steps": "command line"}
    shown = {setting.key: (value, origin) for setting, value, origin in in_force(settled)}
    assert shown["min-steps"] == (200, "command line")
    assert shown["tolerance"] == (0.1, "default")


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"max_clipped_fraction": 0.1}, "unknown key", "max-clipped-fraction"),
        ({"fail-om": "error"}, "unknown key", "fail-on"),
        ({"zzz": 1}, "unknown key", "select, ignore"),
        ({"fail-on": "info"}, '"error" or "warning"', None),
        ({"select": ["GC9"]}, "rule ids", None),
        ({"ignore": ["alwys-clipping"]}, "rule ids", "always-clipping"),
        ({"select": 3}, "a list of rules", None),
        ({"select": []}, "with one at least", None),
        ({"select": ["GC1", "divirged"]}, "select holds 'divirged'", "diverged"),
        ({"chekc": {}}, "unknown key", "check"),
        ({"preflight": ["verify", "recrod x.py"]}, "preflight holds 'recrod x.py'", "record"),
        ({"preflight": [["verify", "a\0b.py"]]}, "preflight holds", None),
        ({"preflight": ["torchrun --nproc-per-node 2 train.py"]}, "preflight holds", "-m gradclip_cli record"),
        ({"preflight": ["torchrun -m gradclip_cli recrod x.py"]}, "preflight holds", "record"),
        ({"require": ["grad norm"]}, "loss, grad_norm", "grad_norm"),
        ({"strict": "yes"}, "true or false", None),
        ({"min-steps": 0}, "at least 1", None),
        ({"min-steps": 2.5}, "whole number", None),
        ({"min-steps": True}, "whole number", None),
        ({"max-clipped-fraction": 1.5}, "from 0 to 1", None),
        ({"max-clipped-fraction": float("nan")}, "from 0 to 1", None),
        ({"max-clipped-fraction": True}, "from 0 to 1", None),
        ({"tolerance": 0}, "above 0", None),
        ({"max-norm": float("inf")}, "above 0", None),
        ({"runs": [1]}, "a path", None),
        ({"baseline": ""}, "a path", None),
        ({"preflight": "verify"}, "a list of command lines", None),
        ({"preflight": ["recrod train.py"]}, "verify, record or probe", "record"),
        ({"preflight": ["record 'train.py"]}, "quotation", None),
        ({"preflight": [""]}, "verify, record or probe", None),
    ],
    ids=str,
)
def test_what_a_key_cannot_take(given: Mapping[str, object], message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as e:
        settle([Layer("gradclip.toml", given)], RULES)
    assert e.value.message.startswith("gradclip.toml: ")
    assert message in e.value.message
    assert hint is None or hint in (e.value.hint or "")


def test_preflight_takes_texts_and_lists() -> None:
    settled = policy(preflight=["gradclip verify --device cpu", ["record", "my script.py"], "record 'a b.py'"])
    assert settled.preflight == (("verify", "--device", "cpu"), ("record", "my script.py"), ("record", "a b.py"))


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "gradclip.toml").write_text('runs = ["a", "b/c"]\nbaseline = "good"\npreflight = ["verify"]\n')
    settled = settle([*load_config(tmp_path / "gradclip.toml"), Layer("command line", {"baseline": "other"})], RULES)
    assert settled.runs == (tmp_path / "a", tmp_path / "b" / "c")
    assert settled.baseline == Path("other")
    assert settled.folder == tmp_path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[tool.gradclip]\nfail-on = "warning"\n'),
        ("pyproject.toml", '[tool.gradclip.check]\nfail-on = "warning"\n'),
        ("pyproject.toml", 'x = 1\n[tool.gradclip]\nmin-steps = 9\n[tool.gradclip.check]\nfail-on = "warning"\n'),
        ("gradclip.toml", 'fail-on = "warning"\n'),
        ("gradclip.toml", '\ufefffail-on = "warning"\r\n'),
        ("gradclip.toml", '[check]\nfail-on = "warning"\n'),
    ],
)
def test_places_in_a_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    settled = settle(load_config(tmp_path / name), RULES)
    assert settled.fail_on is Severity.WARNING
    assert settled.origins["fail-on"].startswith(str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gradclip.toml", "fail-on = ", "not valid TOML"),
        ("gradclip.toml", b"\xff\xfe", "no UTF-8"),
        ("gradclip.toml", b"#" * 10_000_001, "more than 10,000,000 bytes"),
        ("gradclip.toml", "check = 3", "is not a table"),
        ("gradclip.toml", '[tool.gradclip]\nfail-on = "error"', "unknown key 'tool'"),
        ("gradclip.toml", "min-steps = 1\n[check]\nmin-steps = 2", "set twice"),
        ("gradclip.toml", f"a = {'[' * 5000}{']' * 5000}", "not valid TOML"),
        ("pyproject.toml", "[tool]\ngradclip = 3", "is not a table"),
        ("pyproject.toml", "[tool.other]", "no table [tool.gradclip]"),
        ("missing.toml", None, "no such file"),
    ],
    ids=lambda x: x[:20] if isinstance(x, str) else None,
)
def test_files_that_are_no_configuration(tmp_path: Path, name: str, text: str | bytes | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=message.replace("[", r"\[")):
        load_config(tmp_path / name)


def test_the_nearest_file_up_to_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "repo" / "pkg"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    (tmp_path / "gradclip.toml").touch()
    assert find_config(inner) is None, "outside of a repository, nothing above counts"
    (tmp_path / "repo" / ".git").mkdir()
    assert find_config(inner) is None, "what lies above the repository is somebody else's"
    (tmp_path / "repo" / "pyproject.toml").write_text("[tool.gradclip]\n")
    assert find_config(inner) == Path("../pyproject.toml")
    (inner / "pyproject.toml").write_text("[tool.other]\n")
    assert find_config(inner) == Path("../pyproject.toml"), "one that does not mention gradclip is passed over"
    (tmp_path / "repo" / "gradclip.toml").touch()
    assert find_config(inner) == Path("../gradclip.toml")


# Which findings count


@pytest.mark.parametrize(
    ("given", "rule", "severity", "counts"),
    [
        ({}, "GC103", "error", True),
        ({}, "GC103", "warning", False),
        ({"fail_on": "warning"}, "GC103", "warning", True),
        ({"fail_on": "warning"}, "GC202", "info", False),
        ({"ignore": ["GC1"]}, "GC103", "error", False),
        ({"ignore": ["gc103"]}, "GC103", "error", False),
        ({"ignore": ["diverged"]}, "GC103", "error", False),
        ({"ignore": ["GC104"]}, "GC103", "error", True),
        ({"select": ["GC1"]}, "GC203", "error", False),
        ({"select": ["GC1,GC2"]}, "GC203", "error", True),
        ({"select": ["GC2"]}, "GC201", "warning", False),
        # Named in full: from its own severity on.
        ({"select": ["GC201"]}, "GC201", "warning", True),
        ({"select": ["always-clipping"]}, "GC201", "warning", True),
        ({"select": ["GC", "GC201"]}, "GC201", "warning", True),
        ({"select": ["GC102"]}, "GC102", "info", False),
        ({"select": ["GC202"]}, "GC202", "info", True),
        ({"select": ["GC201"], "ignore": ["GC2"]}, "GC201", "warning", False),
    ],
    ids=str,
)
def test_which_findings_count(given: Mapping[str, object], rule: str, severity: str, counts: bool) -> None:
    asked = policy(**given)
    suite = judge(with_findings((rule, Severity(severity))), asked, RULES)
    assert (suite.judgement is Judgement.FAIL) is counts
    known = next(r for r in RULES if r.id == rule)
    assert asked.counts(known, Severity(severity)) is counts


def test_one_check_a_rule_with_the_gravest_finding_first() -> None:
    found = checks_of(with_findings(("GC101", Severity.WARNING), ("GC101", Severity.ERROR), ("GC102", Severity.INFO)))
    check = found["GC101", "exploding-step"]
    assert check.counts
    assert check.detail == "steps 10–12: seen (and 1 more)"
    assert check.evidence == {"ratio": 20.0, "first_step": 10, "last_step": 12, "num_findings": 2}
    noted = found["GC102", "loss-spike"]
    assert (noted.status, noted.severity, noted.counts) == (Status.FAIL, Severity.INFO, False)
    assert [i for i, _ in found if i.startswith("GC")] == [r.id for r in RULES]


def test_a_warning_that_counts_is_a_failure_like_an_error() -> None:
    found = checks_of(with_findings(("GC106", Severity.WARNING)), policy(fail_on="warning"))
    assert found["GC106", "norm-growth"].counts
    assert checks_of(with_findings(("GC106", Severity.WARNING)))["GC106", "norm-growth"].severity is Severity.WARNING


def test_rows_where_there_are_no_steps() -> None:
    analysis = with_findings()
    finding = Finding("GC103", "diverged", Severity.ERROR, "seen", None, None, {"first_row": 3, "last_row": 3})
    check = checks_of(replace(analysis, findings=(finding,)))["GC103", "diverged"]
    assert check.detail == "row 3: seen"


def test_a_rule_that_could_not_judge_is_a_skip_and_strict_makes_it_fail() -> None:
    analysis = replace(with_findings(), skipped=(Skipped("GC108", "no loss scale"),))
    assert checks_of(analysis)["GC108", "overflow-streak"] == Check("GC108", "overflow-streak", Status.SKIP, "no loss scale")
    assert judge(analysis, Policy(), RULES).judgement is Judgement.PASS
    hard = checks_of(analysis, policy(strict=True))["GC108", "overflow-streak"]
    assert hard.counts
    assert hard.detail == "could not be judged: no loss scale"
    assert judge(analysis, policy(strict=True, ignore=["GC108"]), RULES).judgement is Judgement.PASS


# What comes to what


def test_precedence() -> None:
    good, skip = Check("a", "a", Status.PASS, ""), Check("b", "b", Status.SKIP, "why")
    missing = replace(skip, required=True)
    bad, warned = Check("c", "c", Status.FAIL, ""), Check("d", "d", Status.FAIL, "", severity=Severity.WARNING)
    for checks, expected in [
        ((good,), "pass"),
        ((good, skip), "pass"),
        ((good, warned), "pass"),
        ((skip,), "cannot-judge"),
        ((warned,), "cannot-judge"),
        ((), "cannot-judge"),
        ((good, missing), "cannot-judge"),
        ((good, missing, bad), "fail"),
    ]:
        assert Suite("x", checks).judgement == expected
    suites = [Suite("x", c) for c in ((good,), (good, missing), (bad,))]
    assert [overall(suites[:n]) for n in range(4)] == ["cannot-judge", "pass", "cannot-judge", "fail"]


# Defaults: what must be there


def test_a_calm_run_passes_without_any_configuration() -> None:
    assert judgement(calm()) is Judgement.PASS


def test_a_series_that_is_required_and_missing() -> None:
    loss, norm = values()
    without_norm = checks_of(make_run(loss))
    check = without_norm["require", "grad-norm"]
    assert (check.missing, check.detail) == (True, "no gradient norm in this log (--require loss judges without it)")
    assert judgement(make_run(loss)) is Judgement.CANNOT_JUDGE
    assert judgement(make_run(loss), policy(require=["loss"])) is Judgement.PASS
    assert judgement(make_run(None, norm)) is Judgement.CANNOT_JUDGE
    assert judgement(make_run(None, norm), policy(require="grad_norm")) is Judgement.PASS
    assert judgement(calm(), policy(require=["loss", "lr"])) is Judgement.CANNOT_JUDGE
    assert judgement(make_run(loss, norm, more={"lr": loss}), policy(require=["loss", "lr"])) is Judgement.PASS


def test_norms_from_after_clipping_are_no_evidence() -> None:
    check = checks_of(calm(norm_stage=NormStage.POST_CLIP, max_norm=10.0))["require", "grad-norm"]
    assert check.missing
    assert "after clipping" in check.detail


def test_a_finding_outweighs_what_is_missing() -> None:
    loss, _ = values()
    loss[200:] = np.nan
    assert judgement(make_run(loss)) is Judgement.FAIL


@pytest.mark.parametrize(
    ("n", "given", "expected"),
    [
        (30, {}, Judgement.PASS),
        (29, {}, Judgement.CANNOT_JUDGE),
        (29, {"min_steps": 20}, Judgement.PASS),
        (6, {"min_steps": 1}, Judgement.CANNOT_JUDGE),
        (6, {"min_steps": 1, "require": []}, Judgement.CANNOT_JUDGE),
        (N, {"min_steps": N + 1}, Judgement.CANNOT_JUDGE),
    ],
)
def test_too_few_steps_are_no_verdict(n: int, given: Mapping[str, object], expected: Judgement) -> None:
    rng = np.random.default_rng(1)
    run = make_run(3 + 0.01 * rng.standard_normal(n), 0.5 + 0.01 * rng.standard_normal(n))
    assert judgement(run, policy(**given)) is expected


def test_the_fewest_steps_are_those_of_the_rarest_required_series() -> None:
    loss, norm = values()
    run = Run("x", "test", {"loss": make_run(loss).series["loss"], "grad_norm": Series("grad_norm", "g", np.arange(0, N, 15), norm[::15])})
    check = checks_of(run)["min-steps", "min-steps"]
    assert (check.missing, check.evidence["num_steps"]) == (True, 20)
    assert not checks_of(run, policy(require="loss"))["min-steps", "min-steps"].missing


def test_a_loss_that_is_up_when_the_log_ends() -> None:
    loss, norm = values()
    loss[N - 4 :] += 3
    run = make_run(loss, norm)
    spike = analyze(run).detection.spikes[-1]
    assert spike.recovered is None
    assert checks_of(run)["verdict", "verdict"].missing
    assert judgement(run) is Judgement.CANNOT_JUDGE
    assert judgement(run, policy(ignore=["GC102", "GC103"])) is Judgement.PASS


# Limits


def clipped_run(**fields: object) -> Run:
    """300 norms of which 30 are above 1, none 10 times the usual."""
    loss, norm = values()
    norm = np.minimum(norm, 0.9)
    norm[::10] = 1.2
    return make_run(loss, norm, **fields)


@pytest.mark.parametrize(
    ("fields", "limit", "status", "fraction"),
    [
        ({"max_norm": 1.0}, 0.1, Status.PASS, 0.1),
        ({"max_norm": 1.0}, 0.0999, Status.FAIL, 0.1),
        ({"max_norm": 2.0}, 0.0, Status.PASS, 0.0),
        ({"max_norm": 1.2, "norm_stage": NormStage.POST_CLIP}, 0.05, Status.FAIL, 0.1),
        ({}, 0.5, Status.SKIP, None),
        ({"max_norm": 0.0}, 0.5, Status.SKIP, None),
        ({"max_norm": float("inf")}, 0.5, Status.SKIP, None),
    ],
    ids=str,
)
def test_clipped_fraction(fields: Mapping[str, object], limit: float, status: Status, fraction: float | None) -> None:
    check = checks_of(clipped_run(**fields), policy(max_clipped_fraction=limit))["max-clipped-fraction", "max-clipped-fraction"]
    assert check.status is status
    assert check.required
    assert check.evidence.get("clipped_fraction") == fraction


def test_a_logged_coefficient_tells_the_clipped_steps_itself() -> None:
    loss, norm = values()
    coef = np.ones(N)
    coef[:30] = 0.5
    coef[30:60] = 1 - 1e-7
    run = make_run(loss, norm, more={"clip_coef": coef})
    check = checks_of(run, policy(max_clipped_fraction=0.5))["max-clipped-fraction", "max-clipped-fraction"]
    assert check.evidence["clipped_fraction"] == pytest.approx(0.1)


def test_exploding_steps_per_1000() -> None:
    loss, norm = values()
    norm[[100, 150, 200]] = 20
    run = make_run(loss, norm)
    assert judgement(run) is Judgement.PASS, "explosions that no loss spike followed are warnings"
    judged = analyze(run).detection.judged_norm
    assert 280 <= judged <= N
    check = checks_of(run, policy(max_exploding_per_1000=10))["max-exploding-per-1000", "max-exploding-per-1000"]
    assert check.evidence["exploding_per_1000"] == pytest.approx(1000 * 3 / judged)
    assert check.counts is (3000 / judged > 10)
    assert judgement(run, policy(max_exploding_per_1000=11)) is Judgement.PASS
    assert judgement(run, policy(max_exploding_per_1000=9)) is Judgement.FAIL
    assert judgement(make_run(loss), policy(max_exploding_per_1000=9, require="loss")) is Judgement.CANNOT_JUDGE


# Drift


def drift(run: Run, baseline: Run, **given: object) -> dict[str, Check]:
    return {name: c for (i, name), c in checks_of(run, policy(**given), baseline).items() if i == "baseline"}


def test_another_seed_is_no_drift() -> None:
    baseline = calm()
    for seed in range(1, 21):
        found = drift(make_run(*values(seed=seed)), baseline)
        assert [c.status for c in found.values()] == [Status.PASS, Status.PASS], (seed, found)


def test_drift_of_the_loss_at_equal_steps() -> None:
    loss, norm = values(seed=1)
    # A fifth too high on the second half only: the tenth from 150 to 179 begins it.
    loss[150:] *= 1.2
    found = drift(make_run(loss, norm), calm())["loss-drift"]
    assert found.counts
    assert 0.15 < found.evidence["drift_fraction"] < 0.2
    assert found.evidence["value"] == pytest.approx(1.2 * found.evidence["baseline_value"], rel=0.03)
    assert drift(make_run(loss, norm), calm(), tolerance=0.25)["loss-drift"].status is Status.PASS
    assert drift(make_run(0.8 * loss, norm), calm())["loss-drift"].counts, "better than the baseline is drift as well"


def test_drift_of_the_norm() -> None:
    loss, norm = values(seed=1)
    found = drift(make_run(loss, 2 * norm), calm())["grad-norm-drift"]
    assert found.counts
    assert found.evidence["value"] == pytest.approx(2 * found.evidence["baseline_value"], rel=0.1)
    # A tail alone: one norm in ten, twice as large, moves the 99th percentile and not the median.
    tail = norm.copy()
    tail[::10] *= 3
    assert "p99" in drift(make_run(loss, tail), calm())["grad-norm-drift"].detail


def test_runs_that_log_at_other_steps_are_compared_where_they_overlap() -> None:
    loss, norm = values(1200)
    long = make_run(loss, norm)
    every_4th = make_run(loss[::4], norm[::4], every=4)
    short = make_run(loss[:400], norm[:400])
    for run in (every_4th, short):
        assert [c.status for c in drift(run, long).values()] == [Status.PASS, Status.PASS]
        assert [c.status for c in drift(long, run).values()] == [Status.PASS, Status.PASS]


def test_runs_that_cannot_be_compared() -> None:
    loss, norm = values()
    apart = make_run(loss, norm, start=5000)
    assert all(c.missing for c in drift(calm(), apart).values())
    no_norm = drift(calm(), make_run(loss))["grad-norm-drift"]
    assert (no_norm.missing, no_norm.detail) == (True, "no gradient norm in the baseline")
    assert not drift(calm(), make_run(loss), require="loss")["grad-norm-drift"].missing
    broken = loss.copy()
    broken[150:] = np.nan
    assert "diverged itself" in drift(calm(), make_run(broken, norm))["loss-drift"].detail
    assert "after clipping" in drift(calm(norm_stage=NormStage.POST_CLIP), calm(norm_stage=NormStage.PRE_CLIP))["grad-norm-drift"].detail
    assert all(c.missing for c in drift(calm(steps_known=False), calm()).values())
    given = judge(analyze(calm()), Policy(), RULES, "good: no such file")
    assert given.judgement is Judgement.CANNOT_JUDGE
    assert [c.detail for c in given.checks if c.id == "baseline"] == ["good: no such file"] * 2


def test_a_loss_around_zero_drifts_by_more_than_its_noise_only() -> None:
    rng = np.random.default_rng(0)
    a, b = (make_run(1e-3 * rng.standard_normal(N), values()[1]) for _ in range(2))
    assert drift(a, b)["loss-drift"].status is Status.PASS


# What verify reports


def finding(rule: str, name: str, severity: str, message: str) -> dict[str, object]:
    return {"rule": rule, "name": name, "severity": severity, "message": message, "first_step": 1, "last_step": 9, "evidence": {}}


def check(id: str, name: str, status: str, detail: str = "") -> dict[str, object]:
    return {"id": id, "name": name, "status": status, "detail": detail, "evidence": {}}


def document(**more: object) -> dict[str, object]:
    """What `verify SCRIPT` prints."""
    return {
        "schema": "gradclip.verify/1",
        "target": {"device": "cpu", "world_size": 1, "torch": "2.13"},
        "verdict": "fail",
        "findings": [finding("GC416", "double-clip", "warning", "m1"), finding("GC403", "clip-before-backward", "error", "m2")],
        "checks": [
            check("GC403", "clip-before-backward", "fail", "m2") | {"evidence": {"x": "nan", "y": 1}},
            check("GC411", "ranks-disagree", "skip", "one rank"),
            check("GC416", "double-clip", "fail", "m1"),
            check("GC410", "no-clipping", "pass"),
        ],
        **more,
    }


def test_a_check_knows_the_line_of_its_finding() -> None:
    run = make_run([2.0] * 40, [1.0] * 40)
    found = Finding("GC402", "clip-after-step", Severity.ERROR, "m", 1, 2, {}, place=("train.py", 7))
    checks = judge(replace(analyze(run), findings=(found,)), Policy(), RULES).checks
    assert [(c.id, c.file, c.line) for c in checks if c.file] == [("GC402", "train.py", 7)]
    placed = document(checks=[check("GC403", "clip-before-backward", "fail", "m2") | {"file": "train.py", "line": 9}])
    assert [(c.file, c.line) for c in verified("v", placed, Policy()).checks] == [("train.py", 9)]


def test_the_notes_of_a_run_and_of_verify_are_those_of_its_suite() -> None:
    run = make_run([2.0] * 40, [1.0] * 40, notes=("rows are counted instead",))
    assert judge(analyze(run), Policy(), RULES).notes == ("rows are counted instead",)
    assert verified("v", document(notes=["one rank only"]), Policy()).notes == ("one rank only",)
    suite = verified("v", document(notes=["one rank only", "it crashed"], verdict="cannot-judge", checks=[], findings=[]), Policy())
    assert [(c.id, c.detail, c.missing) for c in suite.checks] == [("verdict", "one rank only; it crashed", True)]
    assert suite.notes == (), "told once"


def test_checks_of_verify_are_judged_by_the_policy() -> None:
    suite = verified("verify train.py", document(), Policy())
    assert [(c.id, c.status.value, c.counts) for c in suite.checks] == [
        ("GC403", "fail", True),
        ("GC411", "skip", False),
        ("GC416", "fail", False),
        ("GC410", "pass", False),
    ]
    assert (suite.checks[0].detail, suite.checks[0].evidence["y"]) == ("m2", 1)
    assert suite.judgement is Judgement.FAIL
    assert verified("v", document(), policy(ignore=["GC403"])).judgement is Judgement.PASS
    assert verified("v", document(), policy(ignore=["GC403"], fail_on="warning")).judgement is Judgement.FAIL
    assert verified("v", document(), policy(ignore=["GC403"], strict=True)).judgement is Judgement.FAIL


def test_a_check_of_the_battery_is_selected_by_the_rule_it_stands_for() -> None:
    battery = document(
        findings=[finding("GC502", "wrong-coefficient", "error", "B105 bound-met: too long")],
        checks=[check("B101", "total-norm", "pass"), check("B105", "bound-met", "fail", "too long"), check("B600", "ranks", "skip", "one")],
    )
    suite = verified("verify", battery, Policy())
    assert [(c.id, c.detail, c.counts) for c in suite.checks] == [("B101", "", False), ("B105", "too long", True), ("B600", "one", False)]
    assert [c.id for c in verified("verify", battery, replace(Policy(), ignore=("GC502",))).checks] == ["B101", "B600"]


def test_verify_that_could_not_judge_is_no_pass() -> None:
    suite = verified(
        "v",
        document(verdict="cannot-judge", findings=[], checks=[check("GC410", "no-clipping", "pass")], notes=["too few updates"]),
        Policy(),
    )
    assert suite.judgement is Judgement.CANNOT_JUDGE
    assert suite.checks[-1].detail == "too few updates"


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {"schema": "gradclip.analysis/1"},
        document(checks=None),
        document(findings=[3]),
        document(findings=[], checks=[]),
        document(checks=[check("GC403", "a", "maybe")], verdict="pass"),
        document(checks=[check("GC403", "a", "fail") | {"evidence": {"x": "many"}}]),
        document(checks=[check("GC403", "a", "fail") | {"evidence": [1]}]),
        document(findings=[finding("GC403", "a", "grave", "m")]),
    ],
    ids=[str(n) for n in range(10)],
)
def test_what_is_no_report_of_verify(broken: object) -> None:
    with pytest.raises(ValueError):
        verified("v", broken, Policy())


def test_what_could_not_be_read_is_no_pass() -> None:
    assert unreadable("x", "no such file").judgement is Judgement.CANNOT_JUDGE
