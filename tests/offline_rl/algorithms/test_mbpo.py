"""MBPO: growth of rollouts, its schedule, its sources, and complete runs."""

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from safetensors.torch import load_file

import envs
from envs import tasks
from offline_rl import UserError, train
from offline_rl.algorithms.common.models.facts import Facts
from offline_rl.algorithms.common.registry import tuned
from offline_rl.algorithms.common.schedule import Fill, Interact
from offline_rl.algorithms.mbpo import MBPO, Config, Online
from offline_rl.engine.engine import Engine
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.ring import Ring
from offline_rl.runs.folder import SeedFolder
from offline_rl.training.trainer import Trainer
from offline_rl.utils.options import build
from policies.spec import Spec

SMALL: dict[str, Any] = {"hidden": [8], "dynamics_hidden": [8], "dynamics_decay": [1e-5]}
SMALL |= {"members": 3, "elites": 2, "starts": 12, "rollout_every": 12, "dynamics_epochs": 6}
SMALL |= {"patience": 1, "ends": "never", "dynamics_lr": 0.3, "retain": 1}
KEYS: dict[str, Any] = {"algorithm": "mbpo", "task": "env:Pendulum-v1", "max_episode_steps": 9}
KEYS |= {"num_env_steps": 40, "eval_every": 10, "checkpoint_every": 7, "batch_size": 8}
KEYS |= {"online.warmup_steps": 12, "online.utd": 2.0, "compile": "never", "eval_episodes": 1}
KEYS |= {"tracker": "none", "show": False} | {f"algorithm.{k}": v for k, v in SMALL.items()}


def learner(**config: Any) -> MBPO:
    return MBPO(Spec((3,), 1), build(Config, config))


def test_rollouts_grow_as_in_the_paper():
    """Steps in epoch e: clip(x + (e - a) / (b - a) (y - x), x, y); an epoch has 1,000 steps."""
    cfg = Config(last_horizon=15)
    for steps in range(0, 200_000, 250):
        epoch = steps // 1_000
        length = 1 + (epoch - 20) / (150 - 20) * (15 - 1)
        assert cfg.horizon_at(steps) == int(min(max(length, 1), 15))
    assert [cfg.horizon_at(steps) for steps in (0, 85_000, 149_999, 150_000)] == [1, 8, 14, 15]
    assert Config(horizon=3).horizon_at(10**6) == 3


def test_each_fit_precedes_rollouts_and_the_next_environment_steps():
    cfg = {"starts": 25_000, "last_horizon": 2, "growth_start": 0, "growth_end": 1_000}
    cfg |= {"dynamics_epochs": 2, "holdout_max": 150}
    how = learner(**cfg)
    work = how.schedule(0, 6_350, None)
    assert sum(piece.size for piece in work if isinstance(piece, Interact)) == 6_350
    assert not any(piece.evaluate for piece in work)
    assert work[0].size == 5_000  # warm-up
    cycle = 2 + 2 * 2 + 3 + 1  # start, two epochs, select; rollouts in three parts; steps
    for k, steps in enumerate(range(5_000, 6_350, 250)):
        *fit, first, second, third, interact = work[1 + k * cycle : 1 + (k + 1) * cycle]
        names = [piece.phase.removesuffix("_dynamics") for piece in fit]
        assert names == ["start", "fit", "validate", "fit", "validate", "select"]
        fits = [piece.size for piece in fit if piece.phase == "fit_dynamics"]
        assert fits == [math.ceil((steps - 150) / 256)] * 2
        grown = 2 if steps - 5_000 >= 1_000 else 1
        for piece, rows in ((first, 10_000), (second, 10_000), (third, 5_000)):
            assert isinstance(piece, Fill)
            assert (piece.phase, piece.size) == (f"rollouts_{grown}", rows)
            assert how.for_phase(piece.phase).cfg.horizon == grown
        assert isinstance(interact, Interact)
        assert interact.size == min(250, 6_350 - steps)
    assert len(work) == 1 + 6 * cycle
    assert how.rings() == {"imagined": 25_000 * 2 * 4}


def test_the_first_fit_has_at_least_a_batch_of_rows():
    how = MBPO(Spec((3,), 1), Config(dynamics_epochs=1))
    how.interaction = type(how.interaction)(Online(warmup_steps=10), how.cfg)
    assert [piece.size for piece in how.schedule(0, 300, None)[:3]] == [256, 1, 1]


