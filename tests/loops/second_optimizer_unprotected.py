"""The policy is clipped, the value network with its large returns is not."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(58)
policy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
value = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
opt_policy = torch.optim.Adam(policy.parameters(), lr=2e-3)
opt_value = torch.optim.Adam(value.parameters(), lr=2e-3)
for it in range(30):
    obs = torch.randn(40, 3)
    dist = Categorical(logits=policy(obs))
    act = dist.sample()
    ret = 30.0 * (act == (obs[:, 0] > 0).long()).float()
    v = value(obs).squeeze(1)
    policy_loss = -(dist.log_prob(act) * (ret - v).detach()).mean()
    value_loss = (ret - v).pow(2).mean()
    opt_policy.zero_grad()
    policy_loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
    opt_policy.step()
    opt_value.zero_grad()
    value_loss.backward()
    opt_value.step()
    if it % 10 == 0:
        print(it, ret.mean().item(), value_loss.item())
