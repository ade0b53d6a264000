"""The hidden state is carried from one piece of the sequence to the next."""

import torch
from torch import nn

torch.manual_seed(225)
rnn, out = nn.LSTM(1, 16, batch_first=True), nn.Linear(16, 1)
params = [*rnn.parameters(), *out.parameters()]
opt = torch.optim.Adam(params, lr=5e-3)
t = torch.arange(201.0) * 0.3
signal = torch.stack([(1 + k) * torch.sin(t + k) for k in range(8)]).unsqueeze(-1)
for epoch in range(4):
    state = None
    for piece in range(0, 200, 20):
        x, y = signal[:, piece : piece + 20], signal[:, piece + 1 : piece + 21]
        h, state = rnn(x, state)
        state = tuple(s.detach() for s in state)
        loss = nn.functional.mse_loss(out(h), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 3.0)
        opt.step()
    print(epoch, loss.item())
