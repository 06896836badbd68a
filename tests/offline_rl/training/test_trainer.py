"""Training loop: scores from raw rewards, complete episodes, and diverged seeds."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from small_data import save_small

import envs
import offline_rl
import policies
from envs.suites.gymnasium_robotics import SPARSE
from offline_rl.evaluation.rollout import rollout
from offline_rl.generation.recipes import Recipe, make_set, noisy_actor, train_agent
from offline_rl.generation.store import record
from offline_rl.training import work
from offline_rl.training.train import train
from offline_rl.training.trainer import Trainer
from offline_rl.training.work import next_slice
from offline_rl.utils.errors import UserError
from offline_rl.utils.seeds import EVALUATION_SEED
from policies.normalizer import Normalizer

SMALL = {
    "compile": "never",
    "precision": "fp32",
    "tracker": "none",
    "show": False,
    "algorithm.hidden": [8, 8],
    "device": "cpu",
}


def small_run(tmp_path: Path, **keys: object):
    save_small(tmp_path / "small.npz")
    keys = SMALL | {"num_updates": 20, "eval_episodes": 2} | keys
    return train(task="neorl2/DMSD", dataset=str(tmp_path / "small.npz"), out=str(tmp_path), **keys)


def test_train_can_be_called_again_in_the_same_process(tmp_path: Path):
    """Importing a submodule of the same name would replace the function by the module."""
    save_small(tmp_path / "small.npz")
    keys = SMALL | {"algorithm": "bc", "num_updates": 2, "eval_episodes": 1, "out": str(tmp_path)}
    for name in ("first", "second"):
        offline_rl.train(task="neorl2/DMSD", dataset=str(tmp_path / "small.npz"), name=name, **keys)
        assert (tmp_path / "neorl2_DMSD" / "bc" / name / "seed_0" / "result.json").is_file()


def test_a_rollout_equals_a_loop_over_single_environments():
    def act(observations: np.ndarray) -> np.ndarray:
        return np.tanh(observations[:, :2])

    vector = envs.make_vector("neorl2/DMSD", 3)
    seeds = np.array([5, 6, 7])
    normalizer = Normalizer(np.full(6, 0.1, np.float32), np.full(6, 2, np.float32))
    episodes = rollout(vector, act, normalizer, seeds)
    for k, seed in enumerate(seeds):
        env = envs.make("neorl2/DMSD")
        observation, _ = env.reset(seed=int(seed))
        total, over = 0.0, False
        while not over:
            action = np.tanh((observation[:2] - np.float32(0.1)) / np.float32(2))
            observation, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        assert episodes.returns[k] == pytest.approx(total, abs=1e-3)
    assert episodes.lengths.tolist() == [100] * 3


def test_the_bundle_plays_the_last_evaluation_again(tmp_path: Path):
    """The score is that of the saved policy on raw rewards, whatever the training rewards are."""
    result = small_run(tmp_path, algorithm="iql", **{"algorithm.reward_scale": 100.0})
    policy = policies.load(result.path / "seed_0" / "policy.bundle")
    env = envs.make_vector("neorl2/DMSD", 2)

    def act(observations: np.ndarray) -> np.ndarray:
        return policy.act(observations)[0][:, 0]

    seeds = EVALUATION_SEED + np.arange(2)
    raw = Normalizer.identity((6,))
    again = rollout(env, act, raw, seeds)
    assert again.returns == pytest.approx(result.results[0]["returns"], rel=1e-4)
    expected = (np.mean(again.returns) - 30.6) / (849.51 - 30.6) * 100
    assert result.scores[0] == pytest.approx(expected, rel=1e-3)


def poison_second(trainer: Trainer, when: int) -> None:
    if trainer.work.moment.step == when:
        for leaf in trainer.engine.state["params"]["policy"].values():
            leaf[1] = float("nan")


def test_a_diverged_seed_is_named_and_the_other_seeds_continue(tmp_path: Path, capsys):
    keys = {"algorithm": "bc", "eval_every": 10}
    poison = partial(poison_second, when=10)
    result = small_run(tmp_path, seeds=3, watch=poison, **keys)
    scores = [r["score"] for r in result.results]
    assert scores[1] is None
    assert scores[0] is not None
    assert scores[2] is not None
    assert [r["diverged_at"] for r in result.results] == [None, 20, None]
    assert not (result.path / "seed_1" / "policy.bundle").exists()
    assert "seed_1 diverged" in capsys.readouterr().out
    alone = small_run(tmp_path, seeds=[2], name="alone", **keys)
    assert alone.scores[0] == pytest.approx(scores[2], abs=1e-2)


def test_a_resumed_run_remembers_when_a_seed_diverged(tmp_path: Path):
    keys = {"algorithm": "bc", "eval_every": 10, "checkpoint_every": 10, "num_updates": 30}

    def kill(trainer: Trainer) -> None:
        poison_second(trainer, 10)
        if trainer.engine.updates == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small_run(tmp_path, seeds=2, watch=kill, **keys)
    result = small_run(tmp_path, seeds=2, **keys)
    assert [r["diverged_at"] for r in result.results] == [None, 20]


def test_a_policy_broken_by_the_last_update_leaves_no_bundle(tmp_path: Path, monkeypatch):
    """Metrics are computed before an update, so they do not show damage by the last one."""
    log = Trainer._log

    def last(trainer: Trainer) -> None:
        poison_second(trainer, 20)
        log(trainer)

    monkeypatch.setattr(Trainer, "_log", last)
    result = small_run(tmp_path, algorithm="bc", seeds=2)
    assert [r["diverged_at"] for r in result.results] == [None, 20]
    assert result.results[1]["score"] is None
    assert [(result.path / f"seed_{s}" / "policy.bundle").exists() for s in (0, 1)] == [True, False]


@pytest.mark.slow
def test_a_seed_that_diverges_online_does_not_stop_the_others(tmp_path: Path, capsys):
    options = SMALL | {"seeds": 2, "eval_every": 100, "eval_episodes": 1, "num_env_steps": 300}
    options |= {"algorithm": "td3", "task": "env:Pendulum-v1", "num_updates": 0, "batch_size": 8}
    options |= {"out": str(tmp_path), "online.warmup_steps": 50}
    healthy = train(**options, name="healthy")
    result = train(**options, watch=partial(poison_second, when=200))
    assert [r["diverged_at"] is None for r in result.results] == [True, False]
    assert result.results[0]["returns"] == healthy.results[0]["returns"]
    assert result.results[0]["num_env_steps"] == 300
    assert "seed_1 diverged" in capsys.readouterr().out


def test_values_of_a_hyper_parameter_trained_in_parallel_equal_separate_runs(tmp_path: Path):
    keys = {"algorithm": "td3_bc", "num_updates": 20, "eval_every": 20}
    lists = {"algorithm.alpha": [0.5, 2.5], "algorithm.critic_lr": [1e-3, 3e-4]}
    both = small_run(tmp_path, seeds=[3, 4], **keys, **lists)
    names = ["default-alpha_0.5-critic_lr_0.001", "default-alpha_2.5-critic_lr_0.0003"]
    assert both.path == tmp_path / "neorl2_DMSD" / "td3_bc"
    assert {run.name for run in both.path.iterdir()} == {
        f"default-alpha_{a}-critic_lr_{lr}" for a in (0.5, 2.5) for lr in (0.001, 0.0003)
    }
    (tmp_path / "alone").mkdir()
    for name, alpha, lr in ((names[0], 0.5, 1e-3), (names[1], 2.5, 3e-4)):
        chosen = {"algorithm.alpha": alpha, "algorithm.critic_lr": lr}
        alone = small_run(tmp_path / "alone", seeds=[3, 4], name=name, **keys, **chosen)
        for seed in (3, 4):
            stacked, single = (
                json.loads((run / f"seed_{seed}" / "result.json").read_text())
                for run in (both.path / name, alone.path)
            )
            assert stacked["returns"] == pytest.approx(single["returns"], rel=1e-3)
            assert stacked["seeds_stacked"] == 8
            configs = [
                json.loads((run / f"seed_{seed}" / "config.json").read_text())
                for run in (both.path / name, alone.path)
            ]
            del configs[0]["dataset"], configs[1]["dataset"]  # two copies of one file
            assert configs[0] == configs[1]
    assert both.results[0]["returns"] != both.results[2]["returns"]


@pytest.mark.parametrize(
    ("algorithm", "every", "expected"),
    [("bc", 8, [0, 8, 16, 20]), ("td3_bc", 5, [0, 6, 10, 16, 20])],  # TD3's updates come in pairs
)
def test_evaluations_happen_at_the_start_at_every_interval_and_at_the_end(
    tmp_path: Path, algorithm: str, every: int, expected: list[int]
):
    result = small_run(tmp_path, algorithm=algorithm, eval_every=every)
    lines = (result.path / "seed_0" / "evaluations.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["updates"] for row in rows] == expected
    assert all(row["seeds"] == rows[0]["seeds"] for row in rows)
    assert all(row["seeds"][0] >= EVALUATION_SEED for row in rows)


def test_metrics_are_logged_at_the_interval_that_follows_from_counted_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Rows are also logged at evaluations, checkpoints and the end; never by a timer."""
    monkeypatch.setattr(work, "log_interval", lambda engine, phase: 4)
    keys = {"eval_every": 6, "checkpoint_every": 20}
    result = small_run(tmp_path, algorithm="bc", num_updates=14, **keys)
    lines = (result.path / "seed_0" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["updates"] for line in lines] == [4, 6, 8, 12, 14]


