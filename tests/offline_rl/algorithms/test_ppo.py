"""PPO: rollouts, and a clipped loss that stops the policy."""

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


def test_samples_are_not_clipped_but_the_actions_are():
    """The density of PPO is that of the samples."""
    algorithm, state = make()
    inputs = {"observations": torch.zeros(2, 1, 3), "noise": torch.tensor([[3.0, 0], [0, -3]])}
    result = algorithm.decide(state, inputs)
    mean = state.policy.sample(torch.zeros(2, 3), torch.zeros(2, 2))
    torch.testing.assert_close(result["samples"], mean + inputs["noise"])  # log_std is 0
    assert (result["samples"].abs().amax(1) > 1.5).all()
    assert torch.equal(result["actions"][:, 0], result["samples"].clip(-1, 1))


def test_returns_bootstrap_at_a_time_out_and_not_at_a_termination():
    """Two steps in two environments: the first is cut off after step 0, the second terminates."""
    algorithm, state = make(trace=1.0, scale_rewards=False, discount=0.5)
    draw = torch.Generator().manual_seed(1)
    data = {
        name: torch.randn(2, 2, *shape, generator=draw)
        for name, shape in {
            "observations": (1, 3),
            "next_observations": (1, 3),
            "samples": (2,),
            "rewards": (1,),
        }.items()
    }
    data |= {"executed": torch.ones(2, 2, 1), "so_far": torch.zeros(2), "moments": torch.zeros(3)}
    data |= {"terminated": torch.zeros(2, 2), "truncated": torch.zeros(2, 2)}
    data["truncated"][0, 0] = data["terminated"][0, 1] = 1
    found = algorithm.compute_advantages(state, data)
    r, v2 = data["rewards"][..., 0], state.value(data["next_observations"][:, :, 0])
    expected = r + 0.5 * v2
    expected[0, 1] = r[0, 1]
    torch.testing.assert_close(found["returns"], expected)
    v = state.value(data["observations"][:, :, 0])
    torch.testing.assert_close(found["advantages"], expected - v)
    mean = state.policy.sample(data["observations"][:, :, 0], torch.zeros(2, 2, 2))
    density = torch.distributions.Normal(mean, 1.0).log_prob(data["samples"]).sum(-1)
    torch.testing.assert_close(found["log_probs"][..., 0], density)
