"""Guardians of training: penalties of rows, and ends of model rollouts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import close, made_batch
from in_a_model import filled, plain_facts, started
from prepared import prepare

from offline_rl.algorithms.common.registry import algorithm_class
from offline_rl.algorithms.common.safety.guardian import (
    fit_guardian,
    guarded,
    is_outside,
    score,
)
from offline_rl.algorithms.mopo import MOPO
from offline_rl.data import Dataset
from offline_rl.data.transform import Transform
from offline_rl.training.sources import facts_of
from offline_rl.utils.errors import UserError
from policies.runtimes.guardian import Guardian, fit

KINDS: Any = pytest.mark.parametrize("kind", ["kde", "neighbor"])


@KINDS
def test_scores_of_tensors_equal_those_of_arrays(kind: Any) -> None:
    rng = np.random.default_rng(0)
    s, a = rng.normal(2, 30, (300, 4)), rng.uniform(-1, 1, (300, 2))
    guardian = fit(s, a, kind, rows=100)
    found = score(guardian, torch.tensor(s), torch.tensor(a))
    np.testing.assert_allclose(found, guardian.score(s, a), rtol=1e-9)


def test_tensors_with_a_score_equal_to_the_threshold_are_in_distribution() -> None:
    guardian = Guardian("neighbor", np.zeros((5, 2)), np.zeros(1), np.ones(1), threshold=-2.0)
    outside = is_outside(guardian, torch.tensor([[2.0], [2.5]]), torch.zeros(2, 1))
    assert outside.tolist() == [False, True]


def made_data() -> Dataset:
    """Return ten episodes of forty rows; ten rows are far from the others."""
    rng = np.random.default_rng(0)
    s, a = rng.normal(size=(400, 2)), rng.uniform(-1, 1, (400, 1))
    s[::40] += 50
    ends = np.arange(400) % 40 == 39
    data = Dataset.from_arrays(
        s.astype(np.float32), a.astype(np.float32), np.ones(400, np.float32), ends
    )
    return replace(data, extras={"costs": np.full(400, 0.5, np.float32)})


@KINDS
def test_rows_out_of_distribution_cost_more_or_earn_less(kind: Any) -> None:
    """The ten outliers are among the rows that a quantile of 0.05 flags."""
    data = made_data()
    options = {"guardian": kind, "guardian_rows": 100, "ood_penalty": 3.0}
    costly = guarded(data, algorithm_class("iql").Config(**options), has_costs=True)
    poorer = guarded(data, algorithm_class("iql").Config(**options), has_costs=False)
    flagged = costly.extras["costs"] == 3.5
    np.testing.assert_array_equal(costly.extras["costs"], np.where(flagged, 3.5, 0.5))
    np.testing.assert_array_equal(poorer.rewards, np.where(flagged, -2, 1))
    np.testing.assert_array_equal(poorer.extras["costs"], data.extras["costs"])
    assert flagged[::40].all()
    assert flagged.mean() < 0.12
    assert f"{flagged.mean():.1%} of the rows are out of distribution" in costly.notes[-1]
    assert guarded(data, algorithm_class("iql").Config(), has_costs=True) is data


def near_origin(**facts: Any) -> Any:
    """Return facts with a guardian that flags states farther than 2 from the origin."""
    points = np.zeros((5, 5))
    guardian = Guardian("neighbor", points, np.zeros(3), np.ones(3), threshold=-2.0)
    return plain_facts(3, guardian=guardian, **facts)


def test_rollouts_end_with_a_penalty_when_they_leave_the_distribution() -> None:
    """The distance includes the action. Only the start of a rollout decides its first step."""
    s = torch.cat([torch.zeros(10, 3), torch.full((10, 3), 4.0)])
    free, guarded_state = (started(MOPO, penalty=0.0, horizon=3) for _ in range(2))
    guarded_state.algorithm.facts = near_origin(ood_penalty=7.0)
    without, rows = filled(free, s), filled(guarded_state, s)
    pairs = torch.cat([rows["observations"], rows["actions"]], -1)
    outside = pairs.norm(dim=-1) > 2
    assert outside[10:20].all()
    assert not outside[:10].any()
    assert torch.equal(rows["terminated"], outside.float())
    close(rows["rewards"][:20], without["rewards"][:20] - 7 * outside[:20])
    first, second = rows["valid"][:20], rows["valid"][20:40]
    assert first.all()
    assert torch.equal(second, ~outside[:20])


def test_normalized_states_are_judged_in_their_units() -> None:
    """The state 3 in units is 1 after a division by 3."""
    facts = replace(near_origin(), width=[3.0] * 3)
    s, a = torch.tensor([[0.5, 0, 0], [1, 0, 0]]), torch.zeros(2, 2)
    rewards, ends = facts.guard(s, a, torch.zeros(2), torch.zeros(2, dtype=torch.bool))
    assert ends.tolist() == [False, True]
    assert rewards.tolist() == [0, 0]


def test_unread_options_and_unfit_data_are_refused() -> None:
    for name in ("iql", "mopo"):
        with pytest.raises(ValueError, match="ood_penalty is not used with guardian=none"):
            algorithm_class(name).Config(ood_penalty=2.0)
    data = made_data()
    images = replace(data, observations={"image": data.observations})
    with pytest.raises(UserError, match="a guardian compares observations of one vector"):
        fit_guardian(images, "kde", 10, 0.05)


def test_an_update_of_a_guarded_model_based_method_can_be_traced() -> None:
    """A threshold is compared within the program; nothing is read from the device."""
    state = started(MOPO, horizon=2)
    state.algorithm.facts = near_origin(ood_penalty=1.0)
    batch = made_batch(0, 8)
    rows = torch.func.vmap(
        lambda s: state.algorithm.facts.guard(s, batch.actions, batch.rewards, batch.rewards > 99)
    )(torch.stack([batch.observations, 9 + batch.observations]))
    assert rows[1][1].all()


def test_a_run_guards_its_data_or_its_rollouts(tmp_path: Path) -> None:
    """IQL reads penalized rewards. MOPO reads the data unchanged, and its rollouts are guarded."""
    data = made_data()
    columns = {"observations": data.observations[:400], "actions": data.actions}
    ends = np.arange(400) % 40 == 39
    np.savez(tmp_path / "data.npz", rewards=data.rewards, terminals=ends, **columns)
    keys: dict[str, Any] = {"task": "none", "dataset": str(tmp_path / "data.npz")}
    keys |= {"algorithm.guardian": "neighbor", "algorithm.guardian_rows": 100, "seeds": 1}
    keys |= {"algorithm.ood_penalty": 3.0, "out": str(tmp_path), "num_updates": 1}
    iql = prepare(keys | {"algorithm": "iql"})
    assert iql.data is not None
    assert iql.dataset is not None
    assert set(iql.data.rewards.tolist()) == {-2.0, 1.0}
    assert set(iql.dataset.rewards.tolist()) == {1.0}
    online: dict[str, Any] = {"algorithm": "mbpo", "task": "env:Pendulum-v1", "num_env_steps": 100}
    online["num_updates"] = 0
    with pytest.raises(UserError, match="guardian=neighbor is fitted to data, and this run"):
        prepare({k: v for k, v in keys.items() if k != "dataset"} | online)
    scaled = {"algorithm": "mopo", "algorithm.ends": "never", "algorithm.reward_scale": 0.5}
    mopo = prepare(keys | scaled)
    assert mopo.data is not None
    assert set(mopo.data.rewards.tolist()) == {1.0}
    transform = Transform.fit(mopo.run.method.cfg, mopo.data, (2,))
    facts = facts_of(mopo, transform)
    assert facts.ood_penalty == 1.5
    assert facts.guardian is not None
    assert facts.guardian.points.shape == (100, 3)
