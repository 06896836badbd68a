"""WSRL: a period by hand, critics sampled with replacement, and initialization from a run."""

from dataclasses import replace

import pytest
import torch
from by_hand import (
    SPEC,
    Recorded,
    close,
    doubles,
    made_batch,
    perceptron,
    squashed,
    start,
    target_after,
)
from torch import Tensor
from torch.nn.functional import layer_norm

from offline_rl.algorithms import cal_ql, cql, iql
from offline_rl.algorithms.common.base import Algorithm, Interaction, State
from offline_rl.algorithms.wsrl import WSRL, Config, Online
from offline_rl.utils.trees import flatten

SIZES = {"policy_hidden": (16, 16), "critic_hidden": (16, 16), "num_critics": 3}
BLOCK = 3


def start_period(**config: object) -> State:
    """Return a learner with a period of three."""
    state = start(WSRL, **{**SIZES, **config})
    state.algorithm.interaction = Interaction(Online(utd=BLOCK), state.algorithm.cfg)
    return state


def normalized(params: dict[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    """Return linear, layer norm, ReLU for each norm, then linear, in float64."""
    p = {k.removeprefix(prefix): v.double() for k, v in params.items() if k.startswith(prefix)}
    layers = len([k for k in p if k.startswith("weights.")])
    for k in range(layers - 1):
        x = x @ p[f"weights.{k}"] + p[f"biases.{k}"]
        norm = layer_norm(x, x.shape[-1:])
        x = (norm * p[f"norms.{k}.weight"] + p[f"norms.{k}.bias"]).relu()
    return x @ p[f"weights.{layers - 1}"] + p[f"biases.{layers - 1}"]


def acted(params: dict[str, Tensor], s: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return an action and its log density; the log standard deviation is scaled and shifted."""
    mean, log_std = normalized(params, "trunk.", s).chunk(2, -1)
    scale, shift = params["affine"].double()
    return squashed(torch.cat([mean, scale * log_std + shift], -1), noise.double())


def valued(params: dict[str, Tensor], s: Tensor, a: Tensor) -> Tensor:
    """Return Q, [E, B]."""
    return normalized(params, "net.", torch.cat([s, a], -1))[..., 0]


def test_a_period_equals_the_authors_with_the_actor_last() -> None:
    """Actor: minimum of all critics. Target: minimum of two sampled ones, without entropy."""
    state = start_period(tau=0.1, initial_alpha=0.5, actor_lr=1e-3, alpha_lr=1e-2)
    for i in range(BLOCK):
        batch, before = made_batch(i), state
        now = State(state.algorithm, state.params, state.optimizer, Recorded(i))
        state, metrics = state.algorithm.update(now, batch, i)
        s, a, r, discount, s2 = doubles(batch)
        random = Recorded(i)
        a2, _ = acted(before.params["policy"], s2, random.normal((1, *a.shape))[0])
        members = (3 * random.uniform((2,))).floor().long()
        q2 = valued(before.params["critic_target"], s2, a2)[members].amin(0)
        q = valued(before.params["critic"], s, a)
        close(metrics["critic_loss"], (q - (r + discount * q2)).square().mean())
        assert (state.params["policy"] is before.params["policy"]) is (i < BLOCK - 1)
    pi, log_pi = acted(before.params["policy"], s, random.normal(a.shape))
    q = valued(state.params["critic"], s, pi).amin(0)  # the new critics' least
    close(metrics["policy_loss"], (0.5 * log_pi - q).mean())
    _, next_log_pi = acted(before.params["policy"], s2, random.normal(a.shape))
    moment = state.optimizer["log_alpha"]["first"]["value"]
    close(moment, 0.1 * -0.5 * (next_log_pi.mean() - a.shape[1]))  # of the old policy


def test_the_same_critic_may_be_drawn_twice() -> None:
    """Critics 0, 1, 2 return their index: the minimum of two is 2 in a ninth of the draws."""
    state = start_period()
    for value in state.params["critic_target"].values():
        value.zero_()
    last = max(name for name in state.params["critic_target"] if "biases" in name)
    state.params["critic_target"][last] += torch.arange(3.0).reshape(3, 1, 1)
    batch, found = made_batch(), []
    for update in range(200):
        now = replace(state, random=Recorded(update))
        y = state.algorithm.target(now, batch, torch.tensor(0.0))
        found.append(round(((y - batch.rewards) / batch.discount.clamp(min=1e-9)).max().item()))
    shares = torch.bincount(torch.tensor(found), minlength=3) / len(found)
    assert torch.allclose(shares, torch.tensor([5.0, 3.0, 1.0]) / 9, atol=0.09)


def test_the_best_of_several_next_actions_has_at_least_the_value_of_one() -> None:
    batch = made_batch()
    one, best = (
        start_period(max_target_backup=backup, num_samples=30).algorithm for backup in (False, True)
    )
    state = start_period()
    y = [x.target(replace(state, random=Recorded()), batch, torch.tensor(0.0)) for x in (one, best)]
    alive = batch.discount > 0
    assert (y[1] - y[0])[alive].mean() > 0
    assert torch.equal(y[0][~alive], y[1][~alive])


@pytest.mark.parametrize(
    ("cls", "config"),
    [
        (cal_ql.CalQL, {**SIZES, "layer_norm": True, "num_min_critics": 2}),
        (cql.CQL, {**SIZES, "layer_norm": True, "num_min_critics": 2, "gap": 1.0}),
        (iql.IQL, {"hidden": (16, 16), "num_critics": 3, "num_min_critics": 2, "squashed": True}),
    ],
)
def test_it_starts_with_policy_and_critics_of_its_run(
    cls: type[Algorithm], config: dict[str, object]
) -> None:
    torch.manual_seed(3)
    other = cls(SPEC, cls.Config(**config))
    theirs = {k: v + 0.1 for k, v in flatten(other.initial()).items()}
    own = start_period(initial_alpha=0.7)
    tree = {"params": own.params, "optimizer": own.optimizer}
    taken = own.algorithm.initialize_from(flatten(tree), theirs)
    for name, value in taken.items():
        new = "/log_alpha/" in name and cls is iql.IQL
        assert torch.equal(value, flatten(tree)[name] if new else theirs[name]), name


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"num_critics": 2, "layer_norm": True}, r"critic/\S+ is \(2, "),
        ({"layer_norm": False}, r"norms\S+ is missing"),
        ({"layer_norm": True, "critic_hidden": (16, 16, 16)}, "does not exist in this algorithm"),
    ],
)
def test_a_run_with_other_networks_is_refused_by_tensor_name(
    config: dict[str, object], match: str
) -> None:
    torch.manual_seed(3)
    other = cql.CQL(SPEC, cql.Config(**{**SIZES, **config}))
    own = start_period()
    tree = flatten({"params": own.params, "optimizer": own.optimizer})
    with pytest.raises(ValueError, match=match):
        own.algorithm.initialize_from(tree, flatten(other.initial()))


def test_many_updates_need_two_programs() -> None:
    learner = WSRL(SPEC, Config(**SIZES))
    assert learner.period == 4
    assert {learner.equivalent_step(i) for i in range(4)} == {0, 3}


def test_bootstraps_after_a_truncation_but_not_after_a_termination() -> None:
    assert target_after(WSRL, terminated=True, **SIZES) == 1
    assert target_after(WSRL, terminated=False, **SIZES) != 1


def test_squashed_iql_uses_the_density_of_a_tanh_normal() -> None:
    """The loss with weights of 1 is the data's mean negative log density; Q is one critic's."""
    sizes = {
        "hidden": (16, 16),
        "num_critics": 3,
        "num_min_critics": 1,
        "squashed": True,
        "beta": 0.0,
    }
    state, batch = start(iql.IQL, **sizes), made_batch()
    _, metrics = state.algorithm.update(replace(state, random=Recorded()), batch, 0)
    s, a, *_ = doubles(batch)
    mean, log_std = normalized(state.params["policy"], "trunk.", s).chunk(2, -1)
    scale, shift = state.params["policy"]["affine"].double()
    log_std = scale * log_std + shift
    _, log_pi = squashed(torch.cat([mean, log_std], -1), (a.atanh() - mean) / log_std.exp())
    close(metrics["policy_loss"], -log_pi.mean())
    member = int(3 * Recorded().uniform((1,)))
    q = valued(state.params["critic_target"], s, a)[member]
    v = perceptron({k: x.double() for k, x in state.params["value"].items()}, "net.", s)[:, 0]
    u = q - v
    close(metrics["value_loss"], ((0.7 - (u < 0).double()).abs() * u.square()).mean())
