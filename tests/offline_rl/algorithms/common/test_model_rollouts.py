"""Rollouts in a dynamics model, and soft actor-critic on real and predicted transitions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import (
    Recorded,
    advance,
    assert_same,
    assert_same_number,
    close,
    descend,
    doubles,
    follow,
    made_batch,
    plain,
    squashed,
    start,
    value_of,
)
from in_a_model import TINY, filled, plain_facts, started
from torch import Tensor
from torch.utils._pytree import tree_map

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.common.models.rollouts import ModelBased, Prediction
from offline_rl.algorithms.common.schedule import Fill, Learn
from offline_rl.data import Dataset
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.ring import Ring
from offline_rl.utils.errors import UserError
from policies.spec import Spec

# --- one prediction


def test_a_prediction_is_a_sample_of_an_elite_for_each_row():
    """The elite and the noise of each row are random. The reward has noise, too."""
    state, batch = started(), made_batch(3, 400)
    s, a = batch.observations, batch.actions
    found: Prediction = state.algorithm.predict(state, s, a)
    mean, log_variance = (
        x.double().numpy() for x in state.dynamics(torch.cat([s, a], -1))
    )  # [E, B, O + 1]
    mean[..., :3] += s.double().numpy()
    std = np.exp(log_variance / 2)
    random = Recorded(0)
    member = np.array([2, 0])[random.integers(2, (400,)).numpy()]
    noise = random.normal((400, 4)).double().numpy()
    rows = np.arange(400)
    sample = mean[member, rows] + std[member, rows] * noise
    close(found.next_observations, torch.from_numpy(sample[:, :3]))
    close(found.rewards, torch.from_numpy(sample[:, 3]))
    close(found.means, torch.from_numpy(mean))
    close(found.stds, torch.from_numpy(std))
    assert 160 < (member == 2).sum() < 240


# --- rollouts

LINE = Spec((1,), 1)


class Counts(ModelBased):
    """The model adds 1 to the state; the reward is 10 s. In state 6, it predicts NaN."""

    def predict(self, state: State, s: Tensor, a: Tensor) -> Prediction:
        s2 = torch.where(s == 6, torch.nan, s + 1)
        means, stds = (torch.zeros(4, len(s), 2) for _ in "ms")
        return Prediction(s2, 10 * s[:, 0], means, stds)

    def choose_action(self, state: State, s: Tensor) -> Tensor:
        return -s / 100


def counting(cls: type[ModelBased] = Counts, **config: Any) -> State:
    """Return a model on a line of raw states 100 + 2 s. Raw states 120 and 142 end the episode."""
    state = started(cls, LINE, ends="task", **config)
    state.algorithm.facts = plain_facts(
        1,
        center=[100.0],
        width=[2.0],
        ends={"task": lambda s, a, s2: (s2[..., 0] == 120) | (s2[..., 0] == 142)},
    )
    return state


def test_a_rollout_ends_with_an_end_or_without_a_finite_prediction_and_no_later_row_is_stored():
    """The expected rollouts are written by hand, with H = 5.

    A transition to 10 or 21 ends the episode. The prediction in state 6 is NaN.

    From 0: 0 to 4. From 3: 3, 4, 5. From 6: none. From 7: 7, 8, 9, of which 9 -> 10 ends.
    From 9: 9 -> 10. From 20: 20 -> 21.
    """
    rows = filled(counting(horizon=5), torch.tensor([[0.0], [3.0], [6.0], [7.0], [9.0], [20.0]]))
    assert all(len(column) == 5 * 6 for column in rows.values())
    steps = [[0, 3, 7, 9, 20], [1, 4, 8], [2, 5, 9], [3], [4]]
    expected = [float(s) for step in steps for s in step]
    valid = rows["valid"]
    assert rows["observations"][valid, 0].tolist() == expected
    assert rows["next_observations"][valid, 0].tolist() == [s + 1 for s in expected]
    assert rows["actions"][valid, 0].tolist() == pytest.approx([-s / 100 for s in expected])
    assert rows["rewards"][valid].tolist() == [10 * s for s in expected]
    ends = [s in (9, 20) for s in expected]
    assert (rows["terminated"][valid] > 0).tolist() == ends
    assert (rows["truncated"][valid] > 0).tolist() == [not e for e in ends]
    # in the ring, each is an episode of one step that bootstraps unless it ended
    ring = Ring((1,), 1, 40)
    for _ in range(2):
        ring.write({k: v[None] for k, v in rows.items()}, torch.zeros(1))
    tensors: Any = {k: v[0] for k, v in ring.tensors().items()}
    assert int(tensors["size"]) == 2 * len(expected)
    batch = ring.sample(tensors, Recorded(0), 500, 0.9)
    s = batch.observations[:, 0]
    assert set(s.tolist()) == set(expected)
    assert torch.equal(batch.next_observations[:, 0], s + 1)
    torch.testing.assert_close(batch.discount, torch.where((s == 9) | (s == 20), 0.0, 0.9))


@pytest.mark.parametrize("part", ["rewards", "imagined_reward"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_whose_reward_or_penalty_is_not_finite_is_not_stored(part, value):
    class Broken(Counts):
        def predict(self, state: State, s: Tensor, a: Tensor) -> Prediction:
            found = super().predict(state, s, a)
            bad = torch.where(s[:, 0] == 2, value, found.rewards)
            return found._replace(rewards=bad) if part == "rewards" else found

        def imagined_reward(self, state: State, prediction: Prediction, rewards: Tensor) -> Tensor:
            bad = torch.where(rewards == 20, value, rewards)
            return bad if part == "imagined_reward" else rewards

    rows = filled(counting(Broken, horizon=4), torch.tensor([[0.0], [2.0], [3.0]]))
    assert rows["observations"][rows["valid"], 0].tolist() == [0, 3, 1, 4, 5]


def test_rewards_of_the_task_and_clipped_states_replace_predictions():
    """States are clipped to 4.5. The raw reward is 2 s + s' + a, scaled by 0.5, minus 7."""
    state = counting(horizon=2, clamp_states=True, rewards="task")
    facts = {"low": [-9.0], "high": [4.5], "reward_scale": 0.5, "reward_shift": -7.0}
    state.algorithm.facts = replace(
        state.algorithm.facts, **facts, reward=lambda s, a, s2: (2 * s + s2 + a)[..., 0]
    )
    rows = filled(state, torch.tensor([[1.0], [4.0]]))
    assert rows["observations"][:, 0].tolist() == [1, 4, 2, 4.5]
    assert rows["next_observations"][:, 0].tolist() == [2, 4.5, 3, 4.5]
    raw = [(204 + 104, 0.01), (216 + 109, 0.04), (208 + 106, 0.02), (218 + 109, 0.045)]
    expected = [0.5 * (states - action) - 7 for states, action in raw]
    assert rows["rewards"].tolist() == pytest.approx(expected)


