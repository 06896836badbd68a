"""Baselines: single-seed eager PyTorch in the style of CORL.

Each network is an `nn.Module` with its own `torch.optim.Adam`. Updates call `zero_grad`, `backward`
and `step`; target networks are updated parameter by parameter; batches are gathered by random
indices. Nothing is compiled.
Style: tinkoff-ai/CORL:algorithms/offline/{td3_bc,iql,cql,edac}.py. CQL and EDAC have three hidden
layers, as in CORL.
"""

from __future__ import annotations

import copy
import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH, HIDDEN = 256, 256


def mlp(sizes: list[int], last: nn.Module | None = None) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, out in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(fan_in, out), nn.ReLU()]
    layers.pop()
    return nn.Sequential(*layers, *([last] if last is not None else []))


def plain_fault(learner: object) -> str | None:
    """Return why a baseline's speed is meaningless; None if all its parameters are finite."""
    networks = [x for x in vars(learner).values() if isinstance(x, nn.Module)]
    if all(p.isfinite().all() for network in networks for p in network.parameters()):
        return None
    return "the parameters are not finite"


class Buffer:
    def __init__(self, data: dict[str, Tensor]) -> None:
        self.data, self.size = data, len(data["rewards"])

    def sample(self) -> list[Tensor]:
        names = ("observations", "actions", "rewards", "next_observations", "dones")
        indices = torch.randint(0, self.size, (BATCH,), device=self.data["rewards"].device)
        return [self.data[name][indices] for name in names]


class Q(nn.Module):
    def __init__(self, obs: int, act: int, layers: int = 2) -> None:
        super().__init__()
        self.net = mlp([obs + act, *[HIDDEN] * layers, 1])

    def forward(self, s: Tensor, a: Tensor) -> Tensor:
        return self.net(torch.cat([s, a], -1)).squeeze(-1)


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    for t, s in zip(target.parameters(), source.parameters(), strict=True):
        t.data.copy_((1 - tau) * t.data + tau * s.data)


def adam(net: nn.Module, lr: float = 3e-4) -> torch.optim.Adam:
    return torch.optim.Adam(net.parameters(), lr=lr)


class TD3BC:
    def __init__(self, obs: int, act: int, device: torch.device | str = "cpu") -> None:
        self.actor = mlp([obs, HIDDEN, HIDDEN, act], nn.Tanh()).to(device)
        self.q1, self.q2 = Q(obs, act).to(device), Q(obs, act).to(device)
        self.actor_t, self.q1_t, self.q2_t = map(copy.deepcopy, (self.actor, self.q1, self.q2))
        self.actor_o, self.q1_o, self.q2_o = adam(self.actor), adam(self.q1), adam(self.q2)
        self.it = 0

    def train(self, batch: list[Tensor]) -> dict[str, float]:
        self.it += 1
        s, a, r, s2, d = batch
        with torch.no_grad():
            noise = (torch.randn_like(a) * 0.2).clamp(-0.5, 0.5)
            a2 = (self.actor_t(s2) + noise).clamp(-1, 1)
            y = r + 0.99 * (1 - d) * torch.min(self.q1_t(s2, a2), self.q2_t(s2, a2))
        loss = F.mse_loss(self.q1(s, a), y) + F.mse_loss(self.q2(s, a), y)
        log = {"critic_loss": loss.item()}
        self.q1_o.zero_grad()
        self.q2_o.zero_grad()
        loss.backward()
        self.q1_o.step()
        self.q2_o.step()
        if self.it % 2 == 0:
            pi = self.actor(s)
            q = self.q1(s, pi)
            lam = 2.5 / q.abs().mean().detach()
            actor_loss = -lam * q.mean() + F.mse_loss(pi, a)
            log["actor_loss"] = actor_loss.item()
            self.actor_o.zero_grad()
            actor_loss.backward()
            self.actor_o.step()
            for t, n in ((self.q1_t, self.q1), (self.q2_t, self.q2), (self.actor_t, self.actor)):
                soft_update(t, n, 0.005)
        return log


