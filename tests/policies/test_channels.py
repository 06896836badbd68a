"""Functions of `policies.channels` on arrays and on mappings of channels."""

import numpy as np

from policies import channels
from policies.channels import Normalizers
from policies.normalizer import Normalizer

VECTOR = np.arange(12, dtype=np.float32).reshape(4, 3)
IMAGE = np.arange(4 * 2 * 2 * 3, dtype=np.uint8).reshape(4, 2, 2, 3)
BOTH = {"state": VECTOR, "image": IMAGE}


def test_arrays_and_mappings_keep_their_kind_and_channels() -> None:
    rows = np.array([2, 0])
    np.testing.assert_array_equal(channels.take(VECTOR, rows), VECTOR[rows])
    taken = channels.take(BOTH, rows)
    assert list(taken) == list(BOTH)
    for name, array in BOTH.items():
        np.testing.assert_array_equal(taken[name], array[rows])
        assert taken[name].dtype == array.dtype
    assert channels.size(VECTOR) == channels.size(BOTH) == 4
    assert channels.shapes(BOTH) == {"state": (3,), "image": (2, 2, 3)}
    assert channels.shapes(VECTOR) == (3,)


def test_assign_matches_channels_by_name_and_not_by_order() -> None:
    into = {name: array.copy() for name, array in BOTH.items()}
    values = {"image": IMAGE[:1] + 100, "state": VECTOR[:1] - 7}
    channels.assign(into, np.array([3]), values)
    np.testing.assert_array_equal(into["state"][3], VECTOR[0] - 7)
    np.testing.assert_array_equal(into["image"][3], IMAGE[0] + 100)
    np.testing.assert_array_equal(into["state"][:3], VECTOR[:3])


def test_stack_and_concatenate_undo_take() -> None:
    for observations in (VECTOR, BOTH):
        rows = [channels.take(observations, k) for k in range(4)]
        pieces = [channels.take(observations, s) for s in (slice(0, 1), slice(1, 4))]
        for joined in (channels.stack(rows), channels.concatenate(pieces)):
            pairs = zip(channels.parts(joined), channels.parts(observations), strict=True)
            for actual, expected in pairs:
                np.testing.assert_array_equal(actual, expected)


def test_flatten_appends_channels_to_column_names_and_unflatten_undoes_it() -> None:
    columns = {"observations": BOTH, "actions": VECTOR, "next_observations": BOTH}
    flat = channels.flatten(columns)
    assert list(flat) == [
        *("observations/state", "observations/image", "actions"),
        *("next_observations/state", "next_observations/image"),
    ]
    assert channels.unflatten(flat) == columns
    assert channels.get(flat, "observations") == BOTH
    assert channels.get(flat, "actions") is VECTOR
    assert channels.get(flat, "final_observations") is None


def test_each_vector_has_its_normalizer_and_images_are_not_changed() -> None:
    fitted = channels.fit(BOTH)
    assert isinstance(fitted, Normalizers)
    assert fitted.by_channel.keys() == {"state"}
    normalized = fitted(BOTH)
    assert normalized["image"] is IMAGE
    mean, scale = VECTOR.mean(0), VECTOR.std(0) + 1e-3
    np.testing.assert_allclose(normalized["state"], (VECTOR - mean) / scale, rtol=1e-6)
    assert isinstance(channels.fit(VECTOR), Normalizer)
    identity = channels.identity(channels.shapes(BOTH))
    assert identity.by_channel["state"].kind == "identity"
    np.testing.assert_array_equal(identity(BOTH)["state"], VECTOR)
