"""`train(dataset=)` takes a Dataset: no file, known again by what is in its arrays."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import envs
from offline_rl import Dataset, UserError, train
from offline_rl.training.plan import Member, apart, headline, prepare
from offline_rl.training.run_folder import SeedFolder
from offline_rl.training.train import engine_of
from offline_rl.utils.files import read_json
from policies import Channel, Spec

QUICK = {"algorithm": "td3_bc", "task": "none", "num_updates": 20, "compile": "never"}
QUICK |= {"algorithm.hidden": [8], "show": False, "tracker": "none"}


def made(reward: float = 1.0) -> Dataset:
    draw, rows = np.random.default_rng(0), 200
    return Dataset.from_arrays(
        draw.normal(size=(rows, 4)),
        draw.uniform(-1, 1, (rows, 2)),
        np.full(rows, reward),
        np.arange(rows) % 50 == 49,
        name="mine",
    )


def test_it_trains_and_the_run_knows_its_data_again(tmp_path: Path) -> None:
    seed = train(**QUICK, dataset=made(), out=str(tmp_path)).path / "seed_0"
    assert read_json(seed / "config.json")["dataset"] == "in memory"
    assert read_json(seed / "result.json")["dataset"] == "mine"
    before = (seed / "result.json").stat()
    train(**QUICK, dataset=made(), out=str(tmp_path))  # equal arrays: finished, nothing to do
    assert (seed / "result.json").stat() == before
    with pytest.raises(UserError, match="was begun with other data"):
        train(**QUICK, dataset=made(2.0), out=str(tmp_path))


def test_evaluations_play_every_start_where_a_task_has_few(tmp_path: Path) -> None:
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
    with pytest.raises(UserError, match="eval_episodes=all: env:Pendulum-v1 has no few starts"):
        train(**{**keys, "task": "env:Pendulum-v1", "out": str(tmp_path / "other")})
    assert not (tmp_path / "other").exists()


def test_a_checksum_is_of_every_array_and_of_no_file() -> None:
    data = made()
    assert data.checksum() == made().checksum() == replace(data, path="a", sha256="b").checksum()
    others = [made(2.0), data.select([0, 1]), replace(data, extras={"costs": data.rewards})]
    others.append(replace(data, actions=data.actions.astype(np.float64)))
    assert len({other.checksum() for other in (data, *others)}) == 5


def test_how_a_file_is_read_is_of_no_use_to_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="action_scale= says how a file is read"):
        train(**QUICK, dataset=made(), action_scale=2.0, out=str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_parts_of_a_vector_by_name_are_not_called_another_task() -> None:
    parts = Spec((Channel("position", (2,)), Channel("velocity", (3,))), 2)
    vector = Spec((5,), 2)
    assert "observation_keys=[position,velocity] observes position and vel" in apart(vector, parts)
    assert "store those of the data so" in apart(parts, vector)
    for other in (Spec((6,), 2), Spec((5,), 3)):
        assert apart(other, parts).startswith("data of another task?")
    assert apart(vector, Spec((5,), 3)).startswith("data of another task?")


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
def test_critics_leave_rows_without_a_next_observation_out_and_say_how_many(
    algorithm: str, kept: dict[str, int], said: str
) -> None:
    keys = {"algorithm": algorithm, "task": "none", "num_updates": 20, "algorithm.hidden": [8]}
    plan = prepare(keys | {"dataset": without_successors(), "seeds": 1})
    engine, _, _ = engine_of(plan, [Member(SeedFolder(Path(), 0), plan.cfg, {})])
    sizes = {phase: int(engine.at(phase)[1].tensors()["size"]) for phase in kept}
    assert sizes == kept
    assert (said in headline(plan) + "\n") if said else "left out" not in headline(plan)


def test_data_of_single_steps_teach_imitation_and_no_critic() -> None:
    draw, keys = np.random.default_rng(0), {"task": "none", "num_updates": 20, "seeds": 1}
    rows, never = draw.uniform(-1, 1, (9, 1)), np.zeros(9, bool)
    alone = Dataset.from_arrays(rows, rows, rows[:, 0], never, ~never)
    assert prepare(keys | {"algorithm": "bc", "dataset": alone}).dataset is not None
    with pytest.raises(UserError, match="9 rows, of which 0 have a next observation"):
        prepare(keys | {"algorithm": "td3_bc", "dataset": alone})
