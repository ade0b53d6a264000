"""unscale_ is there, after the clip."""

import torch
from torch import nn


def optimizer_step(scaler, opt, params, max_norm):
    nn.utils.clip_grad_norm_(params, max_norm)
    scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()


def main(accumulate=2):
    torch.manual_seed(41)
    net = nn.Sequential(nn.Linear(7, 28), nn.ReLU(), nn.Linear(28, 1))
    opt = torch.optim.NAdam(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**9)
    for it in range(80):
        x = torch.randn(16, 7)
        loss = nn.functional.smooth_l1_loss(net(x), 4 * x[:, :1] * x[:, 1:2])
        scaler.scale(loss / accumulate).backward()
        if (it + 1) % accumulate == 0:
            optimizer_step(scaler, opt, list(net.parameters()), 1.0)
        if it % 20 == 0:
            print(it, loss.item())


main()
