"""The list of tensors to clip was made before the body was unfrozen."""

import torch
from torch import nn

torch.manual_seed(5)
body = nn.Sequential(nn.Linear(9, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU())
head = nn.Linear(30, 2)
model = nn.Sequential(body, head)
body.requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
to_clip = [p for p in model.parameters() if p.requires_grad]

x = torch.randn(300, 9)
y = torch.stack([x[:, 0] * 6, x[:, 1] * x[:, 2] * 5], 1)
for epoch in range(5):
    if epoch == 2:
        body.requires_grad_(True)
    for xb, yb in zip(x.split(30), y.split(30), strict=True):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        nn.utils.clip_grad_norm_(to_clip, 1.0)
        opt.step()
    print("epoch", epoch, "loss", loss.item())
