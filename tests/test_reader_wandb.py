"""W&B offline files: written by a small writer of the same framing here, and by the real package where it is installed."""

from __future__ import annotations

import json
import math
import random
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import GRAD_NORM, LOSS, NormStage, Sampling
from gradclip_cli.readers import wire
from gradclip_cli.readers.log import Log, Wanted
from gradclip_cli.readers.open import open_source
from gradclip_cli.readers.wandb import READER
from tests.test_reader_csv import cells, values

BLOCK = 1 << 15


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes | str | int | float) -> bytes:
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def item(key: str | tuple[str, ...], value: object) -> bytes:
    name = field(1, key) if isinstance(key, str) else b"".join(field(2, k) for k in key)
    return name + field(16, json.dumps(value))


def history(num: int, step: int, **logged: object) -> bytes:
    items = [item(k, v) for k, v in logged.items()] + [item("_step", step)]
    return field(1, num) + field(2, b"".join(field(1, i) for i in items) + field(2, field(1, step)))


def config(num: int, **entries: object) -> bytes:
    return field(1, num) + field(17, field(1, "abc") + field(4, b"".join(field(1, item(k, v)) for k, v in entries.items())))


def output(num: int, size: int) -> bytes:
    return field(1, num) + field(4, field(2, "x" * size))


def framed(records: Iterable[bytes]) -> bytes:
    """LevelDB log framing, chunk types 1 to 4, behind W&B's file header."""
    out = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for record in records:
        first = True
        while True:
            left = BLOCK - len(out) % BLOCK
            if left < 7:
                out += b"\0" * left
                left = BLOCK
            chunk, record = record[: left - 7], record[left - 7 :]
            kind = (1 if first else 4) if not record else (2 if first else 3)
            out += struct.pack("<IHB", zlib.crc32(bytes([kind]) + chunk), len(chunk), kind) + chunk
            first = False
            if not record:
                break
    return bytes(out)


def read(path: Path, data: bytes, wanted: Wanted | None = None) -> Log:
    (path / "run-abc.wandb").write_bytes(data)
    source = open_source(path / "run-abc.wandb")
    assert READER.claims(source)
    return READER.read(source, wanted or Wanted())


def run(n: int = 100, size: int = 1000) -> list[bytes]:
    """A run of n steps, each with as much console output between."""
    out = [config(1, max_grad_norm=1.0)]
    for i in range(n):
        out += [history(2 * i, i, loss=2.5 - i / 1000, grad_norm=0.5), output(2 * i + 1, size)]
    return out


def test_history(tmp_path: Path) -> None:
    rows = [history(1, 0, loss=2.5, grad_norm=math.nan, note="a"), history(2, 3, loss=2.25), history(3, 4, val_loss=9.0)]
    log = read(tmp_path, framed(rows))
    assert cells(log)["loss"] == [(0, 2.5), (1, 2.25)]
    assert math.isnan(values(log, "grad_norm")[0])
    assert cells(log)["_step"] == [(0, 0.0), (1, 3.0), (2, 4.0)]
    assert "val_loss" not in log.columns
    assert log.damage == ()


def test_what_is_no_number_is_told(tmp_path: Path) -> None:
    rows = [history(i, i, loss=2.5 if i < 10 else "overflow", grad_norm="NaN" if i == 3 else 0.5) for i in range(20)]
    log = read(tmp_path, framed(rows))
    assert math.isnan(values(log, "grad_norm")[3])
    assert [d.where for d in log.damage] == ["row 11"]
    assert log.notes == ("'loss' holds text in 10 rows from row 11 on, such as 'overflow': not read",)


def test_nested_keys_typed_values_and_steps_outside_the_items(tmp_path: Path) -> None:
    items = [
        item(("train", "loss"), 2.5),
        field(2, "train/grad_norm") + field(6, 0.5),
        field(2, "train/lr") + field(8, "0.125"),
        field(1, "train/global_step") + field(5, 2 * 7),  # zigzag
        field(1, "parts") + field(16, '{"loss_a": 1.5, "image": {"_type": "image", "size": 3}}'),
        field(1, "flag") + field(4, 1),
        field(1, "inf_loss") + field(16, "Infinity"),
    ]
    row = field(1, 1) + field(2, b"".join(field(1, i) for i in items) + field(2, field(1, 41)))
    log = read(tmp_path, framed([row, row]), Wanted(loss="train/loss"))
    expected = {"train/loss": 2.5, "train/grad_norm": 0.5, "train/lr": 0.125, "train/global_step": 7, "parts/loss_a": 1.5, "_step": 41}
    for key, value in expected.items():
        assert cells(log)[key] == [(0, value), (1, value)], key
    # The run's own step comes before W&B's count of calls.
    assert list(log.columns)[-1] == "_step"


