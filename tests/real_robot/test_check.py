"""`robot check`: a bundle that does not fit is refused, and nothing is sent."""

import time
from dataclasses import replace

import numpy as np
import pytest
from robots_in_memory import Clock, MemoryRobot, spec

from offline_rl.utils.errors import UserError
from policies import Bundle, Normalizer, Spec
from policies import Channel as PolicyChannel
from policies.bundle import write
from policies.golden import seal
from policies.heads.decision_transformer import DecisionTransformer
from policies.heads.deterministic import DeterministicActor
from real_robot import check as module
from real_robot.check import check
from real_robot.control.control import guard_of
from real_robot.control.observing import goals, observer
from real_robot.control.session import Session
from real_robot.robot import Channel, Code
from real_robot.rows import row_type
from real_robot.running import read_limits

NAMES = ("elbow.q", "shoulder.q", "shoulder.dq", "puck.x", "puck.y", "force")
UNITS = ("rad", "rad", "rad/s", "m", "m", "N")
FITTING = Spec(
    (PolicyChannel("state", (6,), units=UNITS, names=NAMES),),
    action_dim=2,
    action_low=(-1.5, -2.0),
    action_high=(1.5, 2.0),
    rate_hz=20.0,
    action_names=("elbow", "shoulder"),
    action_units=("rad", "rad"),
)


def observing(*, units=UNITS, names=NAMES) -> dict:
    """Return a change of the policy's observations."""
    return {"channels": (PolicyChannel("state", (6,), units=units, names=names),)}


CHANNELS = {"puck": Channel((2,), "m"), "force": Channel((1,), "N")}


class TrackedRobot(MemoryRobot):
    """Robot with a tracker. The simulated clock follows the wall clock."""

    def read(self):
        self.clock.now = module.time.monotonic_ns()
        return replace(
            super().read(), channels={"puck": np.array([0.1, 0.2]), "force": np.array([3.0])}
        )


def robot(**changes) -> TrackedRobot:
    robot_spec = replace(spec(), channels=CHANNELS, rate_hz=2000.0)
    return TrackedRobot(Clock(), replace(robot_spec, **changes))


def bundle(tmp_path, **changes):
    chosen = replace(FITTING, **changes)
    actor = DeterministicActor(chosen.observation_dim, chosen.action_dim, [4])
    weights = {name: value.numpy() for name, value in actor.state_dict().items()}
    same = Normalizer.identity(chosen.observation_shape)
    bundle_written = Bundle(chosen, "DeterministicActor", actor.arguments, weights, same)
    write(tmp_path / "b", seal(bundle_written))
    return tmp_path / "b"


def test_a_fitting_bundle_passes_and_nothing_is_sent(tmp_path):
    machine = robot()
    lines = check(machine, bundle(tmp_path))
    assert [line.name for line in lines] == [
        *("limits", "workspace", "names", "units", "rates", "output", "readings", "current")
    ]
    assert lines[-1].text == "measured and limited at every joint"
    assert machine.calls == ["connect", "close"]
    assert machine.arrived == []


def test_a_joint_whose_current_is_limited_and_not_measured_is_named():
    machine = robot()
    machine.current = np.array([np.nan, 0.1])
    assert check(machine, None)[-1].text == (
        "NOT CHECKED for shoulder (the robot does not measure it)"
    )
    limits = replace(machine.spec.limits, current_a=np.full(2, np.inf))
    machine.spec = replace(machine.spec, limits=limits)
    assert check(machine, None)[-1].text == (
        "NOT CHECKED for elbow (its limit is .inf); "
        "shoulder (the robot does not measure it, and its limit is .inf)"
    )


def test_a_return_conditioned_policy_is_refused(tmp_path):
    head = DecisionTransformer(
        6, 2, target_return=1.0, context_length=2, dim_model=8, num_layers=1, episode_steps=4
    )
    weights = {name: value.numpy() for name, value in head.state_dict().items()}
    same = Normalizer.identity(FITTING.observation_shape)
    bundle_written = Bundle(FITTING, "DecisionTransformer", head.arguments, weights, same)
    write(tmp_path / "b", seal(bundle_written))
    with pytest.raises(UserError, match="reads the rewards of its episode, but a robot"):
        check(robot(), tmp_path / "b", connect=False)


@pytest.mark.parametrize(
    ("offset", "says"),
    [(None, "states no offset"), (1.0, "due 1 step after"), (0.0, "due 0 steps after")],
)
def test_the_check_reports_the_offset_of_chunks(offset: float | None, says: str):
    finding = module._describe_offset(replace(FITTING, chunk_size=4, action_offset=offset))
    assert says in finding


