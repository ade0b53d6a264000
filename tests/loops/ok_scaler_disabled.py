"""A scaler that is switched off on machines without half precision."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

use_amp = torch.cuda.is_available() and False


class Trainer:
    def __init__(self, net, max_norm):
        self.net, self.max_norm = net, max_norm
        self.opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
        self.scaler = torch.amp.GradScaler("cpu", enabled=use_amp)

    def update(self, xb, yb):
        self.opt.zero_grad()
        loss = nn.functional.cross_entropy(self.net(xb), yb)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.net.parameters(), self.max_norm)
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(2)
    xs = torch.randn(240, 12)
    ys = (xs[:, :4] * 3).argmax(1)
    trainer = Trainer(nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4)), max_norm=0.5)
    for epoch in range(5):
        losses = [trainer.update(*b) for b in DataLoader(TensorDataset(xs, ys), batch_size=30, shuffle=True)]
        print(epoch, sum(losses) / len(losses))
