"""Mirror images of episodes: they obey the simulator, and mirroring twice changes nothing."""

from dataclasses import replace

import numpy as np
import pytest

from envs.cards import card
from envs.suites.push import Push, PushPixels
from offline_rl.data import Dataset, load
from offline_rl.data.augment.join import join
from offline_rl.data.augment.mirror import mirror, parse_mirror, read_mirror, with_mirror
from offline_rl.generation.filtering import mirror_dataset
from offline_rl.utils.errors import UserError
from policies import channels

ROWS = np.arange(3)


def episodes(observations, actions) -> Dataset:
    """Return the data set of B episodes. observations: [T + 1, B, *obs], actions: [T, B, A]."""
    count, batch = actions.shape[:2]

    def rows(x, start=0):
        return x[start : start + count].swapaxes(0, 1).reshape(-1, *x.shape[2:])

    last = np.tile(np.arange(count) == count - 1, batch)
    zeros = np.zeros(count * batch)
    s, s2 = (channels.map_channels(lambda x, k=k: rows(x, k), observations) for k in (0, 1))
    return Dataset.from_arrays(s, rows(actions), zeros, zeros, last, s2)


def reflected_pair(kind, arm: str):
    """Return episodes of an environment and of its reflection about the x-axis.

    The same actions with the opposite sign move the second one.
    """

    class Reflection(kind):
        def start(self, index, rng):
            qpos, qvel = super().start(index, rng)
            self._goals[index, 1] *= -1
            return qpos * np.array([*[-1] * (len(qpos) - 2), 1, -1]), qvel

    env, reflection = kind(3, arm=arm), Reflection(3, arm=arm)
    observed = [[each.reset([0, 1, 2], ROWS)] for each in (env, reflection)]
    actions = np.random.default_rng(0).uniform(-0.5, 0.5, (40, 3, len(env.arm.links)))
    actions[:, :, 0] -= 0.5 * np.sign(env._qpos[:, 0])  # unfold the arm, toward the puck
    for action in actions:
        observed[0].append(env.step(action, ROWS).observations)
        observed[1].append(reflection.step(-action, ROWS).observations)
    return (
        episodes(channels.stack(steps), sign * actions)
        for steps, sign in zip(observed, (1, -1), strict=True)
    )


@pytest.mark.parametrize(
    ("kind", "arm", "name"),
    [
        (Push, "standard", "push/standard-expert"),
        (Push, "three", "push/three-expert"),
        (PushPixels, "standard", "push/standard-pixels-expert"),
    ],
)
def test_a_mirrored_episode_is_the_episode_of_the_reflected_simulator(kind, arm, name):
    data, reflection = reflected_pair(kind, arm)
    mirrored = mirror(data, parse_mirror(card(name).mirror, name))
    np.testing.assert_allclose(mirrored.actions, reflection.actions)
    parts = [channels.parts(each.observations) for each in (data, mirrored, reflection)]
    for original, ours, theirs in zip(*parts, strict=True):
        tolerance = 1 if ours.dtype == np.uint8 else 1e-5  # colors are rounded
        assert np.abs(ours.astype(float) - theirs).max() <= tolerance
        assert np.abs(original.astype(float) - theirs).max() > 0.1
    if kind is Push:
        assert np.abs(data.observations[:, -4:-2]).max() > 0.1  # the arm has hit a puck


def two_arms(rng) -> Dataset:
    """Return data with two wrist cameras, a scene camera and a state vector."""
    images = {
        k: rng.integers(0, 256, (7, 4, 6, 3), dtype=np.uint8) for k in ("left", "right", "top")
    }
    observations = images | {"state": rng.normal(size=(7, 4)).astype(np.float32)}
    ends = np.arange(7) % 4 == 3
    return Dataset.from_arrays(
        observations, rng.uniform(-1, 1, (7, 4)), np.arange(7), np.zeros(7), ends
    )


TWO_ARMS = {
    "left": {"source": "right", "flip": "columns"},
    "right": {"source": "left", "flip": "columns"},
    "top": {"flip": "columns"},
    "state": {"swap": [[0, 2], [1, 3]], "negate": [1, 3], "center": {3: 0.5, 1: 0.5}},
    "actions": {"swap": [[0, 2], [1, 3]], "negate": [0, 2]},
}


def test_arms_and_wrist_cameras_are_exchanged_and_images_are_flipped():
    data = two_arms(np.random.default_rng(0))
    mirrored, seen = mirror(data, parse_mirror(TWO_ARMS, "here")).observations, data.observations
    for k in range(6):  # the first column becomes the last one
        np.testing.assert_array_equal(mirrored["left"][:, :, k], seen["right"][:, :, 5 - k])
        np.testing.assert_array_equal(mirrored["right"][:, :, k], seen["left"][:, :, 5 - k])
        np.testing.assert_array_equal(mirrored["top"][:, :, k], seen["top"][:, :, 5 - k])
    a, b, c, d = seen["state"].T
    np.testing.assert_allclose(mirrored["state"].T, [c, 1 - d, a, 1 - b])