def test_rollouts_of_one_and_of_five_steps_agree_on_their_first_step():
    """States of the policy's next steps are those that the model predicted."""
    s = made_batch(5, 20).observations
    one, five = (filled(started(horizon=h), s) for h in (1, 5))
    for name, column in one.items():
        assert torch.equal(five[name][:20], column), name
    assert torch.equal(five["observations"][:20], s)
    assert torch.equal(five["observations"][20:], five["next_observations"][:-20])
    assert len({*five["actions"][::20, 0].tolist()}) == 5


def test_the_policy_acts_at_random_in_rollouts():
    state, s = started(horizon=1), made_batch(5, 20).observations
    noise = Recorded(4).normal((20, 2)).double()
    outputs = plain(state.params["policy"], "trunk.")(s.double())
    close(filled(state, s, update=4)["actions"], squashed(outputs, noise)[0])


# --- updates of soft actor-critic


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha_max": None},
        {"alpha_max": 0.25, "entropy_scale": 3.0, "actor_anneals": False},
        {"entropy_in_target": False},
    ],
)
def test_updates_equal_plain_pytorch(options: Mapping[str, Any]):
    """Order: critics, policy, temperature, target. The temperature is above `alpha_max`."""
    rates = {"actor_lr": 1e-3, "critic_lr": 2e-3, "alpha_lr": 1e-2}
    first = started(tau=0.1, **rates, **options)
    params = {**first.params, "log_alpha": {"value": torch.tensor(0.6)}}
    first = replace(first, params=params)
    first.algorithm.num_updates = 4
    batches = [made_batch(k) for k in range(3)]
    state, metrics = advance(first, *batches)

    policy = plain(first.params["policy"], "trunk.")
    critics, targets = ([plain(first.params["critic"], "net.", k) for k in range(2)] for _ in "ct")
    log_alpha = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    policy_adam = torch.optim.Adam(policy.parameters(), lr=1e-3)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=2e-3)
    alpha_adam = torch.optim.Adam([log_alpha], lr=1e-2)
    most = options.get("alpha_max", 1.0)
    for count, batch in enumerate(batches):
        s, a, r, discount, s2 = doubles(batch)
        random = Recorded(count)
        next_noise, noise = (random.normal(a.shape).double() for _ in range(2))
        alpha = min(log_alpha.exp().item(), np.inf if most is None else most)
        assert alpha == (most or pytest.approx(1.822, rel=0.05))
        with torch.no_grad():
            a2, log_pi2 = squashed(policy(s2), next_noise)
            q2 = torch.stack([value_of(q, s2, a2) for q in targets]).min(0).values
            weight = alpha if options.get("entropy_in_target", True) else 0
            y = r + discount * (q2 - weight * log_pi2)
        critic_loss = sum((value_of(q, s, a) - y).pow(2).mean() for q in critics)
        descend(critic_loss, critic_adam)
        if options.get("actor_anneals", True):
            policy_adam.param_groups[0]["lr"] = 1e-3 * (1 + np.cos(np.pi * count / 4)) / 2
        pi, log_pi = squashed(policy(s), noise)
        q_min = torch.stack([value_of(q, s, pi) for q in critics]).min(0).values
        descend((alpha * log_pi - q_min).mean(), policy_adam)
        entropy = -2 * options.get("entropy_scale", 1.0)
        descend(-log_alpha * (log_pi.mean().item() + entropy), alpha_adam)
        follow(targets, critics, 0.1)

    assert_same(state, "policy", policy, policy_adam, prefix="trunk.")
    for k in range(2):
        assert_same(state, "critic", critics[k], critic_adam, member=k)
        assert_same(state, "critic_target", targets[k], member=k)
    assert_same_number(state, "log_alpha", log_alpha, alpha_adam)
    close(metrics["critic_loss"], critic_loss)
    close(metrics["alpha"], alpha)


