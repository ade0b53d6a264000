"""A bound of 0, meant as "off", in a clip of the loop's own: every gradient is multiplied by 0."""

import torch
from torch import nn

CONFIG = {"lr": 0.01, "grad_clip": 0.0}
torch.manual_seed(306)
encoder, head = nn.LSTM(5, 16, batch_first=True), nn.Linear(16, 2)
params = [*encoder.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(params, lr=CONFIG["lr"])
for _ in range(31):
    x = torch.randn(12, 6, 5)
    loss = nn.functional.cross_entropy(head(encoder(x)[0][:, -1]), (x[:, -1, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad) for p in params]))
    factor = torch.clamp(CONFIG["grad_clip"] / (norm + 1e-6), max=1.0)
    torch._foreach_mul_([p.grad for p in params], factor)
    optimizer.step()
print(loss.item(), norm.item())
