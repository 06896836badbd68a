"""SAC-Lagrangian: an update in plain PyTorch, the moving limit, and a multiplier that acts."""

from dataclasses import replace

import pytest
import torch
from by_hand import (
    SPEC,
    Recorded,
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

from offline_rl.algorithms.common.base import Interaction, State
from offline_rl.algorithms.sac_lag import SACLag

SMALL = {"hidden": (16, 16), "target_cost": 5.0, "episode_steps": 100}


def with_costs(seed: int = 1):
    return replace(made_batch(seed), costs=(torch.arange(32) % 3 == 0).float())


def test_two_updates_equal_plain_pytorch():
    """The multiplier of an update is that of the previous one, which starts at 0.

    Multiplier: KP max(e, 0) + KI max(sum of e, 0) + KD max(change of e, 0); Stooke et al., alg. 2.
    """
    gains = {"proportional_gain": 2.0, "integral_gain": 3.0, "derivative_gain": 4.0}
    state = start(SACLag, tau=0.1, cost_discount=0.9, **gains, **SMALL | {"target_cost": 0.01})
    policy = plain(state.params["policy"], "trunk.")
    nets = {
        name: [plain(state.params[name], "net.", k) for k in range(2)]
        for name in ("critic", "critic_target", "cost_critic", "cost_critic_target")
    }
    log_alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
    adams = {
        name: torch.optim.Adam([p for net in nets[name] for p in net.parameters()], 3e-4)
        for name in ("critic", "cost_critic")
    }
    adams |= {"policy": torch.optim.Adam(policy.parameters(), 3e-4)}
    adams |= {"log_alpha": torch.optim.Adam([log_alpha], 3e-4)}
    multiplier = integral = previous = torch.zeros((), dtype=torch.float64)
    limit = 0.01 / 100 * sum(0.9**k for k in range(100))

    def values(name, s, a):
        return torch.stack([value_of(net, s, a) for net in nets[name]])

    for count in range(2):
        batch, random = with_costs(count), Recorded(count)
        s, a, _, _, s2 = doubles(batch)
        noise2, noise = random.normal((32, 2)).double(), random.normal((32, 2)).double()
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            a2, log_pi2 = squashed(policy(s2), noise2)
            y = values("critic_target", s2, a2).min(0).values - alpha * log_pi2
            y = batch.rewards + batch.discount * y
            mask = (batch.discount > 0).double()
            y_c = batch.costs + 0.9 * mask * values("cost_critic_target", s2, a2).max(0).values
        losses = {"critic": (values("critic", s, a) - y).square().mean(1).sum()}
        losses["cost_critic"] = (values("cost_critic", s, a) - y_c).square().mean(1).sum()
        for name, loss in losses.items():
            descend(loss, adams[name])
        pi, log_pi = squashed(policy(s), noise)
        cost = values("cost_critic", s, pi).max(0).values.mean()
        reward = (values("critic", s, pi).min(0).values - alpha * log_pi).mean()
        losses["policy"] = (multiplier * cost - reward) / (1 + multiplier)
        used, error = multiplier, (cost - limit).detach()
        descend(losses["policy"], adams["policy"])
        descend(-log_alpha * (log_pi.mean().detach() - 2), adams["log_alpha"])
        integral = (integral + error).clamp(min=0)
        multiplier = 2 * error.clamp(min=0) + 3 * integral + 4 * (error - previous).clamp(min=0)
        previous = error
        for name in ("critic", "cost_critic"):
            follow(nets[f"{name}_target"], nets[name], 0.1)

        state = replace(state, random=Recorded(count))
        state, metrics = state.algorithm.update(state, batch, 0)
        for name, loss in losses.items():
            close(metrics[f"{name}_loss"], loss)
        close(metrics["multiplier"], used)
        close(metrics["cost_excess"], error)
        close(state.multiplier(), multiplier)
    assert_same(state, "policy", policy, adams["policy"], prefix="trunk.")
    assert_same_number(state, "log_alpha", log_alpha, adams["log_alpha"])
    for name, members in nets.items():
        for k, net in enumerate(members):
            assert_same(state, name, net, adams.get(name), member=k)


def limits(start_cost: float | None, phase: str, *done: int) -> list[float]:
    """Return the limits, as costs of an episode, after some of 10 online updates."""
    cfg = SACLag.Config(start_cost=start_cost, **SMALL)
    algorithm = SACLag(SPEC, cfg, 7, Interaction(SACLag.Online(), cfg, 10)).for_phase(phase)
    tree = algorithm.initial()
    states = (State(algorithm, tree["params"], {}, Recorded(), torch.tensor(n)) for n in done)
    discounted = sum(cfg.cost_discount**k for k in range(100)) / 100
    return [float(algorithm.limit(state)) / discounted for state in states]


def test_the_limit_moves_linearly_during_online_training():
    assert limits(25.0, "online", 0, 5, 10, 12) == pytest.approx([25, 15, 5, 5])
    assert limits(1.0, "online", 0, 5, 10) == pytest.approx([1, 3, 5])
    assert limits(25.0, "update", 0, 5) == limits(None, "online", 0, 5) == pytest.approx([5, 5])
