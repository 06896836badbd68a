"""Suggestions for fine-tuning a run whose algorithm does not learn online."""

from pathlib import Path

import numpy as np
import pytest

from offline_rl import UserError, finetune, train


@pytest.mark.slow
def test_no_algorithm_is_suggested_for_networks_that_none_can_load(tmp_path: Path) -> None:
    """The scans of a Decision Mamba are in no other algorithm."""
    draw, data = np.random.default_rng(0), tmp_path / "data.npz"
    columns = {"observations": draw.normal(size=(40, 3)), "rewards": draw.normal(size=40)}
    columns |= {"actions": draw.uniform(-1, 1, (40, 2)), "terminals": np.arange(40) % 10 == 9}
    np.savez(data, **{k: v.astype(np.float32) for k, v in columns.items()})
    run = train(
        algorithm="decision_mamba",
        task="none",
        dataset=str(data),
        num_updates=1,
        seeds=1,
        out=str(tmp_path),
        show=False,
        tracker="none",
        compile="never",
        **{"algorithm.dim_model": 4, "algorithm.num_layers": 1, "algorithm.context_length": 2},
    ).path
    with pytest.raises(UserError) as error:
        finetune(run=run, num_env_steps=5, task="neorl2/DMSD", show=False)
    assert "no online algorithm can load the networks" in str(error.value)
    assert "arsq" not in str(error.value)
