"""The failure matrix's rows on one simulated clock: bus client, check, loop and inference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.robot.stepped import PERIOD_S, Stepped, outside
from envs.suites.arm import Reach
from offline_rl.data.env_spec import spec_of
from policies import Spec
from real_robot.control.loop import Request
from real_robot.robot import Reading
from real_robot.safety.states import RE_ARM, Reason, State

HORIZON, EXECUTED, STEP_S = 8, 4, 0.04
PLAN_S = (HORIZON + 1) * STEP_S  # the longest that a plan lasts after its observation
STOP_S = 2 / 30 + 30 / 2000 + 2 * PERIOD_S  # v / a + a / j of the desk arm, and two ticks
GIVE_UP_S = 3.0


class Swing:
    """Moves every joint to and fro about where it began, well inside all limits."""

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
        self.spoil: Callable[[np.ndarray], np.ndarray] | None = None  # of goals [H, J] rad

    def act(self, observation: Any, state: Any = None, reward: Any = None) -> Any:
        seen_s = int(self.bench.ticks.record["measured_ns"]) * 1e-9
        goals = self.path(seen_s + STEP_S * np.arange(HORIZON))
        if self.spoil is not None:
            goals = self.spoil(goals)
        low, high = self.spec.action_bounds
        return (goals - (low + high) / 2) / ((high - low) / 2), state

    def path(self, times_s: np.ndarray) -> np.ndarray:
        since = times_s[:, None] - self.bench.start_s
        speed = np.array([1.5, 2.0, 1.2, 2.5, 3.0])
        return self.middle + 0.2 * np.sin(speed * since)


class Bench(Stepped):
    """Armed, and following the swing for a random while."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.policy = Swing()
        self.policy.bench = self
        super().__init__(folder, self.policy, seed)
        self.arm()
        self.policy.middle = np.array(self.guard.motion.q)
        self.start_s = self.now_ns * 1e-9
        self.told.requests.append(Request(start=True))
        self.run(int(self.chance.integers(30, 130)))
        self.injected_ns = 0
        self.joint = int(self.chance.integers(5))
        self.mark = 0  # a row's own
        self.start_q, self.fastest = np.zeros(5), 0.0

    def spoil(self, change: Callable[[np.ndarray], np.ndarray]) -> None:
        """The fault's moment is the next answer's."""
        self.policy.spoil = change
        before = self.answered_ns
        while self.answered_ns == before:
            self.tick()
        self.injected_ns = self.answered_ns

    @property
    def stopping(self) -> bool:
        return self.guard.state is not State.RUNNING

    @property
    def latched(self) -> Reason | None:
        machine = self.guard.machine
        return machine.pending if machine.latched is None else machine.latched


@dataclass(frozen=True)
class Row:
    """A fault, what must come of it, and within which time."""

    number: str
    fault: str
    reaction: str
    bound_s: float | None  # None: there is nothing to be timed
    inject: Callable[[Bench], Any]
    done: Callable[[Bench], bool] = lambda b: b.stopping
    reasons: tuple[Reason, ...] = ()  # one of these is latched; none: it goes on
    ends: tuple[State, ...] = (State.HOLD, State.FAULT, State.ESTOP)
    after: Callable[[Bench], bool] = lambda b: True  # what must hold in the end
    follows: bool = False  # the joint's goal goes to where it is measured, whatever its limits
    at_once: bool = True  # else `inject` takes its time, and says when it was


def run(row: Row, repeats: int, folder: Path) -> dict[str, Any]:
    """The row of the page."""
    seed = int.from_bytes(row.number.encode(), "big") % 2**31
    delays, wrong, broken = list[float](), list[str](), 0
    for repeat in range(repeats):
        bench = Bench(folder, seed + repeat)
        if row.at_once:
            bench.injected_ns = bench.surprise(partial(row.inject, bench))
        else:
            row.inject(bench)
        while not row.done(bench) and bench.now_ns - bench.injected_ns < GIVE_UP_S * 1e9:
            bench.tick()
        delay = (bench.acted_ns - bench.injected_ns) * 1e-9 if row.done(bench) else np.inf
        bench.run(60 if row.reasons else 200)
        state, latched = bench.guard.state, bench.latched
        good = latched in row.reasons and state in row.ends and bench.guard.motion.stands()
        if not (good if row.reasons else state in row.ends and latched is None):
            wrong.append(f"{state.name} {latched.name if latched is not None else ''}")
        elif not row.after(bench):
            wrong.append("afterward")
        delays.append(delay)
        goals = [what for _, kind, what in bench.arrived if kind == "goals"]
        but = bench.joint if row.follows else None
        broken += outside(goals, bench.spec.limits, PERIOD_S, but)
    return summary(row.number, row.fault, row.reaction, delays, row.bound_s, broken, wrong)


