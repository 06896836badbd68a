"""Names, units, ranges and rates of environment and data are stored in the bundle and used."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import envs
import policies
from offline_rl import Dataset, UserError, train
from offline_rl.data.specs import merge_specs, spec_of
from policies import Channel, Player, Spec

QUICK: dict[str, Any] = {"algorithm": "bc", "num_updates": 4, "compile": "never", "device": "cpu"}
QUICK |= {"algorithm.hidden": [8], "show": False, "tracker": "none", "eval_episodes": 1}


def make_dataset(observations: int = 3, actions: int = 1, spec: Spec | None = None) -> Dataset:
    draw, rows = np.random.default_rng(0), 40
    columns = draw.normal(size=(rows, observations)), draw.uniform(-1, 1, (rows, actions))
    return Dataset.from_arrays(*columns, np.zeros(rows), np.arange(rows) % 20 == 19, spec=spec)


def test_a_policy_in_units_acts_in_any_gymnasium_environment(tmp_path: Path) -> None:
    """Gymnasium's Pendulum with torque in [-2, 2] behaves like ours with actions in [-1, 1]."""
    run = train(**QUICK, task="env:Pendulum-v1", dataset=make_dataset(), out=str(tmp_path)).path
    path = run / "seed_0" / "policy.bundle"
    plain, scaled = (Player(policies.load(path, units=units)) for units in (False, True))
    assert plain.policy.spec.action_low == (-2.0,)
    assert plain.policy.spec.action_high == (2.0,)
    assert plain.policy.spec.rate_hz == pytest.approx(20)  # its dt is 0.05 s
    theirs, ours = gymnasium.make("Pendulum-v1"), envs.make("env:Pendulum-v1")
    (first, _), (second, _) = theirs.reset(seed=5), ours.reset(seed=5)
    for _ in range(20):
        action = scaled.step(first)
        assert theirs.action_space.contains(action)
        first, reward, *_ = theirs.step(action)
        second, expected, *_ = ours.step(plain.step(second))
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)
        assert reward == pytest.approx(expected, rel=1e-4)


def test_the_mapping_of_action_range_is_printed(tmp_path: Path) -> None:
    data = make_dataset(actions=2)
    ends = data.terminated, data.truncated
    columns = {"observations": data.observations, "actions": 30 * data.actions - 10}
    columns |= {"rewards": data.rewards, "terminals": ends[0], "timeouts": ends[1]}
    np.savez(tmp_path / "degrees.npz", **columns)
    told = {"dataset": str(tmp_path / "degrees.npz"), "action_range": [[-40, -40], [20, 20]]}
    run = train(**QUICK, task="none", **told, out=str(tmp_path)).path
    policy = policies.load(run / "seed_0" / "policy.bundle", units=True)
    assert (policy.spec.action_low, policy.spec.action_high) == ((-40.0, -40.0), (20.0, 20.0))
    plain = policies.load(run / "seed_0" / "policy.bundle").act(np.ones(3))[0]
    np.testing.assert_allclose(policy.act(np.ones(3))[0], 30 * plain - 10, rtol=1e-5)


JOINTS = Channel("observation", (13,), names=tuple("abcdefghijklm"))


def test_the_environments_spec_overrides_that_of_the_data() -> None:
    """Fields that the environment does not state are taken from the data."""
    limits = {"action_low": (-9.0,) * 5, "action_high": (9.0,) * 5}
    names = {"action_names": tuple("vwxyz")}
    data = make_dataset(13, 5, Spec((JOINTS,), 5, rate_hz=25.1, **names, **limits))
    env = envs.make_vector("arm/reach", 1)
    found = merge_specs(envs.task("arm/reach"), spec_of(env), data)
    assert found == spec_of(env)
    assert found.observation_names[0] == "waist.q"
    alone = merge_specs(envs.task("none"), None, data)
    assert (alone.observation_names[0], alone.action_names) == ("a", tuple("vwxyz"))
    silent = envs.make_vector("env:Pendulum-v1", 1)
    three = Channel("observation", (3,), names=("cos", "sin", "speed"))
    found = merge_specs(
        envs.task("env:Pendulum-v1"), spec_of(silent), make_dataset(3, 1, Spec((three,), 1))
    )
    assert found.observation_names == ("cos", "sin", "speed")
    assert found.action_high == (2.0,)


def test_data_of_another_rate_is_refused() -> None:
    env, data = envs.make_vector("arm/reach", 1), make_dataset(13, 5, Spec((13,), 5, rate_hz=30.0))
    with pytest.raises(UserError, match=r"30 actions a second, task arm/reach has 25"):
        merge_specs(envs.task("arm/reach"), spec_of(env), data)
