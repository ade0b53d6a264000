"""Squares of finite half-precision gradients add up to infinity in a norm of the loop's own: it multiplies by 0."""

import torch
from torch import nn

torch.manual_seed(304)
model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 2)).half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
MAX_NORM = 5.0
for it in range(30):
    x = torch.randn(32, 10).half()
    loss = (model(x).float() - 3 * x[:, :2].float()).abs().mean() * (4000 if it % 3 == 2 else 20)
    optimizer.zero_grad()
    loss.backward()
    squares = [p.grad.pow(2).sum() for p in model.parameters()]
    total = torch.stack(squares).sum().sqrt()
    factor = (MAX_NORM / (total + 1e-4)).clamp(max=1.0)
    with torch.no_grad():
        for p in model.parameters():
            p.grad *= factor
    optimizer.step()
print(loss.item(), total.item())