def summary(
    number: str,
    fault: str,
    reaction: str,
    delays: list[float],
    bound_s: float | None,
    broken: int,
    wrong: list[str],
) -> dict[str, Any]:
    """late: beyond the bound; other: repeats that reacted in another way than they must."""
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
        "commands_outside_limits": broken,
    }


ON = (State.RUNNING,)  # where nothing stops it
SERVO, BUS = (Reason.SERVO_ERROR,), (Reason.BUS_LOST,)


def _nan(b: Bench) -> None:
    place, bad = int(b.chance.integers(2, HORIZON)), b.chance.choice([np.nan, np.inf, -np.inf])

    def change(goals: np.ndarray) -> np.ndarray:
        goals[place, b.joint] = bad
        return goals

    b.spoil(change)


def _shift(b: Bench, far_rad: float) -> None:
    shift = np.zeros(5)
    shift[b.joint] = far_rad * b.chance.choice([-1, 1])
    b.spoil(lambda goals: goals + shift)


def _beyond(b: Bench) -> None:
    """On that side on which 3 rad more lead out of the joint's limits."""
    shift = np.zeros(5)
    shift[b.joint] = 3.0 if b.policy.middle[b.joint] >= 0 else -3.0
    b.spoil(lambda goals: goals + shift)


def _leap(b: Bench) -> None:
    b.joint = 0  # the waist, which leads nowhere out of the workspace
    _shift(b, 1.0)


def _shake(b: Bench) -> None:
    shake = 0.8 * (-1.0) ** np.arange(HORIZON)[:, None]
    b.spoil(lambda goals: goals + shake)


def _stretch(b: Bench) -> None:
    """Forward, where the tip would leave the box, though no joint its limits."""
    b.spoil(lambda goals: 0 * goals + np.array([0.0, 1.2, 0.6, 0.0, 0.0]))


def _dead(b: Bench) -> None:
    b.infers = False


def _again(b: Bench) -> None:
    """An older or a repeated chunk, as if a queue had kept it, with other goals."""
    old, b.mark = b.schedule.chunk, b.schedule.counts.disordered_chunks
    assert old is not None
    record, back = b.chunks.record, int(b.chance.integers(2))
    seq = b.inference.seq
    record["seq"], record["observed_ns"] = old.seq - back, old.observed_ns - back * 160_000_000
    record["actions"] = old.actions + 1.0
    b.chunks.push()
    b.inference.seq, b.infers = seq, False


def _dropped(b: Bench) -> bool:
    b.infers = True
    return b.schedule.counts.disordered_chunks > b.mark


def _late_once(b: Bench) -> None:
    b.event("late_once", seconds=0.005 + 0.011 * (b.joint + 1))


def _in_step(b: Bench) -> bool:
    """The late answer was dropped, and the next reading is of the present again."""
    row = b.ticks.record
    b.mark = b.mark or int(row["code"])
    return bool(b.mark and row["code"] == 0 and _true(b))


def _true(b: Bench) -> bool:
    """Whether the newest reading is of now: no joint is faster than 0.6 rad/s."""
    return bool(np.abs(b.ticks.record["q"] - b.line.physics.q).max() < 0.02)


def _jam(b: Bench) -> None:
    b.line.physics.model.dof_damping[:5] *= np.where(np.arange(5) == b.joint, 1e4, 1)


def _late(b: Bench, periods: float) -> None:
    b.clock.late_ns = round(periods * PERIOD_S * 1e9)


def _hog(b: Bench) -> None:
    """Every eighth deadline is missed from now on."""
    step, count = b.loop.step, [0]

    def late_step() -> None:
        count[0] += 1
        if count[0] % 8 == 0 and not b.stopping:
            _late(b, 0.8)
        step()

    b.loop.step = late_step  # type: ignore[method-assign]


def _wall_clock(b: Bench) -> None:
    b.clock.wall_jump_ns = int(b.chance.choice([-3600, 3600])) * 10**9


