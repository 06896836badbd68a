"""RLPD: a period by hand, different critics in every target, half of each batch per source."""

import math

import numpy as np
import torch
from by_hand import SMALL, Recorded, close, doubles, made_batch, squashed, start, target_after
from torch import Tensor
from torch.nn.functional import layer_norm

from offline_rl.algorithms.common.base import Interaction, State
from offline_rl.algorithms.rlpd import RLPD, Config, Online
from offline_rl.data import Dataset
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.utils.random import Random
from policies import Spec

CYCLE = 3


def start_period(**config: object) -> State:
    """Return a learner with three critics and a period of three."""
    state = start(RLPD, **{**SMALL, "num_critics": 3, "num_min_critics": 2, **config})
    algorithm = state.algorithm
    algorithm.interaction = Interaction(Online(utd=CYCLE), algorithm.cfg)
    return state


def valued(params: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return Q, [E, B], in float64: linear, layer norm, ReLU for each norm, then linear."""
    p = {k: v.double() for k, v in params.items()}
    layers = len([k for k in p if k.startswith("net.weights.")])
    for k in range(layers - 1):
        x = x @ p[f"net.weights.{k}"] + p[f"net.biases.{k}"]
        norm = layer_norm(x, x.shape[-1:])
        x = (norm * p[f"net.norms.{k}.weight"] + p[f"net.norms.{k}.bias"]).relu()
    return (x @ p[f"net.weights.{layers - 1}"] + p[f"net.biases.{layers - 1}"])[..., 0]


def acted(params: dict[str, Tensor], s: Tensor) -> Tensor:
    """Return the policy's outputs, [B, 2 A], in float64."""
    p = {k: v.double() for k, v in params.items()}
    layers = len([k for k in p if k.startswith("trunk.weights.")])
    for k in range(layers):
        s = s @ p[f"trunk.weights.{k}"] + p[f"trunk.biases.{k}"]
        s = s.relu() if k < layers - 1 else s
    return s


def test_a_period_updates_the_actor_last() -> None:
    """The loss by hand: mean over critics of squared errors to the minimum of two sampled ones."""
    state = start_period(tau=0.1, initial_alpha=0.5, actor_lr=1e-3, critic_lr=1e-3, alpha_lr=1e-2)
    for i in range(CYCLE):
        batch, before = made_batch(i), state
        now = State(state.algorithm, state.params, state.optimizer, Recorded(i))
        state, metrics = state.algorithm.update(now, batch, i)
        s, a, r, discount, s2 = doubles(batch)
        random = Recorded(i)
        a2, log_pi2 = squashed(acted(before.params["policy"], s2), random.normal(a.shape).double())
        drawn = random.uniform((3,)).argsort(descending=True)[:2]
        alpha = before.params["log_alpha"]["value"].double().exp()
        q2 = valued(before.params["critic_target"], torch.cat([s2, a2], -1))[drawn].amin(0)
        y = r + discount * (q2 - alpha * log_pi2)
        q = valued(before.params["critic"], torch.cat([s, a], -1))
        close(metrics["critic_loss"], (q - y).square().mean())
        for name, slow in state.params["critic_target"].items():
            own, old = state.params["critic"][name], before.params["critic_target"][name]
            assert torch.allclose(slow, 0.9 * old + 0.1 * own, atol=1e-6)
        last = i == CYCLE - 1
        moved = {n for n in ("policy", "log_alpha") if differ(before, state, n)}
        assert moved == ({"policy", "log_alpha"} if last else set())
    pi, log_pi = squashed(acted(before.params["policy"], s), random.normal(a.shape).double())
    q = valued(state.params["critic"], torch.cat([s, pi], -1)).mean(0)  # the new critics' mean
    close(metrics["policy_loss"], (alpha * log_pi - q).mean())
    close(metrics["entropy"], -log_pi.mean())
    rises = (log_pi.mean() - 0.5 * a.shape[1]).item() > 0  # more certain than it should be
    after = state.params["log_alpha"]["value"].item()
    assert (after > math.log(0.5)) is rises


def differ(one: State, two: State, network: str) -> bool:
    return any((two.params[network][k] != v).any() for k, v in one.params[network].items())


def test_targets_are_the_minimum_of_different_sampled_critics() -> None:
    """Critics 0, 1, 2 return their index: the minimum of two different ones is never 2."""
    state = start_period(backup_entropy=False)
    for value in state.params["critic_target"].values():
        value.zero_()
    last = max(name for name in state.params["critic_target"] if "biases" in name)
    state.params["critic_target"][last] += torch.arange(3.0).reshape(3, 1, 1)
    batch, found = made_batch(), []
    for update in range(60):
        now = State(state.algorithm, state.params, state.optimizer, Recorded(update))
        y = state.algorithm.target(now, batch, torch.tensor(0.0))
        found.append(round(((y - batch.rewards) / batch.discount.clamp(min=1e-9)).max().item()))
    assert set(found) == {0, 1}
    assert 0.15 < np.mean(found) < 0.55  # a third of the pairs leaves out the critic 0


def test_every_batch_is_half_data_and_half_experience() -> None:
    rows = (np.zeros((20, 2)), np.zeros((20, 1)), np.full(20, 7.0), np.zeros(20, bool))
    data = Dataset.from_arrays(*rows, np.arange(20) % 10 == 9, np.zeros((20, 2)))
    online = ReplayBuffer((2,), 1, 30)
    own = {"observations": np.zeros((30, 2)), "actions": np.zeros((30, 1)), "rewards": np.ones(30)}
    flags = {"terminated": np.zeros(30), "truncated": np.zeros(30)}
    online.append(0, own | flags | {"next_observations": np.zeros((30, 2))})
    learner = RLPD(Spec((2,), 1), Config(hidden=(8,), num_critics=2))
    sources = {"offline": ReplayBuffer.from_dataset(data), "online": online}
    source = learner.source("online", sources)
    tensors = {name: {k: v[0] for k, v in part.items()} for name, part in source.tensors().items()}
    random = Random(torch.tensor(0), torch.tensor(0))
    rewards = source.sample(tensors, random, 64, 0.99).rewards
    for size in (2, 8, 64):
        assert all((part == 7).sum() == size // 2 for part in rewards.split(size))


def test_many_updates_need_two_programs() -> None:
    learner = RLPD(Spec((2,), 1), Config(hidden=(8,)))
    assert learner.period == 20
    assert {learner.equivalent_step(i) for i in range(20)} == {0, 19}


def test_bootstraps_after_a_truncation_but_not_after_a_termination() -> None:
    small = {**SMALL, "num_critics": 3}
    assert target_after(RLPD, terminated=True, **small) == 1
    assert target_after(RLPD, terminated=False, **small) != 1
