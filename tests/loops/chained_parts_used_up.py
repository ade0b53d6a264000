"""itertools.chain over two networks is read by the optimizer; nothing is left for the clip."""

from itertools import chain

import torch
from torch import nn


class Seq2Seq:
    def __init__(self):
        self.enc = nn.GRU(4, 12, batch_first=True)
        self.dec = nn.Linear(12, 4)
        self.params = chain(self.enc.parameters(), self.dec.parameters())
        self.opt = torch.optim.Adam(self.params, lr=4e-3)

    def update(self, x):
        loss = (self.dec(self.enc(x)[0]) - x.flip(2) * 4).pow(2).sum(-1).mean()
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.params, 0.5)
        self.opt.step()
        return loss.item()


torch.manual_seed(63)
model = Seq2Seq()
for it in range(40):
    loss = model.update(torch.randn(16, 5, 4))
    if it % 10 == 0:
        print(it, loss)
