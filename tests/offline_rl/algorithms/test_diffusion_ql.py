"""Diffusion-QL: updates by hand, the gradient of Q, and the actions of the policy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import Recorded, advance, close, leaves, made_batch, start, two_actions
from torch import Tensor

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.algorithms.diffusion_ql import DiffusionQL
from offline_rl.replay.batch import Batch
from policies.spec import Spec

STEPS = 3
SMALL = {"hidden": (16, 16), "num_inference_steps": STEPS, "actor_lr": 1e-3, "critic_lr": 1e-3}
SMALL |= {"average_start": 2, "average_every": 2, "policy_tau": 0.3, "tau": 0.1}

# The variance-preserving process: beta of each step, alpha-bar after it, and the variance of
# q(x_{t-1} | x_t, x_0).
BETA = [
    1 - math.exp(-0.1 / STEPS - 0.5 * 9.9 * (2 * t - 1) / STEPS**2) for t in range(1, STEPS + 1)
]
ALPHA_BAR = np.cumprod([1 - beta for beta in BETA])
BEFORE = [1.0, *ALPHA_BAR[:-1]]


def perceptron(own, prefix: str, x: Tensor, member: int | None = None) -> Tensor:
    count = sum(k.startswith(f"{prefix}weights.") for k in own)
    for k in range(count):
        weight, bias = own[f"{prefix}weights.{k}"], own[f"{prefix}biases.{k}"]
        weight, bias = (weight, bias) if member is None else (weight[member], bias[member, 0])
        x = x @ weight + bias
        x = x * torch.tanh(torch.log(1 + x.exp())) if k < count - 1 else x  # Mish
    return x


def predicted_noise(own, s: Tensor, x: Tensor, t: Tensor) -> Tensor:
    waves = t[:, None] * torch.exp(-math.log(10_000) * torch.arange(8, dtype=t.dtype) / 7)
    time = perceptron(
        own, "network.embed_time.perceptron.", torch.cat([waves.sin(), waves.cos()], -1)
    )
    return perceptron(own, "network.trunk.", torch.cat([x, time, s], -1))


def sampled(own, s: Tensor, noise: Tensor) -> Tensor:
    """Return the action of ancestral sampling from noise [B, STEPS, A]."""
    x = noise[:, 0]
    for t in reversed(range(STEPS)):
        f = predicted_noise(own, s, x, torch.full((len(s),), float(t), dtype=s.dtype))
        x0 = ((x - math.sqrt(1 - ALPHA_BAR[t]) * f) / math.sqrt(ALPHA_BAR[t])).clamp(-1, 1)
        mean = math.sqrt(BEFORE[t]) * BETA[t] * x0 + math.sqrt(1 - BETA[t]) * (1 - BEFORE[t]) * x
        x = mean / (1 - ALPHA_BAR[t])
        if t:
            std = math.sqrt(BETA[t] * (1 - BEFORE[t]) / (1 - ALPHA_BAR[t]))
            x = x + std * noise[:, STEPS - t]
    return x.clamp(-1, 1)


def q_of(own, s: Tensor, a: Tensor) -> Tensor:
    return torch.stack(
        [perceptron(own, "net.", torch.cat([s, a], -1), k)[:, 0] for k in (0, 1)]
    )  # [2, B]


def clip(loss: Tensor, own, limit: float) -> None:
    """Set the gradients of the parameters, scaled to a joint norm of at most `limit`."""
    grads = torch.autograd.grad(loss, list(own.values()))
    norm = torch.sqrt(sum(g.square().sum() for g in grads))
    for value, g in zip(own.values(), grads, strict=True):
        value.grad = g * min(1.0, limit / norm.item())


def update_by_hand(nets, adams, batch: Batch, random: Recorded, done: int, cfg) -> dict[str, float]:
    """Update the float64 networks; return the losses."""
    names = ("observations", "actions", "rewards", "discount", "next_observations")
    s, a, r, discount, s2 = (getattr(batch, name).double() for name in names)
    count = cfg.num_target_samples
    noise = random.normal((32 * count, STEPS, 1, 2))[:, :, 0].double()
    with torch.no_grad():
        many = s2.repeat_interleave(count, 0)
        q2 = q_of(nets["critic_target"], many, sampled(nets["policy_target"], many, noise))
        y = r + discount * q2.reshape(2, 32, count).max(2).values.min(0).values
    critic_loss = sum((q - y).square().mean() for q in q_of(nets["critic"], s, a))
    clip(critic_loss, nets["critic"], cfg.max_grad_norm)
    adams["critic"].step()

    added = random.normal((1, 32, 1, 2))[0, :, 0].double()
    level = random.integers(STEPS, (1, 32))[0]
    alpha_bar = torch.from_numpy(ALPHA_BAR)[level][:, None]
    x = alpha_bar.sqrt() * a + (1 - alpha_bar).sqrt() * added
    imitation = (predicted_noise(nets["policy"], s, x, level.double()) - added).square().mean()
    noise = random.normal((32, STEPS, 1, 2))[:, :, 0].double()
    q = q_of(nets["critic"], s, sampled(nets["policy"], s, noise))
    first, other = (0, 1) if random.uniform(()) > 0.5 else (1, 0)
    q_loss = -q[first].mean() / q[other].abs().mean().detach()
    policy_loss = imitation + cfg.eta * q_loss
    clip(policy_loss, nets["policy"], cfg.max_grad_norm)
    adams["policy"].step()

    with torch.no_grad():
        follows = done >= cfg.average_start and done % cfg.average_every == 0
        pairs = [("critic", cfg.tau)] + [("policy", cfg.policy_tau)] * follows
        for name, rate in pairs:
            for k, value in nets[name].items():
                nets[f"{name}_target"][k].mul_(1 - rate).add_(rate * value)
    losses = {"critic_loss": critic_loss, "policy_loss": policy_loss, "imitation_loss": imitation}
    return {name: value.item() for name, value in losses.items()}


@pytest.mark.parametrize(
    "options", [{"max_grad_norm": 0.5, "eta": 0.3}, {"num_target_samples": 4, "eta": 2.0}]
)
def test_updates_equal_plain_pytorch(options):
    """The third update is the first that moves the policy's average."""
    state = start(DiffusionQL, **SMALL | options)
    state = replace(state, params=state.params | {"policy_target": dict(state.params["policy"])})
    cfg, nets = state.algorithm.cfg, {k: leaves(v) for k, v in state.params.items()}
    adams = {
        name: torch.optim.Adam(list(nets[name].values()), 1e-3) for name in ("policy", "critic")
    }
    sides = set()
    for done in range(3):
        batch = made_batch(done)
        random = Recorded(done)
        losses = update_by_hand(nets, adams, batch, random, done, cfg)
        sides.add(bool(random.given[-1] > 0.5))
        before = state.params["policy_target"]
        state = replace(state, random=Recorded(done), done=torch.tensor(done))
        state, metrics = state.algorithm.update(state, batch, 0)
        for name, value in losses.items():
            close(metrics[name], value)
        moved = any((state.params["policy_target"][k] != v).any() for k, v in before.items())
        assert moved == (done == 2)
        for name, own in nets.items():
            for k, value in own.items():
                close(state.params[name][k], value)
                if name in adams:
                    moment = adams[name].state[value]["exp_avg"]
                    close(state.optimizer[name]["first"][k], moment)
    assert sides == {False, True}  # each critic was maximized at least once


