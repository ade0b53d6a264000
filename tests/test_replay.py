"""`gradclip replay` as a caller sees it: what it measures, against torch and against the definition, and what it prints."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradclip_cli.clipping.optimizer import OptimizerKind
from gradclip_cli.clipping.replay import Request, replay
from gradclip_cli.errors import GradclipError, UsageError
from gradclip_cli.model.replay import Replay
from gradclip_cli.report.replay_json import render_replay_json
from gradclip_cli.report.replay_markdown import render_replay_markdown
from gradclip_cli.report.replay_text import render_replay_text
from tests.conftest import ROOT
from tests.replay_cases import exact_norm, forked_ranks, gradients, torchrun, write_safetensors

Call = Callable[..., "subprocess.CompletedProcess[str]"]


def write_steps(folder: Path, num: int, *, spike: int | None = None, **metadata: object) -> list[dict[str, np.ndarray]]:
    """A directory as `record --save-grads` fills it; the gradient of one step 40 times as large."""
    folder.mkdir(exist_ok=True)
    steps = []
    for i in range(num):
        tensors = {name: np.asarray(a * np.float32(40 if i == spike else 1)) for name, a in gradients(i).items()}
        write_safetensors(folder / f"step-{i + 1:08d}.safetensors", tensors, step=i + 1, **metadata)
        steps.append(tensors)
    return steps


def done(paths: list[Path], **request: Any) -> Replay:
    result, failures = replay(paths, Request(**request))
    assert failures == ()
    assert result is not None
    return result


def flat(tensors: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([np.asarray(a, np.float64).ravel() for a in tensors.values()])


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / math.sqrt((a @ a) * (b @ b)))


# What is measured


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_the_coefficient_is_that_of_torch(tmp_path: Path, p: float) -> None:
    steps = write_steps(tmp_path / "g", 4, spike=2)
    bound = 1.0
    for step, tensors in zip(done([tmp_path / "g"], max_norms=(bound,), norm_type=p).steps, steps, strict=True):
        parameters = [torch.nn.Parameter(torch.zeros(a.shape, dtype=torch.float64)) for a in tensors.values()]
        for q, a in zip(parameters, tensors.values(), strict=True):
            q.grad = torch.from_numpy(a.astype(np.float64))
        before = flat(tensors)
        total = float(torch.nn.utils.clip_grad_norm_(parameters, bound, norm_type=p))
        after = np.concatenate([q.grad.numpy().ravel() for q in parameters])  # type: ignore[union-attr]
        (clip,) = step.clips
        assert step.total_norm == pytest.approx(total, rel=1e-12)
        assert clip.coefficient == pytest.approx(float(np.median(after / before)), rel=1e-12)
        assert clip.clipped_norm == pytest.approx(float(np.linalg.norm(after, p)), rel=1e-12)
        assert clip.cosine == pytest.approx(1, rel=1e-15)


def test_several_bounds_each_on_its_own(tmp_path: Path) -> None:
    (tensors,) = write_steps(tmp_path / "g", 1)
    (step,) = done([tmp_path / "g"], max_norms=(0.1, 100.0, math.inf)).steps
    norm = exact_norm(list(tensors.values()), 2)
    assert [c.coefficient for c in step.clips] == [pytest.approx(0.1 / (norm + 1e-6), rel=1e-13), 1, 1]
    assert [c.clipped_norm for c in step.clips] == [pytest.approx(0.1 * norm / (norm + 1e-6), rel=1e-13), step.total_norm, step.total_norm]


@pytest.mark.parametrize("p", [2.0, 3.0, math.inf])
def test_other_ways_of_clipping_turn_the_gradient(tmp_path: Path, p: float) -> None:
    (tensors,) = write_steps(tmp_path / "g", 1, spike=0)
    tensors["ln"] *= 0
    write_safetensors(tmp_path / "g" / "step-00000001.safetensors", tensors, scale=8.0)
    tensors = {name: a.astype(np.float64) / 8 for name, a in tensors.items()}
    before = flat(tensors)
    bound, value = 0.02, 0.03
    (step,) = done([tmp_path / "g"], max_norms=(bound,), norm_type=p, clip_values=(value,), group_by=re.compile(r"^h\.(\d)")).steps
    groups = {"h.0": ["h.0.weight", "h.0.bias"], "h.1": ["h.1.weight"], "rest": ["wte.weight", "ln", "head.weight"]}

    def clipped_by(parts: list[list[str]]) -> np.ndarray:
        factors = {n: min(1, bound / (exact_norm([tensors[k] for k in part], p) + 1e-6)) for part in parts for n in part}
        return flat({n: a * factors[n] for n, a in tensors.items()})

    expected = {
        "global": clipped_by([list(tensors)]),
        "per-tensor": clipped_by([[n] for n in tensors]),
        "per-group": clipped_by(list(groups.values())),
        "value": np.clip(before, -value, value),
    }
    assert [a.how for a in step.alternatives] == list(expected)
    for other in step.alternatives:
        after = expected[other.how]
        assert other.clipped_norm == pytest.approx(exact_norm([after], p if other.how != "value" else 2), rel=1e-12)
        assert other.cosine == pytest.approx(cosine(before, after), rel=1e-12)
    changed = {a.how: a.changed_fraction for a in step.alternatives}
    assert changed == {"global": 1, "per-tensor": pytest.approx(5 / 6), "per-group": 1, "value": float(np.mean(np.abs(before) > value))}
    assert step.alternatives[0].angle_degrees == 0
    assert step.alternatives[1].angle_degrees > 1


def test_shares_and_the_dominant_tensor(tmp_path: Path) -> None:
    steps = write_steps(tmp_path / "g", 3)
    for i in (1, 2):
        steps[i]["h.1.weight"] = steps[i]["h.1.weight"] * np.float32(30)
        write_safetensors(tmp_path / "g" / f"step-{i + 1:08d}.safetensors", steps[i])
    result = done([tmp_path / "g"], norm_type=1.0)
    squares = {name: float((np.asarray(a, np.float64) ** 2).sum()) for name, a in steps[1].items()}
    top = result.steps[1].top_tensors
    assert [(t.name, pytest.approx(t.share, rel=1e-13)) for t in top] == [
        (n, s / sum(squares.values())) for n, s in sorted(squares.items(), key=lambda item: -item[1])
    ]
    assert top[0].norm == pytest.approx(exact_norm([steps[1]["h.1.weight"]], 1), rel=1e-13)
    (finding,) = result.findings
    assert (finding.rule, finding.first_step, finding.last_step, finding.evidence["num_steps"]) == ("GC109", 2, 3, 2)
    assert "h.1.weight" in finding.message


@pytest.mark.parametrize(
    ("scale", "stage", "bound", "rules", "words"),
    [
        (1.0, "post_clip", 10.0, [], "3 steps said to be clipped 0 are at the bound, where clipping acted, 3 below it and 0 above it"),
        (0.0, "post_clip", 0.25, [], "3 are at the bound"),
        (1.0, "post_clip", 0.25, ["GC203"], "3 above it"),
        (1.0, "pre_clip", 0.25, [], ""),
        (1.0, "post_clip", None, [], "no max_norm is told"),
    ],
    ids=["below", "clipped", "not-clipped", "before", "no-bound"],
)
def test_what_files_say_of_clipping_is_checked(
    tmp_path: Path, scale: float, stage: str, bound: float | None, rules: list[str], words: str
) -> None:
    for i in range(3):
        tensors = gradients(i)
        factor = scale or (bound or 0) / (exact_norm(list(tensors.values()), 2) + 1e-6)
        scaled = {n: (a * factor).astype(np.float32) for n, a in tensors.items()}
        write_safetensors(tmp_path / f"step-{i}.safetensors", scaled, stage=stage, **({} if bound is None else {"max_norm": bound}))
    result = done([tmp_path])
    assert [f.rule for f in result.findings] == rules
    assert any(words in note for note in result.notes)
    assert result.max_norms == (() if bound is None else (bound,))


def test_a_part_of_the_gradient_is_told_by_the_norm_in_the_file(tmp_path: Path) -> None:
    write_steps(tmp_path / "g", 2, total_norm=5.0)
    result = done([tmp_path / "g"])
    assert "2 steps do not hold the whole gradient" in result.partial
    assert "NOT THE WHOLE GRADIENT" in render_replay_text(result)
    assert "NOT THE WHOLE GRADIENT" in render_replay_markdown(result)
    assert "acts on" not in render_replay_text(result)
    norm = exact_norm(list(gradients(0).values()), 2)
    write_safetensors(tmp_path / "one.safetensors", gradients(0), step=1, total_norm=norm * 1.01)
    whole = done([tmp_path / "one.safetensors"])
    assert (whole.notes, whole.partial) == ((), "")
    assert json.loads(render_replay_json(whole))["partial"] is None


def test_a_part_of_what_was_clipped_is_told_and_scaled_by_the_coefficient(tmp_path: Path) -> None:
    tensors, coefficient = gradients(0), 0.125
    norm = exact_norm(list(tensors.values()), 2)
    part = {n: (a * np.float32(coefficient)).astype(np.float32) for n, a in tensors.items()}
    # The whole gradient was three times as long, and clipped to an eighth of that.
    claims = {"step": 1, "stage": "post_clip", "total_norm": 3 * norm, "max_norm": 3 * norm * coefficient}
    write_safetensors(tmp_path / "part.safetensors", part, **claims)
    assert "1 step does not hold the whole gradient" in done([tmp_path / "part.safetensors"]).partial
    restored = done([tmp_path / "part.safetensors"], unclip=True)
    assert restored.steps[0].total_norm == pytest.approx(norm, rel=1e-6)
    assert restored.partial


@pytest.mark.parametrize(
    ("sharded", "groups", "partial"),
    [
        ([0], [[[0], [0, 1]]], True),
        ([0], [], True),
        ([0], [[[0], [0]]], False),
        ([], [], False),
        ([0, 1], [[[0], [0]], [[1], [0, 1]]], True),
        ([0], [[[0], []]], True),
        ([0], [["damaged"]], True),
    ],
    ids=["fsdp2", "fsdp1", "one-rank", "ddp", "groups", "unknown-group", "damaged"],
)
def test_the_shards_of_a_recorded_rank_are_not_the_whole(
    warm: Call, tmp_path: Path, sharded: list[int], groups: list[Any], partial: bool
) -> None:
    run = tmp_path / "run"
    for rank, grads in enumerate((run / "grads", run / "rank-00001" / "grads")):
        grads.mkdir(parents=True)
        write_steps(grads, 2)
        folder = run / f"rank-{rank:05d}"
        folder.mkdir(exist_ok=True)
        event = {"k": "optimizer", "u": 0, "o": 0, "class": "SGD", "tensors": [0], "sharded": sharded, "groups": groups}
        (folder / "trace.jsonl").write_text('{"k": "backward"}\n"optimizer"\n{"optimizer\n' + json.dumps(event) + "\n")
        (folder / "header.json").write_text('{"world_size": 2}')
    (run / "run.json").write_text('{"schema": "gradclip.run/1", "world_size": 2}')
    for path in ("run", "run/grads", "run/rank-00001/grads/step-00000001.safetensors"):
        assert done([tmp_path / path], max_norms=(1.0,)).partial.startswith("these are the shards that one rank held") == partial, path
    if not partial:
        return
    refused = warm("replay", "run", "--max-norm", "1", "-o", "out", "-f", "json", code=3)
    assert "not written, as a run is of whole gradients" in refused.stderr
    assert json.loads(refused.stdout)["partial"]
    assert not (tmp_path / "out").exists()


def test_clipping_can_be_undone_where_the_norm_is_told(warm: Call, tmp_path: Path) -> None:
    folder = tmp_path / "g"
    folder.mkdir()
    norms = [exact_norm(list(gradients(i).values()), 2) * 7 for i in range(40)]
    for i, norm in enumerate(norms):
        clipped = {n: np.asarray(a * np.float32(7 * 0.5 / (norm + 1e-6))) for n, a in gradients(i).items()}
        write_safetensors(folder / f"step-{i + 1}.safetensors", clipped, stage="post_clip", max_norm=0.5, total_norm=norm)
    stored = done([folder])
    assert [s.total_norm for s in stored.steps] == pytest.approx([0.5] * 40, rel=1e-5)
    assert not any(s.clips[0].acts for s in stored.steps)
    assert any("--unclip scales them back" in note for note in stored.notes)
    result = done([folder], unclip=True, clip_values=(0.05,))
    assert [s.total_norm for s in result.steps] == pytest.approx(norms, rel=1e-12)
    assert [s.clips[0].coefficient for s in result.steps] == pytest.approx([0.5 / (n + 1e-6) for n in norms], rel=1e-12)
    step, values = result.steps[3], flat(gradients(3)) * 7
    assert step.alternatives[-1].clipped_norm == pytest.approx(np.linalg.norm(np.clip(values, -0.05, 0.05)), rel=1e-6)
    assert result.findings == ()
    for options in ([], ["--unclip"]):
        warm("replay", "g", "-o", "run", "--force", *options, code=0)
        (run,) = json.loads(warm("analyze", "run", "-f", "json", code=0).stdout)["runs"]
        assert run["series"]["grad_norm"]["max"] == pytest.approx(max(norms), rel=1e-12)
        assert run["series"]["clip_coef"]["min"] == pytest.approx(0.5 / max(norms), rel=1e-5)


# The optimizer


@pytest.mark.parametrize(
    ("name", "options"),
    [("sgd", ["momentum=0.9"]), ("AdamW", []), ("adam", ["betas=(0.5, 0.9)"]), ("rmsprop", []), ("adafactor", []), ("muon", [])],
)
def test_updates_are_those_of_the_real_optimizer(tmp_path: Path, name: str, options: list[str]) -> None:
    steps = write_steps(tmp_path / "g", 5, spike=2)
    kind = OptimizerKind(name, 0.01, options)
    result = done([tmp_path / "g"], max_norms=(0.2, 0.1), optimizer=kind)
    for way, bound in ((-1, None), (0, 0.2), (1, 0.1)):
        names = [n for n, a in steps[0].items() if name != "muon" or a.ndim == 2]
        parameters = [torch.zeros(steps[0][n].shape, requires_grad=True) for n in names]
        optimizer = type(kind.make(torch.zeros(2, 2, requires_grad=True)))(parameters, **kind.arguments)
        for step, tensors in zip(result.steps, steps, strict=True):
            before = torch.cat([p.detach().flatten().clone() for p in parameters])
            every = [torch.nn.Parameter(torch.zeros(a.shape)) for a in tensors.values()]
            for q, a in zip(every, tensors.values(), strict=True):
                q.grad = torch.from_numpy(a.copy())
            if bound is not None:
                torch.nn.utils.clip_grad_norm_(every, bound)
            for p, n in zip(parameters, names, strict=True):
                p.grad = every[list(tensors).index(n)].grad
            optimizer.step()
            moved = torch.cat([p.detach().flatten() for p in parameters]).double() - before.double()
            measured = step.update_norm if way < 0 else step.clips[way].update_norm
            assert measured == pytest.approx(float(moved.norm()), rel=2e-5)


def test_under_adamw_constant_clipping_removes_almost_no_movement(tmp_path: Path) -> None:
    write_steps(tmp_path / "g", 8)
    for name, low, high in (("adamw", 0.97, 1.03), ("sgd", 0.01, 0.1)):
        result = done([tmp_path / "g"], max_norms=(0.02,), optimizer=OptimizerKind(name, None, ()))
        ratios = [s.clips[0].update_norm / s.update_norm for s in result.steps]  # type: ignore[operator]
        assert low < min(ratios) <= max(ratios) < high, name


def test_a_step_that_is_not_finite_is_left_out_of_the_updates(tmp_path: Path) -> None:
    steps = write_steps(tmp_path / "g", 3)
    steps[1]["h.0.bias"][0] = np.nan
    write_safetensors(tmp_path / "g" / "step-00000002.safetensors", steps[1])
    result = done([tmp_path / "g"], max_norms=(0.1,), optimizer=OptimizerKind("sgd", 1.0, ()))
    assert [s.update_norm is not None and math.isfinite(s.update_norm) for s in result.steps] == [True, False, True]
    assert any("skipped 1 step" in note for note in result.notes)
    assert not any("between these steps" in note for note in result.notes)
    (tmp_path / "g" / "step-00000002.safetensors").unlink()
    result = done([tmp_path / "g"], max_norms=(0.1,), optimizer=OptimizerKind("sgd", 1.0, ()))
    assert any("between these steps 1 update cannot be seen" in note for note in result.notes)


def test_tensors_of_several_blocks_and_half_precision_reach_the_optimizer(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((1 << 20) + 5).astype(np.float16)
    path = write_safetensors(tmp_path / "g.safetensors", {"w": values, "b": np.ones(3)}, scale=2.0)
    (step,) = done([path], max_norms=(1.0,), optimizer=OptimizerKind("sgd", 1.0, ())).steps
    assert step.update_norm == pytest.approx(step.total_norm, rel=1e-6)
    assert step.clips[0].update_norm == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "lr", "options", "words"),
    [
        ("lbfgs", None, [], "is not known"),
        ("sgd", None, ["beta=3"], "no argument 'beta'"),
        ("sgd", None, ["momentum"], "expected key=value"),
        ("sgd", None, ["momentum=__import__('os')"], "expected key=value"),
        ("sgd", -1.0, [], "does not take these arguments"),
        ("sgd", 1.0, ["lr=2"], "expected one of them"),
    ],
)
def test_optimizers_that_cannot_be_made(name: str, lr: float | None, options: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        OptimizerKind(name, lr, options)


def test_an_optimizer_needs_a_bound_and_one_model(tmp_path: Path) -> None:
    kind = OptimizerKind("sgd", None, ())
    write_steps(tmp_path / "g", 1)
    with pytest.raises(GradclipError, match="expected --max-norm"):
        replay([tmp_path / "g"], Request(optimizer=kind))
    write_safetensors(tmp_path / "g" / "step-9.safetensors", {"ln": np.ones(3, np.float32)})
    result, (error,) = replay([tmp_path / "g"], Request(max_norms=(1.0,), optimizer=kind))
    assert "tensor ln has another shape" in error.message
    assert result is not None
    assert [s.step for s in result.steps] == [1, 9]
    assert result.optimizer is None
    torch.save({"w": torch.ones(2, 2, dtype=torch.complex64)}, tmp_path / "complex.pt")
    result, (error,) = replay([tmp_path / "complex.pt"], Request(max_norms=(1.0,), optimizer=OptimizerKind("adafactor", None, ())))
    assert "Adafactor refuses tensor w of complex64" in error.message
    assert result is not None
    assert result.optimizer is None
    result, _ = replay([tmp_path / "g"], Request(max_norms=(1.0,), optimizer=kind))
    assert result is not None
    assert result.steps[1].total_norm == pytest.approx(math.sqrt(3))


# The command


def test_json_is_strict_and_whole(gradclip: Call, tmp_path: Path) -> None:
    write_steps(tmp_path / "g", 3, spike=1)
    tensors = gradients(9)
    tensors["h.0.bias"][4] = np.inf
    write_safetensors(tmp_path / "g" / "step-00000004.safetensors", tensors, stage="pre_clip")
    args = ["--max-norm", "1", "--max-norm", "0.3", "--clip-value", "0.01", "--histogram", "--norm-type", "2"]
    printed = gradclip("replay", "g", *args, "-f", "json", code=0)
    assert printed.stderr == ""
    document = json.loads(printed.stdout, parse_constant=lambda c: pytest.fail(f"bare {c}"))
    assert document["schema"] == "gradclip.replay/1"
    assert document["source"] == "g"
    assert [s["step"] for s in document["steps"]] == [1, 2, 3, 4]
    spike, bad = document["steps"][1], document["steps"][3]
    norm = exact_norm([a * np.float32(40) for a in gradients(1).values()], 2)
    assert spike["total_norm"] == pytest.approx(norm, rel=1e-13)
    assert spike["coefficient"] == pytest.approx(1 / (norm + 1e-6), rel=1e-13)
    assert spike["clipped_norm"] == pytest.approx(norm / (norm + 1e-6), rel=1e-13)
    assert spike["cosine"] == 1
    assert set(spike["top_tensors"][0]) >= {"name", "share"}
    assert [c["max_norm"] for c in spike["by_max_norm"]] == [1.0, 0.3]
    assert sum(b["count"] for b in spike["histogram"]["bins"]) + spike["histogram"]["zero"] == spike["num_elements"]
    assert (bad["total_norm"], bad["coefficient"], bad["clipped_norm"], bad["cosine"]) == ("inf", 0, "nan", "nan")
    assert bad["nonfinite_tensors"] == [
        {"name": "h.0.bias", "num_elements": 33, "num_nan": 0, "num_inf": 1, "num_neg_inf": 0, "positions": [[4]]}
    ]
    assert "update_norm" not in spike
    assert [f["rule"] for f in document["findings"]] == ["GC104"]


def test_the_first_bound_stands_in_the_step(warm: Call, tmp_path: Path) -> None:
    write_steps(tmp_path / "g", 2)
    args = ["--max-norm", "0.1", "--optimizer", "sgd", "--lr", "2", "--optimizer-arg", "momentum=0.5"]
    document = json.loads(warm("replay", "g", *args, "-f", "json", code=0).stdout)
    assert document["optimizer"] == {"name": "SGD", "arguments": {"lr": 2.0, "momentum": 0.5}}
    first = document["steps"][0]
    assert first["update_norm"] == pytest.approx(2 * first["clipped_norm"], rel=1e-6) == first["by_max_norm"][0]["update_norm"]
    assert first["update_norm_unclipped"] == pytest.approx(2 * first["total_norm"], rel=1e-6)


def test_text_fits_and_says_what_matters(tmp_path: Path) -> None:
    steps = write_steps(tmp_path / "g", 30, spike=11)
    steps[20]["h.1.weight"][0, 1] = np.nan
    write_safetensors(tmp_path / "g" / "step-00000021.safetensors", steps[20])
    result = done(
        [tmp_path / "g"],
        max_norms=(0.2, 2.0),
        clip_values=(0.01,),
        group_by=re.compile(r"^h\.\d"),
        histogram=True,
        optimizer=OptimizerKind("adamw", None, ()),
    )
    result = replace(result, source="g")
    text = render_replay_text(result, width=80, unicode=True)
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "30 steps (1–30), 6 tensors, 2,597 elements, float32. The norm is not finite at 1 step. Clipping at 0.2",
        "14 steps with smaller norms left out: --format json lists them all",
        "How far AdamW(lr=0.001) moves the parameters",
        "each tensor on its own",
        "GC104 error",
        "h.1.weight holds 1 nan",
    ):
        assert words in " ".join(text.split()), words
    assert render_replay_text(result, width=80, unicode=False).isascii()
    markdown = render_replay_markdown(result)
    assert "| 12 |" in markdown
    assert "#### Other ways, on step 12" in markdown
    assert json.loads(render_replay_json(result))["steps"][11]["alternatives"][2]["how"] == "per-group"


def test_many_findings_of_a_rule_are_cut_and_say_so(tmp_path: Path) -> None:
    steps = write_steps(tmp_path / "g", 7)
    for step, tensors in enumerate(steps[2:], start=3):
        tensors["h.1.weight"][0, 1] = np.inf
        write_safetensors(tmp_path / "g" / f"step-{step:08}.safetensors", tensors)
    result = done([tmp_path / "g"])
    text = render_replay_text(result, width=80, unicode=True)
    assert text.count("GC104 error") == 3
    assert "+2 GC104: --format json lists them all" in text.splitlines()
    markdown = render_replay_markdown(result)
    assert markdown.count("GC104 nonfinite-norm") == 3
    assert "+2 GC104: --format json lists them all" in markdown
    assert [f["rule"] for f in json.loads(render_replay_json(result))["findings"]].count("GC104") == 5


def test_names_cannot_break_out(warm: Call, tmp_path: Path) -> None:
    name = "\x1b[31mred\n| <b> ‮"
    tensors = {name: np.array([np.nan], np.float32), name + "2": np.ones(3, np.float32)}
    write_safetensors(tmp_path / "step-1.safetensors", tensors)
    write_safetensors(tmp_path / "step-2.safetensors", {k: np.ones(2, np.float32) for k in tensors})
    for format in ("text", "json", "markdown"):
        done = warm("replay", "step-1.safetensors", "step-2.safetensors", "--max-norm", "1", "-f", format, code=0)
        assert "\x1b" not in done.stdout
        assert "‮" not in done.stdout
        assert "\n| <b>" not in done.stdout


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["g", "--max-norm", "0"], 2, "--max-norm 0; expected a number above 0"),
        (["g", "--max-norm", "nan"], 2, "--max-norm nan"),
        (["g", "--norm-type", "-1"], 2, "--norm-type -1"),
        (["g", "--norm-type", "1e9"], 2, "expected a number up to 512, or inf"),
        (["g", "--clip-value", "-1"], 2, "--clip-value"),
        (["g", "--group-by", "("], 2, "regular expression"),
        (["g", "--lr", "1"], 2, "expected --optimizer"),
        (["g", "--plot", "x.gif"], 2, ".png"),
        (["g", "-o", "."], 2, "holds the gradients"),
        (["missing"], 3, "no such file"),
        ([], 2, "missing argument"),
    ],
)
def test_errors_are_one_sentence(warm: Call, tmp_path: Path, args: list[str], code: int, words: str) -> None:
    write_steps(tmp_path / "g", 1)
    failed = warm("replay", *args, code=code)
    assert words in failed.stderr.lower() or words in failed.stderr
    assert len(failed.stderr.strip().splitlines()) <= 2
    assert failed.stdout == ""


def test_what_can_be_read_is_reported_beside_an_error(gradclip: Call, tmp_path: Path) -> None:
    write_steps(tmp_path / "g", 3)
    (tmp_path / "g" / "step-00000002.safetensors").write_bytes(b"")
    done = gradclip("replay", "g", "-f", "json", code=3)
    document = json.loads(done.stdout)
    assert [s["step"] for s in document["steps"]] == [1, 3]
    assert [f["rule"] for f in document["findings"]] == ["GC307"]
    assert done.stderr.startswith("gradclip: error: g/step-00000002.safetensors: found an empty file")


def test_links_in_a_circle_are_errors(warm: Call, tmp_path: Path) -> None:
    write_steps(tmp_path / "g", 1)
    (tmp_path / "loop").symlink_to("loop")
    assert "too many levels of symbolic links" in warm("replay", "loop", "-o", "out", code=3).stderr
    assert "loop: is no directory" in warm("replay", "g", "-o", "loop", code=3).stderr


def test_of_many_errors_the_first_are_shown(warm: Call, tmp_path: Path) -> None:
    write_steps(tmp_path / "g", 1)
    for i in range(23):
        (tmp_path / "g" / f"x{i}.pt").write_bytes(b"no")
    partly = warm("replay", "g", "-f", "json", code=3)
    assert partly.stderr.count("found something else") == 20
    assert "3 more could not be read" in partly.stderr
    assert [f["rule"] for f in json.loads(partly.stdout)["findings"]].count("GC307") == 23


def test_a_recorded_run_is_written_and_judged(warm: Call, tmp_path: Path) -> None:
    write_steps(tmp_path / "g", 60, spike=50)
    assert "wrote run" in warm("replay", "g", "--max-norm", "1", "-o", "run", code=0).stderr
    document = json.loads(warm("analyze", "run", "-f", "json", code=0).stdout)
    (run,) = document["runs"]
    assert run["series"]["grad_norm"]["count"] == 60
    assert run["series"]["grad_norm"]["stage"] == "pre_clip"
    assert run["series"]["grad_norm"]["max"] == pytest.approx(exact_norm([a * 40 for a in gradients(50).values()], 2), rel=1e-6)
    assert "grad_norm/h.0.bias" in run["series"]
    assert [(f["rule"], f["first_step"]) for f in run["findings"] if f["rule"] == "GC101"] == [("GC101", 51)]
    assert "already holds a recorded run" in warm("replay", "g", "-o", "run", code=3).stderr
    warm("replay", "g", "-o", "run", "--force", code=0)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture(warm: Call, tmp_path: Path, suffix: str) -> None:
    write_steps(tmp_path / "g", 5, spike=2)
    warm("replay", "g", "--max-norm", "0.2", "--histogram", "--plot", f"p.{suffix}", code=0)
    data = (tmp_path / f"p.{suffix}").read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    if suffix == "svg":
        assert b"share of the squared norm" in data
        assert b"magnitudes of the elements" in data
    assert "is there already" in warm("replay", "g", "--plot", f"p.{suffix}", code=2).stderr


def test_the_result_is_the_same_for_any_number_of_ranks(gradclip: Call, tmp_path: Path) -> None:
    write_steps(tmp_path / "g", 2, spike=1)
    rng = np.random.default_rng(0)
    big = {"a": rng.standard_normal((1 << 20) + 3).astype(np.float32), "b": rng.standard_normal(1 << 19).astype(np.float16)}
    big["a"][-1] = np.nan
    write_safetensors(tmp_path / "g" / "step-00000003.safetensors", big)
    args = ["replay", "g", "--max-norm", "0.1", "--clip-value", "0.01", "--norm-type", "3", "--histogram", "-f", "json"]
    with_optimizer = [*args, "--optimizer", "sgd"]
    for done, alone in (
        (torchrun(2, *args, cwd=tmp_path), gradclip(*args, code=0)),
        (forked_ranks(3, *with_optimizer, cwd=tmp_path), gradclip(*with_optimizer, code=0)),
    ):
        assert done.returncode == 0, done.stderr
        assert done.stdout == alone.stdout


def test_one_rank_speaks_of_an_error(tmp_path: Path) -> None:
    done = forked_ranks(2, "replay", "nothing-here", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.count("no such file or directory") == 1
    assert done.stdout == ""


MEASURE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (400 << 20, 400 << 20))
from gradclip_cli.__main__ import main
code = main(sys.argv[1:])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_memory_is_bounded_by_blocks_and_not_by_the_step(tmp_path: Path, dtype: str) -> None:
    """A tensor of 512 MB, which no copy of it would survive under this limit."""
    size = {"F32": 4, "BF16": 2}[dtype]
    numel = (1 << 29) // size
    header = json.dumps({"w": {"dtype": dtype, "shape": [numel], "data_offsets": [0, numel * size]}}).encode()
    path = tmp_path / "step-1.safetensors"
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + numel * size)
        file.seek(-size, os.SEEK_END)
        file.write(np.array(3, np.float32).tobytes()[-size:])
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-c", MEASURE, "replay", str(path), "-f", "json"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"][0]["total_norm"] == 3
    assert int(done.stderr.splitlines()[-1]) < 150_000, "kilobytes"
