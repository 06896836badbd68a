"""FQL: two updates by hand, its gradients, its chunks, and the effect of its Q term."""

from dataclasses import replace

import pytest
import torch
from by_hand import (
    SPEC,
    Recorded,
    advance,
    chunked,
    close,
    gelu_perceptron,
    hill,
    made_batch,
    start,
    two_actions,
)
from torch import Tensor
from torch.func import functional_call

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.dsrl import DSRL
from offline_rl.algorithms.expo import EXPO
from offline_rl.algorithms.fql import FQL
from offline_rl.algorithms.idql import IDQL
from offline_rl.algorithms.ifql import IFQL
from offline_rl.replay.batch import Batch
from policies.spec import Spec

SMALL = {"hidden": (16, 16), "num_inference_steps": 3, "actor_lr": 1e-3, "critic_lr": 1e-3}
FAST = SMALL | {"hidden": (32, 32), "actor_lr": 1e-2, "critic_lr": 1e-2}


@pytest.mark.parametrize("options", [{"alpha": 3.0, "normalize_q": False}, {"q_aggregate": "min"}])
def test_an_update_equals_plain_pytorch(options):
    batches = [chunked(made_batch(seed)) for seed in range(2)]
    state, metrics = start(FQL, **options, **SMALL, tau=0.1), {}
    for count, batch in enumerate(batches):
        leaves = {
            name: {k: v.clone().requires_grad_() for k, v in state.params[name].items()}
            for name in state.params
        }
        losses, new_target = losses_by_hand(state, batch, leaves, Recorded(count))
        sum(losses[name] for name in ("critic", "flow", "policy")).backward()
        before = state
        state, metrics = state.algorithm.update(replace(state, random=Recorded(count)), batch, 0)
        for name in ("critic", "flow", "policy"):
            for k, leaf in leaves[name].items():
                old = before.optimizer[name]["first"][k]
                close(state.optimizer[name]["first"][k], 0.9 * old + 0.1 * leaf.grad)
            metric = "imitation_loss" if name == "flow" else f"{name}_loss"
            close(metrics[metric], losses[name])
        for k, value in new_target.items():
            close(state.params["critic_target"][k], value)


def losses_by_hand(state: State, batch: Batch, leaves, random: Recorded):
    """Return the losses at the old parameters, and the new target parameters."""
    cfg = state.algorithm.cfg
    s, s2, a = batch.observations[:, 0], batch.next_observations[:, 0], batch.actions[:, 0]

    def q_of(name: str, s: Tensor, a: Tensor) -> Tensor:
        params = leaves[name]
        x = torch.cat([s, a], -1)
        return torch.stack([gelu_perceptron(params, "net.", x, k)[:, 0] for k in (0, 1)])

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        return gelu_perceptron(leaves["flow"], "network.trunk.", torch.cat([s, x, t], -1))

    def policy(s: Tensor, z: Tensor) -> Tensor:
        return gelu_perceptron(leaves["policy"], "trunk.", torch.cat([s, z], -1))

    with torch.no_grad():
        a2 = policy(s2, random.normal((32, 1, 2))[:, 0]).clamp(-1, 1)
        q2 = q_of("critic_target", s2, a2)
        q2 = q2.mean(0) if cfg.q_aggregate == "mean" else q2.min(0).values
        y = batch.rewards + batch.discount * q2
    x0 = random.normal((1, 32, 1, 2))[0, :, 0]
    t = 1 - random.uniform((1, 32))[0, :, None]
    z = random.normal((32, 1, 2))[:, 0]
    with torch.no_grad():
        x = z
        for k in range(3):
            x = x + velocity(x, torch.full((32, 1), k / 3)) / 3
        flow_action = x.clamp(-1, 1)
    mu = policy(s, z)
    frozen = {k: v.detach() for k, v in leaves["critic"].items()}
    x = torch.cat([s, mu.clamp(-1, 1)], -1)
    q = torch.stack([gelu_perceptron(frozen, "net.", x, k)[:, 0] for k in (0, 1)]).mean(0)
    scale = 1 / q.abs().mean().detach() if cfg.normalize_q else 1
    losses = {
        "critic": (q_of("critic", s, a) - y).square().mean(),
        "flow": (velocity((1 - t) * x0 + t * a, t) - (a - x0)).square().mean(),
        "policy": cfg.alpha * (mu - flow_action).square().mean() - scale * q.mean(),
    }
    old = state.params
    target = {k: 0.9 * v + 0.1 * old["critic"][k] for k, v in old["critic_target"].items()}
    return losses, target


