"""What files of gradients may look like: every format, every kind of damage, and nothing in them is ever run."""

from __future__ import annotations

import collections
import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradclip_cli.clipping import inert
from gradclip_cli.clipping.replay import Request, replay
from gradclip_cli.clipping.sources import Gradients, find
from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import NormStage
from tests.conftest import ROOT
from tests.replay_cases import exact_norm, gradients, write_raw, write_safetensors

Call = Callable[..., "subprocess.CompletedProcess[str]"]


def only(path: Path) -> Gradients:
    found = find([path])
    assert found.failures == (), found.failures[0].message
    return found


def error_of(path: Path) -> str:
    found = find([path])
    assert len(found.failures) == 1
    assert found.steps == ()
    message = found.failures[0].message
    assert message.startswith(str(path).split("/.metadata")[0])
    assert "\n" not in message
    return message


def total_norm(path: Path, p: float = 2.0) -> float:
    result, failures = replay([path], Request(norm_type=p))
    assert failures == ()
    assert result is not None
    return result.steps[0].total_norm


# What torch.save writes


def saved(path: Path, value: object, **options: Any) -> Path:
    torch.save(value, path, **options)
    return path


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_what_torch_saves_is_read_without_torch(tmp_path: Path, legacy: bool) -> None:
    tensors = {name: torch.from_numpy(a) for name, a in gradients().items()}
    wanted = exact_norm(list(gradients().values()), 2)
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    for k, value in enumerate(
        [
            tensors,
            collections.OrderedDict(tensors),
            {name: torch.nn.Parameter(t) for name, t in tensors.items()},
            {"grads": tensors, "step": 7, "scale": 1.0, "comment": "x", "none": None},
            {"grads": {**tensors, "h.0.weight": tensors["h.0.weight"].T.contiguous().T}},
            list(tensors.values()),
        ]
    ):
        path = saved(tmp_path / f"{k}.pt", value, _use_new_zipfile_serialization=not legacy)
        (step,) = only(path).steps
        assert total_norm(path) == pytest.approx(wanted, rel=1e-14), k
        if k < 4:
            assert {t.name.removeprefix("grads."): t.shape for t in step.tensors} == shapes
    assert find([tmp_path / "3.pt"]).steps[0].step == 7
    assert (
        "torch"
        not in subprocess.run(
            [
                sys.executable,
                "-c",
                f"import sys; from gradclip_cli.__main__ import main; main(['replay', {str(tmp_path / '0.pt')!r}]); print(*sys.modules)",
            ],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        .stdout.split("\n")[-2]
        .split()
    )


def test_a_model_state_dict_of_gradients_with_buffers(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    found = only(saved(tmp_path / "step_12.pt", model.state_dict()))
    assert [t.name for t in found.steps[0].tensors] == ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]
    assert found.steps[0].step == 12
    assert found.notes[0] == "1.num_batches_tracked left out: integers are no gradients"


def test_views_share_a_storage(tmp_path: Path) -> None:
    flat = torch.arange(24.0)
    path = saved(tmp_path / "g.pt", {"a": flat[2:8].view(2, 3), "b": flat[8:24].view(4, 4).T})
    assert total_norm(path) == pytest.approx(float(flat[2:].double().norm()), rel=1e-15)
    flat[8 + 3 * 4 + 1] = torch.nan
    result, _ = replay([saved(path, {"b": flat[8:24].view(4, 4).T})], Request())
    assert result is not None
    assert result.steps[0].nonfinite[0].positions == ((1, 3),)


def test_tied_gradients_count_once(tmp_path: Path) -> None:
    g = torch.ones(4)
    path = saved(tmp_path / "g.pt", {"wte": g, "head": g})
    assert total_norm(path) == 2
    assert "head is the same memory as wte" in only(path).notes[0]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": torch.ones(1, 3).expand(2, 3)}, "gaps or repeats"),
        ({"a": torch.ones(4, 4)[:, :2]}, "gaps or repeats"),
        ({"a": torch.ones(2, dtype=torch.int64)}, "integer"),
        ({"a": 3}, "no tensor"),
        ({"a": torch.eye(2).to_sparse()}, "torch._utils._rebuild_sparse_tensor"),
        ({"a": torch.ones(2), "b": torch.nn.Linear(1, 1)}, "torch.nn.modules.linear.Linear"),
    ],
    ids=["expanded", "columns", "integers", "none", "sparse", "module"],
)
def test_what_are_no_plain_gradients_is_refused_by_name(tmp_path: Path, value: object, words: str) -> None:
    assert words in error_of(saved(tmp_path / "g.pt", value))


