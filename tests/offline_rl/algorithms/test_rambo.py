"""RAMBO: the adversary's steps, its walk, imitation and the order of the phases."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import SPEC, Recorded, close, made_batch, start
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.nn.functional import silu, softplus
from torch.utils._pytree import tree_leaves

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.common.models.dynamics import mixture_log_prob
from offline_rl.algorithms.common.models.facts import Facts
from offline_rl.algorithms.common.models.fitting import rows_with_successor
from offline_rl.algorithms.common.registry import tuned
from offline_rl.algorithms.common.schedule import Fill, Learn
from offline_rl.algorithms.rambo import RAMBO
from offline_rl.data import Dataset
from offline_rl.engine.engine import Engine
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.ring import Ring
from policies.heads.gaussian import TanhGaussianActor

TINY: dict[str, Any] = {
    "hidden": (8, 8),
    "dynamics_hidden": (7,),
    "dynamics_decay": (0.1, 0.2),
    "members": 4,
    "elites": 2,
    "batch_size": 32,
}
FACTS = Facts([0.0] * 3, [1.0] * 3, ends={"task": lambda s, a, s2: s2[..., 0] > s[..., 0]})


def started(**config: Any) -> State:
    """Return a state with a model whose best members are 2 and 0."""
    state = start(RAMBO, **TINY | config)
    state.algorithm.facts = FACTS
    record = {**state.params["record"], "error": torch.tensor([0.2, 0.9, 0.1, 0.3])}
    return replace(state, params={**state.params, "record": record})


def adversary(state: State, steps: int = 1, first: int = 0) -> State:
    """Return the state after adversary steps `first`, first + 1, … on batches of their numbers."""
    for k in range(first, first + steps):
        state = replace(state, random=Recorded(k), done=torch.tensor(k))
        state, _ = state.algorithm.update_adversary(state, made_batch(k), 0)
    return state


def predicted(state: State) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inputs, the targets and the advantages of the adversary's first step.

    The advantage is computed in float64 numpy from the values of the critics.
    """
    algorithm, s, random = state.algorithm, made_batch(0).observations, Recorded(0)
    a = state.policy.explore_action(s, random)
    sample = algorithm.predict(replace(state, random=random), s, a)
    s2, r = sample.next_observations, sample.rewards
    q, next_q = state.critic(s, a), state.critic(s2, state.policy(s2)[0].tanh())
    alive = (s2[:, 0] <= s[:, 0]).numpy()
    value = r.numpy() + 0.99 * alive * next_q.double().numpy().min(0)
    gain = value - q.double().numpy().min(0)
    advantage = (gain - gain.mean()) / gain.std(ddof=1)
    x, y = torch.cat([s, a], -1), torch.cat([s2 - s, r[:, None]], -1)
    return x, y, torch.from_numpy(advantage)


def elites_density(state: State, x: Tensor, y: Tensor) -> Tensor:
    """Return the log density under members 2 and 0 alike, [B], by torch's distributions."""
    mean, log_variance = (z.double()[[2, 0]].movedim(0, 1) for z in state.dynamics(x))
    members = Independent(Normal(mean, (log_variance / 2).exp()), 1)
    return MixtureSameFamily(Categorical(torch.ones(2)), members).log_prob(y.double())


def test_the_density_of_the_elites_is_a_mixture_also_where_its_exponential_is_zero():
    generator = torch.Generator().manual_seed(0)
    for size, scale in ((2, 1.0), (400, 5.0)):
        mean, log_variance = torch.randn(2, 3, 6, size, generator=generator, dtype=torch.float64)
        y = scale * torch.randn(6, size, generator=generator, dtype=torch.float64)
        mean[1] = torch.nan  # no elite
        found = mixture_log_prob(mean, log_variance, y, torch.tensor([True, False, True]))
        members = Independent(Normal(mean[[0, 2]], (log_variance[[0, 2]] / 2).exp()), 1)
        log_p = members.log_prob(y).numpy()  # [E, B]
        expected = np.logaddexp(*log_p) - np.log(2)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.exp(expected).max() == 0


