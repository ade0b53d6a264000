"""Two losses share one graph (retain_graph); their gradients are summed, then clipped once."""

import torch
from torch import nn


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.GRU(3, 16, batch_first=True)
        self.next = nn.Linear(16, 3)
        self.kind = nn.Linear(16, 2)

    def forward(self, x):
        h, last = self.trunk(x)
        return self.next(h), self.kind(last[-1])


torch.manual_seed(23)
model = TwoTasks()
optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
for update in range(40):
    kind = torch.randint(0, 2, (24,))
    x = torch.cumsum(torch.randn(24, 9, 3) + kind[:, None, None], 1)
    pred, logits = model(x[:, :-1])
    loss_next = nn.functional.mse_loss(pred, x[:, 1:])
    loss_kind = nn.functional.cross_entropy(logits, kind)
    optimizer.zero_grad()
    loss_next.backward(retain_graph=True)
    loss_kind.backward()
    total = nn.utils.clip_grad_norm_(model.parameters(), 6.0)
    optimizer.step()
    if update % 10 == 0:
        print(f"{update} {loss_next.item():.2f} {loss_kind.item():.2f} {total:.2f}")
