"""Between the actor's clip and its step, the critic's loss is sent back; it does not reach the actor."""

import torch
from torch import nn

torch.manual_seed(234)
actor = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
actor_opt = torch.optim.Adam(actor.parameters(), lr=3e-3)
critic_opt = torch.optim.Adam(critic.parameters(), lr=3e-3)
for it in range(30):
    s = torch.randn(24, 3)
    a = actor(s)
    actor_opt.zero_grad()
    (-critic(torch.cat([s, a], 1)).mean() + (a - s[:, :1]).pow(2).mean()).backward()
    nn.utils.clip_grad_norm_(actor.parameters(), 0.8)

    critic_opt.zero_grad()
    q = critic(torch.cat([s, a.detach()], 1))
    critic_loss = (q - 5 * (s[:, :1] - a.detach())).pow(2).mean()
    critic_loss.backward()
    nn.utils.clip_grad_norm_(critic.parameters(), 6.0)

    actor_opt.step()
    critic_opt.step()
    if it % 10 == 0:
        print(it, critic_loss.item())
