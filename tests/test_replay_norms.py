"""Norms of stored gradients: right to 1e-12 for every storage and p, and the same however the work is cut."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from gradclip_cli.clipping import blocks
from gradclip_cli.clipping.blocks import Wanted, measure
from gradclip_cli.clipping.dtypes import DTYPES, Decoder
from gradclip_cli.clipping.norms import BLOCK, MOST_P, ROW, PowerSum, power_sum, total
from gradclip_cli.clipping.ranks import Ranks
from gradclip_cli.clipping.replay import Request, replay
from gradclip_cli.clipping.sources import find
from gradclip_cli.errors import GradclipError
from tests.replay_cases import exact_norm, gradients, write_safetensors

FLOATS = [name for name, d in DTYPES.items() if d.kind == "real"]
POWERS = [1.0, 2.0, 3.0, 2.5, 0.5, 9.0, math.inf]


def norm_of(path: Path, p: float = 2.0) -> float:
    result, failures = replay([path], Request(norm_type=p))
    assert failures == ()
    assert result is not None
    return result.steps[0].total_norm


def test_every_half_and_every_byte_is_read_exactly() -> None:
    for name in FLOATS:
        size = DTYPES[name].num_bytes
        if size > 2:
            continue
        bits = torch.arange(256 if size == 1 else 65536).to(torch.uint8 if size == 1 else torch.uint16)
        expected = bits.view(getattr(torch, name)).double().numpy()
        out = np.empty(len(expected))
        with np.errstate(invalid="ignore"):
            Decoder(len(out))(bits.view(torch.uint8).numpy(), DTYPES[name], out)
        np.testing.assert_array_equal(out, expected, err_msg=name)
        finite = torch.from_numpy(np.flatnonzero(np.isfinite(expected))).to(bits.dtype)
        out = np.empty(len(finite))
        Decoder(len(out))(finite.view(torch.uint8).numpy(), DTYPES[name], out)
        np.testing.assert_array_equal(np.abs(out), np.abs(expected[np.isfinite(expected)]), err_msg=name)
        assert np.abs(out).max() == DTYPES[name].largest
        assert np.abs(out)[out != 0].min() == DTYPES[name].smallest


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_norms_are_right_for_every_dtype_and_p(tmp_path: Path, dtype: str, p: float) -> None:
    rng = np.random.default_rng(1)
    spread = 10.0 ** rng.uniform(-3, 2, 3000)
    tensors = {
        "a": torch.from_numpy(rng.standard_normal(3000) * spread).to(getattr(torch, dtype)),
        "b": torch.ones(5, 7).to(getattr(torch, dtype)),
    }
    torch.save(tensors, tmp_path / "g.pt")
    expected = exact_norm([t.double().numpy() for t in tensors.values()], p)
    assert norm_of(tmp_path / "g.pt", p) == pytest.approx(expected, rel=1e-13)


def test_the_highest_p_does_not_vanish(tmp_path: Path) -> None:
    # The largest is just above a power of two, so that all are nearly halved before they are raised to p.
    path = write_safetensors(tmp_path / "g.safetensors", {"a": np.full(64, 1.0001), "b": np.full(64, 1e-3)})
    assert norm_of(path, MOST_P) == pytest.approx(1.0001 * 64 ** (1 / MOST_P), rel=1e-13)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, 7.5, math.inf])
@pytest.mark.parametrize("exponents", [(-320, -300), (290, 300), (-300, 300)], ids=["tiny", "huge", "both"])
def test_float64_neither_overflows_nor_vanishes(tmp_path: Path, p: float, exponents: tuple[int, int]) -> None:
    rng = np.random.default_rng(2)
    values = {"a": 10.0 ** rng.uniform(*exponents, 500), "b": 10.0 ** rng.uniform(*exponents, (3, 9)), "zero": np.zeros(4)}
    path = write_safetensors(tmp_path / "g.safetensors", values)
    assert norm_of(path, p) == pytest.approx(exact_norm(list(values.values()), p), rel=1e-12)


def test_half_precision_that_overflows_its_own_norm(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "g.safetensors", {"w": np.full((1 << 12, 100), 300, np.float16)})
    assert norm_of(path) == pytest.approx(192_000, rel=1e-14)
    result, _ = replay([path], Request(max_norms=(1.0,)))
    assert result is not None
    assert [f.rule for f in result.findings] == ["GC505"]
    grads = torch.nn.Parameter(torch.zeros(1 << 12, 100, dtype=torch.float16))
    grads.grad = torch.full_like(grads, 300)
    assert math.isinf(float(torch.nn.utils.clip_grad_norm_([grads], 1.0))), "what the finding says of torch"
    assert not grads.grad.any()


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_float32_of_many_elements(tmp_path: Path, p: float) -> None:
    """float32 sums of as many are off by 1e-4."""
    block = (np.random.default_rng(3).standard_normal(1 << 19) * 1e-3).astype(np.float32)
    path = write_safetensors(tmp_path / "g.safetensors", {"w": np.tile(block, 8)})
    one = np.sum(np.abs(block.astype(np.longdouble)) ** int(p))
    assert norm_of(path, p) == pytest.approx(float((8 * one) ** np.longdouble(1 / p)), rel=1e-13)


def test_the_result_does_not_depend_on_files_threads_or_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    big = {
        "a": rng.standard_normal((1 << 20) + 77).astype(np.float32),
        "b": rng.standard_normal(3 * ROW + 1).astype(np.float32),
        **gradients(),
    }
    one = write_safetensors(tmp_path / "one.safetensors", big)
    for i, (name, array) in enumerate(big.items()):
        write_safetensors(tmp_path / f"g-{i + 1:05d}-of-{len(big):05d}.safetensors", {name: array})
    parts = sorted(tmp_path.glob("g-*"))
    tensors = find([one]).steps[0].tensors
    expected = measure(tensors, Wanted(2.0, (0.5,), histogram=True), Ranks())
    result, _ = replay(parts, Request())
    assert result is not None
    assert result.steps[0].total_norm == norm_of(one)
    for num_threads in (1, 4):
        monkeypatch.setattr(blocks, "_num_threads", lambda num=num_threads: num)
        other = measure(tensors, Wanted(2.0, (0.5,), histogram=True), Ranks())
        assert other[0] == expected[0]
        np.testing.assert_array_equal(other[1], expected[1])


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 100])
def test_ranks_share_every_block_once(tmp_path: Path, world_size: int) -> None:
    tensors = (
        find([write_safetensors(tmp_path / "g.safetensors", {**gradients(), "big": np.zeros((1 << 20) * 3 + 5, np.float16)})])
        .steps[0]
        .tensors
    )
    cut = blocks.blocks_of(tensors)
    shares = [[i for span in blocks.share(cut, Ranks(rank, world_size)) for i in span] for rank in range(world_size)]
    assert sum(shares, []) == list(range(len(cut)))


def test_power_sums_add_up_in_any_order() -> None:
    scratch = np.empty(10)
    with np.errstate(over="ignore"):
        parts = [power_sum(np.array(v), 2.0, scratch) for v in ([1e200, 1e-200], [3.0], [1e-170], [0.0], [])]
    both = [total(parts, 2.0), total(reversed(parts), 2.0)]
    assert both[0] == both[1]
    assert both[0].norm(2.0) == pytest.approx(1e200)
    assert total([], 2.0) == PowerSum(0.0)
    assert math.isnan(total([PowerSum(math.inf), PowerSum(math.nan)], 2.0).norm(2.0))


def test_what_is_not_finite_is_named_counted_and_placed(tmp_path: Path) -> None:
    tensors = gradients()
    tensors["h.0.weight"][3, 7] = np.nan
    tensors["h.0.weight"][15, 32] = -np.inf
    tensors["head.weight"][100, 6] = np.inf
    result, _ = replay([write_safetensors(tmp_path / "g.safetensors", tensors)], Request(max_norms=(1.0,)))
    assert result is not None
    (step,) = result.steps
    assert math.isnan(step.total_norm)
    assert [(t.name, t.num_nan, t.num_inf, t.num_neg_inf, t.positions) for t in step.nonfinite] == [
        ("h.0.weight", 1, 0, 1, ((3, 7), (15, 32))),
        ("head.weight", 0, 1, 0, ((100, 6),)),
    ]
    assert math.isnan(step.clips[0].coefficient)
    assert step.top_tensors == ()
    (finding,) = result.findings
    assert finding.rule == "GC104"
    assert "h.0.weight holds 1 nan and 1 -inf among 528 elements, the first at [3, 7], [15, 32]" in finding.message
    del tensors["h.0.weight"]
    assert norm_of(write_safetensors(tmp_path / "inf.safetensors", tensors)) == math.inf


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_positions_count_from_the_beginning_of_a_large_tensor(tmp_path: Path, dtype: str) -> None:
    values = np.ones((3, BLOCK), dtype)
    values[0, BLOCK - 1], values[1, 5], values[2, BLOCK // 2 + 3], values[2, BLOCK - 1] = -np.inf, np.nan, np.inf, np.nan
    result, _ = replay([write_safetensors(tmp_path / "g.safetensors", {"small": np.ones(7, dtype), "w": values})], Request())
    assert result is not None
    (found,) = result.steps[0].nonfinite
    assert (found.name, found.num_nan, found.num_inf, found.num_neg_inf) == ("w", 2, 1, 1)
    assert found.positions == ((0, BLOCK - 1), (1, 5), (2, BLOCK // 2 + 3))


@pytest.mark.parametrize("num_threads", [1, 4])
def test_a_file_that_shrinks_while_it_is_read_is_named_the_first_one_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_threads: int
) -> None:
    parts = [
        write_safetensors(tmp_path / f"g-{i:05d}-of-00003.safetensors", {f"w{i}": np.zeros((1 << 20) + i, np.float32)}) for i in (1, 2, 3)
    ]
    tensors = find(parts).steps[0].tensors
    for path in parts[1:]:
        os.truncate(path, 1 << 20)
    monkeypatch.setattr(blocks, "_num_threads", lambda: num_threads)
    with pytest.raises(GradclipError, match="g-00002-of-00003.safetensors: found the end of the file while it was read"):
        measure(tensors, Wanted(2.0), Ranks())


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_measuring_that_fails_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_threads: int) -> None:
    path = write_safetensors(tmp_path / "g.safetensors", {"w": np.ones(12 * BLOCK, np.float32)})

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(blocks, "_num_threads", lambda: num_threads)
    monkeypatch.setattr(blocks, "power_sum", fail)
    with pytest.raises(MemoryError):
        measure(find([path]).steps[0].tensors, Wanted(2.0), Ranks())


def test_the_histogram_counts_every_finite_element_once(tmp_path: Path) -> None:
    values = np.array([0, 0, 1, -1.5, 2, 3.99, 2.0**-149, np.nan, np.inf], np.float32)
    result, _ = replay(
        [write_safetensors(tmp_path / "g.safetensors", {"w": values, "x": np.zeros(3, np.float32)})], Request(histogram=True)
    )
    assert result is not None
    histogram = result.steps[0].histogram
    assert histogram is not None
    assert {int(k): int(histogram[k]) for k in np.flatnonzero(histogram)} == {0: 5, 1023: 2, 1024: 2, 1023 - 149: 1}


def test_complex_gradients_have_the_norm_of_their_absolute_values(tmp_path: Path) -> None:
    values = np.array([3 + 4j, -1j, 0], np.complex64)
    path = write_safetensors(tmp_path / "g.safetensors", {"w": values})
    assert norm_of(path) == pytest.approx(math.sqrt(26), rel=1e-15)
    assert norm_of(path, 1.0) == pytest.approx(6, rel=1e-15)
