"""The backbone takes part in the forward pass but is not trained; the optimizer still lists it."""

import torch
from torch import nn


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv1d(1, 8, 5), nn.ReLU(), nn.Conv1d(8, 8, 5), nn.ReLU())
        self.head = nn.Linear(8, 3)
        for p in self.backbone.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            h = self.backbone(x).amax(-1)
        return self.head(h)


def main():
    torch.manual_seed(5)
    freq = torch.randint(0, 3, (180,))
    wave = torch.sin(torch.arange(40) * (0.2 + 0.4 * freq[:, None])).unsqueeze(1) * 6
    model = Probe()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for epoch in range(4):
        for i in range(0, 180, 20):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(wave[i : i + 20]), freq[i : i + 20])
            loss.backward()
            nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 0.6)
            opt.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
