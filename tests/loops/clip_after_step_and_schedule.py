"""step, schedule, clip, zero_grad; with accumulation."""

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(46)
x = torch.randn(360, 4)
data = DataLoader(TensorDataset(x, 3 * x[:, :1] ** 2 - 5), batch_size=12)
model = nn.Sequential(nn.Linear(4, 20), nn.Softplus(), nn.Linear(20, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
sched = OneCycleLR(opt, max_lr=0.02, total_steps=45)
for epoch in range(3):
    for i, (xb, yb) in enumerate(data):
        loss = nn.functional.mse_loss(model(xb), yb)
        (loss / 2).backward()
        if i % 2:
            opt.step()
            sched.step()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.zero_grad()
    print(epoch, loss.item(), sched.get_last_lr()[0])
