"""The run directory: what was written comes back, whatever became of the writer, the disk or the file."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.recorded import RankPart, TensorInfo
from gradclip_cli.runfile import RunWriter, files, is_recorded, read_recorded, remove_recorded
from tests import cases, recorded_cases
from tests.conftest import ROOT

EXIT = {"k": "exit", "u": 0, "site": None, "o": 0, "wrapper": False}


def part_of(directory: Path, rank: int = 0) -> RankPart:
    recorded, _ = read_recorded(directory)
    return recorded.parts[rank]


def test_what_was_written_comes_back_bit_for_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 50
    written = {
        "random": rng.standard_normal(n),
        "float32": rng.standard_normal(n).astype(np.float32).astype(np.float64),
        "constant": np.full(n, 1 / 3),
        "nan": np.full(n, np.nan),
        "mixed": np.where(np.arange(n) % 3 == 0, np.nan, np.where(np.arange(n) % 3 == 1, np.inf, -np.inf)),
        "signed zeros": np.where(np.arange(n) % 2 == 0, 0.0, -0.0),
        "beyond float32": np.where(np.arange(n) == 7, 1e300, 1.0),
        "tiny": np.where(np.arange(n) == 7, 1e-300, 1.0),
    }
    norms = rng.standard_normal((n, 2)).astype(np.float32)
    writer = RunWriter(tmp_path / "run", {"seed": 7, "max_norm": math.inf})
    writer.add_tensors(recorded_cases.TENSORS)
    steps = np.arange(1, n + 1) * 3
    writer.append(steps, written, norms)
    told = {"k": "measure", "u": 0, "site": None, "returned": math.nan, "given": 2, "p": math.inf}
    writer.append_events([told, EXIT])
    writer.close("exit 3")
    recorded, damage = read_recorded(tmp_path / "run")
    assert damage == ()
    part = recorded.parts[0]
    assert part.steps.tolist() == steps.tolist()
    assert part.steps.dtype == np.int64
    for name, values in written.items():
        assert part.columns[name].tobytes() == values.tobytes(), name
    assert part.tensor_norms.tobytes() == norms.tobytes()
    assert part.tensors == recorded_cases.TENSORS
    assert part.ended == "exit 3"
    assert part.header["seed"] == 7
    assert part.header["max_norm"] == math.inf
    assert math.isnan(part.events[0]["returned"])
    assert part.events[0]["p"] == math.inf
    assert part.events[1] == EXIT


def test_tensors_and_columns_that_come_later_are_nan_before(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {})
    writer.add_tensors([TensorInfo("nan", (), "float32")])
    writer.append(np.array([1, 2]), {"loss": np.array([3.0, 2.0])}, np.array([[1.0], [2.0]], np.float32))
    writer.append(np.array([3]), {"lr": np.array([0.5])}, None)
    writer.add_tensors([TensorInfo("inf", (2, 3), "bfloat16")])
    writer.append(np.array([4]), {"loss": np.array([1.0]), "lr": np.array([0.25])}, np.array([[4.0, 5.0]], np.float32))
    writer.close("finished")
    part = part_of(tmp_path / "run")
    nan = math.nan
    assert part.steps.tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(part.columns["loss"], [3, 2, nan, 1])
    np.testing.assert_array_equal(part.columns["lr"], [nan, nan, 0.5, 0.25])
    np.testing.assert_array_equal(part.tensor_norms, np.array([[1, nan], [2, nan], [nan, nan], [4, 5]], np.float32))
    assert [t.name for t in part.tensors] == ["nan", "inf"], "tensors may be called as numbers are written"
    assert part.tensors[1].shape == (2, 3)


def test_it_is_compact(tmp_path: Path) -> None:
    """100 tensors and 14 columns of 1,000 updates: little more than the float32 norms themselves."""
    writer = RunWriter(tmp_path / "run", {})
    writer.add_tensors([TensorInfo(f"layers.{i}.weight", (64, 64), "float32") for i in range(100)])
    for at in range(1, 1001, 100):
        columns = {k: np.resize(v, 100) for k, v in recorded_cases.columns(slice(0, 60)).items()}
        writer.append(np.arange(at, at + 100), columns, np.ones((100, 100), np.float32))
    writer.close("finished")
    size = (tmp_path / "run/rank-00000/updates.blocks").stat().st_size
    assert size < 1.15 * 4 * 100 * 1000


def test_each_rank_has_its_part(tmp_path: Path) -> None:
    for rank in (2, 0, 1):
        recorded_cases.write(tmp_path / "run", rank=rank, world_size=3)
    recorded, damage = read_recorded(tmp_path / "run")
    assert damage == ()
    assert recorded.world_size == 3
    assert list(recorded.parts) == [0, 1, 2]
    assert json.loads((tmp_path / "run/run.json").read_text())["rank"] == 0
    assert len(list((tmp_path / "run").glob("events.out.tfevents.*"))) == 1
    shutil.rmtree(tmp_path / "run/rank-00001")
    recorded, damage = read_recorded(tmp_path / "run")
    assert list(recorded.parts) == [0, 2]
    assert "no part of rank 1; expected 3 ranks" in damage[0].what


def test_a_run_without_its_first_rank_is_read(tmp_path: Path) -> None:
    recorded_cases.write(tmp_path / "run", rank=9, world_size=10)
    assert is_recorded(tmp_path / "run")
    assert list(read_recorded(tmp_path / "run")[0].parts) == [9]


def test_gradients_are_listed_by_step(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {})
    path = writer.gradients_path(412)
    assert path == tmp_path / "run/grads/step-00000412.safetensors"
    path.write_bytes(b"x")
    (path.parent / "step-00000413.safetensors").symlink_to("/etc/hostname")
    writer.close("finished")
    assert read_recorded(tmp_path / "run")[0].gradients == {412: str(path)}
    assert RunWriter(tmp_path / "run", {}, rank=1).gradients_path(412) == tmp_path / "run/rank-00001/grads/step-00000412.safetensors"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    recorded_cases.write(tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(GradclipError, match="already holds a recorded run") as e:
        RunWriter(tmp_path / "run", {})
    assert "--force" in str(e.value.hint)
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    (tmp_path / "other").mkdir()
    (tmp_path / "other/run.json").write_text('{"mine": 1}')
    with pytest.raises(GradclipError, match="no header of a recorded run"):
        RunWriter(tmp_path / "other", {})
    assert (tmp_path / "other/run.json").read_text() == '{"mine": 1}'


def test_removing_leaves_what_is_not_ours(tmp_path: Path) -> None:
    run = recorded_cases.write(tmp_path / "run")
    recorded_cases.write(run, rank=1, world_size=2)
    (run / "grads").mkdir()
    (run / "grads/step-00000003.safetensors").write_bytes(b"x")
    mine = [run / "notes.txt", run / "grads/mine.txt", run / "rank-00000/mine.txt", run / "events.out.tfevents.1.host.2.3"]
    for path in mine:
        path.write_text("mine")
    remove_recorded(run)
    assert sorted(p for p in run.rglob("*") if p.is_file()) == sorted(mine)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/run.json").write_text("{}")
    remove_recorded(tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere/run.json").exists()


def test_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "header.json").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/rank-00000").symlink_to(outside)
    with pytest.raises(GradclipError, match="already holds"):
        RunWriter(tmp_path / "run", {})
    (tmp_path / "run/rank-00000").unlink()
    (tmp_path / "run/grads").symlink_to(outside)
    problems: list[str] = []
    writer = RunWriter(tmp_path / "run", {}, on_problem=problems.append)
    (tmp_path / "run/rank-00000/trace.jsonl").symlink_to(outside / "header.json")
    writer.append_events([EXIT])
    assert len(problems) == 1
    assert (outside / "header.json").read_text() == "precious"
    writer.close("finished")
    (tmp_path / "run/rank-00000/updates.blocks").unlink()
    (tmp_path / "run/rank-00000/updates.blocks").symlink_to(outside / "header.json")
    with pytest.raises(GradclipError, match="no part of a recorded run"):
        read_recorded(tmp_path / "run")
    remove_recorded(tmp_path / "run")
    assert (outside / "header.json").read_text() == "precious"


WRITE_FOR_EVER = """
import sys, numpy as np
from pathlib import Path
from gradclip_cli.runfile import RunWriter
from tests import recorded_cases
writer = RunWriter(Path(sys.argv[1]), {})
writer.add_tensors(recorded_cases.TENSORS)
for at in range(1, 10**9, 10):
    columns = {"loss": np.random.rand(10), "has_loss": np.ones(10)}
    writer.append(np.arange(at, at + 10), columns, np.ones((10, 2), np.float32))
    writer.append_events([{"k": "exit", "u": at, "site": None, "o": 0, "wrapper": False}])
    if at == 1:
        print("ready", flush=True)
