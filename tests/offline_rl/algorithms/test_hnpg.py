"""HNPG and TRPO: rows of each step, the order of critics, refused data, and training on a lock."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import Recorded

import policies
from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.common.on_policy.stepwise import in_float64
from offline_rl.algorithms.hnpg import HNPG, Config
from offline_rl.algorithms.trpo import TRPO
from offline_rl.data import Dataset
from offline_rl.replay.rollouts import Iteration, Rollouts
from offline_rl.training.sources import offline_source
from offline_rl.utils.errors import UserError
from offline_rl.utils.random import Random
from policies import Bundle, Normalizer, Spec, bundle
from policies.golden import seal
from policies.heads.gaussian import StepGaussianActor

STEPS = 3
SPEC = Spec((4,), 2)
CFG = Config(
    num_steps=STEPS,
    discount=1.0,
    environments=2,
    decisions=12,
    batch_size=15,
    critic_updates=2,
    value_samples=2,
    hidden=(8,),
    value_hidden=(8,),
)


def data(episodes: int = 5, steps: int = STEPS) -> Dataset:
    """Return episodes whose observations contain their step."""
    draw, rows = np.random.default_rng(0), episodes * steps
    observations = draw.normal(size=(rows, 4))
    observations[:, 0] = np.tile(np.arange(steps), episodes)
    ends, actions = observations[:, 0] == steps - 1, draw.uniform(-1, 1, (rows, 2))
    return Dataset.from_arrays(
        observations, actions, draw.normal(size=rows), ends, np.zeros(rows, bool), observations
    )


def iteration(algorithm: HNPG, update: int = 0) -> tuple[Iteration, Rollouts]:
    columns, carried = algorithm.columns()
    rollouts = Rollouts(1, (6, 2), columns, carried=carried)
    draw = np.random.default_rng(1)
    steps = torch.arange(6)[:, None].expand(6, 2) % STEPS
    for name in ("observations", "next_observations", "samples", "returns", "rewards"):
        rollouts.data[name].copy_(torch.from_numpy(draw.normal(size=rollouts.data[name].shape)))
    rollouts.data["timesteps"][0] = steps
    rollouts.data["terminated"][0] = steps == STEPS - 1
    both = {"rollouts": rollouts, "offline": offline_source(algorithm, data())}
    source = algorithm.source("online", both)
    one_seed = torch.utils._pytree.tree_map(lambda x: x[0], source.tensors())
    random = Random(torch.tensor(0), torch.tensor(update))
    return source.sample(one_seed, random, CFG.batch_size, 1.0), rollouts


def state_of(algorithm: HNPG) -> State:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tree = algorithm.initial()
    random = Random(torch.tensor(0), torch.tensor(0))
    return State(algorithm, tree["params"], tree["optimizer"], random)


def test_each_step_has_an_equal_number_of_its_own_rows_that_stay_for_an_iteration():
    first, later = (iteration(HNPG(SPEC, CFG), update)[0] for update in (0, 5))
    assert first.offline is not None
    assert later.offline is not None
    steps = first.offline.observations[..., 0]
    assert torch.equal(steps, torch.arange(3.0)[:, None].expand(3, 5))
    assert torch.equal(first.offline.actions, later.offline.actions)
    assert torch.equal(first.noise, later.noise)


def test_critics_are_fitted_one_after_the_other_from_the_last_step():
    algorithm = HNPG(SPEC, CFG)
    state, (batch, _) = state_of(algorithm), iteration(algorithm)
    changed = []
    for i in range(algorithm.period):
        before = state
        state, _ = algorithm.update(replace(state, done=torch.tensor(i)), batch, i)
        new, old = (x.params["critic"]["net.weights.0"] for x in (state, before))
        changed.append([*np.flatnonzero((new != old).flatten(1).any(1).numpy())])
    assert changed == [[2], [2], [1], [1], [0], [0], []]


def test_the_first_targets_of_a_step_use_the_fitted_critic_of_the_next_step():
    """r + Q_1(s', a') at step 0, with a' of policy 1; r alone at the last step."""
    algorithm = HNPG(SPEC, CFG)
    state, (batch, _) = state_of(algorithm), iteration(algorithm)
    off: Any = batch.offline
    target = algorithm.td_target(state, batch)
    torch.testing.assert_close(target[2], off.rewards[2])
    critic, policy = algorithm.modules["critic"], algorithm.modules["policy"]
    assert isinstance(policy, StepGaussianActor)
    s2 = off.next_observations[0]
    a2 = (policy.trunk(s2)[1] + policy.log_std[1].exp() * batch.noise[0]).clip(-1, 1)
    torch.testing.assert_close(target[0], off.rewards[0] + critic(s2, a2)[1])


