"""Checks before training: batch sizes, values filled in from the data, lengths of phases."""

from pathlib import Path

import numpy as np
import pytest
from prepared import prepare
from small_data import save_small

from offline_rl import Dataset, report
from offline_rl.algorithms.common.registry import algorithm_config
from offline_rl.runs.run import runs_of
from offline_rl.training.assemble import longest_phase, updates_by_phase
from offline_rl.training.headline import headline
from offline_rl.training.prepare import Prepared
from offline_rl.training.train import train
from offline_rl.utils.errors import UserError
from policies import Spec


@pytest.fixture
def base_keys(tmp_path: Path) -> dict[str, object]:
    path = save_small(tmp_path / "small.npz")
    return {"task": "none", "dataset": str(path), "num_updates": 10, "out": str(tmp_path)}


def test_batch_size_is_that_of_the_command_then_the_table_then_the_paper(base_keys):
    assert prepare({**base_keys, "algorithm": "lb_sac"}).run.method.cfg.batch_size == 10_000
    assert (
        prepare({**base_keys, "algorithm": "lb_sac", "batch_size": 8}).run.method.cfg.batch_size
        == 8
    )
    assert prepare({**base_keys, "algorithm": "rebrac"}).run.method.cfg.batch_size == 256
    assert algorithm_config("rebrac", "hopper-medium-v2", {})[0].batch_size == 1024
    cfg, pattern = algorithm_config("rebrac", "antmaze-umaze-v2", {})
    assert (pattern, cfg.discount, cfg.batch_size) == ("antmaze-umaze-v?", 0.999, 256)


def test_a_cards_settings_apply_without_its_environment(base_keys):
    card = base_keys | {"dataset": "gym/hopper-medium-replay", "algorithm": "cql"}
    assert (
        prepare(card).run.method.table_row
        == prepare(card | {"task": "gym/hopper-medium-replay"}).run.method.table_row
    )
    card |= {"algorithm": "iql"}
    assert prepare(card).run.method.cfg.normalize_returns
    assert prepare({**base_keys, "algorithm": "iql"}).run.method.table_row is None


def test_values_filled_in_from_the_data_are_in_the_runs_config(base_keys):
    cfg = prepare({**base_keys, "algorithm": "decision_transformer"}).run.method.cfg
    rewards = np.load(base_keys["dataset"])["reward"]
    best = max(rewards[k : k + 100].sum() for k in (0, 100, 200))
    assert cfg.target_return == pytest.approx(best, rel=1e-5)
    own = {"algorithm": "decision_transformer", "algorithm.target_return": 7}
    assert prepare({**base_keys, **own}).run.method.cfg.target_return == 7


def test_a_preliminary_phase_must_be_a_multiple_of_the_period(base_keys):
    with pytest.raises(UserError, match="pretrain_updates=5 is not a multiple of 2"):
        prepare({**base_keys, "algorithm": "spot", "pretrain_updates": 5})
    with pytest.raises(UserError, match="fit_vae=7 is not a multiple of 2"):
        prepare({**base_keys, "algorithm": "spot", "algorithm.vae_updates": 7})


def test_choices_are_made_for_the_phase_with_the_most_updates(base_keys):
    """Each environment step after the warm-up adds `utd` updates."""
    spot = {**base_keys, "algorithm": "spot", "algorithm.vae_updates": 4}
    assert longest_phase(prepare(spot)) == (10, "update")
    assert longest_phase(prepare({**spot, "pretrain_updates": 40})) == (40, "fit_vae")
    online = {"algorithm": "sac", "task": "env:Pendulum-v1", "num_updates": 0}
    online |= {"num_env_steps": 38, "utd": 0.5, "online.warmup_steps": 8, "batch_size": 8}
    assert longest_phase(prepare(online)) == (15, "online")
    online |= {"algorithm": "mbpo", "num_env_steps": 38, "utd": 2}
    online |= {"algorithm.rollout_every": 10, "algorithm.holdout_share": 0.2}
    assert updates_by_phase(prepare(online))["online"] == 60  # three rounds of the model


@pytest.mark.parametrize(("algorithm", "updates"), [("iql", 100), ("cql", 0)])
def test_pretrain_updates_are_refused_without_a_preliminary_phase(base_keys, algorithm, updates):
    """CQL has one if bc_updates is set."""
    with pytest.raises(UserError, match=f"pretrain_updates={updates}: {algorithm} has no prelim"):
        prepare({**base_keys, "algorithm": algorithm, "pretrain_updates": updates})
    cloning = {"algorithm": "cql", "algorithm.bc_updates": 5, "pretrain_updates": 7}
    assert prepare({**base_keys, **cloning}).run.budget.pretrain_updates == 7


