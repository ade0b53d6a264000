"""The short training: the same every time, clipped as asked, with the faults where they were planted."""

from __future__ import annotations

import math
import shutil
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gradclip_cli.analysis import analyze, judge_loop  # noqa: E402
from gradclip_cli.errors import GradclipError, UsageError  # noqa: E402
from gradclip_cli.model.finding import Analysis  # noqa: E402
from gradclip_cli.model.probe import Planted  # noqa: E402
from gradclip_cli.probe.batch import IGNORED, on_device, replaced  # noqa: E402
from gradclip_cli.probe.comparison import compare, twin  # noqa: E402
from gradclip_cli.probe.conditions import Conditions  # noqa: E402
from gradclip_cli.probe.data import preset_batches  # noqa: E402
from gradclip_cli.probe.faults import KINDS, planted  # noqa: E402
from gradclip_cli.probe.model import GPT  # noqa: E402
from gradclip_cli.probe.run import Trained, run_probe  # noqa: E402
from gradclip_cli.probe.sizes import PRESETS, Preset  # noqa: E402
from gradclip_cli.probe.subject import Subject, call_model, preset_subject  # noqa: E402
from gradclip_cli.probe.text import made_text  # noqa: E402
from gradclip_cli.readers import read  # noqa: E402

CPU = torch.device("cpu")
SMALLEST = Preset(width=8, num_layers=1, num_heads=1, context=12, batch=4, lr=2e-3)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def smallest(seed: int = 0) -> Subject:
    return Subject("smallest GPT", GPT(SMALLEST), preset_batches(SMALLEST, seed), call_model, lr=SMALLEST.lr, foreign=False)


def linear(**more: object) -> Subject:
    """A model of features, for what does not need a GPT."""
    chance = torch.Generator().manual_seed(3)
    data = [(torch.randn(8, 4, generator=chance), torch.randn(8, 1, generator=chance)) for _ in range(200)]

    def loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return (model(batch[0]) - batch[1]).square().mean()

    return Subject("linear", torch.nn.Linear(4, 1), iter(data), loss, **more)  # type: ignore[arg-type]


def run(
    directory: Path, *faults: Planted, subject: Callable[[], Subject] = smallest, max_norm: float = 1.0, steps: int = 40, **more: object
) -> tuple[Trained, Analysis]:
    trained = run_probe(subject, Conditions(CPU, steps, max_norm, **more), faults, directory)  # type: ignore[arg-type]
    return trained, judged(directory)


def judged(directory: Path) -> Analysis:
    (result,) = read(directory)
    assert not isinstance(result, GradclipError), result
    return analyze(result)


def at(kind: str, step: int, size: float | None = None, last: int | None = None) -> Planted:
    return Planted(kind, step, last or step, KINDS[kind].default if size is None else size)


# What is asked for ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mislabelled@120", Planted("mislabelled", 120, 120, 1.0)),
        ("mislabelled@1:0.5", Planted("mislabelled", 1, 1, 0.5)),
        ("loss-times@200:1e4", Planted("loss-times", 200, 200, 1e4)),
        ("nan-input@7", Planted("nan-input", 7, 7, None)),
        ("fp16-overflow@10:4", Planted("fp16-overflow", 10, 13, 4.0)),
    ],
)
def test_a_fault_as_it_is_written(text: str, expected: Planted) -> None:
    assert planted(text, steps=200, dtype="fp16") == expected
    assert planted(str(expected), steps=200, dtype="fp16") == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mislabelled", "expected KIND@STEP"),
        ("mislabelled@0", "expected KIND@STEP"),
        ("mislabelled@x", "expected KIND@STEP"),
        ("mislabeled@3", "there is no fault 'mislabeled'"),
        ("mislabelled@201", "reaches update 201, and there are 200"),
        ("mislabelled@3:1.5", "the share of the labels, above 0 and up to 1"),
        ("loss-times@3:nan", "the factor, above 0"),
        ("loss-times@3:ten", "the factor, above 0"),
        ("long-sequence@3:2.5", "a whole number"),
        ("nan-input@3:1", "nan-input has no size"),
        ("fp16-overflow@3", "means nothing in fp32; expected --dtype fp16"),
    ],
)
def test_what_is_no_fault_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        planted(text, steps=200, dtype="fp32")


# What a fault does to a batch -----------------------------------------------------------------------------------------


def spoiled(kind: str, batch: object, size: float = 1.0) -> object:
    spoil = KINDS[kind].spoil
    assert spoil is not None
    return spoil(batch, size, torch.Generator().manual_seed(1), 256)


def tokens() -> dict[str, torch.Tensor]:
    ids = torch.tensor([[5, 6, 7, 0], [8, 5, 0, 0]])
    return {"input_ids": ids, "labels": ids.masked_fill(ids == 0, IGNORED)}


def test_mislabelled() -> None:
    batch = spoiled("mislabelled", tokens())
    wrong = batch["labels"][batch["labels"] != IGNORED].unique().tolist()
    assert len(wrong) == 1
    assert wrong[0] not in (5, 6, 7, 8)
    assert torch.equal(batch["labels"] == IGNORED, tokens()["labels"] == IGNORED)
    assert torch.equal(batch["input_ids"], tokens()["input_ids"])


