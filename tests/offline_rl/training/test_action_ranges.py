"""Action ranges stated by data, policy and environment: actions are converted or refused."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from foreign_layouts import lerobot
from gymnasium.spaces import Box
from prepared import prepare
from printed import evaluate

import envs
from envs import tasks
from offline_rl import Dataset, UserError, finetune, train
from offline_rl.algorithms.common.registry import algorithm_class
from offline_rl.data.read import read
from offline_rl.data.specs import map_to_range, merge_specs, spec_of, stated_spec
from offline_rl.data.transform import Transform
from offline_rl.online.composed import spec_difference
from offline_rl.training.continuation import load_transform
from offline_rl.training.headline import range_note
from policies import Channel, Normalizer, Spec, bundle
from policies.golden import seal

STEPS = 5
QUICK: dict[str, Any] = {"algorithm": "bc", "num_updates": 4, "compile": "never", "device": "cpu"}
QUICK |= {"algorithm.hidden": [8], "tracker": "none", "eval_episodes": 1}


class Gauge(gymnasium.Env):
    """Environment of five steps with actions in [0, 10]. The reward is the action."""

    observation_space, action_space = Box(-1, 1, (1,), np.float32), Box(0, 10, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple:
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple:
        return np.zeros(1, np.float32), float(action[0]), False, False, {}


class Unit(Gauge):
    action_space = Box(-1, 1, (1,), np.float32)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_registered", {})
    envs.register("gauge", Gauge, max_episode_steps=STEPS)
    envs.register("unit", Unit, max_episode_steps=STEPS)


def recorded(path: Path, low: float = 2.0, high: float = 8.0, said: float = 8.0) -> Path:
    """Write a LeRobot folder of two episodes whose statistics state the actions' extremes."""
    pytest.importorskip("pyarrow", reason="LeRobot's tables need the extra lerobot")
    rows = 2 * STEPS
    frames = {"observation.state": np.zeros((rows, 1), np.float32)}
    frames["action"] = np.full((rows, 1), said, np.float32)
    lerobot(path, frames, [STEPS, STEPS])
    stats = {"action": {"min": [low], "max": [high]}}
    (path / "meta" / "stats.json").write_text(json.dumps(stats))
    return path


def arrays(low: float, high: float, action: float = 0.5) -> Dataset:
    """Return ten rows of one action in [-1, 1] that stands for [low, high]."""
    rows, spec = 2 * STEPS, Spec((1,), 1, action_low=(low,), action_high=(high,))
    ends = np.arange(rows) % STEPS == STEPS - 1
    columns = np.zeros((rows, 1)), np.full((rows, 1), action), np.zeros(rows), ends
    return Dataset.from_arrays(*columns, spec=spec)


def constant(path: Path, action: float, low: float, high: float) -> Path:
    """Write a policy that always returns `action` in [-1, 1]."""
    weights = {"trunk.weights.0": np.zeros((1, 1), np.float32)}
    weights |= {"trunk.biases.0": np.arctanh(np.float32([action]))}
    arguments = {"observations": 1, "actions": 1, "hidden": []}
    spec = Spec((1,), 1, action_low=(low,), action_high=(high,))
    same = Normalizer.identity((1,))
    bundle.write(path, seal(bundle.Bundle(spec, "DeterministicActor", arguments, weights, same)))
    return path


def test_an_action_8_in_data_of_range_2_to_8_is_8_in_an_environment_of_0_to_10(tmp_path: Path):
    """The value 8 is 0.6 in [0, 10]: 2 * 8 / 10 - 1. Five such steps have a return of 40."""
    data = recorded(tmp_path / "data")
    plan = prepare({**QUICK, "task": "gauge", "dataset": str(data), "out": str(tmp_path)})
    assert plan.dataset is not None
    np.testing.assert_allclose(plan.dataset.actions, 0.6, atol=1e-6)
    assert (plan.spec.action_low, plan.spec.action_high) == ((0.0,), (10.0,))
    (note,) = [note for note in plan.dataset.notes if "actions" in note]
    assert note == "actions of [2, 8] are converted to [0, 10] of task gauge"
    env = envs.make_vector("gauge", 1)
    env.reset([0])
    total = sum(float(env.step(plan.dataset.actions[:1]).rewards[0]) for _ in range(STEPS))
    assert total == pytest.approx(40, abs=1e-4)


