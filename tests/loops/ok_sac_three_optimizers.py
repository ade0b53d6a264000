"""SAC: critics, actor and temperature have optimizers of their own, and each is clipped."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, o))


class SAC:
    def __init__(self, cfg):
        self.cfg = cfg
        self.actor, self.q1, self.q2 = mlp(4, 4), mlp(6, 1), mlp(6, 1)
        self.t1, self.t2 = mlp(6, 1), mlp(6, 1)
        self.t1.load_state_dict(self.q1.state_dict())
        self.t2.load_state_dict(self.q2.state_dict())
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.pi_opt = torch.optim.Adam(self.actor.parameters(), lr=cfg.lr)
        self.q_params = list(self.q1.parameters()) + list(self.q2.parameters())
        self.q_opt = torch.optim.Adam(self.q_params, lr=cfg.lr)
        self.a_opt = torch.optim.Adam([self.log_alpha], lr=cfg.lr)

    def sample(self, s):
        mu, ls = self.actor(s).chunk(2, -1)
        d = torch.distributions.Normal(mu, ls.clamp(-5, 2).exp())
        u = d.rsample()
        a = torch.tanh(u)
        return a, (d.log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)).sum(-1, keepdim=True)

    def learn(self, s, a, r, n):
        alpha = self.log_alpha.exp()
        with torch.no_grad():
            na, nlp = self.sample(n)
            tq = torch.min(self.t1(torch.cat([n, na], 1)), self.t2(torch.cat([n, na], 1)))
            y = r + 0.95 * (tq - alpha * nlp)
        sa = torch.cat([s, a], 1)
        q_loss = F.mse_loss(self.q1(sa), y) + F.mse_loss(self.q2(sa), y)
        self.minimise(self.q_opt, q_loss, self.q_params)
        pa, lp = self.sample(s)
        q = torch.min(self.q1(torch.cat([s, pa], 1)), self.q2(torch.cat([s, pa], 1)))
        self.minimise(self.pi_opt, (alpha.detach() * lp - q).mean(), self.actor.parameters())
        self.minimise(self.a_opt, -(self.log_alpha.exp() * (lp + 2).detach()).mean(), [self.log_alpha])
        with torch.no_grad():
            for net, tgt in ((self.q1, self.t1), (self.q2, self.t2)):
                for p, t in zip(net.parameters(), tgt.parameters(), strict=False):
                    t.lerp_(p, 0.01)
        return q_loss.item()

    def minimise(self, opt, loss, params):
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, self.cfg.max_grad_norm)
        opt.step()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--max-grad-norm", type=float, default=2.5)
    cfg = p.parse_args()
    torch.manual_seed(4)
    agent = SAC(cfg)
    for i in range(16):
        s = torch.randn(32, 4)
        a = torch.rand(32, 2) * 2 - 1
        print(i, agent.learn(s, a, (s[:, :2] * a).sum(1, keepdim=True) * 2, torch.randn(32, 4)))
