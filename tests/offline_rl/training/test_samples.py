"""Methods that sample many actions: a run whose samples do not fit into memory is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offline_rl import Dataset, UserError, train
from offline_rl.utils import hardware

DRAW = np.random.default_rng(0)
ENDS = np.arange(60) % 20 == 19
DATA = Dataset.from_arrays(
    DRAW.normal(size=(60, 3)),
    DRAW.uniform(-1, 1, (60, 1)),
    DRAW.normal(size=60),
    ENDS,
    ~ENDS & False,
)


@pytest.mark.parametrize(
    ("algorithm", "option", "what"),
    [
        ("ifql", "num_samples", "5 evaluation episodes at a time"),
        ("idql", "num_samples", "5 evaluation episodes at a time"),
        ("qc", "num_samples", "batch_size=64"),
        ("expo", "num_samples", "batch_size=64"),
        ("diffusion_ql", "num_target_samples", "batch_size=64"),
    ],
)
def test_samples_that_do_not_fit_into_memory_are_refused(
    tmp_path: Path, algorithm: str, option: str, what: str
) -> None:
    """The largest layer of E critics of H units has more than E H values per sample."""
    keys: dict[str, Any] = {"task": "env:Pendulum-v1", "dataset": DATA, "out": str(tmp_path)}
    keys |= {"batch_size": 64, "eval_episodes": 5, "num_updates": 2, "tracker": "none"}
    memory = hardware.total_memory(torch.device("cpu"))
    count = (
        int(memory / (64 * 4 * 2 * 256)) if what.startswith("batch") else memory // (5 * 4 * 256)
    )
    with pytest.raises(UserError, match=rf"algorithm\.{option}={count} with {what} needs at least"):
        train(algorithm=algorithm, **keys, **{f"algorithm.{option}": count}, show=False)
    assert not [*tmp_path.rglob("seed_0")]
