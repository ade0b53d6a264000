"""One small valid file of every format, all of the same run: what format tests and mutation tests start from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

N = 60
STEPS = np.arange(1, N + 1)
LOSS = np.round(2.0 + 2.0 * np.exp(-STEPS / 15) + 0.01 * np.sin(STEPS * 1.7), 4)
NORM = np.round(0.5 + 0.1 * np.cos(STEPS * 2.3), 4)
LR = np.full(N, 0.001)


def tensorboard(path: Path) -> Path:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    target = path / "events.out.tfevents.1700000000.host.1.0"
    with target.open("wb") as f:
        writer = RecordWriter(f)
        writer.write(Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())
        for s, loss, norm, lr in zip(STEPS.tolist(), LOSS, NORM, LR, strict=True):
            for tag, value in (("train/loss", loss), ("train/grad_norm", norm), ("train/lr", lr)):
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=float(value))])
                writer.write(Event(wall_time=1.7e9 + s, step=s, summary=summary).SerializeToString())
        writer.flush()
    return target


def _rows() -> list[dict[str, float]]:
    return [
        {"step": s, "loss": float(a), "grad_norm": float(b), "lr": float(c)}
        for s, a, b, c in zip(STEPS.tolist(), LOSS, NORM, LR, strict=True)
    ]


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def csv(path: Path) -> Path:
    return _write(path / "run.csv", "step,loss,grad_norm,lr\n" + "".join(",".join(map(repr, r.values())) + "\n" for r in _rows()))


def jsonlines(path: Path) -> Path:
    return _write(path / "run.jsonl", "".join(json.dumps(r) + "\n" for r in _rows()))


def json_array(path: Path) -> Path:
    return _write(path / "run.json", json.dumps(_rows()))


def trainer_state(path: Path) -> Path:
    history = [
        {"epoch": r["step"] / N, "grad_norm": r["grad_norm"], "learning_rate": r["lr"], "loss": r["loss"], "step": r["step"]}
        for r in _rows()
    ]
    return _write(path / "trainer_state.json", json.dumps({"global_step": N, "log_history": history, "logging_steps": 1}, indent=2))


def golden_values(path: Path) -> Path:
    def series(values: np.ndarray) -> dict[str, object]:
        return {
            "start_step": 1,
            "end_step": N,
            "step_interval": 1,
            "values": {str(s): float(v) for s, v in zip(STEPS, values, strict=True)},
        }

    return _write(path / "golden.json", json.dumps({"lm loss": series(LOSS), "grad-norm": series(NORM)}))


def parquet(path: Path) -> Path:
    import pyarrow as pa
    from pyarrow import parquet as pq

    target = path / "run.parquet"
    pq.write_table(pa.Table.from_pylist(_rows()), target)
    return target


def mlflow(path: Path) -> Path:
    return _write(path / "loss", "".join(f"{1700000000000 + s} {v} {s}\n" for s, v in zip(STEPS, LOSS, strict=True)))


def wandb(path: Path) -> Path:
    from tests.test_reader_wandb import framed, history

    target = path / "run-abc.wandb"
    records = (history(i, int(r["step"]), **{"train/loss": r["loss"], "train/grad_norm": r["grad_norm"]}) for i, r in enumerate(_rows(), 1))
    target.write_bytes(framed(records))
    return target


def megatron(path: Path) -> Path:
    return _write(
        path / "megatron.log",
        "".join(
            f" iteration {r['step']:8}/    1000 | consumed samples: {r['step'] * 1024:12} | elapsed time per iteration (ms): 1239.6 | "
            f"learning rate: {r['lr']:.3E} | global batch size:  1024 | lm loss: {r['loss']:.6E} | loss scale: 1.0 | "
            f"grad norm: {r['grad_norm']:.4f} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
            for r in _rows()
        ),
    )


def hf_console(path: Path) -> Path:
    return _write(
        path / "hf.log",
        "".join(
            f"{{'loss': {r['loss']}, 'grad_norm': {r['grad_norm']}, 'learning_rate': {r['lr']}, 'epoch': {r['step'] / N:.2f}}}\n"
            for r in _rows()
        ),
    )


def llmc(path: Path) -> Path:
    return _write(
        path / "main.log", "".join(f"s:{r['step']} trl:{r['loss']:.4f} lr:{r['lr']:.6f} norm:{r['grad_norm']:.4f}\n" for r in _rows())
    )


def fairseq(path: Path) -> Path:
    return _write(
        path / "fairseq.log",
        "".join(
            f'[2022-08-04 15:19:43,969][train_inner][INFO] - {{"epoch": 1, "update": 0.1, "loss": "{r["loss"]}", "num_updates": "{r["step"]}", '
            f'"lr": "{r["lr"]}", "gnorm": "{r["grad_norm"]}", "clip": "0"}}\n'
            for r in _rows()
        ),
    )


def keyvalue(path: Path) -> Path:
    return _write(
        path / "train.log", "".join(f"INFO step={r['step']} loss={r['loss']} grad_norm={r['grad_norm']} lr={r['lr']}\n" for r in _rows())
    )


FILES: dict[str, Callable[[Path], Path]] = {
    f.__name__: f
    for f in (
        tensorboard,
        csv,
        jsonlines,
        json_array,
        trainer_state,
        golden_values,
        parquet,
        mlflow,
        megatron,
        hf_console,
        llmc,
        fairseq,
        keyvalue,
    )
}
