"""Bundles made by hand, played on NeoRL-2's DMSD, against a plain loop over the environment."""

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

ACTION = (0.5, -0.25)
LOW, HIGH = 30.6, 849.51  # DMSD's published references, polixir/NeoRL2:neorl2/envs/info.py


def constant_policy(
    path: Path, action: tuple[float, ...] = ACTION, *, observations: int = 6, task: str | None
) -> Path:
    """A network without weights, whose bias is the action before its tanh."""
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
    bundle.write(
        path, bundle.Bundle(spec, "DeterministicActor", arguments, weights, normalizer, provenance)
    )
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


def test_every_start_of_a_task_that_has_few_gives_its_exact_score(tmp_path: Path) -> None:
    """As `benchmarks.baselines` has it, which plays the action without a bundle."""
    kept = json.loads(Path("benchmarks/results/baselines.json").read_text())["neorl2/Simglucose"]
    expected = kept["rows"]["constant_-0.996"]
    size = envs.make_vector("neorl2/Simglucose", 1).observation_shape[0]
    path = constant_policy(
        tmp_path / "policy.bundle", (-0.996,), observations=size, task="neorl2/Simglucose"
    )
    (only,) = json.loads(evaluate(run=str(path), episodes="all", json=True))["bundles"]
    assert len(only["returns"]) == 360
    assert only["score"] == pytest.approx(expected["score"], abs=1e-3)


def test_a_task_with_too_many_starts_to_count_says_so(dmsd: Path) -> None:
    with pytest.raises(UserError, match="episodes=all: neorl2/DMSD has no few starts to count"):
        evaluate(run=str(dmsd), episodes="all")


def test_a_constant_policy_scores_what_a_plain_loop_over_the_environment_finds(dmsd: Path) -> None:
    expected = returns_by_a_loop(ACTION, 3)
    found = json.loads(evaluate(run=str(dmsd), episodes=3, json=True))
    (only,) = found["bundles"]
    assert found["task"] == "neorl2/DMSD"
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


def test_a_run_folder_stands_for_its_seeds_in_order_and_a_seed_folder_for_its_bundle(
    dmsd: Path,
) -> None:
    run = dmsd.parent.parent
    for seed in (10, 2):
        constant_policy(run / f"seed_{seed}" / "policy.bundle", (0.1, 0.1), task="neorl2/DMSD")
    whole = json.loads(evaluate(run=str(run), episodes=2, json=True))
    names = [Path(row["bundle"]).parent.name for row in whole["bundles"]]
    assert names == ["seed_0", "seed_2", "seed_10"]
    one = json.loads(evaluate(run=str(dmsd.parent), episodes=2, json=True))
    assert one["bundles"] == whole["bundles"][:1]
    assert "mean of 3" in evaluate(run=str(run), episodes=2)


class Pay(gymnasium.Env):
    """Two steps that pay 2 each."""

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
    assert row.split()[1:] == ["4.0", "±", "0.0", "0.5", "±", "0.0"]  # two steps' pay and cost
    (only,) = json.loads(evaluate(run=str(path), task="pay", episodes=4, json=True))["bundles"]
    assert only["score"] is None
    assert only["cost"] == 0.5
    assert only["success"] is None


def test_success_is_the_share_of_episodes() -> None:
    success = np.array([True, False, False, False])
    played = {Path("a"): Episodes(np.ones(4), np.ones(4, int), success, None, np.arange(4))}
    assert as_text(envs.Task("t"), played).splitlines()[4].split() == ["a", "1.0", "±", "0.0", "25"]
    assert json.loads(as_json(envs.Task("t"), played))["bundles"][0]["success"] == 0.25


def test_a_damaged_bundle_is_one_sentence_that_names_it(dmsd: Path) -> None:
    whole = dmsd.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole.replace(b"DeterministicActor", b"X" * 18)):
        dmsd.write_bytes(damaged)
        with pytest.raises(UserError, match=str(dmsd)) as error:
            evaluate(run=str(dmsd), episodes=1)
        assert "\n" not in str(error.value)


