"""Simglucose's equations, meals, sensor and rewards; test_neorl2_simulators compares episodes."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

import envs
import envs.suites.neorl2
from envs.suites.neorl2.simglucose import (
    MEALS_G,
    PARAMETERS,
    PATIENTS,
    Simglucose,
    patients,
    risk,
    time_derivative,
)
from envs.tasks import COSTS

COUNT = len(PATIENTS)


def parameter(name: str) -> np.ndarray:
    return patients()[0][PARAMETERS.index(name)]


def change_of(x: np.ndarray, food: np.ndarray, insulin: np.ndarray, meal: np.ndarray) -> np.ndarray:
    """Return the derivative of the state for all patients."""
    return time_derivative(x, np.stack([food, insulin, meal]), patients()[0])


def test_the_table_is_simglucoses_with_its_license() -> None:
    """The file equals jxx123/simglucose:simglucose/params/vpatient_params.csv of 0.2.11."""
    folder = Path(envs.suites.neorl2.__file__).parent
    digest = hashlib.sha256((folder / "vpatient_params.csv").read_bytes()).hexdigest()
    assert digest == "662f3b684d160fdf485edd1d7196dd1cd85c14b53650b030fdb86aaa05bb2e50"
    license = (folder / "vpatient_params.LICENSE").read_text()
    assert "Copyright (c) 2017 Jinyu Xie" in license
    assert "free of charge" in license


def test_patients_start_in_the_steady_state_of_their_basal_rate() -> None:
    """The state changes by at most 1e-4 a minute with u2ss pmol/kg/min of insulin and no food."""
    start = patients()[1]
    zero = np.zeros(COUNT)
    change = change_of(start, zero, parameter("u2ss"), zero)
    assert (abs(change) <= 1e-4 * (1 + abs(start))).all()
    more = change_of(start, zero, parameter("u2ss") + 1, zero)
    np.testing.assert_allclose(more - change, np.eye(13)[:, 10:11] * np.ones(COUNT), atol=1e-12)


def test_every_start_returns_each_initial_state_once() -> None:
    """There are 15 patients at 24 hours; repeated calls return the same seeds."""
    seeds = Simglucose(1).every_start(1000)
    env = Simglucose(len(seeds))
    observations = env.reset(seeds)
    starts = {(tuple(row), minute) for row, minute in zip(observations, env._minute, strict=True)}
    assert len(seeds) == len(set(seeds)) == len(starts) == 24 * COUNT == 360
    assert min(seeds) >= 1000
    assert seeds == Simglucose(3).every_start(1000)


def test_food_leaves_the_stomach_through_the_gut_only() -> None:
    """The sum of solid, liquid and gut gains the food and loses the absorbed glucose."""
    rng = np.random.default_rng(0)
    start = patients()[1]
    x = start * rng.uniform(0.5, 2, start.shape)
    x[:3] = rng.uniform(0, 5e4, (3, COUNT))
    for meal in (0.0, 5e3, 8e4):
        change = change_of(x, np.full(COUNT, 5e3), parameter("u2ss"), np.full(COUNT, meal))
        np.testing.assert_allclose(change[:3].sum(0), 5e3 - parameter("kabs") * x[2], rtol=1e-9)


def test_glucose_above_the_kidneys_threshold_is_excreted() -> None:
    """Above k_e2, which is 339 mg/kg, the slope changes by -k_e1."""
    start = patients()[1]
    zero, x = np.zeros(COUNT), start.copy()
    slopes = []
    for plasma in (335.0, 337.0, 341.0, 343.0):
        x[3] = plasma
        slopes.append(change_of(x, zero, zero, zero)[3])
    below, across, above = np.diff(slopes, axis=0) / np.array([[2], [4], [2]])
    np.testing.assert_allclose(above - below, -parameter("ke1"), rtol=1e-6)
    np.testing.assert_allclose(across - below, -parameter("ke1") / 2, rtol=1e-6)


def test_amounts_below_zero_do_not_change() -> None:
    start = patients()[1]
    zero, x = np.zeros(COUNT), start.copy()
    x[[3, 12]] = -1.0
    change = change_of(x, zero, zero, zero)
    assert (change[[3, 12]] == 0).all()
    assert (change[4] != 0).all()


def test_breakfast_is_eaten_at_seven_in_nine_minutes() -> None:
    env = Simglucose(2)
    env.reset([0, 1])
    env._minute[:] = [7 * 60 - 1, 6 * 60]
    env._x[:3] = 0
    parameters, solid = patients()[0][:, env._patient], []
    for _ in range(12):
        env._simulate_minute(parameters[PARAMETERS.index("u2ss")], parameters, np.arange(2))
        solid.append(env._x[0].copy())
    kmax = parameters[PARAMETERS.index("kmax"), 0]
    mg, food = 0.0, [0, *[5000] * 9, 0, 0]
    for rate, amount in zip(food, solid, strict=True):  # x' = food - kmax x, solved for a minute
        mg = mg * np.exp(-kmax) + rate / kmax * (1 - np.exp(-kmax))
        assert amount[0] == pytest.approx(mg, rel=1e-6)
        assert amount[1] == 0
    assert env._eaten.tolist() == [45, 0]
    assert sum(MEALS_G.values()) == 225


def test_the_observation_is_two_thirds_the_last_sample() -> None:
    """The sensor samples every third minute; the observation is the mean of three minutes."""
    env = Simglucose(3)
    before = env.reset([0, 1, 2])[:, 0]
    for _ in range(5):
        previous = env._sensor.copy()
        step = env.step(np.full((3, 1), -0.95))
        current = env._x[12] / parameter("Vg")[env._patient]
        expected = (2 * previous + current) / 3
        np.testing.assert_allclose(step.observations[:, 0], expected, rtol=1e-6)
    assert (step.observations[:, 0] != before).all()
    np.testing.assert_allclose(step.observations[:, 1], parameter("BW")[env._patient], rtol=1e-6)


def test_rewards_are_the_decrease_of_risk_with_two_exceptions() -> None:
    """Kovatchev's risk is by definition 0 at 112.5 mg/dL and 100 at 20 and 600."""
    np.testing.assert_allclose(risk(np.array([112.5, 20, 600])), [0, 100, 100], atol=0.1)
    env = Simglucose(4)
    env.reset([0, 0, 0, 0])
    volume = parameter("Vg")[env._patient]
    for array in (env._sensor, env._cgm):
        array[:] = [120, 300, 36, 630]
    env._x[[3, 12]] = np.array([120, 300, 36, 630]) * volume
    step = env.step(np.full((4, 1), -1.0))
    after = step.observations[:, 0].astype(np.float64)
    expected = 1 + (risk(np.array([120.0, 300])) - risk(after[:2])) / 100
    np.testing.assert_allclose(step.rewards[:2], expected, atol=1e-6)
    assert after[2] < 40
    assert step.rewards[2] == -15
    assert step.rewards[3] == 0
    assert step.terminated.tolist() == [False, False, True, True]


