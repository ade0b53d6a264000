"""A warm-up schedule wrapped around the optimizer, as in the first transformer."""

import torch
from torch import nn


class NoamOpt:
    def __init__(self, dim, warmup, optimizer):
        self.dim, self.warmup, self.inner, self.count = dim, warmup, optimizer, 0

    def step(self):
        self.count += 1
        for g in self.inner.param_groups:
            g["lr"] = self.dim**-0.5 * min(self.count**-0.5, self.count * self.warmup**-1.5)
        self.inner.step()

    def __getattr__(self, name):
        return getattr(self.inner, name)


torch.manual_seed(219)
layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
model = nn.Sequential(nn.Embedding(15, 16), layer, nn.Linear(16, 15))
opt = NoamOpt(16, 400, torch.optim.Adam(model.parameters(), lr=0, betas=(0.9, 0.98), eps=1e-9))
for it in range(40):
    src = torch.randint(0, 15, (12, 6))
    loss = nn.functional.cross_entropy(model(src).flatten(0, 1), src.flip(1).flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.6)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