def test_records_over_blocks(tmp_path: Path) -> None:
    log = read(tmp_path, framed([history(1, 0, loss=2.5), output(2, 100_000), *run(200, 321)]))
    assert values(log, "loss") == [2.5, *[2.5 - i / 1000 for i in range(200)]]
    assert log.damage == ()


@pytest.mark.parametrize("left", range(9))
def test_a_block_that_ends_early(tmp_path: Path, left: int) -> None:
    first = history(1, 0, loss=2.5)
    filler = BLOCK - 7 - 7 - len(first) - 7 - left - len(output(2, 30_000)) + 30_000
    data = framed([first, output(2, filler), history(3, 1, loss=2.25)])
    log = read(tmp_path, data)
    assert values(log, "loss") == [2.5, 2.25]
    assert log.damage == ()


def test_what_the_configuration_tells(tmp_path: Path) -> None:
    rows = [history(i, i, **{"train/loss": 2.5, "train/grad_norm": 0.5}) for i in range(3)]
    log = read(tmp_path, framed([config(1, max_grad_norm=1.0, transformers_version="4.50", logging_steps=10), *rows]))
    assert log.max_norm == 1.0
    assert log.norm_stage is NormStage.PRE_CLIP
    assert log.sampling[LOSS] is Sampling.WINDOW_MEAN
    assert log.sampling[GRAD_NORM] is Sampling.INSTANT
    log = read(tmp_path, framed([config(1, optim={"grad_clip": 0.25}, seed=3), *rows]))
    assert (log.max_norm, log.norm_stage) == (0.25, NormStage.UNKNOWN)
    for entries in ({"grad_clip": 0.25, "max_norm": 0.5}, {"grad_clip": True}, {"grad_clip": 0}, {"grad_clip": "1.0"}):
        assert read(tmp_path, framed([config(1, **entries), *rows])).max_norm is None


def test_a_flipped_bit_costs_its_block_only(tmp_path: Path) -> None:
    data = bytearray(framed(run()))
    data[BLOCK + 2000] ^= 4
    log = read(tmp_path, bytes(data))
    (damage,) = log.damage
    assert "checksum" in damage.what
    assert damage.lost == f"the records up to byte {2 * BLOCK}"
    kept = [at for at, v in cells(log)["loss"]]
    steps = values(log, "_step")
    assert kept == list(range(len(kept)))
    assert 60 < len(kept) < 100
    assert steps[-1] == 99
    assert values(log, "loss") == [2.5 - s / 1000 for s in steps]


def test_a_file_that_grows_still(tmp_path: Path) -> None:
    data = framed([*run(10), history(21, 10, loss=2.0)])
    log = read(tmp_path, data[:-5])
    assert len(values(log, "loss")) == 10
    assert [d.what for d in log.damage] == ["the file ends within a record"]
    # What is cut is console output: nothing is lost.
    assert read(tmp_path, framed(run(10))[:-5]).damage == ()
    assert read(tmp_path, framed([*run(10), output(21, 100_000)])[: 2 * BLOCK]).damage == ()
    assert len(read(tmp_path, framed([*run(10), history(21, 10, loss=2.0, note="x" * 90_000)])[: 2 * BLOCK]).damage) == 1


def test_zeros_at_the_end(tmp_path: Path) -> None:
    log = read(tmp_path, framed(run(10)) + bytes(100_000))
    assert len(values(log, "loss")) == 10
    assert "100000 zero bytes" in log.damage[0].what


def test_lengths_that_nothing_backs(tmp_path: Path) -> None:
    for claim in (varint(1 << 40), varint(1 << 31), b"\xff" * 9 + b"\x01", b"\xff" * 20):
        tracemalloc.start()
        log = read(tmp_path, framed([*run(3), field(1, 9) + varint(2 << 3 | 2) + claim, history(9, 3, loss=2.0)]))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(values(log, "loss")) == 4
        assert "no protocol buffer" in log.damage[0].what
        assert peak < 1 << 20


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(GradclipError, match="no logged step"):
        read(tmp_path, framed([config(1), output(2, 10)]))
    with pytest.raises(GradclipError, match="no logged step"):
        read(tmp_path, framed([]))
    with pytest.raises(GradclipError, match="damaged header"):
        read(tmp_path, b":W&Bxx" + framed(run(3))[6:])
    with pytest.raises(GradclipError, match="nothing readable"):
        read(tmp_path, framed([])[:7] + random.Random(0).randbytes(1000))