def test_a_step_below_70_mg_per_dl_costs_one() -> None:
    """The cost follows from the observation after the step, in its precision."""
    env = Simglucose(4)
    env.reset([0, 0, 0, 0])
    start = [60, 69.5, 75, 200]
    for array in (env._sensor, env._cgm):
        array[:] = start
    env._x[[3, 12]] = np.array(start) * parameter("Vg")[env._patient]
    step = env.step(np.full((4, 1), -1.0))
    glucose = step.observations[:, 0]
    assert step.infos["cost"].tolist() == [1, 1, 0, 0]
    assert glucose[1] < 70 < glucose[2]
    name = "neorl2/Simglucose"
    edge = np.array([[69.99999], [70.0]], np.float32)
    assert COSTS[name](edge, edge, edge[:, 0], edge).tolist() == [1, 0]
    assert COSTS[name](None, None, None, step.observations).tolist() == [1, 1, 0, 0]


def test_the_cost_limits_are_shares_of_a_day() -> None:
    """1 %, 4 % and 8 % of 480 steps; the middle one is the target for most patients."""
    task = envs.task("neorl2/Simglucose")
    np.testing.assert_allclose(task.cost_limits, np.array([0.01, 0.04, 0.08]) * 480)
    assert task.cost_limit == 19.2


class Finer(Simglucose):
    SUBSTEPS, SUBSTEPS_FAST = 8, 32


@pytest.mark.parametrize("high", [-0.98, 1.0])
def test_shorter_integration_steps_change_little(high: float) -> None:
    """Steps are four times shorter: lunch with usual insulin, and with overdoses."""
    rng, both = np.random.default_rng(0), [Simglucose(16), Finer(16)]
    for env in both:
        env.reset(range(16))
        env._minute[:] = 12 * 60 - 6
    on = np.arange(16)
    for _ in range(30):
        actions = rng.uniform(-1, high, (len(on), 1))
        coarse, fine = (env.step(actions, on) for env in both)
        np.testing.assert_allclose(coarse.observations, fine.observations, rtol=0, atol=3e-4)
        assert (coarse.terminated == fine.terminated).all()
        on = on[~coarse.terminated]
    assert abs(fine.observations[:, 0] - 120).max() > 50
