"""Event files against TensorBoard's own reader, and damaged in every way against what must be left of them."""

from __future__ import annotations

import gzip
import io
import math
import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from gradclip_cli import read_runs
from gradclip_cli.errors import GradclipError
from gradclip_cli.readers.log import Log, Wanted
from gradclip_cli.readers.open import open_source
from gradclip_cli.readers.tensorboard import READER
from gradclip_cli.readers.tfevents import crc32c, framing
from gradclip_cli.readers.tfevents.words import Words

pytest.importorskip("tensorboard")
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.summary.writer.record_writer import RecordWriter

NAME = "events.out.tfevents.1700000000.host.1.0"
TAGS = ("train/loss", "train/grad_norm", "train/lr")

Points = dict[str, list[tuple[int, float]]]


def record(payload: bytes) -> bytes:
    out = io.BytesIO()
    RecordWriter(out).write(payload)
    return out.getvalue()


def event(step: int, *values: Summary.Value, clock: float = 0.0) -> bytes:
    return record(Event(wall_time=1.7e9 + clock, step=step, summary=Summary(value=values)).SerializeToString())


def simple(tag: str, value: float) -> Summary.Value:
    return Summary.Value(tag=tag, simple_value=value)


VERSION = record(Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())


def rhythm(num_steps: int, tags: Sequence[str] = TAGS, start: int = 0) -> list[bytes]:
    """What a training loop writes: the same tags in every step."""
    rng = random.Random(1)
    return [VERSION] + [
        event(s, simple(t, rng.gauss(0, 1)), clock=s + i / 9) for s in range(start, start + num_steps) for i, t in enumerate(tags)
    ]


def irregular(num_steps: int) -> list[bytes]:
    """Tags that come and go, with a histogram or a text now and then."""
    rng = random.Random(2)
    out = [VERSION]
    for s in range(num_steps):
        out += [event(s, simple(t, rng.gauss(0, 1)), clock=s + rng.random()) for t in (*TAGS, "eval/loss") if rng.random() < 0.7]
        if rng.random() < 0.03:
            histogram = {"bucket": [rng.random() for _ in range(rng.randrange(90))], "bucket_limit": [1.0, 2.0]}
            out.append(event(s, Summary.Value(tag="weights", histo=histogram)))
    return out


def points_of(records: Sequence[bytes]) -> Points:
    """Decoded with the real protocol buffers."""
    points: Points = {}
    for raw in records:
        decoded = Event.FromString(raw[12:-4])
        for value in decoded.summary.value:
            if value.WhichOneof("value") == "simple_value":
                points.setdefault(value.tag, []).append((decoded.step, value.simple_value))
    return points


def read(path: Path, data: bytes, name: str = NAME) -> Log:
    (path / name).write_bytes(data)
    source = open_source(path / name)
    assert READER.claims(source)
    return READER.read(source, Wanted())


def points(log: Log) -> Points:
    for column in log.columns.values():
        assert column.at.dtype == np.int64
        assert column.values.dtype == np.float64
    return {tag: list(zip(c.at.tolist(), c.values.tolist(), strict=True)) for tag, c in log.columns.items()}


