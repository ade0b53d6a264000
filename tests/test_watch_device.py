"""A recorded step waits for no device: on one whose every read is counted, and, where there is one, on a real one that forbids waiting."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from gradclip_cli.model.recorded import RankPart
from gradclip_cli.runfile import read_recorded
from gradclip_cli.watch import Watcher
from gradclip_cli.watch.measure import tensor_norms
from tests.on_device import DEVICE, Device, Held

UPDATES = 9
Loop = Callable[[], None]


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is an accelerator: gradients are read at no point. No time is up before the end."""
    monkeypatch.setattr("gradclip_cli.watch.watcher._EXACT_AT_FIRST", 0)
    monkeypatch.setattr("gradclip_cli.watch.recorder._BLOCK_S", 1000.0)
    # As `cuda` is.
    monkeypatch.setattr(sys.modules["torch.optim.adam"], "_get_capturable_supported_devices", lambda **_: [DEVICE.type, "cuda"])


def model(device: torch.device = DEVICE) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8, device=device), nn.Tanh(), nn.Linear(8, 1, device=device))


def batch() -> torch.Tensor:
    return torch.randn(5, 4, device=DEVICE)


def stepping(clip: Callable[[Any], object] = lambda net: None, make: Any = torch.optim.SGD, micro_batches: int = 1, **options: Any) -> Loop:
    """A loop of backward, what clips, and step."""

    def loop() -> None:
        net = model()
        given = {k: v() if callable(v) else v for k, v in options.items()}
        optimizer = make(net.parameters(), **{"lr": 0.01} | given)
        for _ in range(UPDATES):
            optimizer.zero_grad()
            for _ in range(micro_batches):
                (net(batch()).square().mean() / micro_batches).backward()
            clip(net)
            optimizer.step()

    return loop


def norm_clipping(net: nn.Module) -> object:
    return clip_grad_norm_(net.parameters(), 0.5)


def scaling(*, unscale: bool) -> Loop:
    def loop() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)  # it scales on the device of the losses
        for i in range(UPDATES):
            loss = net(batch()).square().mean() * (math.inf if i in (2, 5) else 1.0)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
                norm_clipping(net)
            scaler.step(optimizer)
            scaler.update()

    return loop


def closures() -> None:
    net = model()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    for _ in range(UPDATES):
        x = batch()

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = net(x).square().mean()
            loss.backward()
            norm_clipping(net)
            return loss

        optimizer.step(closure)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(10, 4, device=DEVICE), nn.Linear(4, 10, device=DEVICE)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, sample_id: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.embed(input_ids)).flatten(0, 1), labels.flatten(), ignore_index=-100)


def labels_on_the_device() -> None:
    net = Tokens()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(UPDATES):
        tokens = torch.randint(10, (2, 6)).to(DEVICE)
        optimizer.zero_grad()
        net(input_ids=tokens, labels=tokens, sample_id=torch.arange(2).to(DEVICE)).backward()
        norm_clipping(net)
        optimizer.step()


def parameters_on_two_devices() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(4, 8), nn.Linear(8, 1, device=DEVICE)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        second(first(torch.randn(5, 4)).to(DEVICE)).square().mean().backward()
        norm_clipping(second)
        optimizer.step()


def compiled_step() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(UPDATES):
        optimizer.zero_grad()
        net(batch()).square().mean().backward()
        norm_clipping(net)
        step()


LOOPS: dict[str, Loop] = {
    "a step": stepping(),
    "clipping by norm": stepping(norm_clipping),
    "clipping by value": stepping(lambda net: clip_grad_value_(net.parameters(), 0.1)),
    "a bound on the device": stepping(lambda net: clip_grad_norm_(net.parameters(), torch.tensor(0.5).to(DEVICE))),
    "four micro-batches": stepping(norm_clipping, micro_batches=4),
    "a learning rate on the device": stepping(norm_clipping, torch.optim.AdamW, lr=lambda: torch.tensor(0.01).to(DEVICE), capturable=True),
    "loss scaling": scaling(unscale=False),
    "loss scaling and clipping": scaling(unscale=True),
    "closures": closures,
    "labels on the device": labels_on_the_device,
    "parameters on two devices": parameters_on_two_devices,
    "a compiled step": compiled_step,
}


