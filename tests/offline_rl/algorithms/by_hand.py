"""Shared test helpers: made batches, updates driven by hand, and plain PyTorch networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution
from torch.utils._pytree import tree_map

from offline_rl.algorithms.common.base import Algorithm, Metrics, Network, State
from offline_rl.data.dataset import Dataset
from offline_rl.engine.engine import Engine
from offline_rl.replay.batch import Batch
from offline_rl.training.sources import offline_source
from offline_rl.utils.random import Random
from offline_rl.utils.trees import flatten
from policies.spec import Spec

SPEC = Spec((3,), 2)
SMALL = {"hidden": (16, 16)}


class Recorded(Random):
    """Random source of the engine that stores its numbers in order."""

    def __init__(self, update: int = 0) -> None:
        super().__init__(torch.tensor(7), torch.tensor(update))
        self.given: list[Tensor] = []

    def uniform(self, shape, groups=1):
        self.given.append(super().uniform(shape, groups))
        return self.given[-1]

    def normal(self, shape, groups=1):
        before = len(self.given)
        numbers = super().normal(shape, groups)
        self.given[before:] = [numbers]  # instead of the uniform numbers it is made of
        return numbers


def start(cls: type[Algorithm], num_updates: int = 1, spec: Spec = SPEC, **config: Any) -> State:
    """Return a new learner's state; its initial parameters are the same in every call."""
    torch.manual_seed(0)
    algorithm = cls(spec, cls.Config(**config), num_updates)
    tree = algorithm.initial()
    return State(algorithm, tree["params"], tree["optimizer"], Recorded(), torch.tensor(0))


def completed(cls: type[Algorithm], data: Dataset, cfg: Any) -> Any:
    """Return the config with the values that follow from the data."""
    return cls(Spec(data.observations.shape[1:], data.actions.shape[1]), cfg).prepare(data)[1]


def opinionated(state: State) -> State:
    """Return a state with critics whose values differ strongly between actions, and in sign."""
    critic, batch = {k: 3 * v for k, v in state.params["critic"].items()}, made_batch(0)
    q = Network(state.algorithm.modules["critic"], critic)(batch.observations, batch.actions)
    last = [k for k in critic if "biases" in k][-1]
    critic[last] = critic[last] - q.mean(1)[:, None, None]
    params = {**state.params, "critic": critic, "critic_target": critic}
    return replace(state, params=params)


def advance(state: State, *batches: Batch, phase: str = "update") -> tuple[State, Metrics]:
    """Return the state after one update per batch, and the last metrics.

    Updates use the random numbers of updates 0, 1, ….
    """
    metrics: Metrics = {}
    for count, batch in enumerate(batches):
        state = replace(state, random=Recorded(count))
        method = getattr(state.algorithm, phase)
        state, metrics = method(state, batch, count % state.algorithm.period)
    return state, metrics


def made_batch(seed: int = 1, size: int = 32) -> Batch:
    """Random transitions; a quarter ends in a terminal state."""
    torch.manual_seed(seed)
    return Batch(
        observations=torch.randn(size, 3),
        actions=torch.rand(size, 2) * 1.8 - 0.9,
        rewards=torch.randn(size),
        discount=torch.where(torch.arange(size) % 4 == 0, 0.0, 0.99),
        next_observations=torch.randn(size, 3),
        bootstrap_mask=(torch.arange(size) % 4 > 0).float(),
    )


def chunked(batch: Batch, horizon: int = 1) -> Batch:
    """Return the batch as `Chunks` gives it; a chunk repeats its action."""
    s, s2 = batch.observations[:, None], batch.next_observations[:, None]
    actions = batch.actions[:, None].expand(-1, horizon, -1).clone()
    valid = torch.ones(actions.shape[:2], dtype=torch.bool)
    return replace(batch, observations=s, next_observations=s2, actions=actions, valid=valid)


