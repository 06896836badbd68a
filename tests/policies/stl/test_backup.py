"""The backup policy: when it takes over, when it hands back, and which pairs are refused."""

from typing import Any

import numpy as np
import pytest
from steered import OBS, STEPS, base_bundle

from policies import BundleError, Player, Spec
from policies.bundle import Bundle
from policies.golden import seal
from policies.normalizer import Normalizer
from policies.policy import BundlePolicy
from policies.runtimes.network import make_network
from policies.stl.backup import BackupPolicy, Switch
from policies.stl.formula import FormulaError

Pair = tuple[BundlePolicy, BundlePolicy]


def constant(action: float, observations: int = 2, **changes: Any) -> BundlePolicy:
    """Return a policy whose action is always `action`."""
    weights = {
        "trunk.weights.0": np.zeros((observations, 1), np.float32),
        "trunk.biases.0": np.full(1, np.arctanh(action), np.float32),
    }
    arguments = {"observations": observations, "actions": 1, "hidden": []}
    identity = Normalizer.identity((observations,))
    spec = Spec((observations,), 1, **changes)
    made = seal(Bundle(spec, "DeterministicActor", arguments, weights, identity))
    return BundlePolicy(made, make_network(made))


@pytest.fixture(scope="module")
def pair() -> Pair:
    """A policy that always moves up, and a backup that always moves down."""
    return constant(0.5), constant(-0.5)


def test_the_backup_acts_below_the_margin_and_until_the_release(pair: Pair) -> None:
    """The robustness of always(x < 1) on the last 3 observations is 1 - max x."""
    switch = Switch("always(observation[0] < 1)", margin=0.2, release=0.4, window=3)
    player = Player(BackupPolicy(*pair, switch))
    seeds = np.arange(2)
    player.reset(seeds)
    draw = np.random.default_rng(0)
    x, recent, active, changes = np.zeros(2), [], np.zeros(2, bool), 0
    for _ in range(60):
        observation = np.stack([x, 0 * x], 1).astype(np.float32)
        action = player.step(observation)[:, 0]
        recent = [*recent, observation[:, 0].astype(np.float64)][-3:]
        margin = 1 - np.max(recent, axis=0)
        before, active = active, np.where(active, margin < 0.4, margin < 0.2)
        changes += int((before != active).sum())
        np.testing.assert_allclose(action, np.where(active, -0.5, 0.5), rtol=1e-6)
        x = x + 0.2 * action + draw.normal(0, 0.05, 2)
    assert changes > 8


def test_a_policy_that_takes_over_predicts_a_new_chunk_immediately() -> None:
    made = base_bundle()
    deployed, backup = (BundlePolicy(made, make_network(made)) for _ in range(2))
    policy = BackupPolicy(deployed, backup, Switch("observation[0] > 0", window=1))
    player = Player(policy)
    player.reset(7)
    calls: list[int] = []
    decide = backup.decide

    def counted(*arguments: Any) -> Any:
        calls.append(step)
        return decide(*arguments)

    backup.decide = counted  # type: ignore[method-assign]
    for step in range(8):
        player.step(np.full(OBS, -1 if step >= 4 else 1, np.float32))
    assert STEPS == 3
    assert calls == [0, 3, 4, 7]


def test_a_restored_episode_acts_as_if_it_had_not_been_interrupted(pair: Pair) -> None:
    policy = BackupPolicy(*pair, Switch("always(observation[0] < 1)", margin=0.2, window=4))
    first, second = policy.new_episodes(), policy.new_episodes()
    for episodes in (first, second):
        episodes.reset(np.arange(3))
    draw = np.random.default_rng(1)
    path = draw.uniform(0.4, 1.0, (12, 3, 2)).astype(np.float32)
    for present in path[:6]:
        first.step(present)
    rows = np.arange(3)
    second.load(rows, first.state(rows))
    fork = first.fork()
    for present in path[6:]:
        expected = first.step(present)
        np.testing.assert_array_equal(second.step(present), expected)
        np.testing.assert_array_equal(fork.step(present), expected)
    assert len(np.unique(expected)) == 2


def test_a_restarted_episode_begins_with_the_deployed_policy(pair: Pair) -> None:
    """The robustness of its first observation, 0.3, is between the margin and the release."""
    switch = Switch("always(observation[0] < 1)", margin=0.2, release=0.5)
    episodes = BackupPolicy(*pair, switch).new_episodes()
    episodes.reset(np.arange(2))
    episodes.step(np.full((2, 2), 3, np.float32))
    assert episodes.active.all()
    episodes.reset(np.array([5]), np.array([1]))
    episodes.step(np.full((1, 2), 0.7, np.float32), np.array([1]))
    assert episodes.active.tolist() == [True, False]


@pytest.mark.parametrize(
    ("backup", "message"),
    [
        (constant(0.1, 3), r"observation_shape: the policy has \(3,\), here it is \(2,\)"),
        (constant(0.1, action_low=(-2.0,), action_high=(2.0,)), "its action range is"),
        (constant(0.1, rate_hz=5.0), "rate_hz: the policy has 5, here it is 10"),
    ],
)
def test_a_backup_of_other_shapes_is_refused_in_one_sentence(
    backup: BundlePolicy, message: str
) -> None:
    deployed = constant(0.5, rate_hz=10.0)
    with pytest.raises(BundleError, match=f"the backup does not fit.*{message}"):
        BackupPolicy(deployed, backup, Switch("observation[0] > 0"))


