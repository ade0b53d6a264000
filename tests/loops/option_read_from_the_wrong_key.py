"""The configuration says grad_clip, the trainer asks for clip_grad: no clipping."""

import torch
from torch import nn

CONFIG = {"lr": 1e-3, "steps": 40, "batch": 20, "grad_clip": 1.0}


class Trainer:
    def __init__(self, model, config):
        self.model, self.steps, self.batch = model, config["steps"], config["batch"]
        self.max_norm = config.get("clip_grad")
        self.opt = torch.optim.Adam(model.parameters(), lr=config["lr"])

    def data(self):
        for _ in range(self.steps):
            x = torch.randn(self.batch, 5)
            yield x, 7 * x[:, :2].prod(1, keepdim=True)

    def fit(self):
        for i, (x, y) in enumerate(self.data()):
            loss = nn.functional.mse_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            if self.max_norm:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
            self.opt.step()
            if i % 10 == 0:
                print(i, loss.item())


torch.manual_seed(9)
Trainer(nn.Sequential(nn.Linear(5, 40), nn.ReLU(), nn.Linear(40, 1)), CONFIG).fit()
