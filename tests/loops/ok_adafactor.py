"""Adafactor bounds its own update as well; the gradient is clipped once."""

import torch
from torch import nn


def main():
    torch.manual_seed(217)
    model = nn.Sequential(nn.Linear(10, 30), nn.SiLU(), nn.Linear(30, 4))
    opt = torch.optim.Adafactor(model.parameters(), lr=1e-2)
    for it in range(40):
        x = torch.randn(24, 10)
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), 4 * x[:, :4])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 3.5)
        opt.step()
        if it % 10 == 0:
            print(it, loss.item())


main()
