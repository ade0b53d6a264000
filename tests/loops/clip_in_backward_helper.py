"""The helper that sends a loss back clips each time, also between the micro-batches of one update."""

import torch
from torch import nn


class Runner:
    accumulate = 3

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(11, 22), nn.GELU(), nn.Linear(22, 2))
        self.optim = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def backward(self, loss):
        (loss / self.accumulate).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.4)

    def run(self, steps):
        for micro in range(steps * self.accumulate):
            x = torch.randn(10, 11)
            y = (x[:, 0] * x[:, 1] > 0).long()
            loss = nn.functional.cross_entropy(4 * self.model(x), y)
            self.backward(loss)
            if micro % self.accumulate == self.accumulate - 1:
                self.optim.step()
                self.optim.zero_grad()
        print(loss.item())


torch.manual_seed(3)
Runner().run(36)
