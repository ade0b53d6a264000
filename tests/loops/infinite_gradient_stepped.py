"""sqrt at zero has an infinite derivative; the update is done all the same."""

import torch
from torch import nn

torch.manual_seed(12)
model = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(200, 3)
x[120] = 0.0
scale = nn.Parameter(torch.ones(3))
opt.add_param_group({"params": [scale]})
for it in range(30):
    xb = x[(it * 10) % 200 :][:10]
    opt.zero_grad()
    length = ((xb * scale) ** 2).sum(1).sqrt()
    loss = (model(xb).squeeze(1) - 3 * length).pow(2).mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_([*model.parameters(), scale], 2.0)
    opt.step()
    if it % 5 == 0:
        print(it, loss.item(), norm.item())