class Evil:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.path}",))


@pytest.mark.parametrize("kind", ["zip", "legacy", "bare", "dcp"])
def test_nothing_in_a_pickle_is_run(gradclip: Call, tmp_path: Path, kind: str) -> None:
    mark, path = tmp_path / "ran", tmp_path / "g.pt"
    value = {"w": torch.ones(3), "evil": Evil(mark)}
    if kind == "dcp":
        path = tmp_path / "step-1"
        path.mkdir()
        (path / ".metadata").write_bytes(pickle.dumps(Evil(mark)))
    elif kind == "bare":
        path.write_bytes(pickle.dumps(Evil(mark)))
    else:
        torch.save(value, path, _use_new_zipfile_serialization=kind == "zip")
    good = write_safetensors(tmp_path / "step-5.safetensors", gradients())
    done = gradclip("replay", path, good, "-f", "json", code=3)
    assert not mark.exists()
    assert "posix.system" in done.stderr or kind == "bare"
    document = json.loads(done.stdout)
    assert [s["step"] for s in document["steps"]] == [5]
    assert [f["rule"] for f in document["findings"]] == ["GC307"]


def with_pickle(path: Path, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("g/data.pkl", data)
        archive.writestr("g/data/0", bytes(16))
    return path


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02}.." * 3,
        b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",
        b"\x80\x02" + b")" + b"\x85" * 100_000 + b".",
        b"\x80\x02]q\x00" + b"h\x00a" * 5 + b".",
        b"\x80\x02Nr\xff\xff\xff\xff.",
        b"\x80\x02X\xff\xff\xff\x7fabc.",
        b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7fabc.",
        b"\x80\x02}(K\x01K\x02K\x03u.",
        b"\x80\x02N(Q.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(X\x01\x00\x00\x00aQK\x00)))tR.",
        b"cposix\nsystem\n(S'true'\ntR.",
        b"\x80\x02ctorch\n_load_global_deps\n)R.",
        b"\x80\x02" + b"".join(b"]q" + bytes([k]) + (b"(" + b"h" + bytes([k - 1]) + b"h" + bytes([k - 1]) + b"e" if k else b"") for k in range(100)) + b".",
    ],
    ids=["empty", "cut", "nothing", "twice", "deep-lists", "deep-tuples", "circle", "memo", "long-text", "longer-text", "odd-dict", "mark", "no-args",
         "odd-args", "protocol-0", "call", "laughs"],
)  # fmt: skip
def test_hostile_pickles_are_errors(tmp_path: Path, data: bytes) -> None:
    error_of(with_pickle(tmp_path / "g.pt", data))


