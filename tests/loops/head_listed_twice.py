"""The head is part of model.parameters() and added once more."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.body(x))


torch.manual_seed(11)
model = Model()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
clip_list = list(model.parameters())
clip_list += list(model.head.parameters())
for it in range(40):
    x = torch.randn(20, 6)
    loss = nn.functional.mse_loss(model(x), 5 * x[:, :1] + 2)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(clip_list, 2.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