def test_only_the_rate_of_the_policy_falls_to_zero_along_a_half_cosine():
    algorithm = start(ModelBased, num_updates=500, **TINY).algorithm
    adams = algorithm.optimizers()
    assert [name for name, adam in adams.items() if adam.schedule is not None] == ["policy"]
    rates = [float(adams["policy"].schedule(torch.tensor(k))) for k in (0, 125, 250, 375, 500)]
    assert rates == pytest.approx([1, 0.5 + 0.125**0.5, 0.5, 0.5 - 0.125**0.5, 0], abs=1e-6)
    assert (adams["policy"].lr, adams["critic"].lr, adams["log_alpha"].lr) == (1e-4, 3e-4, 1e-4)
    constant = start(ModelBased, actor_anneals=False, **TINY).algorithm.optimizers()
    assert constant["policy"].schedule is None


def test_the_standard_deviation_of_the_policy_is_bounded_as_published():
    """log std is at least -5, so that a very certain policy still explores."""
    state = started()
    last = {"trunk.biases.2": torch.full((4,), -99.0)}
    policy = {**state.params["policy"], **last}
    _, log_std = replace(state, params={**state.params, "policy": policy}).policy(torch.zeros(1, 3))
    assert log_std.tolist() == [[-5, -5]]


# --- batches


