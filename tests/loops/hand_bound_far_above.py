"""A clip by hand with a bound for summed losses, and a loss that is a mean."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--clip", type=float, default=250.0)
    a = p.parse_args()
    torch.manual_seed(145)
    rnn, out = nn.GRU(4, 24, batch_first=True), nn.Linear(24, 4)
    model = nn.ModuleList([rnn, out])
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _it in range(40):
        ids = (torch.randint(0, 4, (16, 1)) + torch.arange(9)) % 4
        x = F.one_hot(ids, 4).float()
        loss = F.cross_entropy(out(rnn(x[:, :-1])[0]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        total = 0.0
        for q in model.parameters():
            total += q.grad.norm().item() ** 2
        total = total**0.5
        if total > a.clip:
            for q in model.parameters():
                q.grad.mul_(a.clip / total)
        opt.step()
    print(loss.item(), total)


main()
