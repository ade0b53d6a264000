"""`with gradclip_cli.watch(...)`: what it records, refuses, and leaves as it was."""

from __future__ import annotations

import gc
import multiprocessing.spawn
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import optimizer as torch_optimizer

import gradclip_cli
from gradclip_cli.errors import GradclipError, UsageError
from gradclip_cli.runfile import read_recorded
from tests import recorded_cases


def loop() -> Callable[[int], None]:
    """Makes so many updates of a small model."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def update(n: int) -> None:
        for _ in range(n):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()

    return update


def patched() -> list[Any]:
    """Everything of torch and Python that a watcher may put its hands on."""
    scaler, utils = torch.amp.GradScaler, torch.nn.utils
    return [
        utils.clip_grad_norm_,
        utils.clip_grad.clip_grad_norm_,
        utils.clip_grad_value_,
        utils.get_total_norm,
        utils.clip_grads_with_norm_,
        torch.Tensor.backward,
        torch.autograd.backward,
        torch.autograd.grad,
        scaler.step,
        scaler.unscale_,
        scaler.update,
        torch.optim.Optimizer.zero_grad,
        torch.optim.Optimizer.__init__,
        torch.optim.SGD.step,
        torch.nn.Module.__call__,
        torch.nn.Module.zero_grad,
        torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
        multiprocessing.spawn.get_command_line,
        dict(torch_optimizer._global_optimizer_pre_hooks),
        dict(torch_optimizer._global_optimizer_post_hooks),
        dict(os.environ),
    ]


def test_it_records_and_leaves_no_trace(tmp_path: Path) -> None:
    update = loop()
    update(1)
    before = patched()
    with gradclip_cli.watch(tmp_path / "run") as watcher:
        update(5)
        assert patched() != before
    assert watcher.updates == 5
    assert patched() == before
    update(3)
    part = read_recorded(tmp_path / "run")[0].parts[0]
    assert part.steps.tolist() == [1, 2, 3, 4, 5]
    assert part.ended == "finished"
    assert [t.shape for t in part.tensors] == [(1, 4), (1,)]


def test_an_exception_is_told_and_goes_on(tmp_path: Path) -> None:
    update, before = loop(), patched()
    with pytest.raises(ValueError, match="bad"), gradclip_cli.watch(str(tmp_path / "run")):
        update(2)
        raise ValueError("bad batch")
    assert patched() == before
    assert read_recorded(tmp_path / "run")[0].parts[0].ended == "ValueError: bad batch"


def test_it_ends_after_so_many_updates(tmp_path: Path) -> None:
    update = loop()
    with pytest.raises(SystemExit) as e, gradclip_cli.watch(tmp_path / "run", max_updates=3):
        update(10)
    assert e.value.code == 0
    assert read_recorded(tmp_path / "run")[0].parts[0].steps.tolist() == [1, 2, 3]


def test_what_lies_there_is_refused_or_replaced_before_anything_runs(tmp_path: Path) -> None:
    recorded_cases.write(tmp_path / "run")
    with pytest.raises(GradclipError, match="already holds a recorded run"):
        gradclip_cli.watch(tmp_path / "run")
    update = loop()
    with gradclip_cli.watch(tmp_path / "run", force=True):
        update(2)
    assert len(read_recorded(tmp_path / "run")[0].parts[0].steps) == 2
    with pytest.raises(UsageError, match="every:K"):
        gradclip_cli.watch(tmp_path / "other", save_grads="sometimes")


def test_one_at_a_time(tmp_path: Path) -> None:
    with gradclip_cli.watch(tmp_path / "a"), pytest.raises(GradclipError, match="being watched already"):
        gradclip_cli.watch(tmp_path / "b").start()


def test_where_it_cannot_write_it_says_so_once_and_training_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    update = loop()
    with gradclip_cli.watch(tmp_path / "file/run") as watcher:
        update(250)
    assert watcher.failed
    out, err = capsys.readouterr()
    assert out == ""
    stopped = f"recording stopped after {watcher.updates} updates ({tmp_path}/file/run: Not a directory)"
    assert err == f"gradclip: warning: {stopped}; the training goes on\n"


def test_gradients_are_saved_on_the_way(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    # Optimizers of other tests, which live until then, would be taken in too.
    gc.collect()
    update = loop()
    with gradclip_cli.watch(tmp_path / "run", save_grads="every:2"):
        update(5)
    recorded = read_recorded(tmp_path / "run")[0]
    part = recorded.parts[0]
    assert list(recorded.gradients) == [2, 4]
    for step, path in recorded.gradients.items():
        saved = load_file(path)
        assert [tuple(saved[t.name].shape) for t in part.tensors] == [t.shape for t in part.tensors]
        for norm, tensor in zip(part.tensor_norms[step - 1], part.tensors, strict=True):
            assert saved[tensor.name].double().norm().item() == pytest.approx(norm, rel=1e-6)


def test_the_callbacks_are_there_on_the_first_access() -> None:
    code = "import gradclip_cli; print(gradclip_cli.watch.hf_callback.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "hf_callback\n"


def test_the_name_is_the_function_and_the_package() -> None:
    import gradclip_cli.watch as package

    assert callable(gradclip_cli.watch)
    assert package.watch is not None
    assert callable(package.hf_callback)
    assert callable(package.lightning_callback)