def test_a_value_nested_very_deep(tmp_path: Path) -> None:
    row = field(1, 1) + field(2, field(1, field(1, "loss") + field(16, "[" * 30_000)) + field(1, item("grad_norm", 0.5)))
    assert values(read(tmp_path, framed([row])), "grad_norm") == [0.5]


def test_random_damage(tmp_path: Path) -> None:
    good = framed(run(100))
    rng = random.Random(1)
    for _ in range(60):
        bad = bytearray(good)
        for _ in range(rng.choice([1, 2, 20])):
            bad[rng.randrange(7, len(bad))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.3:
            del bad[rng.randrange(7, len(bad)) :]
        try:
            log = read(tmp_path, bytes(bad))
        except GradclipError as e:
            assert "expected the history of a run" in e.message
            continue
        # Never a wrong value: what is there was logged so.
        steps = dict(cells(log)["_step"])
        assert all(v == 2.5 - steps[at] / 1000 for at, v in cells(log)["loss"])


def test_records_that_end_anywhere(tmp_path: Path) -> None:
    whole = history(1, 0, loss=2.5, grad_norm=0.5)
    for end in range(len(whole)):
        # The cut item keeps a length that fits, so that what is wrong lies inside.
        cut = field(1, 1) + field(2, field(1, item("loss", 2.25)) + field(1, whole[6:end]))
        log = read(tmp_path, framed([history(1, 0, loss=2.5), cut]))
        assert values(log, "loss")[0] == 2.5
        assert len(log.damage) <= 1


def test_ten_thousand_steps_in_a_moment(tmp_path: Path) -> None:
    data = framed(history(i, i, loss=2.5, grad_norm=0.5, lr=0.1) for i in range(10_000))
    start = time.perf_counter()
    assert len(values(read(tmp_path, data), "loss")) == 10_000
    assert time.perf_counter() - start < 5


def test_wire_rejects_what_is_no_message() -> None:
    assert list(wire.fields(field(1, 300) + field(2, "ab") + field(3, 0.5))) == [(1, 0, 300), (2, 2, b"ab"), (3, 1, struct.pack("<d", 0.5))]
    for bad in (b"\x0a", b"\x0a\x05ab", b"\x08", b"\x08\xff", b"\x09abc", b"\x0d\x00", b"\x0b", b"\xff" * 11):
        with pytest.raises(wire.WireError):
            list(wire.fields(bad))


# The real package -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("wandb")
    folder = tmp_path_factory.mktemp("wandb")
    script = """if True:
        import math, wandb
        run = wandb.init(project="p", mode="offline", config={"clip": {"max_grad_norm": 0.5}, "seed": 1})
        for i in range(300):
            loss = math.nan if i == 200 else math.inf if i == 201 else 2.5 - i / 1000
            run.log({"train/loss": loss, "train/grad_norm": 0.5 + i, "nested": {"part": {"deep": i}}, "text": "x" * 100, "flag": True})
        run.log({"h": wandb.Histogram([1, 2, 3]), "eval/loss": 3.0}, step=400)
        run.finish()
    """
    env = {"WANDB_SILENT": "true", "WANDB_DIR": str(folder), "HOME": str(folder), "WANDB_MODE": "offline", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    files = list(folder.glob("wandb/offline-run-*/*.wandb"))
    if done.returncode or not files:
        pytest.skip(f"wandb does not run offline here: {done.stderr[-200:]}")
    return files[0]


def test_what_the_package_wrote(real: Path) -> None:
    source = open_source(real)
    assert READER.claims(source)
    log = READER.read(source, Wanted(loss="train/loss", lr="nested/part/deep"))
    assert values(log, "train/loss")[:200] == [2.5 - i / 1000 for i in range(200)]
    assert math.isnan(values(log, "train/loss")[200])
    assert values(log, "train/loss")[201] == math.inf
    assert values(log, "train/grad_norm") == [0.5 + i for i in range(300)]
    assert values(log, "nested/part/deep") == list(range(300))
    assert values(log, "_step") == [*range(300), 400]
    assert log.max_norm == 0.5
    assert (log.damage, log.notes) == ((), ())


def test_as_the_package_reads_it(real: Path) -> None:
    """Every history record, decoded with the package's own schema, holds what we read."""
    from wandb.proto import wandb_internal_pb2

    from gradclip_cli.readers.wandb import _Contents, _records

    found = _Contents()
    theirs = []
    for _, data in _records(real.read_bytes(), found):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            theirs.append({i.key or "/".join(i.nested_key): i.value_json or str(i.number or i.integer) for i in record.history.item})
    log = READER.read(open_source(real), Wanted())
    assert found.num_damaged == 0
    for at, value in cells(log)["train/grad_norm"]:
        assert float(theirs[at]["train/grad_norm"]) == value
    assert len(theirs) == 301