def test_missing_costs_are_refused_before_anything_is_written(
    base_keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("offline_rl.algorithms.iql.IQL.extra_columns", ("costs",))
    with pytest.raises(UserError, match=r"small\.npz has no costs, which iql needs"):
        train(**base_keys, algorithm="iql")
    assert [p.name for p in tmp_path.iterdir()] == ["small.npz"]


@pytest.mark.parametrize("algorithm", ["cal_ql", "decision_transformer", "iql"])
def test_data_without_rewards_is_refused_by_algorithms_that_need_them(
    algorithm: str, tmp_path: Path
):
    path, draw = tmp_path / "play.npz", np.random.default_rng(0)
    ends = np.arange(60) % 20 == 19
    states = draw.normal(size=(60, 4)).astype(np.float32)
    actions = draw.uniform(-1, 1, (60, 2)).astype(np.float32)
    np.savez(path, observations=states, actions=actions, terminals=ends.astype(np.float32))
    keys = {"task": "none", "dataset": str(path), "num_updates": 10, "out": str(tmp_path)}
    keys["format"] = "plain"
    with pytest.raises(UserError, match=rf"play\.npz has no rewards, which {algorithm} needs"):
        train(**keys, algorithm=algorithm)
    assert [p.name for p in tmp_path.iterdir()] == ["play.npz"]
    prepare({**keys, "algorithm": "bc"})
    prepare({**keys, "algorithm": "recoil", "expert_dataset": str(path)})
    with pytest.raises(UserError, match="no rewards"):
        prepare({**keys, "algorithm": "bc", "algorithm.top_fraction": 0.5})


def test_data_without_rewards_has_no_behavior_policy_to_compare_with(tmp_path: Path) -> None:
    ends = np.arange(20) % 10 == 9
    arrays = {"observations": np.zeros((20, 1)), "actions": np.zeros((20, 1)), "terminals": ends}
    np.savez(tmp_path / "play.npz", **arrays)
    keys = {"task": "none", "dataset": str(tmp_path / "play.npz"), "num_updates": 1}
    keys |= {"format": "plain", "algorithm": "bc", "batch_size": 4, "algorithm.hidden": [4]}
    keys |= {"compile": "never", "tracker": "none", "out": str(tmp_path)}
    result = train(**keys)
    assert result.results[0]["behavior_return"] is None
    assert "behavior policy" not in str(report(result.path))


def test_an_algorithm_for_one_vector_names_the_keys_that_join_several(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(
        "import gymnasium\nimport numpy as np\nfrom gymnasium.spaces import Box, Dict\n\n\n"
        "class Parts(gymnasium.Env):\n"
        "    max_episode_steps = 4\n"
        "    observation_space = Dict({'t': Box(-1, 1, (1,)), 'x': Box(-1, 1, (2,))})\n"
        "    action_space = Box(-1, 1, (1,))\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return {'t': np.zeros(1, np.float32), 'x': np.zeros(2, np.float32)}, {}\n"
        "    def step(self, action):\n"
        "        return self.reset()[0], 0.0, False, False, {}\n"
    )
    keys = {"algorithm": "sac", "task": f"env:{tmp_path}/parts.py:Parts", "num_env_steps": 20}
    keys |= {"num_updates": 0, "out": str(tmp_path)}
    with pytest.raises(UserError, match=r"are t \[1\], x \[2\]\. Set observation_keys=\[t,x\] to"):
        prepare(keys)
    assert prepare({**keys, "observation_keys": ["t", "x"]}).spec.observation_shape == (3,)


def test_spot_needs_updates_that_fit_its_density_model(base_keys) -> None:
    small = {"algorithm": "spot", "algorithm.hidden": [8], "algorithm.vae_hidden": [8]}
    for none in ({"pretrain_updates": 0}, {"algorithm.vae_updates": 0}):
        with pytest.raises(
            UserError, match="SPOT relies on the phase fit_vae, which has 0 updates here"
        ):
            prepare({**base_keys, **small, **none})
    assert prepare({**base_keys, **small, "pretrain_updates": 2}).schedule[0].phase == "fit_vae"


def test_a_run_that_ends_within_the_learning_rate_warmup_prints_a_note(base_keys) -> None:
    small = {
        "algorithm.network": "mlp",
        "algorithm.widths": [8],
        "algorithm.num_warmup_updates": 10,
    }
    for updates, said in ((9, True), (10, False)):
        plan = prepare(
            {**base_keys, "algorithm": "diffusion_policy", **small, "num_updates": updates}
        )
        assert ("ends within the learning-rate warm-up" in headline(plan)) == said


def test_a_context_longer_than_every_episode_prints_a_note(base_keys) -> None:
    for context, said in ((100, False), (101, True)):  # the episodes have 100 steps
        keys = {"algorithm": "decision_transformer", "algorithm.context_length": context}
        plan = prepare({**base_keys, **keys})
        assert ("exceeds the longest episode of the data (100 steps)" in headline(plan)) == said


def test_the_headline_names_the_card_whose_settings_apply() -> None:
    """The card's settings are also named with task=none, if the data has a card."""
    for task in ({"task": "kitchen-mixed-v0"}, {"task": "none", "dataset": "kitchen-mixed-v0"}):
        runs, spec = runs_of({"algorithm": "iql", **task}), Spec((60,), 9)
        learner = runs[0].learner(spec)
        plan = Prepared(runs, None, None, None, spec, learner, [], np.arange(1))
        assert "from the dataset card reward_shift=-4" in headline(plan)


def test_data_without_next_observations_is_refused(base_keys):
    """There is one row, or every row ends before an observation that was not stored."""
    rows = np.zeros((3, 2)), np.zeros((3, 1)), np.arange(3.0)
    one = Dataset.from_arrays(*(x[:1] for x in rows), np.array([True]))
    cut = Dataset.from_arrays(*rows, np.zeros(3, bool), np.ones(3, bool))
    for data in (one, cut):
        with pytest.raises(UserError, match="too little to learn from"):
            prepare({**base_keys, "algorithm": "iql", "dataset": data})


def test_episodes_selects_the_first_ones_and_refuses_more_than_exist(base_keys):
    ends = np.array([False, True, False, False, True, True])
    rows = np.arange(12.0).reshape(6, 2), np.zeros((6, 1)), np.arange(6.0)
    data = Dataset.from_arrays(*rows, ends)
    keys = {**base_keys, "algorithm": "bc", "dataset": data}
    found = prepare({**keys, "episodes": 2}).dataset
    assert found is not None
    assert found.rewards.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(UserError, match=r"episodes=4: .* has 3 episodes"):
        prepare({**keys, "episodes": 4})


def test_warnings_about_data_are_printed_before_training(base_keys):
    """Data in memory is checked like files. Here the observations jump without an episode's end."""
    draw = np.random.default_rng(0)
    s, a, r = draw.normal(size=(6, 2)), draw.uniform(-1, 1, (6, 2)), draw.normal(size=6)
    data = Dataset.from_arrays(s, a, r, np.zeros(6, bool), next_observations=s + 1)
    plan = prepare({**base_keys, "algorithm": "bc", "dataset": data})
    assert "is not the observation of the next row" in headline(plan)


def test_a_time_limit_removes_the_note_that_recommends_it(base_keys, tmp_path):
    draw = np.random.default_rng(0)
    arrays = {"observations": draw.normal(size=(9, 2)), "actions": draw.uniform(-1, 1, (9, 1))}
    np.savez(tmp_path / "a.npz", rewards=draw.normal(size=9), terminals=np.zeros(9), **arrays)
    keys = {**base_keys, "algorithm": "bc", "dataset": str(tmp_path / "a.npz")}
    assert "give max_episode_steps=" in headline(prepare(keys))
    limited = prepare({**keys, "max_episode_steps": 3})
    assert limited.dataset.num_episodes == 3
    assert "max_episode_steps" not in headline(limited)


def test_options_for_certain_data_or_tasks_are_refused_for_others(base_keys, tmp_path):
    """Centered rewards need data without ends; action_range=data needs task=none."""
    over = Dataset.from_arrays(np.ones((4, 6)), np.zeros((4, 2)), np.arange(4.0), np.arange(4) == 1)
    centered = {**base_keys, "algorithm": "sac", "algorithm.center_rewards": True}
    with pytest.raises(UserError, match="episodes terminate"):
        prepare({**centered, "dataset": over})
    prepare(centered)  # its episodes are truncated
    with pytest.raises(UserError, match="Remove center_rewards or num_env_steps"):
        prepare({**centered, "task": "neorl2/DMSD", "num_env_steps": 5})
    whole = {**base_keys, "algorithm": "bc", "action_range": "data"}
    assert prepare(whole).dataset.actions.max() == 1
    with pytest.raises(UserError, match=r"action_range=data needs task=none.* neorl2/DMSD"):
        prepare({**whole, "task": "neorl2/DMSD"})