class GaussianActor(nn.Module):
    def __init__(self, obs: int, act: int) -> None:
        super().__init__()
        self.net = mlp([obs, HIDDEN, HIDDEN, act], nn.Tanh())
        self.log_std = nn.Parameter(torch.zeros(act))

    def forward(self, s: Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(self.net(s), self.log_std.clamp(-20, 2).exp())


class TwinQ(nn.Module):
    def __init__(self, obs: int, act: int) -> None:
        super().__init__()
        self.q1, self.q2 = Q(obs, act), Q(obs, act)

    def both_values(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        return self.q1(s, a), self.q2(s, a)

    def forward(self, s: Tensor, a: Tensor) -> Tensor:
        return torch.min(*self.both_values(s, a))


class IQL:
    def __init__(self, obs: int, act: int, device: torch.device | str = "cpu") -> None:
        self.q, self.actor = TwinQ(obs, act).to(device), GaussianActor(obs, act).to(device)
        self.v = mlp([obs, HIDDEN, HIDDEN, 1]).to(device)
        self.q_t = copy.deepcopy(self.q).requires_grad_(False)
        self.q_o, self.v_o, self.actor_o = adam(self.q), adam(self.v), adam(self.actor)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.actor_o, 1_000_000)

    def train(self, batch: list[Tensor]) -> dict[str, float]:
        s, a, r, s2, d = batch
        log = {}
        with torch.no_grad():
            next_v = self.v(s2).squeeze(-1)
            target_q = self.q_t(s, a)
        adv = target_q - self.v(s).squeeze(-1)
        v_loss = (torch.abs(0.7 - (adv < 0).float()) * adv**2).mean()
        log["value_loss"] = v_loss.item()
        self.v_o.zero_grad()
        v_loss.backward()
        self.v_o.step()
        y = r + (1 - d) * 0.99 * next_v.detach()
        qs = self.q.both_values(s, a)
        q_loss = sum(F.mse_loss(q, y) for q in qs) / len(qs)
        log["q_loss"] = q_loss.item()
        self.q_o.zero_grad()
        q_loss.backward()
        self.q_o.step()
        soft_update(self.q_t, self.q, 0.005)
        weight = torch.exp(3.0 * adv.detach()).clamp(max=100.0)
        bc = -self.actor(s).log_prob(a).sum(-1)
        actor_loss = (weight * bc).mean()
        log["actor_loss"] = actor_loss.item()
        self.actor_o.zero_grad()
        actor_loss.backward()
        self.actor_o.step()
        self.schedule.step()
        return log


class TanhActor(nn.Module):
    def __init__(self, obs: int, act: int) -> None:
        super().__init__()
        self.net = mlp([obs, HIDDEN, HIDDEN, HIDDEN, 2 * act])
        self.mult, self.shift = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(-1.0))

    def forward(self, s: Tensor, repeat: int | None = None) -> tuple[Tensor, Tensor]:
        if repeat is not None:
            s = s.unsqueeze(1).repeat(1, repeat, 1)
        mean, log_std = self.net(s).chunk(2, -1)
        std = (self.mult * log_std + self.shift).clamp(-20, 2).exp()
        normal = torch.distributions.Normal(mean, std)
        u = normal.rsample()
        correction = 2 * (math.log(2) - u - F.softplus(-2 * u))
        return u.tanh(), (normal.log_prob(u) - correction).sum(-1)


class SquashedActor(TanhActor):
    """SAC's actor: two hidden layers, unscaled log standard deviation."""

    def __init__(self, obs: int, act: int) -> None:
        super().__init__(obs, act)
        self.net = mlp([obs, HIDDEN, HIDDEN, 2 * act])
        self.mult.requires_grad_(False).fill_(1.0)
        self.shift.requires_grad_(False).fill_(0.0)