DEGREES = {"action_low": (-90.0, -115.0), "action_high": (90.0, 115.0)}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"action_names": ("elbow", "hip")}, "a bundle for this robot"),
        ({"action_names": ()}, "does not name its actions"),
        ({"action_units": ()}, "does not state the units of its actions"),
        (observing(units=()), r"the unit of elbow\.q"),
        (observing(names=()), "does not name its observations"),
        (observing(names=(*NAMES[:5], "torque")), "does not measure"),
        (observing(units=("deg", *UNITS[1:])), r"elbow\.q in deg, .* measures it in rad"),
        (observing(units=(*UNITS[:3], "mm", *UNITS[4:])), r"puck\.x in mm, .* measures it in m"),
        ({"action_units": ("deg", "rad")}, "joint elbow is in deg, .* uses rad"),
        ({"action_mode": "delta"}, "changes of the last command"),
        (DEGREES, "degrees"),
        ({"action_low": (-1.5, -2.6)}, "joint shoulder: .* reach from -2.6"),
        ({"action_low": (), "action_high": ()}, "which positions its actions -1 and 1 stand for"),
        ({"rate_hz": None}, "how many actions per second"),
        ({"rate_hz": 4000.0}, "faster than the control loop"),
    ],
)
def test_a_bundle_that_does_not_fit_is_refused_before_anything_is_connected(
    tmp_path, changes, sentence: str
):
    machine = robot()
    with pytest.raises(UserError, match=sentence):
        check(machine, bundle(tmp_path, **changes))
    assert machine.calls == []


@pytest.mark.parametrize(
    ("rate_hz", "sentence"),
    [
        (999.0, "rate_hz is 999, expected 1000 to 4000, half to twice the 2000 Hz of two links"),
        (4001.0, "rate_hz is 4001"),
        (0.0, "rate_hz is 0,"),
        (np.nan, "rate_hz is nan"),
    ],
)
def test_a_rate_that_the_robot_is_not_made_for_is_refused(rate_hz: float, sentence: str):
    machine = robot()
    with pytest.raises(UserError, match=sentence):
        check(machine, None, rate_hz=rate_hz)
    assert machine.calls == []
    assert module.control_rate(machine.spec, 1000.0) == 1000.0
    assert module.control_rate(machine.spec, 4000.0) == 4000.0


def test_a_period_longer_than_the_maximum_age_of_readings_is_refused():
    machine = robot(rate_hz=50.0)  # its readings may be 30 ms old
    with pytest.raises(UserError, match=r"rate_hz is 30, a period of 33\.3 ms, .* 30 ms old"):
        check(machine, None, rate_hz=30.0)
    assert machine.calls == []
    assert module.control_rate(machine.spec, None) == 50.0


def test_joints_are_matched_by_name(tmp_path):
    """The first action is the elbow's; the robot's first joint is the shoulder."""
    machine = robot()
    to_goals = goals(FITTING, machine.spec)
    assert to_goals(np.array([[1.0, -1.0]], np.float32)).tolist() == [[-2.0, 1.5]]
    row = np.zeros((), row_type(machine.spec))
    row["q"], row["dq"] = [0.1, 0.2], [0.3, 0.4]
    row["channel.puck"], row["channel.force"] = [0.5, 0.6], 0.7
    observation = observer(FITTING, machine.spec)(row)
    assert observation == pytest.approx([0.2, 0.1, 0.3, 0.5, 0.6, 0.7])


@pytest.mark.parametrize(
    ("limit", "value", "sentence"),
    [
        ("position_high", 137.0, "elbow: position is 137 rad, .* degrees"),
        ("position_low", -137.0, "degrees"),
        ("velocity", 114.0, "elbow: velocity is 114 rad/s, .* degrees"),
    ],
)
def test_a_robots_own_file_in_degrees_is_refused(tmp_path, limit: str, value: float, sentence):
    machine = robot()
    machine.spec.limits[limit][1] = value
    with pytest.raises(UserError, match=sentence):
        check(machine, None)
    with pytest.raises(UserError, match=sentence):
        guard_of(Session(str(tmp_path), "two links", 200.0), machine)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ({"q": np.array([2.5, 0.0])}, r"shoulder is at 2\.500 rad"),
        ({"status": np.array([0, 4])}, "elbow reports OVER_TEMPERATURE"),
        ({"code": Code.LOST}, "does not answer"),
        ({"code": Code.TIMEOUT}, "answers too late"),
    ],
)
def test_a_robot_that_is_not_in_order_is_refused_and_closed(tmp_path, fault, sentence: str):
    machine = robot()
    for name, value in fault.items():
        setattr(machine, name, value)
    with pytest.raises(UserError, match=sentence):
        check(machine, bundle(tmp_path))
    assert machine.calls == ["connect", "close"]


