"""Evaluation of bundles written by hand on NeoRL-2's DMSD, against a loop over the environment."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from printed import evaluate

import envs
from envs import tasks
from offline_rl.evaluation import evaluate as verb
from offline_rl.evaluation.evaluate import as_json, as_text
from offline_rl.evaluation.rollout import Episodes
from offline_rl.utils.errors import UserError
from offline_rl.utils.seeds import EVALUATION_SEED
from policies import BundleError, Normalizer, Player, Spec, bundle
from policies.golden import seal

ACTION = (0.5, -0.25)
LOW, HIGH = 30.6, 849.51  # DMSD's published references, polixir/NeoRL2:neorl2/envs/info.py


def constant_policy(
    path: Path, action: tuple[float, ...] = ACTION, *, observations: int = 6, task: str | None
) -> Path:
    """Write a bundle whose policy always takes `action`: zero weights, bias arctanh(action)."""
    weights = {
        "trunk.weights.0": np.zeros((observations, len(action)), np.float32),
        "trunk.biases.0": np.arctanh(action).astype(np.float32),
    }
    arguments = {"observations": observations, "actions": len(action), "hidden": []}
    normalizer = Normalizer(
        np.full(observations, 3, np.float32), np.full(observations, 2, np.float32)
    )
    spec = Spec((observations,), len(action))
    path.parent.mkdir(parents=True, exist_ok=True)
    provenance = {} if task is None else {"task": task}
    policy = bundle.Bundle(spec, "DeterministicActor", arguments, weights, normalizer, provenance)
    bundle.write(path, seal(policy))
    return path


@pytest.fixture
def dmsd(tmp_path: Path) -> Path:
    return constant_policy(tmp_path / "run" / "seed_0" / "policy.bundle", task="neorl2/DMSD")


def returns_by_a_loop(action: tuple[float, ...], episodes: int) -> list[float]:
    env, returns = envs.make("neorl2/DMSD"), []
    for k in range(episodes):
        env.reset(seed=EVALUATION_SEED + k)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(np.float32(action))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def test_one_episode_from_each_initial_state_gives_the_exact_score(tmp_path: Path) -> None:
    """It equals the score of `benchmarks.baselines`, which plays the action without a bundle."""
    stored = json.loads(Path("benchmarks/results/baselines.json").read_text())
    expected = stored["neorl2/Simglucose"]["rows"]["constant_-0.996"]
    size = envs.make_vector("neorl2/Simglucose", 1).observation_shape[0]
    path = constant_policy(
        tmp_path / "policy.bundle", (-0.996,), observations=size, task="neorl2/Simglucose"
    )
    (only,) = json.loads(evaluate(run=str(path), episodes="all", json=True))["bundles"]
    assert len(only["returns"]) == 360
    assert only["score"] == pytest.approx(expected["score"], abs=1e-3)


def test_episodes_all_is_refused_for_a_task_without_a_list_of_initial_states(dmsd: Path) -> None:
    message = "episodes=all: neorl2/DMSD has no finite list of initial states"
    with pytest.raises(UserError, match=message):
        evaluate(run=str(dmsd), episodes="all")


def test_a_constant_policy_scores_the_same_as_in_a_loop_over_the_environment(dmsd: Path) -> None:
    expected = returns_by_a_loop(ACTION, 3)
    evaluation = json.loads(evaluate(run=str(dmsd), episodes=3, json=True))
    (only,) = evaluation["bundles"]
    assert evaluation["task"] == "neorl2/DMSD"
    assert only["returns"] == pytest.approx(expected, rel=1e-6)
    assert only["seeds"] == [EVALUATION_SEED + k for k in range(3)]
    scores = [100 * (r - LOW) / (HIGH - LOW) for r in expected]
    assert only["mean_return"] == pytest.approx(sum(expected) / 3, rel=1e-6)
    assert only["score"] == pytest.approx(sum(scores) / 3, rel=1e-6)
    assert only["std_score"] == pytest.approx(np.std(scores), rel=1e-4)
    text = evaluate(run=str(dmsd), episodes=3)
    assert f"{np.mean(scores):.1f} ± {np.std(scores):.1f}" in text
    assert "3 episodes" in text
    assert "polixir/NeoRL2" in text


def test_a_run_folder_gives_the_bundles_of_its_seeds_in_order_and_a_seed_folder_its_own(
    dmsd: Path,
) -> None:
    run = dmsd.parent.parent
    for seed in (10, 2):
        constant_policy(run / f"seed_{seed}" / "policy.bundle", (0.1, 0.1), task="neorl2/DMSD")
    all_seeds = json.loads(evaluate(run=str(run), episodes=2, json=True))
    names = [Path(row["bundle"]).parent.name for row in all_seeds["bundles"]]
    assert names == ["seed_0", "seed_2", "seed_10"]
    one = json.loads(evaluate(run=str(dmsd.parent), episodes=2, json=True))
    assert one["bundles"] == all_seeds["bundles"][:1]
    assert "mean of 3" in evaluate(run=str(run), episodes=2)


class Pay(gymnasium.Env):
    """Environment of two steps with a reward of 2 each."""

    observation_space = Box(-1, 1, (1,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple:
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple:
        return np.zeros(1, np.float32), 2.0, False, False, {"cost": 0.25} if action > 0 else {}


def test_a_task_without_references_reports_returns_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_registered", {})
    envs.register("pay", Pay, max_episode_steps=2)
    path = constant_policy(tmp_path / "policy.bundle", (0.5,), observations=1, task="none")
    text = evaluate(run=str(path), task="pay", episodes=4)
    assert "no score references: these are raw returns" in text
    row = next(line for line in text.splitlines() if line.startswith(str(path)))
    assert row.split()[1:] == ["4.0", "±", "0.0", "0.5", "±", "0.0"]  # two steps' reward and cost
    (only,) = json.loads(evaluate(run=str(path), task="pay", episodes=4, json=True))["bundles"]
    assert only["score"] is None
    assert only["cost"] == 0.5
    assert only["success"] is None


def test_success_is_the_share_of_episodes() -> None:
    success = np.array([True, False, False, False])
    episodes = Episodes(np.ones(4), np.ones(4, int), success, None, np.arange(4))
    played = {None: {Path("a"): episodes}}
    assert as_text(envs.Task("t"), played).splitlines()[4].split() == ["a", "1.0", "±", "0.0", "25"]
    assert json.loads(as_json(envs.Task("t"), played))["bundles"][0]["success"] == 0.25


def test_a_damaged_bundle_is_named_in_one_sentence(dmsd: Path) -> None:
    content = dmsd.read_bytes()
    other_kind = content.replace(b"DeterministicActor", b"X" * 18)
    for damaged in (content[: len(content) // 2], b"", other_kind):
        dmsd.write_bytes(damaged)
        with pytest.raises(UserError, match=str(dmsd)) as error:
            evaluate(run=str(dmsd), episodes=1)
        assert "\n" not in str(error.value)


def test_a_bundle_with_a_damaged_byte_in_its_zip_directory_is_refused_or_read(dmsd: Path) -> None:
    content, refused = dmsd.read_bytes(), 0
    positions = range(content.index(b"PK\x01\x02"), len(content))
    for k in positions:
        dmsd.write_bytes(content[:k] + bytes([content[k] ^ 0xFF]) + content[k + 1 :])
        try:
            bundle.read(dmsd)
        except BundleError as error:
            refused += str(dmsd) in str(error)
    assert refused > len(positions) / 2


def test_a_bundle_with_other_sizes_than_the_task_is_refused_with_both(dmsd: Path) -> None:
    with pytest.raises(UserError, match=r"does not fit task .*observation_shape.*\(6,\)"):
        evaluate(run=str(dmsd), task="neorl2/Pipeline", episodes=1)


def test_a_bundle_with_another_rate_than_the_task_is_refused_with_both(tmp_path: Path) -> None:
    path = constant_policy(
        tmp_path / "own.bundle", (0.0, 0.0), observations=14, task="push/standard"
    )
    policy = bundle.read(path)
    bundle.write(path, replace(policy, spec=replace(policy.spec, rate_hz=20.0)))
    assert "push/standard" in evaluate(run=str(path), episodes=1)
    bundle.write(path, replace(policy, spec=replace(policy.spec, rate_hz=30.0)))
    with pytest.raises(UserError, match="rate_hz: the policy has 30, here it is 20"):
        evaluate(run=str(path), episodes=1)


def test_evaluations_that_cannot_run_are_refused_in_one_sentence(
    tmp_path: Path, dmsd: Path
) -> None:
    with pytest.raises(UserError, match=r"unknown task .*neorl2/DMSD"):
        evaluate(run=str(dmsd), task="neorl2/DMSDD")
    with pytest.raises(UserError, match="has no environment"):
        evaluate(run=str(dmsd), task="none")
    with pytest.raises(UserError, match=r"was trained without a task\. Choose one"):
        evaluate(run=str(constant_policy(tmp_path / "own.bundle", task=None)))
    with pytest.raises(UserError, match="does not exist"):
        evaluate(run=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no policy\.bundle"):
        evaluate(run=str(tmp_path / "empty"))
    with pytest.raises(UserError, match="did you mean episodes"):
        evaluate(run=str(dmsd), episode=3)
    with pytest.raises(UserError, match="at least 1"):
        evaluate(run=str(dmsd), episodes=0)


class Drift(Pay):
    """Environment of three steps, each with a reward that the seed determines."""

    place = 0.0

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple:
        gymnasium.Env.reset(self, seed=seed)
        self.place = self.np_random.normal()
        return np.float32([self.place]), {}

    def step(self, action: np.ndarray) -> tuple:
        return np.float32([self.place]), np.array([self.place]), False, False, {}


class Careless(Drift):
    """Environment that ignores its seed."""

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple:
        return Drift.reset(self)


def test_episodes_in_fewer_environments_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_registered", {})
    envs.register("drift", Drift, max_episode_steps=3)
    path = constant_policy(tmp_path / "policy.bundle", (0.5,), observations=1, task="none")
    keys = {"run": str(path), "task": "drift", "episodes": 5, "json": True}
    (expected,) = json.loads(evaluate(**keys))["bundles"]
    noise = list[int]()

    class Noted(Player):
        def reset(self, seed: Any = 0) -> None:
            noise.extend(np.atleast_1d(seed) if np.ndim(seed) else [])
            super().reset(seed)

    monkeypatch.setattr(verb, "Player", Noted)
    for count in (1, 2, 5):
        noise.clear()
        assert json.loads(evaluate(**keys, eval_envs=count))["bundles"] == [expected]
        assert noise == expected["seeds"]
    starts = [np.random.default_rng(EVALUATION_SEED + k).normal() for k in range(5)]
    np.testing.assert_allclose(expected["returns"], 3 * np.array(starts))


def test_the_output_says_how_episodes_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_registered", {})
    path = constant_policy(tmp_path / "policy.bundle", (0.5,), observations=1, task="none")
    first = EVALUATION_SEED
    notes = {
        Drift: f"started from seeds {first} to {first + 1}.",
        Careless: "started at random: the environment ignores its seed",
        Pay: "all from the same initial state, whatever the seed",
    }
    for kind, words in notes.items():
        envs.register(kind.__name__, kind, max_episode_steps=3)
        assert words in evaluate(run=str(path), task=kind.__name__, episodes=2)
    other = constant_policy(
        tmp_path / "other" / "policy.bundle", (0.1,), observations=1, task="none"
    )
    keys = {"run": [str(path), str(other)], "episodes": 2}
    assert "not paired: the environment ignores its seed" in evaluate(**keys, task="Careless")
    assert "no interval over episodes" in " ".join(evaluate(**keys, task="Pay").split())
    assert json.loads(evaluate(**keys, task="Drift", json=True))["differences"][0]["over_episodes"]