def test_with_a_weight_of_zero_an_adversary_step_is_a_likelihood_step_alone():
    """A second implementation in float64: all members have the same rows; Adam's moments are 0."""
    state = started(adversary=0.0, adversary_lr=0.01, dynamics_lr=0.5, bounds_weight=0.3)
    p = {k: v.double().requires_grad_() for k, v in state.params["dynamics"].items()}
    adam = torch.optim.Adam([v for k, v in p.items() if "input_" not in k], lr=0.01)
    for k in range(3):
        batch = made_batch(k)
        x = torch.cat([batch.observations, batch.actions], -1).double()
        change = batch.next_observations - batch.observations
        y = torch.cat([change, batch.rewards[:, None]], -1).double()
        hidden = silu(x @ p["net.weights.0"] + p["net.biases.0"])
        mean, raw = (hidden @ p["net.weights.1"] + p["net.biases.1"]).chunk(2, -1)
        log_variance = p["most"] - softplus(p["most"] - raw)
        log_variance = p["least"] + softplus(log_variance - p["least"])
        loss = ((mean - y) ** 2 / log_variance.exp() + log_variance).mean((1, 2)).sum()
        loss = loss + 0.05 * (p["net.weights.0"] ** 2).sum() + 0.1 * (p["net.weights.1"] ** 2).sum()
        loss = loss + 0.3 * (p["most"] - p["least"]).sum()
        adam.zero_grad()
        loss.backward()
        adam.step()
    for name, value in adversary(state, 3).params["dynamics"].items():
        close(value, p[name].detach())


@pytest.fixture(scope="module")
def pair() -> tuple[State, State, State]:
    """Return a state, and the state after one step without and with a weight."""
    before = started(adversary=0.0)
    before = replace(
        before,
        params={**before.params, "critic": {k: 3 * v for k, v in before.params["critic"].items()}},
    )
    with_weight = replace(before, algorithm=before.algorithm.with_values({"adversary": 1.0}))
    return before, adversary(before), adversary(with_weight)


def test_transitions_that_are_better_than_expected_become_less_likely(pair):
    before, fitted, opposed = pair
    x, y, advantage = predicted(before)
    change = elites_density(opposed, x, y) - elites_density(fitted, x, y)
    assert change[advantage > 0].mean() < -1e-4
    assert change[advantage < 0].mean() > 1e-4


def test_a_step_follows_the_gradient_of_the_weighted_density(pair):
    """Adam's first mean is a tenth of the gradient, so the difference of two means is linear."""
    before, fitted, opposed = pair
    x, y, advantage = predicted(before)
    leaves = {k: v.clone().requires_grad_() for k, v in before.params["dynamics"].items()}
    state = replace(before, params={**before.params, "dynamics": leaves})
    loss = (elites_density(state, x, y) * advantage).mean()
    names = [k for k in leaves if "input_" not in k]
    gradients = torch.autograd.grad(loss, [leaves[k] for k in names])
    for name, gradient in zip(names, gradients, strict=True):
        first, second = (z.optimizer["dynamics"]["first"][name] for z in (fitted, opposed))
        close(second - first, 0.1 * gradient)


def test_members_that_are_no_elites_are_only_fitted(pair):
    before, fitted, opposed = pair
    for name, value in fitted.params["dynamics"].items():
        if name.startswith("net."):
            assert torch.equal(value[[1, 3]], opposed.params["dynamics"][name][[1, 3]])
            assert not torch.equal(value[[0, 2]], opposed.params["dynamics"][name][[0, 2]])
    for name, value in before.params["record"].items():
        assert torch.equal(value, opposed.params["record"][name])  # the elites stay


def test_an_adversary_step_trains_the_model_alone(pair):
    before, _, opposed = pair
    changed = {
        network
        for network, params in opposed.params.items()
        if any(not torch.equal(v, before.params[network][k]) for k, v in params.items())
    }
    assert changed == {"dynamics", "walk"}


def adds_one(state: State) -> State:
    """Return a state whose model adds 1 to every observation, almost without noise."""
    p = {
        k: v if "input_" in k else torch.zeros_like(v) for k, v in state.params["dynamics"].items()
    }
    p["net.biases.1"][..., :3] = 1
    p["most"], p["least"] = (torch.full((4,), -40.0) for _ in range(2))
    return replace(state, params={**state.params, "dynamics": p})


def test_the_walk_restarts_from_the_data_and_goes_on_after_an_end():
    """Every transition ends an episode. There are 5 adversary steps in a row; a walk has 3."""
    state = adds_one(started(adversary_lr=0.0, adversary_updates=5, walk=3))
    for k, start_of_walk in enumerate([0, 0, 0, 3, 3, 5, 5, 5, 8, 8, 10]):
        state = adversary(state, first=k)
        expected = made_batch(start_of_walk).observations + (k - start_of_walk + 1)
        close(state.params["walk"]["states"], expected)


def test_the_walk_is_clipped_to_the_data_if_rollouts_are():
    state = adds_one(started(adversary_lr=0.0, clamp_states=True))
    state.algorithm.facts = replace(FACTS, low=[-1.0] * 3, high=[0.5] * 3)
    expected = (made_batch(0).observations + 1).clamp(-1.0, 0.5)
    close(adversary(state).params["walk"]["states"], expected)


def test_the_density_is_that_of_the_prediction_before_it_is_clipped():
    densities = []
    for clamp_states in (False, True):
        state = replace(started(clamp_states=clamp_states), random=Recorded(0))
        state.algorithm.facts = replace(FACTS, low=[-0.1] * 3, high=[0.1] * 3)
        _, metrics = state.algorithm.update_adversary(state, made_batch(0), 0)
        densities.append(metrics["log_prob"])
    assert torch.equal(*densities)


