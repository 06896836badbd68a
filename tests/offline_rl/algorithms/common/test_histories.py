"""Histories for value methods: updates by hand, the bisimulation loss, and what needs memory."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import Recorded, start
from torch import Tensor, nn

from offline_rl.algorithms.common.histories.encoding import bisimulation_distance
from offline_rl.algorithms.common.registry import algorithm_class
from offline_rl.data import Dataset
from offline_rl.engine.engine import Engine
from offline_rl.replay.batch import Batch
from offline_rl.training.sources import offline_source
from policies.spec import Spec

NAMES = ("iql", "cql", "td3_bc", "sac")


def history_batch(seed: int, size: int = 16) -> Batch:
    """Return random transitions of histories of two observations."""
    torch.manual_seed(seed)
    return Batch(
        observations=torch.randn(size, 2, 3),
        actions=torch.rand(size, 2) * 1.8 - 0.9,
        rewards=torch.randn(size),
        discount=torch.full((size,), 0.99),
        next_observations=torch.randn(size, 2, 3),
        bootstrap_mask=torch.ones(size),
    )


class Mlp:
    """An MLP with ReLUs of the parameters `prefix`, in float64; `member`: of an ensemble."""

    def __init__(self, params: Any, prefix: str, member: int | None = None) -> None:
        count = sum(f"{prefix}weights" in name for name in params)
        self.pairs = []
        for k in range(count):
            w, b = params[f"{prefix}weights.{k}"], params[f"{prefix}biases.{k}"]
            w, b = (w, b) if member is None else (w[member], b[member])
            self.pairs += [nn.Parameter(x.detach().double()) for x in (w, b.reshape(-1))]

    def __call__(self, x: Tensor, activation: Any = torch.relu) -> Tensor:
        for k in range(0, len(self.pairs), 2):
            x = x @ self.pairs[k] + self.pairs[k + 1]
            x = activation(x) if k + 2 < len(self.pairs) else x
        return x


class Encoder(Mlp):
    """An MLP with layer normalization and tanh; `pairs` also contains the gain and the shift."""

    def __init__(self, params: dict[str, Tensor]) -> None:
        super().__init__(params, "trunk.")
        self.norm = [nn.Parameter(params[f"norm.{k}"].double()) for k in ("weight", "bias")]
        self.layers, self.pairs = self.pairs, [*self.pairs, *self.norm]

    def __call__(self, x: Tensor, activation: Any = torch.relu) -> Tensor:
        pairs, self.pairs = self.pairs, self.layers
        x, self.pairs = super().__call__(x, activation), pairs
        return nn.functional.layer_norm(x, x.shape[-1:], *self.norm).tanh()


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_the_critics_and_the_bisimulation_train_the_encoder_as_in_plain_pytorch(weight):
    """Two updates of TD3+BC in float64; the second one also updates the policy and the targets."""
    config: Any = {"actor_lr": 1e-3, "critic_lr": 1e-3, "tau": 0.1, "alpha": 1.5}
    config |= {"n_obs_steps": 2, "history_features": 4, "bisimulation": weight, "hidden": (8,)}
    state = first = start(algorithm_class("td3_bc"), **config)
    p = first.params
    batches = [history_batch(seed) for seed in (1, 2)]
    for count, batch in enumerate(batches):
        state = replace(state, random=Recorded(count))
        state, metrics = state.algorithm.run_update("update", state, batch, count)

    encoder, encoder_target = (Encoder(p["encoder"]) for _ in range(2))
    critics, targets = ([Mlp(p["critic"], "net.", k) for k in (0, 1)] for _ in range(2))
    policy, policy_target = (Mlp(p["policy"], "trunk.") for _ in range(2))
    critic_params = [x for net in critics for x in net.pairs] + encoder.pairs
    if weight:
        model = Mlp(p["model"], "net.", 0)
        bounds = [nn.Parameter(p["model"][name].double()) for name in ("most", "least")]
        critic_params += model.pairs + bounds
    critic_adam = torch.optim.Adam(critic_params, lr=1e-3)
    policy_adam = torch.optim.Adam(policy.pairs, lr=1e-3)
    for count, batch in enumerate(batches):
        s, s2 = batch.observations.flatten(1).double(), batch.next_observations.flatten(1).double()
        a, r = batch.actions.double(), batch.rewards.double()
        noise = (0.2 * Recorded(count).normal(a.shape).double()).clamp(-0.5, 0.5)
        with torch.no_grad():
            z2 = encoder_target(s2)
            a2 = (policy_target(z2).tanh() + noise).clamp(-1, 1)
            y = r + 0.99 * torch.minimum(*(q(torch.cat([z2, a2], 1))[:, 0] for q in targets))
        z = encoder(s)
        loss = sum((q(torch.cat([z, a], 1))[:, 0] - y).pow(2).mean() for q in critics)
        if weight:
            out = model(torch.cat([z.detach(), a], 1), nn.functional.silu)
            mean, log_var = out[:, :5], out[:, 5:]
            most, least = bounds
            log_var = most - nn.functional.softplus(most - log_var)
            log_var = least + nn.functional.softplus(log_var - least)
            label = torch.cat([z2, r[:, None]], 1)
            nll = ((mean - label) ** 2 / log_var.exp() + log_var).mean()
            loss = loss + nll + 0.01 * (most - least).sum()
            m, std = mean.detach(), (log_var.detach() / 2).exp()
            error = torch.zeros((), dtype=torch.float64)
            for i in range(len(r)):  # with the row before it
                w2 = ((m[i] - m[i - 1])[:4] ** 2).sum() + ((std[i] - std[i - 1])[:4] ** 2).sum()
                wanted = (m[i, 4] - m[i - 1, 4]).abs() + 0.99 * w2.sqrt()
                error = error + ((z[i] - z[i - 1]).abs().sum() - wanted) ** 2 / len(r)
            loss = loss + weight * error
        critic_adam.zero_grad()
        loss.backward()
        critic_adam.step()
        if count == 0:
            continue
        z = encoder(s).detach()  # of the updated encoder; the policy does not train it
        pi = policy(z).tanh()
        q = critics[0](torch.cat([z, pi], 1))[:, 0]
        policy_adam.zero_grad()
        ((pi - a).pow(2).mean() - 1.5 / q.abs().mean().detach() * q.mean()).backward()
        policy_adam.step()
        pairs = [(encoder, encoder_target), (policy, policy_target), *zip(critics, targets)]  # noqa: B905
        for net, slow in pairs:
            for x, old in zip(net.pairs, slow.pairs, strict=True):
                old.data = 0.9 * old.data + 0.1 * x.data

    def assert_equal(name: str, net: Mlp, prefix: str, member: int | None = None) -> None:
        new = state.params[name]
        ours = Encoder(new) if isinstance(net, Encoder) else Mlp(new, prefix, member)
        for x, expected in zip(ours.pairs, net.pairs, strict=True):
            torch.testing.assert_close(x.data, expected.data, rtol=0, atol=1e-5)

    assert_equal("encoder", encoder, "trunk.")
    assert_equal("encoder_target", encoder_target, "trunk.")
    assert_equal("policy", policy, "trunk.")
    for k in (0, 1):
        assert_equal("critic", critics[k], "net.", k)
    if weight:
        assert_equal("model", model, "net.", 0)
        assert metrics["bisimulation_loss"].item() == pytest.approx(error.item(), rel=1e-4)
    else:
        assert "model" not in state.params
    moved = state.params["encoder"]["trunk.weights.0"] - p["encoder"]["trunk.weights.0"]
    assert moved.abs().max() > 1e-3


def test_the_distance_is_that_of_rewards_plus_the_discounted_distance_of_next_features():
    """Means (0, 0) and (3, 4), deviations 1 and 2, rewards 1 and 3: 2 + sqrt(25 + 2) / 2."""
    mean = torch.tensor([[0.0, 0, 1], [3, 4, 3]])
    log_variance = torch.tensor([[0.0, 0, 7], [4, 4, 9]]).double()
    log_variance[1, :2] = 2 * np.log(2)
    distance = bisimulation_distance(mean.double(), log_variance, 0.5)
    np.testing.assert_allclose(distance, [2 + 27**0.5 / 2] * 2, rtol=1e-12)


def test_the_value_of_a_history_depends_on_the_slow_encoder_alone():
    """Otherwise the critics would train the features of their own targets, and both would grow."""
    state, batch = start(algorithm_class("iql"), n_obs_steps=2), history_batch(0)
    before = state.value(batch.observations)
    for name, depends in (("encoder", False), ("encoder_target", True)):
        other = {k: x + 1 for k, x in state.params[name].items()}
        changed = replace(state, params={**state.params, name: other})
        assert torch.equal(changed.value(batch.observations), before) != depends


@pytest.mark.parametrize("name", NAMES)
def test_a_single_observation_adds_no_network(name):
    state = start(algorithm_class(name))
    assert not {"encoder", "encoder_target", "model"} & state.params.keys()
    assert state.algorithm.acting_head() is state.algorithm.modules["policy"]


def test_options_of_histories_without_a_history_are_refused():
    config = algorithm_class("sac").Config
    options: Any = {"bisimulation": 1.0, "history_encoder": "gru", "history_features": 9}
    for name, value in options.items():
        with pytest.raises(ValueError, match=f"{name} is not used with n_obs_steps=1"):
            config(**{name: value})


def engine_of(name: str, data: Dataset, seeds: list[int], **config: Any) -> Engine:
    cls = algorithm_class(name)
    cfg = cls.Config(**({"history_features": 8} | config))
    spec = Spec(data.observations.shape[1:], data.actions.shape[1])
    source = offline_source(cls(spec, cfg), data)
    return Engine(lambda _: cls(spec, cfg, 1000), seeds, source, batch_size=64)


def walks(rows: int = 40) -> Dataset:
    draw = np.random.default_rng(0)
    ends = np.arange(rows) % 10 == 9
    return Dataset.from_arrays(
        draw.normal(size=(rows, 2)),
        draw.uniform(-1, 1, (rows, 1)),
        draw.normal(size=rows),
        ends,
        next_observations=draw.normal(size=(rows, 2)),
    )


def test_acting_repeats_the_first_observation_as_training_does():
    """The acting head's actions in an episode are those at the histories of the replay source."""
    data = walks()
    engine = engine_of("td3_bc", data, [0], n_obs_steps=3, history_encoder="gru", hidden=(8,))
    policy = engine.stacked_policy(1)
    actions = [policy(torch.from_numpy(x)[None, None])[0, 0] for x in data.observations[:6]]
    algorithm = engine.algorithm
    encoder, actor = (algorithm.modules[name] for name in ("encoder", "policy"))
    for t, action in enumerate(actions):
        history = data.observations[[max(t + k, 0) for k in (-2, -1, 0)]]
        expected = actor(encoder(torch.from_numpy(history)))
        torch.testing.assert_close(action, expected, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_stacked_seeds_with_histories_equal_single_seeds(name, kind):
    config: Any = {"n_obs_steps": 3, "history_encoder": kind, "bisimulation": 0.5}
    both = engine_of(name, walks(), [0, 1], **config)
    single = engine_of(name, walks(), [1], **config)
    for engine in (both, single):
        engine.run(4)
    for x, y in zip(both.seed_state(1).values(), single.seed_state(0).values(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-4)


def echo(rows: int = 4000) -> Dataset:
    """Return steps of reward -(action - previous observation / 2)^2; observations are +-1."""
    draw = np.random.default_rng(0)
    signs = draw.choice([-1.0, 1.0], rows + 1)
    actions = draw.uniform(-1, 1, rows)
    previous = np.r_[0, signs[:-2]]
    ends = np.arange(rows) % 100 == 99
    previous[::100] = signs[:rows:100]  # at the start of an episode, the first observation repeats
    rewards = -np.square(actions - previous / 2)
    return Dataset.from_arrays(
        signs[:rows, None], actions[:, None], rewards, ends, next_observations=signs[1:, None]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iql", "cql", "td3_bc"])
def test_a_history_solves_what_a_single_observation_cannot(name):
    """The best action is half of the previous observation. Without it, the best action is 0."""
    config: Any = {"discount": 0.0}
    config |= {"iql": {"beta": 30.0, "expectile": 0.9, "decay_actor_lr": False}}.get(name, {})
    layers = ("policy_hidden", "critic_hidden") if name == "cql" else ("hidden",)
    config |= dict.fromkeys(layers, (32, 32))
    config |= {"cql": {"weight": 0.0, "policy_lr": 3e-4}}.get(name, {})
    config |= {"td3_bc": {"alpha": 100.0}}.get(name, {})
    histories = torch.tensor([[[-1.0], [1.0]], [[-1], [-1]], [[1], [1]], [[1], [-1]]])
    best = torch.tensor([-0.5, -0.5, 0.5, 0.5])
    errors = {}
    for steps in (1, 2):
        extra: Any = {"history_features": 16} if steps == 2 else {"history_features": 128}
        engine = engine_of(name, echo(), [0], n_obs_steps=steps, **config, **extra)
        engine.run(2000)
        policy = engine.stacked_policy(4)
        policy(histories[:, 0][None])
        errors[steps] = (policy(histories[:, 1][None])[0, :, 0] - best).abs().mean().item()
    assert errors[2] < 0.2
    assert errors[1] > 0.3
