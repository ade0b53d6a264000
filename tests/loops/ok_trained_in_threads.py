"""Two models, each trained in a thread of its own at the same time."""

import threading

import torch
from torch import nn

torch.set_num_threads(1)
results = {}


def train(name, seed):
    gen = torch.Generator().manual_seed(seed)
    opt = torch.optim.SGD(models[name].parameters(), lr=0.01)
    for _ in range(25):
        x = torch.randn(16, 4, generator=gen)
        loss = nn.functional.mse_loss(models[name](x), 4 * x[:, :1])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(models[name].parameters(), 3.0)
        opt.step()
    results[name] = loss.item()


torch.manual_seed(207)
models = {n: nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1)) for n in "ab"}
threads = [threading.Thread(target=train, args=(n, i)) for i, n in enumerate("ab")]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(sorted(results.items()))
