"""A small data file with the shapes of neorl2/DMSD, for very short trainings."""

from pathlib import Path

import numpy as np


def save_small(
    path: Path, *, obs: int = 6, act: int = 2, num_rows: int = 300, costs: bool = False
) -> Path:
    """Write three episodes of random steps, each truncated, in NeoRL-2's layout."""
    rng = np.random.default_rng(0)
    walk = rng.uniform(-1, 1, (num_rows + 1, obs)).astype(np.float32)
    truncated = np.zeros(num_rows, np.float32)
    truncated[num_rows // 3 - 1 :: num_rows // 3] = 1
    np.savez(
        path,
        obs=walk[:-1],
        next_obs=walk[1:],
        action=rng.uniform(-1, 1, (num_rows, act)).astype(np.float32),
        reward=rng.normal(size=num_rows).astype(np.float32),
        done=np.zeros(num_rows, np.float32),
        truncated=truncated,
        **({"costs": walk[1:, 0] > 0.9} if costs else {}),
    )
    return path
