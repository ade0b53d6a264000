"""A script must not notice that it is watched: whatever its tensors are, whatever it does with threads and descriptors, whatever fails on our side."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gradclip_cli
from gradclip_cli.errors import GradclipError
from gradclip_cli.runfile import RunWriter, read_recorded
from gradclip_cli.runfile.files import Opened, create
from gradclip_cli.watch.registry import Registry
from gradclip_cli.watch.states import Reader
from tests.record_runs import ENV, write


def meta() -> list[torch.nn.Parameter]:
    """Tensors without values."""
    return [torch.nn.Parameter(torch.empty(3, device="meta"))]


class Opaque(torch.Tensor):
    """A class of a script's own that knows no norm and is no numpy array."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "norm" in func.__name__:
            raise NotImplementedError(func.__name__)
        out = func(*(a.held if isinstance(a, Opaque) else a for a in args), **(kwargs or {}))
        return args[0] if func.__name__.startswith("add_") else Opaque(out) if isinstance(out, torch.Tensor) else out


def opaque() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(Opaque(torch.ones(3)))]


@pytest.mark.parametrize("made", [meta, opaque])
def test_what_cannot_be_read_ends_the_recording_and_not_the_training(made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([plain], lr=0.5, foreach=False)
    strange = made()
    with gradclip_cli.watch(tmp_path / "run"):
        for i in range(6):
            if i == 3:
                optimizer.add_param_group({"params": strange})
            optimizer.zero_grad()
            plain.grad = torch.ones(2)
            strange[0].grad = None if i < 3 else made()[0].detach()
            optimizer.step()
    assert plain.tolist() == [-2.0, -2.0]
    said = capsys.readouterr().err
    assert said.count("recording stopped after 3 updates (") == 1
    part = read_recorded(tmp_path / "run")[0].parts[0]
    assert part.steps.tolist()[:3] == [1, 2, 3]
    assert part.ended == "finished"
    assert part.header["fault"]


def test_a_loop_that_could_not_be_watched_to_the_end_is_not_clean(gradclip, tmp_path: Path) -> None:
    write(
        tmp_path,
        "train.py",
        """
        import torch
        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for i in range(1000):
            if i == 5:
                late = torch.nn.Parameter(torch.empty(3, device="meta"))
                late.grad = torch.empty(3, device="meta")
                optimizer.add_param_group({"params": [late]})
            optimizer.zero_grad(set_to_none=False)
            net(torch.ones(2, 4)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            assert i < 900, "it runs on though nobody counts its updates"
        """,
    )
    done = gradclip("verify", "train.py", code=3)
    assert "could not be watched to the end" in " ".join(done.stdout.split())


def test_classes_of_the_scripts_own_are_asked_nothing(tmp_path: Path) -> None:
    class Counting(torch.Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counting.calls += 1
            return super().__torch_function__(func, types, args, kwargs or {})

    def calls() -> int:
        Counting.calls = 0
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 1)
        weight = torch.nn.Parameter(torch.randn(4, 4).as_subclass(Counting))
        optimizer = torch.optim.SGD([weight, *net.parameters()], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 4) @ weight).square().mean().backward()
            torch.nn.utils.clip_grad_norm_([weight], 0.1)
            optimizer.step()
        return Counting.calls

    alone = calls()
    with gradclip_cli.watch(tmp_path / "run", exact=True):
        assert calls() == alone


