"""ReBRAC: two periods by hand, its two penalties, and the next actions it uses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import (
    Recorded,
    action,
    advance,
    assert_same_leaves,
    close,
    doubles,
    follow_leaves,
    hill,
    leaves,
    made_batch,
    one_step,
    opinionated,
    perceptron,
    start,
    step,
    target_after,
    taught,
)

from offline_rl.algorithms.rebrac import ReBRAC
from offline_rl.data import Dataset
from offline_rl.replay.buffer import ReplayBuffer
from policies.spec import Spec

SMALL = {"hidden": (16, 16)}


def with_next_actions(seed):
    batch = made_batch(seed)
    torch.manual_seed(100 + seed)
    return replace(batch, next_actions=torch.rand(len(batch.rewards), 2) * 1.8 - 0.9)


def normalized_critic(own, member, observations, actions):
    """Return linear, ReLU, layer normalization, twice; then linear."""
    x = torch.cat([observations, actions], 1)
    for layer in (0, 1):
        x = x @ own[f"net.weights.{layer}"][member] + own[f"net.biases.{layer}"][member]
        x = x.clamp(min=0)
        mean, variance = x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True)
        x = (x - mean) / (variance + 1e-5).sqrt()
        gain, shift = (own[f"net.norms.{layer}.{k}"][member] for k in ("weight", "bias"))
        x = x * gain + shift
    return (x @ own["net.weights.2"][member] + own["net.biases.2"][member])[:, 0]


def test_two_periods_equal_plain_pytorch():
    config = {"actor_lr": 1e-3, "critic_lr": 1e-3, "tau": 0.1, "policy_bc": 0.3, "critic_bc": 0.7}
    first = start(ReBRAC, **config, **SMALL)
    first.params["critic"]["net.weights.2"].mul_(100)  # else all values are nearly 0
    first = opinionated(first)
    batches = [with_next_actions(seed) for seed in range(4)]
    state, metrics = advance(first, *batches)

    policy, policy_target = (leaves(first.params["policy"]) for _ in range(2))
    critic, critic_target = (leaves(first.params["critic"]) for _ in range(2))
    policy_adam = torch.optim.Adam(policy.values(), lr=1e-3)
    critic_adam = torch.optim.Adam(critic.values(), lr=1e-3)
    for count, batch in enumerate(batches):
        s, a, r, discount, s2 = doubles(batch)
        noise = (0.2 * Recorded(count).normal(a.shape).double()).clip(-0.5, 0.5)
        with torch.no_grad():
            a2 = (perceptron(policy_target, "trunk.", s2).tanh() + noise).clip(-1, 1)
            q2 = torch.minimum(*[normalized_critic(critic_target, k, s2, a2) for k in (0, 1)])
            penalty = ((a2 - batch.next_actions.double()) ** 2).sum(1)
            y = r + discount * (q2 - 0.7 * penalty)
        losses = [((normalized_critic(critic, k, s, a) - y) ** 2).mean() for k in (0, 1)]
        step(critic_adam, sum(losses))
        if count % 2 == 0:
            continue
        pi = perceptron(policy, "trunk.", s).tanh()
        q = torch.minimum(*[normalized_critic(critic, k, s, pi) for k in (0, 1)])
        loss = (0.3 * ((pi - a) ** 2).sum(1) - q / q.abs().mean().item()).mean()
        step(policy_adam, loss)
        follow_leaves(policy_target, policy, 0.1)
        follow_leaves(critic_target, critic, 0.1)
        assert (q > 0).any()  # else a mean of |Q| is not told from the |mean of Q|
        assert (q < 0).any()

    assert_same_leaves(state, "policy", policy, policy_adam)
    assert_same_leaves(state, "policy_target", policy_target)
    assert_same_leaves(state, "critic", critic, critic_adam)
    assert_same_leaves(state, "critic_target", critic_target)
    close(metrics["critic_loss"], sum(losses))
    close(metrics["policy_loss"], loss)


@pytest.mark.parametrize("dimensions", [2, 4])
def test_the_targets_penalty_sums_over_action_dimensions(dimensions):
    """A target policy of 0 and next actions of 0.5 give a penalty of gamma * beta 2 * |A| / 4."""
    batch = made_batch()
    shape = (len(batch.rewards), dimensions)
    batch = replace(batch, actions=torch.zeros(shape), next_actions=torch.full(shape, 0.5))
    targets = []
    for weight in (0.0, 1.0):
        config = {"critic_bc": weight, "policy_noise": 0.0, "spec": Spec((3,), dimensions)}
        state = start(ReBRAC, **config, **SMALL)
        silent = {k: torch.zeros_like(v) for k, v in state.params["policy"].items()}
        state = replace(state, params={**state.params, "policy_target": silent})
        targets.append(advance(state, batch)[1]["target"].item())
    expected = batch.discount.mean().item() * dimensions / 4
    assert targets[0] - targets[1] == pytest.approx(expected, rel=1e-4)


def test_with_zero_penalty_weights_the_data_only_trains_the_critics():
    """beta 1 = 0: the policy ignores the data's actions; beta 2 = 0: the target does."""
    batch, config = with_next_actions(1), {"policy_bc": 0.0, "critic_bc": 0.0, "critic_lr": 0.0}
    other = replace(batch, actions=-batch.actions, next_actions=-batch.next_actions)
    (a, m), (b, n) = (advance(start(ReBRAC, **config, **SMALL), x, x) for x in (batch, other))
    for name, value in a.params["policy"].items():
        assert torch.equal(value, b.params["policy"][name])
    assert m["target"] == n["target"]
    assert m["critic_loss"] != n["critic_loss"]


