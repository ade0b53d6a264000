"""Gradients that several ranks recorded, each its own shards: put together they have the norm of the whole, or it is said why not."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from gradclip_cli.clipping.optimizer import OptimizerKind
from gradclip_cli.clipping.replay import Request, replay
from gradclip_cli.clipping.store import Piece, is_partition
from gradclip_cli.model.replay import Replay
from gradclip_cli.report.replay_json import render_replay_json
from gradclip_cli.report.replay_text import render_replay_text
from gradclip_cli.watch.shards import _chunk, _of_dtensor, boxes_of_range
from tests.forks import Zygote
from tests.record_runs import objects, write
from tests.replay_cases import forked_ranks, write_safetensors

Call = Callable[..., "subprocess.CompletedProcess[str]"]

# The ranks are forked behind the imports, which take longer than the training.
TRAIN = """
import json, math, os, sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from gradclip_cli.watch import watch

children = []
for rank in range(1, world_size):
    if child := os.fork():
        children.append(child)
    else:
        children = []
        break
else:
    rank = 0
os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
dist.init_process_group("gloo", store=dist.FileStore("store", world_size), rank=rank, world_size=world_size)

def ended():
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(any(os.waitpid(child, 0)[1] for child in children))

def net(hidden=7):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 3))

def sharded(model, mesh=None):
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)

def train(name, model, clip, whole=lambda model: {n: p.grad.full_tensor() for n, p in model.named_parameters()}, spoil=None, seed=rank):
    generator = torch.Generator().manual_seed(seed)
    told = {}
    with watch(name, save_grads="every:2"):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(1, 7):
            optimizer.zero_grad()
            model(torch.randn(4, 5, generator=generator)).square().mean().backward()
            if step == 6 and spoil is not None:
                spoil(model)
            clip(model)
            if step % 2 == 0:
                squares = {n: g.double().square().sum().item() for n, g in whole(model).items()}
                told[str(step)] = {"norm": sum(squares.values()) ** 0.5, "norms": {n: s ** 0.5 for n, s in squares.items()}}
            optimizer.step()
    print(json.dumps({"name": name, "rank": rank, "steps": told}) + "\\n", end="", flush=True)

def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
"""

TWO = (
    TRAIN
    + """
def spoil(model):
    if rank == 1:
        model[0].weight.grad.to_local()[0, 2] = math.nan

def flat(model):
    square = torch.tensor(sum(p.grad.double().square().sum().item() for p in model.parameters() if p.grad is not None), dtype=torch.float64)
    dist.all_reduce(square)
    return {"all": square.sqrt()}

train("fsdp2", sharded(net()), clip)
train("unclipped", sharded(net()), lambda model: None, spoil=spoil)
for name, original in (("fsdp1", True), ("flat", False)):
    model = FullyShardedDataParallel(net(8), use_orig_params=original, device_id=torch.device("cpu"))
    train(name, model, lambda model: model.clip_grad_norm_(0.05), flat)
train("ddp", torch.nn.parallel.DistributedDataParallel(net()), clip, lambda model: {n: p.grad for n, p in model.named_parameters()})

class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(5)
    def forward(self, x):
        return self.norm(x).full_tensor()

partial = parallelize_module(Norm(), init_device_mesh("cpu", (2,)), {"norm": SequenceParallel(sequence_dim=0)})
train("partial", partial, lambda model: None, seed=0)
ended()
"""
)

FOUR = (
    TRAIN
    + """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
