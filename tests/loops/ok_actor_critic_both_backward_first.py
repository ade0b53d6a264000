"""Both losses are sent back before either network is clipped and stepped."""

import torch
from torch import nn
from torch.distributions import Normal


class Agent:
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 1))
        self.critic = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 1))
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_opt = torch.optim.SGD(self.critic.parameters(), lr=1e-3)

    def learn(self, obs):
        dist = Normal(self.actor(obs), 0.4)
        act = dist.sample()
        reward = -((act - obs.sum(1, keepdim=True)) ** 2)
        value = self.critic(obs)
        adv = (reward - value).detach()
        actor_loss = -(dist.log_prob(act) * adv).mean()
        critic_loss = (reward - value).pow(2).mean()
        self.actor_opt.zero_grad()
        self.critic_opt.zero_grad()
        actor_loss.backward()
        critic_loss.backward()
        nn.utils.clip_grad_norm_(self.actor.parameters(), 2.0)
        nn.utils.clip_grad_norm_(self.critic.parameters(), 10.0)
        self.actor_opt.step()
        self.critic_opt.step()
        return reward.mean().item()


torch.manual_seed(7)
agent = Agent()
for episode in range(30):
    score = agent.learn(torch.randn(64, 4))
    if episode % 10 == 0:
        print(f"episode {episode}: {score:.2f}")
