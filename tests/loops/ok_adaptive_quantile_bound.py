"""The bound follows a percentile of all norms so far (AutoClip)."""

import numpy as np
import torch
from torch import nn


class AutoClip:
    def __init__(self, percentile):
        self.percentile, self.history = percentile, []

    def __call__(self, model):
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None])).item()
        self.history.append(norm)
        bound = float(np.percentile(self.history, self.percentile))
        torch.nn.utils.clip_grad_norm_(model.parameters(), bound)
        return norm, bound


torch.manual_seed(35)
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1))
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
clipper = AutoClip(60)
for it in range(50):
    x = torch.randn(16, 10)
    loss = nn.functional.mse_loss(model(x), x[:, :1] * 3)
    opt.zero_grad()
    loss.backward()
    norm, bound = clipper(model)
    opt.step()
    if it % 10 == 0:
        print(f"{it}: loss {loss.item():.3f} norm {norm:.3f} bound {bound:.3f}")