def test_outside_the_range_of_actions_the_distance_alone_has_a_gradient():
    """The gradient of the output's bias is 2 alpha / A times the mean difference to the flow."""
    state, batch = start(FQL, alpha=2.0, **SMALL), chunked(made_batch())
    policy = {**state.params["policy"], "trunk.biases.2": torch.full((2,), 9.0)}
    state = replace(state, params={**state.params, "policy": policy})
    after, _ = state.algorithm.update(state, batch, 0)
    s, z = batch.observations, state.random.given[-1]
    outputs, (flow_chunks, _) = state.policy(s, z), state.flow.decide(s, {}, z[:, None])
    assert outputs.min() > 1
    gradient = 2.0 * (outputs - flow_chunks).mean((0, 1))  # A is 2
    close(after.optimizer["policy"]["first"]["trunk.biases.2"], 0.1 * gradient)


def test_the_policy_that_acts_is_the_clipped_network():
    head = start(FQL, **SMALL).algorithm.acting_head()
    weights = {k: 20 * v for k, v in head.named_parameters()}
    s, z = torch.randn(64, 1, 3), torch.randn(64, 1, 2)
    raw = functional_call(head, weights, (s, z))
    assert raw.abs().max() > 1
    with torch.no_grad():
        for k, v in head.named_parameters():
            v.copy_(weights[k])
    assert torch.equal(head.decide(s, {}, z)[0], raw.clamp(-1, 1))


def test_without_q_the_policy_learns_the_result_of_the_flow():
    state = start(FQL, spec=Spec((1,), 1), alpha=1e6, **FAST)
    state, _ = advance(state, *[chunked(two_actions())] * 60)
    s, z = torch.zeros(64, 1, 1), torch.linspace(-2, 2, 64)[:, None, None]
    flow, _ = state.flow.decide(s, {}, z[:, None])
    policy, _ = state.policy.decide(s, {}, z)
    assert flow.std() > 0.2  # both demonstrated actions
    assert (flow - policy).abs().mean() < 0.15


def test_moves_from_the_data_toward_the_action_of_highest_value():
    state = start(FQL, spec=Spec((1,), 1), alpha=0.1, **FAST)
    state, _ = advance(state, *[chunked(hill(seed)) for seed in range(60)])
    s, z = torch.zeros(64, 1, 1), torch.linspace(-2, 2, 64)[:, None, None]
    actions, _ = state.policy.decide(s, {}, z)
    assert (actions - 0.3).abs().mean() < 0.15  # the data's actions are uniform in [-1, 1]


@pytest.mark.parametrize("cls", [FQL, IFQL, DSRL, EXPO, IDQL])
def test_each_network_has_its_own_learning_rate(cls):
    rates = {"actor_lr": 0.1, "critic_lr": 0.2, "alpha_lr": 0.3, "value_lr": 0.4}
    names = {"actor_lr": ("policy", "flow", "model"), "critic_lr": ("critic", "noise_critic")}
    names |= {"alpha_lr": ("log_alpha",), "value_lr": ("value",)}
    rates = {name: rate for name, rate in rates.items() if hasattr(cls.Config(), name)}
    learner = start(cls, **cls.Config.small() | rates).algorithm
    expected = {network: rate for name, rate in rates.items() for network in names[name]}
    trained = learner.initial()["optimizer"]
    assert {k: learner.optimizers()[k].lr for k in trained} == {k: expected[k] for k in trained}


def test_chunks_enter_policy_flow_and_critics():
    state = start(FQL, spec=SPEC, horizon=4, **SMALL)
    state, metrics = advance(state, *[chunked(made_batch(seed), 4) for seed in range(2)])
    head = state.algorithm.acting_head()
    assert (head.chunk_size, head.n_action_steps, head.noise_shape) == (4, 4, (4, 2))
    assert state.params["critic"]["net.weights.0"].shape[1] == 3 + 4 * 2
    assert all(value.isfinite() for value in metrics.values())
