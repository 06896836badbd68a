"""PPO: the clipped loss stops the policy, and two epochs visit each step twice."""

import torch

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.ppo import PPO, Config
from offline_rl.replay.rollouts import Decisions
from offline_rl.utils.random import Random
from policies import Spec


def make(**options: float) -> tuple[PPO, State]:
    algorithm = PPO(Spec((3,), 2), Config(hidden=(8,), value_hidden=(8,), **options))
    tree = algorithm.initial()
    random = Random(torch.tensor(0), torch.tensor(0))
    return algorithm, State(algorithm, tree["params"], tree["optimizer"], random)


def decisions(state: State, log_ratio: float) -> Decisions:
    """Return steps whose old log densities are lower by `log_ratio`; two better, two worse."""
    generator = torch.Generator().manual_seed(0)
    s, a = (torch.randn(4, n, generator=generator) for n in (3, 2))
    log_probs = (state.policy.log_prob(s, a) - log_ratio).detach()[:, None]
    columns = {"observations": s[:, None], "samples": a, "log_probs": log_probs}
    columns |= {"advantages": torch.tensor([1.0, 1.0, -1.0, -1.0]), "returns": torch.ones(4)}
    return Decisions(columns, torch.zeros(4), torch.tensor(0))


def policy_moved(log_ratio: float, advantages: list[float]) -> bool:
    algorithm, state = make()
    batch = decisions(state, log_ratio)
    assert isinstance(batch.columns, dict)
    batch.columns["advantages"] = torch.tensor(advantages, dtype=torch.float32)
    new, _ = algorithm.update(state, batch, 0)
    return any((x != state.params["policy"][k]).any() for k, x in new.params["policy"].items())


def test_actions_outside_the_clip_range_stop_the_policy_only_in_their_direction():
    """Standardized, the advantages are +-0.87. Ratios above 1.2 stop better actions alone."""
    assert policy_moved(0.1, [1, 1, -1, -1])
    assert policy_moved(0.5, [1, 1, -1, -1])  # the worse actions still move it back
    algorithm, state = make()
    batch = decisions(state, 0.5)
    _, metrics = algorithm.update(state, batch, 0)
    assert metrics["clipped"] == 1
    # -mean(A x ratio) with the better half cut at 1.2
    adv, ratio = 1 / (4 / 3) ** 0.5, torch.tensor(0.5).exp()
    torch.testing.assert_close(metrics["policy_loss"], -0.5 * adv * 1.2 + 0.5 * adv * ratio)


def test_a_bonus_raises_the_entropy_of_a_policy_without_advantages():
    algorithm, state = make(entropy_weight=1.0)
    batch = decisions(state, 0.0)
    assert isinstance(batch.columns, dict)
    batch.columns["advantages"] = torch.zeros(4)
    new, metrics = algorithm.update(state, batch, 0)
    assert (new.params["policy"]["log_std"] > 0).all()
    # two standard normal dimensions
    torch.testing.assert_close(metrics["entropy"], torch.tensor(2 * 1.4189385))
