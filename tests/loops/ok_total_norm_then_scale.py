"""The two halves of clip_grad_norm_, called one after the other."""

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

torch.manual_seed(33)
model = torch.nn.Bilinear(6, 6, 2)
opt = torch.optim.Adadelta(model.parameters(), lr=0.8)
for it in range(35):
    a, b = torch.randn(28, 6), torch.randn(28, 6)
    y = torch.stack([(a * b).sum(1), a[:, 0] * b[:, 1]], 1) * 3
    opt.zero_grad()
    loss = torch.nn.functional.huber_loss(model(a, b), y)
    loss.backward()
    params = list(model.parameters())
    norm = get_total_norm([p.grad for p in params])
    clip_grads_with_norm_(params, 0.9, norm)
    opt.step()
    if it % 7 == 0:
        print(it, loss.item(), norm.item())
