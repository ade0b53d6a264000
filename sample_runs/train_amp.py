"""A training loop with loss scaling and a mistake that many have made: try `gradclip verify sample_runs/train_amp.py`."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(640, 16)
y = (x[:, :4].sum(1, keepdim=True) > 0).float()

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)

for epoch in range(4):
    for batch in torch.randperm(len(x)).split(64):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.binary_cross_entropy_with_logits(model(x[batch]).float(), y[batch])
        scaler.scale(loss).backward()
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
    print(f"epoch {epoch} loss {loss.item():.4f} grad_norm {grad_norm.item():.1f}")