def test_columns_are_exchanged_then_negated_and_unlisted_channels_stay():
    data = two_arms(np.random.default_rng(0))
    mirrored = mirror(data, parse_mirror({"state": {"swap": [[0, 1]], "negate": [0]}}, "here"))
    a, b, c, d = data.observations["state"].T
    np.testing.assert_array_equal(mirrored.observations["state"].T, [-b, a, c, d])
    for name in ("left", "right", "top"):
        np.testing.assert_array_equal(mirrored.observations[name], data.observations[name])
    np.testing.assert_array_equal(mirrored.actions, data.actions)


def test_the_mirror_image_of_a_mirror_image_is_the_original():
    data, parts = two_arms(np.random.default_rng(1)), parse_mirror(TWO_ARMS, "here")
    twice = mirror(mirror(data, parts), parts)
    for name, values in data.observations.items():
        np.testing.assert_allclose(twice.observations[name], values, atol=1e-6)
    np.testing.assert_array_equal(twice.actions, data.actions)


def test_mirrored_episodes_follow_the_originals_with_their_own_next_observations():
    data = two_arms(np.random.default_rng(2))
    data = replace(data, extras={"infos/time": np.arange(7)})
    both, count = with_mirror(data, parse_mirror(TWO_ARMS, "here")), data.num_rows
    assert both.extras["infos/time"].tolist() == [*range(7), *range(7)]
    assert both.num_episodes == 2 * data.num_episodes
    np.testing.assert_array_equal(both.rewards, np.tile(data.rewards, 2))
    np.testing.assert_array_equal(both.usable, np.tile(data.usable, 2))
    usable = np.flatnonzero(data.usable)
    following = both.observations["state"][both.next_index[usable + count]]
    expected = mirror(data, parse_mirror(TWO_ARMS, "here")).observations["state"]
    np.testing.assert_array_equal(following, expected[data.next_index[usable]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"wrist": {"flip": "columns"}}, "names 'wrist', but the data have"),
        ({"top": {"negate": [0]}}, "an image can only be flipped"),
        ({"state": {"flip": "rows"}}, "only images can be flipped"),
        ({"state": {"negate": [4]}}, "column 4 does not exist. Use 0 to 3"),
        ({"state": {"swap": [[0, 1, 2]]}}, "Use pairs of columns"),
        ({"state": {"center": {0: 1.0}}}, "column 0 has a center. Negate it too"),
        ({"state": {"source": "top"}}, "its source has another shape"),
        ({"state": {"negated": [0]}}, "negated"),
        ({"state": [0]}, "is not a mapping"),
    ],
)
def test_a_mirror_that_does_not_fit_the_data_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        mirror(two_arms(np.random.default_rng(0)), parse_mirror(values, "here"))


def test_the_command_writes_the_episodes_and_their_mirror_images(tmp_path):
    rng = np.random.default_rng(0)
    values = {"observations": rng.normal(size=(6, 2)), "actions": rng.uniform(-1, 1, (6, 1))}
    values |= {"rewards": rng.normal(size=6), "terminals": np.zeros(6)}
    values |= {"timeouts": np.arange(6) % 3 == 2, "next_observations": rng.normal(size=(6, 2))}
    source, target, file = (tmp_path / name for name in ("data.npz", "new.hdf5", "mirror.yaml"))
    np.savez(source, **values)
    file.write_text("observations: {negate: [1]}\nactions: {negate: [0]}\n")
    assert "12 rows, 4 episodes" in mirror_dataset(source, target, mirror=file)
    written, original = load(target), load(source)
    expected = mirror(original, read_mirror(file))
    np.testing.assert_array_equal(written.actions[:6], original.actions)
    np.testing.assert_array_equal(written.actions[6:], expected.actions)
    np.testing.assert_array_equal(written.next_observations[6:], expected.next_observations)
    with pytest.raises(UserError, match="has no mirror in a dataset card"):
        mirror_dataset(source, tmp_path / "other.npz")


def test_a_solved_row_continues_its_episode_in_joined_data():
    row, ends = np.ones((4, 2), np.float32), np.array([False, False, False, True])
    plain = Dataset.from_arrays(row, row, row[:, 0], ends & False, ends, next_observations=row)
    solved = np.array([False, True, False, False])
    going = replace(plain, terminated=solved, continues=solved)
    joined = join([plain, going])
    assert joined.continues is not None
    assert joined.continues.tolist() == [False] * 5 + [True, False, False]
    assert joined.num_episodes == 2
    assert join([plain, plain]).continues is None