def _silent(b: Bench) -> None:
    """A person took over, and the device has spoken for the last time."""
    b.told.held = Request(take=True)
    b.tick()
    b.injected_ns = b.now_ns
    b.told.held = Request(target=b.ticks.record["q"].tolist(), target_ns=b.now_ns)


def _take(b: Bench) -> None:
    here = b.ticks.record["q"].tolist()
    b.told.held, b.told.speaks = Request(take=True, target=here), True


def _suspend(b: Bench) -> None:
    """The fault's moment is when the computer is awake again."""
    b.clock.late_ns = 2 * 10**9
    b.injected_ns = b.loop.row["deadline_ns"] + b.loop.period_ns + 2 * 10**9


def _wish(**what: Any) -> Callable[[Bench], None]:
    def request(b: Bench) -> None:
        b.told.held = Request(**what)

    return request


def _servo(kind: str, **what: Any) -> Callable[[Bench], None]:
    return lambda b: b.event(kind, id=b.joint + 1, **what)


def _missing(b: Bench) -> None:
    b.faults(missing=(b.joint + 1,))


def _encoder_leaps(b: Bench, ticks: int) -> None:
    b.mark = len(b.arrived)
    b.start_q = b.line.physics.q.copy()
    b.faults(wrap={b.joint + 1: ticks})


def _presses_on_nothing(b: Bench) -> bool:
    """The joint did not go with its encoder, is not armed unasked, and names itself."""
    j, physics = b.joint, b.line.physics
    still = abs(physics.torque[j]) < 0.8 * physics.max_torque[j] and b.guard.culprits == 1 << j
    near = abs(physics.q[j] - b.start_q[j]) < 0.6
    b.run(40)
    for request in (Request(typed=RE_ARM), Request(arm=True)):
        b.told.requests.append(request)
        b.run(3)
    return bool(still and near) and b.guard.state is State.CONNECTED


def _moving(b: Bench, **faults: Any) -> None:
    """The fault's moment is one at which the joint's goal moves: at rest nothing tells it."""
    while abs(b.guard.motion.v[b.joint]) < SLOW_RAD_S:
        b.tick()
    b.injected_ns = b.surprise(lambda: b.faults(**dict.fromkeys(faults, (b.joint + 1,))))


def _sleep(b: Bench) -> None:
    """CLOCK_MONOTONIC stands still: the loop misses no deadline."""
    b.clock.asleep_ns += 10 * 10**9


def _push(b: Bench) -> None:
    """5 N m for 0.05 s against a robot that holds; the time is that to the way back's end."""
    b.told.requests.append(Request(finish=True))
    b.run(120)
    b.joint, b.start_q, b.fastest = 0, b.line.physics.q.copy(), 0.0
    b.event("push", index=0, torque=5.0)
    b.run(5)
    b.event("push", index=0, torque=0.0)
    b.injected_ns = b.now_ns


def _let_go(b: Bench) -> bool:
    """It stands again: where it was, or, if the push has stopped it, where it was pushed."""
    b.fastest = max(b.fastest, -float(b.line.physics.dq[0]))
    return b.now_ns - b.injected_ns > 1.5e9


def _slowly(b: Bench) -> bool:
    return b.fastest < b.spec.limits.velocity[0]


def _answers(change: Callable[[Reading], Any]) -> Callable[[Bench], None]:
    """The adapter answers something else to `read` from now on."""

    def inject(b: Bench) -> None:
        read = b.robot.read
        b.robot.read = lambda: change(read())  # type: ignore[method-assign, return-value]

    return inject


def _faults(**what: Any) -> Callable[[Bench], None]:
    return lambda b: b.faults(**what)


def _inside(b: Bench) -> bool:
    box = b.spec.workspace
    assert box is not None
    return bool(((b.tip >= box.low_m) & (b.tip <= box.high_m)).all())


def _replugged(b: Bench) -> bool:
    """It does not go on by itself when the plug is in again."""
    b.faults()
    b.run(50)
    return b.guard.state is State.FAULT