class CQL:
    """CQL(H) with importance sampling, 10 actions, without the Lagrange multiplier."""

    def __init__(self, obs: int, act: int, device: torch.device | str = "cpu") -> None:
        self.act_dim = act
        self.actor = TanhActor(obs, act).to(device)
        self.q1, self.q2 = Q(obs, act, 3).to(device), Q(obs, act, 3).to(device)
        self.q1_t, self.q2_t = copy.deepcopy(self.q1), copy.deepcopy(self.q2)
        self.log_alpha = nn.Parameter(torch.tensor(0.0, device=device))
        self.actor_o = adam(self.actor, 3e-5)
        self.q_o = torch.optim.Adam([*self.q1.parameters(), *self.q2.parameters()], lr=3e-4)
        self.alpha_o = torch.optim.Adam([self.log_alpha], lr=3e-5)

    def repeated(self, q: Q, s: Tensor, a: Tensor) -> Tensor:
        n = a.shape[1]
        s = s.unsqueeze(1).repeat(1, n, 1).reshape(-1, s.shape[-1])
        return q(s, a.reshape(-1, a.shape[-1])).reshape(-1, n)

    def train(self, batch: list[Tensor]) -> dict[str, float]:
        s, a, r, s2, d = batch
        new_a, log_pi = self.actor(s)
        alpha_loss = -(self.log_alpha * (log_pi - self.act_dim).detach()).mean()
        alpha = self.log_alpha.exp()
        q_new = torch.min(self.q1(s, new_a), self.q2(s, new_a))
        policy_loss = (alpha * log_pi - q_new).mean()
        q1, q2 = self.q1(s, a), self.q2(s, a)
        with torch.no_grad():
            a2, _ = self.actor(s2)
            y = r + 0.99 * (1 - d) * torch.min(self.q1_t(s2, a2), self.q2_t(s2, a2))
        loss = F.mse_loss(q1, y) + F.mse_loss(q2, y)
        u = torch.empty(len(s), 10, self.act_dim, device=s.device).uniform_(-1, 1)
        with torch.no_grad():
            c, c_log = self.actor(s, 10)
            n, n_log = self.actor(s2, 10)
        for q, q_data in ((self.q1, q1), (self.q2, q2)):
            sampled = [
                self.repeated(q, s, u) - math.log(0.5**self.act_dim),
                self.repeated(q, s, n) - n_log,
                self.repeated(q, s, c) - c_log,
            ]
            gap = torch.logsumexp(torch.cat(sampled, 1), 1) - q_data
            loss = loss + 10.0 * gap.mean()
        log = {"q_loss": loss.item(), "policy_loss": policy_loss.item()}
        self.alpha_o.zero_grad()
        alpha_loss.backward()
        self.alpha_o.step()
        self.actor_o.zero_grad()
        policy_loss.backward(retain_graph=True)
        actor_grads = [p.grad for p in self.actor.parameters()]
        self.q_o.zero_grad()
        loss.backward()
        assert all(g is not None for g in actor_grads)
        self.actor_o.step()
        self.q_o.step()
        soft_update(self.q1_t, self.q1, 0.005)
        soft_update(self.q2_t, self.q2, 0.005)
        return log


class Ensemble(nn.Module):
    """Ensemble of Q networks in batched matrix multiplications, like CORL's VectorizedCritic."""

    def __init__(self, sizes: list[int], members: int) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(sizes))
        self.weights = nn.ParameterList([torch.randn(members, i, o) / i**0.5 for i, o in pairs])
        self.biases = nn.ParameterList([torch.zeros(members, 1, o) for _, o in pairs])

    def forward(self, s: Tensor, a: Tensor) -> Tensor:
        x = torch.cat([s, a], -1)
        x = x if x.dim() == 3 else x.expand(len(self.weights[0]), *x.shape)
        for k, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(b, x, w)
            x = x if k == len(self.weights) - 1 else x.relu()
        return x.squeeze(-1)


class NormalizedEnsemble(Ensemble):
    """Ensemble with layer normalization before each ReLU."""

    def forward(self, s: Tensor, a: Tensor) -> Tensor:
        x = torch.cat([s, a], -1)
        x = x.expand(len(self.weights[0]), *x.shape)
        for k, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(b, x, w)
            if k < len(self.weights) - 1:
                x = (F.layer_norm(x, x.shape[-1:]) * self.gains[k] + self.shifts[k]).relu()
        return x.squeeze(-1)

    def __init__(self, sizes: list[int], members: int) -> None:
        super().__init__(sizes, members)
        self.gains = nn.ParameterList([torch.ones(members, 1, size) for size in sizes[1:-1]])
        self.shifts = nn.ParameterList([torch.zeros(members, 1, size) for size in sizes[1:-1]])


class RLPD:
    """RLPD: ten critics with two layer-normalized hidden layers; targets use two random critics."""

    def __init__(self, obs: int, act: int, device: torch.device | str = "cpu") -> None:
        self.act_dim, self.members = act, 10
        self.actor = SquashedActor(obs, act).to(device)
        self.q = NormalizedEnsemble([obs + act, HIDDEN, HIDDEN, 1], self.members).to(device)
        self.q_t = copy.deepcopy(self.q).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor(0.0, device=device))
        self.actor_o, self.q_o = adam(self.actor), adam(self.q)
        self.alpha_o = torch.optim.Adam([self.log_alpha], lr=3e-4)

    def train(self, batches: list[list[Tensor]]) -> dict[str, float]:
        """Update the critics on each batch, and the actor on the last batch."""
        alpha = self.log_alpha.exp().detach()
        for s, a, r, s2, d in batches:
            with torch.no_grad():
                a2, log_pi2 = self.actor(s2)
                subset = torch.randperm(self.members, device=s.device)[:2]
                min_q = self.q_t(s2, a2)[subset].min(0).values - alpha * log_pi2
                y = r + 0.99 * (1 - d) * min_q
            loss = (self.q(s, a) - y).square().mean()
            self.q_o.zero_grad()
            loss.backward()
            self.q_o.step()
            with torch.no_grad():
                soft_update(self.q_t, self.q, 0.005)
        pi, log_pi = self.actor(s)
        actor_loss = (alpha * log_pi - self.q(s, pi).mean(0)).mean()
        self.actor_o.zero_grad()
        actor_loss.backward()
        self.actor_o.step()
        alpha_loss = -(self.log_alpha.exp() * (log_pi - 0.5 * self.act_dim).detach()).mean()
        self.alpha_o.zero_grad()
        alpha_loss.backward()
        self.alpha_o.step()
        return {"q_loss": loss.item(), "policy_loss": actor_loss.item()}


