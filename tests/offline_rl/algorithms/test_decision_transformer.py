"""Decision Transformer: its loss and optimizer by hand, its windows, and its target return."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import Recorded, advance, close, completed, start, taught
from printed import evaluate
from small_data import save_small

import envs
import policies
from offline_rl.algorithms.decision_transformer import DT
from offline_rl.data import Dataset
from offline_rl.training.sources import offline_source
from offline_rl.training.train import train
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build
from offline_rl.utils.seeds import EVALUATION_SEED
from policies.heads.decision_transformer import DecisionTransformer
from policies.spec import Spec

SMALL = {"context_length": 4, "dim_model": 8, "num_layers": 1, "episode_steps": 20}
AIM = {"target_return": 3.0, "return_scale": 2.0}
pytestmark = pytest.mark.xdist_group("decision_transformer")  # one run for all that ask for it


def episodes(**replaced) -> Dataset:
    """Return three rows and a terminal one, then five rows and a time limit without a successor."""
    number = np.arange(10, dtype=np.float32)[:, None]
    ended, cut = number[:, 0] == 3, number[:, 0] == 9
    columns = {"observations": number, "actions": number / 10, "rewards": number[:, 0] ** 2}
    return Dataset.from_arrays(**(columns | replaced), terminated=ended, truncated=cut)


def sampled(size: int = 64, *, data: Dataset | None = None, **config):
    """Return a state and a batch of its windows."""
    state = start(DT, spec=Spec((1,), 1), **(SMALL | AIM | config))
    learner = state.algorithm
    data = learner.prepare(data or episodes())[0]
    source = learner.source("update", {"offline": offline_source(learner, data)})
    tensors = {k: v[0] for k, v in source.tensors().items()}
    return state, source.sample(tensors, Recorded(), size, learner.cfg.discount)


def test_counted_rewards_become_their_increases():
    """Two episodes complete two and three subtasks; returns-to-go count those still to do."""
    counts = np.array([0, 1, 1, 2, 0, 0, 1, 1, 2, 3], np.float32)
    data = episodes(rewards=counts)
    cfg = completed(DT, data, DT.Config(counted=True))
    assert (cfg.target_return, cfg.return_scale) == (3.0, 3.0)
    _, batch = sampled(500, data=data, counted=True)
    to_go = np.array([2, 2, 1, 1, 3, 3, 3, 2, 2, 1])
    first = batch.observations[:, 0, 0].round().long()
    assert set(first.tolist()) == set(range(10))
    np.testing.assert_allclose(batch.mc_returns[:, 0], to_go[first], atol=1e-6)


def test_windows_have_time_steps_and_returns_of_one_episode():
    _, batch = sampled(500)
    rewards = np.arange(10.0) ** 2
    starts = set()
    for k in range(500):
        first = round(batch.observations[k, 0, 0].item())
        end = 4 if first < 4 else 10
        rows = [min(first + j, end - 1) for j in range(4)]
        valid = [first + j < end for j in range(4)]
        assert batch.observations[k, :, 0].tolist() == rows
        assert batch.actions[k, :, 0].tolist() == pytest.approx([row / 10 for row in rows])
        assert batch.valid[k].tolist() == valid
        assert batch.timesteps[k].tolist() == [row - (0 if row < 4 else 4) for row in rows]
        assert batch.mc_returns[k].tolist() == [rewards[row:end].sum() for row in rows]
        starts.add(first)
    assert starts == set(range(10))  # the row before the unknown observation as well


def test_updates_equal_torchs_adamw_on_the_mean_over_real_steps():
    """The learning rate rises over five updates; gradient clipping and weight decay; no dropout."""
    config = {"lr": 1e-2, "weight_decay": 0.1, "max_grad_norm": 0.05, "num_warmup_updates": 3}
    state, batch = sampled(dropout=0.0, **config)
    net = DecisionTransformer(1, 1, **SMALL, **AIM)
    net.load_state_dict({k: v.clone() for k, v in state.params["policy"].items()})
    adam = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)
    rate = torch.optim.lr_scheduler.LambdaLR(adam, lambda done: min((done + 1) / 3, 1))
    assert 0 < batch.valid.sum() < batch.valid.numel()
    for _ in range(5):
        s, a, places = batch.observations, batch.actions, batch.timesteps.long()
        answers = net(s, a, batch.mc_returns, places, batch.valid)
        errors = [(answers[k, j] - a[k, j]) ** 2 for k, j in batch.valid.nonzero().tolist()]
        loss = torch.cat(errors).mean()
        adam.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        assert norm > 0.05
        adam.step()
        rate.step()
    state, metrics = advance(state, *[batch] * 5)
    close(metrics["policy_loss"], loss)
    keys = slice(8, 16)  # a bias of keys changes nothing: its gradient is rounding alone
    for name, value in net.state_dict().items():
        found = state.params["policy"][name]
        if "attention_in.biases" in name:
            found, value = (torch.cat([x[: keys.start], x[keys.stop :]]) for x in (found, value))
        close(found, value)


def test_padding_does_not_change_the_loss():
    state, batch = sampled(dropout=0.0)
    _, before = advance(state, batch)
    torch.manual_seed(0)
    filled = {}
    for name in ("observations", "actions", "mc_returns", "timesteps"):
        column = getattr(batch, name)
        valid = batch.valid if column.dim() == 2 else batch.valid[..., None]
        filled[name] = torch.where(valid, column, torch.rand_like(column))
    _, after = advance(state, replace(batch, **filled))
    assert before["policy_loss"].item() == pytest.approx(after["policy_loss"].item(), rel=1e-5)


def test_acts_like_the_data_with_the_target_return():
    """One observation: +0.5 earned 1 and -0.5 earned 0. The policy follows its target return."""
    rows = np.zeros((64, 1), np.float32)
    paid = np.arange(64) % 2
    ended = np.ones(64, bool)
    data = Dataset.from_arrays(rows, paid[:, None] - 0.5, paid.astype(np.float32), ended)
    config = {"lr": 1e-2, "num_warmup_updates": 1, "target_return": 1.0, "return_scale": 1.0}
    config |= SMALL | {"dim_model": 16, "dropout": 0.0}
    state = taught(DT, data, num_updates=120, **config)
    net = DecisionTransformer(1, 1, **(SMALL | {"dim_model": 16}), target_return=0.0)
    net.load_state_dict(dict(state.params["policy"]))
    for target in (1.0, 0.0):
        net.target_return = target
        action, _ = net.decide(torch.zeros(1, 1, 1), net.initial_memory(1), torch.zeros(1, 0))
        assert action.item() == pytest.approx(target - 0.5, abs=0.15)


def test_null_options_are_set_from_the_data():
    data = episodes(rewards=-(np.arange(10, dtype=np.float32)))
    cfg = completed(DT, data, DT.Config())
    assert (cfg.target_return, cfg.return_scale) == (-6.0, 39.0)
    given = completed(DT, data, DT.Config(target_return=5.0, return_scale=7.0))
    assert (given.target_return, given.return_scale) == (5.0, 7.0)
    with pytest.raises(ValueError, match="target_return and return_scale are null"):
        DT(Spec((1,), 1), DT.Config()).networks()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"reward_scale": 0.1}, "Use return_scale"),
        ({"normalize_returns": True}, "Use return_scale"),
        ({"return_scale": 0.0}, "return_scale"),
        ({"num_heads": 3}, "num_heads=3 does not divide dim_model=128"),
        ({"context_length": 0}, "context_length"),
    ],
)
def test_invalid_options_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        build(DT.Config, values)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train two seeds for a few updates, evaluated in two episodes of 100 steps each."""
    folder = tmp_path_factory.mktemp("dt")
    save_small(folder / "small.npz")
    return train(
        algorithm="decision_transformer",
        task="neorl2/DMSD",
        dataset=str(folder / "small.npz"),
        out=str(folder),
        num_updates=6,
        seeds=2,
        eval_episodes=2,
        compile="never",
        tracker="none",
        device="cpu",
        show=False,
        **{f"algorithm.{k}": v for k, v in (SMALL | {"num_warmup_updates": 2}).items()},
    )


