import json
from dataclasses import replace

import numpy as np
import pytest

import gradclip_cli
from gradclip_cli.model.finding import Lead, Severity, Skipped, Verdict
from gradclip_cli.model.run import NormStage
from gradclip_cli.report import FORMATS, render_json
from tests import report_cases as cases


def strict(text: str) -> dict:
    def bare(token: str) -> None:
        raise AssertionError(f"bare {token}")

    return json.loads(text, parse_constant=bare)


def test_shape_and_numbers() -> None:
    values = [4.0, 3.0, np.nan, 2.0, 1.0, np.inf]
    norm = cases.series("grad_norm", values, steps=[10, 20, 30, 40, 50, 60], key="gnorm")
    tensor = cases.series("grad_norm/w.0", [0.5], steps=[10], key="grad/w.0")
    lr = cases.series("lr", [1e-3, 2e-3], steps=[0, 70], key="lr")
    run = cases.run(tensor, lr, norm, source="a.csv", norm_stage=NormStage.PRE_CLIP, notes=("One row was empty.",), max_norm=1.0)
    found = (
        cases.finding(
            "GC101", "exploding-step", Severity.ERROR, "it exploded", 30, 30, {"ratio": 12.5, "num_points": 3, "norm": float("nan")}
        ),
        cases.finding("GC102", "loss-spike", Severity.WARNING, "it spiked", 33, 40, {"low": -np.inf}, Lead("GC101", 30, 3)),
    )
    document = strict(render_json([cases.analysis(run, Verdict.SPIKED, findings=found, skipped=(Skipped("GC108", "no loss scale"),))]))
    assert list(document) == ["schema", "gradclip_version", "runs"]
    assert document["schema"] == "gradclip.analysis/1"
    assert document["gradclip_version"] == gradclip_cli.__version__
    (got,) = document["runs"]
    assert list(got) == ["source", "format", "steps", "series", "verdict", "findings", "skipped", "notes"]
    assert got["steps"] == {"first": 0, "last": 70, "count": 8}
    # The order is ours, not the source's: known series first, tensors last.
    assert list(got["series"]) == ["grad_norm", "lr", "grad_norm/w.0"]
    # numpy.percentile of 1, 2, 3, 4.
    assert got["series"]["grad_norm"] == {
        "key": "gnorm",
        "count": 6,
        "nonfinite": 2,
        "first_step": 10,
        "last_step": 60,
        "min": 1.0,
        "p50": 2.5,
        "p90": pytest.approx(3.7),
        "p95": pytest.approx(3.85),
        "p99": pytest.approx(3.97),
        "max": 4.0,
        "stage": "pre_clip",
    }
    assert "stage" not in got["series"]["grad_norm/w.0"]
    assert got["verdict"] == "spiked"
    assert got["findings"] == [
        {
            "rule": "GC101",
            "name": "exploding-step",
            "severity": "error",
            "message": "it exploded",
            "first_step": 30,
            "last_step": 30,
            "evidence": {"ratio": 12.5, "num_points": 3, "norm": "nan"},
        },
        {
            "rule": "GC102",
            "name": "loss-spike",
            "severity": "warning",
            "message": "it spiked",
            "first_step": 33,
            "last_step": 40,
            "evidence": {"low": "-inf"},
            "led_by": {"rule": "GC101", "first_step": 30, "lead_steps": 3},
        },
    ]
    assert got["skipped"] == [{"rule": "GC108", "reason": "no loss scale"}]
    assert got["notes"] == ["One row was empty."]


def test_without_steps_rows_are_counted_and_steps_are_null() -> None:
    (got,) = strict(render_json([cases.odd()["rows"]]))["runs"]
    assert got["steps"] == {"first": None, "last": None, "count": 100}
    assert got["series"]["loss"]["first_step"] is None
    assert got["series"]["loss"]["last_step"] is None


def test_nothing_finite_has_no_percentiles() -> None:
    (got,) = strict(render_json([cases.odd()["all nan"]]))["runs"]
    summary = got["series"]["loss"]
    assert (summary["count"], summary["nonfinite"]) == (30, 30)
    assert {summary[k] for k in ("min", "p50", "p90", "p95", "p99", "max")} == {None}


def test_percentiles_of_the_largest_numbers_stay_finite() -> None:
    (got,) = strict(render_json([cases.odd()["extreme"]]))["runs"]
    summary = got["series"]["loss"]
    assert (summary["min"], summary["p50"], summary["max"]) == (-1.7e308, 0.0, 1.7e308)


@pytest.mark.parametrize("name", cases.odd())
def test_odd_runs_are_strict_json(name: str) -> None:
    strict(render_json([cases.odd()[name]]))


def test_undecodable_names_are_valid_utf8() -> None:
    text = render_json([cases.hostile()])
    assert text.isascii()
    source = strict(text)["runs"][0]["source"]
    source.encode("utf-8")
    assert source.endswith("\\udc80")
    # Everything else is as it was: programs get the name, not its picture.
    assert source.startswith("runs/a\x1b[31mred\x07\nloss\u202e")


def test_several_runs_and_the_same_text_each_time() -> None:
    analyses = [cases.spiked(), cases.short()]
    text = render_json(analyses)
    assert [r["verdict"] for r in strict(text)["runs"]] == ["spiked", "cannot-judge"]
    assert render_json([cases.spiked(), cases.short()]) == text == FORMATS["json"](analyses, color=True)
    assert strict(render_json([]))["runs"] == []


def test_numpy_numbers_in_evidence() -> None:
    found = cases.finding("GC101", "exploding-step", evidence={"a": np.float64(1.5), "b": np.int64(2), "c": np.float32(np.inf)})
    a = replace(cases.short(), findings=(found,))
    assert strict(render_json([a]))["runs"][0]["findings"][0]["evidence"] == {"a": 1.5, "b": 2, "c": "inf"}
