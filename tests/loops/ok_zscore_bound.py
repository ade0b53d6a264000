"""ZClip: a spike beyond z standard deviations of the running norm is cut back to the mean of its kind."""

import torch
from torch import nn


class ZClip:
    def __init__(self, alpha=0.9, z=1.5, warmup=8):
        self.alpha, self.z, self.warmup = alpha, z, warmup
        self.seen, self.mean, self.var = [], None, None

    def step(self, model):
        norm = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm().item()
        if self.mean is None:
            self.seen.append(norm)
            if len(self.seen) == self.warmup:
                t = torch.tensor(self.seen)
                self.mean, self.var = t.mean().item(), t.var().item()
            return norm
        std = self.var**0.5
        if (norm - self.mean) / (std + 1e-6) > self.z:
            target = self.mean + self.z * std
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.mul_(target / norm)
            norm = target
        self.mean = self.alpha * self.mean + (1 - self.alpha) * norm
        self.var = self.alpha * self.var + (1 - self.alpha) * (norm - self.mean) ** 2
        return norm


torch.manual_seed(214)
model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
zclip = ZClip()
for it in range(50):
    x = torch.randn(12, 6) * (3 if it % 11 == 10 else 1)
    loss = nn.functional.mse_loss(model(x), 5 * x[:, :1])
    opt.zero_grad()
    loss.backward()
    norm = zclip.step(model)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item(), norm)
