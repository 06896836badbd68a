"""Residual policies: observations, training, resuming, files, and refused options."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from printed import evaluate
from safetensors.torch import load_file

import envs
import offline_rl
import policies
from envs import tasks
from offline_rl import Dataset, UserError, finetune, train
from offline_rl.algorithms.common.base import Interaction, State
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.algorithms.resfit import Config, Online, ResFiT
from offline_rl.data.read import read
from offline_rl.data.specs import merge_specs, spec_of
from offline_rl.engine.engine import Engine
from offline_rl.evaluation.evaluate import play
from offline_rl.online import composed
from offline_rl.online.composed import (
    ResidualEnv,
    base_of,
    label_dataset,
    spec_difference,
    with_base,
)
from offline_rl.replay.batch import Batch
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.runs.folder import Done, SeedFolder
from offline_rl.training import curves
from offline_rl.utils.random import Random
from policies import Channel, Spec
from policies.channels import BASE_ACTION, map_channels
from policies.export import export_bundle
from policies.golden import seal
from policies.heads.residual import ResidualActor

BASE = '''
import numpy as np

class Chunked:
    """Goes back to 0 with what it saw up to three steps ago, and noise of its own."""
    n_obs_steps, n_action_steps, noise_shape = 2, 3, (4, 1)
    asked = 0
    def plan(self, observations, noise):
        Chunked.asked += len(observations)
        last, before = observations[:, -1, :1], observations[:, -2, :1]
        return np.clip(-last - 0.1 * before, -0.9, 0.9)[:, None] + 0.1 * np.tanh(noise)

def simple(observations):
    return np.full((len(observations), 1), 0.25)

class Failing:
    """Whatever it is asked after a while."""
    asked = 0
    def __call__(self, observations):
        self.asked += 1
        if self.asked > 60:
            raise OSError("the model is gone")
        return np.zeros((len(observations), 1))

class Blind(Failing):
    def __call__(self, observations):
        self.asked += 1
        return np.full((len(observations), 1), np.nan if self.asked > 60 else 0.0)

def degrees(observations):
    return np.full((len(observations), 1), 5.0)

def later(observations):
    """In other units where it has moved."""
    return 1.5 * (observations[:, 1:] > 0)

class Half:
    n_obs_steps = 0.5
    def __call__(self, observations):
        return np.zeros((len(observations), 1))

class Hasty(Half):
    n_obs_steps, n_action_steps = 1, 2

def crowded(observations):
    """Answers one, and not two."""
    if len(observations) == 2:
        raise OSError("the model is gone")
    return np.zeros((len(observations), 1))

class Tired:
    """Likewise, but for the fourth time."""
    asked = 0
    def __call__(self, observations):
        self.asked += len(observations) == 2
        return crowded(observations) if self.asked < 4 else np.zeros((len(observations), 1))

class Shrinking(Failing):
    def __call__(self, observations):
        self.asked += 1
        return np.zeros((len(observations), 2 if self.asked > 60 else 1))

def fails_far_away(observations):
    if np.abs(observations[:, 0]).max() > 1.2:
        raise OSError("that far nothing is known")
    return np.ones((len(observations), 1))

def wide(observations):
    return np.zeros((len(observations), 3))
'''
QUICK: dict[str, Any] = {"batch_size": 8, "compile": "never", "precision": "fp32", "seeds": 2}
QUICK |= {"algorithm.hidden": [8], "algorithm.num_critics": 3, "algorithm.actor_lr": 1e-2}
QUICK |= {"eval_episodes": 2, "tracker": "none", "show": False, "checkpoint_every": 100}
QUICK |= {"online.warmup_steps": 12, "online.critic_updates": 8, "eval_every": 1000}


class Line(gymnasium.Env):
    """A point on a line, at most 10 steps; it terminates too far from the center."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.uniform(-1, 1)), 0
        return np.array([self.x, 0], np.float32), {}

    def step(self, action: np.ndarray):
        self.x, self.t = self.x + 0.3 * float(action[0]), self.t + 1
        observations = np.array([self.x, self.t], np.float32)
        return observations, -abs(self.x), abs(self.x) > 1.2, False, {}


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a task and return its name."""
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    envs.register("line", Line, max_episode_steps=10)
    return "line"


@pytest.fixture
def base_name(tmp_path: Path) -> Callable[[str], str]:
    """Return the name of a base policy defined in a file."""
    (tmp_path / "bases.py").write_text(BASE)
    return lambda name: f"{tmp_path}/bases.py:{name}"


@pytest.fixture
def data() -> Dataset:
    """Return demonstrations in the line's shape, of different lengths."""
    draw = np.random.default_rng(0)
    ends = np.isin(np.arange(60), [4, 14, 17, 29, 44, 59])
    observations, after = draw.normal(size=(60, 2)), draw.normal(size=(60, 2))
    after[:-1][~ends[:-1]] = observations[1:][~ends[:-1]]
    rest = (draw.uniform(-1, 1, (60, 1)), draw.uniform(size=60))
    return Dataset.from_arrays(observations, *rest, ends & False, ends, after)


def learn(base: str, data: Dataset, out: Path, steps: int = 40, **keys: Any):
    told = {**QUICK, "task": "line", "base": base, "dataset": data, "out": str(out), **keys}
    return finetune(**told, num_env_steps=steps)


