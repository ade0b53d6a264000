"""What is told of the batches of an update."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from gradclip_cli.watch.batches import BatchWatcher


@pytest.fixture
def watcher() -> Iterator[BatchWatcher]:
    before = nn.Module.__call__, torch.utils.data.dataloader._BaseDataLoaderIter.__next__
    watcher = BatchWatcher()
    watcher.install()
    yield watcher
    watcher.remove()
    assert (nn.Module.__call__, torch.utils.data.dataloader._BaseDataLoaderIter.__next__) == before


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        return self.head(self.embed(input_ids)).mean()


def batches(lengths: list[int]) -> list[dict[str, torch.Tensor]]:
    """One batch of two sequences a length; of the labels every fourth is ignored."""
    out = []
    for i, n in enumerate(lengths):
        labels = torch.ones(2, n, dtype=torch.int64)
        labels.view(-1)[::4] = -100
        out.append({"input_ids": torch.ones(2, n, dtype=torch.int64), "labels": labels, "idx": torch.tensor([100 + i, 200 + i])})
    return out


def loader(lengths: list[int]) -> DataLoader[dict[str, torch.Tensor]]:
    return DataLoader(batches(lengths), batch_size=None)  # type: ignore[arg-type]


def test_a_loader_and_a_model(watcher: BatchWatcher) -> None:
    model, taken = Tokens(), []
    for batch in loader([8, 16, 8]):
        model(batch["input_ids"], labels=batch["labels"]).backward()
        taken.append(watcher.take())
    expected = [
        {"batch_size": 2, "seq_len": n, "ignored_fraction": 0.25, "batch_index": i, "sample_id": 100 + i} for i, n in enumerate([8, 16, 8])
    ]
    assert taken == expected
    assert watcher.take() == {}


def test_micro_batches_are_one_update(watcher: BatchWatcher) -> None:
    model = Tokens()
    for batch in loader([8, 64, 16]):
        model(batch["input_ids"])
    assert watcher.take() == {"batch_size": 6, "seq_len": 64, "ignored_fraction": 0.25, "batch_index": 0, "sample_id": 100}


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_loop_that_fetches_ahead(watcher: BatchWatcher, ahead: int) -> None:
    """What is told is what the model was given, not what was fetched meanwhile."""
    model, taken, waiting = Tokens(), [], []
    iterator = iter(loader([8, 16, 24, 8, 32, 8]))
    for _ in range(6):
        while len(waiting) <= ahead and (batch := next(iterator, None)) is not None:
            waiting.append(batch)
        model(waiting.pop(0)["input_ids"])
        taken.append(watcher.take())
    assert [t["batch_index"] for t in taken] == [0, 1, 2, 3, 4, 5]
    assert [t["seq_len"] for t in taken] == [8, 16, 24, 8, 32, 8]


def test_a_loop_without_a_loader(watcher: BatchWatcher) -> None:
    model = Tokens()
    model(torch.ones(3, 40, dtype=torch.int64))
    assert watcher.take() == {"batch_size": 3, "seq_len": 40}
    nn.Linear(7, 2)(torch.ones(5, 7))
    assert watcher.take() == {"batch_size": 5}
    nn.GRU(7, 2, batch_first=True)(torch.ones(5, 11, 7))
    assert watcher.take() == {"batch_size": 5, "seq_len": 11}
    nn.Conv2d(3, 2, 1)(torch.ones(5, 3, 8, 8))
    assert watcher.take() == {"batch_size": 5}


def test_a_loader_without_a_module(watcher: BatchWatcher) -> None:
    weight = torch.ones(3, requires_grad=True)
    for x, y in DataLoader([(torch.ones(3), 1), (torch.ones(3), -100)], batch_size=2):
        ((weight * x).sum(1) * y).sum().backward()
    assert watcher.take() == {"batch_size": 2, "ignored_fraction": 0.5, "batch_index": 0}


def test_what_is_no_batch_of_the_update(watcher: BatchWatcher) -> None:
    model, criterion = Tokens(), nn.CrossEntropyLoss()
    with torch.no_grad():
        for batch in loader([99]):
            model(batch["input_ids"])
    for batch in loader([99]):
        # Fetched outside, evaluated inside.
        with torch.no_grad():
            model(batch["input_ids"])
    assert watcher.take() == {}
    hidden = model.embed(torch.ones(2, 5, dtype=torch.int64))
    watcher.take()
    model.head(hidden)
    criterion(torch.ones(2, 10), torch.ones(2, dtype=torch.int64))
    assert watcher.take() == {}, "parts of a model and losses take no batch"


def test_recomputation_in_backward_is_no_batch(watcher: BatchWatcher) -> None:
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    x = torch.ones(3, 4)
    loss = checkpoint(model, x, use_reentrant=False).sum()
    assert watcher.take() == {"batch_size": 3}
    loss.backward()
    assert watcher.take() == {}


def test_a_compiled_model_gives_the_same_without_breaking_the_graph(watcher: BatchWatcher) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.ones(3, 4)
    plain = model(x)
    watcher.take()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), plain)
    assert watcher.take()["batch_size"] == 3
    torch._dynamo.reset()


def test_a_model_that_fails_does_not_blind_it(watcher: BatchWatcher) -> None:
    model = Tokens()
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 3))
    watcher.take()
    model(torch.ones(2, 3, dtype=torch.int64))
    assert watcher.take()["seq_len"] == 3


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_odd_batches(watcher: BatchWatcher) -> None:
    nested: list[object] = []
    nested.append(nested)
    nest = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for data in ([nest], [{}], [[["a", "b"]]], [nested], [{"x": torch.tensor(3)}], [torch.empty(0, 5, dtype=torch.int64)]):
        for _ in DataLoader(data, batch_size=None, collate_fn=lambda x: x):  # type: ignore[arg-type]
            watcher.take()
