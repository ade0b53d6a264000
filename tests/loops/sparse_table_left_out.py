"""The sparse embedding has its own optimizer, and the clip takes the dense tensors only."""

import torch
from torch import nn

torch.manual_seed(59)
table = nn.Embedding(50, 12, sparse=True)
tower = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))
opt_sparse = torch.optim.SparseAdam(table.parameters(), lr=5e-3)
opt_dense = torch.optim.Adam(tower.parameters(), lr=5e-3)
for it in range(40):
    a, b = torch.randint(0, 50, (2, 32))
    y = ((a - b) % 7).float()[:, None] * 3
    opt_sparse.zero_grad()
    opt_dense.zero_grad()
    loss = nn.functional.mse_loss(tower(torch.cat([table(a), table(b)], 1)), y)
    loss.backward()
    nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
    opt_sparse.step()
    opt_dense.step()
    if it % 10 == 0:
        print(it, loss.item())
