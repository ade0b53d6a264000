"""The Hugging Face Trainer, with the callback: a tiny model of random weights, in float32, bfloat16 and with accumulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradclip_cli import read_run
from gradclip_cli.runfile import read_recorded
from tests.record_runs import results

CODE = """
import json, sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed
from gradclip_cli.watch.callbacks import hf_callback

class Data(torch.utils.data.Dataset):
    # Sample i has 8 tokens, the first i % 4 of its labels ignored.
    def __len__(self):
        return 16

    def __getitem__(self, i):
        ids = torch.randint(0, 32, (8,), generator=torch.Generator().manual_seed(i))
        labels = ids.clone()
        labels[: i % 4] = -100
        return {"input_ids": ids, "labels": labels}

class InOrder(Trainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)

class Own(TrainerCallback):
    # Measured right before the step, in float64.
    def __init__(self):
        self.used, self.logged = [], []

    def on_pre_optimizer_step(self, args, state, control, model=None, **rest):
        self.used.append(sum(p.grad.double().square().sum().item() for p in model.parameters()) ** 0.5)

    def on_log(self, args, state, control, logs=None, **rest):
        if "grad_norm" in logs:
            self.logged.append([float(logs["grad_norm"]), float(logs["loss"]), float(logs["learning_rate"])])

def train(accumulation, bf16, *callbacks):
    set_seed(0)
    shape = dict(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)
    model = LlamaForCausalLM(LlamaConfig(max_position_embeddings=16, attention_dropout=0.1, **shape))
    own = Own()
    args = TrainingArguments(
        "out", max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=accumulation, bf16=bf16, use_cpu=True,
        logging_steps=1, report_to=[], save_strategy="no", max_grad_norm=0.5, learning_rate=1e-2, disable_tqdm=True,
    )
    InOrder(model=model, args=args, train_dataset=Data(), callbacks=[own, *callbacks]).train()
    return own, [p.detach().clone() for p in model.parameters()], torch.get_rng_state()

for name, accumulation, bf16 in (("float32", 1, False), ("bfloat16", 1, True), ("accumulation", 2, False)):
    plain, watched = train(accumulation, bf16), train(accumulation, bf16, hf_callback(name))
    same = all(map(torch.equal, plain[1], watched[1])) and torch.equal(plain[2], watched[2]) and plain[0].used == watched[0].used
    print(json.dumps({"name": name, "same": same, "used": watched[0].used, "logged": watched[0].logged}), flush=True)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("hf")
    return folder, {r["name"]: r for r in results(folder, CODE)}


@pytest.mark.parametrize("name", ["float32", "bfloat16", "accumulation"])
def test_trainer(name: str, trained: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    folder, found = trained
    told = found[name]
    assert told["same"], "parameters, random state and norms are those without the callback"
    recorded, damage = read_recorded(folder / name)
    assert damage == ()
    part = recorded.parts[0]
    assert part.ended == "finished"
    assert part.steps.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(part.columns["grad_norm_used"], told["used"], rtol=1e-6)
    np.testing.assert_allclose(part.columns["grad_norm"], [norm for norm, _, _ in told["logged"]], rtol=1e-5)
    np.testing.assert_allclose(part.columns["loss"], [loss for _, loss, _ in told["logged"]], rtol=1e-4)
    np.testing.assert_allclose(part.columns["lr"], [lr for _, _, lr in told["logged"]], rtol=1e-9)
    # Per tensor and for all: the same gradients.
    np.testing.assert_allclose(np.sqrt(np.square(part.tensor_norms.astype(np.float64)).sum(axis=1)), told["used"], rtol=1e-6)
    assert "model.layers.0.self_attn.q_proj.weight" in [t.name for t in part.tensors]
    micro = 2 if name == "accumulation" else 1
    assert set(part.columns["num_micro_batches"]) == {micro}
    assert set(part.columns["batch_size"]) == {2 * micro}
    assert set(part.columns["seq_len"]) == {8}
    # The loader is one batch ahead of the model; what is told is what the model was given.
    assert part.columns["batch_index"].tolist() == [i * micro for i in range(4)]
    ignored = [np.mean([i % 4 / 8 for i in range(2 * micro * k, 2 * micro * (k + 1))]) for k in range(4)]
    np.testing.assert_allclose(part.columns["ignored_fraction"], ignored)
    assert read_run(folder / name).max_norm == 0.5