def episodes():
    """Return a terminated episode of four rows and one cut after three; actions number rows."""
    number = np.arange(8, dtype=np.float32)[:, None]
    ended, cut = number[:, 0] == 3, number[:, 0] == 7
    return Dataset.from_arrays(
        number, number / 10, number[:, 0], ended, cut, next_observations=number + 1
    )


def test_next_actions_are_of_the_same_episode():
    learner = ReBRAC(Spec((1,), 1), ReBRAC.Config(**SMALL))
    data = learner.prepare(episodes())[0]
    columns = learner.make_columns(data)
    tensors = ReplayBuffer.from_dataset(data, columns=columns).tensors()
    found = (10 * tensors["next_actions"][0, :, 0]).round().int().tolist()
    now = (10 * tensors["actions"][0, :, 0]).round().int().tolist()
    assert now == [0, 1, 2, 3, 4, 5, 6]  # row 7 was cut: its next action is unknown
    assert found == [1, 2, 3, 3, 5, 6, 7]  # row 3 ended: whatever stands there is masked
    assert tensors["terminated"][0].tolist() == [0, 0, 0, 1, 0, 0, 0]


def test_output_layers_start_small_and_hidden_biases_at_a_tenth():
    state = start(ReBRAC, **SMALL)
    for name, prefix, bound in (("policy", "trunk", 1e-3), ("critic", "net", 3e-3)):
        params = state.params[name]
        for kind in ("weights", "biases"):
            last = params[f"{prefix}.{kind}.2"].abs()
            assert bound / 100 < last.max() <= bound
        assert (params[f"{prefix}.biases.0"] == torch.tensor(0.1)).all()


def test_finds_the_best_of_uniform_actions():
    """One state, the best reward at 0.3; the pull toward the data's mean, 0, is weak."""
    batches = [hill(k) for k in range(10)]
    actions, rewards = (torch.cat([getattr(b, k) for b in batches]) for k in ("actions", "rewards"))
    config = {"hidden": (32, 32), "actor_lr": 3e-3, "critic_lr": 3e-3, "policy_bc": 0.01}
    state = taught(ReBRAC, one_step(actions, rewards), num_updates=400, **config)
    assert action(state) == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_bootstraps_after_a_truncation_but_not_after_a_termination(noise):
    assert target_after(ReBRAC, terminated=True, policy_noise=noise, **SMALL) == 1
    assert target_after(ReBRAC, terminated=False, policy_noise=noise, **SMALL) != 1