def test_loops_of_several_threads_lose_no_update(tmp_path: Path) -> None:
    problems: list[BaseException] = []

    def train() -> None:
        try:
            weight = torch.nn.Parameter(torch.ones(3))
            optimizer = torch.optim.SGD([weight], lr=0.01)
            for _ in range(25):
                optimizer.zero_grad()
                weight.square().sum().backward()
                optimizer.step()
        except BaseException as e:  # noqa: BLE001 - reported below
            problems.append(e)

    with gradclip_cli.watch(tmp_path / "run", exact=True):
        threads = [threading.Thread(target=train) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not problems
    recorded, damage = read_recorded(tmp_path / "run")
    assert not damage
    assert recorded.parts[0].steps.tolist() == list(range(1, 101))


def test_optimizers_that_are_gone_cost_nothing() -> None:
    registry = Registry()
    for _ in range(50):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        registry.optimizer(optimizer)
    held = optimizer
    del optimizer
    gc.collect()
    assert len(registry) == 50
    assert [o for o, _ in registry.optimizers()] == [49]
    assert list(registry.parameters()) == [49]
    assert registry.find_optimizer(49) is held
    assert registry.find_optimizer(3) is None


@pytest.mark.parametrize(
    "gradient",
    [
        pytest.param(torch.arange(-3.0, 4.0), id="float32"),
        pytest.param(torch.linspace(-1, 2, 5000, dtype=torch.float64), id="large"),
        pytest.param(torch.linspace(-1, 2, 1000).bfloat16().reshape(10, 100).t(), id="bfloat16-transposed"),
        pytest.param(torch.tensor([3 + 4j, 0 - 12j]), id="complex"),
        pytest.param(torch.tensor([3 + 4j, 0 - 12j]).conj(), id="conjugate"),
        pytest.param(torch.empty(0, 3), id="empty"),
        pytest.param(torch.tensor(-2.5), id="scalar"),
        pytest.param(torch.tensor([1.0, float("nan"), float("-inf"), -7.0]), id="nonfinite"),
        pytest.param(torch.tensor([1e300, 1e300], dtype=torch.float64), id="square-overflows"),
    ],
)
def test_gradients_read_together_are_as_numpy_has_them(gradient: torch.Tensor) -> None:
    other = torch.full((300,), 2.0)
    read = Reader().read({3: other, 4: gradient, 5: None, 9: other})
    first, state, nothing, last = read.values()
    assert list(read) == [3, 4, 5, 9]
    assert first is not None
    assert state is not None
    assert last is not None
    assert nothing is None
    numbers = gradient.resolve_conj()
    values = (torch.view_as_real(numbers) if numbers.is_complex() else numbers).double().numpy().reshape(-1)
    finite = values[np.isfinite(values)]
    with np.errstate(over="ignore", invalid="ignore"):
        assert state.norm == pytest.approx(np.sqrt(np.square(values).sum()), rel=1e-12, nan_ok=True)
    assert state.largest == np.abs(finite).max(initial=0.0)
    assert state.nonfinite == len(values) - len(finite)
    assert np.array_equal(state.sample, values[:: max(1, len(values) // 256)][:256], equal_nan=True)
    assert first.norm == last.norm == pytest.approx(2.0 * 300**0.5)


def test_a_gradient_that_is_read_again_has_the_state_it_had_until_a_bit_changes() -> None:
    gradients = {i: torch.arange(1.0, 4.0) * i for i in range(5)}
    reader = Reader()
    first = reader.read(gradients)
    assert all(a is b for a, b in zip(first.values(), reader.read(gradients).values(), strict=True))
    gradients[2][1] = -7.0
    gradients[4].div_(0.0)
    again = reader.read(gradients)
    assert [i for i in gradients if again[i] is not first[i]] == [2, 4]
    changed, infinite, before = again[2], again[4], first[2]
    assert changed is not None
    assert infinite is not None
    assert before is not None
    assert changed.norm == pytest.approx((2**2 + 7**2 + 6**2) ** 0.5)
    assert infinite.nonfinite == 3
    assert before.sample.tolist() == [2.0, 4.0, 6.0], "what was read stays as it was"
    del gradients[0]
    assert [None if s is None else s.largest for s in reader.read(gradients).values()] == [3.0, 7.0, 9.0, 0.0]
    alone = torch.ones(3)
    (state,) = reader.read({0: alone}).values()
    alone.mul_(2)
    (doubled,) = reader.read({0: alone}).values()
    assert state is not None
    assert doubled is not None
    assert (state.largest, doubled.largest) == (1.0, 2.0)


def test_a_descriptor_that_the_script_has_closed_is_not_written(tmp_path: Path) -> None:
    opened = Opened(create(tmp_path / "ours"))
    opened.append(b"ours")
    os.close(opened.fd)
    theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    assert theirs == opened.fd
    for attempt in (lambda: opened.append(b"more"), opened.close):
        with pytest.raises(OSError, match="the script closed our file"):
            attempt()
    os.write(theirs, b"theirs")
    os.close(theirs)
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
    assert (tmp_path / "ours").read_bytes() == b"ours"


def test_of_two_writers_the_second_is_refused_and_leaves_no_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = RunWriter(tmp_path / "run", {"command": "first"})
    # It looked before the first one came.
    monkeypatch.setattr("gradclip_cli.runfile.writer.check_free", lambda *_, **__: None)
    with pytest.raises(GradclipError, match="already holds a recorded run"):
        RunWriter(tmp_path / "run", {"command": "second"})
    first.close("finished")
    assert read_recorded(tmp_path / "run")[0].parts[0].header["command"] == "first"
    assert '"first"' in (tmp_path / "run/run.json").read_text()


LONG = """
import signal, sys, time
import torch
if sys.argv[1:] == ["stubborn"]:
    signal.signal(signal.SIGTERM, lambda *_: None)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for i in range(100_000):
    optimizer.zero_grad()
    net(torch.ones(2, 4)).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    if i == 2:
        open("going", "w").close()
    time.sleep(0.01)
open("over", "w").close()
"""


@pytest.mark.parametrize("sent, args, code", [(signal.SIGKILL, (), -9), (signal.SIGTERM, ("stubborn",), 3)], ids=["killed", "stubborn"])
def test_no_script_outlives_the_one_that_judges_it(sent: signal.Signals, args: tuple[str, ...], code: int, tmp_path: Path) -> None:
    write(tmp_path, "train.py", LONG)
    command = [sys.executable, "-m", "gradclip_cli", "verify", "--max-steps", "99999", "train.py", *args]
    with (
        open(tmp_path / "said", "wb") as said,
        subprocess.Popen(
            command, cwd=tmp_path, env=ENV | {"TMPDIR": str(tmp_path)}, start_new_session=True, stdout=said, stderr=said
        ) as verify,
    ):
        try:
            until = time.monotonic() + 90
            while not (tmp_path / "going").exists() and time.monotonic() < until:
                time.sleep(0.1)
            assert (tmp_path / "going").exists()
            os.kill(verify.pid, sent)
            assert verify.wait(60) == code, (tmp_path / "said").read_text()
            until = time.monotonic() + 30
            while _lives(verify.pid) and time.monotonic() < until:
                time.sleep(0.1)
            assert not _lives(verify.pid)
        finally:
            if _lives(verify.pid):
                os.killpg(verify.pid, signal.SIGKILL)
    assert not (tmp_path / "over").exists()


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    # Who is dead and not yet reaped by anybody does not count.
    states = subprocess.run(["ps", "-o", "stat=", "-g", str(group)], capture_output=True, text=True).stdout.split()
    return any(not s.startswith("Z") for s in states)


@pytest.mark.parametrize(
    "args, env, code, said",
    [
        (
            ["record", "-o", "run", "train.py"],
            {"RANK": "abc"},
            2,
            "environment variable RANK is 'abc'; expected a whole number of at least 0",
        ),
        (["verify", "train.py"], {"WORLD_SIZE": "0"}, 2, "environment variable WORLD_SIZE is '0'; expected a whole number of at least 1"),
        (["record", "-o", "run", "train.py"], {"TORCHELASTIC_RESTART_COUNT": "-1"}, 2, "TORCHELASTIC_RESTART_COUNT is '-1'"),
        (["record", "-o", "", "train.py"], {}, 2, "found an empty name"),
        (["verify", "-o", "", "train.py"], {}, 2, "found an empty name"),
        (["record", "-o", "train.py", "train.py"], {}, 3, "train.py: is no directory"),
        (["record", "-o", "nowhere", "train.py"], {}, 3, "nowhere: is no directory"),
        (["verify", "-o", "train.py/run", "train.py"], {}, 3, "train.py: is no directory"),
    ],
    ids=["rank", "world-size", "restart-count", "empty", "empty-verify", "file", "dangling-link", "below-a-file"],
)
def test_what_cannot_work_is_refused_before_the_script_runs(
    args: list[str], env: dict[str, str], code: int, said: str, gradclip, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("open('ran', 'w').close()\n")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    done = gradclip(*args, code=code, env=env)
    assert said in done.stderr
    assert not (tmp_path / "ran").exists()


def test_many_micro_batches_leave_one_mode_and_the_end_of_the_watch_none(tmp_path: Path) -> None:
    from torch.overrides import _get_current_function_mode_stack as modes

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    depths = set()
    with gradclip_cli.watch(tmp_path / "run") as watcher:
        for _ in range(2):
            for _ in range(60):
                (model(torch.ones(2, 3)).square().mean() / 60).backward()
                depths.add(len(modes()))
            with pytest.raises(RuntimeError):
                model(torch.ones(2, 3)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 3)).backward()
    assert depths == {1}
    assert modes() == []
    assert watcher.updates == 2