def test_whatever_byte_of_a_bundles_directory_is_damaged_it_is_refused_or_read(dmsd: Path) -> None:
    whole, refused = dmsd.read_bytes(), 0
    places = range(whole.index(b"PK\x01\x02"), len(whole))
    for k in places:
        dmsd.write_bytes(whole[:k] + bytes([whole[k] ^ 0xFF]) + whole[k + 1 :])
        try:
            bundle.read(dmsd)
        except BundleError as error:
            refused += str(dmsd) in str(error)
    assert refused > len(places) / 2


def test_a_bundle_of_other_sizes_than_the_task_is_refused_with_both(dmsd: Path) -> None:
    with pytest.raises(UserError, match=r"does not fit task .*observation_shape.*\(6,\)"):
        evaluate(run=str(dmsd), task="neorl2/Pipeline", episodes=1)


def test_a_bundle_of_another_rate_than_the_task_is_refused_with_both(tmp_path: Path) -> None:
    path = constant_policy(
        tmp_path / "own.bundle", (0.0, 0.0), observations=14, task="push/standard"
    )
    made = bundle.read(path)
    bundle.write(path, replace(made, spec=replace(made.spec, rate_hz=20.0)))
    assert "push/standard" in evaluate(run=str(path), episodes=1)
    bundle.write(path, replace(made, spec=replace(made.spec, rate_hz=30.0)))
    with pytest.raises(UserError, match="rate_hz: the policy has 30, here it is 20"):
        evaluate(run=str(path), episodes=1)


def test_what_cannot_be_played_is_said_in_a_sentence(tmp_path: Path, dmsd: Path) -> None:
    with pytest.raises(UserError, match=r"unknown task .*neorl2/DMSD"):
        evaluate(run=str(dmsd), task="neorl2/DMSDD")
    with pytest.raises(UserError, match="has no environment"):
        evaluate(run=str(dmsd), task="none")
    with pytest.raises(UserError, match="say which task"):
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
    """Three steps that pay the place of a start drawn by the seed."""

    place = 0.0

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple:
        gymnasium.Env.reset(self, seed=seed)
        self.place = self.np_random.normal()
        return np.float32([self.place]), {}

    def step(self, action: np.ndarray) -> tuple:
        return np.float32([self.place]), np.array([self.place]), False, False, {}


class Careless(Drift):
    def reset(self, *, seed: int | None = None, options: object = None) -> tuple:
        return Drift.reset(self)


def test_episodes_in_fewer_environments_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_registered", {})
    envs.register("drift", Drift, max_episode_steps=3)
    path = constant_policy(tmp_path / "policy.bundle", (0.5,), observations=1, task="none")
    told = {"run": str(path), "task": "drift", "episodes": 5, "json": True}
    (whole,) = json.loads(evaluate(**told))["bundles"]
    noise = list[int]()

    class Noted(Player):
        def reset(self, seed: Any = 0) -> None:
            noise.extend(np.atleast_1d(seed) if np.ndim(seed) else [])
            super().reset(seed)

    monkeypatch.setattr(verb, "Player", Noted)
    for count in (1, 2, 5):
        noise.clear()
        assert json.loads(evaluate(**told, eval_envs=count))["bundles"] == [whole]
        assert noise == whole["seeds"]
    starts = [np.random.default_rng(EVALUATION_SEED + k).normal() for k in range(5)]
    np.testing.assert_allclose(whole["returns"], 3 * np.array(starts))


def test_where_episodes_begin_is_not_called_a_seed_where_it_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_registered", {})
    path = constant_policy(tmp_path / "policy.bundle", (0.5,), observations=1, task="none")
    first = EVALUATION_SEED
    says = {
        Drift: f"begun from seeds {first} to {first + 1}.",
        Careless: "begun at random: the environment ignores its seed",
        Pay: "all begun alike: the environment has one start",
    }
    for kind, words in says.items():
        envs.register(kind.__name__, kind, max_episode_steps=3)
        assert words in evaluate(run=str(path), task=kind.__name__, episodes=2)
    other = constant_policy(
        tmp_path / "other" / "policy.bundle", (0.1,), observations=1, task="none"
    )
    told = {"run": [str(path), str(other)], "episodes": 2}
    assert "not paired: the environment ignores its seed" in evaluate(**told, task="Careless")
    assert "no interval over episodes" in " ".join(evaluate(**told, task="Pay").split())
    assert json.loads(evaluate(**told, task="Drift", json=True))["differences"][0]["over_episodes"]
