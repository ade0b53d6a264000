"""Every update divides by its number of tokens, by a factor that varies, and then clips with a function of its own."""

import torch
from torch import nn


class Wrapper:
    def __init__(self, model, lr):
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.inner = torch.optim.Adam(self.params, lr=lr)

    def scale_grads(self, factor):
        for p in self.params:
            p.grad.mul_(factor)

    def clip(self, bound):
        grads = [p.grad for p in self.params]
        norm = torch.norm(torch.stack([g.norm() for g in grads]))
        factor = (bound / (norm + 1e-6)).clamp(max=1)
        for g in grads:
            g.mul_(factor)
        return norm


torch.manual_seed(301)
model = nn.Sequential(nn.Embedding(18, 20), nn.Tanh(), nn.Linear(20, 18))
optimizer = Wrapper(model, 8e-3)
for _ in range(36):
    optimizer.inner.zero_grad()
    tokens = 0
    for _ in range(2):
        length = int(torch.randint(5, 40, (1,)))
        source = torch.randint(0, 18, (4, length))
        logits = model(source)
        nn.functional.cross_entropy(logits.transpose(1, 2), (5 * source) % 18, reduction="sum").backward()
        tokens += source.numel()
    optimizer.scale_grads(1 / tokens)
    norm = optimizer.clip(0.42)
    optimizer.inner.step()
print(norm.item())
