"""QC: updates by hand, its selection of chunks, chunks cut short, and a run in an environment."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import (
    SPEC,
    Recorded,
    advance,
    assert_equal_states,
    chunked,
    close,
    gelu_perceptron,
    hill,
    made_chunks,
    start,
)
from safetensors.torch import load_file
from small_data import save_small
from torch import Tensor

import offline_rl
from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.common.critics import aggregate_q
from offline_rl.algorithms.common.registry import algorithm_config, tuned
from offline_rl.algorithms.qc import QC
from offline_rl.data import Dataset
from offline_rl.replay.batch import Batch
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.runs.folder import SeedFolder
from offline_rl.training.trainer import Trainer
from offline_rl.utils.errors import UserError
from policies.spec import Spec

SMALL: dict[str, Any] = {"hidden": (16, 16), "num_inference_steps": 3, "num_samples": 4}
SMALL |= {"actor_lr": 1e-3, "critic_lr": 1e-3, "horizon": 3}


@pytest.mark.parametrize(
    "options", [{}, {"q_aggregate": "min"}, {"num_critics": 4, "rho": 0.5}], ids=str
)
def test_an_update_equals_plain_pytorch(options):
    state = start(QC, **SMALL | options, tau=0.1)
    for count in range(2):
        batch = made_chunks(count)
        batch = batch if count else replace(batch, weights=None)  # partial=bootstrap
        leaves = {
            name: {k: v.clone().requires_grad_() for k, v in state.params[name].items()}
            for name in state.params
        }
        losses = losses_by_hand(state, batch, leaves, Recorded(count))
        sum(losses.values()).backward()
        before = state
        state, metrics = step(state, batch, count)
        for name in ("critic", "policy"):
            for k, leaf in leaves[name].items():
                old = before.optimizer[name]["first"][k]
                close(state.optimizer[name]["first"][k], 0.9 * old + 0.1 * leaf.grad)
            close(metrics[f"{name}_loss"], losses[name])
        for k, value in before.params["critic_target"].items():
            close(state.params["critic_target"][k], 0.9 * value + 0.1 * before.params["critic"][k])


def step(state: State, batch: Batch, count: int):
    """Return the state after one update with the random numbers of update `count`."""
    return state.algorithm.update(replace(state, random=Recorded(count)), batch, 0)


def losses_by_hand(state: State, batch: Batch, leaves, random: Recorded) -> dict[str, Tensor]:
    """Return the losses at the old parameters. Chunks are flat, [..., H * A] with H=3 and A=2."""
    cfg = state.algorithm.cfg
    s, s2, a = batch.observations[:, 0], batch.next_observations[:, 0], batch.actions.flatten(1)
    size, flat = len(s), a.shape[1]

    def q_of(name: str, s: Tensor, a: Tensor) -> Tensor:
        x = torch.cat([s, a], -1)
        return torch.stack(
            [gelu_perceptron(leaves[name], "net.", x, k)[..., 0] for k in range(cfg.num_critics)]
        )

    def velocity(s: Tensor, x: Tensor, t: Tensor) -> Tensor:
        return gelu_perceptron(leaves["policy"], "network.trunk.", torch.cat([s, x, t], -1))

    with torch.no_grad():
        x = random.normal((size * 4, 1, 3, 2)).reshape(size, 4, flat)
        many = s2[:, None].expand(-1, 4, -1)
        for k in range(3):
            x = x + velocity(many, x, torch.full((size, 4, 1), k / 3)) / 3
        x = x.clamp(-1, 1)
        values = q_of("critic", many, x)  # [E, B, 4]
        values = values.min(0).values if cfg.q_aggregate == "min" else values.mean(0)
        a2 = torch.stack([x[b, values[b].argmax()] for b in range(size)])
        q2 = q_of("critic_target", s2, a2)  # [E, B]
        deviation = ((q2 - q2.mean(0)) ** 2).mean(0).sqrt()
        q2 = q2.min(0).values if cfg.q_aggregate == "min" else q2.mean(0) - cfg.rho * deviation
        y = batch.rewards + batch.discount * q2
    x0 = random.normal((1, size, 3, 2)).reshape(size, flat)
    t = 1 - random.uniform((1, size))[0, :, None]
    errors = (velocity(s, (1 - t) * x0 + t * a, t) - (a - x0)) ** 2
    weights = torch.ones(size) if batch.weights is None else batch.weights
    squares = (q_of("critic", s, a) - y) ** 2 * weights
    mask = batch.valid.repeat_interleave(2, 1)  # one number per action dimension
    return {"critic": squares.mean(), "policy": (errors * mask).mean()}


def test_ensembles_are_aggregated_by_minimum_or_by_mean_and_population_deviation():
    q = torch.tensor([[1.0, 2.0], [3.0, 2.0], [8.0, 2.0]])
    assert aggregate_q(q, "min").tolist() == [1, 2]
    assert aggregate_q(q).tolist() == [4, 2]
    variance = ((1 - 4) ** 2 + (3 - 4) ** 2 + (8 - 4) ** 2) / 3
    close(aggregate_q(q, "mean", 0.5), torch.tensor([4 - 0.5 * variance**0.5, 2.0]))


@pytest.mark.parametrize("aggregate", ["mean", "min"])
def test_the_policy_executes_the_chunk_that_the_target_uses(aggregate: str):
    """Both use the same noise and the trained critics. Target critics would select other chunks."""
    state = start(QC, **SMALL, q_aggregate=aggregate)
    params = {**state.params, "critic_target": {k: -v for k, v in state.params["critic"].items()}}
    state, s = replace(state, params=params), torch.randn(64, 1, 3)
    chunks = state.algorithm.best_chunks(state, s)
    head = state.algorithm.acting_head()
    head.load_state_dict(state.algorithm.acting_params(state.params))
    (noise,) = state.random.given
    executed, _ = head.decide(s, {}, noise.reshape(64, *head.noise_shape))
    assert (head.chunk_size, head.n_action_steps) == (3, 3)
    torch.testing.assert_close(chunks, executed)


def test_with_one_sample_the_chunk_is_the_flows():
    state = start(QC, **SMALL | {"num_samples": 1})
    s = torch.randn(8, 1, 3)
    chunks = state.algorithm.best_chunks(state, s)
    expected, _ = state.policy.decide(s, {}, state.random.given[0])
    assert torch.equal(chunks, expected)


def test_critics_and_rewards_do_not_change_how_the_policy_learns():
    state, batch = start(QC, **SMALL), made_chunks()
    critic = {k: -3 * v for k, v in state.params["critic"].items()}
    other = replace(state, params={**state.params, "critic": critic})
    one, _ = step(state, batch, 0)
    two, _ = step(other, replace(batch, rewards=batch.rewards + 5), 0)
    for k, value in one.params["policy"].items():
        assert torch.equal(value, two.params["policy"][k])


def test_chunks_of_weight_zero_are_imitated_but_teach_the_critics_nothing():
    state, batch = start(QC, **SMALL), made_chunks()
    cut = batch.weights == 0
    assert 0 < cut.sum() < len(cut)
    one, _ = step(state, batch, 0)
    two, _ = step(state, replace(batch, rewards=torch.where(cut, 9.0, batch.rewards)), 0)
    assert_equal_states(one, two)
    prefix = (cut[:, None] & batch.valid)[..., None]
    three, _ = step(state, replace(batch, actions=torch.where(prefix, 0.5, batch.actions)), 0)
    assert all(torch.equal(x, three.params["critic"][k]) for k, x in one.params["critic"].items())
    bias = "network.trunk.biases.0"
    assert not torch.equal(one.params["policy"][bias], three.params["policy"][bias])


def test_the_option_partial_gives_chunks_cut_short_the_weight_zero():
    """A chunk of three actions fits into five rows if it starts at row 0, 1 or 2."""
    rows = np.arange(5.0)[:, None]
    data = Dataset.from_arrays(rows, rows / 10, rows[:, 0], rows[:, 0] < 0, rows[:, 0] == 4, rows)
    for partial, lightest in (("drop", 0), ("bootstrap", 1)):
        learner = QC(Spec((1,), 1), QC.Config(**SMALL, partial=partial))
        source = learner.source("update", {"offline": ReplayBuffer.from_dataset(data)})
        tensors = {name: values[0] for name, values in source.tensors().items()}
        batch = source.sample(tensors, Recorded(), 64, 0.9)
        expected = torch.where(batch.observations[:, 0, 0] > 2, lightest, 1)
        weights = torch.ones(64) if batch.weights is None else batch.weights
        assert weights.tolist() == expected.tolist()


def test_executes_chunks_of_higher_value_than_those_it_imitates():
    """The data's actions are uniform in [-1, 1]; 0.3 is the best."""
    options = SMALL | {"horizon": 1, "num_samples": 8, "actor_lr": 1e-2, "critic_lr": 1e-2}
    state = start(QC, spec=Spec((1,), 1), **options)
    state, _ = advance(state, *[chunked(hill(seed)) for seed in range(60)])
    s, random = torch.zeros(64, 1, 1), Recorded()
    executed = state.algorithm.best_chunks(replace(state, random=random), s)
    sampled, _ = state.policy.decide(s, {}, random.normal((64, 1, 1, 1)))
    assert (executed - 0.3).abs().mean() < 0.2
    assert (sampled - 0.3).abs().mean() > 0.3