class EDAC:
    """EDAC: ten critics with three hidden layers, gradient diversity with weight 1."""

    def __init__(self, obs: int, act: int, device: torch.device | str = "cpu") -> None:
        self.act_dim, self.members = act, 10
        self.actor = TanhActor(obs, act).to(device)
        self.q = Ensemble([obs + act, *[HIDDEN] * 3, 1], self.members).to(device)
        self.q_t = copy.deepcopy(self.q).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor(0.0, device=device))
        self.actor_o, self.q_o = adam(self.actor), adam(self.q)
        self.alpha_o = torch.optim.Adam([self.log_alpha], lr=3e-4)

    def diversity(self, s: Tensor, a: Tensor) -> Tensor:
        a = a.expand(self.members, *a.shape).clone().requires_grad_()
        s = s.expand(self.members, *s.shape)
        grads = torch.autograd.grad(self.q(s, a).sum(), a, create_graph=True)[0]
        grads = (grads / (grads.norm(p=2, dim=2, keepdim=True) + 1e-10)).transpose(0, 1)
        cosines = grads @ grads.transpose(1, 2)
        masked = cosines * (1 - torch.eye(self.members, device=a.device))
        return masked.sum((1, 2)).mean() / (self.members - 1)

    def train(self, batch: list[Tensor]) -> dict[str, float]:
        s, a, r, s2, d = batch
        alpha = self.log_alpha.exp().detach()
        _, log_pi = self.actor(s)
        alpha_loss = -(self.log_alpha.exp() * (log_pi - self.act_dim).detach()).mean()
        self.alpha_o.zero_grad()
        alpha_loss.backward()
        self.alpha_o.step()
        new_a, log_pi = self.actor(s)
        actor_loss = (alpha * log_pi - self.q(s, new_a).min(0).values).mean()
        self.actor_o.zero_grad()
        actor_loss.backward()
        self.actor_o.step()
        with torch.no_grad():
            a2, log_pi2 = self.actor(s2)
            y = r + 0.99 * (1 - d) * (self.q_t(s2, a2).min(0).values - alpha * log_pi2)
        loss = (self.q(s, a) - y).square().mean(1).sum() + self.diversity(s, a)
        self.q_o.zero_grad()
        loss.backward()
        self.q_o.step()
        with torch.no_grad():
            soft_update(self.q_t, self.q, 0.005)
        return {"q_loss": loss.item(), "policy_loss": actor_loss.item()}


class Denoiser(nn.Module):
    """MLP that predicts the chunk from observation, noisy chunk and denoising step."""

    def __init__(self, obs: int, chunk: int) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 128), nn.Mish(), nn.Linear(128, 32))
        sizes = [obs + chunk + 32, *[HIDDEN] * 3, chunk]
        layers: list[nn.Module] = []
        for fan_in, out in itertools.pairwise(sizes):
            layers += [nn.Linear(fan_in, out), nn.Mish()]
        self.net = nn.Sequential(*layers[:-1])

    def forward(self, s: Tensor, x: Tensor, step: Tensor) -> Tensor:
        waves = (torch.arange(16, device=x.device) * (-math.log(10_000) / 15)).exp()
        angles = step[:, None] * waves
        embedding = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        return self.net(torch.cat([s, x.flatten(1), embedding], -1)).view_as(x)


