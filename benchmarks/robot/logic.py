"""Rows of the failure matrix on one simulated clock: bus client, check, loop and inference.

The texts of faults and reactions are keys of the result file and must not change. `page` replaces
them by texts for readers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.robot.stepped import PERIOD_S, Stepped, count_violations
from envs.suites.arm import Reach
from offline_rl.data.specs import spec_of
from policies import Spec
from policies.episodes import Memory, RunningEpisodes
from real_robot.control.loop import Request
from real_robot.robot import Reading
from real_robot.safety.states import RE_ARM, Reason, State

HORIZON, EXECUTED, STEP_S = 8, 4, 0.04
PLAN_S = (HORIZON + 1) * STEP_S  # longest time from an observation to the end of its plan
STOP_S = 2 / 30 + 30 / 2000 + 2 * PERIOD_S  # v / a + a / j of the desk arm, plus two ticks
GIVE_UP_S = 3.0  # maximum wait for a reaction


class Swing:
    """Policy that swings every joint about its start position, well inside all limits."""

    def __init__(self) -> None:
        base = spec_of(Reach(1))
        self.spec = Spec(
            base.channels,
            base.action_dim,
            action_low=base.action_low,
            action_high=base.action_high,
            chunk_size=HORIZON,
            n_action_steps=EXECUTED,
            rate_hz=base.rate_hz,
            action_names=base.action_names,
            action_units=base.action_units,
        )
        self.middle = np.zeros(5)
        self.bench: Any = None
        # changes the positions of a chunk, [H, J] rad; None: they are not changed
        self.corrupt: Callable[[np.ndarray], np.ndarray] | None = None

    def new_episodes(self) -> RunningEpisodes:
        return RunningEpisodes(self.decide)

    def decide(
        self, observations: Any, memory: Memory, noise: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        observed_s = int(self.bench.ticks.record["measured_ns"]) * 1e-9
        goals = self.path(observed_s + STEP_S * np.arange(HORIZON))
        if self.corrupt is not None:
            goals = self.corrupt(goals)
        low, high = self.spec.action_bounds
        return ((goals - (low + high) / 2) / ((high - low) / 2))[None], memory

    def path(self, times_s: np.ndarray) -> np.ndarray:
        since = times_s[:, None] - self.bench.start_s
        speed = np.array([1.5, 2.0, 1.2, 2.5, 3.0])
        return self.middle + 0.2 * np.sin(speed * since)


class Bench(Stepped):
    """Armed robot that has followed the swing for a random time."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.policy = Swing()
        self.policy.bench = self
        super().__init__(folder, self.policy, seed)
        self.arm()
        self.policy.middle = np.array(self.guard.motion.q)
        self.start_s = self.now_ns * 1e-9
        self.inputs.requests.append(Request(start=True))
        self.run(int(self.chance.integers(30, 130)))
        self.injected_ns = 0
        self.joint = int(self.chance.integers(5))
        self.mark = 0  # a number that the functions of a row may use
        self.start_q, self.fastest = np.zeros(5), 0.0

    def change_goals(self, change: Callable[[np.ndarray], np.ndarray]) -> None:
        """Change the policy's actions from its next chunk on. This is the time of the fault."""
        self.policy.corrupt = change
        before = self.completed_ns
        while self.completed_ns == before:
            self.tick()
        self.injected_ns = self.completed_ns

    @property
    def stopping(self) -> bool:
        return self.guard.state is not State.RUNNING

    @property
    def latched(self) -> Reason | None:
        machine = self.guard.machine
        return machine.pending if machine.latched is None else machine.latched


@dataclass(frozen=True)
class Row:
    """Fault, its expected reaction and its time limit."""

    number: str
    fault: str
    reaction: str
    bound_s: float | None  # time limit; None: there is none
    inject: Callable[[Bench], Any]
    done: Callable[[Bench], bool] = lambda b: b.stopping  # True once the reaction has come
    reasons: tuple[Reason, ...] = ()  # one of these must be latched; empty: the robot continues
    ends: tuple[State, ...] = (State.HOLD, State.FAULT, State.ESTOP)  # accepted final states
    after: Callable[[Bench], bool] = lambda b: True  # condition at the end
    # True: the goal of the faulty joint may follow the measured position, even beyond the limits
    follows: bool = False
    at_once: bool = True  # False: `inject` waits for a suitable time and sets `injected_ns`