def test_the_switch_reads_observations_only(pair: Pair) -> None:
    with pytest.raises(FormulaError, match="position 1: there is no signal reward"):
        BackupPolicy(*pair, Switch("reward > 0"))


@pytest.mark.parametrize(
    ("stl", "message"),
    [
        # windows without any of the 3 observations
        ("always[3,9](observation[0] > 0)", "Use window=4 or more"),
        ("observation[0] > 0 or not eventually[1,2](always[2,5](observation[1] > 0))", "window=4"),
        ("(observation[0] > 0) until[2,9] (eventually[4,4] (observation[0] > 1))", "window=7"),
        # the last observation has no next one
        ("always(eventually[1,2](observation[0] > 0))", "robustness is -inf for any observations"),
        ("eventually(always[1,2](observation[0] > 0))", "robustness is inf for any observations"),
    ],
)
def test_a_formula_about_steps_after_the_recent_observations_is_refused(
    pair: Pair, stl: str, message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        BackupPolicy(*pair, Switch(stl, window=3))


def test_windows_that_start_within_the_recent_observations_are_cut(pair: Pair) -> None:
    for stl in (
        "always[2,9](observation[0] > 0)",
        "eventually[0,1](always[1,9](observation[0] > 0))",
    ):
        BackupPolicy(*pair, Switch(stl, window=3))
    switch = Switch("always[3,9](observation[0] > 0)", window=3, horizon=1)
    BackupPolicy(*pair, switch, predict=lambda x, _: x)


def test_a_release_below_the_margin_is_refused() -> None:
    with pytest.raises(BundleError, match=r"release=0 is below margin=0\.1"):
        Switch("x > 0", margin=0.1, release=0.0)
    with pytest.raises(BundleError, match="window=0"):
        Switch("x > 0", window=0)


def test_with_a_model_the_backup_acts_before_the_observations_violate_the_formula(
    pair: Pair,
) -> None:
    """x moves by 0.2 times the action, so the deployed policy reaches x + 0.3 in three steps."""

    def predict(observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return observations + 0.2 * actions

    switch = Switch("always(observation[0] < 1)", window=1, horizon=3)
    policy = BackupPolicy(*pair, switch, predict=predict)
    episodes = policy.new_episodes()
    episodes.reset(np.arange(2))
    observation = np.array([[0.65, 0], [0.75, 0]], np.float32)
    actions = episodes.step(observation)
    np.testing.assert_allclose(actions[:, 0], [0.5, -0.5], rtol=1e-6)
    np.testing.assert_allclose(episodes.margins, [0.05, -0.05], atol=1e-6)
    with pytest.raises(BundleError, match="a horizon and a dynamics model belong together"):
        BackupPolicy(*pair, switch)


def test_the_backup_acts_if_a_prediction_is_not_a_number(pair: Pair) -> None:
    switch = Switch("always(observation[0] < 1)", margin=-9.0, window=1, horizon=2)
    policy = BackupPolicy(*pair, switch, predict=lambda x, _: x / x)
    episodes = policy.new_episodes()
    episodes.reset(np.arange(2))
    with np.errstate(invalid="ignore"):
        actions = episodes.step(np.array([[0.5, 1], [0, 1]], np.float32))
    np.testing.assert_allclose(actions[:, 0], [0.5, -0.5], rtol=1e-6)


def test_a_model_receives_normalized_actions_from_a_policy_with_units() -> None:
    """The actions are 0.5 of the range, or 0.5 * 4 + 3 = 5 in the environment's units."""
    bundles = [constant(a, action_low=(-1.0,), action_high=(7.0,)).bundle for a in (0.5, -0.5)]
    in_units = [BundlePolicy(made, make_network(made), units=True) for made in bundles]
    received = []

    def predict(observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        received.append(float(actions[0, 0]))
        return observations

    switch = Switch("observation[0] < 1", window=1, horizon=2)
    player = Player(BackupPolicy(*in_units, switch, predict=predict))
    player.reset(0)
    assert player.step(np.zeros(2, np.float32)) == pytest.approx(5.0)
    assert received == pytest.approx([0.5, 0.5], abs=1e-6)


def test_a_prediction_does_not_change_the_chunks_of_the_deployed_policy() -> None:
    """The policy has a history, chunks and noise; the model predicts no motion."""
    made = base_bundle()
    deployed = BundlePolicy(made, make_network(made))
    switch = Switch("observation[0] > -9", window=1, horizon=5)
    policy = BackupPolicy(deployed, deployed, switch, predict=lambda x, _: x)
    players = [Player(deployed), Player(policy)]
    for player in players:
        player.reset(3)
    draw = np.random.default_rng(0)
    for _ in range(7):
        observation = draw.normal(size=OBS).astype(np.float32)
        first, second = (player.step(observation) for player in players)
        np.testing.assert_array_equal(first, second)
