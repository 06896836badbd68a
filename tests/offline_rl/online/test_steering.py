"""Latent-noise steering: environments with a base policy, training, resuming and bundles."""

import json
import signal
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
from steered import HORIZON, NOISY, STEPS, base_bundle, steering_bundle, write_base

import envs
import offline_rl
import policies
from envs import tasks
from offline_rl import Dataset, UserError, finetune
from offline_rl.engine.engine import Engine
from offline_rl.online.composed import Composed, SteeredEnv, base_of
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.runs.folder import SeedFolder
from offline_rl.utils.random import Random
from policies import Bundle, Normalizer, Spec, bundle
from policies.bundle import Composition
from policies.golden import seal
from policies.heads.deterministic import DeterministicActor
from policies.policy import BundlePolicy
from policies.runtimes.network import make_network

SCALE, LIMIT = 1.5, 10
METHOD = f'''
"""SAC on the initial noise of a frozen base policy."""

from offline_rl.algorithms import sac
from offline_rl.algorithms.common.base import Mode
from offline_rl.utils.options import Positive, frozen


@frozen
class Config(sac.Config):
    noise_scale: Positive = {SCALE}  # initial noise for the action 1


class Steer(sac.SAC):
    Config = Config
    mode = Mode(start="base", learns=("environment",), how="noise")
    extra_columns = ("steps",)
'''
QUICK: dict[str, Any] = {"batch_size": 8, "compile": "never", "precision": "fp32", "seeds": 2}
QUICK |= {"algorithm.hidden": [8], "eval_episodes": 2, "tracker": "none", "show": False}
QUICK |= {"online.warmup_steps": 12, "eval_every": 1000, "checkpoint_every": 1000}


class Line(gymnasium.Env):
    """A point on a line, at most 10 steps; it terminates too far from the center."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.uniform(-0.5, 0.5)), 0
        return np.array([self.x, 0], np.float32), {}

    def step(self, action: np.ndarray):
        self.x, self.t = self.x + 0.3 * float(action[0]), self.t + 1
        observations, info = np.array([self.x, self.t], np.float32), {"cost": 1.0}
        info["success"] = abs(self.x) < 0.1
        return observations, self.x, abs(self.x) > 1.2, False, info


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a task and return its name."""
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    envs.register("line", Line, max_episode_steps=LIMIT)
    return "line"


@pytest.fixture
def method(tmp_path: Path) -> str:
    """Return the file of an algorithm that steers noise."""
    (tmp_path / "steer.py").write_text(METHOD)
    return str(tmp_path / "steer.py")


@pytest.fixture
def base(tmp_path: Path) -> str:
    return write_base(tmp_path / "base.bundle")


def learn(method: str, base: str, out: Path, steps: int = 60, **keys: Any):
    told = {**QUICK, "algorithm": method, "base": base, "task": "line", "out": str(out), **keys}
    return finetune(**told, num_env_steps=steps)