def run(row: Row, repeats: int, folder: Path) -> dict[str, Any]:
    """Run a row of the matrix and return its results."""
    seed = int.from_bytes(row.number.encode(), "big") % 2**31
    delays, wrong, violations = list[float](), list[str](), 0
    for repeat in range(repeats):
        bench = Bench(folder, seed + repeat)
        if row.at_once:
            bench.injected_ns = bench.inject_at_random(partial(row.inject, bench))
        else:
            row.inject(bench)
        while not row.done(bench) and bench.now_ns - bench.injected_ns < GIVE_UP_S * 1e9:
            bench.tick()
        delay = (bench.acted_ns - bench.injected_ns) * 1e-9 if row.done(bench) else np.inf
        bench.run(60 if row.reasons else 200)
        state, latched = bench.guard.state, bench.latched
        good = latched in row.reasons and state in row.ends and bench.guard.motion.is_at_rest()
        if not (good if row.reasons else state in row.ends and latched is None):
            wrong.append(f"{state.name} {latched.name if latched is not None else ''}")
        elif not row.after(bench):
            wrong.append("afterward")
        delays.append(delay)
        goals = [what for _, kind, what in bench.arrived if kind == "goals"]
        exclude = bench.joint if row.follows else None
        violations += count_violations(goals, bench.spec.limits, PERIOD_S, exclude)
    return summary(row.number, row.fault, row.reaction, delays, row.bound_s, violations, wrong)


def summary(
    number: str,
    fault: str,
    reaction: str,
    delays: list[float],
    bound_s: float | None,
    violations: int,
    wrong: list[str],
) -> dict[str, Any]:
    """Return the results of a row.

    In the results, `late` is the number of repeats whose reaction came after the bound. `other` is
    the number of repeats with another reaction than the expected one.
    """
    timed = [delay for delay in delays if np.isfinite(delay)] if bound_s is not None else []
    return {
        "row": number,
        "fault": fault,
        "reaction": reaction,
        "repeats": len(delays),
        "median_ms": round(1e3 * float(np.median(timed)), 1) if timed else None,
        "max_ms": round(1e3 * max(timed), 1) if timed else None,
        "bound_ms": None if bound_s is None else round(1e3 * bound_s, 1),
        "late": 0 if bound_s is None else sum(not delay <= bound_s for delay in delays),
        "other": len(wrong),
        "others": sorted(set(wrong)),
        "commands_outside_limits": violations,
    }


ON = (State.RUNNING,)  # end state if the robot continues
SERVO, BUS = (Reason.SERVO_ERROR,), (Reason.BUS_LOST,)


def _nan(b: Bench) -> None:
    place, value = int(b.chance.integers(2, HORIZON)), b.chance.choice([np.nan, np.inf, -np.inf])

    def change(goals: np.ndarray) -> np.ndarray:
        goals[place, b.joint] = value
        return goals

    b.change_goals(change)


def _shift(b: Bench, far_rad: float) -> None:
    shift = np.zeros(5)
    shift[b.joint] = far_rad * b.chance.choice([-1, 1])
    b.change_goals(lambda goals: goals + shift)


def _shift_outside(b: Bench) -> None:
    """Shift the actions of a joint by 3 rad, to the side on which they leave its limits."""
    shift = np.zeros(5)
    shift[b.joint] = 3.0 if b.policy.middle[b.joint] >= 0 else -3.0
    b.change_goals(lambda goals: goals + shift)


def _jump(b: Bench) -> None:
    b.joint = 0  # no motion of the waist leaves the workspace
    _shift(b, 1.0)


def _alternate(b: Bench) -> None:
    shift = 0.8 * (-1.0) ** np.arange(HORIZON)[:, None]
    b.change_goals(lambda goals: goals + shift)


def _stretch(b: Bench) -> None:
    """Stretch the arm forward. The tip would leave the workspace; the joints keep their limits."""
    b.change_goals(lambda goals: 0 * goals + np.array([0.0, 1.2, 0.6, 0.0, 0.0]))


def _stop_inference(b: Bench) -> None:
    b.infers = False


def _repeat_chunk(b: Bench) -> None:
    """Send the number of the last or of an earlier chunk again, with other actions."""
    old, b.mark = b.schedule.chunk, b.schedule.counts.disordered_chunks
    assert old is not None
    record, age = b.chunks.record, int(b.chance.integers(2))
    seq = b.inference.seq
    record["seq"], record["observed_ns"] = old.seq - age, old.observed_ns - age * 160_000_000
    record["actions"] = old.actions + 1.0
    b.chunks.push()
    b.inference.seq, b.infers = seq, False


def _dropped(b: Bench) -> bool:
    b.infers = True
    return b.schedule.counts.disordered_chunks > b.mark