class DPPO:
    """Proximal policy optimization of the last denoising steps (irom-princeton/dppo)."""

    def __init__(
        self,
        obs: int,
        act: int,
        horizon: int,
        n_action_steps: int,
        num_inference_steps: int,
        tuned: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.shape, self.n_action_steps = (horizon, act), n_action_steps
        self.num_inference_steps, self.tuned = num_inference_steps, tuned
        self.model = Denoiser(obs, horizon * act).to(device)
        self.base = copy.deepcopy(self.model).requires_grad_(False)
        self.value = nn.Sequential(
            *[nn.Linear(obs, HIDDEN), nn.Mish(), nn.Linear(HIDDEN, HIDDEN), nn.Mish()],
            *[nn.Linear(HIDDEN, HIDDEN), nn.Mish(), nn.Linear(HIDDEN, 1)],
        ).to(device)
        self.model_o, self.value_o = adam(self.model, 1e-4), adam(self.value, 1e-3)
        level = torch.linspace(1, 0, num_inference_steps + 1, device=device)
        alpha_bar = torch.cos((level + 0.008) / 1.008 * math.pi / 2).square().clamp(1e-4, 0.9999)
        noisy, cleaner = alpha_bar[:-1], alpha_bar[1:]
        ratio = noisy / cleaner
        self.chunk_weight = cleaner.sqrt() * (1 - ratio) / (1 - noisy)
        self.x_weight = ratio.sqrt() * (1 - cleaner) / (1 - noisy)
        self.std = ((1 - ratio) * (1 - cleaner) / (1 - noisy)).sqrt().clamp(min=0.1)

    def mean(self, net: nn.Module, s: Tensor, x: Tensor, k: Tensor) -> Tensor:
        chunk = net(s, x, k.float()).clamp(-1, 1)
        return self.chunk_weight[k][:, None, None] * chunk + self.x_weight[k][:, None, None] * x

    @torch.no_grad()
    def sample(self, s: Tensor) -> Tensor:
        """Return denoising chains [B, tuned + 1, T, A]."""
        x, chain = torch.randn(len(s), *self.shape, device=s.device), []
        for k in range(self.num_inference_steps):
            is_tuned = k >= self.num_inference_steps - self.tuned
            chain += [x] if is_tuned else []
            at = torch.full((len(s),), k, device=s.device)
            noise = torch.randn_like(x).clamp(-3, 3)
            net = self.model if is_tuned else self.base
            x = self.mean(net, s, x, at) + self.std[k] * noise
        return torch.stack([*chain, x], 1)

    def log_prob(self, s: Tensor, chain: Tensor, k: Tensor) -> Tensor:
        rows, step = (
            torch.arange(len(k), device=k.device),
            k + self.num_inference_steps - self.tuned,
        )
        mean = self.mean(self.model, s, chain[rows, k], step)
        std = self.std[step][:, None, None]
        log_prob = torch.distributions.Normal(mean, std).log_prob(chain[rows, k + 1])
        return log_prob[:, : self.n_action_steps].clamp(-5, 2).mean((1, 2))

    def train(
        self, rows: dict[str, Tensor], discount: float, trace: float, epochs: int, batch: int
    ) -> dict[str, float]:
        """Do the updates of one iteration on [T, E] decisions."""
        with torch.no_grad():
            values = self.value(rows["observations"]).squeeze(-1)
            following = self.value(rows["following"]).squeeze(-1)
            td_error = rows["rewards"] + discount * rows["alive"] * following - values
            advantages, last = torch.zeros_like(values), torch.zeros_like(values[0])
            for t in reversed(range(len(values))):
                last = td_error[t] + discount * trace * (1 - rows["ended"][t]) * last
                advantages[t] = last
            returns, advantages = (advantages + values).flatten(), advantages.flatten()
            s, chain = rows["observations"].flatten(0, 1), rows["chain"].flatten(0, 1)
            steps = [torch.full((len(s),), k, device=s.device) for k in range(self.tuned)]
            old = torch.stack([self.log_prob(s, chain, k) for k in steps], 1)
        for _ in range(epochs):
            order = torch.randperm(old.numel(), device=s.device)
            for pairs in order.split(batch):
                n, k = pairs // self.tuned, pairs % self.tuned
                a = advantages[n]
                a = (a - a.mean()) / (a.std() + 1e-8) * 0.99 ** (self.tuned - 1 - k)
                ratio = (self.log_prob(s[n], chain[n], k) - old[n, k]).exp()
                share = torch.expm1(3.0 * k / (self.tuned - 1)) / math.expm1(3.0)
                clip = 0.01 + 0.09 * share
                policy_loss = torch.maximum(-a * ratio, -a * ratio.clamp(1 - clip, 1 + clip)).mean()
                value_loss = (self.value(s[n]).squeeze(-1) - returns[n]).square().mean()
                self.model_o.zero_grad()
                self.value_o.zero_grad()
                (policy_loss + 0.25 * value_loss).backward()
                self.model_o.step()
                self.value_o.step()
        return {"policy_loss": policy_loss.item(), "value_loss": value_loss.item()}


BASELINES = {"td3_bc": TD3BC, "iql": IQL, "cql": CQL, "edac": EDAC}