def test_preliminary_phases_come_first(tmp_path: Path):
    keys = {"algorithm.policy_hidden": [8, 8], "algorithm.critic_hidden": [8, 8]}
    keys |= {"algorithm.num_samples": 2, "algorithm.bc_updates": 6}
    save_small(tmp_path / "small.npz")
    base = {k: v for k, v in SMALL.items() if "hidden" not in k}
    result = train(
        algorithm="cql",
        task="none",
        dataset=str(tmp_path / "small.npz"),
        num_updates=10,
        out=str(tmp_path),
        **base,
        **keys,
    )
    assert result.results[0]["num_updates"] == 10
    assert result.results[0]["pretrain_updates"] == 6


def test_a_recipe_makes_datasets_that_match_their_cards(tmp_path: Path, monkeypatch):
    plan = Recipe(
        task="env:Pendulum-v1",
        family="pendulum",
        medium_return=-1e9,
        medium_after=300,
        num_env_steps=600,
        rows=450,
        utd=0.1,
        precision="fp32",
        compile=False,
        eval_every=100,
        eval_episodes=1,
    )
    run = train_agent(plan, "test", str(tmp_path), False)
    made: dict = {}
    replay = make_set(plan, "medium-replay", run, made)
    assert replay.num_rows == 300
    whole = make_set(plan, "full-replay", run, made)
    assert np.array_equal(whole.actions[:300], replay.actions)
    policy = policies.load(run.path / "medium.bundle")
    medium, again = (record(plan.task, 450, 7, partial(noisy_actor, policy)) for _ in "ab")
    assert medium.num_rows == 450
    assert np.array_equal(medium.actions, again.actions)
    assert medium.episode_lengths().tolist() == [200, 200, 50]
    both = make_set(plan, "medium-expert", run, made)
    first = make_set(plan, "medium", run, made)
    assert np.array_equal(both.rewards[:400], first.rewards[:400])
    assert both.num_rows == 400 + 450
    random = make_set(plan, "random", run, made)
    assert abs(random.actions.mean()) < 0.1

    def upright(observations: np.ndarray) -> np.ndarray:
        return (observations[:, 0] > 0.5).astype(np.float32) - 1

    monkeypatch.setitem(SPARSE, "env:Pendulum-v1", upright)
    paid = make_set(replace(plan, environment="env:Pendulum-v1"), "medium-replay", run, {})
    assert np.array_equal(paid.rewards, upright(replay.next_observations))
    assert np.array_equal(paid.observations, replay.observations)
    with pytest.raises(UserError, match=r"rewards of Hopper-v4 .* qualities="):
        make_set(replace(plan, environment="Hopper-v4"), "medium-replay", run, {})


def test_long_operations_are_announced(tmp_path: Path, capsys, monkeypatch):
    """A progress line with the remaining time is printed every minute if there is no terminal."""
    monkeypatch.setattr("offline_rl.training.curves.PROGRESS_EVERY_S", 0.0)
    save_small(tmp_path / "small.npz")
    keys = SMALL | {"algorithm": "bc", "num_updates": 20, "show": True, "out": str(tmp_path)}
    train(task="none", dataset=str(tmp_path / "small.npz"), **keys)
    lines = capsys.readouterr().out.splitlines()
    assert "tracing: update" in lines
    progress = [
        line
        for line in lines
        if re.match(r"update: \d+ of 20 updates: [\d,.e+]+/s, \d+ s left$", line)
    ]
    assert len(progress) == 11  # the first update, then a tenth of all at a time
    assert lines.index("tracing: update") < lines.index(progress[0])


@pytest.mark.parametrize(("rate", "size"), [(0.5, 2), (7.3, 6), (60.0, 60), (1e6, 100)])
def test_ctrl_c_is_checked_every_second_however_slow_updates_are(rate: float, size: int) -> None:
    """A slice of 1,000 updates with period 2 has at least 2 and at most 100 updates."""
    assert next_slice(1000, 2, rate) == size