def test_mislabelled_numbers_and_classes() -> None:
    x, y = torch.zeros(4, 2), torch.tensor([1.0, 2.0, 3.0, 4.0])
    far = spoiled("mislabelled", (x, y))[1]
    torch.testing.assert_close(far - y, torch.full((4,), 100 * float(np.std([1, 2, 3, 4], ddof=1))))
    classes = torch.tensor([0, 2, 2, 0])
    assert spoiled("mislabelled", (x, classes))[1].tolist() == [1, 1, 1, 1], "the class that this batch has not"


def test_long_sequence() -> None:
    batch = spoiled("long-sequence", tokens(), 3)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 0] * 3, [8, 5, 0, 0] * 3]
    assert batch["labels"].shape == (2, 12)


def test_foreign_tokens() -> None:
    batch = spoiled("foreign-tokens", tokens())
    assert len(batch["input_ids"].unique()) == 1
    assert not set(batch["input_ids"].unique().tolist()) & {0, 5, 6, 7, 8}
    counted = tokens()["labels"] != IGNORED
    assert torch.equal(batch["labels"][counted], batch["input_ids"][counted])
    assert (batch["labels"][~counted] == IGNORED).all()
    features = spoiled("foreign-tokens", (torch.ones(2, 3), torch.zeros(2)))
    assert features[0].unique().tolist() == [100.0]


def test_mask_off() -> None:
    assert spoiled("mask-off", tokens())["labels"].tolist() == [[5, 6, 7, 0], [8, 5, 0, 0]]
    with pytest.raises(GradclipError, match="no label that is ignored"):
        spoiled("mask-off", {"input_ids": torch.ones(2, 2).long(), "labels": torch.ones(2, 2).long()})


def test_a_batch_stays_what_it_is() -> None:
    pair = namedtuple("pair", "x y")(torch.zeros(2), torch.ones(2))
    other = replaced(pair, {1: torch.zeros(2)})
    assert (type(other), other.y.tolist()) == (type(pair), [0.0, 0.0])
    assert on_device(pair, CPU) is pair
    assert type(replaced(UserDict(x=torch.zeros(1)), {"x": torch.ones(1)})) is UserDict


# The training ---------------------------------------------------------------------------------------------------------


def test_the_text_is_always_the_same() -> None:
    text = made_text()
    assert 200_000 < len(text) < 500_000
    assert 0 not in text, "0 is padding"
    assert text.isascii()
    assert text.startswith(b"This carpenter watched this narrow harbour near that market.\n")


def test_the_same_seed_gives_the_same_training(tmp_path: Path) -> None:
    (first, a), (second, b), (other, _) = (run(tmp_path / name, seed=seed) for name, seed in (("a", 3), ("b", 3), ("c", 4)))
    told = [[(u.step, u.loss, u.norm, u.moved) for u in t.updates] for t in (first, second, other)]
    assert told[0] == told[1]
    assert told[0] != told[2]
    for name, series in a.run.series.items():
        np.testing.assert_array_equal(series.values, b.run.series[name].values)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler for torch.compile")
def test_the_same_seed_gives_the_same_training_compiled_on_several_threads(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        told = []
        for name in ("a", "b"):
            trained, _ = run(tmp_path / name, subject=lambda: preset_subject("tiny", 0, 0), compile=True)
            told.append([(u.step, u.loss, u.norm, u.moved) for u in trained.updates])
    finally:
        torch.set_num_threads(threads)
    assert told[0] == told[1]


def test_an_update_as_computed_by_hand(tmp_path: Path) -> None:
    trained, _ = run(tmp_path / "run", max_norm=0.25, steps=1, optimizer="sgd", lr=0.5)
    torch.manual_seed(0)
    model = GPT(SMALLEST)
    batch = next(preset_batches(SMALLEST, 0))
    loss = model(**batch)
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None))
    (update,) = trained.updates
    assert update.loss == float(loss.detach())
    assert update.norm == pytest.approx(norm, rel=1e-6)
    assert norm > 0.25, "so that clipping acts"
    assert update.moved == pytest.approx(0.5 * 0.25, rel=1e-4), "lr times the clipped norm"


def test_what_is_recorded(tmp_path: Path) -> None:
    trained, analysis = run(tmp_path / "run", at("loss-times", 30), max_norm=0.6, accumulate=2)
    recorded = analysis.run.recorded
    assert recorded is not None
    part = recorded.parts[0]
    assert part.header["probe"]["planted"] == [{"kind": "loss-times", "step": 30, "last_step": 30, "size": 100.0}]
    assert part.header["seed"] == 0
    np.testing.assert_allclose(part.columns["grad_norm"], [u.norm for u in trained.updates], rtol=1e-6)
    np.testing.assert_allclose(part.columns["grad_norm_used"], np.minimum(part.columns["grad_norm"], 0.6), rtol=1e-5)
    np.testing.assert_allclose(part.columns["loss"], [u.loss for u in trained.updates], rtol=1e-6)
    np.testing.assert_array_equal(part.columns["num_micro_batches"], 2)
    assert judge_loop(analysis.run, "probe").verdict == "pass"


