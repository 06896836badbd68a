"""BCQ-Lag: updates by hand with corrected and released rules, its head, and the cost it reaches."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from by_hand import (
    Recorded,
    advance,
    assert_same_leaves,
    close,
    doubles,
    follow_leaves,
    leaves,
    made_batch,
    perceptron,
    start,
    step,
    taught,
)
from gymnasium.spaces import Box
from torch.distributions import Normal, kl_divergence

import envs
from envs import tasks
from offline_rl import finetune, train
from offline_rl.algorithms.bcq_lag import BCQLag
from offline_rl.algorithms.common.base import Network
from offline_rl.data.dataset import Dataset
from offline_rl.data.read import read
from offline_rl.data.writers.d4rl import write

SMALL = {"policy_hidden": (16, 16), "critic_hidden": (16, 16), "vae_hidden": (16, 16)}
LIMIT = {"target_cost": 2.0, "episode_steps": 100}
KAPPA = 2.0 / 100 * sum(0.95**t for t in range(100))  # of an even spender, with discount 0.95


def with_costs(seed):
    batch = made_batch(seed)
    return replace(batch, costs=(torch.rand(len(batch.rewards)) * 3).floor())


def diverse(state):
    """Return a state with policies that perturb, and cost critics above the limit that differ."""
    torch.manual_seed(1)
    policy = {k: v + 0.5 * torch.randn_like(v) for k, v in state.params["policy"].items()}
    policy["scale"] = state.params["policy"]["scale"]
    cost = {k: 3 * v for k, v in state.params["cost_critic"].items()}
    cost["net.biases.2"] = cost["net.biases.2"] + KAPPA + 1
    params = {**state.params, "policy": policy, "policy_target": policy}
    return replace(state, params=params | {"cost_critic": cost, "cost_critic_target": cost})


def perturb(policy, s, a):
    """Return clip(a + 0.2 tanh(tanh network), -1, 1)."""
    x = torch.cat([s.expand(*a.shape[:-1], s.shape[-1]), a], -1)
    for layer in range(3):
        x = (x @ policy[f"trunk.weights.{layer}"] + policy[f"trunk.biases.{layer}"]).tanh()
    return (a + 0.2 * x).clip(-1, 1)


def propose(vae, s, z):
    s = s.expand(*z.shape[:-1], s.shape[-1])
    return perceptron(vae, "decoder.", torch.cat([s, z.clip(-0.5, 0.5)], -1)).tanh()


def values(own, s, a):
    """Return the values of the four critics, [4, ...]."""
    x = torch.cat([s.expand(*a.shape[:-1], s.shape[-1]), a], -1)
    return torch.stack([perceptron(own, "net.", x, k)[..., 0] for k in range(4)])


def mixed(q):
    one, two = torch.minimum(q[0], q[1]), torch.minimum(q[2], q[3])
    return 0.7 * torch.minimum(one, two) + 0.3 * torch.maximum(one, two)


@pytest.mark.parametrize("released", [False, True])
def test_updates_equal_plain_pytorch(released):
    """Order: VAE, critics, cost critics, multiplier, policy, targets."""
    rates = {"actor_lr": 1e-3, "critic_lr": 2e-3, "vae_lr": 3e-3, "tau": 0.1}
    gains = {"proportional_gain": 0.5, "integral_gain": 0.2, "derivative_gain": 0.3}
    rules = {"num_samples": 5, "min_share": 0.7, "max_perturbation": 0.2, "kl_weight": 0.4}
    rules |= {"cost_discount": 0.95, "as_released": released}
    first = diverse(start(BCQLag, **rates, **gains, **rules, **LIMIT, **SMALL))
    batches = [with_costs(seed) for seed in (1, 2)]
    state, metrics = advance(first, *batches)

    names = "policy", "policy", "critic", "critic", "cost_critic", "cost_critic", "vae"
    policy, slow_policy, critic, slow, cost, slow_cost, vae = (
        leaves(first.params[name]) for name in names
    )
    trunk = [v for k, v in policy.items() if k != "scale"]
    policy_adam = torch.optim.Adam(trunk, lr=1e-3)
    critic_adam = torch.optim.Adam(critic.values(), lr=2e-3)
    cost_adam = torch.optim.Adam(cost.values(), lr=2e-3)
    vae_adam = torch.optim.Adam(vae.values(), lr=3e-3)
    integral = before = 0.0

    for count, batch in enumerate(batches):
        (s, a, r, discount, s2), random = doubles(batch), Recorded(count)
        mean, log_std = perceptron(vae, "encoder.", torch.cat([s, a], 1)).chunk(2, 1)
        q_z = Normal(mean, log_std.clip(-4, 15).exp())
        z = mean + q_z.stddev * random.normal((32, 4)).double()
        decoded = perceptron(vae, "decoder.", torch.cat([s, z], 1)).tanh()
        vae_loss = ((decoded - a) ** 2).mean()
        vae_loss = vae_loss + 0.4 * kl_divergence(q_z, Normal(0.0, 1.0)).mean()
        step(vae_adam, vae_loss)

        with torch.no_grad():
            proposed = propose(vae, s2, random.normal((5, 32, 4)).double())
            q = values(slow, s2, perturb(slow_policy, s2, proposed))
            y = r + discount * mixed(q).max(0).values
        critic_loss = ((values(critic, s, a) - y) ** 2).mean(1).sum()
        step(critic_adam, critic_loss)

        with torch.no_grad():
            proposed = propose(vae, s2, random.normal((5, 32, 4)).double())
            q = values(slow_cost, s2, perturb(slow_policy, s2, proposed))
            following = mixed(q).max(0).values if released else q.max(0).values.mean(0)
            goes_on = 1.0 if released else batch.bootstrap_mask.double()
            cost_target = batch.costs.double() + 0.95 * goes_on * following
        cost_loss = ((values(cost, s, a) - cost_target) ** 2).mean(1).sum()
        step(cost_adam, cost_loss)

        proposed = propose(vae, s, random.normal((1, 32, 4)).double())[0].detach()
        pi = perturb(policy, s, proposed)
        q_cost = values(cost, s, pi)
        q_cost = q_cost.min(0).values if released else q_cost.max(0).values
        excess = q_cost.mean() - KAPPA
        error = excess.item()
        integral = max(integral + error, 0.0)
        multiplier = 0.5 * max(error, 0) + 0.2 * integral + 0.3 * max(error - before, 0)
        before = error
        policy_loss = multiplier * excess - values(critic, s, pi).min(0).values.mean()
        step(policy_adam, policy_loss)
        for old, new in ((slow_policy, policy), (slow, critic), (slow_cost, cost)):
            follow_leaves(old, new, 0.1)

    assert multiplier > 0
    assert_same_leaves(state, "vae", vae, vae_adam)
    assert_same_leaves(state, "critic", critic, critic_adam)
    assert_same_leaves(state, "cost_critic", cost, cost_adam)
    assert_same_leaves(state, "policy", policy)
    for name, own in (("policy", slow_policy), ("critic", slow), ("cost_critic", slow_cost)):
        assert_same_leaves(state, f"{name}_target", own)
    for key, value in policy.items():
        if key != "scale":
            close(state.optimizer["policy"]["first"][key], policy_adam.state[value]["exp_avg"])
    stored = {"value": multiplier, "integral": integral, "previous_error": before}
    for key, number in stored.items():
        close(state.params["multiplier"][key], number)
    expected = {"vae_loss": vae_loss, "critic_loss": critic_loss, "policy_loss": policy_loss}
    expected |= {"cost_critic_loss": cost_loss, "cost_target": cost_target.mean()}
    expected |= {"multiplier": multiplier, "cost_excess": error}
    for name, number in expected.items():
        close(metrics[name], number)


def test_the_head_acts_on_one_perturbed_proposal():
    first = diverse(start(BCQLag, max_perturbation=0.2, **LIMIT, **SMALL))
    algorithm, batch = first.algorithm, made_batch(3)
    params = algorithm.acting_params(first.params)
    noise = 2 * torch.randn(32, 4)
    assert (noise.abs() > 0.5).any()
    head = algorithm.acting_head()
    assert {k for k, _ in head.named_parameters()} == params.keys()
    chunk, _ = Network(head, params).decide(batch.observations[:, None], {}, noise)
    policy, vae = leaves(first.params["policy"]), leaves(first.params["vae"])
    s = batch.observations.double()
    close(chunk, perturb(policy, s, propose(vae, s, noise.double()))[:, None])


def test_the_mean_cost_reaches_the_limit():
    """The reward of an action is the action and its cost is 1 + the action; the limit is 0.8."""
    torch.manual_seed(0)
    actions = torch.rand(512, 1) * 2 - 1
    rewards, zeros = actions[:, 0].numpy(), np.zeros(512, np.float32)
    data = Dataset.from_arrays(
        zeros[:, None], actions.numpy(), rewards, zeros == 0, extras={"costs": 1 + rewards}
    )
    config = {"max_perturbation": 0.9, "reward_scale": 1.0, "actor_lr": 1e-2, "critic_lr": 1e-2}
    config |= {"integral_gain": 0.02, "proportional_gain": 1.0}
    limit = {"target_cost": 0.8, "episode_steps": 1}
    state = taught(BCQLag, data, num_updates=150, **config, **limit, **SMALL)
    s = torch.zeros(256, 1)
    a = state.policy(torch.cat([s, state.vae.sample(s, Recorded(), 1)[0]], -1))
    assert (1 + a).mean().item() == pytest.approx(0.8, abs=0.2)  # without a limit, 1.9
    assert state.params["multiplier"]["value"] > 0.5  # reward and cost have equal gradients


class Line(gymnasium.Env):
    """Point on a line. The cost of a step is the size of its action."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-1, 1))
        return np.array([self.x], np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        self.x += float(action[0])
        info = {"cost": abs(float(action[0]))}
        return np.array([self.x], np.float32), 1.0, False, False, info


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bcq_lag", "cpq"])
def test_fine_tuning_continues_with_the_costs_of_the_environment(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The task sets the limit. Stored costs are the sizes of the stored actions."""
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    envs.register("line", Line, max_episode_steps=5, cost_limits=[1, 2, 4])
    draw, ends = np.random.default_rng(0), np.arange(60) % 5 == 4
    actions = draw.uniform(-1, 1, (60, 1))
    states = draw.normal(size=(61, 1))
    rows = states[:-1], actions, np.ones(60), ends & False, ends, states[1:]
    data = Dataset.from_arrays(*rows, extras={"costs": np.abs(actions[:, 0])})
    sizes = ("hidden",) if name == "cpq" else ("policy_hidden", "critic_hidden")
    tiny: dict[str, Any] = {f"algorithm.{size}": [8] for size in (*sizes, "vae_hidden")}
    tiny |= {"batch_size": 8, "compile": "never", "precision": "fp32", "eval_episodes": 1}
    tiny |= {"checkpoint_every": 20, "eval_every": 1000, "tracker": "none", "show": False}
    keys = {"algorithm": name, "task": "line", "dataset": str(write(data, tmp_path / "a.hdf5"))}
    train(**keys, **tiny, out=str(tmp_path), num_updates=10, name="first")
    run = next(tmp_path.rglob("first"))
    hyper = json.loads((run / "seed_0" / "config.json").read_text())["hyper"]
    assert (hyper["target_cost"], hyper["episode_steps"]) == (2, 5)
    finetune(run=run, **tiny, num_env_steps=20, keep_data=True, name="second")
    folder = next(tmp_path.rglob("second")) / "seed_0"
    stored = read(folder / "experience.hdf5")
    np.testing.assert_allclose(stored.extras["costs"], np.abs(stored.actions[:, 0]), atol=1e-6)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["phase"] == "online"
    assert {"data/cost", "train/multiplier", "train/cost_target"} <= lines[-1].keys()
