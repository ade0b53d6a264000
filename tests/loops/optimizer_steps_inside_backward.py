"""Each parameter is updated by a hook during backward; the clip afterwards has nothing left to act on."""

import torch
from torch import nn

torch.manual_seed(44)
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
opts = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}


def update(p):
    opts[p].step()
    opts[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(update)

for it in range(20):
    x = torch.randn(30, 6)
    loss = nn.functional.mse_loss(model(x), 5 * x[:, :1])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if it % 5 == 0:
        print(it, loss.item())
