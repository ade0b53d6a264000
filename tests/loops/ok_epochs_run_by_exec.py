"""The body of an epoch is source text that is executed, as a notebook would."""

import torch
from torch import nn

torch.manual_seed(227)
model = nn.Sequential(nn.Linear(4, 18), nn.ReLU(), nn.Linear(18, 1))
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
CELL = """
for _ in range(8):
    x = torch.randn(20, 4)
    loss = ((model(x) - 4 * x[:, :1]) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
print(loss.item())
"""
for _epoch in range(5):
    exec(CELL)
