"""IDQL: updates by hand, its sampler, the acting policy, and the frozen policy online."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import SPEC, Recorded, advance, close, doubles, leaves, made_batch, perceptron, start
from torch import Tensor

from offline_rl.algorithms.common.base import Interaction, State
from offline_rl.algorithms.idql import IDQL
from policies.heads.schedules import ddpm_clipping_x, sample, variance_preserving_alphas
from policies.spec import Spec

SMALL = {"hidden": (16, 16), "width": 8, "blocks": 2, "time_size": 4, "num_samples": 6}
SMALL |= {"actor_lr": 1e-3, "critic_lr": 1e-3, "value_lr": 1e-3}


def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(torch.log1p(x.exp()))


def network(own: dict[str, Tensor], s: Tensor, x: Tensor, times: Tensor, drops: list[Tensor]):
    """Return the noise that the policy predicts, [B, A]. drops: masks with their scale, or []."""

    def dense(name: str, layer: int, x: Tensor) -> Tensor:
        path = f"network.{name}"
        return x @ own[f"{path}.weights.{layer}"] + own[f"{path}.biases.{layer}"]

    angles = 2 * torch.pi * times[:, None] * own["network.frequencies"]
    waves = torch.cat([angles.cos(), angles.sin()], -1)
    time = dense("embed_time", 1, mish(dense("embed_time", 0, waves)))
    h = dense("first", 0, torch.cat([x, s, time], -1))
    for k in range(2):
        y = h * drops[k] if drops else h
        y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
        y = y * own[f"network.blocks.{k}.norm.weight"] + own[f"network.blocks.{k}.norm.bias"]
        block = f"blocks.{k}.perceptron"
        h = h + dense(block, 1, mish(dense(block, 0, y)))
    return dense("last", 0, mish(h))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_an_update_equals_plain_pytorch(dropout):
    """The policy has AdamW and a decayed learning rate. V is updated before the critics."""
    state = start(IDQL, 10, dropout=dropout, tau=0.1, policy_tau=0.2, expectile=0.8, **SMALL)
    own = {name: leaves(params) for name, params in state.params.items()}
    rates = {"lr": 1e-3, "weight_decay": 0.0}
    adams = {name: torch.optim.AdamW(own[name].values(), **rates) for name in ("value", "critic")}
    adams["model"] = torch.optim.AdamW(own["model"].values(), lr=1e-3, weight_decay=1e-4)
    for count in range(2):
        batch, random = made_batch(count), Recorded(count)
        s, a, _, _, s2 = doubles(batch)
        noise, u = random.normal((1, 32, 1, 2)), random.uniform((1, 32))
        masks = [random.uniform((32, 8)) >= dropout for _ in range(2)] if dropout else []
        drops = [mask / (1 - dropout) for mask in masks]
        k = (5 * u[0]).long()
        t = (k.double() + 1) / 5
        alpha = torch.exp(-0.1 * t - 0.5 * 9.9 * t**2)[:, None]  # product of the authors' alphas
        noise = noise[0, :, 0].double()
        x = alpha.sqrt() * a + (1 - alpha).sqrt() * noise
        prediction = network(own["model"], s, x, k.double(), drops)
        losses = {"policy": (prediction - noise).square().sum(-1).mean()}
        adams["model"].param_groups[0]["lr"] = 1e-3 * 0.5 * (1 + np.cos(np.pi * count / 10))
        take_step(adams["model"], losses["policy"])
        average(own["policy"], own["model"], 0.2)

        def q_of(name: str, s=s, a=a) -> Tensor:
            return torch.stack(
                [perceptron(own[name], "net.", torch.cat([s, a], -1), i)[:, 0] for i in (0, 1)]
            )

        difference = q_of("critic_target").min(0).values - perceptron(own["value"], "net.", s)[:, 0]
        weight = torch.where(difference > 0, 0.8, 0.2)
        losses["value"] = (weight * difference.square()).mean()
        take_step(adams["value"], losses["value"])
        next_value = perceptron(own["value"], "net.", s2)[:, 0].detach()
        y = batch.rewards + batch.discount * next_value
        losses["critic"] = (q_of("critic") - y).square().mean()
        take_step(adams["critic"], losses["critic"])
        average(own["critic_target"], own["critic"], 0.1)

        state = replace(state, random=Recorded(count), done=torch.tensor(count))
        state, metrics = state.algorithm.update(state, batch, 0)
        for name, loss in losses.items():
            close(metrics[f"{name}_loss"], loss)
    for name, params in own.items():
        for key, value in params.items():
            close(state.params[name][key], value)


def take_step(adam: torch.optim.Optimizer, loss: Tensor) -> None:
    adam.zero_grad()
    loss.backward(inputs=[p for group in adam.param_groups for p in group["params"]])
    adam.step()


def average(slow: dict[str, Tensor], fast: dict[str, Tensor], rate: float) -> None:
    for key, value in fast.items():
        slow[key].data = (1 - rate) * slow[key].data + rate * value.data


def test_the_sampler_equals_the_authors_equations():
    """beta_k = 1 - exp(-0.1 / T - 4.95 (2 k - 1) / T^2). Every x is clipped, the last included."""
    steps = np.arange(1, 6)
    beta = 1 - np.exp(-0.1 / 5 - 0.5 * 9.9 * (2 * steps - 1) / 25)
    alpha_bar, draw = np.cumprod(1 - beta), np.random.default_rng(0)
    noise, scale = draw.normal(size=(64, 5, 1, 2)), draw.normal(size=(64, 1, 2))
    x = noise[:, 0]
    for k in (4, 3, 2, 1, 0):
        predicted = np.sin(3 * x + k) * scale
        x = (x - beta[k] / np.sqrt(1 - alpha_bar[k]) * predicted) / np.sqrt(1 - beta[k])
        x = x + np.sqrt(beta[k]) * noise[:, 5 - k] if k else x
        x = x.clip(-1, 1)
    table = ddpm_clipping_x(variance_preserving_alphas(5))
    ours = sample(table, lambda x, k: np.sin(3 * x + k) * scale, noise)
    np.testing.assert_allclose(ours, x, atol=1e-12)
    assert 0.1 < (np.abs(x) == 1).mean() < 0.9


def test_the_moving_average_acts_and_the_target_critics_select():
    """Untrained policies saturate, so that samples differ in several actions alone."""
    state = start(IDQL, spec=Spec((3,), 6), **SMALL)
    shifted = {
        name: {k: v + 0.1 * (place + 1) * torch.randn_like(v) for k, v in params.items()}
        for place, (name, params) in enumerate(state.params.items())
    }
    state = replace(state, params=shifted)
    head = state.algorithm.acting_head()
    head.load_state_dict(state.algorithm.acting_params(state.params))
    s, noise = torch.randn(32, 1, 3), torch.randn(32, *head.noise_shape)
    samples = torch.stack([state.policy.decide(s, {}, noise[:, n])[0][:, 0] for n in range(6)], 1)
    best = state.critic_target(s.expand(-1, 6, -1), samples).min(0).values.argmax(1)
    executed, _ = head.decide(s, {}, noise)
    torch.testing.assert_close(executed[:, 0], samples[torch.arange(32), best])
    for name in ("policy", "critic_target"):  # the trained networks give other actions
        trained = {"policy": "model", "critic_target": "critic"}[name]
        params = state.params | {name: state.params[trained]}
        head.load_state_dict(state.algorithm.acting_params(params))
        assert not torch.allclose(head.decide(s, {}, noise)[0], executed)


def online(**options) -> State:
    """Return the state of a learner in the online phase."""
    state = start(IDQL, **SMALL)
    made = IDQL(
        SPEC, state.algorithm.cfg, 1, Interaction(IDQL.Online(**options), state.algorithm.cfg)
    )
    return replace(state, algorithm=made.for_phase("online"))


def test_online_the_policy_is_frozen_unless_it_is_trained_too():
    assert (IDQL.Online().offline_fraction, IDQL.Online().warmup_steps) == (0.5, 5000)
    for trains in (False, True):
        before = online(train_policy=trains)
        after, metrics = advance(before, made_batch())
        assert ("policy_loss" in metrics) == trains
        for name, params in before.params.items():
            same = all(torch.equal(v, after.params[name][k]) for k, v in params.items())
            assert same == (name in ("policy", "model") and not trains), name
        assert before.algorithm.optimizers()["model"].schedule is None


def test_an_odd_number_of_time_features_is_refused():
    with pytest.raises(ValueError, match=r"time_size=5 is odd\. Use an even number\."):
        IDQL.Config(time_size=5)
