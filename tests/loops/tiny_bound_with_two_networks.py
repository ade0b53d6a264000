"""Both networks have a bound hundreds of times below their usual norm."""

import torch
from torch import nn

torch.manual_seed(128)
nets = [nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(2)]
opts = [torch.optim.SGD(n.parameters(), lr=0.5) for n in nets]
for it in range(45):
    x = torch.randn(24, 4)
    for k, (net, opt) in enumerate(zip(nets, opts, strict=True)):
        loss = nn.functional.mse_loss(net(x), 20 * x[:, k : k + 1])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        opt.step()
    if it % 15 == 0:
        print(it, loss.item())
