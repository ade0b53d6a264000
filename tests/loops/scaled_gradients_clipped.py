"""The bound is applied while the gradients still carry the loss scale."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.fc = nn.Linear(6 * 16, 3)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).flatten(1))


def images(n):
    y = torch.randint(0, 3, (n,))
    x = torch.randn(n, 1, 6, 6)
    x[torch.arange(n), 0, 2 * y] += 2
    return x, y


torch.manual_seed(0)
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=20)
for it in range(50):
    x, y = images(24)
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(net(x).float(), y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    if it % 10 == 0:
        print(it, loss.item(), scaler.get_scale())
