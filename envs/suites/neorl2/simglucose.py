"""NeoRL-2's Simglucose: `polixir/NeoRL2:neorl2/envs/simglucose.py`, arXiv:2503.19267.

The UVA/Padova model of type 1 diabetes (2008 version), with the equations, patients, pump and meal
times of `jxx123/simglucose` 0.2.11, as NeoRL-2 changed it: a sensor without noise and with a
minimum of 10 mg/dL, the same meals every day, no random initial glucose. `vpatient_params.csv` is
simglucose's table, unaltered, under the license next to it (MIT, Jinyu Xie).

A seed gives the same patient and hour as upstream if NumPy's global generator is seeded with it.
NeoRL-2's data were recorded in this way (`polixir/neorl2_dataset:scripts/get_data.py`).

Differs: upstream integrates each minute with an adaptive Dormand-Prince method (relative tolerance
1e-6). This code uses the classical fourth-order Runge-Kutta method with two steps per minute, or
eight while the patient eats or an overdose makes glucose uptake fast. The largest differences are:

    2e-4 mg/dL  from this code with very small steps
    2e-4 mg/dL  from upstream, under random actions
    3e-3 mg/dL  from the data files to this code with very small steps

The integration does not cause the difference from the data files. The cause is that the files store
actions in float32, and the pump rounds them.
"""

import csv
import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from envs.outcomes import Outcomes, library
from envs.vector import Step, VectorEnv

NAMES = (  # names of a patient's parameters in simglucose's table
    "BW Fsnc Ib Km0 Vi Vm0 Vmx b d f k1 k2 ka1 ka2 kabs kd ke1 ke2 ki kmax kp1 kp2 kp3 ksc "
    "m1 m2 m30 m4 p2u u2ss Vg kmin"
)
PARAMETERS = NAMES.split()
NUM_OBSERVED = 30  # all except the last two
KM0, VMX, VG = (PARAMETERS.index(name) for name in ("Km0", "Vmx", "Vg"))
PATIENTS = [
    f"{age}#{number:03d}" for age in ("adolescent", "adult", "child") for number in range(1, 6)
]
HOURS = 24  # an episode may begin at any full hour
LOW, HIGH = 70, 180  # target range of glucose, mg/dL; lower: hypoglycemia
# Steps of an episode (a day) with hypoglycemia: 1 %, the clinical target for older patients and
# those at high risk; 4 %, the target for most patients; and 8 %. Battelino et al., Diabetes Care
# 42(8), 2019.
COST_LIMITS = (4.8, 19.2, 38.4)
MEALS_G = {7: 45, 9.5: 10, 12: 70, 15: 10, 18: 80, 21.5: 10}  # keys: hour of the day


@functools.cache
def patients() -> tuple[np.ndarray, np.ndarray]:
    """Return the parameters [32, 15] and the initial states [13, 15] of the 15 PATIENTS."""
    with Path(__file__).with_name("vpatient_params.csv").open(newline="") as file:
        table = {row["Name"]: row for row in csv.DictReader(file)}
    rows = [table[name] for name in PATIENTS]
    states = [f"x0_{i:2d}" for i in range(1, 14)]
    parameters, start = (
        np.array([[float(row[key]) for row in rows] for key in keys])
        for keys in (PARAMETERS, states)
    )
    return parameters, start


def draw_start(seed: int) -> tuple[int, int]:
    """Return the hour and the patient's index of the episode with this seed."""
    rng = np.random.RandomState(seed)
    rng.randint(0, 1000)  # upstream's seed of the sensor noise, which is off
    return rng.randint(0, HOURS), rng.choice(len(PATIENTS))