def made_chunks(seed: int = 1, horizon: int = 3) -> Batch:
    """Random chunks. Those that the end of an episode cuts short have the weight 0."""
    batch = chunked(made_batch(seed), horizon)
    count = torch.arange(len(batch.rewards)) % (horizon + 1) + 1
    valid = torch.arange(horizon) < count[:, None]
    actions = torch.rand((*valid.shape, 2)) * 1.8 - 0.9
    return replace(batch, actions=actions, valid=valid, weights=valid[:, -1].float())


def one_step(actions: Tensor, rewards: Tensor) -> Dataset:
    """Return episodes of one step from one state. actions: [N, 1], rewards: [N]."""
    zeros = np.zeros((len(rewards), 1), np.float32)
    return Dataset.from_arrays(zeros, actions.numpy(), rewards.numpy(), zeros[:, 0] == 0)


def taught(
    cls: type[Algorithm],
    data: Dataset,
    change: Callable[[dict[str, Any]], None] = lambda params: None,
    *,
    num_updates: int,
    pretrain_updates: int = 0,
    **config: Any,
) -> State:
    """Return a learner of one-step data after `num_updates` engine updates, of which one is traced.

    change: modifies the initial parameters, stacked as [1, …], in place.
    """
    cfg = cls.Config(**config)
    spec = Spec(data.observations.shape[1:], data.actions.shape[1])
    source = offline_source(cls(SPEC, cfg), data)
    engine = Engine(lambda _: cls(spec, cfg), [0], source, batch_size=32)
    change(engine.state["params"])
    for phase in engine.algorithm.phases:
        engine.run(pretrain_updates, phase)
    engine.run(num_updates)
    tree = tree_map(lambda x: x[0], engine.state)
    done = tree["counters"]["update"]
    return State(engine.algorithm, tree["params"], tree["optimizer"], Recorded(), done)


def two_actions() -> Batch:
    """Return one-step data with actions +0.5 (reward 1) and -0.5 (reward 0), equally often."""
    better = torch.arange(32) % 2
    return Batch(
        observations=torch.zeros(32, 1),
        actions=better[:, None] - 0.5,
        rewards=better.float(),
        discount=torch.zeros(32),
        next_observations=torch.zeros(32, 1),
        bootstrap_mask=torch.zeros(32),
    )


def dependent_actions() -> Batch:
    """Return one-step data in which the best value of each of two actions depends on the other.

    (+, +) is 10 % of the data and has the reward 1; (+, -): 40 %, 0; (-, -): 30 %, 0.5; (-, +):
    20 %, 0. The values of + and - are +-0.5.
    """
    counts = torch.tensor([1, 4, 3, 2])
    actions = torch.tensor([[0.5, 0.5], [0.5, -0.5], [-0.5, -0.5], [-0.5, 0.5]])
    return Batch(
        observations=torch.zeros(10, 1),
        actions=actions.repeat_interleave(counts, 0),
        rewards=torch.tensor([1, 0, 0.5, 0]).repeat_interleave(counts),
        discount=torch.zeros(10),
        next_observations=torch.zeros(10, 1),
        bootstrap_mask=torch.zeros(10),
    )


def hill(seed: int) -> Batch:
    """Return one-step data with uniform actions a and rewards 1 - 4 (a - 0.3)^2."""
    actions = Random(torch.tensor(11), torch.tensor(seed)).uniform((64, 1)) * 2 - 1
    return Batch(
        observations=torch.zeros(64, 1),
        actions=actions,
        rewards=1 - 4 * (actions[:, 0] - 0.3).square(),
        discount=torch.zeros(64),
        next_observations=torch.zeros(64, 1),
        bootstrap_mask=torch.zeros(64),
    )


def action(state: State) -> float:
    """Return the deterministic action in the state of `two_actions` and `hill`."""
    return state.policy.act(torch.zeros(1, 1)).item()


