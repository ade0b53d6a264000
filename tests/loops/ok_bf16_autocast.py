"""bfloat16 autocast needs no scaler."""

import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self, tokens=6, dim=16):
        super().__init__()
        self.token = nn.Linear(tokens, tokens)
        self.channel = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim))
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        x = x + self.token(x.transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.channel(x)).mean(1))


torch.manual_seed(9)
model = Mixer()
opt = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), foreach=True)
data = torch.randn(256, 6, 16)
goal = data[:, 0, :1] * 3 + data[:, 1:, 2].abs().sum(1, keepdim=True)
for it in range(45):
    pick = torch.randperm(256)[:32]
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        out = model(data[pick])
        loss = nn.functional.mse_loss(out.float(), goal[pick])
    loss.backward()
    gnorm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=4)
    opt.step()
    opt.zero_grad()
    if not it % 15:
        print(f"step {it}: {loss.item():.3f} |g| {gnorm:.3f}")
