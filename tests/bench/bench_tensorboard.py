"""Event files of 5 tags x 100,000 steps: ours beside TensorBoard, tbparse and a plain read of the file.

All figures are processor time (user + system) of one run; readers that take seconds run once, the others in
interleaved rounds of which the median counts.
"""

from __future__ import annotations

import io
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from gradclip_cli.readers.log import Wanted
from gradclip_cli.readers.open import open_source
from gradclip_cli.readers.tensorboard import READER
from gradclip_cli.readers.tfevents import crc32c
from gradclip_cli.readers.tfevents.words import Words

NUM_STEPS = 100_000
TAGS = ("train/loss", "train/grad_norm", "train/learning_rate", "train/loss_scale", "perf/tokens_per_s")
ROUNDS = 15


def write_scalars(path: Path, data: Mapping[str, np.ndarray]) -> None:
    """What `SummaryWriter.add_scalar` writes for step 0, 1, ... of every tag, some thousand times as fast.

    Args:
        data: Tag -> values, shape (n,).
    """
    num_steps = len(next(iter(data.values())))
    rng = np.random.default_rng(0)
    clock = 1.7e9 + np.cumsum(rng.uniform(0, 0.2 / len(data), (num_steps, len(data))), axis=0)
    with path.open("wb") as f:
        f.write(_records(_version()))
        for first, stop in ((0, 1), (1, 1 << 7), (1 << 7, 1 << 14), (1 << 14, 1 << 21)):
            steps = np.arange(first, min(stop, num_steps))
            if len(steps):
                events = [_simple_events(tag, steps, clock[steps, i], values[steps]) for i, (tag, values) in enumerate(data.items())]
                f.write(np.concatenate([_records(e) for e in events], axis=1))


def _version() -> np.ndarray:
    from tensorboard.compat.proto.event_pb2 import Event

    return np.frombuffer(Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString(), np.uint8)[None]


