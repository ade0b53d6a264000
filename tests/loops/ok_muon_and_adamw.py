"""Hidden matrices go to Muon, the rest to AdamW; one norm over both."""

import torch
from torch import nn

torch.manual_seed(216)
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3))
hidden = [model[2].weight]
rest = [p for p in model.parameters() if p is not model[2].weight]
opts = [torch.optim.Muon(hidden, lr=2e-3), torch.optim.AdamW(rest, lr=3e-3)]
for it in range(36):
    x = torch.randn(24, 8)
    loss = nn.functional.cross_entropy(4 * model(x), x[:, :3].argmax(1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.5)
    for o in opts:
        o.step()
    model.zero_grad()
    if it % 12 == 0:
        print(it, loss.item())