def test_each_critic_has_the_value_of_its_own_best_sample():
    """The second critic is minus the first one, so their best samples differ."""
    state, batch = start(DiffusionQL, **SMALL | {"num_target_samples": 4}), made_batch()
    critic = {k: v[:1].repeat(2, *[1] * (v.dim() - 1)) for k, v in state.params["critic"].items()}
    for name in ("net.weights.2", "net.biases.2"):
        critic[name][1] *= -1
    state = replace(state, params=state.params | {"critic_target": critic})
    target, (noise,) = state.algorithm.target(state, batch), state.random.given
    s2 = batch.next_observations.repeat_interleave(4, 0)
    q = state.critic_target(s2, state.algorithm.sample(state.policy_target, s2, noise))
    close(q[1], -q[0])
    values = q[0].reshape(32, 4)
    lowest = torch.minimum(values.max(1).values, -values.min(1).values)
    close(target, batch.rewards + batch.discount * lowest)


def policy_gradient(state: State, eta: float) -> dict[str, Tensor]:
    """Return Adam's first moments after one update with this weight of Q."""
    algorithm = state.algorithm.with_values({"eta": torch.tensor(eta)})
    state = replace(state, algorithm=algorithm, random=Recorded(0))
    return algorithm.update(state, made_batch(), 0)[0].optimizer["policy"]["first"]