def part_of(folder: Path) -> RankPart:
    return read_recorded(folder / "run")[0].parts[0]


def reads(loop: Loop, folder: Path, **options: Any) -> tuple[Counter[str], Counter[str]]:
    """What the recorder reads while the loop runs, and at the one flush behind it."""
    with Device() as device:
        loop()
    alone = device.reads
    problems: list[str] = []
    with Device() as device:
        watcher = Watcher(folder / "run", on_problem=problems.append, **options).start()
        loop()
        meanwhile = device.reads.copy()
        watcher.stop()
        at_the_end = device.reads - meanwhile
    assert problems == []
    assert len(part_of(folder).steps) >= UPDATES
    assert meanwhile & alone == alone
    return meanwhile - alone, at_the_end


@pytest.mark.parametrize("name", LOOPS)
def test_a_step_reads_nothing_and_a_block_is_read_at_once(name: str, tmp_path: Path) -> None:
    assert reads(LOOPS[name], tmp_path) == (Counter(), Counter({"_to_copy": 1}))


def test_gradients_that_are_kept_are_read_when_they_are(tmp_path: Path) -> None:
    between, _ = reads(LOOPS["clipping by norm"], tmp_path / "a", save_grads=f"every:{UPDATES + 1}")
    assert between == Counter()
    once, _ = reads(LOOPS["clipping by norm"], tmp_path / "b", save_grads=f"every:{UPDATES}")
    assert once == Counter({"_to_copy": 4, "_local_scalar_dense": 1}), "the four gradients, and their norm"


