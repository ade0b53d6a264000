"""Once recording has stopped, the script runs on as if nobody had watched it, and what is said at the end is true."""

from __future__ import annotations

import gc
import resource
import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.nn.utils import clip_grad
from torch.overrides import _get_current_function_mode_stack as modes

from gradclip_cli.runfile import read_recorded
from gradclip_cli.watch import StopTraining, Watcher
from tests.record_runs import write

FUNCTIONS = (
    (torch.autograd, "backward"),
    (clip_grad, "_clip_grads_with_norm_"),
    (torch.amp.GradScaler, "step"),
    (torch.optim.Optimizer, "zero_grad"),
    (torch.nn.Module, "__call__"),
    (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"),
)


def loop() -> Callable[[int], None]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def update(n: int) -> None:
        for _ in range(n):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()

    return update


@contextmanager
def full_disk(run: Path) -> Iterator[None]:
    """No file of this process may grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def gone(run: Path) -> Iterator[None]:
    shutil.rmtree(run)
    yield


WAYS = {"File too large": full_disk, "its files were removed": gone}


def no_place_for_the_header(run: Path) -> None:
    (run / "rank-00000/header.json").unlink()
    (run / "rank-00000/header.json").mkdir()


@pytest.mark.parametrize("exact", [False, True], ids=["cheap", "exact"])
@pytest.mark.parametrize("why", WAYS)
def test_nothing_is_measured_any_more(why: str, exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradclip_cli.watch.recorder._BLOCK_UPDATES", 5)
    originals = [vars(owner)[name] for owner, name in FUNCTIONS]
    measured: list[int] = []
    from gradclip_cli.watch import recorder

    real = recorder.tensor_norms
    monkeypatch.setattr("gradclip_cli.watch.recorder.tensor_norms", lambda gradients: measured.append(len(gradients)) or real(gradients))
    problems: list[str] = []
    update = loop()
    with Watcher(tmp_path / "run", exact=exact, save_grads="explosions", on_problem=problems.append) as watcher:
        update(20)
        assert problems == []
        kept = weakref.ref(watcher._recorder._keep.__self__)  # type: ignore[union-attr]
        with WAYS[why](tmp_path / "run"):
            update(20)
        assert len(problems) == 1
        assert f"({tmp_path}/run: {why}); the training goes on" in problems[0]
        assert 21 <= len(measured) <= 25
        update(200)
        assert len(measured) <= 25
        assert [vars(owner)[name] for owner, name in FUNCTIONS] == originals
        assert modes() == []
        observer, before = watcher._observer, watcher.updates
        assert not (observer._looks.states or observer._threads or observer._scaled or watcher._batches._used)
        gc.collect()
        assert kept() is None, "the gradients before an explosion"
    assert watcher.failed
    assert (len(problems), watcher.updates) == (1, before)
    assert 20 <= watcher.num_recorded < 25
    if (tmp_path / "run").exists():
        assert read_recorded(tmp_path / "run")[0].parts[0].steps.tolist() == list(range(1, watcher.num_recorded + 1))


def test_a_run_whose_end_cannot_be_written_has_every_update(tmp_path: Path) -> None:
    problems: list[str] = []
    with Watcher(tmp_path / "run", on_problem=problems.append) as watcher:
        update = loop()
        update(5)
        watcher._recorder.flush()
        no_place_for_the_header(tmp_path / "run")
        update(4)
    assert len(problems) == 1
    assert problems[0].startswith("recording stopped after 9 updates (")
    assert "goes on" not in problems[0]
    assert watcher.num_recorded == len(read_recorded(tmp_path / "run")[0].parts[0].steps) == 9


@pytest.mark.parametrize("save_grads", ["never", "every:1"])
def test_what_was_to_end_after_some_updates_ends_when_nobody_counts(save_grads: str, tmp_path: Path) -> None:
    problems: list[str] = []
    update = loop()
    watcher = Watcher(tmp_path / "run", exact=True, max_updates=100, save_grads=save_grads, on_problem=problems.append)
    with pytest.raises(StopTraining), watcher:
        update(3)
        with full_disk(tmp_path):
            update(1000)
    assert len(problems) == 1
    assert problems[0].endswith("; the training ends here")
    # The last one is lost, or, where its gradients are kept before it, not taken.
    assert watcher.num_recorded == 3


def test_a_window_that_was_open_is_closed(tmp_path: Path) -> None:
    """Between a backward and the step every call of the script is looked at."""
    problems: list[str] = []
    with Watcher(tmp_path / "run", exact=True, on_problem=problems.append) as watcher:
        update = loop()
        update(2)
        net = torch.nn.Linear(2, 1)
        net(torch.ones(1, 2)).sum().backward()
        assert len(modes()) == 1
        watcher._cannot_write("the disk is gone")
        net.zero_grad()
        update(1)
        assert modes() == []


@pytest.mark.parametrize("when, judged", [(0, False), (8, True)], ids=["from-the-start", "later"])
def test_verify_says_that_it_could_not_judge(when: int, judged: bool, gradclip, tmp_path: Path) -> None:
    write(
        tmp_path,
        "train.py",
        f"""
        import resource
        import torch
        net = torch.nn.Linear(40, 10)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for i in range(1000):
            if i == {when}:
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            optimizer.zero_grad()
            net(torch.ones(2, 40)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            assert i < 900, "it runs on though nobody counts its updates"
        """,
    )
    done = gradclip("verify", "-o", "run", "train.py", code=3)
    said = " ".join((done.stdout + done.stderr).split())
    assert said.count("recording stopped after") == 1
    if judged:
        assert "could not be watched to the end: " in said or "the record breaks off before the script ended" in said
        assert "CANNOT JUDGE" in said
    else:
        assert "run: the updates of train.py could not be written there" in said