def tensors(run: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    files = SeedFolder(run, seed).checkpoints()
    return load_file(files[max(files)])


def steered_env(base: str, count: int, scale: float = SCALE) -> SteeredEnv:
    env = envs.make_vector("line", count)
    world = Composed(base_of(base, env), Composition("noise", scale)).wrap(env)
    assert isinstance(world, SteeredEnv)
    return world


def executed(action: np.ndarray) -> np.ndarray:
    """Return the actions that follow from an initial noise [4]: the last three, clipped."""
    return (SCALE * action[1:]).clip(-1, 1)


def test_a_step_executes_a_chunk_and_sums_its_rewards(line: str, base: str) -> None:
    """The second environment terminates in mid-chunk; the others reach the limit of 10 steps."""
    world, plain = steered_env(base, 3), [envs.make_vector(line, 1) for _ in range(3)]
    assert (world.action_dim, world.max_episode_steps, world.steps_per_decision) == (HORIZON, 4, 3)
    assert world.observation_shape == (2,)
    first = world.reset([5, 6, 7])
    np.testing.assert_array_equal(first, [env.reset([5 + k])[0] for k, env in enumerate(plain)])
    draw, running, lengths = np.random.default_rng(0), np.arange(3), np.zeros(3, int)
    while len(running):
        actions = 0.3 * draw.uniform(-1, 1, (len(running), HORIZON))
        actions[running == 1] = 0.9
        step = world.step(actions, running)
        for k, row in enumerate(running):
            total, near, count = 0.0, False, 0
            for action in executed(actions[k]):
                one = plain[row].step(np.array([[action]]))
                total, near = total + one.rewards[0], near or bool(one.infos["success"][0])
                count += 1
                if one.terminated[0] or one.truncated[0]:
                    break
            lengths[row] += count
            np.testing.assert_allclose(step.observations[k], one.observations[0], atol=1e-6)
            assert step.rewards[k] == pytest.approx(total, abs=1e-5)
            assert (step.infos["steps"][k], step.infos["cost"][k]) == (count, count)
            assert step.infos["success"][k] == near
            ends = step.terminated[k], step.truncated[k]
            assert ends == (one.terminated[0], one.truncated[0])
        running = running[~(step.terminated | step.truncated)]
    assert lengths.tolist()[::2] == [LIMIT, LIMIT]
    assert lengths[1] % STEPS


def test_parallel_environments_equal_single_ones(line: str, tmp_path: Path) -> None:
    """Fresh noise of the sampler depends on the episode's seed and the decision only."""
    base = write_base(tmp_path / "noisy.bundle", NOISY)
    many, still = steered_env(base, 3), np.zeros((3, HORIZON))
    many.reset([5, 6, 7])
    together = [many.step(still).observations for _ in range(3)]
    for k in range(3):
        alone = steered_env(base, 1)
        alone.reset([5 + k])
        for observations in together:
            step = alone.step(still[:1])
            np.testing.assert_allclose(step.observations[0], observations[k], atol=1e-6)
    assert not np.allclose(together[0][0] - together[0][1], together[1][0] - together[1][1])


@pytest.mark.parametrize("overlap", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_steering_policy_learns_resumes_and_acts_as_evaluated(
    line: str,
    method: str,
    base: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overlap: bool,
) -> None:
    before = Path(base).read_bytes()
    whole = learn(method, base, tmp_path / "whole", overlap=overlap)
    run = Engine.run

    def request_stop(engine: Engine, updates: int, phase: str) -> None:
        run(engine, updates, phase)
        if engine.updates == 20:  # in mid-episode
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "run", request_stop)
        with pytest.raises(KeyboardInterrupt):
            learn(method, base, tmp_path / "cut", overlap=overlap)
    again = learn(method, base, tmp_path / "cut", overlap=overlap)
    for seed in (0, 1):
        one, two = tensors(whole.path, seed), tensors(again.path, seed)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)
        # every decision counts three steps, also if the episode ends in it
        steps, actions = one["buffer/steps"], one["buffer/actions"]
        assert (len(steps), actions.shape) == (20, (20, HORIZON))
        ended = (one["buffer/terminated"] + one["buffer/truncated"]) > 0
        assert (steps[~ended] == 3).all()
        assert (steps[ended] < 3).any()
    assert not torch.equal(tensors(whole.path, 0)["buffer/actions"], actions)
    result = whole.results[0]
    assert (result["num_env_steps"], result["online_updates"]) == (60, 48)
    assert result["base_weights"]["before"] == result["base_weights"]["after"]
    assert Path(base).read_bytes() == before

    file = whole.path / "seed_0" / "policy.bundle"
    policy, frozen = policies.load(file), policies.load(base)
    assert policy.bundle.composition == Composition("noise", SCALE)
    assert policy.bundle.base is not None
    for name, weight in policy.bundle.base.weights.items():
        np.testing.assert_array_equal(weight, frozen.bundle.weights[name])
    assert policy.spec == frozen.spec
    learner = BundlePolicy(policy.bundle, make_network(policy.bundle))
    seen = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    start = SCALE * learner.act(seen)[0].reshape(5, 1, HORIZON, 1)
    expected, _ = frozen.decide(np.repeat(seen[:, None], 2, 1), {}, start)
    np.testing.assert_allclose(policy.act(seen)[0], expected, atol=1e-6)

    played = json.loads(evaluate(run=str(file), episodes=2, json=True))["bundles"][0]["returns"]
    np.testing.assert_allclose(played, result["returns"], atol=1e-4)
    trained = offline_rl.load(whole.path)
    np.testing.assert_allclose(trained.evaluate(2).returns, result["returns"], atol=1e-4)
    logged = (whole.path / "seed_0" / "evaluations.jsonl").read_text().splitlines()
    lengths = json.loads(logged[-1])["lengths"]
    assert lengths == trained.evaluate(2).lengths.tolist()