def target_after(cls: type[Algorithm], *, terminated: bool, **config: Any) -> float:
    """Return the critic's target for reward 1 at the end of an episode."""
    row = np.ones((1, 3), np.float32)
    ended = np.array([terminated])
    data = Dataset.from_arrays(
        row, row[:, :2] / 2, row[:, 0], ended, ~ended, next_observations=-2 * row
    )
    expert = data if "expert" in cls.extra_columns else None
    source = offline_source(cls(SPEC, cls.Config(**config)), data, expert)
    tensors = tree_map(lambda x: x[0], source.tensors())
    batch = source.sample(tensors, Recorded(), 8, 0.99)
    return advance(start(cls, **config), batch)[1]["target"].item()


# A second implementation's pieces: nn.Linear in float64, with the parameters of one of ours.


def plain(params: Mapping[str, Tensor], prefix: str, member: int | None = None) -> nn.Sequential:
    """Return the multilayer perceptron with the weights `<prefix>weights.0` and so on.

    Layer norms (of no ensemble) precede the activations.
    """
    layers: list[nn.Module] = []
    for k, (weight, bias, _, _) in enumerate(layers_of(params, prefix, member)):
        linear = nn.Linear(*weight.shape, dtype=torch.float64)
        linear.weight.data, linear.bias.data = weight.T.double(), bias.double()
        layers.append(linear)
        if f"{prefix}norms.{k}.weight" in params:
            norm = nn.LayerNorm(weight.shape[1], dtype=torch.float64)
            norm.weight.data, norm.bias.data = (
                params[f"{prefix}norms.{k}.{word}"].double() for word in ("weight", "bias")
            )
            layers.append(norm)
        layers.append(nn.ReLU())
    return nn.Sequential(*layers[:-1])


def layers_of(params: Mapping[str, Tensor], prefix: str, member: int | None):
    """Return (weight [in, out], bias [out], their names) of each layer."""
    for layer in range(sum(k.startswith(f"{prefix}weights.") for k in params)):
        names = f"{prefix}weights.{layer}", f"{prefix}biases.{layer}"
        weight, bias = (params[name] for name in names)
        weight, bias = (weight, bias) if member is None else (weight[member], bias[member, 0])
        yield weight, bias, *names


def assert_same(
    state: State,
    name: str,
    net: nn.Sequential,
    adam: torch.optim.Optimizer | None = None,
    *,
    prefix: str = "net.",
    member: int | None = None,
) -> None:
    """Assert that `state` has the parameters of `net`, and its Adam the first moments of `adam`.

    Adam's steps hardly depend on the loss's scale; its moments do.
    """
    linears = [layer for layer in net if isinstance(layer, nn.Linear)]
    ours = list(layers_of(state.params[name], prefix, member))
    assert len(linears) == len(ours)
    for linear, (weight, bias, _, _) in zip(linears, ours, strict=True):
        close(weight, linear.weight.T)
        close(bias, linear.bias)
    for k, norm in enumerate(layer for layer in net if isinstance(layer, nn.LayerNorm)):
        close(state.params[name][f"{prefix}norms.{k}.weight"], norm.weight)
        close(state.params[name][f"{prefix}norms.{k}.bias"], norm.bias)
    if adam is None:
        return
    moments = layers_of(state.optimizer[name]["first"], prefix, member)
    for linear, (weight, bias, _, _) in zip(linears, moments, strict=True):
        close(weight, adam.state[linear.weight]["exp_avg"].T)
        close(bias, adam.state[linear.bias]["exp_avg"])


def assert_same_number(
    state: State, name: str, number: Tensor, adam: torch.optim.Optimizer, *, key: str = "value"
) -> None:
    """Check `assert_same` for a parameter outside a perceptron."""
    close(state.params[name][key], number)
    close(state.optimizer[name]["first"][key], adam.state[number]["exp_avg"])


def assert_equal_states(one: State, other: State, tolerance: float = 0.0) -> None:
    """Assert equal parameters and optimizer states."""
    a, b = (flatten({"params": s.params, "optimizer": s.optimizer}) for s in (one, other))
    assert a.keys() == b.keys()
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], atol=tolerance, rtol=0)


