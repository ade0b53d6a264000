"""Every batch is cut into chunks that are summed before one clip."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_ as clip


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.EmbeddingBag(70, 16, mode="sum")
        self.out = nn.Linear(16, 1)

    def forward(self, tokens):
        return self.out(torch.tanh(self.emb(tokens))).squeeze(-1)


def train_batch(model, opt, tokens, target, micro):
    opt.zero_grad(set_to_none=False)
    total = 0.0
    for part, goal in zip(tokens.split(micro), target.split(micro), strict=True):
        loss = F.smooth_l1_loss(model(part), goal, reduction="sum") / len(tokens)
        loss.backward()
        total += loss.item()
    norm = clip(model.parameters(), 0.5)
    opt.step()
    return total, norm


def main():
    torch.manual_seed(0)
    model = Scorer()
    opt = torch.optim.RMSprop(model.parameters(), lr=4e-3)
    for it in range(40):
        tokens = torch.randint(0, 70, (48, 7))
        target = (tokens % 5).float().sum(1) - 14
        loss, norm = train_batch(model, opt, tokens, target, micro=16)
        if it % 10 == 0:
            print(it, round(loss, 3), round(norm.item(), 3))


main()
