"""The functions over channels: an array in, an array out; a mapping in, a mapping out."""

import numpy as np

from policies import channels
from policies.channels import Normalizers
from policies.normalizer import Normalizer

VECTOR = np.arange(12, dtype=np.float32).reshape(4, 3)
PICTURE = np.arange(4 * 2 * 2 * 3, dtype=np.uint8).reshape(4, 2, 2, 3)
BOTH = {"state": VECTOR, "picture": PICTURE}


def test_an_array_stays_an_array_and_a_mapping_a_mapping_of_the_same_channels() -> None:
    rows = np.array([2, 0])
    np.testing.assert_array_equal(channels.take(VECTOR, rows), VECTOR[rows])
    taken = channels.take(BOTH, rows)
    assert list(taken) == list(BOTH)
    for name, array in BOTH.items():
        np.testing.assert_array_equal(taken[name], array[rows])
        assert taken[name].dtype == array.dtype
    assert channels.size(VECTOR) == channels.size(BOTH) == 4
    assert channels.shapes(BOTH) == {"state": (3,), "picture": (2, 2, 3)}
    assert channels.shapes(VECTOR) == (3,)


def test_what_is_put_is_joined_by_the_channels_names_and_not_by_their_order() -> None:
    into = {name: array.copy() for name, array in BOTH.items()}
    fresh = {"picture": PICTURE[:1] + 100, "state": VECTOR[:1] - 7}
    channels.assign(into, np.array([3]), fresh)
    np.testing.assert_array_equal(into["state"][3], VECTOR[0] - 7)
    np.testing.assert_array_equal(into["picture"][3], PICTURE[0] + 100)
    np.testing.assert_array_equal(into["state"][:3], VECTOR[:3])


def test_stacked_and_joined_rows_are_those_that_were_taken_apart() -> None:
    for whole in (VECTOR, BOTH):
        rows = [channels.take(whole, k) for k in range(4)]
        halves = [channels.take(whole, slice(0, 1)), channels.take(whole, slice(1, 4))]
        for again in (channels.stack(rows), channels.concatenate(halves)):
            for found, array in zip(channels.parts(again), channels.parts(whole), strict=True):
                np.testing.assert_array_equal(found, array)


def test_flat_columns_name_the_channel_behind_the_word_and_nested_undoes_it() -> None:
    columns = {"observations": BOTH, "actions": VECTOR, "next_observations": BOTH}
    flat = channels.flatten(columns)
    assert list(flat) == [
        *("observations/state", "observations/picture", "actions"),
        *("next_observations/state", "next_observations/picture"),
    ]
    assert channels.unflatten(flat) == columns
    assert channels.get(flat, "observations") == BOTH
    assert channels.get(flat, "actions") is VECTOR
    assert channels.get(flat, "final_observations") is None


def test_each_vector_has_a_normalizer_of_its_own_and_pictures_pass_untouched() -> None:
    fitted = channels.fit(BOTH)
    assert isinstance(fitted, Normalizers)
    assert fitted.by_channel.keys() == {"state"}
    seen = fitted(BOTH)
    assert seen["picture"] is PICTURE
    mean, deviation = VECTOR.mean(0), VECTOR.std(0) + 1e-3
    np.testing.assert_allclose(seen["state"], (VECTOR - mean) / deviation, rtol=1e-6)
    assert isinstance(channels.fit(VECTOR), Normalizer)
    nothing = channels.identity(channels.shapes(BOTH))
    assert nothing.by_channel["state"].kind == "identity"
    np.testing.assert_array_equal(nothing(BOTH)["state"], VECTOR)