def test_the_bundle_reproduces_the_last_evaluation(run):
    """History and return-to-go are on the device in training, later in the bundle's memory."""
    for seed in (0, 1):
        policy = policies.load(run.path / f"seed_{seed}" / "policy.bundle")
        returns = []
        for episode in range(2):
            env = envs.make("neorl2/DMSD")
            observation, _ = env.reset(seed=EVALUATION_SEED + episode)
            state, reward, total, over = None, None, 0.0, False
            while not over:
                chunk, state = policy.act(observation, state, reward)
                assert chunk.shape == (1, 2)
                observation, reward, terminated, truncated, _ = env.step(chunk[0])
                total, over = total + float(reward), terminated or truncated
            returns.append(total)
        assert returns == pytest.approx(run.results[seed]["returns"], rel=1e-4)


def test_a_bundle_can_be_scored_at_another_target(run):
    bundle = run.path / "seed_0" / "policy.bundle"
    best = policies.load(bundle).bundle.arguments["target_return"]
    rewards = np.load(Path(run.results[0]["dataset"]))["reward"]
    assert best == pytest.approx(max(rewards[k : k + 100].sum() for k in (0, 100, 200)), rel=1e-5)
    texts = [evaluate(run=str(bundle), episodes=2, target_return=t) for t in (best, 50 * best)]
    tables = [text[: text.index("Saved")] for text in texts]
    assert tables[0] != tables[1]
    assert evaluate(run=str(bundle), episodes=2).startswith(tables[0])


def test_a_policy_with_memory_needs_the_reward(run):
    policy = policies.load(run.path / "seed_0" / "policy.bundle")
    observations = np.zeros((3, 6), np.float32)
    _, state = policy.act(observations)
    with pytest.raises(ValueError, match="After the first call"):
        policy.act(observations, state)
    with pytest.raises(ValueError, match="expected 3 finite numbers"):
        policy.act(observations, state, np.zeros(2))
    with pytest.raises(ValueError, match="expected 3 finite numbers"):
        policy.act(observations, state, np.full(3, np.nan))
    with pytest.raises(ValueError, match="state is for 3 episodes"):
        policy.act(observations[:2], state, np.zeros(2))
    with pytest.raises(policies.BundleError, match="has no argument temperature"):
        policies.load(run.path / "seed_0" / "policy.bundle", temperature=1.0)
