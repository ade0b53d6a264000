"""Scaled by hand after each micro-batch; unscaled weights of early micro-batches shrink."""

import torch
from torch import nn


def norm_of(grads):
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))


torch.manual_seed(52)
rnn, out = nn.RNN(3, 18, batch_first=True), nn.Linear(18, 1)
params = [*rnn.parameters(), *out.parameters()]
opt = torch.optim.SGD(params, lr=0.02, momentum=0.9)
for it in range(160):
    x = torch.randn(8, 6, 3)
    loss = (out(rnn(x)[0][:, -1]) - 3 * x.sum((1, 2))[:, None]).pow(2).mean() / 4
    loss.backward()
    grads = [p.grad for p in params]
    n = norm_of(grads)
    if n > 1.0:
        torch._foreach_mul_(grads, 1.0 / n.item())
    if it % 4 == 3:
        opt.step()
        opt.zero_grad()
print(loss.item())
