"""The clip sits in the branch for mixed precision, which is off here."""

import torch
from torch import nn


def update(model, opt, loss, scaler, max_norm):
    opt.zero_grad()
    if scaler is not None:
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(opt)
        scaler.update()
    else:
        loss.backward()
        opt.step()


torch.manual_seed(102)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scaler = torch.amp.GradScaler("cuda") if torch.cuda.is_available() else None
for it in range(40):
    x = torch.randn(20, 5)
    loss = nn.functional.mse_loss(model(x), 4 * x[:, :1])
    update(model, opt, loss, scaler, max_norm=1.0)
    if it % 10 == 0:
        print(it, loss.item())
