"""Directories: several runs, several files of one run, files that are no runs."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from gradclip_cli import GradclipError, read_run, read_runs
from tests import cases


def sub(path: Path, name: str) -> Path:
    folder = path / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_several_runs_give_several_results(tmp_path: Path) -> None:
    cases.csv(sub(tmp_path, "a"))
    cases.jsonlines(sub(tmp_path, "b"))
    text = (tmp_path / "b" / "run.jsonl").read_text().replace('"loss": 2', '"loss": 3')
    (tmp_path / "b" / "run.jsonl").write_text(text)
    cases.tensorboard(sub(tmp_path, "c/version_0"))
    runs = read_runs(tmp_path)
    assert len(runs) == 2, "the event file is the same run as the CSV"
    assert any("same run" in n for r in runs for n in r.notes)


def test_configuration_beside_a_run_is_no_run(tmp_path: Path) -> None:
    cases.csv(tmp_path)
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / "requirements.txt").write_text("torch==2.4\n")
    (tmp_path / "notes.txt").write_text("the loss was bad\n")
    (tmp_path / "weights.bin").write_bytes(os.urandom(1000))
    assert read_run(tmp_path).format == "csv"


def test_event_files_of_one_run_are_one_run(tmp_path: Path) -> None:
    first = cases.tensorboard(tmp_path)
    data = first.read_bytes()
    first.unlink()
    # The writer was closed and opened again: two files, the later one by its time stamp.
    (tmp_path / "events.out.tfevents.1700000001.host.1.0").write_bytes(data)
    (tmp_path / "events.out.tfevents.1700000000.host.1.0").write_bytes(data[: len(data) // 2])
    (run,) = [r for r in read_runs(tmp_path) if len(r.series["loss"]) == cases.N]
    assert run.series["loss"].steps.tolist() == cases.STEPS.tolist()


def test_rotated_logs_are_one_run(tmp_path: Path) -> None:
    lines = cases.keyvalue(tmp_path).read_text().splitlines(keepends=True)
    (tmp_path / "train.log").write_text("".join(lines[40:]))
    (tmp_path / "train.log.1").write_text("".join(lines[20:40]))
    with gzip.open(tmp_path / "train.log.2.gz", "wt") as f:
        f.write("".join(lines[:20]))
    run = read_run(tmp_path)
    assert run.series["loss"].steps.tolist() == cases.STEPS.tolist()


def test_the_last_checkpoint_speaks_for_all(tmp_path: Path) -> None:
    whole = json.loads(cases.trainer_state(tmp_path).read_text())
    (tmp_path / "trainer_state.json").unlink()
    for step in (20, 40, 60):
        part = dict(whole, global_step=step, log_history=whole["log_history"][:step])
        (sub(tmp_path, f"checkpoint-{step}") / "trainer_state.json").write_text(json.dumps(part))
    assert len(read_run(tmp_path).series["loss"]) == 60


def test_mlflow_metrics_of_a_run_are_one_run(tmp_path: Path) -> None:
    metrics = sub(tmp_path, "mlruns/0/abc123/metrics")
    cases.mlflow(metrics)
    text = "".join(f"{1700000000000 + s} {v} {s}\n" for s, v in zip(cases.STEPS, cases.NORM, strict=True))
    (sub(metrics, "train") / "grad_norm").write_text(text)
    (sub(tmp_path, "mlruns/0/abc123/params") / "lr").write_text("0.1")
    (run,) = read_runs(tmp_path / "mlruns")
    assert len(run.series["loss"]) == len(run.series["grad_norm"]) == cases.N


def test_links_are_not_followed_and_hidden_folders_are_not_searched(tmp_path: Path) -> None:
    outside = cases.csv(sub(tmp_path, "outside"))
    inside = sub(tmp_path, "inside")
    (inside / "link.csv").symlink_to(outside)
    (inside / "linked").symlink_to(outside.parent)
    cases.csv(sub(inside, ".git"))
    with pytest.raises(GradclipError, match="no training run"):
        read_runs(inside)
    # A link that was named is meant.
    assert read_run(inside / "link.csv").format == "csv"


@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02\x03" * 100, b"just some words\n"])
def test_a_file_that_is_no_log(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.log").write_bytes(content)
    with pytest.raises(GradclipError):
        read_runs(tmp_path / "run.log")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_no_permission(tmp_path: Path) -> None:
    path = cases.csv(tmp_path)
    path.chmod(0)
    with pytest.raises(GradclipError, match="cannot be read"):
        read_runs(path)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GradclipError, match="found a pipe"):
        read_runs(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["run.csv", "run.log", "events.out.tfevents.1700000000.host.1.0"])
def test_a_file_that_is_mostly_a_hole_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("step,loss\n1,2.5\n")
    os.truncate(path, 8 << 30)
    with path.open("rb") as f:
        if os.lseek(f.fileno(), 0, os.SEEK_HOLE) == 8 << 30:
            pytest.skip("a file system without holes")
    with pytest.raises(GradclipError, match=r"of its 8,589,934,592 bytes were ever written"):
        read_runs(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("history.json", '{"loss": [3, 2, 1], "val_loss": [4, 3, 2]}'),
        ("history.csv", ",loss,accuracy,val_loss\n0,3,0.1,4\n1,2,0.2,3\n2,1,0.3,2\n"),
        ("history.jsonl", "".join(f'{{"loss": {v}, "val_loss": {v + 1}}}\n' for v in (3, 2, 1))),
    ],
)
def test_a_validation_loss_beside_it_tells_that_a_loss_is_of_a_training(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    (run,) = read_runs(tmp_path / name)
    assert run.series["loss"].values.tolist() == [3, 2, 1]


def test_gzip_and_utf16(tmp_path: Path) -> None:
    data = cases.csv(tmp_path).read_bytes()
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(data))
    (tmp_path / "w.csv").write_bytes(data.decode().encode("utf-16"))
    for name in ("z.csv.gz", "w.csv"):
        assert len(read_run(tmp_path / name).series["loss"]) == cases.N
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(data)[:-200])
    assert 10 < len(read_run(tmp_path / "cut.csv.gz").series["loss"]) < cases.N


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "bomb.log.gz", "wb") as f:
        for _ in range(300):
            f.write(bytes(1 << 20))
    with pytest.raises(GradclipError):
        read_runs(tmp_path / "bomb.log.gz")


def test_a_text_log_with_a_block_of_zeros(tmp_path: Path) -> None:
    data = cases.keyvalue(tmp_path).read_bytes()
    (tmp_path / "hurt.log").write_bytes(data[:1000] + bytes(4096) + data[1000:])
    assert len(read_run(tmp_path / "hurt.log").series["loss"]) >= cases.N - 1


def test_damaged_gzip_is_said(tmp_path: Path) -> None:
    data = gzip.compress(cases.csv(tmp_path).read_bytes())
    bad_sum = data[:-8] + b"\x00\x01\x02\x03" + data[-4:]
    for broken, kept in ((data[: len(data) * 2 // 3], 20), (bad_sum, cases.N), (data + b"trailing", cases.N)):
        (tmp_path / "x.csv.gz").write_bytes(broken)
        run = read_run(tmp_path / "x.csv.gz")
        assert kept <= len(run.series["loss"]) <= cases.N
        assert run.damage
    (tmp_path / "x.csv.gz").write_bytes(data + bytes(512))
    assert not read_run(tmp_path / "x.csv.gz").damage, "padding with zeros is no damage"


@pytest.mark.parametrize(
    ("name", "text", "bound"),
    [
        ("hparams.yaml", "lr: 0.1\ngradient_clip_val: 0.5\n", 0.5),
        ("config.json", '{\n  "max_grad_norm": 1.0,\n  "lr": 2\n}', 1.0),
        ("config.yaml", "optim:\n  max_grad_norm: 1.0\nother:\n  grad_clip: 2.0\n", None),
        ("config.yaml", "max_grad_norm: null\n", None),
        ("notes.yaml", "max_grad_norm: 1.0\n", None),
    ],
)
def test_max_norm_from_a_configuration_beside_the_log(tmp_path: Path, name: str, text: str, bound: float | None) -> None:
    (tmp_path / name).write_text(text)
    run = read_run(cases.csv(tmp_path))
    assert run.max_norm == bound
    assert any(name in n for n in run.notes) is (bound is not None)