def test_published_settings_belong_to_their_tasks():
    name = "ogbench/puzzle-3x3-play-sparse-singletask-task4-v0"
    assert algorithm_config("qc", name, {})[0].num_samples == 64
    assert algorithm_config("qc", "robomimic/can", {})[0].num_samples == 16
    assert tuned("qc", "ogbench/cube-triple-play-singletask-task2-v0") == (None, {})
    for task, alpha in (
        (name, 300),
        ("ogbench/scene-play-sparse-singletask-v0", 300),
        ("ogbench/cube-double-play-singletask-task1-v0", 300),
        ("ogbench/cube-triple-play-singletask-task1-v0", 100),
        ("robomimic/square", 1e4),
    ):
        cfg, _ = algorithm_config("qc_fql", task, {})
        assert (cfg.alpha, cfg.normalize_q, cfg.horizon) == (alpha, False, 5)


def test_a_pessimism_that_the_minimum_does_not_use_is_refused():
    with pytest.raises(ValueError, match="rho is not used with q_aggregate=min"):
        QC.Config(q_aggregate="min", rho=0.5)


KEYS: dict[str, Any] = {"task": "env:Pendulum-v1", "max_episode_steps": 7, "batch_size": 8}
KEYS |= {"compile": "never", "eval_episodes": 1, "tracker": "none", "show": False, "seeds": 1}
KEYS |= {"algorithm": "qc", "algorithm.hidden": [8], "algorithm.num_samples": 2}
KEYS |= {"algorithm.horizon": 5, "num_updates": 4, "num_env_steps": 26, "checkpoint_every": 17}
KEYS |= {"online.warmup_steps": 9}