@pytest.mark.parametrize("ends", ["task", "never"])
@pytest.mark.parametrize("rewards", ["model", "task"])
def test_the_advantage_uses_the_ends_and_rewards_of_rollouts(ends: str, rewards: str):
    """The critics are constant: Q = 5. Where nothing ends, r + 0.99 * 5 - 5 differs by r alone."""
    state = adds_one(started(ends=ends, rewards=rewards))
    critic = {k: torch.zeros_like(v) for k, v in state.params["critic"].items()}
    last = max(k for k in critic if "biases" in k)
    critic[last] = critic[last] + 5
    state = replace(state, params={**state.params, "critic": critic}, random=Recorded(0))
    algorithm, s = state.algorithm, made_batch(0).observations
    half = {"task": lambda s, a, s2: s2[..., 1] > 1}
    algorithm.facts = replace(FACTS, ends=half, reward=lambda s, a, s2: 10 * s2[..., 2])
    a = torch.zeros(32, 2)
    s2, r, ended = algorithm.outcome(s, a, algorithm.predict(state, s, a))
    found = algorithm.advantage(state, s, a, r, s2, ended)
    gain = (10 * (s[:, 2] + 1) if rewards == "task" else torch.zeros(32)).double()
    gain = gain - 0.99 * 5 * (s[:, 1] > 0) * (ends == "task")
    expected = (gain - gain.mean()) / (gain.std() + 1e-6)
    close(found, expected if gain.std() > 0 else torch.zeros(32))


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_step_without_a_finite_loss_leaves_the_model_unchanged(value: float):
    before = started(adversary=1.0)
    critic = {k: v if "weights" in k else v + value for k, v in before.params["critic"].items()}
    before = replace(before, params={**before.params, "critic": critic})
    after = adversary(before)
    for kind in ("params", "optimizer"):
        old, new = (tree_leaves(getattr(state, kind)["dynamics"]) for state in (before, after))
        assert all(torch.equal(x, y) for x, y in zip(old, new, strict=True))
    assert after.params["walk"]["states"].isfinite().all()


def test_a_walk_without_a_finite_prediction_restarts_from_the_data():
    before = started()
    dynamics = {k: v + torch.nan for k, v in before.params["dynamics"].items()}
    after = adversary(replace(before, params={**before.params, "dynamics": dynamics}), first=1)
    assert torch.equal(after.params["walk"]["states"], made_batch(1).observations)


def test_imitation_minimizes_the_error_of_a_sampled_action():
    before, batch = started(cloning_updates=3, actor_lr=0.01), made_batch(4)
    after, metrics = before.algorithm.clone(replace(before, random=Recorded(0)), batch, 0)
    policy = TanhGaussianActor(3, 2, (8, 8), log_std_range=(-5, 2))
    policy.load_state_dict(before.params["policy"])
    mean, log_std = policy(batch.observations)
    a = torch.tanh(mean + log_std.exp() * Recorded(0).normal((32, 2)))
    loss = ((a - batch.actions) ** 2).sum() / 64
    loss.backward()
    close(metrics["policy_loss"], loss.detach())
    for name, parameter in policy.named_parameters():
        close(after.optimizer["policy"]["first"][name], 0.1 * parameter.grad)


def test_the_main_phase_and_the_adversary_have_adam_moments_of_their_own():
    """The moments of imitation end with its last update, those of the fit with its last phase."""
    state, batch = started(cloning_updates=3), made_batch(0)
    for k in range(3):
        assert tree_leaves(state.optimizer["policy"]["count"]) == [k]
        state = replace(state, random=Recorded(k), done=torch.tensor(k))
        state, _ = state.algorithm.clone(state, batch, 0)
    fitted, _ = state.algorithm.fit_dynamics(state, made_batch(1, 4 * 32), 0)
    assert all((x == 1).all() for x in tree_leaves(fitted.optimizer["dynamics"]["count"]))
    state, _ = fitted.algorithm.select_dynamics(fitted, batch, 0)
    for network in ("policy", "dynamics"):
        assert all((x == 0).all() for x in tree_leaves(state.optimizer[network]))
    steps = (
        adversary(state).params["dynamics"]["net.weights.1"]
        - state.params["dynamics"]["net.weights.1"]
    )
    close(steps.abs().max(), 3e-4)  # Adam's first step has the size of the learning rate


