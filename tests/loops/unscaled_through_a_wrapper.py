"""The scaler knows optimizers by identity: it unscales the wrapper, then, in step, the wrapped one again."""

import torch
from torch import nn


class Wrapper:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def zero_grad(self):
        self.optimizer.zero_grad()


torch.manual_seed(126)
model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 1))
opt = Wrapper(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for it in range(40):
    x = torch.randn(20, 6)
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
    loss = nn.functional.mse_loss(out.float(), 4 * x[:, :1])
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    scaler.step(opt.optimizer)
    scaler.update()
    if it % 10 == 0:
        print(it, loss.item())