def tensors(run: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    files = SeedFolder(run, seed).checkpoints()
    return load_file(files[max(files)])


def bundle_of(line: str, tmp_path: Path, data: Dataset) -> str:
    """Return a bundle of a behavior-cloned chunk policy."""
    keys = {
        "algorithm.network": "mlp",
        "algorithm.widths": [8, 16],
        "algorithm.num_train_timesteps": 4,
    }
    keys |= {"algorithm.horizon": 4, "algorithm.n_action_steps": 2, "batch_size": 8, "show": False}
    keys = {
        k: v for k, v in keys.items() if k.removeprefix("algorithm.") in option_names("flow_policy")
    }
    told = {"eval_episodes": 1, "tracker": "none", "compile": "never", "precision": "fp32"}
    made = train(
        algorithm="flow_policy", task=line, dataset=data, num_updates=2, out=str(tmp_path),
        **keys, **told,
    )  # fmt: skip
    return str(made.path / "seed_0" / "policy.bundle")


def option_names(algorithm: str) -> set[str]:
    from dataclasses import fields

    from offline_rl.algorithms.common.registry import algorithm_class

    return {f.name for f in fields(algorithm_class(algorithm).Config)} | {"show", "batch_size"}


def test_demonstrations_are_labeled_with_the_bases_actions(
    line: str, base_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes in which the base acted, seeded by their number: the labels are its actions.

    After an end the label is its next action, with any history and chunk sizes.
    """
    monkeypatch.setattr(composed, "EPISODES", 2)  # side by side, of five
    env = envs.make_vector(line, 1)
    base, rows, after_ends = base_of(base_name("Chunked"), env), [], []
    for episode in range(5):
        world = ResidualEnv(env, base)
        observations = world.reset([episode])
        for _ in range(10):
            step = world.step(observations[BASE_ACTION])
            rows.append((observations["observation"][0], observations[BASE_ACTION][0], step))
            observations = step.observations
            if step.terminated[0] or step.truncated[0]:
                break
        after_ends.append(observations[BASE_ACTION][0])
    told = [row[2] for row in rows]
    arrays = np.stack([row[0] for row in rows]), np.stack([row[1] for row in rows])
    arrays += tuple(
        np.array([getattr(step, name)[0] for step in told])
        for name in ("rewards", "terminated", "truncated")
    )
    after = np.stack([step.observations["observation"][0] for step in told])
    made = label_dataset(Dataset.from_arrays(*arrays, after), base)
    found = made.observations[BASE_ACTION]
    np.testing.assert_array_equal(found[: len(rows)], made.actions)
    np.testing.assert_array_equal(found[made.next_index[made.episode_ends]], after_ends)
    apart = label_dataset(
        Dataset.from_arrays(*arrays, after + 1e-3), base
    )  # each stored for itself
    within = np.setdiff1d(np.arange(len(rows)), apart.episode_ends)
    assert (apart.next_index >= len(rows)).all()
    found = apart.observations[BASE_ACTION]
    np.testing.assert_array_equal(found[apart.next_index[within]], found[within + 1])
    assert np.abs(found[within + 1]).min() > 0


def test_parallel_environments_equal_single_ones(
    line: str, base_name: Callable[[str], str]
) -> None:
    """Independent of other environments and their ends, each chunk is predicted once."""
    env = envs.make_vector(line, 3)
    base = base_of(base_name("Chunked"), env)
    many = ResidualEnv(env, base)
    observations, running = many.reset([5, 6, 7]), np.arange(3)
    shown = {k: [observations[BASE_ACTION][k]] for k in range(3)}
    for _ in range(9):
        step = many.step(np.full((len(running), 1), 0.3), running)
        for k, row in enumerate(running):
            shown[int(row)].append(step.observations[BASE_ACTION][k])
        running = running[~(step.terminated | step.truncated)]
    for k in range(3):
        alone = ResidualEnv(envs.make_vector(line, 1), base)
        expected = [alone.reset([5 + k])[BASE_ACTION][0]]
        while len(expected) < len(shown[k]):
            expected.append(alone.step(np.array([[0.3]])).observations[BASE_ACTION][0])
        np.testing.assert_array_equal(np.stack(shown[k]), np.stack(expected))


def test_a_new_episode_drops_its_old_chunk(line: str, base_name: Callable[[str], str]) -> None:
    """The second of three environments restarts in mid-chunk; the others continue their chunks."""
    env = envs.make_vector(line, 3)
    base, still = base_of(base_name("Chunked"), env), np.zeros((3, 1))
    begun, apart = ResidualEnv(env, base), ResidualEnv(envs.make_vector(line, 3), base)
    for world in (begun, apart):
        world.reset([5, 6, 7])
        world.step(still)
    fresh = ResidualEnv(envs.make_vector(line, 1), base)
    shown = begun.reset([9], np.array([1]))[BASE_ACTION]
    np.testing.assert_array_equal(shown, fresh.reset([9])[BASE_ACTION])
    for _ in range(4):
        found, kept = begun.step(still), apart.step(still)
        alone = fresh.step(still[:1]).observations[BASE_ACTION]
        np.testing.assert_array_equal(found.observations[BASE_ACTION][[1]], alone)
        pair = (step.observations[BASE_ACTION][[0, 2]] for step in (found, kept))
        np.testing.assert_array_equal(*pair)


def test_base_actions_are_clipped_to_the_range(line: str, base_name: Callable[[str], str]) -> None:
    """The base returns 1.5 after the first step."""
    env = envs.make_vector(line, 2)
    world = ResidualEnv(env, base_of(base_name("later"), env))
    assert world.reset([0, 1])[BASE_ACTION].tolist() == [[0], [0]]
    assert world.step(np.zeros((2, 1))).observations[BASE_ACTION].tolist() == [[1], [1]]


def test_n_step_returns_apply_to_demonstrations_and_experience() -> None:
    """Rewards 1 and 10, three steps: (1 + g + g^2) times each and ten; a time-out bootstraps."""
    rows, ends, gamma = 8, np.arange(8) % 4 == 3, 0.5
    buffers = []
    for paid in (1.0, 10.0):
        observations = {"joints": np.zeros((rows, 3)), BASE_ACTION: np.zeros((rows, 2))}
        told = {"actions": np.zeros((rows, 2)), "rewards": np.full(rows, paid)}
        told |= {"terminated": ends & (np.arange(rows) > 4), "truncated": ends}
        told["truncated"] = ends & ~told["terminated"]
        buffer = ReplayBuffer({"joints": (3,), BASE_ACTION: (2,)}, 2, rows)
        buffer.append(0, {"observations": observations, "next_observations": observations, **told})
        buffers.append(buffer)
    sources = {"offline": buffers[0], "online": buffers[1]}
    source = small({"n_step": 3}).source(ONLINE, sources)
    tensors = {name: {k: v[0] for k, v in part.items()} for name, part in source.tensors().items()}
    drawn = source.sample(tensors, Random(torch.tensor(0), torch.tensor(0)), 400, gamma)
    pairs = zip(drawn.rewards.tolist(), drawn.discount.tolist(), strict=True)
    cut = {(1.75, 0.125), (1.5, 0.25), (1.0, 0.5)}  # the first two rows have three steps left
    over = {(1.75, 0.125), (1.75, 0.0), (1.5, 0.0), (1.0, 0.0)}
    assert set(pairs) == {(k * r, g) for r, g in cut | over for k in (1, 10)}
    assert (drawn.rewards >= 10).float().mean() == 0.5


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"rate_hz": 50.0}, r"does not fit the task: rate_hz: the policy has 50, here it is 20"),
        ({"channels": (3,)}, r"does not fit the task: observation_shape: the policy has \(3,\)"),
        ({}, None),
    ],
)
def test_a_bundle_of_another_task_cannot_be_a_base(
    line: str, tmp_path: Path, change: dict[str, Any], fault: str | None
) -> None:
    env = envs.make_vector(line, 1)
    env.rate_hz = 20.0
    spec = Spec(**{"channels": (2,), "action_dim": 1, **change})
    size, file = spec.observation_dim, str(tmp_path / "policy.bundle")
    weights = {"trunk.weights.0": np.ones((size, 1)), "trunk.biases.0": np.zeros(1)}
    weights = {k: v.astype(np.float32) for k, v in weights.items()}
    told = {"observations": size, "actions": 1, "hidden": []}
    normalizer = policies.Normalizer.identity((size,))
    made = policies.Bundle(spec, "DeterministicActor", told, weights, normalizer)
    policies.bundle.write(Path(file), seal(made))
    if fault is None:
        assert base_of(file, env).bundle is not None
        return
    with pytest.raises(UserError, match=fault):
        base_of(file, env)


def test_a_policy_that_uses_rewards_cannot_be_a_base(
    line: str, data: Dataset, tmp_path: Path
) -> None:
    keys = {"algorithm.dim_model": 8, "algorithm.num_layers": 1, "algorithm.num_heads": 1}
    keys |= {"algorithm.context_length": 2, "algorithm.episode_steps": 10}
    keys |= {"algorithm.target_return": 1.0, "algorithm.return_scale": 1.0}
    told = {"eval_episodes": 1, "tracker": "none", "compile": "never", "show": False}
    made = train(
        algorithm="decision_transformer", task=line, dataset=data, num_updates=1,
        batch_size=4, out=str(tmp_path), **keys, **told,
    )  # fmt: skip
    file = str(made.path / "seed_0" / "policy.bundle")
    with pytest.raises(UserError, match="reads the rewards of its episode, but a base"):
        base_of(file, envs.make_vector(line, 1))


def test_the_residual_action_starts_at_zero_and_stays_within_its_scale() -> None:
    torch.manual_seed(0)
    actor = ResidualActor(5, 2, [8], scale=0.1)
    observations = torch.rand(64, 5) * 2 - 1
    assert torch.equal(actor.act(observations), observations[:, -2:])
    for weight in actor.trunk.weights:
        torch.nn.init.normal_(weight, std=9.0)
    moved = actor.act(observations)
    assert (moved - observations[:, -2:]).abs().max() <= 0.1 + 1e-6
    assert (moved - observations[:, -2:]).abs().max() > 0.09
    assert moved.abs().max() <= 1
    noisy = actor.explore_action(observations, Random(torch.tensor(0), torch.tensor(0)))
    assert noisy.abs().max() <= 1


def small(online: dict[str, Any] | None = None, **values: Any) -> ResFiT:
    cfg = Config(hidden=(16,), num_critics=4, **values)
    how = Interaction(Online(**{"utd": 2.0, **(online or {})}), cfg)
    torch.manual_seed(0)
    return ResFiT(Spec({"joints": (3,), BASE_ACTION: (2,)}, 2), cfg, 10, how)


def batch(size: int = 32) -> Batch:
    draw = torch.Generator().manual_seed(0)

    def observations() -> dict[str, torch.Tensor]:
        base = torch.rand(size, 2, generator=draw) * 2 - 1
        return {"joints": torch.randn(size, 3, generator=draw), BASE_ACTION: base}

    rest = [torch.rand(size, *shape, generator=draw) for shape in ((2,), (), ())]
    return Batch(observations(), *rest, observations(), torch.ones(size))


def state_of(algorithm: ResFiT, done: int) -> State:
    tree, random = algorithm.initial(), Random(torch.tensor(0), torch.tensor(0))
    return State(algorithm, tree["params"], tree["optimizer"], random, torch.tensor(done))


def test_the_actor_does_not_change_during_critic_only_updates() -> None:
    """Five critic-only updates are eight, because updates come in fours."""
    algorithm = small({"critic_updates": 5, "utd": 4.0}, actor_lr=1e-2)
    for done in (3, 7, 8):
        state = state_of(algorithm, done)
        new, _ = algorithm.update(state, batch(), 3)
        for name in ("policy", "policy_target"):
            pairs = zip(state.params[name].values(), new.params[name].values(), strict=True)
            moved = any(not torch.equal(a, b) for a, b in pairs)
            assert moved == (done >= 8), (done, name)
        assert int(new.optimizer["policy"]["count"]["steps"]) == (done >= 8)
        assert any(
            not torch.equal(a, new.params["critic"][k]) for k, a in state.params["critic"].items()
        )
        assert torch.equal(new.params["policy"]["head.scale"], torch.tensor(0.1))


def test_the_target_uses_the_clipped_action_and_the_minimum_of_sampled_critics() -> None:
    """Float64 by hand, without noise. With noise the target's action is within the noise clip."""
    algorithm, drawn = small({"critic_updates": 0}, target_noise=False, num_min_critics=4), batch()
    state = state_of(algorithm, 0)
    y = algorithm.target(state, drawn, torch.tensor(True))
    after = drawn.next_observations
    q = state.critic_target(after, after[BASE_ACTION].clamp(-1, 1))
    expected = drawn.rewards.double() + drawn.discount.double() * q.double().amin(0)
    torch.testing.assert_close(y.double(), expected, atol=1e-6, rtol=0)
    loud = small({"critic_updates": 0}, noise=50.0, noise_clip=0.0, num_min_critics=4)
    torch.testing.assert_close(loud.target(state, drawn, torch.tensor(True)), y)
    early = small(noise=0.3, num_min_critics=4)
    torch.testing.assert_close(early.target(state, drawn, torch.tensor(False)), y)


def pushing(params: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return an actor whose residual action is its scale, 0.1, for any observation."""
    last = [name for name in params if name.endswith("trunk.biases.1")]
    return {**params, last[0]: torch.full_like(params[last[0]], 50.0)}


def test_target_and_actor_loss_use_the_clipped_action() -> None:
    algorithm = small({"critic_updates": 0}, target_noise=False, num_min_critics=4, critic_lr=0.0)
    state, drawn = state_of(algorithm, 0), batch()
    lagging = {k: v + 0.1 for k, v in state.params["critic_target"].items()}
    moved = {"policy_target": pushing(state.params["policy_target"]), "critic_target": lagging}
    state = replace(state, params={**state.params, **moved})
    base = drawn.next_observations[BASE_ACTION]
    assert (base > 0.95).any()  # there the sum is beyond
    q = state.critic_target(drawn.next_observations, (base + 0.1).clamp(max=1))
    expected = drawn.rewards + drawn.discount * q.amin(0)
    torch.testing.assert_close(algorithm.target(state, drawn, torch.tensor(True)), expected)
    pushed = {**state.params, "policy": pushing(state.params["policy"])}
    state = replace(state, params=pushed)
    _, metrics = algorithm.update(state, drawn, 1)
    base = drawn.observations[BASE_ACTION]
    combined = (base + 0.1).clamp(max=1)
    expected = -state.critic(drawn.observations, combined).mean()
    assert metrics["policy_loss"].item() == pytest.approx(expected.item(), abs=1e-6)
    assert metrics["correction"].item() == pytest.approx((combined - base).mean().item(), abs=1e-6)
    quiet: dict[str, Any] = {"target_noise": False, "num_min_critics": 4, "critic_lr": 0.0}
    weighed = small({"critic_updates": 0}, correction_weight=3.0, **quiet)
    _, metrics = weighed.update(replace(state, algorithm=weighed), drawn, 1)
    pulled = 3.0 * 2 * 0.1**2  # of two numbers, as they are before the sum is clipped
    assert metrics["policy_loss"].item() == pytest.approx(expected.item() + pulled, abs=1e-6)


@pytest.mark.parametrize("gate", ["mean", "all"])
def test_with_a_gate_the_base_acts_unless_critics_prefer_the_residual_action(gate: str) -> None:
    algorithm, observations = small(gate=gate, scale=0.5), batch(256).observations
    head: Any = algorithm.acting_head()
    for weight in head.policy.head.trunk.weights:
        torch.nn.init.normal_(weight)
    residual, base = head.policy(observations), observations[BASE_ACTION]
    with torch.no_grad():
        gains = head.critic(observations, residual) - head.critic(observations, base)  # [4, 256]
        acted = head.act(observations)
    votes = (gains > 0).sum(0)
    prefers = gains.sum(0) > 0 if gate == "mean" else votes == 4
    assert (prefers != (votes > 0)).any()  # critics disagree in some rows
    assert torch.equal(acted[prefers], residual[prefers])
    assert torch.equal(acted[~prefers], base[~prefers])
    noise, random = torch.zeros(256, 0), [Random(torch.tensor(0), torch.tensor(0)) for _ in "12"]
    explored = head.explore(map_channels(lambda x: x[:, None], observations), {}, noise, random[0])
    alone = head.policy.explore(
        map_channels(lambda x: x[:, None], observations), {}, noise, random[1]
    )
    assert torch.equal(explored[0], alone[0])


@pytest.mark.slow
def test_a_gated_policy_acts_from_its_bundle_as_evaluated(
    line: str, data: Dataset, tmp_path: Path
) -> None:
    base, keys = bundle_of(line, tmp_path, data), {"seeds": 1, "algorithm.gate": "all"}
    made = learn(base, data, tmp_path / "gated", **keys)
    file = made.path / "seed_0" / "policy.bundle"
    played = json.loads(evaluate(run=str(file), episodes=2, json=True))["bundles"][0]["returns"]
    assert played == made.results[0]["returns"]
    pytest.importorskip("onnxruntime")
    assert export_bundle(policies.load(file).bundle)[1] <= 1e-4


def test_exploration_noise_is_independent_of_the_scale() -> None:
    """Exploration noise is not clipped like the target's: a third of it is beyond 0.3."""
    for scale, noise in ((0.01, 0.05), (0.5, 0.05), (0.5, 0.3)):
        actor = ResidualActor(3, 2, [8], scale=scale, noise=noise)
        observations = torch.zeros(20_000, 3)
        noisy = actor.explore_action(observations, Random(torch.tensor(0), torch.tensor(0)))
        assert noisy.std().item() == pytest.approx(noise, rel=0.02)


def test_saved_experience_does_not_contain_base_actions(
    line: str, base_name: Callable[[str], str], data: Dataset, tmp_path: Path
) -> None:
    path = learn(base_name("simple"), data, tmp_path, keep_data=True, seeds=1).path
    found = read(path / "seed_0" / "experience.hdf5")
    assert (found.observations.shape[1:], found.num_rows) == ((2,), 40)
    starts = found.observations[found.episode_starts]
    assert starts[:, 1].tolist() == [0] * len(starts)  # raw: the step within the episode
    np.testing.assert_allclose(found.rewards, -np.abs(found.next_observations[:, 0]), atol=1e-5)
    learn(base_name("simple"), found, tmp_path / "again", seeds=1)


def test_unused_demonstrations_still_define_the_normalization(
    line: str, base_name: Callable[[str], str], data: Dataset, tmp_path: Path
) -> None:
    transforms = list[Any]()
    for offline_fraction in (0.5, 0.0):
        keys = {"seeds": 1, "online.offline_fraction": offline_fraction}
        path = learn(base_name("simple"), data, tmp_path / str(offline_fraction), **keys).path
        folder = SeedFolder(path, 0)
        transforms.append(folder.load(max(folder.checkpoints()))[1]["transform"])
    assert transforms[0] == transforms[1]
    mean = data.observations[: data.num_rows].mean(0)
    assert transforms[1]["mean"]["observation"] == pytest.approx(mean.tolist(), abs=1e-6)


def test_actor_and_critics_observe_images_and_only_the_actor_the_base_action() -> None:
    cfg = Config(hidden=(16,), num_critics=3, num_keypoints=4, actor_lr=1e-3)
    how = Interaction(Online(utd=1.0, critic_updates=0), cfg)
    torch.manual_seed(0)
    spec = Spec({"camera": (24, 24, 3), BASE_ACTION: (2,)}, 2)
    algorithm, draw = ResFiT(spec, cfg, 10, how), torch.Generator().manual_seed(0)

    def observations() -> dict[str, torch.Tensor]:
        camera = torch.randint(0, 256, (8, 24, 24, 3), generator=draw, dtype=torch.uint8)
        return {"camera": camera, BASE_ACTION: torch.rand(8, 2, generator=draw) - 0.5}

    rest = [torch.rand(8, *shape, generator=draw) for shape in ((2,), (), ())]
    drawn = Batch(observations(), *rest, observations(), torch.ones(8))
    state = state_of(algorithm, 0)
    new, metrics = algorithm.update(state, drawn, 0)
    assert all(value.isfinite() for value in metrics.values())
    encoder = [k for k in state.params["critic"] if "observation_encoder" in k]
    was, now = state.params["critic"], new.params["critic"]
    assert any(not torch.equal(was[k], now[k]) for k in encoder)
    s, a = drawn.observations, drawn.actions
    other = {**s, BASE_ACTION: -s[BASE_ACTION]}
    assert torch.equal(new.critic(s, a), new.critic(other, a))
    dark = {**s, "camera": torch.zeros_like(s["camera"])}
    assert not torch.equal(new.critic(s, a), new.critic(dark, a))
    torch.testing.assert_close(state.policy(other), -s[BASE_ACTION])


def test_critic_errors_are_squared_before_averaging_by_default() -> None:
    drawn = batch()
    for mean_first in (False, True):
        algorithm = small(mean_first=mean_first, num_min_critics=4)
        state = state_of(algorithm, 0)
        errors = (
            state.critic(drawn.observations, drawn.actions)
            - algorithm.target(state, drawn, torch.tensor(False))
        ).double()
        by_hand = errors.abs().mean(0).square().mean() if mean_first else errors.square().mean()
        _, metrics = algorithm.update(state, drawn, 0)
        assert metrics["critic_loss"].item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_updates_come_in_the_papers_order() -> None:
    """No updates in the warm-up, then critic-only updates at once, then a number per step."""
    online = Online(warmup_steps=100, critic_updates=50, utd=4.0)
    assert [online.updates_due(n, 8, 4) for n in (0, 99, 100)] == [0, 0, 0]
    assert [online.updates_due(n, 8, 4) for n in (101, 102)] == [52 + 4, 52 + 8]
    observations = {BASE_ACTION: np.array([0.95, -0.2])}
    drawn = np.stack(
        [online.warmup_action(np.random.default_rng(k), observations, 2) for k in range(200)]
    )
    assert drawn.max() == 1
    assert np.abs(drawn - observations[BASE_ACTION]).max() <= 0.2
    assert np.abs(drawn[:, 1] + 0.2).max() > 0.19


@pytest.mark.slow
def test_the_first_evaluation_is_the_bases_and_training_resumes_in_mid_chunk(
    line: str, base_name: Callable[[str], str], data: Dataset, tmp_path: Path
) -> None:
    whole = learn(base_name("Chunked"), data, tmp_path / "whole")
    told = (whole.path / "seed_0" / "evaluations.jsonl").read_text().splitlines()
    first = json.loads(told[0])
    env = envs.make_vector(line, 2)
    world = ResidualEnv(env, base_of(base_name("Chunked"), env))
    observations, returns, running = world.reset(first["seeds"]), np.zeros(2), np.arange(2)
    actions = observations[BASE_ACTION].copy()
    while len(running):
        step = world.step(actions[running], running)
        returns[running] += step.rewards
        actions[running] = step.observations[BASE_ACTION]
        running = running[~(step.terminated | step.truncated)]
    assert first["returns"] == returns.tolist()

    def stop(running: Any) -> None:
        if running.env_steps == 25:
            running.save()
            raise KeyboardInterrupt

    keys = {"eval_every": 25, "checkpoint_every": 25}
    told = {**QUICK, "task": "line", "base": base_name("Chunked"), "dataset": data, **keys}
    told |= {"algorithm": "resfit", "num_updates": 0, "num_env_steps": 40, "watch": stop}
    with pytest.raises(KeyboardInterrupt):
        train(**told, out=str(tmp_path / "cut"))
    again = learn(base_name("Chunked"), data, tmp_path / "cut", **keys)
    for seed in (0, 1):
        one, two = tensors(whole.path, seed), tensors(again.path, seed)
        assert one.keys() == two.keys()
        assert "buffer/observations/base_action" in one
        for name in one:
            assert torch.equal(one[name], two[name]), name
        moved = one["params/policy/head.trunk.weights.1"]
        assert moved.abs().max() > 0
        shown, stored = (one[f"buffer/{k}"] for k in ("observations/base_action", "actions"))
        for t in range(12):  # who has warmed up by uniform noise
            noise = np.random.default_rng((seed, t)).uniform(-0.2, 0.2, 1)
            expected = (shown[t].numpy() + noise).clip(-1, 1)
            np.testing.assert_allclose(stored[t].numpy(), expected, atol=1e-6)
        assert (stored[12:40] - shown[12:40]).abs().max() < 0.1 + 5 * 0.05
        assert stored.abs().max() <= 1


@pytest.mark.parametrize("overlap", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_stop_during_critic_only_updates_loses_nothing(
    line: str,
    base_name: Callable[[str], str],
    data: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    overlap: bool,
) -> None:
    """The evaluation due at that step waits for the remaining updates."""
    keys: dict[str, Any] = {"online.critic_updates": 80, "eval_every": 13, "overlap": overlap}
    keys |= {"steps": 20, "seeds": 1}
    whole = learn(base_name("Chunked"), data, tmp_path / "whole", **keys)
    run = Engine.run

    def request_stop(engine: Engine, updates: int, phase: str) -> None:
        run(engine, updates, phase)
        if engine.updates == 28:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "run", request_stop)
        patch.setattr(curves, "PROGRESS_EVERY_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            learn(base_name("Chunked"), data, tmp_path / "cut", **keys, show=True)
    assert "28 of 84 updates before the next step" in capsys.readouterr().out
    folder = SeedFolder(whole.path, 0)
    cut = SeedFolder(tmp_path / "cut" / folder.path.relative_to(tmp_path / "whole").parent, 0)
    assert max(cut.checkpoints()) == Done(13, 28)
    again = learn(base_name("Chunked"), data, tmp_path / "cut", **keys)
    one, two = tensors(whole.path), tensors(again.path)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    first, second = (f.rows("evaluations") for f in (folder, cut))
    told = ("updates", "env_steps", "returns")
    assert [[row[k] for k in told] for row in first] == [[row[k] for k in told] for row in second]


def test_a_residual_bundle_contains_its_base_and_acts_as_evaluated(
    line: str, data: Dataset, tmp_path: Path
) -> None:
    base = bundle_of(line, tmp_path / "base", data)
    before = Path(base).read_bytes()
    made = learn(base, data, tmp_path / "out", seeds=1)
    assert Path(base).read_bytes() == before
    digests = made.results[0]["base_weights"]
    assert digests["before"] == digests["after"]
    frozen = base_of(base, envs.make_vector(line, 1))
    assert frozen.digests() == digests
    assert frozen.policy is not None
    next(frozen.policy.module.parameters()).data.view(-1)[0] += 1e-6
    assert frozen.digests() != digests
    file = made.path / "seed_0" / "policy.bundle"
    policy = policies.load(file)
    assert policy.bundle.base is not None
    normalizers, rows = (
        policy.bundle.normalizers,
        data.observations[: data.num_rows].astype(np.float64),
    )
    assert normalizers[BASE_ACTION].is_identity
    np.testing.assert_allclose(normalizers["observation"].mean, rows.mean(0), atol=1e-6)
    np.testing.assert_allclose(normalizers["observation"].scale, rows.std(0), rtol=1e-6)
    first = policies.load(base).bundle.weights
    for name, weight in policy.bundle.base.weights.items():
        np.testing.assert_array_equal(weight, first[name])
    assert (policy.spec.observation_shapes, policy.spec.chunk_size) == ((2,), 1)
    played = json.loads(evaluate(run=str(file), episodes=2, json=True))["bundles"][0]["returns"]
    assert played == made.results[0]["returns"]
    with pytest.raises(UserError, match=r"needs no base policy. Leave out base="):
        evaluate(run=str(file), episodes=2, base=base)
    untouched = play(policies.load(base), envs.make_vector(line, 2)).returns
    assert played != untouched.tolist()
    observations, state = np.array([[0.5, 0.0], [0.1, 0.0]], np.float32), None
    for _ in range(3):
        kept = state
        chunk, state = policy.act(observations, kept)
        again, _ = policy.act(observations, kept)
        np.testing.assert_array_equal(chunk, again)
        assert chunk.shape == (2, 1, 1)
    pytest.importorskip("onnxruntime")
    whole, apart = export_bundle(policy.bundle)
    assert apart <= 1e-4
    policies.bundle.write(tmp_path / "onnx.bundle", whole)
    other = policies.load(tmp_path / "onnx.bundle", runtime="onnx")
    players = [policies.Player(each) for each in (policy, other)]
    for player in players:
        player.reset([3, 4])
    for _ in range(5):
        one, two = (player.step(observations) for player in players)
        np.testing.assert_allclose(one, two, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("Failing", "the model is gone"),
        ("Blind", "returned NaN"),
        ("Shrinking", r"it returned shape \[1, 1, 2\], expected \[1, 1, 1\]"),
    ],
)
def test_a_failing_base_ends_the_episode_and_finally_the_run(
    line: str, base_name: Callable[[str], str], data: Dataset, tmp_path: Path, name: str, fault: str
) -> None:
    found = rf"the base policy failed in step 0.*:{name}.*{fault}.*for the 5th time in a row"
    with pytest.raises(UserError, match=found):
        learn(base_name(name), data, tmp_path, 200, seeds=1, **{"online.warmup_steps": 150})


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        (
            {"base": "wide"},
            r"returned shape \[1, 1, 3\] for one observation, expected actions \[1, 1\]",
        ),
        ({"base": "absent"}, r"bases\.py has no 'absent'"),
        (
            {"base": "degrees"},
            r":degrees returned 5 for the first observation, but actions must be in \[-1, 1\]",
        ),
        ({"base": "Half"}, "n_obs_steps=0.5 must be an integer of at least 1"),
        ({"base": "Hasty"}, "n_action_steps=2, but a chunk has 1 actions"),
        (
            {"algorithm.clip_target": True, "algorithm.reward_shift": 1.0},
            r"clip_target=true.*from 1",
        ),
        ({"algorithm.scale": 0.0}, "scale"),
        ({"num_updates": 10}, "resfit learns only online"),
        ({"task": None}, "finetune with base= needs task="),
        (  # the one step after the warm-up brings half an update beside the critics' three
            {"online.warmup_steps": 19, "online.critic_updates": 3, "online.utd": 0.5},
            r"all 3 online updates fall within online.critic_updates \(\d+ updates\)\. Raise",
        ),
        (
            {"dataset": None},
            r"has no dataset.*dataset=<path or id>, or online\.offline_fraction=0 to learn",
        ),
    ],
)
def test_invalid_options_are_refused_in_one_line(
    line: str,
    base_name: Callable[[str], str],
    data: Dataset,
    tmp_path: Path,
    keys: dict[str, Any],
    fault: str,
) -> None:
    told = {**QUICK, "base": "simple", "task": line, "dataset": data} | keys
    told["base"] = base_name(told["base"])
    told = {k: v for k, v in told.items() if v is not None}
    with pytest.raises(UserError, match=fault):
        finetune(**told, out=str(tmp_path / "no"), num_env_steps=20)
    assert not (tmp_path / "no").exists()


def test_a_run_resumes_with_the_class_of_its_base(
    line: str, base_name: Callable[[str], str], data: Dataset, tmp_path: Path
) -> None:
    learn(base_name("simple"), data, tmp_path / "out", 2, seeds=1)
    with pytest.raises(UserError, match="was started with another base"):
        learn(base_name("Chunked"), data, tmp_path / "out", 2, seeds=1)


@pytest.mark.parametrize(
    ("base", "fault"),
    [
        ("{}/bases.py", r"lacks the function or class. Use base=.*/bases\.py:<name>"),
        ("{}", r"is a folder. Use base=.*/run/seed_0/policy\.bundle"),
    ],
)
def test_a_misspelled_base_is_suggested(
    line: str, base_name: Callable[[str], str], tmp_path: Path, base: str, fault: str
) -> None:
    base_name("simple")
    (tmp_path / "run" / "seed_0").mkdir(parents=True)
    (tmp_path / "run" / "seed_0" / "policy.bundle").touch()
    with pytest.raises(UserError, match=fault):
        base_of(base.format(tmp_path), envs.make_vector(line, 1))


def test_demonstrations_of_another_task_are_refused_before_labeling(
    line: str, base_name: Callable[[str], str], tmp_path: Path
) -> None:
    rows = (np.zeros((6, 3)), np.zeros((6, 1)), np.zeros(6), np.arange(6) == 5)
    found = r"observations \[3\] and 1 actions, task line has \[2\] and 1"
    with pytest.raises(UserError, match=found):
        learn(base_name("Chunked"), Dataset.from_arrays(*rows), tmp_path)


def test_base_actions_in_other_units_are_reported(
    line: str, base_name: Callable[[str], str], data: Dataset
) -> None:
    base = base_of(base_name("later"), envs.make_vector(line, 1))
    made, moved = label_dataset(data, base), data.observations[: data.num_rows, 1] > 0
    np.testing.assert_array_equal(made.observations[BASE_ACTION][: data.num_rows, 0], moved)
    told = f"{moved.mean():.0%} of the actions of base={base.name} are clipped to [-1, 1]"
    assert told in made.notes


def test_a_residual_of_a_python_base_needs_that_base_to_play(
    line: str, base_name: Callable[[str], str], data: Dataset, tmp_path: Path, capsys: Any
) -> None:
    made = learn(base_name("Chunked"), data, tmp_path / "out", seeds=1, show=True)
    assert "pass base= also to evaluate and play" in capsys.readouterr().out
    file = str(made.path / "seed_0" / "policy.bundle")
    assert policies.load(file).bundle.provenance["base"] == base_name("Chunked")
    with pytest.raises(UserError, match=r"which it does not contain. Add base=.*bases\.py:Chunked"):
        evaluate(run=file, episodes=2)
    told = evaluate(run=file, episodes=2, json=True, base=base_name("Chunked"))
    assert json.loads(told)["bundles"][0]["returns"] == made.results[0]["returns"]
    run = offline_rl.load(made.path)
    assert run.evaluate(2).returns.tolist() == made.results[0]["returns"]
    assert run.act(np.zeros((3, 2))).shape == (3, 1)
    with pytest.raises(UserError, match="was trained on a base policy that it does not contain"):
        base_of(file, envs.make_vector(line, 1))
    with pytest.raises(
        UserError, match=r"Train longer from the start: offline-rl finetune base=.*:Chunked name="
    ):
        finetune(run=made.path, num_env_steps=10)


def test_the_spec_contains_the_environments_metadata() -> None:
    env = envs.make_vector("arm/reach", 1)
    found = with_base(merge_specs(envs.task("arm/reach"), spec_of(env), None))
    assert found.channels[0].names[0] == "waist.q"
    assert found.channels[0].units == spec_of(env).channels[0].units
    assert found.action_offset == env.action_offset
    assert found.channels[1:] == (Channel(BASE_ACTION, (5,)),)


def test_evaluations_with_a_failing_base_are_skipped_up_to_five_times(
    line: str, base_name: Callable[[str], str], data: Dataset, tmp_path: Path, capsys: Any
) -> None:
    keys = {"steps": 20, "seeds": 1, "show": True, "dataset": None, "online.offline_fraction": 0.0}
    made = learn(base_name("Tired"), data, tmp_path / "tired", eval_every=10, **keys)
    assert made.results[0]["mean_return"] is not None
    told = capsys.readouterr().out
    assert (told.count("this evaluation is skipped"), told.count("so it is repeated")) == (2, 1)
    rows = (made.path / "seed_0" / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(row)["env_steps"] for row in rows] == [20]
    found = (
        r"failed in the evaluation after 20 steps .*the model is gone.*for the 5th time in a row"
    )
    with pytest.raises(UserError, match=found):
        learn(base_name("crowded"), data, tmp_path / "five", eval_every=5, **keys)


def test_the_base_does_not_act_after_an_episode(line: str, base_name: Callable[[str], str]) -> None:
    env = envs.make_vector(line, 1)
    world = ResidualEnv(env, base_of(base_name("fails_far_away"), env))
    step, observations = None, world.reset([0])
    while step is None or not step.terminated[0]:
        step = world.step(observations[BASE_ACTION])
        observations = step.observations
    assert abs(observations["observation"][0, 0]) > 1.2
    assert observations[BASE_ACTION] == 0


@pytest.mark.parametrize(
    ("field", "one", "two"),
    [
        ("observation_shape", {"channels": (3,)}, {}),
        ("action_dim", {"action_dim": 2}, {}),
        ("rate_hz", {"rate_hz": 50.0}, {"rate_hz": 20.0}),
        ("action_names", {"action_names": ("left",)}, {"action_names": ("right",)}),
        ("action_units", {"action_units": ("rad",)}, {"action_units": ("m",)}),
        (
            "observation_units",
            {"channels": (Channel("observation", (2,), units=("rad",)),)},
            {"channels": (Channel("observation", (2,), units=("deg",)),)},
        ),
        ("action_range", {"action_low": (-2.0,)}, {"action_low": (-1.0,)}),
        (
            "action_range",
            {"action_low": (-1.0,), "action_high": (2.0,)},
            {"action_low": (-1.0,), "action_high": (1.0,)},
        ),
    ],
)
def test_the_field_in_which_a_base_differs_is_named(
    field: str, one: dict[str, Any], two: dict[str, Any]
) -> None:
    plain: dict[str, Any] = {"channels": (2,), "action_dim": 1}
    policy_spec, here = Spec(**{**plain, **one}), Spec(**{**plain, **two})
    assert str(spec_difference(policy_spec, here)).startswith(f"{field}: the policy has ")
    assert spec_difference(policy_spec, policy_spec) is None


def test_algorithms_without_residual_actions_refuse_a_base(
    line: str, base_name: Callable[[str], str], data: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="base= is used by dsrl and resfit; iql has no base policy"):
        train(algorithm="iql", task=line, base=base_name("simple"), dataset=data, out=str(tmp_path))


def test_demonstrations_beyond_the_residual_scale_are_reported(
    line: str, base_name: Callable[[str], str], data: Dataset, tmp_path: Path, capsys: Any
) -> None:
    learn(base_name("simple"), data, tmp_path, steps=2, seeds=1, show=True)
    share = np.mean(np.abs(data.actions[:, 0] - 0.25) > 0.1)
    assert (
        f"{share:.0%} of the actions differ from the base policy's by more than scale=0.1"
        in capsys.readouterr().out
    )
