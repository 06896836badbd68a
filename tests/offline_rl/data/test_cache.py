"""Tests of the cache: a cached data set is memory-mapped and equals the parsed one."""

import os
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from small_data import save_small

from offline_rl.data import cache as module
from offline_rl.data.cache import load_cached, load_shards
from offline_rl.data.dataset import Dataset
from offline_rl.data.read import read
from offline_rl.utils.errors import UserError

RNG = np.random.default_rng(0)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list of all files that are parsed."""
    monkeypatch.setattr(module, "LARGE", 1)
    return []


def open_one(path: Path, cache: Path, parsed: list[Path], **options: object) -> Dataset:
    def parse() -> Dataset:
        parsed.append(path)
        data = read(path)
        return replace(data, extras={"costs": np.arange(data.num_rows, dtype=np.float32)})

    return load_cached(path, options, parse, cache)


def assert_same(a: Dataset, b: Dataset) -> bool:
    pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in fields(a) if f.name != "extras"]
    pairs += [(a.extras[k], b.extras[k]) for k in a.extras.keys() | b.extras.keys()]
    return all(np.array_equal(x, y) for x, y in pairs)


def test_a_cached_file_is_not_parsed_again_and_its_arrays_are_memory_mapped(tmp_path: Path, parsed):
    path, cache = tmp_path / "small.npz", tmp_path / "cache"
    save_small(path)
    first, second = (open_one(path, cache, parsed, scale=1.0) for _ in range(2))
    assert parsed == [path]
    assert assert_same(first, second)
    assert all(isinstance(x.observations, np.memmap) for x in (first, second))
    second.observations[0] = 7  # stays in memory
    assert not np.array_equal(open_one(path, cache, parsed, scale=1.0).observations[0], [7] * 6)


def test_other_options_or_a_changed_file_are_parsed_again_and_replace_the_entry(
    tmp_path: Path, parsed
):
    path, cache = tmp_path / "small.npz", tmp_path / "cache"
    save_small(path)
    open_one(path, cache, parsed)
    open_one(path, cache, parsed, scale=2.0)
    save_small(path)
    os.utime(path, ns=(1, 1))
    open_one(path, cache, parsed)
    assert len(parsed) == 3
    assert len(list((cache / "opened").iterdir())) == 1


def test_a_damaged_entry_is_replaced(tmp_path: Path, parsed):
    path, cache = tmp_path / "small.npz", tmp_path / "cache"
    save_small(path)
    whole = open_one(path, cache, parsed)
    [entry] = (cache / "opened").iterdir()
    array = max(entry.glob("*.npy"), key=lambda f: f.stat().st_size)
    content = array.read_bytes()
    for damage in (content[:100], b"", b"\0" * 200):
        array.unlink()  # `whole` still maps the file that was there
        array.write_bytes(damage)
        again = open_one(path, cache, parsed)
        assert assert_same(whole, again)
    assert len(parsed) == 4


def test_the_data_is_returned_if_the_cache_cannot_be_written(tmp_path: Path, parsed, capsys):
    path, cache = tmp_path / "small.npz", tmp_path / "cache"
    save_small(path)
    cache.write_text("a file, where a folder should be")
    assert open_one(path, cache, parsed).num_rows > 0
    assert "could not be written" in capsys.readouterr().out


def test_small_files_are_not_cached(tmp_path: Path):
    path, cache = tmp_path / "small.npz", tmp_path / "cache"
    save_small(path)
    open_one(path, cache, [])
    assert not cache.exists()


def test_shards_are_joined_on_disk_with_one_in_memory_at_a_time(tmp_path: Path):
    """Episodes of three files, of which some rows have no next observation."""
    paths, cache, rng = [tmp_path / f"{n}.npz" for n in range(3)], tmp_path / "cache", RNG
    shards = {}
    for path, rows in zip(paths, (7, 4, 9), strict=True):
        ends = np.isin(np.arange(rows), [2, rows - 1])
        data = Dataset.from_arrays(
            rng.normal(size=(rows, 3)),
            rng.uniform(-1, 1, (rows, 2)),
            rng.normal(size=rows),
            np.zeros(rows, bool),
            ends,
            final_observations=rng.normal(size=(2, 3)),
            extras={"infos/qpos": rng.normal(size=(rows, 5))},
        )
        index = np.where(np.arange(rows) == 2, -1, data.next_index)  # not usable
        shards[path] = replace(data, next_index=index)
        path.write_bytes(b"")
    parsed: list[Path] = []

    def parse(path: Path) -> Dataset:
        parsed.append(path)
        return shards[path]

    for _ in range(2):
        joined = load_shards(paths, {}, parse, cache)
        assert joined.num_rows == 20
        assert isinstance(joined.observations, np.memmap)
        for name in ("rewards", "actions", "truncated", "usable", "is_last"):
            expected = np.concatenate([getattr(shard, name) for shard in shards.values()])
            np.testing.assert_array_equal(getattr(joined, name), expected)
        usable = joined.next_index[joined.usable]
        expected = np.concatenate([s.observations[s.next_index[s.usable]] for s in shards.values()])
        np.testing.assert_array_equal(joined.observations[usable], expected)
        states = np.concatenate([shard.extras["infos/qpos"] for shard in shards.values()])
        np.testing.assert_array_equal(joined.extras["infos/qpos"], states)
        assert joined.notes[-1] == "the rows of 3 files"
    assert parsed == paths


def test_shards_that_cannot_be_joined_are_an_error_with_a_remedy(tmp_path: Path):
    path, cache = tmp_path / "small.npz", tmp_path / "cache"
    save_small(path)
    cache.write_text("a file, where a folder should be")
    with pytest.raises(UserError, match=r"could not be written: .* or set XDG_CACHE_HOME"):
        load_shards([path], {}, read, cache)