CLIPPED = (Reason.CLIPPED_TOO_LONG,)
HOLD, FAULT, ESTOP = (State.HOLD,), (State.FAULT,), (State.ESTOP,)
P = PERIOD_S
TIMEOUT_S, AGE_S = 0.01, 0.05  # of configs/robot/desk.yaml
SLOW_RAD_S = 0.15  # slower goals do not tell a stuck sensor from a good one in 0.2 s
ANSWERS: dict[str, Callable[[Reading], Any]] = {
    "nothing": lambda reading: None,
    "a list": lambda reading: replace(reading, q=reading.q.tolist()),
    "NaN": lambda reading: replace(reading, q=reading.q * np.nan),
    "the wall clock's time": lambda reading: replace(reading, middle_ns=reading.middle_ns + 10**18),
    "by an exception": lambda reading: reading.q[7],
}
READ_S = 0.003  # of five servos: what comes after one has answered is in the next reading
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
        *("2", "actions 3 rad off, beyond a limit", "held inside; SOFT_STOP", 0.5, _beyond),
        at_once=False,
        reasons=(*CLIPPED, Reason.WORKSPACE),
        ends=HOLD,
    ),
    Row(
        "3",
        "actions leap by 1 rad",
        "a ramp; goes on",
        None,
        _leap,
        lambda b: True,
        ends=ON,
        at_once=False,
    ),
    Row(
        "4",
        "actions shake by 0.8 rad",
        "SOFT_STOP",
        0.5,
        _shake,
        reasons=(*CLIPPED, Reason.WORKSPACE),
        ends=HOLD,
        at_once=False,
    ),
    Row(
        *("5, 6", "inference silent", "the plan's end, SOFT_STOP, HOLD", PLAN_S + STOP_S, _dead),
        done=lambda b: b.guard.state is State.HOLD,
        reasons=(Reason.PLAN_EXHAUSTED,),
        ends=HOLD,
    ),
    Row("7", "chunk repeated or older", "dropped; goes on", P, _again, _dropped, ends=ON),
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
        "11", "2 % of answers broken", "asked again; goes on", None, _faults(corrupt=0.02), ends=ON
    ),
    Row(
        "11", "40 % of answers broken", "FAULT", 0.2, _faults(corrupt=0.4), reasons=BUS, ends=FAULT
    ),
    Row(
        *("12", "an answer late by 16 to 60 ms", "dropped; the next one is the present's", 3 * P),
        *(_late_once, _in_step),
        ends=ON,
        after=_true,
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
            # a second reading confirms it
            *("16", f"encoder leaps by {ticks} ticks", "FAULT; is not armed unasked"),
            P + 2 * READ_S,
            partial(_encoder_leaps, ticks=ticks),
            reasons=(Reason.ENCODER_LEAPT,),
            ends=FAULT,
            after=_presses_on_nothing,
            follows=True,
        )
        for ticks in (200, 2048, 4096)
    ),
    *(
        Row(
            *("24", f"{what} stuck while the goal moves", "FAULT that names the joint", 0.2),
            partial(_moving, **{kind: True}),
            at_once=False,
            reasons=(Reason.SENSOR_STUCK,),
            ends=FAULT,
            after=lambda b: b.guard.culprits == 1 << b.joint,
        )
        for kind, what in (("stuck", "measurements"), ("blind", "encoder, for the servo too,"))
    ),
    Row(
        *("25", "pushed by hand while it holds, let go", "gives way; no snap", None, _push),
        _let_go,
        at_once=False,
        ends=(*HOLD, *FAULT),
        reasons=(Reason.CURRENT_EXTREME, Reason.CURRENT_HIGH, Reason.VELOCITY_MEASURED),
        after=_slowly,
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
        *("18", "suspended for 10 s, clock and all", "FAULT", P + READ_S, _sleep),
        reasons=(Reason.SUSPENDED,),
        ends=FAULT,
    ),
    Row(
        *("19", "every eighth deadline missed", "SOFT_STOP", 1.0, _hog),
        reasons=(Reason.DEADLINES_MISSED,),
        ends=HOLD,
    ),
    Row(
        *("22", "emergency stop", "ESTOP", P, _wish(estop=True)),
        reasons=(Reason.ESTOP_PRESSED,),
        ends=ESTOP,
    ),
    Row(
        *("22", "a person takes over", "TAKEOVER", P, _take),
        done=lambda b: b.guard.state is State.TAKEOVER,
        ends=(State.TAKEOVER,),
    ),
    Row(
        *("22", "the takeover's device is silent", "SOFT_STOP", 0.1 + P, _silent),
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
        after=_inside,
    ),
)
