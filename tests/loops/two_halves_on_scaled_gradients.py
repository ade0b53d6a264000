"""get_total_norm and clip_grads_with_norm_ on gradients that carry the loss scale."""

import torch
from torch import nn
from torch.nn import utils

torch.manual_seed(43)
model = nn.Sequential(nn.Linear(6, 18), nn.Tanh(), nn.Linear(18, 3))
opt = torch.optim.Adam(model.parameters(), lr=4e-3, foreach=False)
scaler = torch.amp.GradScaler("cpu", init_scale=1000.0, growth_interval=10)


def step(x, y):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x).float(), y)
    scaler.scale(loss).backward()
    norm = utils.get_total_norm([p.grad for p in model.parameters()])
    utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
    scaler.step(opt)
    scaler.update()
    return loss.item()


for it in range(40):
    x = torch.randn(20, 6)
    loss = step(x, x[:, 1:4].argmax(1))
    if it % 10 == 0:
        print(it, loss)