def _late_once(b: Bench) -> None:
    b.event("late_once", seconds=0.005 + 0.011 * (b.joint + 1))


def _has_recovered(b: Bench) -> bool:
    """Return True if the late answer was dropped and the next reading is current."""
    row = b.ticks.record
    b.mark = b.mark or int(row["code"])
    return bool(b.mark and row["code"] == 0 and _is_current(b))


def _is_current(b: Bench) -> bool:
    """Return True if the newest reading is current.

    No joint is faster than 0.6 rad/s, so a current reading differs little from the true position.
    """
    return bool(np.abs(b.ticks.record["q"] - b.line.physics.q).max() < 0.02)


def _jam(b: Bench) -> None:
    b.line.physics.model.dof_damping[:5] *= np.where(np.arange(5) == b.joint, 1e4, 1)


def _delay(b: Bench, periods: float) -> None:
    b.clock.late_ns = round(periods * PERIOD_S * 1e9)


def _miss_deadlines(b: Bench) -> None:
    """Miss every eighth deadline from now on."""
    step, count = b.loop.step, [0]

    def late_step() -> None:
        count[0] += 1
        if count[0] % 8 == 0 and not b.stopping:
            _delay(b, 0.8)
        step()

    b.loop.step = late_step  # type: ignore[method-assign]


def _wall_clock(b: Bench) -> None:
    b.clock.wall_jump_ns = int(b.chance.choice([-3600, 3600])) * 10**9


def _silence_device(b: Bench) -> None:
    """Take over, and send one target of the device. Then the device is silent."""
    b.inputs.held = Request(take=True)
    b.tick()
    b.injected_ns = b.now_ns
    b.inputs.held = Request(target=b.ticks.record["q"].tolist(), target_ns=b.now_ns)


def _take_over(b: Bench) -> None:
    position = b.ticks.record["q"].tolist()
    b.inputs.held, b.inputs.speaks = Request(take=True, target=position), True


def _suspend(b: Bench) -> None:
    """Suspend the computer for 2 s. The time of the fault is the time of the wake-up."""
    b.clock.late_ns = 2 * 10**9
    b.injected_ns = b.loop.row["deadline_ns"] + b.loop.period_ns + 2 * 10**9


def _send_request(**what: Any) -> Callable[[Bench], None]:
    def request(b: Bench) -> None:
        b.inputs.held = Request(**what)

    return request


def _servo(kind: str, **what: Any) -> Callable[[Bench], None]:
    return lambda b: b.event(kind, id=b.joint + 1, **what)


def _missing(b: Bench) -> None:
    b.faults(missing=(b.joint + 1,))


def _encoder_jumps(b: Bench, ticks: int) -> None:
    b.mark = len(b.arrived)
    b.start_q = b.line.physics.q.copy()
    b.faults(wrap={b.joint + 1: ticks})


def _did_not_follow_encoder(b: Bench) -> bool:
    """Return True if the joint did not follow its encoder, was named, and is not armed again."""
    j, physics = b.joint, b.line.physics
    still = abs(physics.torque[j]) < 0.8 * physics.max_torque[j] and b.guard.culprits == 1 << j
    near = abs(physics.q[j] - b.start_q[j]) < 0.6
    b.run(40)
    for request in (Request(typed=RE_ARM), Request(arm=True)):
        b.inputs.requests.append(request)
        b.run(3)
    return bool(still and near) and b.guard.state is State.CONNECTED


def _inject_while_moving(b: Bench, **faults: Any) -> None:
    """Inject a fault while the joint's goal moves. At rest the fault could not be detected."""
    while abs(b.guard.motion.v[b.joint]) < SLOW_RAD_S:
        b.tick()
    b.injected_ns = b.inject_at_random(lambda: b.faults(**dict.fromkeys(faults, (b.joint + 1,))))


def _suspend_clock(b: Bench) -> None:
    """Suspend the computer for 10 s, including its clock. The loop misses no deadline."""
    b.clock.asleep_ns += 10 * 10**9


def _push(b: Bench) -> None:
    """Push a robot that holds, with 5 N m for 0.05 s."""
    b.inputs.requests.append(Request(finish=True))
    b.run(120)
    b.joint, b.start_q, b.fastest = 0, b.line.physics.q.copy(), 0.0
    b.event("push", index=0, torque=5.0)
    b.run(5)
    b.event("push", index=0, torque=0.0)
    b.injected_ns = b.now_ns