def test_model_and_rollouts_use_the_experience_and_the_ring_keeps_the_newest_rollouts():
    """Rollouts of one step, then of two: the ring keeps 2 * 5 * steps rows."""
    spec, draw = Spec((3,), 1), np.random.default_rng(0)
    cfg = build(Config, SMALL | {"last_horizon": 2, "starts": 5, "retain": 2, "batch_size": 8})
    buffer, ring = ReplayBuffer((3,), 1, 30), Ring((3,), 1, 20)
    for row in range(20):
        one = {"observations": np.full((1, 3), row), "actions": draw.uniform(-1, 1, (1, 1))}
        one |= {"rewards": np.zeros(1), "next_observations": np.full((1, 3), row + 1)}
        ends = {name: np.zeros(1, bool) for name in ("terminated", "truncated")}
        buffer.append(np.array([0]), one | ends)
    both = {"online": buffer, "imagined": ring}

    def make(_: int) -> MBPO:
        algorithm = MBPO(spec, cfg)
        algorithm.facts = Facts([0.0] * 3, [1.0] * 3)
        return algorithm

    engine = Engine(make, [0], both, batch_size=8)
    for source in ("start_dynamics", "fit_dynamics"):
        assert engine.for_phase(source)[1].buffer is buffer
    sizes = []
    for phase in ["rollouts_1"] * 3 + ["rollouts_2"] * 3:
        engine.fill(phase, 5, "starts", "imagined", repeat=len(sizes))
        sizes.append(int(ring.tensors()["size"]))
    assert sizes == [5, 10, 10, 20, 20, 20]
    data = ring.tensors()
    firsts = data["observations"][0, :20].flatten(1)
    whole = (firsts == firsts.round()).all(1) & (firsts[:, :1] == firsts).all(1)
    assert whole.sum() == 10  # half of the rows start from the experience
    engine.fill("rollouts_1", 5, "starts", "imagined", repeat=len(sizes))
    assert int(ring.tensors()["size"]) == 10  # a shorter rollout needs fewer rows


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"last_horizon": 2, "horizon": 3}, "last_horizon=2 is below horizon=3"),
        ({"growth_start": 9, "growth_end": 9}, "growth_end=9 is not above growth_start=9"),
        ({"clamp_states": True}, "clamp_states=true and holdout=episodes need a dataset"),
        ({"holdout": "episodes"}, "clamp_states=true and holdout=episodes need a dataset"),
    ],
)
def test_options_that_cannot_work_are_refused(config: dict[str, Any], message: str):
    with pytest.raises((ValueError, UserError), match=message):
        learner(**config)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"algorithm.holdout_share": 0.05}, "0.05 of the 12 rows of the first fit is less than"),
        ({"num_env_steps": 12}, "12 does not exceed the 12 steps before the first fit"),
        ({"pretrain_updates": 5}, "from scratch in an environment"),
        ({"online.n_step": 2}, "n_step"),
        ({"online.offline_fraction": 0.5}, "offline_fraction"),
        ({"algorithm.ends": "task", "task": "env:Pendulum-v1"}, "algorithm.ends=never"),
    ],
)
def test_runs_that_cannot_work_are_refused(keys: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(UserError, match=message):
        train(**KEYS | {"out": str(tmp_path)} | keys)
    assert not [*tmp_path.rglob("config.json")]


def test_updates_on_a_dataset_are_refused():
    with pytest.raises(UserError, match="from scratch in an environment"):
        learner().schedule(5, 6_000, None)


def test_settings_of_tasks_are_those_of_the_authors():
    """Target entropies are -|A| times `entropy_scale`: -3, -1, -3, -4, -2 and -0.05."""
    actions = {"HalfCheetah-v4": 6, "Hopper-v4": 3, "Walker2d-v4": 6, "env:Ant-v5": 8}
    actions |= {"env:Humanoid-v5": 17, "env:InvertedPendulum-v5": 1}
    expected = [(-3, 40, 1), (-1, 20, 15), (-3, 20, 1), (-4, 20, 25), (-2, 20, 25), (-0.05, 10, 1)]
    for (task, size), (entropy, utd, longest) in zip(actions.items(), expected, strict=True):
        cfg = build(Config, tuned("mbpo", task)[1])
        online = build(Online, tuned("mbpo", task, "online")[1])
        assert math.isclose(-size * cfg.entropy_scale, entropy)
        assert (online.utd, cfg.longest) == (utd, longest)


def tensors(run: Path, seed: int) -> dict[str, torch.Tensor]:
    files = SeedFolder(run, seed).checkpoints()
    return load_file(files[max(files)])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(**KEYS | {"seeds": 2, "out": str(tmp_path_factory.mktemp("mbpo"))}).path


def test_evaluations_follow_from_the_environment_steps_alone(undisturbed: Path):
    rows = SeedFolder(undisturbed, 0).rows("evaluations")
    assert [row["env_steps"] for row in rows] == [0, 10, 20, 30, 40]
    assert tensors(undisturbed, 1)["optimizer/policy/count/steps"] == 2 * (40 - 12)


@pytest.mark.slow
def test_stacked_seeds_equal_single_seeds(undisturbed: Path, tmp_path: Path):
    """Fits of the two seeds stop after different numbers of epochs."""
    single = train(**KEYS | {"seeds": [1], "out": str(tmp_path)}).path
    one, two = tensors(single, 1), tensors(undisturbed, 1)
    steps = "optimizer/dynamics/count/steps_of_seed"
    assert tensors(undisturbed, 0)[steps] != two[steps]
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.slow
def test_a_run_that_is_interrupted_everywhere_equals_an_undisturbed_one(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is stopped at every checkpoint: within fits, between rollouts, and between steps."""
    save, phases = Trainer.save, set()

    def save_and_stop(trainer: Trainer) -> None:
        save(trainer)
        phases.add(trainer.work.moment.phase)
        if trainer.work.current is not None:
            raise KeyboardInterrupt

    keys = KEYS | {"seeds": 2, "out": str(tmp_path), "checkpoint_every": 6}
    monkeypatch.setattr(Trainer, "save", save_and_stop)
    for _ in range(100):
        try:
            run = train(**keys).path
            break
        except KeyboardInterrupt:
            continue
    assert phases >= {"online", "fit_dynamics", "validate_dynamics"}
    for seed in range(2):
        one, two = tensors(undisturbed, seed), tensors(run, seed)
        assert one.keys() == two.keys()
        assert [name for name in one if not torch.equal(one[name], two[name])] == []


class Center(gymnasium.Env):
    """Point on [-1, 1]; an action moves it by at most 1/2. The reward is minus its distance to 0.

    The best return of 10 steps is -max(|x| - 1/2, 0) from x, and -1/8 on average.
    """

    observation_space, action_space = Box(-1, 1, (1,), np.float32), Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-1, 1))
        return np.array([self.x], np.float32), {}

    def step(self, action: np.ndarray):
        self.x = float(np.clip(self.x + 0.5 * float(action[0]), -1, 1))
        return np.array([self.x], np.float32), -abs(self.x), False, False, {}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["mbpo", "coplanner"])
def test_30_episodes_are_enough_to_find_the_center(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    envs.register("center", Center, max_episode_steps=10)
    keys: dict[str, Any] = {"algorithm": algorithm, "task": "center", "num_env_steps": 300}
    keys |= {"eval_every": 50, "batch_size": 64, "online.warmup_steps": 100, "eval_episodes": 20}
    keys |= {"online.utd": 10.0, "compile": "never", "tracker": "none", "show": False, "seeds": 2}
    config: dict[str, Any] = {"hidden": [32, 32], "dynamics_hidden": [32], "starts": 500}
    config |= dict.fromkeys(("actor_lr", "critic_lr", "alpha_lr", "dynamics_lr"), 3e-3)
    config |= {"dynamics_decay": [1e-5], "members": 3, "elites": 2, "rollout_every": 50}
    config |= {"retain": 2, "dynamics_epochs": 25, "epoch_updates": 20, "ends": "never"}
    keys |= {f"algorithm.{name}": value for name, value in config.items()}
    run = train(**keys, out=str(tmp_path)).path
    curves = np.array(
        [
            [np.mean(row["returns"]) for row in SeedFolder(run, seed).rows("evaluations")]
            for seed in range(2)
        ]
    )
    assert (curves[:, 0] < -3.5).all()
    assert curves[:, -3:].mean() > -1
