"""A clip by hand over a list in which the tied matrix occurs twice: its square is added twice and it is scaled twice."""

import torch
from torch import nn

torch.manual_seed(107)
emb = nn.Embedding(18, 10)
rnn = nn.GRU(10, 10, batch_first=True)
lm_head = nn.Linear(10, 18, bias=False)
lm_head.weight = emb.weight
modules = [emb, rnn, lm_head]
tensors = [p for m in modules for p in m.parameters()]
opt = torch.optim.SGD([*emb.parameters(), *rnn.parameters()], lr=0.2)
for it in range(40):
    start = torch.randint(0, 18, (16, 1))
    seq = (start + 5 * torch.arange(7)) % 18
    loss = nn.functional.cross_entropy(lm_head(rnn(emb(seq[:, :-1]))[0]).flatten(0, 1), seq[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in tensors]).norm()
    if norm > 0.3:
        for p in tensors:
            p.grad.mul_(0.3 / norm)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item(), norm.item())
