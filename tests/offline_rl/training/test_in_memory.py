"""Training on a Dataset in memory, recognized by the content of its arrays."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prepared import prepare

import envs
from envs import Task
from offline_rl import Dataset, UserError, train
from offline_rl.data.specs import mismatch_remedy
from offline_rl.replay.streaming import Stream
from offline_rl.training.assemble import build_engine
from offline_rl.training.headline import headline
from offline_rl.utils.files import read_json
from policies import Channel, Spec

QUICK = {"algorithm": "td3_bc", "task": "none", "num_updates": 20, "compile": "never"}
QUICK |= {"algorithm.hidden": [8], "show": False, "tracker": "none"}


def make_dataset(reward: float = 1.0) -> Dataset:
    draw, rows = np.random.default_rng(0), 200
    return Dataset.from_arrays(
        draw.normal(size=(rows, 4)),
        draw.uniform(-1, 1, (rows, 2)),
        np.full(rows, reward),
        np.arange(rows) % 50 == 49,
        name="mine",
    )


def test_data_in_memory_is_trained_on_and_recognized_when_resumed(tmp_path: Path) -> None:
    seed = train(**QUICK, dataset=make_dataset(), out=str(tmp_path)).path / "seed_0"
    assert read_json(seed / "config.json")["dataset"] == "in memory"
    assert read_json(seed / "result.json")["dataset"] == "mine"
    before = (seed / "result.json").stat()
    train(
        **QUICK, dataset=make_dataset(), out=str(tmp_path)
    )  # equal arrays: finished, nothing to do
    assert (seed / "result.json").stat() == before
    with pytest.raises(UserError, match="was started with other data"):
        train(**QUICK, dataset=make_dataset(2.0), out=str(tmp_path))


def test_evaluations_play_every_initial_state_of_a_finite_list(tmp_path: Path) -> None:
    draw, size = (
        np.random.default_rng(0),
        envs.make_vector("neorl2/Simglucose", 1).observation_shape,
    )
    few = Dataset.from_arrays(
        draw.normal(size=(200, *size)),
        draw.uniform(-1, 1, (200, 1)),
        np.ones(200),
        np.arange(200) % 50 == 49,
    )
    keys = {**QUICK, "dataset": few, "seeds": 1, "eval_every": 20, "eval_episodes": "all"}
    (seed,) = train(**{**keys, "task": "neorl2/Simglucose", "out": str(tmp_path)}).results
    assert len(seed["returns"]) == 360
    with pytest.raises(
        UserError, match="eval_episodes=all: env:Pendulum-v1 has no finite list of initial states"
    ):
        train(**{**keys, "task": "env:Pendulum-v1", "out": str(tmp_path / "other")})
    assert not (tmp_path / "other").exists()


def test_the_checksum_covers_every_array_and_no_file_name() -> None:
    data = make_dataset()
    assert (
        data.checksum()
        == make_dataset().checksum()
        == replace(data, path="a", sha256="b").checksum()
    )
    others = [make_dataset(2.0), data.select([0, 1]), replace(data, extras={"costs": data.rewards})]
    others.append(replace(data, actions=data.actions.astype(np.float64)))
    assert len({other.checksum() for other in (data, *others)}) == 5


def test_reading_options_are_refused_for_data_in_memory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="action_scale= has no effect on data in memory"):
        train(**QUICK, dataset=make_dataset(), action_scale=2.0, out=str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_named_parts_of_a_vector_get_a_specific_remedy() -> None:
    parts = Spec((Channel("position", (2,)), Channel("velocity", (3,))), 2)
    vector, mine, named = Spec((5,), 2), Task("env:a", "env:a"), Task("mine", "mine")
    remedy = "set observation_keys=[position,velocity] if the data's vector holds position and vel"
    assert mismatch_remedy(vector, parts, "task env:a", mine).startswith(remedy)
    stored = "store the data's observations as observations/position and observations/velocity"
    assert mismatch_remedy(vector, parts, "task mine", named) == stored
    assert mismatch_remedy(vector, parts, "expert.npz", mine) == stored
    joined = "store position and velocity of the data as one array, observations"
    assert mismatch_remedy(parts, vector, "task env:a", mine) == joined
    for other in (Spec((6,), 2), Spec((5,), 3)):
        assert mismatch_remedy(other, parts, "task env:a", mine).startswith(
            "is the data of another task?"
        )
    assert mismatch_remedy(vector, Spec((5,), 3), "task env:a", mine).startswith(
        "is the data of another task?"
    )


PARTS = """
import gymnasium, numpy as np