def test_data_that_leave_the_environments_range_are_refused_with_both(tmp_path: Path):
    data, keys = recorded(tmp_path / "data", high=12.0, said=12.0), {**QUICK, "task": "gauge"}
    with pytest.raises(UserError, match=r"range \[2, 12\] does not fit \[0, 10\] \(task gauge\)"):
        prepare({**keys, "dataset": str(data)})
    inside = recorded(tmp_path / "inside", high=12.0, said=8.0)  # all actions are within the range
    plan = prepare({**keys, "dataset": str(inside)})
    assert plan.dataset is not None
    np.testing.assert_allclose(plan.dataset.actions, 0.6, atol=1e-6)


def test_extremes_of_the_data_are_not_the_range_of_a_normalized_environment(tmp_path: Path):
    data = str(recorded(tmp_path / "data"))
    with pytest.raises(UserError, match=r"range \[2, 8\] does not fit \[-1, 1\].*action_range="):
        prepare({**QUICK, "task": "unit", "dataset": data})
    silent = envs.make_vector("unit", 1)
    silent.action_low = silent.action_high = None
    with pytest.raises(UserError, match=r"span \[2, 8\].*not known in these units"):
        map_to_range(read(data), stated_spec(silent), "task silent", option=None)
    plan = prepare({**QUICK, "task": "unit", "dataset": data, "action_range": [0, 10]})
    assert plan.dataset is not None
    np.testing.assert_allclose(plan.dataset.actions, 0.6, atol=1e-6)


def test_an_action_range_that_is_not_the_environments_is_refused(tmp_path: Path):
    data, keys = str(recorded(tmp_path / "data")), {**QUICK, "task": "gauge"}
    refusal = r"action_range=\[2,8\] sets the range \[2, 8\]; the range of task gauge is \[0, 10\]"
    with pytest.raises(
        UserError, match=refusal + r"\..* use act.*convert .* <new file> action_range=\[2,8\]` fi"
    ):
        prepare({**keys, "dataset": data, "action_range": [2, 8]})
    refusal = r"sets the range \[-10, 10\];.* use action_range=\[0,10\]\. .* action_scale=10` f"
    with pytest.raises(UserError, match=refusal):
        prepare({**keys, "dataset": data, "action_scale": 10})
    plan = prepare({**keys, "dataset": data, "action_range": [0, 10]})
    assert plan.dataset is not None
    np.testing.assert_allclose(plan.dataset.actions, 0.6, atol=1e-6)


def test_equal_ranges_and_normalized_actions_stay_as_they_are():
    here = stated_spec(envs.make_vector("gauge", 1))
    for data in (arrays(0, 10), arrays(0, 10.0000005)):
        assert map_to_range(data, here, "task gauge", option=None) is data
    shares = map_to_range(arrays(-1, 1), here, "task gauge", option=None)
    np.testing.assert_array_equal(shares.actions, 0.5)
    assert shares.notes == (
        "actions are normalized: -1 and 1 stand for the range of task gauge, [0, 10]",
    )


@pytest.mark.parametrize("action", [0.5, -0.5])
def test_a_policy_of_2_to_8_acts_in_its_units_in_0_to_10(tmp_path: Path, action: float):
    path = constant(tmp_path / "policy.bundle", action, 2, 8)
    played = json.loads(evaluate(run=str(path), task="gauge", episodes=1, json=True))
    assert played["bundles"][0]["mean_return"] == pytest.approx(STEPS * (5 + 3 * action), rel=1e-5)


def test_a_policy_beyond_the_environments_range_is_refused_with_both(tmp_path: Path):
    path = constant(tmp_path / "policy.bundle", 0.5, 0, 20)
    with pytest.raises(UserError, match=r"policy\.bundle: .* \[0, 20\]; this task's is \[0, 10\]"):
        evaluate(run=str(path), task="gauge", episodes=1)
    with pytest.raises(UserError, match=r"\[0, 20\]; this task's is \[-1, 1\]"):
        evaluate(run=str(path), task="unit", episodes=1)


def test_a_run_of_another_range_does_not_continue_in_the_environment():
    """An action of 1 means 8 for the run's policy and 10 in the environment."""
    data, here = arrays(2, 8), spec_of(envs.make_vector("gauge", 1))
    assert data.spec is not None
    transform = Transform.fit(algorithm_class("bc").Config(), data, (1,))
    progress = {"transform": transform.to_json(), "spec": data.spec.to_json()}
    folder = SimpleNamespace(load=lambda done: ({}, progress))
    start: Any = SimpleNamespace(run="run", folder=lambda s: folder, checkpoints={0: (None, "")})
    with pytest.raises(UserError, match=r"run cannot continue .*\[2, 8\]; here it is \[0, 10\]"):
        load_transform(start, [0], here)
    load_transform(start, [0], data.spec)
    one = replace(data.spec, action_low=(-1.0,), action_high=(1.0,))
    load_transform(
        start, [0], one, replace(one, action_low=(), action_high=())
    )  # its units are unknown