def test_the_discount_of_a_decision_is_gamma_to_the_power_of_its_steps(
    line: str, base: str
) -> None:
    """Three steps each, and one step in the last decision before the time limit of 10."""
    world, gamma = steered_env(base, 1), 0.9
    buffer = ReplayBuffer((2,), HORIZON, 8, columns={"steps": ()})
    observations = world.reset([0])
    for _ in range(4):
        action = np.full((1, HORIZON), 0.1, np.float32)
        step = world.step(action)
        rows = {"observations": observations, "next_observations": step.observations}
        rows |= {"actions": action, "rewards": step.rewards, "steps": step.infos["steps"]}
        buffer.append(0, {**rows, "terminated": step.terminated, "truncated": step.truncated})
        observations = step.observations
    tensors = {name: value[0] for name, value in buffer.tensors().items()}
    batch = buffer.sample(tensors, Random(torch.tensor(0), torch.tensor(0)), 200, gamma)
    assert {round(float(x), 5) for x in batch.discount} == {round(gamma**n, 5) for n in (3, 1)}
    torch.testing.assert_close(batch.discount, gamma**batch.steps)


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"steps": 61}, r"num_env_steps=61 is not a multiple of 3, the steps that a decision of"),
        ({"dataset": "data"}, "the noise of recorded actions is unknown, so it cannot learn from"),
        ({"online.offline_fraction": 0.5}, "online.offline_fraction=0"),
        ({"keep_data": True}, "whose actions are the noise of its base policy"),
        ({"algorithm.noise_scale": 0.0}, "noise_scale"),
        ({"algorithm.noise_scale": [1.0, 2.0]}, "noise_scale cannot differ between stacked seeds"),
        ({"base": "mlp"}, "a DeterministicActor, which has no sampler with an initial noise"),
        ({"base": "code"}, "your own code, which has no sampler with an initial noise"),
    ],
)
def test_invalid_options_are_refused(
    line: str, method: str, base: str, tmp_path: Path, keys: dict[str, Any], fault: str
) -> None:
    (tmp_path / "code.py").write_text("def still(o):\n    return 0 * o[:, :1]\n")
    actor = DeterministicActor(2, 1, [])
    weights = {name: value.numpy() for name, value in actor.state_dict().items()}
    parts = "DeterministicActor", actor.arguments, weights, Normalizer.identity((2,))
    bundle.write(tmp_path / "mlp.bundle", seal(Bundle(Spec((2,), 1), *parts)))
    bases = {"mlp": str(tmp_path / "mlp.bundle"), "code": f"{tmp_path}/code.py:still"}
    rows = np.zeros((9, 2)), np.zeros((9, 1)), np.zeros(9), np.arange(9) == 8
    told = {**keys, **({"dataset": Dataset.from_arrays(*rows)} if "dataset" in keys else {})}
    told_base = bases.get(told.pop("base", ""), base)
    with pytest.raises(UserError, match=fault):
        learn(method, told_base, tmp_path / "no", **told)
    assert not (tmp_path / "no").exists()


DSRL: dict[str, Any] = {"algorithm": "dsrl", "algorithm.num_critics": 2, "seeds": 1}
DSRL |= {"algorithm.noise_scale": SCALE, "online.warmup_steps": 12}