def storage_pickle(numel: int, first: int, shape: tuple[int, ...], stride: tuple[int, ...], key: str = "0") -> bytes:
    """A state dict with one tensor, as torch.save pickles it, with any numbers."""

    class Tensor:
        def __reduce__(self) -> tuple[Any, ...]:
            return (torch._utils._rebuild_tensor_v2, (Reference(), first, shape, stride, False, collections.OrderedDict()))

    class Reference:
        pass

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> Any:
            return ("storage", torch.FloatStorage, key, "cpu", numel) if isinstance(obj, Reference) else None

    buffer = io.BytesIO()
    Pickler(buffer, protocol=2).dump({"w": Tensor()})
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((4, 0, (4,), (1,)), None),
        ((4, 1, (4,), (1,)), "storage of 16 bytes"),
        ((4, 0, (2**40,), (1,)), "storage of 16 bytes"),
        ((4, 0, (2**61,), (1,)), "a shape that no tensor has"),
        ((4, 0, (-4,), (1,)), "a shape that no tensor has"),
        ((4, 0, (True,), (1,)), "a shape that no tensor has"),
        ((4, -1, (4,), (1,)), "without strides"),
        ((4, 0, (4,), (-1,)), "gaps or repeats"),
        ((4, 0, (4,), (0,)), "gaps or repeats"),
        ((4, 0, (1,) * 100, (1,) * 100), "a shape that no tensor has"),
        ((4, 0, (4,), (1,), "1"), "storage is not in the file"),
    ],
)
def test_tensors_that_lie_about_their_storage(tmp_path: Path, arguments: tuple[Any, ...], words: str | None) -> None:
    path = with_pickle(tmp_path / "g.pt", storage_pickle(*arguments))
    if words is None:
        assert total_norm(path) == 0
    else:
        assert words in error_of(path)


def test_an_archive_that_is_compressed_or_repeats_itself(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("g/data.pkl", storage_pickle(4, 0, (4,), (1,)))
        archive.writestr("g/data/0", bytes(1 << 20))
    assert "compressed" in error_of(tmp_path / "a.pt")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        archive.writestr("g/data/0", bytes(16))
        archive.writestr("g/data/0", bytes(16))
    assert "twice" in error_of(tmp_path / "b.pt")


# safetensors


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        ({"a": entry()}, 7, "the end of the file at byte"),
        ({"a": entry()}, 9, "1 bytes behind the last tensor"),
        ({"a": entry(offsets=(8, 0))}, 8, "bytes; expected 8 bytes"),
        ({"a": entry(offsets=(1, 9))}, 9, "leaves a gap"),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, 12, "overlaps"),
        ({"a": entry(shape=(3,))}, 8, "in 8 bytes"),
        ({"a": entry(shape=(2**62,))}, 8, "a shape that no tensor has"),
        ({"a": entry(shape=(-2,))}, 8, "a shape that no tensor has"),
        ({"a": entry(shape=(2.0,))}, 8, "a shape that no tensor has"),
        ({"a": entry(shape="22")}, 8, "a shape that no tensor has"),
        ({"a": entry(shape=(1,) * 99)}, 4, "a shape that no tensor has"),
        ({"a": entry(offsets=(0, 2**70))}, 8, "without a place"),
        ({"a": entry(offsets=(True, 8))}, 8, "without a place"),
        ({"a": entry(offsets=None)}, 8, "without a place"),
        ({"a": []}, 8, "without a place"),
        ({"a": entry(dtype="F4")}, 8, "of dtype F4"),
        ({"a": {**entry(), "dtype": 3}}, 8, "of dtype ?"),
        ({"a" * 5000: entry()}, 8, "a tensor name of 5,000 characters"),
        ({"__metadata__": 3, "a": entry()}, 8, "__metadata__"),
        ({"a": entry(dtype="I64", shape=(1,))}, 8, "integer"),
        ({}, 0, "no tensor"),
        ('{"a": 1, "a": 2}', 0, "names something twice"),
        ("{" + '"a":{' * 100_000, 0, "not JSON"),
        ("{" + "1" * 10_000, 0, "not JSON"),
        ('{"a": ' + "9" * 5000 + "}", 0, "not JSON"),
        (b'{"\xff": 1}', 0, "not JSON"),
        ({"__metadata__": {"step": "1", "scale": "0"}, "a": entry()}, 8, "a scale of 0"),
        ({"__metadata__": {"step": "1", "scale": "x"}, "a": entry()}, 8, "scale 'x'"),
        ({"__metadata__": {"step": "1", "stage": "later"}, "a": entry()}, 8, "the stage later"),
        ({"__metadata__": {"step": "1", "stage": {}}, "a": entry()}, 8, "the stage {}"),
        ({"__metadata__": {"step": 1, "scale": [1]}, "a": entry()}, 8, "scale '[1]'"),
        ({"__metadata__": {"step": "1", "norm_type": "-3"}, "a": entry()}, 8, "a norm_type of -3"),
        ({"__metadata__": {"step": "1", "norm_type": "1e9"}, "a": entry()}, 8, "a norm_type of 1e+09"),
        ({"__metadata__": {"step": "1", "norm_type": "nan"}, "a": entry()}, 8, "a norm_type of nan"),
    ],
)  # fmt: skip
def test_headers_that_lie(tmp_path: Path, header: object, data: int, words: str) -> None:
    text = header if isinstance(header, (str, bytes)) else json.dumps(header)
    assert words in error_of(write_raw(tmp_path / "g.safetensors", text, bytes(data)))


