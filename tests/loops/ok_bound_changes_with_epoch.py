"""The bound is tightened from epoch to epoch; the order of the calls stays."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(236)
x = torch.randn(200, 6)
loader = DataLoader(TensorDataset(x, 3 * x[:, :1] * x[:, 1:2]), batch_size=25, shuffle=True)
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.BatchNorm1d(24), nn.Linear(24, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for epoch, max_norm in enumerate([6, 5.0, 4.0, 3.0, 2]):
    model.train()
    for xb, yb in loader:
        loss = nn.functional.mse_loss(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        opt.step()
    model.eval()
    with torch.no_grad():
        print(epoch, max_norm, nn.functional.mse_loss(model(x), 3 * x[:, :1] * x[:, 1:2]).item())