def line_data() -> Dataset:
    """Return episodes of four steps with random actions."""
    draw, ends = np.random.default_rng(0), np.arange(40) % 4 == 3
    observations = draw.normal(size=(40, 2)).astype(np.float32)
    actions, rewards = draw.uniform(-1, 1, (40, 1)), draw.normal(size=40)
    return Dataset.from_arrays(observations, actions, rewards, ends)


@pytest.mark.parametrize("with_data", [pytest.param(False, marks=pytest.mark.slow), True])
def test_dsrl_learns_from_executed_actions_and_resumes(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_data: bool
) -> None:
    """The buffer has single steps, normalized as by the base, which stays unchanged bit for bit."""
    scaled = replace(base_bundle(), normalizers=Normalizer.fit(np.float32([[1, 4], [3, 9]])))
    base = str(tmp_path / "base.bundle")
    bundle.write(base, seal(scaled))
    before, run = Path(base).read_bytes(), Engine.run
    data: dict[str, Any] = {"num_updates": 10, "dataset": line_data()} if with_data else {}
    keys = DSRL | data
    whole = learn(**keys, method="dsrl", base=base, out=tmp_path / "whole")

    def request_stop(engine: Engine, updates: int, phase: str) -> None:
        run(engine, updates, phase)
        if engine.updates == 20:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "run", request_stop)
        with pytest.raises(KeyboardInterrupt):
            learn(**keys, method="dsrl", base=base, out=tmp_path / "cut")
    again = learn(**keys, method="dsrl", base=base, out=tmp_path / "cut")
    one, two = tensors(whole.path), tensors(again.path)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert one["buffer/actions"].shape == (60, 1)
    assert one["buffer/observations"][:, 1].max() < (LIMIT - 6.5) / 2.4  # the raw time goes to 10
    weights, result = scaled.weights, whole.results[0]
    for name, weight in weights.items():
        np.testing.assert_array_equal(one[f"params/sampler/{name}"], weight)
    assert result["base_weights"]["before"] == result["base_weights"]["after"]
    assert (result["online_updates"], Path(base).read_bytes()) == (48, before)

    policy = policies.load(whole.path / "seed_0" / "policy.bundle")
    assert (policy.bundle.base, policy.spec.n_action_steps) == (None, STEPS)
    np.testing.assert_array_equal(policy.normalizer.mean, [2, 6.5])
    trained = offline_rl.load(whole.path)
    np.testing.assert_allclose(trained.evaluate(2).returns, result["returns"], atol=1e-4)
    seen = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    chunks = policy.act(seen)[0]
    assert np.abs(chunks).max() < SCALE
    np.testing.assert_allclose(trained.policy.act(seen)[0], chunks, atol=1e-6)
    with pytest.raises(UserError, match="observation histories and action chunks"):
        trained.q_values(seen, chunks[:, 0])


@pytest.mark.parametrize(
    ("base", "fault"),
    [
        (
            "noisy",
            "its sampler adds fresh noise in later denoising steps, so the initial noise does not",
        ),
        ("mlp", "a DeterministicActor has no sampler with an initial noise"),
        ("other", r"does not fit the task: observation_shape: the policy has .*3.*, here it is"),
        ("steered", "the DeterministicActor acts on a base policy itself"),
        ("missing", "no such policy bundle"),
    ],
)
def test_bases_that_dsrl_cannot_steer_are_refused(
    line: str, tmp_path: Path, base: str, fault: str
) -> None:
    path = tmp_path / f"{base}.bundle"
    actor = DeterministicActor(2, 1, [])
    weights = {name: value.numpy() for name, value in actor.state_dict().items()}
    parts = "DeterministicActor", actor.arguments, weights, Normalizer.identity((2,))
    if base == "noisy":
        write_base(path, NOISY)
    elif base == "mlp":
        bundle.write(path, seal(Bundle(Spec((2,), 1), *parts)))
    elif base == "other":
        write_base(path, observations=3)
    elif base == "steered":
        bundle.write(path, seal(steering_bundle(base_bundle())))
    with pytest.raises(UserError, match=fault):
        learn(**DSRL, method="dsrl", base=str(path), out=tmp_path / "no")
    assert not (tmp_path / "no").exists()