def accumulated(path: Path) -> Points:
    """The same file through TensorBoard, every point of it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    everything = dict.fromkeys(("scalars", "tensors", "histograms", "compressedHistograms", "images", "audio"), 0)
    ea = EventAccumulator(str(path), size_guidance=everything, purge_orphaned_data=False)
    ea.Reload()
    found: Points = {tag: [(e.step, e.value) for e in ea.Scalars(tag)] for tag in ea.Tags()["scalars"]}
    for tag in ea.Tags()["tensors"]:
        arrays = [(e.step, make_ndarray(e.tensor_proto)) for e in ea.Tensors(tag)]
        if all(a.size == 1 and a.dtype.kind in "fiub" for _, a in arrays):
            found[tag] = [(step, float(a.ravel()[0])) for step, a in arrays]
    return found


def tensor(dtype: int, shape: Sequence[int] = (), **fields: object) -> TensorProto:
    return TensorProto(dtype=dtype, tensor_shape=TensorShapeProto(dim=[{"size": n} for n in shape]), **fields)


def scalars_metadata(plugin: str = "scalars") -> SummaryMetadata:
    return SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))


def each_step(make: Callable[[int, float], Summary.Value], num_steps: int = 300) -> list[bytes]:
    rng = random.Random(3)
    return [VERSION] + [event(s, make(s, rng.gauss(0, 5)), clock=s) for s in range(num_steps)]


def of_tensor(make: Callable[[float], TensorProto]) -> list[bytes]:
    return each_step(lambda s, v: Summary.Value(tag="t", tensor=make(v), metadata=scalars_metadata() if s == 0 else None))


KINDS: dict[str, Callable[[], list[bytes]]] = {
    "a rhythm": lambda: rhythm(1500),
    "no rhythm": lambda: irregular(3500),
    "tags of one length": lambda: rhythm(400, ("loss/a", "loss/b", "loss/c", "norm/a")),
    "many tags": lambda: rhythm(4, [f"grad_norm/layers.{i}.weight" for i in range(700)]),
    "a wide event": lambda: [event(s, *(simple(f"grad_norm/{i}", s + i / 7) for i in range(300)), clock=s) for s in range(12)],
    "two values an event": lambda: [event(s, simple("loss", s / 3), simple("lr", 1 / (s + 1)), clock=s) for s in range(300)],
    "a tag twice in an event": lambda: [event(s, simple("loss", s / 3), simple("loss", -s), clock=s) for s in range(30)],
    "wider steps": lambda: rhythm(30, start=120) + rhythm(30, start=16370) + rhythm(30, start=2097140) + rhythm(30, start=2**28 - 15),
    "huge steps": lambda: rhythm(30, start=2**53 - 3) + rhythm(20, start=2**63 - 20),
    "negative steps": lambda: rhythm(40, start=-20),
    "rewound steps": lambda: rhythm(40) + rhythm(40, start=20),
    "non-finite": lambda: each_step(lambda s, v: simple("loss", (math.nan, math.inf, -math.inf, v)[s % 4])),
    "no clock": lambda: [record(Event(step=s, summary=Summary(value=[simple("loss", s)])).SerializeToString()) for s in range(20)],
    "metadata in every event": lambda: each_step(
        lambda s, v: Summary.Value(tag="t", metadata=scalars_metadata(), tensor=tensor(1, tensor_content=struct.pack("<f", v)))
    ),
    "tensor_content": lambda: of_tensor(lambda v: tensor(2, tensor_content=struct.pack("<d", v))),
    "tensor_content, half": lambda: of_tensor(lambda v: tensor(19, tensor_content=np.float16(v).tobytes())),
    "tensor_content, int16": lambda: of_tensor(lambda v: tensor(5, tensor_content=np.int16(v).tobytes())),
    "float_val": lambda: of_tensor(lambda v: tensor(1, float_val=[v])),
    "double_val": lambda: of_tensor(lambda v: tensor(2, double_val=[v])),
    "half_val": lambda: of_tensor(lambda v: tensor(19, half_val=[int(np.float16(v).view(np.uint16))])),
    "int_val": lambda: of_tensor(lambda v: tensor(3, int_val=[int(v * 100)])),
    "int64_val": lambda: of_tensor(lambda v: tensor(9, int64_val=[int(v * 1e12)])),
    "bool_val": lambda: of_tensor(lambda v: tensor(10, bool_val=[v > 0])),
    "shape (1, 1)": lambda: of_tensor(lambda v: tensor(1, (1, 1), float_val=[v])),
    "not scalars": lambda: [
        VERSION,
        *(event(s, Summary.Value(tag="curve", tensor=tensor(1, (3,), float_val=[1, 2, s]))) for s in range(9)),
        *(event(s, Summary.Value(tag="none", tensor=tensor(1, (0,)))) for s in range(9)),
        *(event(s, Summary.Value(tag="text", tensor=tensor(7, (1,), string_val=[b"hello"]), metadata=scalars_metadata("text"))) for s in range(9)),
        *(event(s, Summary.Value(tag="image", image={"height": 1, "encoded_image_string": bytes(s)})) for s in range(9)),
        record(Event(wall_time=1.7e9, graph_def=bytes(3000)).SerializeToString()),
        record(Event(wall_time=1.7e9, step=3, session_log=SessionLog(status=SessionLog.CHECKPOINT)).SerializeToString()),
        event(5, simple("loss", 1.5)),
    ],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_every_point_equals_tensorboards(kind: str, tmp_path: Path) -> None:
    log = read(tmp_path, b"".join(KINDS[kind]()))
    found, expected = points(log), accumulated(tmp_path / NAME)
    assert expected
    assert list(found) == list(expected)
    assert found.keys() == expected.keys()
    for tag, series in expected.items():
        np.testing.assert_array_equal(found[tag], series)
    assert log.by_step
    assert (log.damage, log.notes) == ((), ())


def test_tensors_that_tensorboard_cannot_show(tmp_path: Path) -> None:
    bfloat16 = [event(s, Summary.Value(tag="bf", tensor=tensor(14, half_val=[0x3FC0 + s]))) for s in range(3)]
    content = [event(s, Summary.Value(tag="bc", tensor=tensor(14, tensor_content=b"\xc0\xbf"))) for s in range(2)]
    unsigned = [event(0, Summary.Value(tag="u", tensor=tensor(23, uint64_val=[2**63])))]
    left_out = [event(0, Summary.Value(tag="zero", tensor=tensor(1)))]
    assert points(read(tmp_path, b"".join(bfloat16 + content + unsigned + left_out))) == {
        "bf": [(0, 1.5), (1, 1.5078125), (2, 1.515625)],
        "bc": [(0, -1.5), (1, -1.5)],
        "u": [(0, 2.0**63)],
        "zero": [(0, 0.0)],
    }


def test_numbers_of_other_plugins_are_no_series(tmp_path: Path) -> None:
    def value(s: int, v: float) -> Summary.Value:
        return Summary.Value(tag="session", tensor=tensor(1, float_val=[v]), metadata=scalars_metadata("hparams") if s == 0 else None)

    log = read(tmp_path, b"".join([*each_step(value, 20), event(0, simple("loss", 1.0))]))
    assert points(log) == {"loss": [(0, 1.0)]}
    assert log.notes == ("1 tag of other TensorBoard plugins (hparams) left out",)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("new_style", [False, True])
def test_torch_writer(new_style: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(tmp_path) as writer:
        for s in range(200):
            writer.add_scalar("train/loss", 2.0 / (s + 1), s, new_style=new_style)
            writer.add_scalar("train/grad_norm", math.sin(s), s, new_style=new_style, double_precision=True)
            if s % 50 == 0:
                writer.add_histogram("weights", torch.linspace(0, 1, 50 + s), s)
                writer.add_text("note", "hello", s)
                writer.add_scalars("both", {"a": s, "b": -s}, s)
    (main,) = tmp_path.glob("events.out.*")
    log = READER.read(open_source(main), Wanted())
    assert {tag: len(p) for tag, p in points(log).items()} == {"train/loss": 200, "train/grad_norm": 200}
    assert points(log) == accumulated(main)


def test_event_file_writer_and_gzip(tmp_path: Path) -> None:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path))
    for s in range(50):
        writer.add_event(Event(wall_time=1.7e9, step=s, summary=Summary(value=[simple("loss", s)])))
    writer.close()
    (path,) = tmp_path.iterdir()
    expected = {"loss": [(s, float(s)) for s in range(50)]}
    assert points(READER.read(open_source(path), Wanted())) == expected
    assert points(read(tmp_path, gzip.compress(path.read_bytes()), NAME + ".gz")) == expected


# -- damage -------------------------------------------------------------------------------------------------------


def whole_but(records: list[bytes], lost: Sequence[int]) -> Points:
    gone = set(lost)
    return points_of([r for i, r in enumerate(records) if i not in gone])


def offsets(records: list[bytes]) -> list[int]:
    return np.cumsum([0, *map(len, records)]).tolist()


def test_every_single_bit_flip_costs_its_own_record(tmp_path: Path) -> None:
    records = rhythm(1, ("loss", "lr"))
    data, begins = b"".join(records), offsets(records)
    for i in range(len(records)):
        expected = whole_but(records, [i])
        for bit in range(8 * begins[i], 8 * begins[i + 1]):
            broken = bytearray(data)
            broken[bit // 8] ^= 1 << bit % 8
            log = read(tmp_path, bytes(broken))
            assert points(log) == expected, (i, bit)
            assert len(log.damage) == 1, (i, bit)


@pytest.mark.parametrize("make", [lambda: rhythm(1500), lambda: irregular(2500)], ids=["rhythm", "irregular"])
def test_bit_flips_in_large_files(make: Callable[[], list[bytes]], tmp_path: Path) -> None:
    records = make()
    data, begins = b"".join(records), offsets(records)
    rng = random.Random(4)
    for num_flips in (1, 1, 2, 3, 5, 8, 20, 100):
        broken, lost = bytearray(data), []
        for _ in range(num_flips):
            at = rng.randrange(len(data))
            broken[at] ^= 1 << rng.randrange(8)
            lost.append(int(np.searchsorted(begins, at, side="right")) - 1)
        log = read(tmp_path, bytes(broken))
        assert points(log) == whole_but(records, lost)
        assert log.damage


@pytest.mark.parametrize(
    "pick", [[100, 102], [100, 101, 102, 103], list(range(64, 128)), list(range(2000))], ids=["two", "four", "block", "all"]
)
def test_equal_damage_in_many_records_does_not_cancel(pick: list[int], tmp_path: Path) -> None:
    records = rhythm(2000, ("loss", "lr"))
    begins = offsets(records)
    broken, lost = bytearray(b"".join(records)), [1 + 2 * i for i in pick]
    for i in lost:
        broken[begins[i + 1] - 6] ^= 0x40
    log = read(tmp_path, bytes(broken))
    assert points(log) == whole_but(records, lost)
    (damage,) = log.damage
    assert damage.what == f"{len(lost)} records whose content does not match the checksum"
    assert damage.where.startswith(f"byte {begins[lost[0]]} ")


def test_cut_off_at_every_byte(tmp_path: Path) -> None:
    records = rhythm(3, ("loss", "lr"))
    data, begins = b"".join(records), offsets(records)
    for end in range(1, len(data)):
        num_whole = int(np.searchsorted(begins, end, side="right")) - 1
        if num_whole == 0:
            with pytest.raises(GradclipError, match=r"no whole record in \d+ bytes; expected a TensorBoard event file"):
                read(tmp_path, data[:end])
            continue
        log = read(tmp_path, data[:end])
        assert points(log) == points_of(records[:num_whole])
        left = end - begins[num_whole]
        if left == 0:
            assert log.damage == ()
            continue
        (damage,) = log.damage
        of = f"{len(records[num_whole])} bytes" if left >= 12 else "its header"
        assert (damage.where, damage.what) == (f"byte {begins[num_whole]}", f"the last record ends after {left} of {of}")


@pytest.mark.parametrize("make", [lambda: rhythm(1200), lambda: irregular(1200)], ids=["rhythm", "irregular"])
def test_bytes_missing_or_too_many(make: Callable[[], list[bytes]], tmp_path: Path) -> None:
    records = make()
    data, begins = b"".join(records), offsets(records)
    rng = random.Random(5)
    for _ in range(8):
        at, length = rng.randrange(100, len(data) - 300), rng.randrange(1, 250)
        first, last = (int(np.searchsorted(begins, x, side="right")) - 1 for x in (at, at + length - 1))
        log = read(tmp_path, data[:at] + data[at + length :])
        assert points(log) == whole_but(records, range(first, last + 1))
        assert log.damage
        log = read(tmp_path, data[:at] + rng.randbytes(length) + data[at:])
        assert points(log) == whole_but(records, [] if at in begins else [first])
        assert log.damage


def header(length: int) -> bytes:
    return struct.pack("<QI", length, int(crc32c.of_lengths(np.array([length], np.uint64))[0]))


@pytest.mark.parametrize("claimed", [10**9, 2**40, 2**63 - 17, 2**64 - 1])
def test_claimed_gigabytes_are_damage_and_no_allocation(claimed: int, tmp_path: Path) -> None:
    records = rhythm(20)
    before, behind = b"".join(records[:31]), b"".join(records[31:])
    tracemalloc.start()
    log = read(tmp_path, before + header(claimed) + behind)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24
    assert points(log) == points_of(records)
    (damage,) = log.damage
    assert (damage.where, damage.what) == (f"byte {len(before)}", "12 bytes that are no valid record")
    at_the_end = read(tmp_path, before + header(claimed))
    assert [d.what for d in at_the_end.damage] == [f"the last record ends after 12 of {claimed + 16} bytes"]


def test_garbage_and_zeros_behind_the_data(tmp_path: Path) -> None:
    records = rhythm(20)
    for rest in (bytes(100_000), random.Random(6).randbytes(100_000), b"<html>" * 9):
        log = read(tmp_path, b"".join(records) + rest)
        assert points(log) == points_of(records)
        assert [d.what for d in log.damage] == [f"{len(rest)} bytes that are no valid record"]


def test_long_records_are_checked(tmp_path: Path) -> None:
    image = event(1, Summary.Value(tag="image", image={"encoded_image_string": random.Random(7).randbytes(300_000)}))
    records = [VERSION, event(0, simple("loss", 1.0)), image, event(1, simple("loss", 2.0))]
    data = bytearray(b"".join(records))
    assert read(tmp_path, bytes(data)).damage == ()
    data[offsets(records)[2] + 150_000] ^= 1
    log = read(tmp_path, bytes(data))
    assert points(log) == points_of(records)
    assert [d.lost for d in log.damage] == ["that record"]


def test_right_checksum_but_no_event(tmp_path: Path) -> None:
    odd = [record(b"\x0b\x0b\x0b\x0b\x0b"), record(b"\x2a\x7f\x0a"), *(record(b"\xff" * 30) for _ in range(12))]
    records = rhythm(5)
    log = read(tmp_path, b"".join(records[:8] + odd + records[8:]))
    assert points(log) == points_of(records)
    assert [d.what for d in log.damage] == ["14 records with a right checksum but no event inside"]


def test_forged_overlapping_records_take_linear_time(tmp_path: Path) -> None:
    # Every 16 bytes a valid header that claims the next megabyte, none of which has the right checksum.
    data = b"".join(rhythm(3)) + header(2**40) + (header(2**20) + b"evil") * 150_000
    start = time.perf_counter()
    log = read(tmp_path, data)
    assert time.perf_counter() - start < 8
    assert len(log.columns["train/loss"].at) == 3
    assert log.damage


def test_thousands_of_damaged_places_are_one_entry(tmp_path: Path) -> None:
    records = rhythm(3000, ("loss", "lr"))
    begins = offsets(records)
    data, lost = bytearray(b"".join(records)), range(2, len(records), 3)
    for i in lost:
        data[begins[i] + 9] ^= 0xFF
    log = read(tmp_path, bytes(data))
    assert points(log) == whole_but(records, lost)
    (damage,) = log.damage
    assert damage.where == f"byte {begins[2]} and {len(lost) - 1} more places"
    assert damage.what == f"{sum(len(records[i]) for i in lost)} bytes that are no valid record"


# -- which files --------------------------------------------------------------------------------------------------


def claims(path: Path, data: bytes, name: str) -> bool:
    (path / name).write_bytes(data)
    return READER.claims(open_source(path / name))


def test_claims(tmp_path: Path) -> None:
    data = b"".join(rhythm(3))
    no_clock = record(Event(file_version="brain.Event:2").SerializeToString())
    assert claims(tmp_path, data, "renamed.bin")
    assert claims(tmp_path, no_clock, "renamed")
    assert claims(tmp_path, b"\x00garbage", "events.out.tfevents.1.host")
    assert claims(tmp_path, data, "events.out.tfevents.1.host.v2")
    assert not claims(tmp_path, b"\x01" + data[1:], "renamed.bin")
    assert not claims(tmp_path, record(b"\x0a\x10an example of tf"), "train.tfrecord")
    assert not claims(tmp_path, record(b"\x09" + struct.pack("<d", -1.0) + bytes(9)), "train.tfrecord")
    assert not claims(tmp_path, random.Random(8).randbytes(4000), "model.bin")
    assert not claims(tmp_path, b"step,loss\n1,2\n", "events.out.tfevents.1.host.csv")


def test_no_scalars_is_no_error(tmp_path: Path) -> None:
    log = read(tmp_path, VERSION, NAME + ".profile-empty")
    assert (dict(log.columns), log.damage) == ({}, ())
    assert log.notes == ("none of the 1 events holds a scalar",)


@pytest.mark.parametrize(
    "data",
    [b"\x00", bytes(5000), b"version https://git-lfs.github.com/spec/v1\n", rhythm(2)[0][:20]],
    ids=["byte", "zeros", "pointer", "cut"],
)
def test_nothing_readable_is_an_error(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(GradclipError, match=f"{NAME}: no whole record in {len(data)} bytes") as caught:
        read(tmp_path, data)
    assert caught.value.hint


def test_strange_tags(tmp_path: Path) -> None:
    raw = Event(step=1, summary=Summary(value=[simple("tag", 1.0)])).SerializeToString().replace(b"tag", b"\xff\x1bg")
    assert list(read(tmp_path, VERSION + record(raw) + event(1, simple("", 2.0))).columns) == ["\\xff\x1bg", ""]


# -- checksums ----------------------------------------------------------------------------------------------------

# RFC 3720, appendix B.4, and the usual check value.
KNOWN = {bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, bytes(range(32)): 0x46DD794E, b"123456789": 0xE3069283, b"": 0}


def slow_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def spans() -> Iterator[tuple[int, int]]:
    for length in (*range(8), 31, 59, 60, 61, 63, 64, 65, 127, 128, 129, 1000):
        yield from ((start, length) for start in (0, 1, 60, 64, 200))


def test_checksums_of_spans() -> None:
    for message, crc in KNOWN.items():
        data = np.frombuffer(b"....." + message, np.uint8)
        assert crc32c.of_spans(data, np.array([5]), np.array([len(message)])).tolist() == [crc]
        assert slow_crc32c(message) == crc
    data = random.Random(9).randbytes(1200)
    starts, lengths = np.array(list(spans())).T
    expected = [slow_crc32c(data[s : s + n]) for s, n in spans()]
    assert crc32c.of_spans(np.frombuffer(data, np.uint8), starts, lengths).tolist() == expected


@pytest.mark.parametrize("num_rows", [1, 5, 2000])
@pytest.mark.parametrize("width", [4, 5, 8, 33, 300, crc32c.MAX_WIDTH])
def test_checksums_of_rows(width: int, num_rows: int) -> None:
    rng = np.random.default_rng(10)
    for num_varying in (0, 1, 3, 4, min(width, 40)):
        rows = np.tile(rng.integers(0, 256, width, np.uint8), (num_rows, 1))
        columns = rng.choice(width, num_varying, replace=False)
        rows[:, columns] = rng.integers(0, 256, (num_rows, num_varying), np.uint8)
        crcs = crc32c.of_rows(Words(rows), framing.varying_bits(rows)).tolist()
        for i in {0, num_rows // 2, num_rows - 1}:
            assert crcs[i] == slow_crc32c(rows[i].tobytes())


# -- one run in several directories ---------------------------------------------------------------------------------


def written(folder: Path, tag: str, values: Sequence[float]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_bytes(b"".join([VERSION, *(event(s, simple(tag, v)) for s, v in enumerate(values))]))


@pytest.mark.parametrize("tag", ["loss", "model/loss"])
def test_what_add_scalars_wrote_is_of_its_writers_run(tmp_path: Path, tag: str) -> None:
    folder = tag.replace("/", "_")
    train, val, norm = ([f + i / 100 for i in range(50)] for f in (2.0, 3.0, 0.5))
    written(tmp_path / "run", "grad_norm", norm)
    written(tmp_path / "run" / f"{folder}_train", tag, train)
    written(tmp_path / "run" / f"{folder}_val", tag, val)
    (run,) = read_runs(tmp_path)
    assert run.source == str(tmp_path / "run")
    assert run.series["loss"].key == f"{tag}/train"
    assert run.series["loss"].values.tolist() == pytest.approx(train)
    assert run.series["grad_norm"].values.tolist() == pytest.approx(norm)


def test_runs_called_after_their_loss_stay_their_own(tmp_path: Path) -> None:
    for name in ("loss_a", "loss_b"):
        written(tmp_path / name, "loss", [2.0 + (name == "loss_a") * i for i in range(50)])
    assert [r.series["loss"].key for r in read_runs(tmp_path)] == ["loss", "loss"]