def test_a_batch_that_is_not_finite_is_dropped(tmp_path: Path) -> None:
    trained, analysis = run(tmp_path / "run", at("nan-input", 35), at("inf-input", 36))
    assert [u.step for u in trained.updates if u.dropped] == [35, 36]
    assert [u.step for u in trained.updates if not u.dropped] == list(range(1, 41))
    found = {(f.rule, f.first_step) for f in analysis.findings if f.severity.value == "error"}
    assert {("GC105", 35), ("GC104", 35)} <= found
    assert not [rule for rule, _ in found if rule.startswith("GC4")], "the loop that drops them does nothing wrong"
    assert math.isfinite(trained.updates[-1].loss)


def test_a_dead_model_is_given_up(tmp_path: Path) -> None:
    def dead() -> Subject:
        subject = linear()
        with torch.no_grad():
            next(subject.model.parameters()).fill_(math.nan)
        return subject

    trained = run_probe(dead, Conditions(CPU, 40, 1.0), (), tmp_path / "run")
    assert len(trained.updates) == 20
    assert all(u.dropped for u in trained.updates)


def test_overflow_in_fp16_is_the_scalers_business(tmp_path: Path) -> None:
    trained, analysis = run(tmp_path / "run", at("fp16-overflow", 55, 5.0, 59), subject=linear, steps=70, dtype="fp16")
    assert [u.step for u in trained.updates if u.dropped and u.step > 10] == [55, 56, 57, 58, 59], "the scaler searches at first"
    assert len(trained.updates) == 70, "a skipped update counts as one"
    assert {55, 56} & {f.first_step for f in analysis.findings if f.rule == "GC108"}, "the scale falls behind the update"
    assert judge_loop(analysis.run, "probe").verdict == "pass"


def test_every_fault_is_found_where_it_was_planted(tmp_path: Path) -> None:
    faults = [at(kind, step) for kind, step in FOUND]
    trained, analysis = run(tmp_path / "run", *faults, subject=lambda: preset_subject("tiny", 1, 0), steps=166, seed=1)
    result = {s.planted.kind: {rule for rule, _ in s.found} for s in twin("1.0", 1.0, analysis, trained, faults).sightings}
    for kind in ("loss-times", "mislabelled", "long-sequence", "foreign-tokens", "mask-off"):
        assert "GC101" in result[kind], kind
    assert {"GC104", "GC105"} <= result["nan-input"]
    assert {"GC104", "GC105"} <= result["inf-input"]
    assert result["lr-jump"] & {"GC101", "GC102", "GC103"}


FOUND = (
    ("loss-times", 80),
    ("mislabelled", 95),
    ("nan-input", 102),
    ("long-sequence", 110),
    ("foreign-tokens", 125),
    ("inf-input", 132),
    ("mask-off", 140),
    ("lr-jump", 163),
)


def test_a_probe_without_a_fault_is_clean(tmp_path: Path) -> None:
    _, analysis = run(tmp_path / "run", subject=lambda: preset_subject("tiny", 0, 0), steps=120)
    assert analysis.verdict.value == "stable"
    assert not [f for f in analysis.findings if f.severity.value == "error"]


def test_presets_grow() -> None:
    sizes = [sum(p.numel() for p in GPT(PRESETS[name]).parameters()) for name in ("tiny", "small")]
    assert sizes[0] < 1e5 < sizes[1] < 3e6


# Twins ----------------------------------------------------------------------------------------------------------------


def twins(tmp_path: Path, bounds: tuple[float, ...], *faults: Planted, **more: object) -> tuple[str, ...]:
    made = []
    for bound in bounds:
        trained, analysis = run(tmp_path / str(bound), *faults, subject=linear, max_norm=bound, **more)  # type: ignore[arg-type]
        made.append(twin(str(bound), bound, analysis, trained, faults))
    return compare(made)


def test_a_bound_that_never_acts(tmp_path: Path) -> None:
    (sentence,) = twins(tmp_path, (math.inf, 1000.0))
    assert sentence == "max_norm 1,000 never acted: every norm lay below it. The two runs are the same bit for bit."


def test_a_bound_that_saves(tmp_path: Path) -> None:
    (sentence,) = twins(tmp_path, (math.inf, 5.0), at("loss-times", 30, 1e6), optimizer="sgd", lr=0.01)
    assert sentence.startswith("max_norm 5 acted on 1 of 40 updates and saved the run: final loss "), sentence


def test_a_bound_that_makes_no_difference(tmp_path: Path) -> None:
    """Adam's step hardly depends on the size of the gradient, and no bound on it acts on the learning rate."""
    (sentence,) = twins(tmp_path, (math.inf, 3.0), at("loss-times", 20, 3.0), optimizer="adam", lr=1e-3)
    assert "made no difference to where the run ended" in sentence