def test_what_is_read_late_is_what_it_was(tmp_path: Path) -> None:
    """Norms that the script writes into, a learning rate that a schedule does, losses of another type."""
    losses, norms, used, rates = [], [], [], []
    with Device() as device, Watcher(tmp_path / "run"):
        net, rate = model(), torch.tensor(0.5).to(DEVICE)
        optimizer = torch.optim.AdamW(net.parameters(), lr=rate, capturable=True)
        for _ in range(UPDATES):
            optimizer.zero_grad()
            loss = net(batch()).square().mean().bfloat16()
            loss.backward()
            norm = norm_clipping(net)
            assert isinstance(norm, Held)
            losses.append(float(loss.held))  # type: ignore[attr-defined]
            norms.append(float(norm.held))
            used.append(float(torch.cat([p.grad.held.double().ravel() for p in net.parameters()]).norm()))  # type: ignore[union-attr]
            rates.append(float(rate.held))  # type: ignore[attr-defined]
            norm.mul_(100)
            optimizer.step()
            rate.mul_(0.5)
        device.reads.clear()
    assert device.reads == {"_to_copy": 2}, "of float32 and of bfloat16"
    columns = part_of(tmp_path).columns
    np.testing.assert_array_equal(columns["loss"], losses)
    np.testing.assert_array_equal(columns["lr"], rates)
    np.testing.assert_allclose(columns["grad_norm"], norms, rtol=1e-6)
    np.testing.assert_allclose(columns["grad_norm_used"], used, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", [(7, 3, 2), (5,)], ids=str)
def test_rows_of_a_sparse_gradient_are_added_up_without_a_wait(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """To count how many places there are is to wait."""
    torch.manual_seed(0)
    dims = 2 if len(shape) > 1 else 1
    indices = torch.randint(3, (dims, 40))
    indices[0] = indices[0] * 2 % shape[0]
    gradient = torch.sparse_coo_tensor(indices, torch.randn(40, *shape[dims:]).to(dtype), shape, check_invariants=True)
    dense = gradient.to(torch.complex128 if dtype.is_complex else torch.float64).to_dense()
    expected = dense.abs().square().sum().sqrt()
    with torch.profiler.profile() as seen:
        (norm,) = tensor_norms([gradient])
    assert norm.item() == pytest.approx(expected.item(), rel=1e-6)
    assert not {"aten::_coalesce", "aten::coalesce", "aten::item", "aten::_local_scalar_dense"} & {e.key for e in seen.key_averages()}
    assert tensor_norms([gradient.coalesce()])[0].item() == pytest.approx(expected.item(), rel=1e-2 if dtype == torch.bfloat16 else 1e-6)
    assert tensor_norms([torch.sparse_coo_tensor(size=shape, dtype=dtype, check_invariants=True)])[0].item() == 0


def test_where_a_graph_is_captured_it_ends_and_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The third update and those behind it become a graph, whose replays no hook sees."""
    capturing = [False]
    for module in ("hook", "watcher"):
        monkeypatch.setattr(f"gradclip_cli.watch.{module}.is_capturing", lambda: capturing[0])
    problems: list[str] = []
    with Device() as device:
        watcher = Watcher(tmp_path / "run", on_problem=problems.append).start()
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for i in range(UPDATES):
            capturing[0] = i >= 2
            optimizer.zero_grad()
            net(batch()).square().mean().backward()
            norm_clipping(net)
            optimizer.step()
        assert device.reads == {}
        capturing[0] = False
        watcher.stop()
    assert problems == [
        "recording stopped after 2 updates (a CUDA graph is captured, and what is replayed from one cannot be seen); the training goes on"
    ]
    part = part_of(tmp_path)
    assert part.steps.tolist() == [1, 2]
    assert part.header["fault"] == "a CUDA graph is captured, and what is replayed from one cannot be seen"


# On a real one --------------------------------------------------------------------------------------------------------

with_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, where waiting can be forbidden")


def cuda_loop() -> Callable[[int], None]:
    cuda = torch.device("cuda")
    net = model(cuda)
    optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.01, device=cuda), capturable=True)
    x = torch.randn(5, 4, device=cuda)

    def updates(n: int) -> None:
        for _ in range(n):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            norm_clipping(net)
            optimizer.step()

    return updates


@with_cuda
def test_a_script_that_forbids_waiting_is_recorded(tmp_path: Path) -> None:
    """Over more than a block: its flush waits for an event, which is allowed."""
    updates = cuda_loop()
    updates(3)
    problems: list[str] = []
    with Watcher(tmp_path / "run", on_problem=problems.append):
        torch.cuda.set_sync_debug_mode("error")
        try:
            updates(130)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert problems == []
    assert len(part_of(tmp_path).steps) == 130


@with_cuda
def test_a_stream_of_the_scripts_own_is_waited_for(tmp_path: Path) -> None:
    """It is a second behind when the watch ends in another stream."""
    updates = cuda_loop()
    torch.cuda.synchronize()
    with Watcher(tmp_path / "run"):
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            torch.cuda._sleep(2_000_000_000)
            updates(5)
        begun = time.monotonic()
    assert time.monotonic() - begun > 0.1
    columns = part_of(tmp_path).columns
    assert np.isfinite(columns["loss"]).all()
    assert (np.diff(columns["loss"]) < 0).all()
    np.testing.assert_allclose(columns["lr"], 0.01, rtol=1e-6)


@with_cuda
def test_a_captured_step_is_not_broken(tmp_path: Path) -> None:
    problems: list[str] = []
    net = model(torch.device("cuda"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(5, 4, device="cuda")
    torch.cuda.synchronize()

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        net(x).square().mean().backward()
        norm_clipping(net)
        optimizer.step()

    with Watcher(tmp_path / "run", on_problem=problems.append):
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            for _ in range(3):
                update()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            update()
        before = [p.detach().clone() for p in net.parameters()]
        graph.replay()
        torch.cuda.synchronize()
    assert all(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert len(problems) == 1
    assert part_of(tmp_path).steps.tolist() == [1, 2, 3]