train("hsdp", sharded(net(), mesh), clip)
both = parallelize_module(net(6), mesh["b"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
train("tensor-parallel", sharded(both, mesh["a"]), clip, seed=rank // 2)
ended()
"""
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> tuple[Path, dict[str, dict[int, Any]]]:
    """The runs, and by their names and steps what rank 0 told of the whole gradients."""
    folder = tmp_path_factory.mktemp("recorded")
    told: dict[str, dict[int, Any]] = {}
    for num, code in ((2, TWO), (4, FOUR)):
        write(folder / str(num), "main.py", f"world_size = {num}\n{code}")
        trained = zygote("script", "main.py", cwd=folder / str(num))
        assert trained.returncode == 0, trained.stderr[-4000:]
        for line in objects(trained.stdout):
            if line["rank"] == 0:
                told[line["name"]] = {int(step): whole for step, whole in line["steps"].items()}
                shutil.move(folder / str(num) / line["name"], folder / line["name"])
    return folder, told


@pytest.fixture
def copied(recorded: tuple[Path, dict[str, dict[int, Any]]], tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(recorded[0] / name, tmp_path / name))


def done(*paths: Path, **request: Any) -> Replay:
    result, failures = replay(paths, Request(**request))
    assert failures == ()
    assert result is not None
    return result


def of_rank(run: Path, rank: int, step: int) -> Path:
    return (run if rank == 0 else run / f"rank-{rank:05d}") / "grads" / f"step-{step:08d}.safetensors"


def content(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    with safe_open(path, "np") as f:
        return {k: f.get_tensor(k) for k in f.keys()}, f.metadata()  # noqa: SIM118 - it is no mapping


def changed(path: Path, change: Callable[[dict[str, np.ndarray], dict[str, Any], dict[str, str]], object]) -> None:
    """Write a file anew after a change of its tensors, of what it tells of its shards, or of its other metadata."""
    tensors, metadata = content(path)
    shards = json.loads(metadata.pop("gradclip.shards"))
    change(tensors, shards, metadata)
    write_safetensors(path, tensors, **metadata, **({"gradclip.shards": json.dumps(shards)} if shards else {}))


# Runs


@pytest.mark.parametrize(("name", "world_size"), [("fsdp2", 2), ("hsdp", 4), ("tensor-parallel", 4)])
def test_the_norms_are_those_of_the_whole_tensors(recorded: tuple[Path, Any], name: str, world_size: int) -> None:
    folder, told = recorded
    result = done(folder / name, max_norms=(0.01,))
    assert (result.partial, result.world_size) == ("", world_size)
    assert f"3 steps put together of the shards of {world_size} ranks" in result.notes
    assert not any("other rank" in note for note in result.notes)
    assert [s.step for s in result.steps] == [2, 4, 6]
    hidden = 6 if name == "tensor-parallel" else 7
    for step in result.steps:
        whole = told[name][step.step]
        assert step.total_norm == pytest.approx(whole["norm"], rel=1e-12)
        norms = {n.split(".", n.count(".") - 1)[-1]: float(x) for n, x in zip(step.tensors, step.tensor_norms, strict=True)}
        assert norms == pytest.approx(whole["norms"], rel=1e-12)
        for top in step.top_tensors:
            assert top.share == pytest.approx((top.norm / whole["norm"]) ** 2, rel=1e-12)
        assert step.numel == 5 * hidden + hidden + hidden * 3 + 3
        assert step.clips[0].coefficient == pytest.approx(0.01 / (whole["norm"] + 1e-6), rel=1e-12)
        assert step.claimed_total_norm is not None
        assert step.total_norm == pytest.approx(0.05, rel=1e-4)
    document = json.loads(render_replay_json(result))
    assert (document["world_size"], document["partial"]) == (world_size, None)


def test_what_is_not_finite_stands_at_its_place_in_the_whole(recorded: tuple[Path, Any]) -> None:
    folder, told = recorded
    result = done(folder / "unclipped")
    # Seven rows are cut into four and three, and the first of rank 1 is row 4.
    (bad,) = result.steps[-1].nonfinite
    assert (bad.positions, bad.num_nan, bad.numel) == (((4, 2),), 1, 35)
    for step in result.steps[:2]:
        assert step.total_norm == pytest.approx(told["unclipped"][step.step]["norm"], rel=1e-12)
        # Without clipping each rank knows the norm of its own shards.
        assert step.claimed_total_norm is None
    assert any("tell different total norms" in note for note in result.notes)
    assert result.partial == ""


@pytest.mark.parametrize(("name", "num_tensors"), [("fsdp1", 4), ("flat", 1)])
def test_fsdp1(recorded: tuple[Path, Any], name: str, num_tensors: int) -> None:
    folder, told = recorded
    result = done(folder / name)
    assert (result.partial, result.world_size) == ("", 2)
    for step in result.steps:
        assert step.total_norm == pytest.approx(told[name][step.step]["norm"], rel=1e-12)
        assert step.total_norm == pytest.approx(0.05, rel=1e-4)
        # The flat parameter is of 75 elements and one of padding.
        assert (step.numel, len(step.tensors)) == (5 * 8 + 8 + 8 * 3 + 3, num_tensors)


def test_summands_are_no_shards(recorded: tuple[Path, Any]) -> None:
    result = done(recorded[0] / "partial")
    assert result.partial.startswith("these are the shards that one rank held")
    assert "each rank holds a summand of it (Partial)" in result.partial
    assert result.world_size == 1


def test_copies_of_data_parallel_ranks_count_once(recorded: tuple[Path, Any]) -> None:
    folder, told = recorded
    result = done(folder / "ddp")
    assert [s.total_norm for s in result.steps] == pytest.approx([told["ddp"][s]["norm"] for s in (2, 4, 6)], rel=1e-12)
    assert (result.partial, result.world_size) == ("", 1)
    assert any(n.startswith("the gradients of rank 0 were read, not those of 1 other rank") for n in result.notes)


def test_an_optimizer_takes_the_whole_gradient(recorded: tuple[Path, Any]) -> None:
    folder, _ = recorded
    adam = done(folder / "hsdp", max_norms=(0.01,), optimizer=OptimizerKind("adamw", 0.01, ()))
    # Adam's first update moves every element by the learning rate, whatever the gradient is.
    assert adam.steps[0].clips[0].update_norm == pytest.approx(0.01 * math.sqrt(66), rel=1e-3)


def test_other_commands_go_on(warm: Call, copied: Callable[[str], Path], tmp_path: Path) -> None:
    copied("fsdp2")
    warm("replay", "fsdp2", "--unclip", "-o", "out", code=0)
    (joined,) = json.loads(warm("analyze", "out", "-f", "json").stdout)["runs"]
    (run,) = json.loads(warm("analyze", "fsdp2", "-f", "json").stdout)["runs"]
    assert joined["series"]["grad_norm"]["count"] == 3
    assert run["series"]["grad_norm"]["count"] == 6
    told = [s.claimed_total_norm for s in done(tmp_path / "fsdp2").steps]
    assert joined["series"]["grad_norm"]["max"] == pytest.approx(max(told), rel=1e-12)


def test_one_rank_of_replay_and_two_give_the_same_bytes(warm: Call, copied: Callable[[str], Path], tmp_path: Path) -> None:
    run = copied("hsdp")
    nudge(of_rank(run, 3, 4))
    args = ("replay", run, "--max-norm", "0.01", "--histogram", "--format", "json")
    alone, two = warm(*args, code=0).stdout, forked_ranks(2, *args, cwd=tmp_path)
    assert two.returncode == 0, two.stderr
    assert two.stdout == alone
    assert "differs by rounding" in alone


# What cannot be put together


def nudge(path: Path) -> None:
    """Change one element by the least there is."""

    def change(tensors: dict[str, np.ndarray], *_: object) -> None:
        first = next(iter(tensors.values()))
        first.flat[0] = np.nextafter(first.flat[0], np.float32(1))

    changed(path, change)


def test_a_rank_whose_file_is_missing(copied: Callable[[str], Path], recorded: tuple[Path, Any]) -> None:
    run = copied("fsdp2")
    of_rank(run, 1, 4).unlink()
    result = done(run)
    assert result.partial == "at 1 of 3 steps these are the shards that one rank held (step 4: rank 1 of 2 has no readable file of it here)"
    assert "NOT THE WHOLE GRADIENT" in render_replay_text(result)
    for step in result.steps:
        own = math.sqrt(sum(float(np.square(t, dtype=np.float64).sum()) for t in content(of_rank(run, 0, 4))[0].values()))
        expected = own if step.step == 4 else recorded[1]["fsdp2"][step.step]["norm"]
        assert step.total_norm == pytest.approx(expected, rel=1e-12)
    shutil.rmtree(run / "rank-00001")
    assert done(run).partial.startswith("these are the shards that one rank held, and all numbers are of them alone: rank 1 of 2")
    of_rank(run, 0, 4).unlink()
    assert [s.step for s in done(run).steps] == [2, 6]


def test_a_file_of_one_rank_alone(recorded: tuple[Path, Any]) -> None:
    run = recorded[0] / "hsdp"
    for rank in (0, 3):
        assert "has no readable file of it here, nor have 2 others" in done(of_rank(run, rank, 2)).partial
    every = done(*(of_rank(run, rank, step) for rank in range(4) for step in (2, 6)))
    assert (every.partial, every.world_size, len(every.steps)) == ("", 4, 2)
    assert done(run, run / "rank-00001" / "grads").partial == ""


def test_a_damaged_file(warm: Call, copied: Callable[[str], Path]) -> None:
    path = of_rank(copied("fsdp2"), 1, 6)
    path.write_bytes(path.read_bytes()[:-4])
    found = warm("replay", "fsdp2", "-f", "json", code=3)
    document = json.loads(found.stdout)
    assert "at 1 of 3 steps" in document["partial"]
    assert "step 6: rank 1 of 2 has no readable file" in document["partial"]
    assert "truncated" in found.stderr
    assert "GC307" in [f["rule"] for f in document["findings"]]
    assert document["world_size"] == 2


def _clear(tensors: object, shards: dict[str, Any], metadata: object) -> None:
    shards.clear()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t, s, m: m.update(step="6"), "step 4: rank 1 of 2 has no readable file"),
        (lambda t, s, m: m.update(scale="2.0"), "rank 1 tells another scale than rank 0"),
        (lambda t, s, m: m.update(max_norm="0.1"), "rank 1 tells another max_norm than rank 0"),
        (lambda t, s, m: s.update(rank=0), "a rank has several files of this step"),
        (lambda t, s, m: s.update(world_size=3), "the files are of 2 and 3 ranks"),
        (lambda t, s, m: _place(s)["boxes"][0][0].__setitem__(0, 3), "do not make up its shape [7, 5]"),
        (lambda t, s, m: _place(s).update(shape=[8, 5]), "another shape or dtype on rank 1 than on rank 0"),
        (lambda t, s, m: t.popitem(), None),
        (lambda t, s, m: _place(s).update(unknown="nobody knows"), "0.weight cannot be put together: nobody knows"),
    ],
    ids=["step", "scale", "max_norm", "rank", "world_size", "overlap", "shape", "tensor", "unknown"],
)
def test_a_file_that_disagrees(copied: Callable[[str], Path], change: Callable[..., object], why: str | None) -> None:
    run = copied("fsdp2")
    if why is None:
        return _a_tensor_is_missing(run)
    changed(of_rank(run, 1, 4), change)
    result = done(run)
    assert "these are the shards that one rank held" in result.partial
    assert why in result.partial
    return None


def _place(shards: dict[str, Any]) -> dict[str, Any]:
    return next(place for name, place in shards["tensors"].items() if name.endswith("0.weight"))


def _a_tensor_is_missing(run: Path) -> None:
    def change(tensors: dict[str, np.ndarray], shards: dict[str, Any], _: object) -> None:
        name = tensors.popitem()[0]
        del shards["tensors"][name]

    changed(of_rank(run, 1, 4), change)
    assert "do not make up its shape" in done(run).partial


def test_copies_that_differ(copied: Callable[[str], Path], recorded: tuple[Path, Any]) -> None:
    run = copied("hsdp")
    nudge(of_rank(run, 3, 4))
    result = done(run)
    assert result.partial == ""
    (note,) = (n for n in result.notes if "differs by rounding" in n)
    assert "0.bias of ranks 1 and 3, by" in note

    def change(tensors: dict[str, np.ndarray], *_: object) -> None:
        name = next(n for n in tensors if n.endswith("2.bias"))
        tensors[name] = tensors[name] * -1

    changed(of_rank(run, 2, 6), change)
    result = done(run)
    assert "at 1 of 3 steps ranks differ in what all of them should hold alike (step 6: " in result.partial
    assert "2.bias of ranks 0 and 2, by 2 of its norm" in result.partial
    assert result.steps[2].total_norm == pytest.approx(recorded[1]["hsdp"][6]["norm"], rel=1e-12)

    changed(of_rank(run, 2, 6), lambda tensors, *_: tensors[next(n for n in tensors if n.endswith("2.bias"))].fill(math.nan))
    assert "2.bias of ranks 0 and 2, by all of it" in done(run).partial


@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64"])
def test_copies_of_every_kind_are_compared(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    array = (rng.standard_normal((6, 4)) + (1j * rng.standard_normal((6, 4)) if dtype == "complex64" else 0)).astype(dtype)
    other = array.copy()
    other[0] *= -1
    for rank, held in enumerate((array, other, array)):
        place = {"shape": [12, 4], "boxes": [[[0 if rank < 2 else 6, 0], [6, 4]]]}
        told = json.dumps({"rank": rank, "world_size": 3, "tensors": {"w": place}})
        write_safetensors(tmp_path / f"{rank}.safetensors", {"w": held}, **{"step": 1, "gradclip.shards": told})
    result = done(tmp_path)
    by = 2 * np.linalg.norm(array[0].astype(np.complex128)) / np.linalg.norm(array.astype(np.complex128))
    assert f"w of ranks 0 and 1, by {by:.2g} of its norm" in result.partial
    assert result.steps[0].total_norm == pytest.approx(math.sqrt(2) * np.linalg.norm(array.astype(np.complex128)), rel=1e-12)


def test_recordings_that_tell_no_places(copied: Callable[[str], Path]) -> None:
    run = copied("fsdp2")
    for rank in range(2):
        for step in (2, 4, 6):
            changed(of_rank(run, rank, step), _clear)
    result = done(run)
    assert result.partial.startswith("these are the shards that one rank held, and all numbers are of them alone: nothing tells where")
    assert any("not those of 1 other rank" in note for note in result.notes)
    assert result.world_size == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        "null",
        "7",
        '{"rank": 0}',
        '{"rank": true, "world_size": 2, "tensors": {}}',
        '{"rank": 2, "world_size": 2, "tensors": {}}',
        '{"rank": 0, "world_size": 1e9, "tensors": {}}',
        '{"rank": 0, "world_size": 99999999999, "tensors": {}}',
        '{"rank": 0, "world_size": 2, "tensors": []}',
        '{"rank": 0, "world_size": 2, "tensors": {"other": {"shape": [], "boxes": []}}}',
        *(
            json.dumps({"rank": 0, "world_size": 2, "tensors": {"w": place}})
            for place in (
                None,
                {},
                {"shape": [4], "boxes": 3},
                {"shape": [4], "boxes": [[[0]]]},
                {"shape": [4], "boxes": [[[0], [1]]]},
                {"shape": [4], "boxes": [[[-1], [2]]]},
                {"shape": [4], "boxes": [[[0], [2]]], "padding": -1},
                {"shape": [2**61], "boxes": [[[0], [2]]]},
                {"shape": [4], "boxes": [[[0], [0]]] * 200 + [[[0], [2]]]},
                {"unknown": 7},
            )
        ),
    ],
    ids=range(22),
)
def test_places_that_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "step-1.safetensors"
    write_safetensors(path, {"w": np.ones(2, np.float32)}, **{"gradclip.shards": text})
    result, (failure,) = replay([path], Request())
    assert result is None
    assert failure.message.startswith(f"{path}: found ")


@pytest.mark.parametrize("boxes", [[[[0], [2, 1]]], [[[0, 0], [2, 1]]], [[[9], [2]]], [[[0], [1]], [[0], [1]]]])
def test_boxes_that_are_no_part_of_the_tensor(tmp_path: Path, boxes: list[Any]) -> None:
    for rank in range(2):
        told = json.dumps({"rank": rank, "world_size": 2, "tensors": {"w": {"shape": [4], "boxes": boxes if rank else [[[2], [2]]]}}})
        write_safetensors(tmp_path / f"{rank}.safetensors", {"w": np.ones(2, np.float32)}, **{"step": 1, "gradclip.shards": told})
    assert "the shards of w do not make up its shape [4]" in done(tmp_path).partial


# The parts


def every_cut(length: int) -> Iterator[tuple[int, int]]:
    for begin in range(length + 1):
        for end in range(begin, length + 1):
            yield begin, end


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 3, 2), (1, 1, 5), (3, 0)], ids=str)
def test_a_range_of_elements_is_boxes(shape: tuple[int, ...]) -> None:
    whole = np.arange(math.prod(shape)).reshape(shape)
    for begin, end in every_cut(whole.size):
        parts = [whole[tuple(slice(o, o + n) for o, n in zip(*box, strict=True))].ravel() for box in boxes_of_range(shape, begin, end)]
        assert np.concatenate([np.empty(0, int), *parts]).tolist() == list(range(begin, end))
        assert len(parts) < max(2 * len(shape), 2)


@pytest.mark.parametrize("length", [0, 1, 5, 8, 9])
@pytest.mark.parametrize("num", [1, 2, 3, 4, 7])
def test_indices_are_cut_as_torch_cuts(length: int, num: int) -> None:
    indices = torch.cat([torch.arange(3, 3 + length), torch.arange(50, 52)])
    chunks = [c.tolist() for c in indices.chunk(num)]
    for k in range(num):
        found = [i for start, n in _chunk([(3, length), (50, 2)], num, k) for i in range(start, start + n)]
        assert found == (chunks[k] if k < len(chunks) else [])


def test_boxes_that_make_up_a_tensor() -> None:
    def made_up(*boxes: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
        return is_partition((4, 6), [Piece(Path("x"), 0, shape, origin, (0, 1)) for origin, shape in boxes])

    assert made_up(((0, 0), (4, 6)))
    assert made_up(*(((i, j), (1, 2)) for j in (4, 0, 2) for i in (3, 1, 0, 2)))
    assert made_up(((0, 0), (3, 2)), ((3, 0), (1, 4)), ((1, 4), (3, 2)), ((0, 2), (1, 4)), ((1, 2), (2, 2)))
    assert not made_up(((0, 0), (3, 2)), ((3, 0), (1, 4)), ((1, 4), (3, 2)), ((0, 2), (1, 4)), ((0, 2), (2, 2)))
    assert not made_up(((0, 0), (2, 6)), ((1, 0), (2, 6)))
    assert not made_up(((0, 0), (2, 6)), ((2, 0), (2, 5)))
    assert not made_up(((0, 0), (2, 6)), ((2, 1), (2, 6)))


class Held:
    """What a rank holds of a tensor, cut by torch's own placements, with the attributes of a DTensor."""

    def __init__(self, whole: torch.Tensor, placements: tuple[Any, ...], sizes: tuple[int, ...], here: tuple[int, ...]) -> None:
        self.shape, self.placements = whole.shape, placements
        self.device_mesh = SimpleNamespace(shape=sizes, get_coordinate=lambda: here)
        for placement, size, at in zip(placements, sizes, here, strict=True):
            if not placement.is_replicate():
                whole = placement._split_tensor(whole, size, with_padding=False)[0][at]
        self.to_local = lambda: whole


@pytest.mark.parametrize(
    ("shape", "placements", "sizes"),
    [
        ((7, 3), (Shard(0),), (4,)),
        ((3, 7), (Shard(1),), (4,)),
        ((2,), (Shard(0),), (4,)),
        ((), (Replicate(),), (2,)),
        ((9, 2), (Replicate(), Shard(0)), (2, 2)),
        ((9, 5), (Shard(0), Shard(1)), (2, 2)),
        ((11, 2), (Shard(0), Shard(0)), (2, 3)),
        ((8, 2), (_StridedShard(0, split_factor=2), Shard(0)), (2, 2)),
        ((9, 2), (_StridedShard(0, split_factor=2), Shard(0)), (2, 2)),
        ((9, 2), (_StridedShard(0, split_factor=2), Shard(0)), (4, 2)),
        ((9, 2), (_StridedShard(0, split_factor=2), Replicate()), (4, 2)),
        ((0, 2), (Shard(0),), (2,)),
    ],
    ids=str,
)
def test_boxes_are_what_a_placement_leaves(shape: tuple[int, ...], placements: tuple[Any, ...], sizes: tuple[int, ...]) -> None:
    whole = torch.arange(math.prod(shape)).reshape(shape)
    seen: set[int] = set()
    for here in np.ndindex(sizes):
        held = Held(whole, placements, sizes, here)
        boxes = _of_dtensor(held)["boxes"]
        parts = [whole[tuple(slice(o, o + n) for o, n in zip(*box, strict=True))].ravel() for box in boxes]
        assert torch.cat([torch.empty(0, dtype=torch.int64), *parts]).tolist() == held.to_local().ravel().tolist()
        seen.update(held.to_local().ravel().tolist())
    assert len(seen) == math.prod(shape)


def test_placements_without_boxes() -> None:
    whole = torch.zeros(4, 8)
    assert "many small pieces" in _of_dtensor(Held(whole, (_StridedShard(1, split_factor=2),), (2,), (0,)))["unknown"]
    held = Held(whole, (Shard(0),), (2,), (0,))
    held.to_local = lambda: whole
    assert "not the one that its placements ask for" in _of_dtensor(held)["unknown"]
    held.placements = (Partial(),)
    assert "(Partial)" in _of_dtensor(held)["unknown"]