def test_a_policy_with_missing_measurements_is_refused(tmp_path):
    machine, blind = robot(), np.array([0.1, np.nan])
    read = machine.read
    machine.read = lambda: replace(read(), channels={"puck": blind, "force": np.zeros(1)})
    with pytest.raises(UserError, match=r"has no value for puck\.y"):
        check(machine, bundle(tmp_path))


def test_a_fired_servo_watchdog_does_not_fail_the_check(tmp_path):
    machine = robot()
    machine.status = np.array([64, 64])
    check(machine, bundle(tmp_path))


def test_a_missing_limit_is_refused():
    machine = robot()
    machine.spec.limits.jerk[1] = np.nan
    with pytest.raises(UserError, match="joint elbow has no limit jerk"):
        check(machine, None)


def test_a_users_limits_can_only_tighten(tmp_path):
    machine = robot()
    merged = module.limits_of(machine.spec, {"velocity": {"shoulder": 0.5}})
    assert merged.velocity.tolist() == [0.5, 2.0]


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"speed": {"elbow": 1.0}}, "no limit 'speed'"),
        ({"velocity": {"elbow": 30}}, r"velocity of joint elbow is 30, looser than .* 2\."),
        ({"velocity": {"elbow": np.inf}}, "looser"),
        ({"velocity": {"elbow": np.nan}}, "velocity of joint elbow is nan, expected a number"),
        ({"velocity": {"elbow": "fast"}}, "expected a number"),
        ({"position_low": {"elbow": -2.1}}, "position_low of joint elbow is -2.1, looser"),
        ({"position_high": {"elbow": 2.1}}, "looser"),
        ({"stop_jerk": {"elbow": 1.0}}, "only the robot's file may set it"),
    ],
)
def test_a_looser_or_unknown_limit_of_a_user_is_refused(own, sentence):
    with pytest.raises(UserError, match=sentence):
        module.limits_of(robot().spec, own)


def test_control_uses_the_users_limits_and_rules(tmp_path):
    machine = robot()
    own = {"limits": {"velocity": {"shoulder": 0.5}}, "rules": {"trip_after_s": 1.0}}
    e = guard_of(Session(str(tmp_path), "two links", 200.0, **own), machine).envelope
    assert (e.velocity, e.rules.trip_after_s, e.period_s) == ([0.5, 2.0], 1.0, 1 / 200)
    for wrong in ({"velocity": {"shoulder": 3.0}}, {"speed": {"shoulder": 3.0}}):
        with pytest.raises(UserError, match="limits: "):
            guard_of(Session(str(tmp_path), "two links", 200.0, limits=wrong), machine)


@pytest.mark.parametrize(
    "rule",
    [
        *("watchdog_age_s: .inf", "bus_faults: .nan", "trip_after_s: -1", "velocity_ratio: 100"),
        *("current_window_s: 0", "trip_ratio: 1.0e9", "clock_step_periods: 1000", "bus_faults: 0"),
    ],
)
def test_no_rule_can_be_switched_off(tmp_path, rule: str):
    path = tmp_path / "mine.yaml"
    path.write_text(f"rules: {{{rule}}}\n")
    with pytest.raises(UserError, match=rf"mine\.yaml: .*{rule.partition(':')[0]}"):
        read_limits(str(path))


def test_a_users_file_of_limits_is_read_and_its_mistakes_are_named(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("velocity: {elbow: 0.5}\nrules: {trip_after_s: 1.0}\n")
    assert read_limits(str(path)) == ({"velocity": {"elbow": 0.5}}, {"trip_after_s": 1.0})
    path.write_text("rules: {trip_afters: 1.0}\n")
    with pytest.raises(UserError, match="trip_after_s"):
        read_limits(str(path))
    path.write_text("velocity: 0.5\n")
    with pytest.raises(UserError, match="a table for each limit"):
        read_limits(str(path))


def test_the_check_refuses_invalid_return_values_of_an_adapter():
    clock = Clock()
    robot = MemoryRobot(clock, spec())
    read = robot.read
    for wrong, sentence in (
        (lambda: None, "it is None, expected a Reading"),
        (lambda: replace(read(), q=[0.0, 0.0]), "q is a list, expected an array of 2 floats"),
        (lambda: replace(read(), middle_ns=time.time_ns()), "s ahead"),
        (lambda: 1 / 0, "ZeroDivisionError"),
    ):
        robot.read = wrong
        with pytest.raises(UserError, match=sentence):
            check(robot, None)
        assert robot.calls[-1] == "close"
    robot.spec = replace(robot.spec, resolution=[0.0, 0.0])
    with pytest.raises(UserError, match="resolution is a list, expected an array of 2 floats"):
        check(robot, None)