def test_the_loss_of_a_critic_is_the_mean_over_its_own_steps_plus_that_over_the_data():
    """The first critic is that of the last step, whose targets are returns and rewards."""
    algorithm = HNPG(SPEC, CFG)
    state, (batch, _) = state_of(algorithm), iteration(algorithm)
    last = batch.rollout["timesteps"] == STEPS - 1
    s, a = (batch.rollout[name][last] for name in ("observations", "samples"))
    assert a.abs().max() > 1  # the critic evaluates executed actions
    error = state.critic(s[:, -1], a.clip(-1, 1))[-1] - batch.rollout["returns"][last]
    off: Any = batch.offline
    q = state.critic(off.observations[-1], off.actions[-1])[-1]
    expected = error.square().mean() + (q - off.rewards[-1]).square().mean()
    _, metrics = algorithm.update(replace(state, done=torch.tensor(0)), batch, 0)
    torch.testing.assert_close(metrics["critic_loss"], expected)


def test_rows_of_a_rollout_are_sorted_by_step_and_foreign_rows_are_masked():
    algorithm = HNPG(SPEC, CFG)
    _, rollouts = iteration(algorithm)
    steps = rollouts.data["timesteps"][0]
    mask, sorted_steps = algorithm.group({"timesteps": steps}, steps)
    assert torch.equal(sorted_steps, torch.arange(3.0)[:, None].expand(3, 4))
    assert mask.all()
    steps = steps.clone()
    steps[0] = 2  # two rows more of step 2, two fewer of step 0
    mask, sorted_steps = algorithm.group({"timesteps": steps}, steps)
    assert torch.equal(mask == 1, sorted_steps == torch.arange(3.0)[:, None])


def test_the_policy_step_lowers_the_loss_by_a_small_divergence():
    for kind in (HNPG, TRPO):
        algorithm = kind(SPEC, CFG)
        state, (batch, _) = state_of(algorithm), iteration(algorithm)
        new, metrics = algorithm.improve(state, batch)
        assert 0 < metrics["divergence"] < 2 * CFG.max_kl
        assert metrics["accepted"] > 0.5
        assert (new.params["policy"]["log_std"] != state.params["policy"]["log_std"]).any()


def test_the_policy_step_has_no_rounding_errors_of_float32():
    """Networks and batches in float64 with the same numbers give the same float32 weights."""
    algorithm = HNPG(SPEC, CFG)
    state, (batch, _) = state_of(algorithm), iteration(algorithm)
    double = state_of(algorithm)  # with the same noise
    double = replace(double, params=in_float64(double.params))
    doubles = replace(batch, rollout=in_float64(batch.rollout), offline=in_float64(batch.offline))
    new, expected = (algorithm.improve(*x)[0] for x in ((state, batch), (double, doubles)))
    for name, value in expected.params["policy"].items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(new.params["policy"][name], value, rtol=1e-6, atol=1e-8)


def test_a_policy_counts_the_steps_of_its_episode():
    head = StepGaussianActor(4, 2, (8,), num_steps=3)
    memory, observations = head.initial_memory(2), torch.ones(2, 1, 4)
    for step in (0, 1, 2, 2):
        chunk, memory = head.decide(observations, memory, torch.zeros(2, 0))
        expected = head.trunk(observations[:, 0])[step].clamp(-1, 1)
        torch.testing.assert_close(chunk[:, 0], expected)
    with torch.no_grad():
        head.log_std.fill_(-30)
    memory = head.initial_memory(2)
    for step in (0, 1, 2, 2):
        chunk, memory = head.explore(observations, memory, torch.zeros(2, 0), Recorded())
        torch.testing.assert_close(chunk[:, 0], head.trunk(observations[:, 0])[step].clamp(-1, 1))


