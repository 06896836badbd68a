"""FISOR: its weights and feasibility targets, the reward scale, and the executed action."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from by_hand import advance, close, made_batch, start

from offline_rl.algorithms.fisor import FISOR
from offline_rl.data.dataset import Dataset
from offline_rl.data.transform import Transform

SMALL = {"hidden": (16, 16), "width": 8, "blocks": 2, "time_size": 4, "num_samples": 6}


def with_costs(seed: int = 1):
    batch = made_batch(seed)
    return replace(batch, costs=(torch.arange(32) % 3 == 0).float())


def test_weights_switch_on_feasibility():
    """Rows: feasible and safe; feasible but unsafe; both caps; infeasible, better and worse."""
    algorithm = start(FISOR, beta=3.0, cost_beta=5.0, **SMALL).algorithm
    q = torch.tensor([[0.2, 0.9, 9.0, 0.0, 9.0, 9.0], [0.5, 0.8, 9.0, 0.0, 9.0, 9.0]])
    q_h = torch.tensor([[-1.0, 0.1, -0.5, -9.0, 1.0, 2.0], [-0.2, -1.0, 0.0, -9.0, 0.5, 3.0]])
    v, v_h = torch.tensor([0.1] * 6), torch.tensor([-0.1, -0.1, 0.0, 0.1, 1.2, 2.0])
    networks = {"critic_target": lambda s, a: q, "value": lambda s: v}
    networks |= {"cost_critic_target": lambda s, a: q_h, "cost_value": lambda s: v_h}
    weight, feasible = algorithm.weights(
        SimpleNamespace(algorithm=algorithm, **networks), made_batch(0)
    )
    # the smaller Q, the larger Q_h; exp(3 * 0.1); 0; capped twice; exp(5 * 0.2); exp(-5)
    close(weight, [np.exp(0.3), 0, 100, 150, np.exp(1.0), np.exp(-5.0)])
    assert feasible == 0.5


def test_the_feasibility_target_is_the_largest_signal_of_the_future():
    """(1 - gamma) h + gamma max(h, V_h(s')), and h at terminations; V_h is the updated one."""
    state, batch = start(FISOR, cost_discount=0.8, unsafe_signal=4.0, **SMALL), with_costs()
    after, metrics = advance(state, batch)
    v_h = after.cost_value(batch.next_observations).double().numpy()
    h = np.where(batch.costs.numpy() > 0, 4.0, -1.0)
    running = 0.2 * h + 0.8 * np.maximum(h, v_h)
    target = np.where(batch.bootstrap_mask.numpy() > 0, running, h)
    close(metrics["cost_target"], target.mean())
    q_h = state.cost_critic(batch.observations, batch.actions).double().numpy()
    close(metrics["cost_critic_loss"], np.square(q_h - target).mean())


def test_v_h_leans_to_the_safest_action():
    """Errors above Q_h, the larger of both target critics, have the weight 0.9 in the loss."""
    state, batch = start(FISOR, **SMALL), with_costs()
    q_h = state.cost_critic_target(batch.observations, batch.actions).double().numpy().max(0)
    v_h = state.cost_value(batch.observations).double().numpy()
    loss = np.where(v_h > q_h, 0.9, 0.1) * np.square(q_h - v_h)
    close(advance(state, batch)[1]["cost_value_loss"], loss.mean())


def test_the_policy_is_updated_before_the_values_and_on_each_part_of_the_batch():
    """The old values give the weights. With two parts, the metrics are those of the second."""
    state, batch = start(FISOR, policy_updates=2, critic_rows=8, **SMALL), with_costs()
    after, metrics = advance(state, batch)
    second = {k: v[16:] for k, v in vars(batch).items() if v is not None}
    weight, _ = state.algorithm.weights(state, replace(batch, **second))
    close(metrics["weight"], weight.mean())
    assert after.optimizer["model"]["count"]["steps"] == 2
    first = {k: v[:8] for k, v in vars(batch).items() if v is not None}
    alone, _ = advance(start(FISOR, **SMALL), replace(batch, **first))
    for name in ("critic", "value", "cost_critic", "cost_value"):
        for key, x in alone.params[name].items():
            torch.testing.assert_close(after.params[name][key], x, atol=1e-6, rtol=1e-5)


def test_returns_span_the_length_of_an_episode():
    ends = np.isin(np.arange(70), [19, 69])  # 20 and 50 steps
    rewards = np.random.default_rng(0).normal(size=70)
    data = Dataset.from_arrays(np.zeros((70, 3)), np.zeros((70, 2)), rewards, ends & False, ends)
    algorithm = start(FISOR, **SMALL).algorithm
    _, cfg = algorithm.prepare(data)
    scaled = Transform.fit(cfg, data, (3,)).apply_to_rewards(rewards)
    np.testing.assert_allclose(abs(scaled[:20].sum() - scaled[20:].sum()), 50, rtol=1e-5)
    algorithm.cfg = replace(algorithm.cfg, reward_scale=2.0)
    assert algorithm.prepare(data)[1].reward_scale == 2
    algorithm.cfg = replace(algorithm.cfg, reward_scale=None, normalize_returns=False)
    assert algorithm.prepare(data)[1].reward_scale == 1


def test_the_sample_of_the_lowest_highest_cost_is_executed():
    state = start(FISOR, **SMALL)
    changed = {k: v + 0.3 * torch.randn_like(v) for k, v in state.params["policy"].items()}
    state = replace(state, params=state.params | {"policy": changed})
    head = state.algorithm.acting_head()
    head.load_state_dict(state.algorithm.acting_params(state.params))
    s, noise = torch.randn(32, 1, 3), torch.randn(32, *head.noise_shape)
    samples = torch.stack([state.policy.decide(s, {}, noise[:, n])[0][:, 0] for n in range(6)], 1)
    costs = state.cost_critic_target(s.expand(-1, 6, -1), samples)  # [E, B, N]
    chosen = np.argmin(np.max(costs.numpy(), 0), 1)
    executed, _ = head.decide(s, {}, noise)
    torch.testing.assert_close(executed[:, 0], samples[torch.arange(32), torch.from_numpy(chosen)])
    assert (chosen != np.argmin(np.min(costs.numpy(), 0), 1)).any()


@pytest.mark.parametrize("name", ["policy_updates", "critic_rows"])
def test_more_parts_or_rows_than_a_batch_has_are_refused(name):
    with pytest.raises(ValueError, match=rf"{name}=65 is more than batch_size=64\. Lower it\."):
        FISOR.Config(batch_size=64, **{name: 65})
