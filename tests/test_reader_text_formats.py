"""Every kind of console log: the lines as its trainer prints them, and what is read from them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradclip_cli.model.run import GRAD_NORM, LOSS, LOSS_SCALE, LR, NormStage, Run, Sampling
from gradclip_cli.readers import READERS
from gradclip_cli.readers.assemble import assemble
from gradclip_cli.readers.discover import choose
from gradclip_cli.readers.log import Log, Source, Wanted
from gradclip_cli.readers.open import open_source
from gradclip_cli.readers.text.formats import FORMATS

N = 12
LOSSES = [round(3.0 - 0.1 * i, 4) for i in range(N)]
NORMS = [round(0.5 + 0.01 * (i % 5), 4) for i in range(N)]
RATES = [round(1e-4 * (i + 1), 8) for i in range(N)]


def source_of(folder: Path, text: str | bytes, name: str = "train.log") -> Source:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_source(path)


def log_of(folder: Path, text: str | bytes, wanted: Wanted | None = None) -> Log:
    source = source_of(folder, text)
    reader = choose(source, READERS)
    assert reader is not None
    return reader.read(source, wanted or Wanted())


def run_of(folder: Path, text: str | bytes, wanted: Wanted | None = None) -> Run:
    (run,) = assemble("log", log_of(folder, text, wanted), wanted or Wanted())
    return run


def lines(line: Callable[[int, float, float, float], str], *, begin: str = "", end: str = "") -> str:
    return begin + "".join(line(i, *values) + "\n" for i, values in enumerate(zip(LOSSES, NORMS, RATES, strict=True), 1)) + end


MEGATRON = lines(
    lambda i, a, b, c: (
        f" iteration {i:8d}/    1000 | consumed samples: {i * 64:12d} | elapsed time per iteration (ms): 1234.5 | learning rate: {c:.3E} | "
        f"global batch size:    64 | lm loss: {a:.6E} | loss scale: 1024.0 | grad norm: {b:.3f} | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |\ntime (ms) | forward-compute: 281.05 | backward-compute: 748.52"
    ),
    begin="------------------------ arguments ------------------------\n  clip_grad ....................................... 1.0\n"
    "  lr .............................................. 0.0001\n  loss_scale ...................................... None\n",
    end=" validation loss at iteration 12 | lm loss value: 9.9E+00 | lm loss PPL: 9.9E+02 |\n",
)
DATE = "2025-01-02 03:04:05,678"


def epochs(line: Callable[[int, int, float, float, float], str], *, end: str = "") -> str:
    """Two epochs of six lines."""
    return "".join(line(e + 1, i, LOSSES[6 * e + i], NORMS[6 * e + i], RATES[6 * e + i]) + "\n" for e in range(2) for i in range(6)) + end


# name of the format -> text, step key, whether it logs a norm and a rate
CASES: dict[str, tuple[str, str | None, bool, bool]] = {
    "megatron": (MEGATRON, "iteration", True, True),
    "huggingface-console": (
        lines(
            lambda i, a, b, c: (
                f"\r {i}%|#   | {i * 10}/120 [00:{i:02d}<01:00,  1.12it/s]\r{' ' * 30}\r"
                f"{{'loss': {a}, 'grad_norm': {b}, 'learning_rate': {c}, 'epoch': {i / 40}}}"
            ),
            end="{'eval_loss': 9.9, 'eval_runtime': 1.0, 'epoch': 0.3}\n{'train_runtime': 99.0, 'train_loss': 9.5, 'epoch': 0.3}\n",
        ),
        "bar",
        True,
        True,
    ),
    "fairseq": (
        lines(
            lambda i, a, b, c: (
                f"2021-01-02 03:04:05 | INFO | train_inner | epoch 001:    {i * 10} / 3000 loss={a}, nll_loss={a / 2}, ppl=9.1, wps=1000, "
                f"num_updates={i * 10}, lr={c}, gnorm={b}, clip=0, loss_scale=64, train_wall=2, wall=9"
            ),
            end="2021-01-02 03:04:05 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 9.9 | num_updates 120\n"
            "2021-01-02 03:04:05 | INFO | train | epoch 001 | loss 9.8 | nll_loss 4 | num_updates 120 | lr 0.1 | gnorm 7.7 | clip 0\n",
        ),
        "num_updates",
        True,
        True,
    ),
    "nanogpt": (
        lines(lambda i, a, b, c: f"iter {i}: loss {a:.4f}, time 21.11ms, mfu 30.01%", begin="step 0: train loss 10.9, val loss 10.8\n"),
        "iter",
        False,
        False,
    ),
    "build-nanogpt": (
        lines(
            lambda i, a, b, c: f"step {i:5d} | loss: {a:.6f} | lr {c:.4e} | norm: {b:.4f} | dt: 400.21ms | tok/sec: 1306768.36",
            begin="validation loss: 10.9\n",
        ),
        "step",
        True,
        True,
    ),
    "llm.c": (
        lines(
            lambda i, a, b, c: (
                f"step {i:4d}/20000 | loss {a:.6f} (+nanz)| norm {b:.4f} (-1.23z)| lr {c:.2e} | 123.45 ms | 50.1% bf16 MFU | 4321 tok/s"
            ),
            begin="val loss 11.0\n",
        ),
        "step",
        True,
        True,
    ),
    "modded-nanogpt": (
        lines(
            lambda i, a, b, c: f"step:{i}/1845 train_loss:{a:.4f} train_time:{i * 60}ms step_avg:nanms",
            end="step:12/1845 val_loss:9.9 train_time:99ms step_avg:60ms\n",
        ),
        "step",
        False,
        False,
    ),
    "nanochat": (
        lines(
            lambda i, a, b, c: (
                f"step {i:05d}/00050 ({i * 2:.2f}%) | loss: {a:.6f} | grad norm: {b:.4f} | lrm: 1.00 | dt: 5.20ms | tok/sec: 24,595 | mfu: 0.00"
            )
        ),
        "step",
        True,
        False,
    ),
    "transformer-xl": (
        lines(
            lambda i, a, b, c: (
                f"| epoch   1 step {i * 200:8d} | {i * 200:6d} batches | lr {c:.3g} | ms/batch 427.57 | loss {a:5.2f} | ppl {9.1:9.3f}"
            ),
            end="| Eval   1 at step     4000 | time: 2034.38s | valid loss  9.28 | valid ppl 99.9\n",
        ),
        "step",
        False,
        True,
    ),
    "maxtext": (
        lines(lambda i, a, b, c: f"completed step: {i}, seconds: 1.234, TFLOP/s/device: 120.1, total_weights: 65536, loss: {a}"),
        "step",
        False,
        False,
    ),
    "torchtitan": (
        lines(
            lambda i, a, b, c: (
                f"[rank0]:[titan] {DATE} - root - INFO - \x1b[31mstep: {i:2d}  \x1b[32mloss: {a:7.4f}  "
                f"\x1b[38;2;180;60;0mgrad_norm: {b:7.4f}  \x1b[33mmemory:  1.18GiB(1.24%)  \x1b[34mtps: 1,234  \x1b[35mmfu: 0.16%\x1b[39m"
            )
        ),
        "step",
        True,
        False,
    ),
    "torchtune": (
        lines(lambda i, a, b, c: f"Step {i} | loss:{a} lr:{c} tokens_per_second_per_gpu:1234.5 grad_norm:{b} "),
        "Step",
        True,
        True,
    ),
    "lightning-bar": (
        "".join(
            f"\rEpoch 0:  {i}%|##        | {i}/100 [00:{i:02d}<01:00,  1.04it/s, v_num=4, train_loss_step={shown:.4f}]"
            for i, (before, a) in enumerate(zip([9.9, *LOSSES], LOSSES, strict=False), 1)
            for shown in (before, a)
        )
        + "\n[Check] loss: nan=False, inf=False, value=1.4e-27\n" * 5,
        "bar",
        False,
        False,
    ),
    "pytorch-examples": (
        epochs(
            lambda e, i, a, b, c: (
                f"Epoch: [{e - 1}][{i:5d}/6]\tTime  0.52 (  1.23)\tData  0.21 (  0.91)\tLoss {a:.4e} (6.9000e+00)\tAcc@1   0.39 (  0.20)"
            ),
            end="Test: [  0/196]\tTime  3.1 (  3.1)\tLoss 9.9000e+00 (9.9000e+00)\n" * 3,
        ),
        "step",
        False,
        False,
    ),
    "timm": (
        lines(
            lambda i, a, b, c: (
                f"Train: 0 [{i * 50:4d}/1251 ({i * 4:3d}%)]  Loss: {a:.3f} (6.92)  Time: 0.391s, 2618.93/s  (0.402s, 2545.22/s)  LR: {c:.3e}"
            )
        ),
        "iter",
        False,
        True,
    ),
    "keras": (
        lines(
            lambda i, a, b, c: (
                f"Epoch {i}/{N}\n\r  1/100 [>.............................] - ETA: 1:20 - loss: 7.1\b\b\b\b\b\b\r"
                f"100/100 [==============================] - 3s 26ms/step - loss: {a:.4f} - val_loss: 9.9"
            )
        ),
        "Epoch",
        False,
        False,
    ),
    "olmo": (
        lines(
            lambda i, a, b, c: (
                f"[{DATE} {i}] INFO [olmo.train:1000, rank=0] [step={i}/1000,epoch=0]\n    optim/total_grad_norm={b}\n"
                f"    train/CrossEntropyLoss={a}\n    train/Perplexity=9,999\n    optim/learning_rate_group0={c}"
            )
        ),
        "step",
        True,
        True,
    ),
    "composer": (
        lines(
            lambda i, a, b, c: (
                f"[batch={i}/1000]:\n\t Train time/epoch: 0\n\t Train loss/train/total: {a}\n\t Train l2_norm/grad/global: {b}\n"
                f"\t Train lr-DecoupledAdamW/group0: {c}"
            )
        ),
        "batch",
        True,
        True,
    ),
    "detectron2": (
        lines(
            lambda i, a, b, c: (
                f"\x1b[32m[02/17 01:58:22 d2.utils.events]: \x1b[0m eta: 15:26:30  iter: {i * 20 - 1}  total_loss: {a}  loss_cls: 0.5  "
                f"loss_box_0: 0.{i}  loss_box_1: 0.3  time: 0.6361  data_time: 0.0105  lr: {c}  max_mem: 3765M"
            )
        ),
        "iter",
        False,
        True,
    ),
    "openmmlab": (
        epochs(
            lambda e, i, a, b, c: (
                f"01/02 03:04:05 - mmengine - INFO - Epoch(train)  [{e}][{(i + 1) * 50:5d}/300]  base_lr: 1.0000e-04 lr: {c:.4e}  "
                f"eta: 1 day, 2:03:04  time: 0.5012  data_time: 0.0123  memory: 740  grad_norm: {b}  loss: {a:.4f}  loss_cls: 0.5"
            ),
            end="01/02 03:04:05 - mmengine - INFO - Epoch(val)  [1][ 50/100]    eta: 0:00:10  time: 0.2  memory: 99  loss: 9.9\n" * 3,
        ),
        "step",
        True,
        True,
    ),
    "slowfast": (
        epochs(
            lambda e, i, a, b, c: (
                f'[01/02 03:04:05][INFO] logging.py:  101: json_stats: {{"_type": "train_iter_", "dt": 1.25916, "epoch": "{e}/200", '
                f'"eta": "15:46:50", "grad_norm": {b:.5f}, "iter": "{(i + 1) * 10}/60", "loss": {a:.5f}, "lr": {c:.10f}}}'
            ),
            end='[01/02 03:04:05][INFO] logging.py:  101: json_stats: {"_type": "train_epoch", "epoch": "1/200", "grad_norm": 9.9, "loss": 9.9}\n'
            * 3,
        ),
        "step",
        True,
        True,
    ),
    "swin": (
        lines(
            lambda i, a, b, c: (
                f"[{DATE}] (main.py 300): INFO Train: [0/300][{i * 10}/1251]\teta 0:12:00 lr {c:.6f}\t wd 0.0500\ttime 0.3 (0.4)\t"
                f"loss {a:.4f} (6.9)\tgrad_norm {b:.4f} (1.9)\tloss_scale 65536.0 (65536.0)\tmem 9000MB"
            )
        ),
        "iter",
        True,
        True,
    ),
    "verl": (
        lines(
            lambda i, a, b, c: (
                f"\x1b[36m(TaskRunner pid=2021996)\x1b[0m step:{i} - actor/entropy:1.2 - actor/pg_loss:{a} - actor/grad_norm:{b} - "
                f"actor/lr:{c} - training/global_step:{i} - critic/score/mean:0.7 - timing_s/step:663.3"
            )
        ),
        "step",
        True,
        True,
    ),
    "openai-logger": (
        lines(
            lambda i, a, b, c: (
                f"-----------------------\n| grad_norm | {b:<8} |\n| loss      | {a:<8} |\n| loss_q0   | 9.9      |\n| loss_q1   | 9.8      |\n"
                f"| lr        | {c:<8} |\n| step      | {i * 20:<8} |\n-----------------------"
            )
        ),
        "step",
        True,
        True,
    ),
    "openpi": (
        lines(
            lambda i, a, b, c: (
                f"\r{i}kit\rStep {i * 100}: grad_norm={b:.4f}, loss={a:.4f}, param_norm=1377.8652\n"
                f"01:02:03.456 [I] Progress on: {i}.52kit/200kit rate:1.4it/s remaining:38:48:07 elapsed:31:10 postfix:- (8428:tqdm_logging.py:145)"
            )
        ),
        "Step",
        True,
        False,
    ),
    "lerobot": (
        lines(
            lambda i, a, b, c: (
                f"INFO 2026-01-02 03:04:05 ot_train.py:357 step:{i * 10} smpl:{i}K ep:3K epch:63.78 loss:{a:.4f} grdn:{b:.3f} lr:{c:.1e} "
                "updt_s:0.502 data_s:0.010"
            )
        ),
        "step",
        True,
        True,
    ),
    "espnet": (
        epochs(
            lambda e, i, a, b, c: (
                f"[host] {DATE} (trainer:737) INFO: {e}epoch:train:{i * 100 + 1}-{i * 100 + 100}batch: iter_time=0.001, loss_ctc=9.9, loss={a}, "
                f"backward_time=0.1, grad_norm={b}, clip=100.000, loss_scale=1.0, optim0_lr0={c:.3e}, train_time=9.9"
            )
        ),
        "step",
        True,
        True,
    ),
    "icefall": (
        epochs(
            lambda e, i, a, b, c: "\n".join(
                f"{DATE} INFO [train.py:904] ({rank}/2) Epoch {e}, batch {i * 50}, loss[loss={a + rank:.4f}, simple_loss=0.3, pruned_loss=0.2, "
                f"over 1000.00 frames. ], tot_loss[loss=9.9, simple_loss=0.3, over 10000.00 frames. ], batch size: 30, lr: {c:.2e}, grad_scale: 16.0"
                for rank in (0, 1)
            ),
            end=f"{DATE} INFO [train.py:936] (0/2) Epoch 1, validation: loss=9.9, simple_loss=0.3, over 100.00 frames. \n"
            f"{DATE} INFO [optim.py:487] (0/2) Clipping_scale=2.0, grad-norm quartiles 1.6e+02 2.2e+02 2.5e+02 2.9e+02 5.8e+02, threshold=5.0e+02\n"
            * 4,
        ),
        "step",
        False,
        True,
    ),
    "wenet": (
        epochs(
            lambda e, i, a, b, c: (
                f"{DATE} DEBUG TRAIN | steps/sec 1.234| Batch {e - 1}/{(i + 1) * 100} loss {a:.6f} loss_att 12.0 lr {c:.8f} grad_norm {b:.6f} rank 0"
            ),
            end=f"{DATE} DEBUG CV | steps/sec 1.234| Batch 1/100 loss 9.9 loss_att 9.9 \n" * 3,
        ),
        "step",
        True,
        True,
    ),
    "tacotron2": (
        lines(
            lambda i, a, b, c: f"Train loss {i} {a:.6f} Grad Norm {b:.6f} 0.95s/it",
            begin="Epoch: 0\n",
            end="Validation loss 12: 9.900000  \n",
        ),
        "iteration",
        True,
        False,
    ),
    "metric-logger": (
        epochs(
            lambda e, i, a, b, c: (
                f"Epoch: [{e - 1}]  [{i * 10:4d}/60]  eta: 0:12:00  lr: {c:.6f}  loss: {a:.4f} (9.9500)  time: 0.3000  data: 0.1000  max mem: 1234"
            ),
            end="Test:  [ 0/10]  eta: 0:00:10  loss: 9.9 (9.9)  time: 0.1  data: 0.1  max mem: 1234\n" * 3,
        ),
        "step",
        False,
        True,
    ),
    "open-clip": (
        lines(
            lambda i, a, b, c: (
                f"2024-01-01,10:00:00 | INFO | Train Epoch: 0 [{i * 12800:7d}/1000000 ({i}%)] Data (t): 0.123 Batch (t): 0.345, 1234.5/s, 123.4/s/gpu "
                f"LR: {c:.6f} Logit Scale: 14.286 Contrastive_loss: {a:#.5g} (9.9000) Loss: {a:#.5g} (9.9000)"
            ),
            end="2024-01-01,10:00:00 | INFO | Eval Epoch: 1 [256 / 1000]\tClip Loss: 9.9\t\n" * 3,
        ),
        "iter",
        False,
        True,
    ),
    "ultralytics": (
        lines(
            lambda i, a, b, c: (
                "\n      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size"
                + "".join(
                    f"\r{f'{i}/12':>11s}{'2.3G':>11s}{shown:11.4g}{2.345:11.4g}{1.345:11.4g}{24:11d}{640:11d}: {k:3d}%|{'#' * (k // 10):10s}| {k}/100 "
                    "[00:12<00:00,  8.00it/s]"
                    for k, shown in ((0, 9.9), (50, 9.8), (100, a))
                )
                + "\n                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|##########| 4/4 [00:01<00:00,  3.0it/s]"
                "\n                   all        128        929       0.64      0.537      0.605      0.446"
            )
        ),
        "Epoch",
        False,
        False,
    ),
    "kohya": (
        "".join(
            f"\rsteps:  {i}%|#    | {i}/100 [00:{i:02d}<01:00,  1.20it/s, avr_loss={shown:.4f}]"
            for i, (before, a) in enumerate(zip([9.9, *LOSSES], LOSSES, strict=False), 1)
            for shown in (before, a)
        )
        + "\n",
        "bar",
        False,
        False,
    ),
    "nemo": (
        lines(
            lambda i, a, b, c: (
                f"Training epoch 0, iteration {i - 1}/399 | lr: {c} | global_batch_size: 512 | global_step: {i - 1} | reduced_train_loss: {a} | "
                f"train_step_timing in s: 1.2 | consumed_samples: {i * 512} | grad_norm: {b}"
            ),
            end="Validating epoch 0 | val_loss: 9.9\n" * 3,
        ),
        "global_step",
        True,
        True,
    ),
    "lightning-rich": (
        "".join(
            f"Epoch {e}/1  ━━━━━╸━━━━ {i + 1}/6 0:00:01 • 0:00:10 8.12it/s v_num: 0.000 train_loss: {shown:.4f}\n"
            for e in range(2)
            for i in range(6)
            for shown in (9.9, LOSSES[6 * e + i])
        ),
        "step",
        False,
        False,
    ),
    "lingua": (
        lines(
            lambda i, a, b, c: (
                f"0: INFO    25-01-02 03:04:05.123456 - 0:01:02 - step: {i * 10}  acc: 0  loss: {a:>7}  grad: {b:.2e}  flops: 1.23e+14  wps: 1.2e+04  "
                f"iter: 0.5  data: 0.001  lr: {c:.2e}  mem: 50%  pow: 0.5 W"
            )
        ),
        "step",
        True,
        True,
    ),
    "levanter": (
        lines(
            lambda i, a, b, c: (
                f"2024-01-01T10:00:00 - 0 - levanter - tqdm_logging.py:145 - INFO :: Progress on:train {i}.00it/100it rate:1.1it/s "
                f"remaining:01:32 elapsed:00:03 postfix:loss={a}"
            )
        ),
        "iter",
        False,
        False,
    ),
    "clu": (
        lines(
            lambda i, a, b, c: (
                f"I0102 03:04:05.123456 140000 logging_writer.py:48] [{i * 100}] collection=train accuracy=0.1, learning_rate={c}, loss={a}\n"
                f"I0102 03:04:05.123456 140000 logging_writer.py:48] [{i * 100}] collection=training_eval/x accuracy=0.1, loss=9.9\n"
                f"I0102 03:04:05.123456 140000 logging_writer.py:48] [{i * 100}] eval_loss=9.9, loss=9.9"
            )
        ),
        "step",
        False,
        True,
    ),
    "big-vision": (
        lines(
            lambda i, a, b, c: "\n".join(
                f"I0102 03:04:05.123456 140000 utils.py:900] \x1b[35m[{i * 50}]\x1b[0m {key} = {value}"
                for key, value in (("training_loss", a), ("l2_grads", b), ("l2_params", 99.0))
            )
        ),
        "step",
        True,
        False,
    ),
}
# What someone must say, as the format has no total loss.
ASKED = {"ultralytics": Wanted(loss="box_loss")}


@pytest.mark.parametrize("name", CASES)
def test_series_of_each_format(name: str, tmp_path: Path) -> None:
    text, step_key, has_norm, has_lr = CASES[name]
    log = log_of(tmp_path, text)
    assert log.format == name
    assert log.step_key == step_key
    run = run_of(tmp_path, text, ASKED.get(name))
    assert run.steps_known
    assert run.loss is not None
    np.testing.assert_allclose(run.loss.values, LOSSES, rtol=1e-6)
    assert (np.diff(run.loss.steps) > 0).all()
    if has_norm:
        assert run.grad_norm is not None
        np.testing.assert_allclose(run.grad_norm.values, NORMS, rtol=1e-6)
        assert run.grad_norm.steps.tolist() == run.loss.steps.tolist()
    else:
        assert run.grad_norm is None
    if has_lr:
        np.testing.assert_allclose(run.series[LR].values, RATES, rtol=0.06 if name == "lerobot" else 1e-3)


def test_every_known_format_has_a_case() -> None:
    assert {f.name for f in FORMATS} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_beginning_of_the_file_is_enough_to_claim_it(name: str, tmp_path: Path) -> None:
    reader = choose(source_of(tmp_path, CASES[name][0]), READERS)
    assert reader is not None
    assert reader.name == name


@pytest.mark.parametrize(
    ("name", "stage", "loss", "norm"),
    [
        ("megatron", NormStage.PRE_CLIP, Sampling.WINDOW_MEAN, Sampling.INSTANT),
        ("huggingface-console", NormStage.PRE_CLIP, Sampling.WINDOW_MEAN, Sampling.INSTANT),
        ("fairseq", NormStage.PRE_CLIP, Sampling.WINDOW_MEAN, Sampling.WINDOW_MEAN),
        ("torchtitan", NormStage.PRE_CLIP, Sampling.INSTANT, Sampling.INSTANT),
        ("composer", NormStage.POST_CLIP, Sampling.INSTANT, Sampling.INSTANT),
        ("tacotron2", NormStage.PRE_CLIP, Sampling.INSTANT, Sampling.INSTANT),
        ("nemo", NormStage.PRE_CLIP, Sampling.INSTANT, Sampling.INSTANT),
    ],
)
def test_what_a_number_means(name: str, stage: NormStage, loss: Sampling, norm: Sampling, tmp_path: Path) -> None:
    run = run_of(tmp_path, CASES[name][0])
    assert run.norm_stage is stage
    assert run.stage_reason
    assert run.series[LOSS].sampling is loss
    assert run.series[GRAD_NORM].sampling is norm


def test_steps_run_on_over_epochs(tmp_path: Path) -> None:
    per_epoch = {
        "pytorch-examples": 6,
        "openmmlab": 300,
        "slowfast": 60,
        "icefall": 300,
        "wenet": 600,
        "metric-logger": 60,
        "lightning-rich": 6,
    }
    for name, size in per_epoch.items():
        run = run_of(tmp_path, CASES[name][0])
        assert run.loss is not None
        assert run.loss.steps[6] - run.loss.steps[0] == size, name
        assert any("epoch" in note for note in run.notes)


def test_megatron_details(tmp_path: Path) -> None:
    run = run_of(tmp_path, MEGATRON)
    assert run.max_norm == 1.0
    assert run.series[LOSS_SCALE].values.tolist() == [1024.0] * N
    assert run.series[LOSS].key == "lm loss"

    unreported = run_of(tmp_path, re.sub(r"grad norm: 0\.\d+", "grad norm: 0.000", MEGATRON))
    assert unreported.grad_norm is None
    assert any("not reported" in note for note in unreported.notes)

    skipped = run_of(tmp_path, MEGATRON.replace("skipped iterations:   0", "skipped iterations:   1", 1))
    assert [(o.step, o.loss_scale) for o in skipped.overflows] == [(1, 1024.0)]


def test_megatron_prints_no_loss_that_is_nan(tmp_path: Path) -> None:
    text = "".join(re.sub(r" lm loss: \S+ \|", "", line) if " iteration       1" in line else line for line in MEGATRON.splitlines(True))
    run = run_of(tmp_path, text)
    assert run.loss is not None
    assert np.isnan(run.loss.values).tolist() == [False] * 9 + [True] * 3


def test_dicts_out_of_step_with_the_bar_have_no_step(tmp_path: Path) -> None:
    bars = "".join(f"\r {i}%|#   | {i}/120 [00:{i % 60:02d}<01:00,  1.12it/s]" for i in range(1, 121))
    dicts = "".join(
        f"{{'loss': '{a}', 'grad_norm': '{b}', 'learning_rate': '1e-05', 'epoch': '0.1'}}\n" for a, b in zip(LOSSES, NORMS, strict=True)
    )
    run = run_of(tmp_path, bars + "\n" + dicts)
    assert not run.steps_known
    assert run.loss is not None
    assert run.loss.values.tolist() == LOSSES


def test_bare_nan_in_a_dict(tmp_path: Path) -> None:
    text = "".join(
        f"{{'loss': {'nan' if i > 5 else 2.5}, 'grad_norm': {'inf' if i > 5 else 0.5}, 'learning_rate': 1e-05, 'epoch': {i}.5}}\n"
        for i in range(9)
    )
    run = run_of(tmp_path, text)
    assert np.isnan(run.series[LOSS].values).sum() == 3
    assert np.isinf(run.series[GRAD_NORM].values).sum() == 3


def test_notebook_stream(tmp_path: Path) -> None:
    console = CASES["huggingface-console"][0]
    records = [{"stream_name": "stdout", "time": i / 7, "data": line} for i, line in enumerate(console.splitlines(True))]
    whole = "[" + "\n,".join(json.dumps(r, separators=(",", ":")) for r in records) + "\n]"
    run = run_of(tmp_path, whole)
    assert run.format == "huggingface-console"
    assert run.loss is not None
    assert run.loss.values.tolist() == LOSSES
    assert run.damage == ()

    cut = run_of(tmp_path, whole[: whole.index("'loss': 2.4")])
    assert cut.loss is not None
    assert cut.loss.values.tolist() == LOSSES[:6]
    assert len(cut.damage) == 1


def test_rounded_steps_of_lerobot(tmp_path: Path) -> None:
    def printed(step: int) -> str:
        return str(step) if step < 1000 else f"{step / 1000:.0f}K"

    text = "".join(
        f"INFO 2026-01-02 03:04:05 ot_train.py:357 step:{printed(200 * i)} smpl:1K ep:3K epch:6.7 loss:{2 - i / 100:.3f} grdn:1.0 lr:1.0e-05\n"
        for i in range(1, 26)
    )
    log = log_of(tmp_path, text)
    assert log.columns["step"].rounded
    run = run_of(tmp_path, text)
    assert run.loss is not None
    assert len(run.loss) == 25
    assert run.loss.steps[-1] == 5000


@pytest.mark.parametrize(
    "message",
    [
        "[2021-05-25 06:38:10,754] [INFO] [stage3.py:2708:_overflow_clean_up] [deepscale] OVERFLOW! Rank 0 Skipping step. "
        "Attempted loss scale: 256, reducing to 128",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 128.0",
        "| WARNING: overflow detected, setting loss scale to: 128.0",
        "2021-01-02 | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 128.0",
    ],
)
def test_overflow_messages(message: str, tmp_path: Path) -> None:
    log = log_of(tmp_path, "starting\n" + f"{message}\n" * 3 + "done\n")
    assert [o.loss_scale for o in log.overflows] == [128.0] * 3
    assert not log.columns


# Frameworks that need no format of their own: name -> text, steps, whether it logs a norm
def bars(line: str) -> str:
    """A bar that is drawn twice a step, first with the numbers of the step before."""
    return "\n" + "".join(
        f"\r{line.format(i=i, a=shown)}"
        for i, (before, a) in enumerate(zip([9.9, *LOSSES], LOSSES, strict=False), 1)
        for shown in (before, a)
    )


ONE_BY_ONE = list(range(1, N + 1))
TENS = [10 * i for i in ONE_BY_ONE]
FRAMEWORKS: dict[str, tuple[str, list[int], bool]] = {
    "levanter tracker": (
        lines(
            lambda i, a, b, c: f"{DATE} - 0 - levanter.tracker - INFO - step={i} train/loss={a} grad/norm/total={b} optim/learning_rate={c}"
        ),
        ONE_BY_ONE,
        True,
    ),
    "NeMo bar": (
        "".join(
            f"\rEpoch 0: :   3%|#         | {i}/400 [00:10<01:00, v_num=1, reduced_train_loss={LOSSES[k]}, global_step={k}.0, "
            f"consumed_samples={k * 512}.0, grad_norm={NORMS[k]}]"
            for i in range(1, N + 1)
            for k in (max(i - 2, 0), i - 1)
        )
        + "\n",
        list(range(N)),
        True,
    ),
    "GPT-NeoX": (
        lines(
            lambda i, a, b, c: (
                f" samples/sec: 12.345 | iteration {i * 10:8d}/  320000 | elapsed time per iteration (ms): 1234.5 | learning rate: {c:.3E} | "
                f"approx flops per GPU: 50.1TFLOPS | lm_loss: {a:.6E} | loss scale: 4096.0 | number of skipped iterations: 0 | "
                "number of nan iterations: 0 |"
            )
        ),
        TENS,
        False,
    ),
    "Megatron-Bridge": (
        lines(
            lambda i, a, b, c: (
                f" [{DATE[:19]}] iteration {i * 10:8d}/  320000 | consumed samples:   640 | elapsed time per iteration (ms): 1234.5 | "
                f"learning rate: {c:.6E} | global batch size:    64 | lm loss: {a:.6E} | loss scale: 1.0 | grad norm: {b:.3f} | "
                "number of skipped iterations: 0 | number of nan iterations: 0 |"
            )
        ),
        TENS,
        True,
    ),
    "NeMo-RL": (
        lines(
            lambda i, a, b, c: (
                f"\n{'=' * 25} Step {i}/100 {'=' * 25}\n📊 Training Results:\n  • Loss: {a}\n  • Avg Reward: 0.5\n  • Grad Norm: {b}\n\n⏱️  Timing:\n"
                "  • Total step time: 12.3s"
            )
        ),
        ONE_BY_ONE,
        True,
    ),
    "diffusers": (bars("Steps:  {i}%|#    | {i}/100 [00:10<01:00,  1.2it/s, lr=1e-5, step_loss={a}]"), ONE_BY_ONE, False),
    "ColossalAI": (bars("Epoch 1:  {i}%|#    | {i}/100 [00:10<01:00,  1.2it/s, Loss={a}, lr=1e-5]"), ONE_BY_ONE, False),
    "Ludwig": (bars("Training:  {i}%|#    | {i}/100 [00:10<01:00,  1.2it/s, loss={a}]"), ONE_BY_ONE, False),
    "AllenNLP": (bars("accuracy: 0.5, loss: {a} ||:  {i}%|#    | {i}/100 [00:10<01:00,  1.2it/s]"), ONE_BY_ONE, False),
    "llama-recipes": (
        lines(lambda i, a, b, c: f"\rTraining Epoch: 1/1, step {i}/100 completed (loss: {a}):  10%|#         | {i}/100 [00:10<00:20]"),
        ONE_BY_ONE,
        False,
    ),
    "EasyLM": (
        lines(
            lambda i, a, b, c: (
                f"\n{{'accuracy': 0.12,\n 'gradient_norm': {b},\n 'learning_rate': {c},\n 'loss': {a},\n 'param_norm': 123.4,\n 'step': {i * 10}}}"
            )
        ),
        TENS,
        True,
    ),
    "prime-rl": (
        lines(
            lambda i, a, b, c: (
                f"03:04:05 SUCCESS Step {i} | Time: 12.34s | Loss: {a} | Entropy: 0.1 | Grad. Norm: {b} | LR: {c:.2e} | Throughput: 1234 tokens/s"
            )
        ),
        ONE_BY_ONE,
        True,
    ),
    "hivemind": (lines(lambda i, a, b, c: f"Step {i} | Loss {a} | perf: 12.3 | Peers: 2"), ONE_BY_ONE, False),
    "litgpt": (
        lines(
            lambda i, a, b, c: (
                f"Epoch 1 | iter {i * 4} step {i} | loss train: {a}, val: {'9.9' if i > 4 else 'n/a'} | iter time: 123.45 ms (step) remaining time: 0:12:00"
            ),
            end="iter 12: val loss 9.9, val time: 12.34 ms\n",
        ),
        ONE_BY_ONE,
        False,
    ),
    "DINOv2": (
        lines(
            lambda i, a, b, c: (
                f"I20240101 10:00:00 1234 dinov2 helpers.py:102] Training  [{i * 10:6d}/125000]  eta: 1 day, 2:03:04  lr: {c:.4f} (0.0001)  "
                f"wd: 0.0400 (0.0400)  last_layer_lr: 0.0000 (0.0000)  total_loss: {a:.4f} (9.1000)  koleo_loss: 0.1 (0.1)  time: 1.2  data: 0.0"
            )
        ),
        TENS,
        False,
    ),
    "LAVIS": (
        epochs(
            lambda e, i, a, b, c: (
                f"{DATE} [INFO] Train: data epoch: [{e - 1}]  [{(i + 1) * 10:4d}/60]  eta: 0:12:00  lr: {c:.6f}  loss: {a:.4f}  time: 0.3  data: 0.1"
            )
        ),
        TENS,
        False,
    ),
    "Flax": (
        lines(
            lambda i, a, b, c: (
                f"I0102 03:04:05.1 1400 train.py:312] train epoch: {i}, loss: {a}, accuracy: 10.1\n"
                f"I0102 03:04:05.1 1400 train.py:312] eval epoch: {i}, loss: 9.9, accuracy: 10.1"
            )
        ),
        ONE_BY_ONE,
        False,
    ),
    "SpeechBrain": (
        lines(
            lambda i, a, b, c: (
                f"speechbrain.utils.train_logger - epoch: {i}, lr: {c:.2e} - train loss: {a} - valid loss: 9.9, valid PER: 20.1"
            )
        ),
        ONE_BY_ONE,
        False,
    ),
    "PaddleNLP": (
        lines(
            lambda i, a, b, c: (
                f"[{DATE}] [    INFO] - global step {i * 10}, epoch: 1, batch: {i * 10 - 1}, loss: {a}, speed: 1.2 step/s, lr: {c}"
            )
        ),
        TENS,
        False,
    ),
    "PaddleNLP Trainer": (
        lines(
            lambda i, a, b, c: (
                f"[{DATE}] [    INFO] - loss: {a}, learning_rate: {c}, global_step: {i * 10}, interval_runtime: 2.2591, "
                "interval_samples_per_second: 3.541, interval_steps_per_second: 4.427, epoch: 0.0265"
            )
        ),
        TENS,
        False,
    ),
    "PaddleSeg": (
        lines(
            lambda i, a, b, c: (
                f"{DATE} [INFO]\t[TRAIN] epoch: 1, iter: {i * 10}/1000, loss: {a}, lr: {c}, batch_cost: 0.1, ips: 12.3 samples/sec | ETA 00:12:00\n"
                f"{DATE} [INFO]\t[EVAL] #Images: 500 mIoU: 0.5 Loss: 9.9"
            )
        ),
        TENS,
        False,
    ),
    "PaddleOCR": (
        lines(
            lambda i, a, b, c: f"[2022/01/02 03:04:05] ppocr INFO: epoch: [1/100], global_step: {i * 10}, lr: {c}, loss: {a}, eta: 1:00:00"
        ),
        TENS,
        False,
    ),
    "MindFormers": (
        epochs(
            lambda e, i, a, b, c: (
                f"{DATE} - mindformers[core/callback.py:314] - INFO - {{ Epoch:[{e:3d}/  2], step:[{(i + 1) * 10:5d}/   60], loss:[{a:5.3f}/9.900], "
                f"per_step_time: 123ms, lr: {c}, overflow cond: False, loss_scale: 1024.0, global_norm: [{b}], train_throughput_per_npu: 1.2T }}"
            )
        ),
        TENS,
        True,
    ),
    "MindSpore": (
        epochs(
            lambda e, i, a, b, c: f"epoch: {e} step: {(i + 1) * 10}, loss is {a}",
            end="Train epoch time: 1234.567 ms, per step time: 12.345 ms\n" * 3,
        ),
        TENS,
        False,
    ),
    "XTuner": (
        lines(
            lambda i, a, b, c: (
                f"01/02 03:04:05 - mmengine - INFO - Iter(train) [{i * 10:5d}/1000]  lr: {c:.4e}  eta: 0:12:00  time: 1.2  data_time: 0.01  "
                f"memory: 12345  loss: {a}  grad_norm: {b}"
            )
        ),
        TENS,
        True,
    ),
    "DeepSpeed-Chat": (
        lines(lambda i, a, b, c: "\n".join(f"Epoch: 0, Step: {i}, Rank: {rank}, loss = {a + rank}" for rank in (0, 1))),
        ONE_BY_ONE,
        False,
    ),
    "WeNet of old": (
        lines(lambda i, a, b, c: f"{DATE} DEBUG TRAIN Batch {i * 10}/1500 loss {a} loss_att 12.0 loss_ctc 13.0 lr {c:.8f} rank 0"),
        TENS,
        False,
    ),
    "HiFi-GAN": (
        lines(lambda i, a, b, c: f"Steps : {i * 10}, Gen Loss Total : {a:4.3f}, Mel-Spec. Error : 0.123, s/b : 0.456"),
        TENS,
        False,
    ),
    "Coqui TTS": (
        epochs(
            lambda e, i, a, b, c: (
                f"\n   --> STEP: {(i + 1) * 10}/60 -- GLOBAL_STEP: {(6 * e - 5 + i) * 10}\n     | > loss: {a}  (9.4)\n     | > grad_norm: {b}  (1.3)\n"
                f"     | > current_lr: {c}\n     | > step_time: 0.5  (0.6)"
            )
        ),
        TENS,
        True,
    ),
    "YOLOX": (
        epochs(
            lambda e, i, a, b, c: (
                f"{DATE} | INFO     | yolox.core.trainer:258 - epoch: {e}/300, iter: {(i + 1) * 10}/60, mem: 1234Mb, iter_time: 0.3s, data_time: 0.0s, "
                f"total_loss: {a}, iou_loss: 4.5, conf_loss: 1.2, cls_loss: 0.9, lr: {c:.3e}, size: 640, ETA: 1:02:03"
            )
        ),
        TENS,
        False,
    ),
    "maskrcnn-benchmark": (
        lines(
            lambda i, a, b, c: (
                f"{DATE} maskrcnn_benchmark.trainer INFO: eta: 1:00:00  iter: {i * 10}  loss: {a} (9.5)  loss_classifier: 0.5 (0.6)  "
                f"time: 0.3 (0.4)  data: 0.01 (0.02)  lr: {c}  max mem: 1234"
            )
        ),
        TENS,
        False,
    ),
    "TensorFlow Estimator": (lines(lambda i, a, b, c: f"INFO:tensorflow:loss = {a}, step = {i * 10} (12.3 sec)"), TENS, False),
    "Nanotron": (
        lines(
            lambda i, a, b, c: (
                f"01/02/2024 03:04:05 [INFO|DP=0|PP=0|TP=0|ip-1-2-3-4]: iteration: {i} / 1000 | consumed_tokens: 1.2M | tokens_per_sec: 12.3K | "
                f"global_batch_size: 1.02K | lm_loss: {a} | lr: {c:.3g} | model_tflops_per_gpu: 12.3 | grad_norm: {b} | eta: 0:12:00"
            )
        ),
        ONE_BY_ONE,
        True,
    ),
    "fairseq JSON": (
        lines(
            lambda i, a, b, c: (
                f'2021-01-02 | INFO | train_inner | {{"epoch": 1, "update": {i / 10}, "loss": "{a}", "num_updates": "{i * 10}", "lr": "{c}", "gnorm": "{b}"}}'
            ),
            end='2021-01-02 | INFO | train | {"epoch": 1, "train_loss": "9.9", "train_num_updates": "120", "train_gnorm": "9.9"}\n',
        ),
        TENS,
        True,
    ),
    "fairseq hydra": (
        lines(
            lambda i, a, b, c: (
                f"[{DATE}][train_inner][INFO] - epoch 1:    {i * 10} / 1000 loss={a}, ppl=9, num_updates={i * 10}, lr={c}, gnorm={b}"
            ),
            end=f"[{DATE}][valid][INFO] - epoch 1 | valid on 'valid' subset | loss 9.9 | num_updates 120\n" * 3
            + f"[{DATE}][train][INFO] - epoch 1 | loss 9.8 | num_updates 120 | lr 0.1 | gnorm 7.7\n" * 3,
        ),
        TENS,
        True,
    ),
}


def assert_series(run: Run, steps: list[int], has_norm: bool) -> None:
    """The losses at their steps, and the norms there too or none."""
    assert run.steps_known
    assert run.series[LOSS].values.tolist() == LOSSES
    assert run.series[LOSS].steps.tolist() == steps
    if has_norm:
        assert run.series[GRAD_NORM].values.tolist() == NORMS
        assert run.series[GRAD_NORM].steps.tolist() == steps
    else:
        assert run.grad_norm is None


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_series_of_each_framework(name: str, tmp_path: Path) -> None:
    assert_series(run_of(tmp_path, FRAMEWORKS[name][0]), *FRAMEWORKS[name][1:])


@pytest.mark.parametrize(
    "line",
    [
        "[{date}][train][INFO] - epoch {i} | loss {a} | ppl 10 | num_updates {n} | lr 0.0003 | gnorm {b} | loss_scale 128 | train_wall 100",
        '[{date}][train][INFO] - {{"epoch": {i}, "train_loss": "{a}", "train_num_updates": "{n}", "train_lr": "0.1", "train_gnorm": "{b}"}}',
    ],
)
def test_a_log_of_summaries_only(line: str, tmp_path: Path) -> None:
    valid = "[{date}][valid][INFO] - epoch {i} | valid on 'valid' subset | loss 9.9 | num_updates {n}"
    text = lines(lambda i, a, b, c: f"{line}\n{valid}".format(date=DATE, i=i, a=a, b=b, n=10 * i))
    run = run_of(tmp_path, text)
    assert run.format == "fairseq"
    assert run.series[LOSS].values.tolist() == LOSSES
    assert run.series[GRAD_NORM].values.tolist() == NORMS
    assert run.series[GRAD_NORM].steps.tolist() == TENS
    assert any("a line an epoch" in note for note in run.notes)


def test_what_ultralytics_prints_of_several_losses(tmp_path: Path) -> None:
    columns = log_of(tmp_path, CASES["ultralytics"][0]).columns
    assert columns["cls_loss"].values.tolist() == [2.345] * N
    assert columns["dfl_loss"].values.tolist() == [1.345] * N
    assert columns["Epoch"].values.tolist() == ONE_BY_ONE
