"""Methods whose models predict one step refuse transitions of several steps."""

from pathlib import Path
from typing import Any

import pytest

from offline_rl import UserError, train


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"algorithm": "sequence_rl"}, r"online\.n_step"),
        (
            {"algorithm": "sac", "algorithm.n_obs_steps": 2, "algorithm.bisimulation": 0.5},
            r"online\.n_step=3: algorithm\.bisimulation needs n_step=1",
        ),
    ],
)
def test_several_steps_are_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    keys = {"task": "env:Pendulum-v1", "num_env_steps": 100, "online.n_step": 3, **keys}
    with pytest.raises(UserError, match=message):
        train(**keys, out=str(tmp_path), show=False, tracker="none")
    assert not [*tmp_path.rglob("config.json")]