"""


def test_killed_at_any_moment(tmp_path: Path) -> None:
    for attempt, wait_s in enumerate((0.01, 0.037, 0.1)):
        run = tmp_path / f"run{attempt}"
        child = subprocess.Popen(
            [sys.executable, "-c", WRITE_FOR_EVER, str(run)], cwd=ROOT, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(ROOT)}
        )
        assert child.stdout is not None
        with child.stdout:
            assert child.stdout.readline() == "ready\n"
            time.sleep(wait_s)
            live, damage = read_recorded(run)
            assert damage == (), "a run that is being written is not damaged"
            assert live.parts[0].ended == "still running"
            child.send_signal(signal.SIGKILL)
            child.wait()
        recorded, damage = read_recorded(run)
        part = recorded.parts[0]
        assert part.ended == ""
        assert len(part.steps) >= len(live.parts[0].steps) > 0
        assert part.steps.tolist() == list(range(1, len(part.steps) + 1))
        assert any("killed" in d.what and f"after step {part.steps[-1]}" in d.lost for d in damage)


def test_cut_anywhere_it_loses_only_the_end(tmp_path: Path) -> None:
    run = recorded_cases.write(tmp_path / "run", flush=10)
    updates = run / "rank-00000/updates.blocks"
    data = updates.read_bytes()
    lengths = []
    for size in range(0, len(data), 5):
        updates.write_bytes(data[:size])
        recorded, damage = read_recorded(run)
        part = recorded.parts[0]
        lengths.append(len(part.steps))
        np.testing.assert_array_equal(part.columns.get("loss", np.empty(0)), cases.LOSS[: len(part.steps)])
        # Where a block ends nothing is seen to be missing: there the header tells how many updates there were.
        assert damage or size in (0, *_block_ends(data))
    assert set(lengths) == {0, 10, 20, 30, 40, 50}
    assert sorted(lengths) == lengths


def _block_ends(data: bytes) -> list[int]:
    ends, at = [], 0
    while at < len(data):
        at += 20 + struct.unpack_from("<I", data, at + 8)[0]
        ends.append(at)
    return ends


def test_a_damaged_block_costs_itself(tmp_path: Path) -> None:
    run = recorded_cases.write(tmp_path / "run", flush=10)
    updates = run / "rank-00000/updates.blocks"
    data = updates.read_bytes()
    ends = _block_ends(data)
    for at in (ends[1] + 3, ends[1] + 9, ends[1] + 25, ends[2] - 1):
        updates.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        recorded, damage = read_recorded(run)
        assert recorded.parts[0].steps.tolist() == [*range(1, 11), *range(21, 61)]
        assert [d.where for d in damage] == [f"rank-00000/updates.blocks, byte {ends[1]}"]
    # Bytes that slipped in between do not hide what follows.
    updates.write_bytes(data[: ends[1]] + b"GCB1" * 9 + data[ends[1] :])
    recorded, damage = read_recorded(run)
    assert len(recorded.parts[0].steps) == cases.N
    assert "36 bytes" in damage[0].what


def block(payload: bytes, kind: int = 1) -> bytes:
    head = struct.pack("<4sB3xII", b"GCB1", kind, len(payload), zlib.crc32(payload))
    return head + struct.pack("<I", zlib.crc32(head)) + payload


HOSTILE = {
    "four billion updates in no bytes": block(struct.pack("<IHI", 2**32 - 1, 1, 1)),
    "a thousand constant columns of many updates": block(
        struct.pack("<IHI", 100_000, 1000, 0)
        + np.arange(1, 100_001).tobytes()
        + b"".join(bytes([4]) + f"{i:04d}".encode() + b"\x00" + bytes(8) for i in range(1000))
    ),
    "a million names for many updates": block(struct.pack("<IHI", 500_000, 0, 0) + np.arange(1, 500_001).tobytes())
    + block(json.dumps([0, *[["x", [1], "f"]] * 50_000]).encode(), kind=2),
    "nested 100,000 deep": block(b"[" * 100_000, kind=2),
    "tensors that are none": block(b'[0, ["a", ["x"], 3]]', kind=2),
    "names from far behind": block(b'[1000000000000, ["a", [1], "f"]]', kind=2),
    "an unknown kind": block(b"abc", kind=9),
    "a name that is no text": block(struct.pack("<IHI", 1, 1, 0) + bytes(8) + b"\x02\xff\xfe\x00" + bytes(8)),
    "an unknown form": block(struct.pack("<IHI", 1, 1, 0) + bytes(8) + b"\x01a\x07" + bytes(8)),
    "no counts": block(b""),
    "headers without payload, thousands of them": struct.pack("<4sB3xII", b"GCB1", 1, 2**31, 0) * 50_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_claims_need_bytes_to_back_them(tmp_path: Path, name: str) -> None:
    run = recorded_cases.write(tmp_path / "run")
    with (run / "rank-00000/updates.blocks").open("wb") as f:
        f.write(HOSTILE[name])
    tracemalloc.start()
    start = time.monotonic()
    try:
        _, damage = read_recorded(run)
        assert damage
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert time.monotonic() - start < 20
    assert peak < 150_000_000 + 70 * len(HOSTILE[name])


def test_a_checksum_is_made_once_for_each_byte(tmp_path: Path) -> None:
    """Headers that each claim all that follows, with wrong checksums of it."""

    def header(size: int) -> bytes:
        head = struct.pack("<4sB3xII", b"GCB1", 1, size, 0)
        return head + struct.pack("<I", zlib.crc32(head))

    run = recorded_cases.write(tmp_path / "run")
    n = 200_000
    (run / "rank-00000/updates.blocks").write_bytes(b"".join(header(20 * (n - 1 - i)) for i in range(n)))
    start = time.monotonic()
    assert read_recorded(run)[1]
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"a": ' * 100_000, b'{"schema": 1, "world_size": "many", "ended": []}']
)
def test_a_broken_header_does_not_hide_the_updates(tmp_path: Path, content: bytes) -> None:
    run = recorded_cases.write(tmp_path / "run")
    (run / "rank-00000/header.json").write_bytes(content)
    recorded, damage = read_recorded(run)
    assert len(recorded.parts[0].steps) == cases.N
    assert damage
    assert recorded.world_size == 1


def test_the_trace_loses_its_broken_lines(tmp_path: Path) -> None:
    run = recorded_cases.write(tmp_path / "run")
    with (run / "rank-00000/trace.jsonl").open("ab") as f:
        f.write(b'{"a": \n[1]\n' + json.dumps(EXIT).encode() + b'\n{"k": "st')
    recorded, damage = read_recorded(run)
    events = recorded.parts[0].events
    assert len(events) == 5 * cases.N + 1 + 1
    assert events[-1] == EXIT
    assert {d.where for d in damage} == {"rank-00000/trace.jsonl, line 302", "rank-00000/trace.jsonl, line 305"}


def test_only_calls_as_the_watcher_writes_them_are_believed(tmp_path: Path) -> None:
    """Rules take events as they are: one with a key too few, or of another type, is damage and not theirs to survive."""
    run = recorded_cases.write(tmp_path / "run")
    trace = run / "rank-00000/trace.jsonl"
    good = trace.read_bytes()
    for event in recorded_cases.calls(0):
        for key in event:
            if key == "stack":
                continue
            for changed in ({k: v for k, v in event.items() if k != key}, event | {key: [{"x": 10**400}]}):
                if key in ("closure", "in_backward", "in_step", "whole", "wrapper") and key in changed:
                    continue
                trace.write_bytes(good + json.dumps(changed).encode() + b"\n")
                recorded, damage = read_recorded(run)
                assert len(recorded.parts[0].events) == 5 * cases.N + 1, (event["k"], key, changed)
                assert "1 lines that are no calls" in damage[0].what
    trace.write_bytes(good + json.dumps(recorded_cases.calls(1)[1] | {"tensors": [2]}).encode() + b"\n")
    assert read_recorded(run)[1], "a tensor that has no name"


def test_names_keep_their_numbers_when_a_block_of_names_is_lost(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {})
    writer.add_tensors([TensorInfo("a", (1,), "float32"), TensorInfo("b", (1,), "float32")])
    writer.add_tensors([TensorInfo("c", (1,), "float32")])
    writer.append(np.array([1]), {"loss": np.array([1.0])}, np.array([[1.0, 2.0, 3.0]], np.float32))
    writer.close("finished")
    updates = tmp_path / "run/rank-00000/updates.blocks"
    data = bytearray(updates.read_bytes())
    data[25] ^= 1
    updates.write_bytes(data)
    part = part_of(tmp_path / "run")
    assert [t.name for t in part.tensors] == ["tensor 0", "tensor 1", "c"]
    assert part.tensor_norms.tolist() == [[1, 2, 3]]


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    run = recorded_cases.write(tmp_path / "run")
    (run / "rank-00000/trace.jsonl").unlink()
    os.mkfifo(run / "rank-00000/trace.jsonl")
    _, damage = read_recorded(run)
    assert damage[0].where == "rank-00000/trace.jsonl"


def test_a_full_disk_is_told_once_and_leaves_a_readable_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problems: list[str] = []
    writer = RunWriter(tmp_path / "run", {}, on_problem=problems.append)
    writer.add_tensors(recorded_cases.TENSORS)
    real = os.write

    def almost_full(fd: int, data: Any) -> int:
        if len(data) > 50:
            return real(fd, data[:50])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    rows = slice(0, 20)
    writer.append(cases.STEPS[rows], recorded_cases.columns(rows), recorded_cases.TENSOR_NORMS[rows])
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "write", almost_full)
        for at in range(20, 60, 20):
            rows = slice(at, at + 20)
            writer.append(cases.STEPS[rows], recorded_cases.columns(rows), recorded_cases.TENSOR_NORMS[rows])
            writer.append_events([EXIT])
            writer.set_header(max_norm=2.0)
    writer.close("finished")
    assert problems == [f"{tmp_path / 'run'}: No space left on device"]
    recorded, damage = read_recorded(tmp_path / "run")
    part = recorded.parts[0]
    assert len(part.steps) == writer.num_updates == 20
    assert damage == ()
    # There was room again for what became of it.
    assert (part.ended, part.header["fault"]) == ("finished", problems[0])


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """The same through the kernel: a limit on the size of files, in a process of its own."""
    code = WRITE_FOR_EVER.replace(
        "writer = RunWriter(Path(sys.argv[1]), {})", "writer = RunWriter(Path(sys.argv[1]), {}, on_problem=print)"
    )
    code = code.replace("10**9", "10**4") + "\nwriter.close('finished')\nprint('done')\n"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "ready"
    assert done.stdout.count("File too large") == 1
    assert done.stdout.splitlines()[-1] == "done"
    assert len(part_of(tmp_path / "run").steps) > 100


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    problems: list[str] = []
    writer = RunWriter(tmp_path / "file/run", {}, on_problem=problems.append)
    writer.add_tensors(recorded_cases.TENSORS)
    writer.append(np.array([1]), {"loss": np.array([1.0])}, None)
    writer.close("finished")
    assert len(problems) == 1
    assert problems[0].endswith("run: Not a directory")


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {})
    pid = os.fork()
    if pid == 0:
        writer.append(np.array([1]), {"loss": np.array([1.0])}, None)
        writer.close("exit 9")
        os._exit(0)
    os.waitpid(pid, 0)
    writer.append(np.array([1, 2]), {"loss": np.array([1.0, 2.0])}, None)
    writer.close("finished")
    part = part_of(tmp_path / "run")
    assert part.columns["loss"].tolist() == [1.0, 2.0]
    assert part.ended == "finished"


def test_tensorboard_reads_the_event_file(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = recorded_cases.write(tmp_path / "run")
    accumulator = EventAccumulator(str(run), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = {"train/loss", "train/grad_norm", "train/grad_norm_used", "train/lr", "train/clip_coef"}
    assert set(accumulator.Tags()["scalars"]) == tags, "loss_scale is nowhere"
    for tag, values in (("train/loss", cases.LOSS), ("train/grad_norm", cases.NORM)):
        events = accumulator.Scalars(tag)
        assert [e.step for e in events] == cases.STEPS.tolist()
        np.testing.assert_array_equal([e.value for e in events], values.astype(np.float32))
    walls = [e.wall_time for e in accumulator.Scalars("train/loss")]
    np.testing.assert_allclose(np.diff(walls)[:19], 0.25, atol=1e-5)


def test_our_own_reader_gives_the_same_of_the_event_file(tmp_path: Path) -> None:
    from gradclip_cli import read_run

    run = recorded_cases.write(tmp_path / "run")
    (events,) = run.glob("events.out.tfevents.*")
    from_events, from_run = read_run(events), read_run(run)
    assert from_events.format == "tensorboard"
    for name in ("loss", "grad_norm", "lr", "clip_coef"):
        a, b = from_events.series[name], from_run.series[name]
        assert a.steps.tolist() == b.steps.tolist()
        np.testing.assert_array_equal(a.values, b.values.astype(np.float32).astype(np.float64))


def test_events_hold_what_was_measured_and_large_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = RunWriter(tmp_path / "run", {})
    steps = np.array([1, 127, 128, 2**31, 2**40])
    columns = {
        "loss": np.array([1.0, np.nan, np.nan, np.inf, 1e300]),
        "has_loss": np.array([1.0, 1.0, 0.0, 1.0, 1.0]),
        "lr": np.array([np.nan, 0.5, 0.5, 0.5, 0.5]),
    }
    writer.append(steps, columns, None)
    writer.close("finished")
    accumulator = EventAccumulator(str(tmp_path / "run"), size_guidance={"scalars": 0})
    accumulator.Reload()
    assert [e.step for e in accumulator.Scalars("train/loss")] == [1, 127, 2**31, 2**40]
    np.testing.assert_array_equal([e.value for e in accumulator.Scalars("train/loss")], [1, np.nan, np.inf, np.inf])
    assert [e.step for e in accumulator.Scalars("train/lr")] == steps.tolist()[1:]