def test_outside_the_clip_the_gradient_of_q_is_zero():
    """If all predicted actions are outside of the action range, only imitation has a gradient."""
    state = start(DiffusionQL, **SMALL | {"max_grad_norm": 1e9})
    policy = dict(state.params["policy"])
    policy["network.trunk.biases.2"] = torch.full((2,), 1e4)  # predicts far too much noise
    state = replace(state, params=state.params | {"policy": policy})
    without, once = policy_gradient(state, 0.0), policy_gradient(state, 1.0)
    assert all(torch.equal(without[k], once[k]) for k in without)


@pytest.mark.slow
def test_prefers_the_better_of_two_demonstrated_actions():
    """It samples both actions if eta is 0, and the better one if eta is 2."""
    sizes = SMALL | {"hidden": (32, 32), "actor_lr": 1e-2, "num_inference_steps": 5}
    shares = []
    for eta in (0.0, 2.0):
        state = start(DiffusionQL, spec=Spec((1,), 1), eta=eta, **sizes)
        state, _ = advance(state, *[two_actions()] * 100)
        s, noise = torch.zeros(256, 1), torch.randn(256, 5, 1, 1)
        actions = state.algorithm.sample(state.policy, s, noise)
        shares.append((actions > 0).float().mean().item())
    assert 0.25 < shares[0] < 0.75
    assert shares[1] > 0.9


def test_acts_by_the_policy_and_the_target_critics():
    """The probability of an action is softmax of the minimum of the target critics."""
    state = start(DiffusionQL, num_samples=2, **SMALL)
    shifts = enumerate(state.params.items())
    params = {k: {n: v + 0.1 * i for n, v in tree.items()} for i, (k, tree) in shifts}
    head = state.algorithm.acting_head()
    head.load_state_dict(state.algorithm.acting_params(params))
    rows = 40_000
    s, fixed = torch.ones(rows, 1, 3), torch.tensor([[0.5, -1.0], [-0.7, 0.3]]).repeat(1, STEPS)
    noise = torch.cat([fixed.expand(rows, 2, -1), torch.randn(rows, 2, 1)], -1)
    with torch.no_grad():
        actions = head.decide(s, {}, noise)[0][:, 0]
    own = {k: leaves(params[k]) for k in ("policy", "critic_target")}
    each = sampled(own["policy"], torch.ones(2, 3).double(), fixed.reshape(2, STEPS, 2).double())
    q = q_of(own["critic_target"], torch.ones(2, 3).double(), each).min(0).values
    expected = torch.softmax(q, 0)[0].item()
    assert (each[0] - each[1]).abs().max() > 0.1
    first = (actions - each[0]).abs().amax(1) < (actions - each[1]).abs().amax(1)
    close(torch.where(first[:, None], each[0], each[1]), actions)
    assert abs(first.double().mean().item() - expected) < 0.01
    assert abs(expected - 0.5) > 0.03


def test_online_the_average_follows_from_the_first_update():
    learner = start(DiffusionQL).algorithm
    assert learner.cfg.average_start == 1000
    assert learner.for_phase(ONLINE).cfg.average_start == 0
