"""Lightning, with the callback and `gradient_clip_val`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gradclip_cli import read_run
from gradclip_cli.runfile import read_recorded
from tests.record_runs import results

CODE = """
import json, logging, warnings
warnings.filterwarnings("ignore")
import lightning.pytorch as pl
import torch
from gradclip_cli.watch.callbacks import lightning_callback

class Net(pl.LightningModule):
    def __init__(self, fails_at=None):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.fails_at, self.before, self.used, self.losses = fails_at, [], [], []

    def training_step(self, batch, i):
        if self.fails_at == i:
            raise ValueError("bad batch")
        x, y = batch
        loss = (self.body(x) - y).square().mean()
        self.losses.append(loss.item())
        return loss

    def norm(self):
        return sum(p.grad.double().square().sum().item() for p in self.parameters()) ** 0.5

    def on_before_optimizer_step(self, optimizer):
        self.before.append(self.norm())

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        self.used.append(self.norm())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

def fit(*callbacks, fails_at=None):
    pl.seed_everything(0, verbose=False)
    data = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
    net = Net(fails_at)
    options = dict(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = pl.Trainer(max_epochs=1, gradient_clip_val=0.5, callbacks=list(callbacks), **options)
    trainer.fit(net, torch.utils.data.DataLoader(data, batch_size=4))
    return net, [p.detach().clone() for p in net.parameters()], torch.get_rng_state()

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
plain, watched = fit(), fit(lightning_callback("run"))
same = all(map(torch.equal, plain[1], watched[1])) and torch.equal(plain[2], watched[2]) and plain[0].used == watched[0].used
net = watched[0]
hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in net.modules()]
print(json.dumps({"same": same, "before": net.before, "used": net.used, "losses": net.losses, "hooks": sum(hooks)}))
try:
    fit(lightning_callback("failed"), fails_at=3)
except ValueError as e:
    print(json.dumps({"raised": str(e)}))
"""


def test_lightning(tmp_path: Path) -> None:
    told, failed = results(tmp_path, CODE)
    assert told["same"]
    assert told["hooks"] == 0
    part = read_recorded(tmp_path / "run")[0].parts[0]
    assert part.ended == "finished"
    assert part.steps.tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(part.columns["grad_norm"], told["before"], rtol=1e-6)
    np.testing.assert_allclose(part.columns["grad_norm_used"], told["used"], rtol=1e-6)
    np.testing.assert_allclose(part.columns["loss"], told["losses"], rtol=1e-6)
    assert part.columns["batch_index"].tolist() == [0, 1, 2, 3, 4, 5]
    assert set(part.columns["batch_size"]) == {4}
    assert max(told["before"]) > 0.5 >= max(told["used"])
    assert read_run(tmp_path / "run").max_norm == 0.5
    assert failed == {"raised": "bad batch"}
    part = read_recorded(tmp_path / "failed")[0].parts[0]
    assert part.ended == "ValueError: bad batch"
    assert part.steps.tolist() == [1, 2, 3]
