"""An Accelerate loop, unchanged, in float32 and bfloat16, with accumulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gradclip_cli.runfile import read_recorded
from tests.record_runs import results

CODE = """
import json
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from gradclip_cli.watch import watch

def train(precision):
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    data = torch.utils.data.TensorDataset(torch.randn(32, 4), 3 * torch.randn(32, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    net, optimizer, loader = accelerator.prepare(net, optimizer, torch.utils.data.DataLoader(data, batch_size=4))
    before, used, losses = [], [], []
    for x, y in loader:
        with accelerator.accumulate(net):
            loss = (net(x).float() - y).square().mean()
            losses.append(loss.item())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                before.append(accelerator.clip_grad_norm_(net.parameters(), 1.0).item())
                used.append(sum(p.grad.double().square().sum().item() for p in net.parameters()) ** 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return before, used, losses, [p.detach().clone() for p in net.parameters()], torch.get_rng_state()

for precision in ("no", "bf16"):
    plain = train(precision)
    with watch(precision):
        watched = train(precision)
    same = plain[:3] == watched[:3] and all(map(torch.equal, plain[3], watched[3])) and torch.equal(plain[4], watched[4])
    print(json.dumps({"precision": precision, "same": same, "before": watched[0], "used": watched[1], "losses": watched[2]}))
"""


def test_accelerate(tmp_path: Path) -> None:
    for told in results(tmp_path, CODE):
        assert told["same"], told["precision"]
        part = read_recorded(tmp_path / told["precision"])[0].parts[0]
        assert part.steps.tolist() == [1, 2, 3, 4]
        np.testing.assert_allclose(part.columns["grad_norm"], told["before"], rtol=1e-5)
        np.testing.assert_allclose(part.columns["grad_norm_used"], told["used"], rtol=1e-6)
        np.testing.assert_allclose(part.columns["loss"], np.reshape(told["losses"], (4, 2)).mean(axis=1), rtol=1e-5)
        assert part.columns["num_micro_batches"].tolist() == [2, 2, 2, 2]
        assert part.columns["batch_index"].tolist() == [0, 2, 4, 6], "Accelerate is one batch ahead of the model"
        assert max(told["before"]) > 1.0 >= max(told["used"])