def squashed(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return a tanh-Gaussian policy's action with this noise, and torch's log density."""
    mean, log_std = outputs.chunk(2, -1)
    pi = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform(cache_size=1))
    a = (mean + log_std.exp() * noise).tanh()
    return a, pi.log_prob(a).sum(-1)


def value_of(net: nn.Module, observations: Tensor, actions: Tensor) -> Tensor:
    """Return a critic's values [...] at [..., O], [..., A]; observations may lack leading axes."""
    observations = observations.expand(*actions.shape[:-1], observations.shape[-1])
    return net(torch.cat([observations, actions], -1))[..., 0]


def descend(loss: Tensor, adam: torch.optim.Optimizer) -> None:
    """Take one step of this optimizer on its own parameters."""
    parameters = [p for group in adam.param_groups for p in group["params"]]
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        p.grad = gradient
    adam.step()


def follow(targets: list[nn.Module], critics: list[nn.Module], tau: float) -> None:
    """Update moving averages, parameter by parameter."""
    for slow, net in zip(targets, critics, strict=True):
        for old, p in zip(slow.parameters(), net.parameters(), strict=True):
            old.data = (1 - tau) * old.data + tau * p.data


def close(ours: Tensor, plain: Tensor | float) -> None:
    """Assert equality up to float32 precision."""
    other = torch.as_tensor(plain, dtype=torch.float64).detach()
    torch.testing.assert_close(ours.detach().double(), other, atol=1e-5, rtol=1e-4)


def leaves(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters as float64 leaves, for networks that are no plain perceptrons."""
    return {k: v.detach().double().requires_grad_() for k, v in params.items()}


def assert_same_leaves(
    state: State,
    name: str,
    own: Mapping[str, Tensor],
    adam: torch.optim.Optimizer | None = None,
) -> None:
    """Check `assert_same` for `leaves`."""
    assert own.keys() == state.params[name].keys()
    for key, value in own.items():
        close(state.params[name][key], value)
        if adam is not None:
            close(state.optimizer[name]["first"][key], adam.state[value]["exp_avg"])


def perceptron(
    own: Mapping[str, Tensor], prefix: str, x: Tensor, member: int | None = None
) -> Tensor:
    """Return the output of ReLU layers with the parameters `<prefix>weights.0` and so on."""
    layers = list(layers_of(own, prefix, member))
    for k, (weight, bias, _, _) in enumerate(layers):
        x = x @ weight + bias
        x = x.clamp(min=0) if k < len(layers) - 1 else x
    return x


def gelu_perceptron(
    own: Mapping[str, Tensor], prefix: str, x: Tensor, member: int | None = None
) -> Tensor:
    """Return the output of layers with GELU by tanh, then layer normalization if there is any."""
    layers = list(layers_of(own, prefix, member))
    for k, (weight, bias, _, _) in enumerate(layers):
        x = x @ weight + bias
        if k == len(layers) - 1:
            return x
        x = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
        if f"{prefix}norms.{k}.weight" in own:
            variance = x.var(-1, correction=0, keepdim=True)
            x = (x - x.mean(-1, keepdim=True)) / (variance + 1e-6).sqrt()
            at = ... if member is None else (member, 0)
            gain, shift = (own[f"{prefix}norms.{k}.{word}"][at] for word in ("weight", "bias"))
            x = x * gain + shift
    return x


def follow_leaves(slow: Mapping[str, Tensor], own: Mapping[str, Tensor], tau: float) -> None:
    """Set slow <- (1 - tau) slow + tau fast."""
    for key, value in own.items():
        slow[key].data = (1 - tau) * slow[key].data + tau * value.data


def step(adam: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one step of `adam` on `loss`."""
    adam.zero_grad()
    loss.backward(inputs=[p for group in adam.param_groups for p in group["params"]])
    adam.step()


def doubles(batch: Batch) -> tuple[Tensor, ...]:
    """Return (s, a, r, discount, s') in float64."""
    columns = ("observations", "actions", "rewards", "discount", "next_observations")
    return tuple(getattr(batch, name).double() for name in columns)