def test_a_base_of_another_range_is_refused_with_both():
    own, here = (
        Spec((1,), 1, action_low=(2.0,), action_high=(8.0,)),
        spec_of(envs.make_vector("gauge", 1)),
    )
    assert spec_difference(own, here) == "action_range: the policy has [2, 8], here it is [0, 10]"
    assert spec_difference(replace(own, action_low=(0.0,), action_high=(10.0,)), here) is None


def test_other_units_and_another_order_of_the_joints_are_refused():
    env = envs.make_vector("arm/reach", 1)
    here, rows = spec_of(env), 2 * STEPS
    ends = np.arange(rows) % STEPS == STEPS - 1
    columns = np.zeros((rows, 13)), np.zeros((rows, 5)), np.zeros(rows), ends

    def refusal(**changes: Any) -> str | None:
        data = Dataset.from_arrays(*columns, spec=replace(here, **changes))
        with pytest.raises(UserError) as error:
            merge_specs(envs.task("arm/reach"), spec_of(env), data)
        return str(error.value)

    assert "has action_units ['deg', " in (refusal(action_units=("deg",)) or "")
    assert "has action_names [" in (refusal(action_names=here.action_names[::-1]) or "")
    degrees = Channel("observation", (13,), units=("deg",))
    assert "has observation_units ['deg', " in (refusal(channels=(degrees,)) or "")


def test_a_note_says_that_a_normalized_policy_uses_shares_of_the_range(tmp_path: Path):
    """0.5 of [0, 10] is 7.5."""
    path = constant(tmp_path / "policy.bundle", 0.5, -1, 1)
    text = evaluate(run=str(path), task="gauge", episodes=1)
    assert text.split()[text.split().index(str(path)) + 1] == "37.5"
    assert "normalized: -1 and 1 stand for the range of gauge, [0, 10].\n" in text


def test_a_note_says_that_a_normalized_policy_continues_in_another_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = "actions are normalized: -1 and 1 stand for the range of task gauge, [0, 10]\n"
    keys = {**QUICK, "num_env_steps": 12, "num_updates": 0, "batch_size": 4, "out": str(tmp_path)}
    keys |= {"algorithm": "sac", "online.warmup_steps": 4}
    own = train(**keys, task="unit")
    assert note not in capsys.readouterr().out
    less = {k: v for k, v in keys.items() if k not in ("algorithm", "online.warmup_steps")}
    finetune(run=own.path, **less, task="gauge")
    assert capsys.readouterr().out.count(note) == 1
    keys = {"task": "gauge", "num_env_steps": 12, "online.offline_fraction": 0}
    keys |= {"base": str(constant(tmp_path / "b", 0.5, -1, 1))}
    plan = prepare({**QUICK, "num_updates": 0, **keys, "algorithm": "resfit"})
    assert f"{range_note(plan)}\n" == note


def test_without_an_environment_expert_data_use_the_range_of_the_dataset() -> None:
    """0.5 of [2, 8] is 6.5, which is 0.3 of [0, 10]."""
    keys = {**QUICK, "algorithm": "recoil", "task": "none", "dataset": arrays(0, 10)}
    plan = prepare({**keys, "expert_dataset": arrays(2, 8)})
    assert plan.expert is not None
    np.testing.assert_allclose(plan.expert.actions, 0.3, atol=1e-6)
    with pytest.raises(UserError, match=r"range \[0, 30\] does not fit \[0, 10\]"):
        prepare({**keys, "expert_dataset": arrays(0, 30)})


def test_a_range_of_minus_one_to_one_may_mean_shares_so_units_are_not_converted_to_it():
    half, whole = (Spec((1,), 1, action_low=(-x,), action_high=(x,)) for x in (0.5, 1.0))
    with pytest.raises(ValueError, match=r"range \[-0\.5, 0\.5\] does not fit \[-1, 1\]"):
        half.conversion(whole)
    assert whole.conversion(half) is None  # shares of any action range


@pytest.mark.parametrize("name", ["action_names", "observation_names"])
def test_names_in_another_order_contradict_and_other_names_do_not(name: str):
    def named(*names: str) -> Spec:
        seen = Channel("observation", (2,), names=names if name == "observation_names" else ())
        return Spec((seen,), 2, action_names=names if name == "action_names" else ())

    found = named("a", "b").contradiction(named("b", "a"))
    assert found == (name, ("a", "b"), ("b", "a"))
    assert named("a", "b").contradiction(named("c", "d")) is None
    assert named("a", "b").contradiction(named("a", "b")) is None
