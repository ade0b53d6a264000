"""One clip over encoder and decoder, but only the encoder's optimizer was unscaled."""

import torch
from torch import nn

torch.manual_seed(40)
enc, dec = nn.Linear(10, 6), nn.Linear(6, 10)
opt_e = torch.optim.Adam(enc.parameters(), lr=3e-3)
opt_d = torch.optim.Adam(dec.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for it in range(40):
    x = torch.randn(24, 10) * 2
    opt_e.zero_grad()
    opt_d.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        rec = dec(torch.tanh(enc(x)))
    loss = nn.functional.mse_loss(rec.float(), x, reduction="sum") / 24
    scaler.scale(loss).backward()
    scaler.unscale_(opt_e)
    nn.utils.clip_grad_norm_([*enc.parameters(), *dec.parameters()], 2.0)
    scaler.step(opt_e)
    scaler.step(opt_d)
    scaler.update()
    if it % 10 == 0:
        print(it, loss.item())
