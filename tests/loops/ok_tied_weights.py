"""Input and output embedding are one tensor; model.parameters() names it once."""

import torch
import torch.nn.functional as F
from torch import nn


class TinyLM(nn.Module):
    def __init__(self, vocab=26, dim=20):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.mix = nn.Sequential(nn.Linear(3 * dim, 40), nn.GELU(), nn.Linear(40, dim))
        self.decoder = nn.Linear(dim, vocab)
        self.decoder.weight = self.wte.weight

    def forward(self, ctx):
        return self.decoder(self.mix(self.wte(ctx).flatten(1)))


def batch(n):
    a = torch.randint(0, 26, (n, 1))
    seq = (a + torch.tensor([0, 2, 4, 6])) % 26
    return seq[:, :3], seq[:, 3]


def run(steps=40, max_grad_norm=2.0):
    torch.manual_seed(6)
    lm = TinyLM()
    opt = torch.optim.SGD(lm.parameters(), lr=0.1)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for step in range(steps):
        ctx, nxt = batch(32)
        loss = F.cross_entropy(lm(ctx), nxt)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(lm.parameters(), max_grad_norm)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"{step}\t{loss.item():.3f}\t{norm.item():.3f}")


run()
