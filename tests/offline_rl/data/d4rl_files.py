"""Builders of data files in the layouts of D4RL and NeoRL-2, from distinct random steps."""

from pathlib import Path

import numpy as np

from benchmarks.loaders import Arrays
from benchmarks.loaders import save as save_hdf5


def steps(num_rows: int, *, obs: int = 3, act: int = 2, seed: int = 0) -> Arrays:
    """Return random steps by D4RL's names, without any flag set."""
    rng = np.random.default_rng(seed)
    return {
        "observations": rng.normal(size=(num_rows, obs)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (num_rows, act)).astype(np.float32),
        "rewards": rng.normal(size=num_rows).astype(np.float32),
        "terminals": np.zeros(num_rows, bool),
        "timeouts": np.zeros(num_rows, bool),
    }


def with_next(arrays: Arrays) -> Arrays:
    """Add next observations: the next row's, and another one after an episode's end."""
    after = np.roll(arrays["observations"], -1, axis=0)
    last = arrays["terminals"] | arrays["timeouts"]
    last[-1] = True
    after[last] = np.random.default_rng(9).normal(size=after[last].shape)
    return arrays | {"next_observations": after}


def two_episodes() -> Arrays:
    """Return 3 steps that terminate, then 1000 that time out."""
    arrays = steps(1003)
    arrays["terminals"][2] = True
    arrays["timeouts"][1002] = True
    return arrays


def in_neorl2_words(arrays: Arrays) -> Arrays:
    words = {
        "observations": "obs",
        "actions": "action",
        "rewards": "reward",
        "terminals": "done",
        "timeouts": "truncated",
        "next_observations": "next_obs",
    }
    return {words[key]: array.astype(np.float32) for key, array in arrays.items()}


def save(path: Path, arrays: Arrays) -> Path:
    """Write NPZ or HDF5, depending on the ending of the path."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
        return path
    return save_hdf5(path, arrays)
