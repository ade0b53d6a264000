"""Saved gradients: which updates are kept, what the files hold, and what becomes of a full disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from gradclip_cli.errors import UsageError
from gradclip_cli.runfile import RunWriter, files, read_recorded
from gradclip_cli.watch import gradients
from gradclip_cli.watch.gradients import GradientKeeper, check_choice, write_safetensors


def saved(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with safe_open(path, "pt") as f:
        return {k: f.get_tensor(k) for k in f.keys()}, f.metadata()  # noqa: SIM118 - it is no mapping


def feed(keeper: GradientKeeper, norms: Sequence[float], *, bound: float | None = None) -> None:
    """One update a norm, with a gradient that is known by its step."""
    for step, norm in enumerate(norms, 1):
        gradient = torch.full((2, 3), float(step))
        keeper.on_update(step, lambda gradient=gradient: [("w", gradient)], lambda norm=norm: torch.tensor(norm), bound=bound)
        # The optimizer's `zero_grad` may write into the very same memory.
        gradient.zero_()


def test_choices() -> None:
    assert check_choice("every:100") == 100
    assert check_choice("never") is check_choice("explosions") is None
    for bad in ("every", "every:0", "every:-1", "every:1.5", "always", ""):
        with pytest.raises(UsageError, match="expected never, explosions or every:K"):
            check_choice(bad)


def test_every_kind_of_tensor_comes_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {
        "float32": torch.randn(3, 4),
        "bfloat16": torch.randn(5).bfloat16(),
        "float16": torch.randn(2, 2).half(),
        "float64": torch.randn(()).double(),
        "transposed": torch.randn(3, 4).t(),
        "empty": torch.empty(0, 4),
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
        'a name/with "signs" é': torch.ones(1),
    }
    write_safetensors(tmp_path / "x.safetensors", tensors.items(), {"step": "7"})
    found, metadata = saved(tmp_path / "x.safetensors")
    assert metadata == {"step": "7"}
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        torch.testing.assert_close(found[name], tensor.contiguous(), rtol=0, atol=0, equal_nan=True)
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (3, 2), check_invariants=True)
    write_safetensors(tmp_path / "s.safetensors", [("e", sparse)], {})
    assert saved(tmp_path / "s.safetensors")[0]["e"].tolist() == [[0, 0], [4, 6], [0, 0]]


def test_every_k_updates(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {})
    feed(GradientKeeper("every:4", lambda: writer), [1.0] * 10, bound=0.5)
    writer.close("finished")
    kept = read_recorded(tmp_path / "run")[0].gradients
    assert [Path(p).name for p in kept.values()] == ["step-00000004.safetensors", "step-00000008.safetensors"]
    tensors, metadata = saved(Path(kept[8]))
    assert tensors["w"].tolist() == [[8.0] * 3] * 2
    assert metadata == {"step": "8", "total_norm": "1.0", "scale": "1.0", "stage": "post_clip", "norm_type": "2.0", "max_norm": "0.5"}
    assert {p.name for p in (tmp_path / "run/grads").iterdir()} == {Path(p).name for p in kept.values()}, "nothing else is left there"


def test_an_explosion_and_the_updates_before_it(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {})
    norms = [1.0] * 20 + [50.0, 1.0, 1.0, 1.1, float("nan"), 1.0]
    feed(GradientKeeper("explosions", lambda: writer), norms)
    kept = read_recorded(tmp_path / "run")[0].gradients
    assert list(kept) == [18, 19, 20, 21, 22, 23, 24, 25]
    for step, path in kept.items():
        assert saved(Path(path))[0]["w"][0, 0] == step
    assert saved(Path(kept[25]))[1]["total_norm"] == "nan"


def test_a_slow_rise_and_the_beginning_are_no_explosions(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {})
    feed(GradientKeeper("explosions", lambda: writer), [100.0, 3.0, 1.0, 1.0, 20.0, *(1.05**i for i in range(100))])
    assert read_recorded(tmp_path / "run")[0].gradients == {}


def test_without_memory_the_explosion_alone_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_free_bytes", lambda _: 10)
    writer = RunWriter(tmp_path / "run", {})
    feed(GradientKeeper("explosions", lambda: writer), [1.0] * 20 + [50.0])
    assert list(read_recorded(tmp_path / "run")[0].gradients) == [21]


def test_a_run_that_explodes_for_ever_does_not_fill_the_disk(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {})
    feed(GradientKeeper("explosions", lambda: writer), ([1.0] * 20 + [50.0]) * 20)
    assert len(read_recorded(tmp_path / "run")[0].gradients) == 10 * 4


def test_a_full_disk_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problems: list[str] = []
    writer = RunWriter(tmp_path / "run", {}, on_problem=problems.append)

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "write", full)
    feed(GradientKeeper("every:1", lambda: writer), [1.0] * 5)
    monkeypatch.undo()
    assert len(problems) == 1
    assert "step-00000001.safetensors: gradients cannot be kept (No space left on device)" in problems[0]
    assert list((tmp_path / "run/grads").iterdir()) == []
