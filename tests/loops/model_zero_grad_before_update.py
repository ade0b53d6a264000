"""model.zero_grad() comes one line too early."""

import torch
from torch import nn

torch.manual_seed(16)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for it in range(36):
    x = torch.randn(18, 4)
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    model.zero_grad(set_to_none=False)
    opt.step()
    if it % 9 == 0:
        print(it, loss.item())