def names(**config: Any) -> list[str]:
    """Return the pieces of a run of 300 updates, without those that fit the model."""
    values = {"rollout_every": 50, "adversary_every": 100, "starts": 8, "cloning_updates": 9}
    algorithm = RAMBO(SPEC, RAMBO.Config(**TINY | values | {"adversary_updates": 7} | config))
    work = algorithm.schedule(300, 0, None)
    assert {piece.phase for piece in work if piece.evaluate} <= {"clone", "update"}
    short = {"clone": "c", "update": "u", "update_adversary": "a"}
    return [
        "fill" if isinstance(piece, Fill) else f"{short[piece.phase]}{piece.size}"
        for piece in work
        if piece.phase in short
    ]


def test_the_adversary_follows_updates_at_its_interval_but_not_the_last():
    updates = ["fill", "u50"] * 2
    assert names() == ["c9", *updates, "a7", *updates, "a7", *updates]
    assert names(adversary_updates=0, cloning_updates=0) == updates * 3
    assert names(adversary_every=200) == ["c9", *updates, *updates, "a7", *updates]
    every = RAMBO(SPEC, RAMBO.Config(**TINY, cloning_updates=9)).schedule(0, 0, None)
    assert {piece.phase for piece in every if isinstance(piece, Learn)} == {
        "start_dynamics",
        "fit_dynamics",
        "validate_dynamics",
        "select_dynamics",
    }


def test_an_interval_of_the_adversary_that_is_no_multiple_of_rollouts_is_refused():
    with pytest.raises(
        ValueError, match="adversary_every=300 is not a multiple of rollout_every=2"
    ):
        RAMBO.Config(adversary_every=300)


def test_an_adversary_of_a_model_without_gradient_steps_is_refused():
    with pytest.raises(ValueError, match="model=sparse has no adversary"):
        RAMBO.Config(model="sparse")
    RAMBO.Config(model="sparse", adversary_updates=0)


def small_data(rows: int = 90) -> Dataset:
    draw = np.random.default_rng(0)
    s, s2 = draw.normal(size=(2, rows, 3)).astype(np.float32)
    a, r = draw.uniform(-1, 1, (rows, 2)), draw.normal(size=rows)
    ends = np.arange(rows) % 30 == 29
    return Dataset.from_arrays(s, a, r, np.zeros(rows), ends, s2)


def test_imitation_is_fifty_passes_over_the_data_unless_it_is_set():
    for given, expected in ((None, 50 * 90 // 32), (0, 0), (5, 5)):
        algorithm = RAMBO(SPEC, RAMBO.Config(**TINY, cloning_updates=given))
        assert algorithm.prepare(small_data())[1].cloning_updates == expected


def test_a_run_resumed_within_a_walk_equals_an_undisturbed_run():
    """The walk is part of the state. Before it is loaded, the engine is at another step."""

    def make(_: int) -> RAMBO:
        values = {"adversary_updates": 5, "walk": 3, "cloning_updates": 1}
        algorithm = RAMBO(SPEC, RAMBO.Config(**TINY | values))
        algorithm.facts = FACTS
        return algorithm

    sources = {"offline": ReplayBuffer.from_dataset(small_data()), "imagined": Ring((3,), 2, 9)}
    engine = Engine(make, [3], sources, batch_size=32)
    engine.run(4, "update_adversary")
    saved = engine.seed_state(0)
    engine.run(3, "update_adversary")
    expected = engine.seed_state(0)
    engine.run(1, "update_adversary")
    engine.load_seed_state(0, saved)
    engine.done = {"update_adversary": 4}
    engine.run(3, "update_adversary")
    found = engine.seed_state(0)
    assert all(torch.equal(expected[k], found[k]) for k in expected)
    assert not torch.equal(expected["params/walk/states"], saved["params/walk/states"])


@pytest.mark.parametrize(
    "maze", ["umaze-v2", "large-play-v2", "medium-play-v2", "umaze-diverse-v0"]
)
def test_rollouts_of_ant_mazes_never_end_and_their_rewards_are_shifted(maze: str):
    """The authors' code does so: rambo/static/antmaze.py and rambo/off_policy/loader.py."""
    values = tuned("rambo", f"antmaze-{maze}")[1]
    assert (values["ends"], values["reward_shift"]) == ("never", -1.0)
    has_adversary = maze in ("umaze-v2", "large-play-v2")
    assert ("adversary_updates" in values) != has_adversary


def test_the_likelihood_of_the_data_leaves_out_rows_without_a_known_next_observation():
    """Rows that terminate and have their own observation as the next one; others may stay."""
    batch = made_batch(0, 6)
    assert rows_with_successor(batch).tolist() == [0, 1, 2, 3, 4, 5]
    known = torch.tensor([True, False, True, True, False, True])
    s2 = torch.where(known[:, None], batch.next_observations, batch.observations)
    s2[2] = batch.observations[2]
    discount = torch.where(known, 0.99, 0.0)
    batch = replace(batch, next_observations=s2, discount=discount)
    assert rows_with_successor(batch).tolist() == [0, 2, 3, 5, 0, 2]