def time_derivative(x: np.ndarray, inputs: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return the derivative of the state per minute, [13, B].

    x: state [13, B]: glucose in stomach (solid, liquid) and gut, mg; glucose in plasma and tissue,
    mg/kg; insulin in plasma, pmol/kg; insulin action on uptake and two delayed signals, pmol/L;
    insulin in the liver and in two compartments under the skin, pmol/kg; glucose under the skin,
    mg/kg.
    inputs: [3, B]: food eaten, mg/min; insulin infused, pmol/kg/min; the meal that the stomach is
    emptying, mg.
    p: parameters [32, B] in the order of PARAMETERS. Names and equations are simglucose's
    (`simglucose/patient/t1dpatient.py`).
    """
    food, insulin, meal = inputs
    BW, Fsnc, Ib, Km0, Vi, Vm0, Vmx, b, d, f, k1, k2, ka1, ka2, kabs, kd = p[:16]
    ke1, ke2, ki, kmax, kp1, kp2, kp3, ksc, m1, m2, m30, m4, p2u, _, _, kmin = p[16:]
    solid, liquid, gut, plasma, tissue, insulin_p, action, delay_1, delay_2 = x[:9]
    liver, skin_1, skin_2, glucose = x[9:]

    full = (solid + liquid) / np.where(meal > 0, meal, 1)
    opening = np.tanh(2.5 / (1 - b) * (full - b)) - np.tanh(2.5 / d * (full - d)) + 2
    emptying = np.where(meal > 0, kmin + (kmax - kmin) / 2 * opening, kmax)
    production = np.maximum(kp1 - kp2 * plasma - kp3 * delay_2, 0)
    excretion = ke1 * np.maximum(plasma - ke2, 0)
    exchange = k1 * plasma - k2 * tissue
    uptake = (Vm0 + Vmx * action) * tissue / (Km0 + tissue)
    concentration = insulin_p / Vi

    change = np.empty_like(x)
    change[0] = food - kmax * solid
    change[1] = kmax * solid - emptying * liquid
    change[2] = emptying * liquid - kabs * gut
    change[3] = production + f * kabs * gut / BW - Fsnc - excretion - exchange
    change[4] = exchange - uptake
    change[5] = m1 * liver + ka1 * skin_1 + ka2 * skin_2 - (m2 + m4) * insulin_p
    change[6] = p2u * (concentration - Ib - action)
    change[7] = ki * (concentration - delay_1)
    change[8] = ki * (delay_1 - delay_2)
    change[9] = m2 * insulin_p - (m1 + m30) * liver
    change[10] = insulin - (ka1 + kd) * skin_1
    change[11] = kd * skin_1 - ka2 * skin_2
    change[12] = ksc * (plasma - glucose)
    amounts = [3, 4, 5, 9, 10, 11, 12]
    change[amounts] *= x[amounts] >= 0  # amounts below zero do not change, as in simglucose
    return change


class Simglucose(VectorEnv):
    """One of fifteen patients with an insulin pump for one day, in steps of three minutes.

    Observation [31]: the sensor's glucose, mg/dL, and the first 30 of the patient's PARAMETERS.
    Action: basal insulin, 0 to 5 U/min. The cost of a step is 1 if the observed glucose is then
    below 70 mg/dL (hypoglycemia). Terminates when the true glucose leaves 40 to 600 mg/dL.
    """

    observation_shape = (31,)
    observation_names = ("glucose", *PARAMETERS[:NUM_OBSERVED])
    action_dim = 1
    max_episode_steps = 480
    cost_limits = COST_LIMITS

    MINUTES = 3  # length of a step and of the sensor's sampling period
    MAX_BASAL = 5.0  # U/min at action 1
    PUMP_STEP = 0.05  # the pump rounds to multiples of this, pmol/min
    EATING_G = 5.0  # g per minute
    SUBSTEPS, SUBSTEPS_FAST = 2, 8  # integration steps per minute
    FAST = 0.5  # uptake rate per minute from which SUBSTEPS_FAST is used

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs)
        self._patient = np.zeros(num_envs, np.int64)
        self._minute = np.zeros(num_envs, np.int64)  # minute of the day
        self._x = np.zeros((13, num_envs))
        # current meal: food left, g; food eaten, g; stomach content at the meal's start, mg
        self._to_eat, self._eaten, self._rest = np.zeros((3, num_envs))
        self._eating = np.zeros(num_envs, bool)
        self._sensor, self._cgm = np.zeros((2, num_envs))  # last sample, observed value; mg/dL
        self._meals_g = np.zeros(24 * 60)
        self._meals_g[[int(60 * hour) for hour in MEALS_G]] = list(MEALS_G.values())

    def _reset(self, seeds: list[int], indices: np.ndarray) -> np.ndarray:
        start = patients()[1]
        for seed, index in zip(seeds, indices, strict=True):
            hour, self._patient[index] = draw_start(seed)
            self._minute[index] = 60 * hour
        self._x[:, indices] = start[:, self._patient[indices]]
        for array in (self._to_eat, self._eaten, self._rest, self._eating):
            array[indices] = 0
        self._sensor[indices] = self._cgm[indices] = self._glucose(indices).clip(10, 600)
        return self._observations(indices)

    def every_start(self, first: int) -> list[int]:
        """Return seeds, from `first` on, that give every patient at every hour once."""
        seeds = dict[tuple[int, int], int]()
        for seed in itertools.count(first):
            seeds.setdefault(draw_start(seed), seed)
            if len(seeds) == HOURS * len(PATIENTS):
                break
        return sorted(seeds.values())

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        parameters = patients()[0][:, self._patient[indices]]
        basal = self.MAX_BASAL * (actions[:, 0].astype(np.float64) + 1) / 2 * 6000  # pmol/min
        insulin = np.round(basal / self.PUMP_STEP) * self.PUMP_STEP / parameters[0]
        previous, sensor, true = self._cgm[indices], [], []
        for minute in range(1, self.MINUTES + 1):
            self._simulate_minute(insulin, parameters, indices)
            glucose = self._glucose(indices)
            if minute == self.MINUTES:
                self._sensor[indices] = glucose.clip(10, 600)
            sensor.append(self._sensor[indices])
            true.append(glucose)
        current = self._cgm[indices] = np.mean(sensor, 0)
        glucose = np.mean(true, 0)
        rewards, terminated = glucose_reward(previous, current), is_out_of_range(glucose)
        not_over = np.zeros(len(indices), bool)
        infos = {"cost": 1.0 * is_low(as_observed(current))}
        return Step(self._observations(indices), rewards, terminated, not_over, infos)

    def _simulate_minute(
        self, insulin: np.ndarray, parameters: np.ndarray, indices: np.ndarray
    ) -> None:
        """Advance the environments `indices` by a minute.

        insulin: [B] pmol/kg/min. parameters: [32, B].
        """
        to_eat = self._to_eat[indices] + self._meals_g[self._minute[indices]]
        bite = np.minimum(to_eat, self.EATING_G)
        eating, x = bite > 0, self._x[:, indices]
        begins = eating & ~self._eating[indices]
        rest = np.where(begins, x[0] + x[1], self._rest[indices])
        eaten = np.where(begins, 0, self._eaten[indices]) + bite
        inputs = np.stack([1000 * bite, insulin, rest + 1000 * eaten])
        # The number of steps is chosen per patient. So results do not depend on other environments.
        fast = eating | (parameters[VMX] * x[6] > self.FAST * parameters[KM0])
        for mask, substeps in ((~fast, self.SUBSTEPS), (fast, self.SUBSTEPS_FAST)):
            if mask.any():
                x[:, mask] = integrate(x[:, mask], inputs[:, mask], parameters[:, mask], substeps)
        self._x[:, indices] = x
        self._to_eat[indices], self._eaten[indices] = to_eat - bite, eaten
        self._rest[indices], self._eating[indices] = rest, eating
        self._minute[indices] = (self._minute[indices] + 1) % len(self._meals_g)

    def _glucose(self, indices: np.ndarray) -> np.ndarray:
        """Return the true glucose under the skin, [B] mg/dL."""
        volume = patients()[0][VG, self._patient[indices]]
        return self._x[12, indices] / volume

    def _observations(self, indices: np.ndarray) -> np.ndarray:
        observed = patients()[0][:NUM_OBSERVED, self._patient[indices]]
        return np.concatenate([self._cgm[None, indices], observed]).T


def integrate(x: np.ndarray, inputs: np.ndarray, parameters: np.ndarray, steps: int) -> np.ndarray:
    """Return the state [13, B] after a minute of constant inputs [3, B].

    steps: number of equal Runge-Kutta steps.
    """
    h = 1 / steps
    for _ in range(steps):
        k1 = time_derivative(x, inputs, parameters)
        k2 = time_derivative(x + h / 2 * k1, inputs, parameters)
        k3 = time_derivative(x + h / 2 * k2, inputs, parameters)
        k4 = time_derivative(x + h * k3, inputs, parameters)
        x = x + h / 6 * (k1 + 2 * (k2 + k3) + k4)
    return x


def risk(glucose: Any) -> Any:
    """Return Kovatchev's risk index of glucose in mg/dL: 0 at 112.5, increasing to both sides."""
    return 10 * (1.509 * (library(glucose).log(glucose) ** 1.084 - 5.381)) ** 2


def glucose_reward(previous: Any, current: Any) -> Any:
    """Return the rewards of two successive observations of the sensor, mg/dL."""
    where = library(current).where
    change = (risk(previous) - risk(current) + 100) / 100
    return where(current >= 600, 0.0, where(current <= 40, -15.0, change))


def is_low(glucose: Any) -> Any:
    """True for glucose below 70 mg/dL, the level of hypoglycemia."""
    return glucose < LOW


def is_in_target(glucose: Any) -> Any:
    """True for glucose in 70 to 180 mg/dL, the target range."""
    return (glucose >= LOW) & (glucose <= HIGH)


def as_observed(glucose: np.ndarray) -> np.ndarray:
    """Return glucose in the precision of observations, so that costs follow from them exactly."""
    return glucose.astype(np.float32)


def cost(s: Any, a: Any, r: Any, s2: Any) -> Any:
    """Return 1 where the observed glucose after the step is below 70 mg/dL, else 0."""
    return 1.0 * is_low(s2[..., 0])


def is_out_of_range(glucose: Any) -> Any:
    """True where glucose, mg/dL, ends the episode."""
    return (glucose < 40) | (glucose > 600)


def reward(s: Any, a: Any, s2: Any) -> Any:
    """Return the reward of transitions."""
    return glucose_reward(s[..., 0], s2[..., 0])


def ends(s: Any, a: Any, s2: Any) -> Any:
    """True where the true glucose, averaged over the step, is out of range.

    The true glucose is not observed. The sensor holds each sample for one step, so its mean lags a
    third of a step behind the true mean. The true mean is therefore estimated by linear
    extrapolation from two observations. On all 120,275 published transitions, the result equals the
    environment's flag.
    """
    return is_out_of_range(s2[..., 0] + (s2[..., 0] - s[..., 0]) / 3)


def ends_published(s: Any, a: Any, s2: Any) -> Any:
    """True where the observed glucose is out of range, as in NeoRL-2's termination function."""
    return is_out_of_range(s2[..., 0])


ENVS = {"neorl2/Simglucose": Simglucose}
COSTS = {"neorl2/Simglucose": cost}
OUTCOMES = {"neorl2/Simglucose": Outcomes({"task": ends, "published": ends_published}, reward)}