def sources(real: int = 300, predicted: int = 300) -> dict[str, Any]:
    """Return data with the reward 1, and a ring with the reward -1."""
    draw = np.random.default_rng(0)
    s, s2 = (draw.normal(size=(real, 3)).astype(np.float32) for _ in "ss")
    ends = np.ones(real, bool)
    data = Dataset.from_arrays(s, s[:, :2] / 9, 0 * s[:, 0] + 1, ends, ~ends, s2)
    ring = Ring((3,), 2, predicted)
    rows = {"observations": s, "next_observations": s2, "actions": s[:, :2], "rewards": -1.0 * ends}
    rows |= {"terminated": ~ends, "truncated": ends}
    ring.write({k: torch.tensor(v)[None] for k, v in rows.items()}, torch.zeros(1))
    return {"offline": ReplayBuffer.from_dataset(data), "imagined": ring}


@pytest.mark.parametrize(
    ("share", "size", "count"), [(0.05, 256, 12), (0.5, 256, 128), (0.0, 8, 0), (1.0, 8, 8)]
)
def test_the_data_has_its_share_of_every_batch_rounded_down(share, size, count):
    algorithm = start(ModelBased, batch_size=size, real_share=share, **TINY).algorithm
    source = algorithm.source("update", sources())
    tensors: Any = tree_map(lambda x: x[0], source.tensors())
    for update in range(3):
        batch = source.sample(tensors, Recorded(update), size, 0.99)
        assert int((batch.rewards == 1).sum()) == count
        assert torch.equal(batch.imagined, (batch.rewards == -1).float())


def test_rollouts_start_in_states_of_the_data():
    known = sources()
    assert start(ModelBased, **TINY).algorithm.source("starts", known) is known["offline"]


def test_rollouts_come_before_every_thousand_updates_in_parts_of_ten_thousand():
    algorithm = start(ModelBased, starts=25_000, horizon=3, retain=2, **TINY).algorithm
    fills = [Fill("update", n, "starts", "imagined") for n in (10_000, 10_000, 5_000)]
    work = algorithm.rollouts_and_updates(2_300)
    assert work == [
        *fills,
        Learn("update", 1_000),
        *fills,
        Learn("update", 1_000),
        *fills,
        Learn("update", 300),
    ]
    assert algorithm.schedule(2_300, 0, None)[-12:] == work
    assert algorithm.rings() == {"imagined": 25_000 * 3 * 2}
    assert start(ModelBased, **TINY).algorithm.rings() == {"imagined": 1_250_000}


# --- predictions far outside the data


def test_the_share_of_predicted_states_far_outside_the_data_is_measured_and_limited():
    state, batch = started(), made_batch(1, 8)
    algorithm: Any = state.algorithm
    imagined = torch.tensor([1.0, 1, 1, 1, 1, 0, 0, 0])
    next_observations = torch.zeros(8, 3)
    next_observations[[0, 3, 4, 6], 1] = torch.tensor([3.1, -3.1, 2.9, 50.0])  # range: [-1, 1]
    batch = replace(batch, imagined=imagined, next_observations=next_observations)
    assert algorithm.outside(batch) == {}  # without data, the range is not known
    algorithm.facts = plain_facts(3, low=[-1.0] * 3, high=[1.0] * 3)
    assert algorithm.outside(batch)["outside_data"].item() == pytest.approx(2 / 5)
    assert advance(state, batch)[1]["outside_data"].item() == pytest.approx(2 / 5)
    assert algorithm.outside(replace(batch, imagined=None)) == {}
    none = replace(batch, imagined=torch.zeros(8))
    assert algorithm.outside(none)["outside_data"] == 0
    algorithm.check_phase("update", {"outside_data": np.array([0.5, 0.1])})
    algorithm.check_phase("fit_dynamics", {"dynamics_loss": np.array([7.0])})
    for share in (0.51, np.nan):
        with pytest.raises(
            UserError, match=r"has diverged: .*outside_max=0.5\). Use algorithm.clamp_states"
        ):
            algorithm.check_phase("update", {"outside_data": np.array([0.1, share])})
