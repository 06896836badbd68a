"""Tests of the cache: a cached data set is memory-mapped and equals the parsed one."""

import os
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from small_data import save_small

from offline_rl.data import cache as module
from offline_rl.data.cache import load_cached
from offline_rl.data.dataset import Dataset
from offline_rl.data.read import read


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
