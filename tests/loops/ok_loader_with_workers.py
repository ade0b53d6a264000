"""Batches come from a spawned worker process."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        f = 0.2 + torch.rand(1, generator=g)
        return torch.sin(torch.arange(12) * f) * 5, f * 10


def main():
    torch.manual_seed(205)
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(Waves(), batch_size=16, shuffle=True, num_workers=1, multiprocessing_context="spawn", persistent_workers=True)
    for epoch in range(4):
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 80.0)
            opt.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