def test_advantages_use_the_networks_of_each_step_and_bootstrap_where_episodes_are_cut_off():
    """An episode of the first environment is cut off, and the rollout ends within another one.

    With policies that hardly vary, the value is Q of the mean action, computed in a loop.
    """
    algorithm = HNPG(SPEC, replace(CFG, discount=0.5))
    state, (_, rollouts) = state_of(algorithm), iteration(algorithm)
    policy: Any = algorithm.modules["policy"]
    state.params["policy"]["log_std"] = torch.full((STEPS, 1, 2), -30.0)
    data = {name: column[0].clone() for name, column in rollouts.data.items()}
    data["timesteps"][:, 0] = torch.tensor([0, 1, 0, 1, 2, 0])
    data["truncated"][:, 0] = torch.tensor([0.0, 1, 0, 0, 0, 0])
    data["terminated"][:, 0] = torch.tensor([0.0, 0, 0, 0, 1, 0])

    def value(s: torch.Tensor, t: int) -> torch.Tensor:
        t = min(t, STEPS - 1)  # later steps use the last networks
        a = torch.func.functional_call(policy.trunk, trunk(state), (s,))[t].clip(-1, 1)
        return state.critic(s, a)[t, 0]

    expected = torch.empty(6, 2)
    for env in range(2):
        total = torch.tensor(0.0)
        for row in reversed(range(6)):
            s, s2 = (data[x][row, env] for x in ("observations", "next_observations"))
            t, terminates = int(data["timesteps"][row, env]), bool(data["terminated"][row, env])
            is_last = terminates or bool(data["truncated"][row, env]) or row == 5
            s2 = s2 if is_last else data["observations"][row + 1, env]
            v2 = 0.0 if terminates else value(s2, t + 1)
            error = data["rewards"][row, env, 0] + 0.5 * v2 - value(s, t)
            total = error + 0.5 * 0.8 * total * (not is_last)
            expected[row, env] = total
    found, _ = algorithm.rollout_advantages(state, data, 0.8)
    torch.testing.assert_close(found, expected)


def trunk(state: State) -> dict[str, torch.Tensor]:
    params = state.params["policy"]
    return {k.removeprefix("trunk."): x for k, x in params.items() if k.startswith("trunk.")}


def test_the_critic_regresses_on_sums_of_rewards():
    """All episodes terminate, so that no value has an effect on their returns."""
    algorithm = HNPG(SPEC, replace(CFG, trace=0.1))
    state, (_, rollouts) = state_of(algorithm), iteration(algorithm)
    data = {name: column[0] for name, column in rollouts.data.items()}
    rewards = data["rewards"][..., 0].unflatten(0, (2, STEPS))
    expected = rewards.flip(1).cumsum(1).flip(1).flatten(0, 1)
    torch.testing.assert_close(algorithm.compute_advantages(state, data)["returns"], expected)


def test_data_with_longer_episodes_are_refused():
    with pytest.raises(UserError, match="longest episode of the data has 4 steps"):
        HNPG(SPEC, CFG).prepare(data(steps=4))


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [1, 3])
def test_the_exported_bundle_acts_as_in_torch(num_steps: int, tmp_path: Path) -> None:
    """The batch has another size than that of the export, and each step has its own network."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from policies.export import export_bundle

    head = StepGaussianActor(4, 2, (8,), num_steps=num_steps)
    weights = {k: v.numpy().copy() for k, v in head.state_dict().items()}
    normalizer = Normalizer.fit(np.random.default_rng(0).normal(1, 3, (20, 4)).astype(np.float32))
    arguments, path = head.arguments, tmp_path / "policy.bundle"
    new = seal(Bundle(SPEC, "StepGaussianActor", arguments, weights, normalizer))
    bundle.write(path, export_bundle(new)[0])
    s = np.random.default_rng(3).normal(size=(50, 4)).astype(np.float32)
    onnx, torch_ = (policies.load(path, runtime=name) for name in ("onnx", "torch"))
    for _ in range(num_steps):
        np.testing.assert_allclose(onnx.act(s)[0], torch_.act(s)[0], atol=1e-5)
