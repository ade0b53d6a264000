"""All gradients are copied into one vector, and that is clipped."""

import torch
from torch import nn

torch.manual_seed(303)
policy = nn.Sequential(nn.Linear(7, 30), nn.Tanh(), nn.Linear(30, 3))
optimizer = torch.optim.RMSprop(policy.parameters(), lr=2e-3)
whole = nn.Parameter(torch.empty(sum(p.numel() for p in policy.parameters())))
for _ in range(34):
    state = torch.randn(40, 7)
    advantage = 3 * torch.randn(40)
    picked = torch.distributions.Categorical(logits=policy(state))
    loss = -(picked.log_prob(picked.sample()) * advantage).mean() + (policy(state) - state[:, :3]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    whole.grad = torch.cat([p.grad.reshape(-1) for p in policy.parameters()])
    norm = nn.utils.clip_grad_norm_(whole, 0.5)
    optimizer.step()
print(norm.item())