class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        vel=gymnasium.spaces.Box(-1, 1, (1,)), pos=gymnasium.spaces.Box(-1, 1, (2,))
    )
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        return {"vel": np.ones(1, np.float32), "pos": np.zeros(2, np.float32)}, {}

    def step(self, action):
        return self.reset()[0], 1.0, False, False, {}

class Flat(World):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}
"""


def test_observation_keys_may_join_only_the_environments_parts(tmp_path: Path) -> None:
    """The data has one vector, in a file without named parts or in memory."""
    (tmp_path / "world_of_parts.py").write_text(PARTS)
    draw, end = np.random.default_rng(0), np.arange(20) % 10 == 9
    arrays = {"observations": draw.normal(size=(20, 3)), "actions": draw.uniform(-1, 1, (20, 1))}
    np.savez(tmp_path / "vector.npz", **arrays, rewards=np.ones(20), terminals=end)
    data = Dataset.from_arrays(**arrays, rewards=np.ones(20), terminals=end)
    for source in (str(tmp_path / "vector.npz"), data):
        keys = {"algorithm": "bc", "max_episode_steps": 5, "num_updates": 2, "dataset": source}
        keys["task"] = f"env:{tmp_path}/world_of_parts.py:World"
        with pytest.raises(UserError, match=r"set observation_keys=\[pos,vel\] if the data's ve"):
            prepare(keys)
        keys["observation_keys"] = ["pos", "vel"]
        plan = prepare(keys)
        assert plan.spec.observation_shapes == (3,)
        assert plan.dataset is not None
        note = "the observation vector is used as the environment's pos, vel, in this order"
        assert note in plan.dataset.notes
        keys["task"] = f"env:{tmp_path}/world_of_parts.py:Flat"
        with pytest.raises(UserError, match="observation_keys"):  # there are no named arrays
            prepare(keys)


def without_successors(episodes: int = 30) -> Dataset:
    """Episodes of two steps; the observation after the second is unknown."""
    seen = np.tile([[0.0], [1.0]], (episodes, 1))
    last = seen[:, 0] == 1
    return Dataset.from_arrays(seen, seen - 0.5, seen[:, 0], ~last & last, last, name="mine")


@pytest.mark.parametrize(
    ("algorithm", "kept", "said"),
    [
        ("bc", {"update": 60}, ""),
        ("td3_bc", {"update": 30}, "30 of 60 rows have no next observation and are left out\n"),
        ("spot", {"fit_vae": 60, "update": 30}, "and are left out except in fit_vae\n"),
    ],
)
def test_critics_skip_rows_without_a_next_observation_and_report_the_count(
    algorithm: str, kept: dict[str, int], said: str
) -> None:
    keys = {"algorithm": algorithm, "task": "none", "num_updates": 20, "algorithm.hidden": [8]}
    for stream in ("never", "always"):
        plan = prepare(keys | {"dataset": without_successors(), "seeds": 1, "stream": stream})
        engine, _, _ = build_engine(plan, plan.runs)
        sources = {phase: engine.for_phase(phase)[1] for phase in kept}
        sizes = {
            k: len(x.rows) if isinstance(x, Stream) else x.capacity for k, x in sources.items()
        }
        assert sizes == kept
    assert (said in headline(plan) + "\n") if said else "left out" not in headline(plan)


def test_data_of_single_steps_train_imitation_but_no_critic() -> None:
    draw, keys = np.random.default_rng(0), {"task": "none", "num_updates": 20, "seeds": 1}
    rows, never = draw.uniform(-1, 1, (9, 1)), np.zeros(9, bool)
    alone = Dataset.from_arrays(rows, rows, rows[:, 0], never, ~never)
    assert prepare(keys | {"algorithm": "bc", "dataset": alone}).dataset is not None
    with pytest.raises(UserError, match="9 rows, of which 0 have a next observation"):
        prepare(keys | {"algorithm": "td3_bc", "dataset": alone})
