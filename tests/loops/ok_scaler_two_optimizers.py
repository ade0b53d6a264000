"""Both optimizers are unscaled, both networks clipped, one scaler.update."""

import torch
from torch import nn

torch.manual_seed(201)
a = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 5))
b = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
oa, ob = torch.optim.Adam(a.parameters(), lr=2e-3), torch.optim.SGD(b.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
for it in range(30):
    x = torch.randn(24, 5)
    with torch.autocast("cpu", dtype=torch.float16):
        h = a(x)
        y = b(h)
    rec = nn.functional.mse_loss(h.float(), 2 * x)
    reg = nn.functional.mse_loss(y.float(), 3 * x.sum(1, keepdim=True))
    for o in (oa, ob):
        o.zero_grad()
    scaler.scale(rec + reg).backward()
    for net, o, bound in ((a, oa, 3.0), (b, ob, 8.0)):
        scaler.unscale_(o)
        nn.utils.clip_grad_norm_(net.parameters(), bound)
        scaler.step(o)
    scaler.update()
    if it % 10 == 0:
        print(it, rec.item(), reg.item())