def _push_is_over(b: Bench) -> bool:
    """Return True once 1.5 s have passed since the push. Record the highest speed of the return."""
    b.fastest = max(b.fastest, -float(b.line.physics.dq[0]))
    return b.now_ns - b.injected_ns > 1.5e9


def _returned_slowly(b: Bench) -> bool:
    return b.fastest < b.spec.limits.velocity[0]


def _answers(change: Callable[[Reading], Any]) -> Callable[[Bench], None]:
    """Change the adapter's return value of `read` from now on."""

    def inject(b: Bench) -> None:
        read = b.robot.read
        b.robot.read = lambda: change(read())  # type: ignore[method-assign, return-value]

    return inject


def _faults(**what: Any) -> Callable[[Bench], None]:
    return lambda b: b.faults(**what)


def _in_workspace(b: Bench) -> bool:
    box = b.spec.workspace
    assert box is not None
    return bool(((b.tip >= box.low_m) & (b.tip <= box.high_m)).all())


def _replugged(b: Bench) -> bool:
    """Return True if the robot stays in FAULT after it is plugged in again."""
    b.faults()
    b.run(50)
    return b.guard.state is State.FAULT


CLIPPED = (Reason.CLIPPED_TOO_LONG,)
HOLD, FAULT, ESTOP = (State.HOLD,), (State.FAULT,), (State.ESTOP,)
P = PERIOD_S
TIMEOUT_S, AGE_S = 0.01, 0.05  # from configs/robot/desk.yaml
SLOW_RAD_S = 0.15  # if the goals are slower than this, a stuck sensor is not detected within 0.2 s
ANSWERS: dict[str, Callable[[Reading], Any]] = {
    "nothing": lambda reading: None,
    "a list": lambda reading: replace(reading, q=reading.q.tolist()),
    "NaN": lambda reading: replace(reading, q=reading.q * np.nan),
    "the wall clock's time": lambda reading: replace(reading, middle_ns=reading.middle_ns + 10**18),
    "by an exception": lambda reading: reading.q[7],
}
# duration of reading five servos; a change during the reading appears only in the next one
READ_S = 0.003
ROWS = (
    Row(
        "1",
        "NaN or infinity in an action",
        "SOFT_STOP",
        P,
        _nan,
        reasons=(Reason.TARGET_NOT_FINITE,),
        ends=HOLD,
        at_once=False,
    ),
    Row(
        *("2", "actions 3 rad off, beyond a limit", "held inside; SOFT_STOP", 0.5, _shift_outside),
        at_once=False,
        reasons=(*CLIPPED, Reason.WORKSPACE),
        ends=HOLD,
    ),
    Row(
        "3",
        "actions leap by 1 rad",
        "a ramp; goes on",
        None,
        _jump,
        lambda b: True,
        ends=ON,
        at_once=False,
    ),
    Row(
        "4",
        "actions shake by 0.8 rad",
        "SOFT_STOP",
        0.5,
        _alternate,
        reasons=(*CLIPPED, Reason.WORKSPACE),
        ends=HOLD,
        at_once=False,
    ),
    Row(
        *(
            "5, 6",
            "inference silent",
            "the plan's end, SOFT_STOP, HOLD",
            PLAN_S + STOP_S,
            _stop_inference,
        ),
        done=lambda b: b.guard.state is State.HOLD,
        reasons=(Reason.PLAN_EXHAUSTED,),
        ends=HOLD,
    ),
    Row("7", "chunk repeated or older", "dropped; goes on", P, _repeat_chunk, _dropped, ends=ON),
    Row(
        *("8", "measurements stand still", "FAULT", AGE_S + P, _faults(frozen=(1, 2, 3, 4, 5))),
        reasons=(*BUS, Reason.READING_STALE),
    ),
    Row(
        *("9", "servo missing", "FAULT by the second reading", TIMEOUT_S + 2 * P, _missing),
        reasons=BUS,
        ends=FAULT,
    ),
    Row("10", "2 % of answers lost", "asked again; goes on", None, _faults(drop=0.02), ends=ON),
    Row("10", "40 % of answers lost", "FAULT", 0.2, _faults(drop=0.4), reasons=BUS, ends=FAULT),
    Row(
        "11",
        "2 % of answers broken",
        "asked again; goes on",
        None,
        _faults(corrupt=0.02),
        ends=ON,
    ),
    Row(
        "11",
        "40 % of answers broken",
        "FAULT",
        0.2,
        _faults(corrupt=0.4),
        reasons=BUS,
        ends=FAULT,
    ),
    Row(
        *("12", "an answer late by 16 to 60 ms", "dropped; the next one is the present's", 3 * P),
        *(_late_once, _has_recovered),
        ends=ON,
        after=_is_current,
    ),
    Row(
        *("13", "unplugged, plugged in again", "FAULT; stays", 2 * P, _faults(unplugged=True)),
        reasons=BUS,
        ends=FAULT,
        after=_replugged,
    ),
    Row("14", "servo reboots", "FAULT", 0.1, _servo("reboot"), reasons=(*BUS, *SERVO), ends=FAULT),
    Row("14", "torque drops", "FAULT", 0.1, _servo("torque_off"), reasons=SERVO, ends=FAULT),
    Row(
        *("15", "overload", "FAULT", P + READ_S, _servo("fail", bits=0x20)),
        reasons=SERVO,
        ends=FAULT,
    ),
    Row(
        "15",
        "90 °C",
        "FAULT",
        2 * P + 0.02,
        _servo("heat", celsius=90.0),
        reasons=SERVO,
        ends=FAULT,
    ),
    *(
        Row(
            # a second reading must confirm the jump, so the bound includes two readings
            *("16", f"encoder leaps by {ticks} ticks", "FAULT; is not armed unasked"),
            P + 2 * READ_S,
            partial(_encoder_jumps, ticks=ticks),
            reasons=(Reason.ENCODER_LEAPT,),
            ends=FAULT,
            after=_did_not_follow_encoder,
            follows=True,
        )
        for ticks in (200, 2048, 4096)
    ),
    *(
        Row(
            *("24", f"{what} stuck while the goal moves", "FAULT that names the joint", 0.2),
            partial(_inject_while_moving, **{kind: True}),
            at_once=False,
            reasons=(Reason.SENSOR_STUCK,),
            ends=FAULT,
            after=lambda b: b.guard.culprits == 1 << b.joint,
        )
        for kind, what in (("stuck", "measurements"), ("blind", "encoder, for the servo too,"))
    ),
    Row(
        *("25", "pushed by hand while it holds, let go", "gives way; no snap", None, _push),
        _push_is_over,
        at_once=False,
        ends=(*HOLD, *FAULT),
        reasons=(Reason.CURRENT_EXTREME, Reason.CURRENT_HIGH, Reason.VELOCITY_MEASURED),
        after=_returned_slowly,
        follows=True,
    ),
    *(
        Row(
            *("26", f"adapter answers {what}", "FAULT", P + READ_S, _answers(change)),
            reasons=(Reason.ADAPTER_INVALID,),
            ends=FAULT,
        )
        for what, change in ANSWERS.items()
    ),
    Row(
        *("17", "a joint jams", "SOFT_STOP", 0.1, _jam),
        reasons=(Reason.CURRENT_HIGH, Reason.CURRENT_EXTREME, Reason.TRACKING_ERROR),
    ),
    Row("18", "wall clock leaps by an hour", "none", None, _wall_clock, lambda b: True, ends=ON),
    Row(
        *("18", "suspended for 2 s", "SOFT_STOP", P, _suspend),
        at_once=False,
        reasons=(Reason.CLOCK_JUMPED, *BUS, *SERVO),
        ends=(*HOLD, *FAULT),
    ),
    Row(
        *("18", "suspended for 10 s, clock and all", "FAULT", P + READ_S, _suspend_clock),
        reasons=(Reason.SUSPENDED,),
        ends=FAULT,
    ),
    Row(
        *("19", "every eighth deadline missed", "SOFT_STOP", 1.0, _miss_deadlines),
        reasons=(Reason.DEADLINES_MISSED,),
        ends=HOLD,
    ),
    Row(
        *("22", "emergency stop", "ESTOP", P, _send_request(estop=True)),
        reasons=(Reason.ESTOP_PRESSED,),
        ends=ESTOP,
    ),
    Row(
        *("22", "a person takes over", "TAKEOVER", P, _take_over),
        done=lambda b: b.guard.state is State.TAKEOVER,
        ends=(State.TAKEOVER,),
    ),
    Row(
        *("22", "the takeover's device is silent", "SOFT_STOP", 0.1 + P, _silence_device),
        at_once=False,
        done=lambda b: b.guard.state not in (State.TAKEOVER, State.RUNNING),
        reasons=(Reason.TELEOP_LOST,),
        ends=HOLD,
    ),
    Row(
        *("23", "the plan leaves the workspace", "stays inside; SOFT_STOP", None, _stretch),
        at_once=False,
        reasons=(Reason.WORKSPACE,),
        ends=HOLD,
        after=_in_workspace,
    ),
)
