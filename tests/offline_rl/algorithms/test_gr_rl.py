"""GR-RL's critic: two periods by hand, the progress that it learns, and the frames to leave out."""

from dataclasses import replace
from math import erf, sqrt
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from by_hand import SMALL, Recorded, advance, assert_same, close, made_batch, plain, start
from torch import Tensor

from offline_rl import Dataset, train
from offline_rl.algorithms.gr_rl import GRRL, progress
from offline_rl.cli.main import main
from offline_rl.data.writers.d4rl import write
from offline_rl.generation.filtering import progress_of, select
from offline_rl.generation.options import FilterOptions
from offline_rl.replay.batch import Batch
from offline_rl.utils.errors import UserError


def label(y: float, bins: int, smoothing: float) -> list[float]:
    """Return the probability of each bin under a Gaussian around y, truncated to [0, 1]."""
    width = 1 / bins
    below = [
        0.5 * (1 + erf((k * width - y) / (smoothing * width * sqrt(2)))) for k in range(bins + 1)
    ]
    total = below[-1] - below[0]
    return [(b - a) / total for a, b in zip(below[:-1], below[1:], strict=True)]


def made_chunks(seed: int) -> Batch:
    """Return a batch of chunks of two actions; a quarter ends after its first action."""
    batch = made_batch(seed)
    torch.manual_seed(seed + 100)
    valid = torch.stack([torch.ones(32), (torch.arange(32) % 4 > 0).float()], 1).bool()
    return replace(
        batch,
        observations=batch.observations[:, None],
        next_observations=batch.next_observations[:, None],
        actions=torch.rand(32, 2, 2) * 1.8 - 0.9,
        rewards=(torch.arange(32) % 8 == 0).float(),
        valid=valid,
    )


def test_two_periods_equal_plain_pytorch():
    config = {
        "actor_lr": 1e-3,
        "critic_lr": 1e-3,
        "tau": 0.1,
        "alpha": 1.5,
        "horizon": 2,
        "bins": 7,
    }
    first = start(GRRL, **config, **SMALL)
    critic = {k: 3 * v for k, v in first.params["critic"].items()}
    first = replace(first, params=first.params | {"critic": critic, "critic_target": critic})
    batches = [made_chunks(seed) for seed in range(4)]
    state, metrics = advance(first, *batches)

    policy, policy_target = (plain(first.params["policy"], "trunk.") for _ in range(2))
    critics, targets = ([plain(critic, "net.", k) for k in (0, 1)] for _ in "ct")
    policy_adam = torch.optim.Adam(policy.parameters(), lr=1e-3)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=1e-3)
    centers = (torch.arange(7).double() + 0.5) / 7

    def mean(net, s: Tensor, chunks: Tensor) -> Tensor:
        return net(torch.cat([s, chunks], 1)).softmax(1) @ centers

    for count, batch in enumerate(batches):
        s, s2 = batch.observations[:, 0].double(), batch.next_observations[:, 0].double()
        a, r, discount = batch.actions.double(), batch.rewards.double(), batch.discount.double()
        noise = Recorded(count).normal(a.shape).double().flatten(1)
        with torch.no_grad():
            a2 = (policy_target(s2).tanh() + (0.2 * noise).clamp(-0.5, 0.5)).clamp(-1, 1)
            y = r + discount * torch.minimum(*(mean(q, s2, a2) for q in targets))
            labels = torch.tensor([label(value, 7, 0.75) for value in y.clamp(0, 1).tolist()])
        x = torch.cat([s, a.flatten(1)], 1)
        losses = [-(labels * q(x).log_softmax(1)).sum(1).mean() for q in critics]
        critic_adam.zero_grad()
        sum(losses).backward()
        critic_adam.step()
        if count % 2 == 0:
            continue
        pi = policy(s).tanh()
        q = mean(critics[0], s, pi)
        error = ((pi - a.flatten(1)) ** 2).reshape(32, 2, 2).mean(2)[batch.valid].mean()
        loss = error - 1.5 / q.abs().mean().item() * q.mean()
        policy_adam.zero_grad()
        loss.backward()
        policy_adam.step()
        for net, slow in zip([policy, *critics], [policy_target, *targets], strict=True):
            for p, old in zip(net.parameters(), slow.parameters(), strict=True):
                old.data = 0.9 * old.data + 0.1 * p.data

    assert_same(state, "policy", policy, policy_adam, prefix="trunk.")
    assert_same(state, "policy_target", policy_target, prefix="trunk.")
    for k in (0, 1):
        assert_same(state, "critic", critics[k], critic_adam, member=k)
        assert_same(state, "critic_target", targets[k], member=k)
    close(metrics["critic_loss"], sum(losses))
    close(metrics["policy_loss"], loss)


def walks(mistakes: int) -> tuple[Dataset, np.ndarray]:
    """Return walks of step 0.2 from a random start to 1, and which frames step back, [N].

    Some walks step back twice on their way. All of them succeed.
    """
    rng, rows, back = np.random.default_rng(0), [], []
    for episode in range(30):
        x, late, left = rng.uniform(0, 0.4), rng.uniform(0.4, 0.6), 2 * (episode < mistakes)
        while x < 1:
            step = -0.2 if x > late and left else 0.2
            left -= step < 0
            rows.append((x, step, x + step, x + step >= 1))
            back.append(step < 0)
            x += step
    x, step, after, last = (np.array(column) for column in zip(*rows, strict=True))
    zeros = np.zeros(len(x))
    data = Dataset.from_arrays(x[:, None], step[:, None], zeros, last, zeros, after[:, None])
    return data, np.array(back)