def _simple_events(tag: str, steps: np.ndarray, clock: np.ndarray, values: np.ndarray) -> np.ndarray:
    """One serialized event a row; the steps' varints are all of one width."""

    def constant(*content: int) -> np.ndarray:
        return np.tile(np.array(content, np.uint8), (len(steps), 1))

    width = -(-int(steps[-1]).bit_length() // 7)
    digits = [(steps >> 7 * i & 0x7F | (0x80 if i + 1 < width else 0)).astype(np.uint8)[:, None] for i in range(width)]
    name = tag.encode()
    value = [constant(0x0A, len(name), *name, 0x15), values.astype("<f4").view(np.uint8).reshape(-1, 4)]
    size = len(name) + 7
    step = [constant(0x10), *digits] if width else []
    return np.hstack(
        [constant(0x09), clock.astype("<f8").view(np.uint8).reshape(-1, 8), *step, constant(0x2A, size + 2, 0x0A, size), *value]
    )


def _records(payloads: np.ndarray) -> np.ndarray:
    """Framed, one record a row."""
    num, size = payloads.shape
    crcs = crc32c.masked(crc32c.of_rows(Words(np.ascontiguousarray(payloads)), np.full(size, 0xFF, np.uint8)))
    lengths = np.full(num, size)
    parts = [lengths.astype("<u8"), crc32c.of_lengths(lengths), crcs]
    header, header_crc, footer = (np.ascontiguousarray(p).view(np.uint8).reshape(num, -1) for p in parts)
    return np.hstack([header, header_crc, payloads, footer])


def _write_events(path: Path, events: Iterable[bytes]) -> None:
    """Framed events of any length, their checksums calculated all at once."""
    payloads = list(events)
    data = bytearray(b"".join(bytes(12) + p + bytes(4) for p in payloads))
    view = np.frombuffer(data, np.uint8)
    lengths = np.array([len(p) for p in payloads])
    starts = np.cumsum(lengths + 16) - lengths - 4
    crcs = crc32c.masked(crc32c.of_spans(view, starts, lengths))
    for offset, values, dtype in ((-12, lengths, "<u8"), (-4, crc32c.of_lengths(lengths), "<u4"), (lengths, crcs, "<u4")):
        places = (starts + offset)[:, None] + np.arange(np.dtype(dtype).itemsize)
        view[places] = values.astype(dtype).view(np.uint8).reshape(len(payloads), -1)
    path.write_bytes(data)


def _tensor_events() -> Iterable[bytes]:
    """As TensorFlow 2 writes scalars: the bytes of a tensor, the plugin's name in every event."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    rng = random.Random(0)
    clock = 1.7e9
    yield _version().tobytes()
    for step in range(NUM_STEPS):
        for tag in TAGS:
            clock += rng.uniform(0, 0.04)
            value = Summary.Value(tag=tag)
            value.metadata.plugin_data.plugin_name = "scalars"
            value.tensor.dtype = 1
            value.tensor.tensor_shape.SetInParent()
            value.tensor.tensor_content = np.float32(rng.gauss(2, 1)).tobytes()
            yield Event(wall_time=clock, step=step, summary=Summary(value=[value])).SerializeToString()


def _irregular_events() -> Iterable[bytes]:
    """A learning rate in 70 % of the steps, an evaluation in 1 %, histograms between."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    rng = random.Random(0)
    clock = 1.7e9
    yield _version().tobytes()
    for step in range(NUM_STEPS):
        tags = [*TAGS[:2], TAGS[4]]
        tags += [TAGS[2]] if rng.random() < 0.7 else []
        tags += ["eval/loss"] if rng.random() < 0.01 else []
        for tag in tags:
            clock += rng.uniform(0, 0.05)
            value = Summary.Value(tag=tag, simple_value=rng.gauss(2, 1))
            yield Event(wall_time=clock, step=step, summary=Summary(value=[value])).SerializeToString()
        if step % 200 == 0:
            buckets = [rng.random() for _ in range(rng.randrange(20, 60))]
            histogram = Summary.Value(tag="weights", histo={"min": 0, "max": 1, "bucket": buckets, "bucket_limit": buckets})
            yield Event(wall_time=clock, step=step, summary=Summary(value=[histogram])).SerializeToString()


def check_writer(folder: Path) -> None:
    """The fast writer's bytes are those of TensorBoard's writer."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    path = folder / "events.out.tfevents.check"
    write_scalars(path, {tag: np.linspace(0, 9, 200) for tag in TAGS})
    data, at, again = path.read_bytes(), 0, io.BytesIO()
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        RecordWriter(again).write(Event.FromString(data[at + 12 : at + 12 + size]).SerializeToString())
        at += size + 16
    if again.getvalue() != data:
        raise SystemExit("write_scalars no longer writes what TensorBoard's writer does")


def cpu_s(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def ours(path: Path) -> int:
    return sum(len(column.at) for column in READER.read(open_source(path), Wanted()).columns.values())


def event_accumulator(path: Path) -> int:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    ea = EventAccumulator(str(path), size_guidance=dict.fromkeys(("scalars", "tensors", "histograms", "compressedHistograms"), 0))
    ea.Reload()
    tensors = {tag: [(e.step, make_ndarray(e.tensor_proto)) for e in ea.Tensors(tag)] for tag in ea.Tags()["tensors"]}
    columns = [np.array([(e.step, e.value) for e in ea.Scalars(tag)]) for tag in ea.Tags()["scalars"]]
    columns += [np.array([(step, float(a)) for step, a in column]) for column in tensors.values() if all(a.ndim == 0 for _, a in column)]
    return sum(map(len, columns))


def tbparse(path: Path) -> int:
    from tbparse import SummaryReader

    reader = SummaryReader(str(path), event_types={"scalars", "tensors"})
    return len(reader.scalars) + len(reader.tensors)


def main() -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        check_writer(folder)
        files = {kind: folder / f"events.out.tfevents.{kind}" for kind in ("simple", "tensor", "irregular")}
        write_scalars(files["simple"], {tag: rng.standard_normal(NUM_STEPS) for tag in TAGS})
        _write_events(files["tensor"], _tensor_events())
        _write_events(files["irregular"], _irregular_events())
        print(f"{len(TAGS)} tags x {NUM_STEPS:,} steps; ms of processor time")
        print(f"{'log':<10} {'MiB':>4} {'points':>8} {'read file':>10} {'ours':>7} {'x file':>7}  peers")
        for kind, path in files.items():
            num_points = ours(path)
            rounds = np.array([(cpu_s(path.read_bytes), cpu_s(lambda path=path: ours(path))) for _ in range(ROUNDS)])
            file_s, ours_s = np.median(rounds, axis=0)
            peers = [event_accumulator, *([tbparse] if kind == "simple" else [])]
            slow = {peer.__name__: cpu_s(lambda peer=peer, path=path: peer(path)) for peer in peers}
            print(
                f"{kind:<10} {path.stat().st_size / 2**20:4.0f} {num_points:8,} {1000 * file_s:10.1f} {1000 * ours_s:7.1f} {ours_s / file_s:7.1f}  "
                + ", ".join(f"{peer} {1000 * s:.0f} = {s / ours_s:.0f} x" for peer, s in slow.items()),
                flush=True,
            )


if __name__ == "__main__":
    main()