@pytest.mark.slow
def test_a_run_that_stops_in_the_middle_of_a_chunk_resumes_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, then online from a checkpoint at environment step 17, the fourth of an episode."""
    keys = KEYS | {"dataset": str(save_small(tmp_path / "data.npz", obs=3, act=1))}
    whole = SeedFolder(offline_rl.train(out=str(tmp_path / "whole"), **keys).path, 0)
    save = Trainer.save

    def save_and_stop(trainer: Trainer) -> None:
        save(trainer)
        if trainer.work.moment.phase == "online":
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "save", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        offline_rl.train(out=str(tmp_path / "resumed"), **keys)
    monkeypatch.undo()
    files = {p.name: p for p in (tmp_path / "resumed").rglob("*.safetensors")}
    stored = load_file(files[max(files, key=lambda name: files[name].stat().st_mtime_ns)])
    assert 0 < stored["memory/_taken"].item() < 5
    resumed = SeedFolder(offline_rl.train(out=str(tmp_path / "resumed"), **keys).path, 0)
    one, two = (load_file(max(f.checkpoints().items())[1]) for f in (whole, resumed))
    assert one.keys() == two.keys()
    assert [k for k in one if not torch.equal(one[k], two[k])] == []
    assert len(one["buffer/rewards"]) == 26
    first = {(seed["updates"], seed["env_steps"]) for seed in whole.rows("evaluations")}
    assert max(first) == (4 + 26 - 9, 26)  # one update per step after the warm-up


def test_n_step_returns_of_chunks_are_refused(tmp_path: Path) -> None:
    keys = KEYS | {"dataset": str(save_small(tmp_path / "data.npz", obs=3, act=1))}
    with pytest.raises(UserError, match=r"online\.n_step=2 is not used: .* horizon=5 actions"):
        offline_rl.train(out=str(tmp_path), **keys | {"online.n_step": 2})


def test_spec_and_horizon_give_the_sizes_of_the_networks():
    state = start(QC, **SMALL)
    assert state.params["critic"]["net.weights.0"].shape == (2, SPEC.observation_dim + 6, 16)
    assert state.params["policy"]["network.trunk.weights.0"].shape[0] == 3 + 6 + 1