def test_progress_is_the_mean_over_the_critics_at_the_chunk_of_the_actor():
    state, rows = start(GRRL, hidden=(4,), horizon=2), [0, 8191, 8192, 8299]
    values = np.random.default_rng(0).normal(size=(8300, 3)).astype(np.float32)
    found = progress(state.algorithm, state.params, values)
    assert found.shape == (8300,)
    s = torch.from_numpy(values[rows])
    q = state.critic(s, state.policy(s[:, None]).flatten(1))
    assert (q[0] - q[1]).abs().max() > 1e-3
    close(torch.from_numpy(found[rows]), (q[0] + q[1]) / 2)
    # a run's observations are normalized first
    zeros = np.zeros((4, 1))
    data = Dataset.from_arrays(5 + 2 * values[rows], zeros, zeros[:, 0], np.arange(4) == 3)
    transform = SimpleNamespace(normalizer=lambda x: (x - 5) / 2)
    parts = {"algorithm": state.algorithm, "parameters": state.params, "transform": transform}
    np.testing.assert_allclose(progress_of(SimpleNamespace(**parts), data), found[rows], atol=1e-5)


def test_the_frames_of_wrong_actions_are_left_out_and_no_others(tmp_path, capsys):
    data, back = walks(mistakes=8)
    write(data, tmp_path / "walks.hdf5")
    options = {"horizon": 1, "hidden": [32, 32], "critic_lr": 3e-3, "tau": 0.05, "discount": 0.8}
    run = train(
        algorithm="gr_rl",
        task="none",
        dataset=str(tmp_path / "walks.hdf5"),
        num_updates=400,
        batch_size=64,
        out=str(tmp_path / "runs"),
        compile="never",
        tracker="none",
        **{f"algorithm.{k}": v for k, v in options.items()},
    )
    target = tmp_path / "filtered.hdf5"
    command = ["data", "filter", str(run.path), str(target), "window=1"]
    assert main([*command, f"quantile={1 - back.mean():.3f}"]) == 0
    assert "in 8 of 30 episodes" in capsys.readouterr().out
    with h5py.File(target) as file:
        wrong = file["actions"][:, 0] < 0
    assert wrong.sum() <= 1
    write(data.select(range(29)), tmp_path / "walks.hdf5")
    assert main(["data", "filter", str(run.path), str(tmp_path / "other.hdf5")]) == 2
    assert "has changed since" in capsys.readouterr().err
    assert len(wrong) == pytest.approx((~back).sum(), abs=1)


def test_the_filter_keeps_frames_up_to_delta_and_ignores_those_after_the_task():
    zeros = np.zeros(6)
    rewards = np.array([0, 0, 0, 0, 1, 1.0])
    data = Dataset.from_arrays(zeros[:, None], zeros[:, None], rewards, zeros, np.arange(6) == 5)
    values = np.array([0.1, 0.4, 0.3, 0.5, 0.9, 0.2])

    def rows_of(**options) -> list[int]:
        keep, _ = select(values, data, FilterOptions(**options), horizon=1, success_reward=1.0)
        return np.flatnonzero(keep).tolist()

    assert rows_of(delta=0.05) == [0, 2, 3, 4, 5]
    assert rows_of(delta=0.05, window=2) == [2, 3, 4, 5]
    assert rows_of(delta=0.2, window=2) == [0, 1, 2, 3, 4, 5]
    assert rows_of(quantile=0.5, window=2) == [2, 3, 4, 5]
    keep, _ = select(values, data, FilterOptions(delta=0.05), horizon=2, success_reward=1.0)
    assert np.flatnonzero(keep).tolist() == [2, 3, 4, 5]  # the default window is the horizon
    # of the five falls up to the end of the task, 0, 0, 0, 0.1 and 0.1, the fourth
    assert rows_of(quantile=0.75, window=2) == [0, 1, 2, 3, 4, 5]


def test_retries_are_read_from_the_file_if_the_option_infos_is_set(tmp_path):
    data, back = walks(mistakes=8)
    write(replace(data, extras={"infos/retry": back.astype(np.float32)}), tmp_path / "walks.hdf5")
    keys = {"dataset": str(tmp_path / "walks.hdf5"), "num_updates": 2, "out": str(tmp_path)}
    keys |= {"algorithm.retries": "infos/retry", "algorithm.hidden": [8], "tracker": "none"}
    with pytest.raises(UserError, match="has no column 'infos/retry'"):
        train(algorithm="gr_rl", task="none", **keys)
    train(algorithm="gr_rl", task="none", infos=True, **keys)


def test_only_runs_of_gr_rl_can_filter(tmp_path, capsys):
    data, _ = walks(mistakes=0)
    run = train(
        algorithm="bc", task="none", dataset=data, num_updates=1, out=str(tmp_path), tracker="none"
    )
    assert main(["data", "filter", str(run.path), str(tmp_path / "new.hdf5")]) == 2
    assert "is a run of bc. Filter with a run of gr_rl" in capsys.readouterr().err
