"""The battery on this machine's CPU: clean with PyTorch's clipping, and each broken one found by the check that should find it."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from gradclip_cli.errors import GradclipError, UsageError  # noqa: E402
from gradclip_cli.model.check import Status  # noqa: E402
from gradclip_cli.verify import TRIALS, Battery, Options, run, select  # noqa: E402
from tests import broken_clips as broken  # noqa: E402

CONTRACT = ("B1",)
ONE_RANK = ("B1", "B2", "B3", "B4", "B5", "B7")
# What needs another device, or other ranks.
NOT_HERE = {"B206"}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def battery(**options: object) -> Battery:
    return run(Options(**{"device": "cpu", "elements": 100_000, **options}))  # type: ignore[arg-type]


def ids(result: Battery, status: Status) -> set[str]:
    return {j.trial.id for j in result.judged if j.status is status}


def details(result: Battery) -> dict[str, str]:
    return {j.trial.id: j.outcome.detail for j in result.judged}


def test_pytorch_passes_on_the_cpu() -> None:
    result = battery(wanted=ONE_RANK)
    assert ids(result, Status.FAIL) == set(), details(result)
    assert ids(result, Status.SKIP) == NOT_HERE
    assert all(j.outcome.detail for j in result.judged)
    said = details(result)
    assert "in 32 cases" in said["B101"]  # 4 dtypes, 4 norm types, 2 paths
    assert "cosine 0." in said["B108"]
    assert "beyond 65504 it is inf in float16, and clipping leaves nothing" in said["B202"]
    assert "NotImplementedError" in said["B207"]
    assert "1.414 x the norm" in said["B208"]
    assert "65536 to 32768" in said["B403"]
    assert "float32 parameters" not in said["B404"]


@pytest.mark.parametrize("max_norm", [1e-3, 0.1, 50.0, 1e6])
def test_the_bound_may_be_any(max_norm: float) -> None:
    result = battery(wanted=ONE_RANK, max_norm=max_norm, elements=1000)
    assert ids(result, Status.FAIL) == set(), details(result)
    if max_norm in (1e-3, 1e6):
        assert "float16 left out" in details(result)["B101"]


def test_a_bound_near_pytorchs_epsilon_is_told() -> None:
    # min(1, 1e-7 / (0.53e-7 + 1e-6)): gradients at half the bound are shrunk to a tenth.
    result = battery(wanted=("B104",), max_norm=1e-7, dtypes=("float32",))
    assert ids(result, Status.FAIL) == {"B104"}


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "float64"])
def test_one_dtype_alone(dtype: str) -> None:
    result = battery(wanted=ONE_RANK, dtypes=(dtype,), elements=1000)
    assert ids(result, Status.FAIL) == set(), details(result)
    assert "B101" in ids(result, Status.PASS)
    assert "B205" in ids(result, Status.SKIP)


# Broken clip -> what must find it; whatever is not named here must not blame it.
BROKEN = {
    broken.ignores_one_tensor: {"B101", "B103", "B105"},
    broken.squares_the_norm: {"B101", "B102"},
    broken.sums_in_half_precision: {"B202"},
    broken.returns_the_norm_after: {"B106"},
    broken.always_to_the_bound: {"B104"},
    broken.twice_the_bound: {"B102", "B105"},
    broken.each_tensor_alone: {"B103", "B105"},
    broken.by_value: {"B103", "B105"},
    broken.on_a_copy: {"B102", "B105"},
    broken.always_two_norm: {"B101", "B102", "B104", "B105"},
    broken.foreach_path_halves: {"B102", "B104"},
    broken.first_dtype_only: {"B205"},
    broken.wants_every_gradient: {"B204"},
    broken.passes_sparse_over: {"B207"},
    broken.hides_nonfinite: {"B301", "B302"},
    broken.never_raises: {"B303"},
    broken.raises_too_late: {"B303"},
    broken.large_tensors_lose: {"B201", "B209"},
}
# Value clipping leaves a norm below the bound, or not: that depends on p.
MAY = {
    broken.sums_in_half_precision: {"B101", "B102", "B106"},
    broken.by_value: {"B102"},
    broken.always_two_norm: {"B106"},
}


@pytest.mark.parametrize("clip", BROKEN, ids=lambda f: f.__name__)
def test_a_broken_clip_is_found_by_the_right_check(clip) -> None:
    dtypes = ("float32", "float16")
    result = battery(wanted=("B1", "B2", "B3"), dtypes=dtypes, clip=clip)
    failed = ids(result, Status.FAIL)
    assert BROKEN[clip] <= failed, details(result)
    assert failed - BROKEN[clip] - MAY.get(clip, set()) == set(), details(result)


def test_what_builds_on_a_broken_contract_is_skipped() -> None:
    result = battery(clip=broken.twice_the_bound, elements=1000)
    later = [j for j in result.judged if j.trial.id[:2] in ("B4", "B5", "B7")]
    assert {j.status for j in later} == {Status.SKIP}
    assert {j.outcome.detail for j in later} == {"builds on what B102 coefficient found broken"}
    assert ids(battery(wanted=("B701",), clip=broken.on_a_copy), Status.FAIL) == {"B701"}


@pytest.mark.parametrize(
    ("clip", "wanted", "said"),
    [
        (broken.twice_the_bound, "B102", "is 0.54054, expected 0.27027"),
        (broken.each_tensor_alone, "B103", "clipping changed the direction"),
        (broken.returns_the_norm_after, "B106", "is the norm after clipping"),
        (broken.foreach_path_halves, "B102", "foreach); wrong in 16 of 32 cases"),
        (broken.large_tensors_lose, "B201", "is off by -1 % where 0.1 % is allowed, so clipping leaves 1.01 x max_norm"),
        (broken.raises, "B101", "clipping raised ValueError: no clipping today"),
        (broken.returns_nothing, "B101", "it returned NoneType, not the norm"),
        (broken.on_a_copy, "B401", "difference from the clipped big batch is 2.7"),
        (broken.on_a_copy, "B501", "the formula gives"),
        (broken.on_a_copy, "B701", "the bad batch went through"),
    ],
    ids=lambda v: v if isinstance(v, str) and v.startswith("B") else getattr(v, "__name__", ""),
)
def test_the_evidence_names_case_and_numbers(clip, wanted: str, said: str) -> None:
    (judged,) = battery(wanted=(wanted,), clip=clip).judged
    assert judged.status is Status.FAIL
    assert said in judged.outcome.detail


@pytest.mark.parametrize("clip", [broken.by_hand, broken.without_epsilon], ids=lambda f: f.__name__)
def test_another_right_implementation_passes(clip) -> None:
    result = battery(wanted=ONE_RANK, clip=clip)
    assert ids(result, Status.FAIL) == set(), details(result)


def test_the_optimizers_movements_are_those_of_the_formulas() -> None:
    said = {j.trial.name: j.outcome for j in battery(wanted=("B5",), dtypes=("float64",)).judged}
    # lr 0.01 x max_norm 1, and x 100 without clipping.
    assert said["sgd"].evidence["update_norm_with_clipping"] == pytest.approx(0.01, rel=1e-5)
    assert said["sgd"].evidence["update_norm_without_clipping"] == pytest.approx(1.0, rel=1e-9)
    assert "fused agree" in said["adamw"].detail
    # A second moment hides the size of the gradient.
    ratio = said["adamw"].evidence["update_norm_with_clipping"] / said["adamw"].evidence["update_norm_without_clipping"]
    assert 0.2 < ratio < 5


def test_a_fault_of_the_optimizer_is_no_fault_of_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.optim.SGD

    def lazy_when_fused(parameters, **options):
        return plain(parameters, **options | ({"lr": 0.001} if options.get("fused") else {}))

    monkeypatch.setattr(torch.optim, "SGD", lazy_when_fused)
    (judged,) = battery(wanted=("B501",)).judged
    assert judged.status is Status.PASS
    assert "default, for-loop, foreach agree" in judged.outcome.detail
    assert "fused, in float32 on cpu: update 1 has norm 0.0015 where 0.015 is right, without clipping as well" in judged.outcome.note


def test_a_tensor_there_is_no_memory_for_is_not_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradclip_cli.verify import sizes

    monkeypatch.setattr(sizes, "_free_bytes", lambda device: 450_000.0)
    (judged,) = battery(wanted=("B201",), elements=100_000).judged
    assert judged.status is Status.PASS
    assert judged.outcome.detail.endswith("(0.1 % allowed); no memory for float64 at 10^5")
    (judged,) = battery(wanted=("B201",), elements=200_000).judged
    assert (judged.status, judged.outcome.detail) == (
        Status.SKIP,
        "no memory for 200,000 elements on cpu: --elements takes a smaller number",
    )


def test_the_table() -> None:
    assert [t.id for t in TRIALS] == sorted(t.id for t in TRIALS)
    assert len({t.id for t in TRIALS}) == len({t.name for t in TRIALS}) == len(TRIALS)
    assert {t.id for t in select(("b3", "total-norm,GC508"))} == {"B101", "B301", "B302", "B303", "B402", "B403", "B404"}
    with pytest.raises(UsageError, match="no check 'B99'"):
        select(("B99",))


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(GradclipError, match="no such device"):
        battery(device="cuda:99")
    with pytest.raises(UsageError, match="no device is called"):
        battery(device="gpu")
    with pytest.raises(UsageError, match="'int8'"):
        battery(dtypes=("fp32", "int8"))


def test_tallies_take_nan_for_wrong() -> None:
    from gradclip_cli.verify.outcome import Tally

    tally = Tally("it")
    tally.compare("a", 1.0, 1.0, 1e-9)
    tally.compare("b", math.nan, 1.0, 1e-9)
    assert not tally.outcome().ok
    assert "wrong in 1 of 2" in tally.outcome().detail


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_pytorch_passes_on_a_gpu() -> None:
    result = run(Options(device="cuda", wanted=ONE_RANK))
    assert ids(result, Status.FAIL) == set(), details(result)
    assert ids(result, Status.SKIP) == set(), details(result)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_ranks_pass_on_gpus() -> None:
    result = run(Options(device="cuda", wanted=("B6",), world_size=2))
    assert ids(result, Status.FAIL) == set(), details(result)