@pytest.mark.parametrize("size", [2**63, 99_999_999, 50], ids=str)
def test_a_header_that_claims_more_than_there_is(tmp_path: Path, size: int) -> None:
    error_of(write_raw(tmp_path / "g.safetensors", "{}", size=size))


def test_every_float_dtype_of_safetensors(tmp_path: Path) -> None:
    from gradclip_cli.clipping.store_safetensors import _DTYPES

    for short, name in _DTYPES.items():
        if name.startswith(("float", "bfloat")):
            tensor = torch.tensor([1.5, -2.0, 0.25]).to(getattr(torch, name))
            raw = tensor.view(torch.uint8).numpy().tobytes()
            path = write_raw(tmp_path / "g.safetensors", json.dumps({"a": entry(short, (3,), (0, len(raw)))}), raw)
            assert total_norm(path) == pytest.approx(float(tensor.double().norm()), rel=1e-15), name


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    path = write_safetensors(
        tmp_path / "g.safetensors", {"s": np.array(-3, np.float32), "e": np.zeros((0, 5), np.float32), "v": np.array([4.0])}
    )
    assert total_norm(path) == 5
    assert total_norm(write_safetensors(path, {"e": np.zeros((0, 5), np.float32)})) == 0


# Which files, and which steps


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("g.safetensors", b"", "an empty file"),
        ("g.safetensors", b"hello, world", "something else; expected safetensors"),
        ("g.safetensors", b"PK\x03\x04" + bytes(100), "a file of torch.save; expected safetensors"),
        ("g.pt", b'\x02\0\0\0\0\0\0\0{}', "a safetensors file; expected a file of torch.save"),
        ("g.pt", b"PK\x03\x04" + bytes(100), "a damaged archive"),
        ("g.pt", b"\x80\x04K\x01.", "something else"),
        ("g.npy", b"\x93NUMPY", "something else"),
    ],
)  # fmt: skip
def test_files_that_are_not_what_they_are_called(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert words in error_of(tmp_path / name)


def test_pipes_links_and_directories_without_gradients(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    assert "no regular file" in error_of(tmp_path / "pipe.pt")
    (tmp_path / "link.pt").symlink_to(tmp_path / "link.pt")
    error_of(tmp_path / "link.pt")
    (tmp_path / "empty").mkdir()
    assert "found no gradients" in error_of(tmp_path / "empty")


def test_a_directory_that_cannot_be_listed_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_safetensors(tmp_path / "step-1.safetensors", gradients())
    (tmp_path / "locked").mkdir()
    scandir = os.scandir

    def refusing(path: Path) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found = find([tmp_path])
    assert [s.step for s in found.steps] == [1]
    assert [f.message for f in found.failures] == [f"{tmp_path / 'locked'}: permission denied; expected a readable directory"]


@pytest.mark.parametrize("cut", range(0, 260, 13))
@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_truncated_anywhere_is_an_error(tmp_path: Path, kind: str, cut: int) -> None:
    path = tmp_path / f"g.{kind}"
    if kind == "pt":
        torch.save({"w": torch.ones(8)}, path)
    else:
        write_safetensors(path, {"w": np.ones(8, np.float32), "b": np.ones(3)})
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * cut // 260])
    error_of(path)


def test_steps_come_from_the_metadata_then_the_name_then_the_order(tmp_path: Path) -> None:
    for name, metadata in (("a", {"step": 30}), ("step-00000012", {}), ("rank_3_iter9", {}), ("epoch2_99", {}), ("g.7", {"step": 5})):
        write_safetensors(tmp_path / f"{name}.safetensors", gradients(), **metadata)
    found = only(tmp_path)
    assert [(s.step, s.source.stem) for s in found.steps] == [
        (5, "g.7"),
        (9, "rank_3_iter9"),
        (12, "step-00000012"),
        (30, "a"),
        (99, "epoch2_99"),
    ]
    (tmp_path / "step_10").mkdir()
    write_safetensors(tmp_path / "step_10" / "grads.safetensors", gradients())
    assert [s.step for s in only(tmp_path).steps] == [5, 9, 10, 12, 30, 99]
    write_safetensors(tmp_path / "b.safetensors", gradients())
    found = only(tmp_path)
    assert [s.step for s in found.steps] == list(range(7))
    assert "1 of 7 tell none" in found.notes[0]


def test_claims_are_read(tmp_path: Path) -> None:
    path = write_safetensors(
        tmp_path / "g.safetensors", gradients(), step=3, scale=1024.0, stage="post_clip", max_norm=0.5, norm_type="inf", total_norm="2.0"
    )
    (step,) = only(path).steps
    claims = step.claims
    assert (claims.scale, claims.stage, claims.max_norm, claims.norm_type) == (1024.0, NormStage.POST_CLIP, 0.5, float("inf"))
    assert total_norm(path) == pytest.approx(exact_norm(list(gradients().values()), 2) / 1024, rel=1e-14)


def test_parts_of_one_step_are_joined_and_a_missing_part_is_no_norm(tmp_path: Path) -> None:
    items = list(gradients().items())
    for i in range(3):
        write_safetensors(tmp_path / f"step-4-{i + 1:05d}-of-00003.safetensors", dict(items[2 * i : 2 * i + 2]))
    assert total_norm(tmp_path) == pytest.approx(exact_norm([a for _, a in items], 2), rel=1e-14)
    (tmp_path / "step-4-00002-of-00003.safetensors").unlink()
    found = find([tmp_path])
    assert found.steps == ()
    assert "2 of 3 parts" in found.failures[0].message
    for i in range(2):
        write_safetensors(tmp_path / f"part{i}_step-6.safetensors", dict(items[3 * i : 3 * i + 3]))
    (step,) = find([tmp_path]).steps
    assert len(step.tensors) == len(items)


def test_a_step_twice_is_not_counted_twice(tmp_path: Path) -> None:
    for rank in range(2):
        write_safetensors(tmp_path / f"rank{rank}_step5.safetensors", gradients())
    found = find([tmp_path])
    assert len(found.steps) == 1
    assert "step 5 a second time" in found.failures[0].message


# Distributed checkpoints

SAVE = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
child = os.fork()
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meet", rank=int(child == 0), world_size=2)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
full = torch.load("full.pt", weights_only=True)
ways = [Shard(0), Shard(1), Replicate()]
state = {n: distribute_tensor(t, mesh, [ways[i % 3]]) if t.dim() > 1 else t for i, (n, t) in enumerate(full.items())}
dcp.save({"grads": state, "step": 21}, checkpoint_id="sharded")
sys.exit(child and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that two ranks saved, beside the whole tensors."""
    folder = tmp_path_factory.mktemp("dcp")
    rng = np.random.default_rng(5)
    shapes = {"a": (7, 5), "b": (5, 9), "c": (4, 4), "d": (3, 6), "e": (11,)}
    torch.save({n: torch.from_numpy(rng.standard_normal(s).astype(np.float32)) for n, s in shapes.items()}, folder / "full.pt")
    (folder / "save.py").write_text(SAVE)
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "save.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_sharded_checkpoint_has_the_norm_of_the_whole(sharded: Path) -> None:
    (step,) = only(sharded / "sharded").steps
    assert step.step == 21
    assert max(len(t.pieces) for t in step.tensors) == 2
    for p in (1.0, 2.0, 3.0, float("inf")):
        assert total_norm(sharded / "sharded", p) == pytest.approx(total_norm(sharded / "full.pt", p), rel=1e-14)


def copied(sharded: Path, to: Path) -> Path:
    to.mkdir()
    for file in (sharded / "sharded").iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_positions_are_those_in_the_whole_tensor(sharded: Path, tmp_path: Path) -> None:
    path = copied(sharded, tmp_path / "c")
    (step,) = only(path).steps
    tensor = next(t for t in step.tensors if t.name == "grads.b")
    piece = next(p for p in tensor.pieces if any(p.origin))
    with piece.path.open("r+b") as file:
        file.seek(piece.offset + 4 * (piece.numel - 1))
        file.write(struct.pack("<f", float("inf")))
    result, _ = replay([path], Request())
    assert result is not None
    assert result.steps[0].nonfinite[0].positions == ((4, 8),)


def test_damaged_checkpoints(sharded: Path, tmp_path: Path) -> None:
    path = copied(sharded, tmp_path / "missing")
    next(path.glob("*.distcp")).unlink()
    assert "no such file" in error_of(path)
    assert "in front of the archive" in error_of(next((sharded / "sharded").glob("__0_0.distcp")))
    path = copied(sharded, tmp_path / "cut")
    file = next(path.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1500])
    assert "end of the file" in error_of(path)
    path = copied(sharded, tmp_path / "outside")
    metadata = (path / ".metadata").read_bytes()
    assert b"__0_0.distcp" in metadata
    (path / ".metadata").write_bytes(metadata.replace(b"__0_0.distcp", b"../0__distcp"))
    assert "outside the checkpoint" in error_of(path)


# Anything at all


@pytest.mark.parametrize("kind", ["safetensors", "pt", "legacy", "dcp"])
def test_random_damage_is_an_error_or_a_result_and_never_more(sharded: Path, tmp_path: Path, kind: str) -> None:
    rng = random.Random(kind)
    if kind == "dcp":
        path = copied(sharded, tmp_path / "c")
        target = path / ".metadata"
    else:
        path = target = tmp_path / f"g.{'safetensors' if kind == 'safetensors' else 'pt'}"
        if kind == "safetensors":
            write_safetensors(path, gradients(), step=3, stage="pre_clip")
        else:
            torch.save({n: torch.from_numpy(a) for n, a in gradients().items()}, path, _use_new_zipfile_serialization=kind == "pt")
    original = target.read_bytes()
    # The headers; what the numbers are is no matter.
    interesting = len(original) if kind == "dcp" else min(len(original), 1500)
    for _ in range(150):
        data = bytearray(original)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(interesting)
            if rng.random() < 0.5 and kind == "pt":
                at = len(data) - 1 - at
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        target.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.2 else data)
        try:
            result, failures = replay([path], Request(max_norms=(1.0,)))
        except GradclipError:
            continue
        assert result is not None or failures


def test_inert_data_is_what_the_pickle_says() -> None:
    value = {"a": [1, -(2**40), 2.5, None, True, "x", (), (1,), (1, 2, 3, 4)], "b": collections.OrderedDict(c=3)}
    for protocol in (2, 3, 4, 5):
        read = inert.read(io.BytesIO(pickle.dumps(value, protocol)))
        assert read.get("a") == value["a"]
        assert read.get("b").items.items == [("c", 3)]
        assert str(read.get("b").function) == "collections.OrderedDict"
    with pytest.raises(inert.Refused, match="builtins.eval"):
        inert.read(io.BytesIO(pickle.dumps(eval)))
