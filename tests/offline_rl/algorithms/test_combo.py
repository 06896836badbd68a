"""COMBO: updates by hand, where Q is lowered and raised, and the two forms of the log-sum-exp."""

import math
from dataclasses import replace

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

from offline_rl.algorithms.combo import COMBO, Config

SMALL = {"hidden": (16, 16), "members": 3, "elites": 2, "dynamics_hidden": (8,)}
SMALL |= {"dynamics_decay": (1e-5,), "actor_anneals": False, "num_samples": 4}


def mixed_batch(seed: int):
    """Return a batch in which every second transition is predicted."""
    batch = made_batch(seed)
    return replace(batch, imagined=(torch.arange(len(batch.rewards)) % 2).float())


def warm(**config):
    """Return the state of a new learner with the temperature 2."""
    state = start(COMBO, **SMALL, **config)
    log_alpha = {"value": torch.tensor(math.log(2))}
    return replace(state, params={**state.params, "log_alpha": log_alpha})


@pytest.mark.parametrize(("samples", "states"), [("all", "model"), ("repeat", "mix")])
def test_updates_equal_plain_pytorch(samples, states):
    """Order: actor, temperature, critics. Critics use the new actor, and targets no entropy."""
    options = {"conservatism": 0.7, "tau": 0.1, "actor_lr": 1e-3, "critic_lr": 2e-3}
    options |= {"alpha_lr": 3e-3, "logsumexp_samples": samples, "states": states}
    first, batches = warm(**options), (mixed_batch(1), mixed_batch(2))
    state, metrics = advance(first, *batches)

    policy = plain(first.params["policy"], "trunk.")
    critics, targets = (
        [plain(first.params["critic"], "net.", k) for k in (0, 1)] for _ in range(2)
    )
    log_alpha = torch.tensor(math.log(2), dtype=torch.float64, requires_grad=True)
    actor_adam = torch.optim.Adam(policy.parameters(), 1e-3)
    alpha_adam = torch.optim.Adam([log_alpha], 3e-3)
    critic_adams = [torch.optim.Adam(q.parameters(), 2e-3) for q in critics]
    for count, batch in enumerate(batches):
        s, a, r, discount, s2 = doubles(batch)
        random, alpha = Recorded(count), log_alpha.exp().item()

        def numbers(*shape, random=random):
            return random.normal(shape).double()

        pi, log_pi = squashed(policy(s), numbers(32, 2))
        q = torch.minimum(*[value_of(q, s, pi) for q in critics])
        policy_loss = (alpha * log_pi - q).mean()
        descend(policy_loss, actor_adam)
        descend(-log_alpha * (log_pi.mean().detach() - 2), alpha_adam)

        rows = torch.arange(1, 32, 2) if states == "model" else torch.arange(32)
        with torch.no_grad():
            a2, _ = squashed(policy(s2), numbers(32, 2))
            y = r + discount * torch.minimum(*[value_of(q, s2, a2) for q in targets])
            now = squashed(policy(s[rows]), numbers(4, len(rows), 2))
            later = squashed(policy(s2[rows]), numbers(4, len(rows), 2))
            uniform = 2 * random.uniform((4, len(rows), 2)).double() - 1
        td, penalty = [], []
        for q in critics:
            density = 2 * math.log(0.5)
            kinds = torch.stack(
                [value_of(q, s[rows], b) - d for b, d in ((uniform, density), now, later)]
            )  # [3, N, R]
            high = kinds.logsumexp(0) if samples == "repeat" else kinds.logsumexp((0, 1))
            value = value_of(q, s, a)
            td.append((value - y).square().mean())
            penalty.append(high.mean() - value[::2].mean())
        for k, adam in enumerate(critic_adams):
            descend(td[k] + 0.7 * penalty[k], adam)
        follow(targets, critics, 0.1)

    assert_same(state, "policy", policy, actor_adam, prefix="trunk.")
    assert_same_number(state, "log_alpha", log_alpha, alpha_adam)
    for k in (0, 1):
        assert_same(state, "critic", critics[k], critic_adams[k], member=k)
        assert_same(state, "critic_target", targets[k], member=k)
    close(metrics["critic_loss"], sum(td))
    close(metrics["penalty"], sum(penalty) / 2)
    close(metrics["policy_loss"], policy_loss)


@pytest.mark.parametrize(
    ("states", "column", "changed", "matters"),
    [
        ("model", "observations", 1, True),  # Q is lowered in predicted states
        ("model", "actions", 1, False),  # and not raised at predicted actions
        ("model", "next_observations", 0, False),  # Q is not lowered in real states
        ("mix", "next_observations", 0, True),
        ("mix", "actions", 1, False),
        ("mix", "actions", 0, True),  # Q is raised at the data's actions
    ],
)
def test_q_is_lowered_in_the_chosen_states_and_raised_on_the_data(states, column, changed, matters):
    """changed: the transitions whose column changes, 1 for predicted and 0 for real ones."""
    state, batch = warm(states=states, actor_lr=0.0), mixed_batch(1)
    values = getattr(batch, column)
    mask = (batch.imagined == changed)[:, None]
    other = replace(batch, **{column: torch.where(mask, -0.5 * values, values)})
    penalties = [advance(state, each)[1]["penalty"].item() for each in (batch, other)]
    assert (abs(penalties[0] - penalties[1]) > 1e-4) == matters


def test_a_log_sum_exp_of_all_samples_exceeds_that_of_repeats():
    """Jensen's inequality is log mean_n exp(x_n) >= mean_n x_n, here with N = 4 repeats.

    Equality requires that all repeats have the same sum, so random samples differ from it.
    """
    penalty = {
        kind: advance(warm(logsumexp_samples=kind), mixed_batch(1))[1]["penalty"].item()
        for kind in ("all", "repeat")
    }
    assert penalty["all"] - math.log(4) > penalty["repeat"] + 1e-3


def test_batches_need_real_and_predicted_transitions():
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match="COMBO needs both"):
            Config(real_share=share)
