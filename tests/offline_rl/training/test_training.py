"""What is settled before training: batch sizes, what the data tells, phases that divide."""

from pathlib import Path

import numpy as np
import pytest
from small_data import save_small

from offline_rl.algorithms.common.registry import algorithm_config
from offline_rl.training.plan import prepare
from offline_rl.training.train import longest, train
from offline_rl.utils.errors import UserError


@pytest.fixture
def given(tmp_path: Path) -> dict[str, object]:
    path = save_small(tmp_path / "small.npz")
    return {"task": "none", "dataset": str(path), "num_updates": 10, "out": str(tmp_path)}


def test_a_batch_is_as_large_as_said_else_as_the_table_says_else_as_the_paper_does(given):
    assert prepare({**given, "algorithm": "lb_sac"}).cfg.batch_size == 10_000
    assert prepare({**given, "algorithm": "lb_sac", "batch_size": 8}).cfg.batch_size == 8
    assert prepare({**given, "algorithm": "rebrac"}).cfg.batch_size == 256
    assert algorithm_config("rebrac", "hopper-medium-v2", {})[0].batch_size == 1024
    assert prepare({**given, "algorithm": "iql"}).cfg.batch_size == 256
    cfg, pattern = algorithm_config("rebrac", "antmaze-umaze-v2", {})
    assert (pattern, cfg.discount, cfg.batch_size) == ("antmaze-umaze-v?", 0.999, 256)


def test_a_cards_settings_hold_without_its_environment(given):
    card = given | {"dataset": "gym/hopper-medium-replay", "algorithm": "cql"}
    assert prepare(card).pattern == prepare(card | {"task": "gym/hopper-medium-replay"}).pattern
    card |= {"algorithm": "iql"}
    assert prepare(card).cfg.normalise_returns
    assert prepare({**given, "algorithm": "iql"}).pattern is None


def test_what_only_the_data_can_tell_stands_in_the_runs_config(given):
    cfg = prepare({**given, "algorithm": "decision_transformer"}).cfg
    rewards = np.load(given["dataset"])["reward"]
    best = max(rewards[k : k + 100].sum() for k in (0, 100, 200))
    assert cfg.target_return == pytest.approx(best, rel=1e-5)
    own = {"algorithm": "decision_transformer", "algorithm.target_return": 7}
    assert prepare({**given, **own}).cfg.target_return == 7


def test_a_preliminary_phase_divides_into_periods(given):
    with pytest.raises(UserError, match="pretrain_updates=5: spot repeats every 2"):
        prepare({**given, "algorithm": "spot", "pretrain_updates": 5})
    with pytest.raises(UserError, match="fit_vae=7: spot repeats every 2"):
        prepare({**given, "algorithm": "spot", "algorithm.vae_updates": 7})


def test_how_it_computes_is_chosen_for_the_phase_with_the_most_updates(given):
    """An environment step brings `utd` of them."""
    spot = {**given, "algorithm": "spot", "algorithm.vae_updates": 4}
    assert longest(prepare(spot)) == (10, "update")
    assert longest(prepare({**spot, "pretrain_updates": 40})) == (40, "fit_vae")
    online = {"algorithm": "sac", "task": "env:Pendulum-v1", "num_updates": 0}
    assert longest(prepare({**online, "num_env_steps": 30, "utd": 0.5})) == (15, "online")


@pytest.mark.parametrize(("algorithm", "updates"), [("iql", 100), ("cql", 0)])
def test_preliminary_updates_are_refused_where_there_is_no_such_phase(given, algorithm, updates):
    """CQL has one where it is asked to clone first."""
    with pytest.raises(UserError, match=f"pretrain_updates={updates}: {algorithm} has no prelim"):
        prepare({**given, "algorithm": algorithm, "pretrain_updates": updates})
    cloning = {"algorithm": "cql", "algorithm.bc_updates": 5, "pretrain_updates": 7}
    assert prepare({**given, **cloning}).options.pretrain_updates == 7


def test_costs_that_the_data_does_not_have_are_missed_before_anything_is_written(
    given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("offline_rl.algorithms.iql.IQL.needs", ("costs",))
    with pytest.raises(UserError, match=r"small\.npz has no costs, which iql learns from"):
        train(**given, algorithm="iql")
    assert [p.name for p in tmp_path.iterdir()] == ["small.npz"]


@pytest.mark.parametrize("algorithm", ["cal_ql", "decision_transformer", "iql"])
def test_data_without_rewards_is_refused_by_what_learns_from_them(algorithm: str, tmp_path: Path):
    path, draw = tmp_path / "play.npz", np.random.default_rng(0)
    ends = np.arange(60) % 20 == 19
    states = draw.normal(size=(60, 4)).astype(np.float32)
    actions = draw.uniform(-1, 1, (60, 2)).astype(np.float32)
    np.savez(path, observations=states, actions=actions, terminals=ends.astype(np.float32))
    keys = {"task": "none", "dataset": str(path), "num_updates": 10, "out": str(tmp_path)}
    with pytest.raises(UserError, match=rf"play\.npz has no rewards, which {algorithm} learns"):
        train(**keys, algorithm=algorithm)
    assert [p.name for p in tmp_path.iterdir()] == ["play.npz"]
    prepare({**keys, "algorithm": "bc"})
    prepare({**keys, "algorithm": "recoil", "expert_dataset": str(path)})
    with pytest.raises(UserError, match="no rewards"):
        prepare({**keys, "algorithm": "bc", "algorithm.top_fraction": 0.5})
