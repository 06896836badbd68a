"""MOBILE: the inconsistency in closed form, and targets of real and predicted transitions."""

from dataclasses import replace

import pytest
import torch
from by_hand import Recorded, close, made_batch, start

from offline_rl.algorithms.mobile import MOBILE, Config

SMALL = {"hidden": (2,), "members": 4, "elites": 3, "dynamics_hidden": (2,)}
SMALL |= {"dynamics_decay": (1e-5,), "scale_inputs": False, "real_share": 0.5}
SHIFTS = torch.tensor([0.3, -0.5, 9.0, 1.1])  # each member's change of the first observation
ALPHA = torch.tensor(0.1)


def learner(noise: float = 0.0, **config):
    """Return a state whose critics are Q(s, a) = s_0, the lower one, and Q(s, a) = 100 - s_0.

    The dynamics model's members add SHIFTS and normal noise to s_0. The third member, with the
    largest holdout error, is no elite.
    """
    state = start(MOBILE, **SMALL | config)
    count = len(state.params["critic"]["net.weights.0"])
    first, last = torch.zeros(count, 5, 2), torch.zeros(count, 2, 1)
    first[:, 0] = torch.tensor([1.0, -1.0])  # relu(s_0) - relu(-s_0) = s_0
    last[:, :, 0] = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    biases = [torch.zeros(count, 1, 2), torch.tensor([0.0, 100.0])[:, None, None]]
    target = {"net.weights.0": first, "net.weights.1": last}
    target |= {"net.biases.0": biases[0], "net.biases.1": biases[1]}
    model = {k: torch.zeros_like(v) for k, v in state.params["dynamics"].items()}
    level = torch.tensor(noise).clamp(min=1e-12).square().log()  # of the variance
    model["most"], model["least"] = torch.full((4,), 30.0), torch.full((4,), -60.0)
    model["net.biases.1"][:, 0, 0] = SHIFTS
    model["net.biases.1"][:, 0, 4:] = level
    record = {**state.params["record"], "error": torch.tensor([0.3, 0.1, 0.7, 0.2])}
    params = {**state.params, "critic_target": target, "dynamics": model, "record": record}
    return replace(state, params=params)


def mixed_batch():
    """Return a batch in which every second transition is predicted."""
    batch = made_batch(1)
    return replace(batch, imagined=(torch.arange(len(batch.rewards)) % 2).float())


def targets(state, batch=None):
    batch = mixed_batch() if batch is None else batch
    return state.algorithm.target(replace(state, random=Recorded()), batch, ALPHA)


def test_the_penalty_is_the_standard_deviation_of_the_elites_values_on_predicted_rows():
    """Q(s', a') = s'_0, so a member's value is s_0 + shift, and u is the same in every state."""
    batch = mixed_batch()
    u = SHIFTS[[0, 1, 3]].double().std(correction=1)
    y = batch.rewards + batch.discount * batch.next_observations[:, 0]  # the lower of two critics
    close(targets(learner(penalty=0.7), batch), y.double() - 0.7 * u * batch.imagined.double())


def test_noise_of_the_model_is_averaged_over_samples():
    """Equal members of noise 2 differ by chance: u^2 has the mean 4 / N with N samples."""
    state = learner(2.0, num_samples=25)
    model = {**state.params["dynamics"]}
    model["net.biases.1"] = model["net.biases.1"].clone()
    model["net.biases.1"][:, 0, 0] = 0.0
    state = replace(state, params={**state.params, "dynamics": model}, random=Recorded())
    u = state.algorithm.inconsistency(state, torch.zeros(2000, 3), torch.zeros(2000, 2))
    assert u.square().mean().item() == pytest.approx(4 / 25, rel=0.1)


def test_targets_are_raised_to_zero_only_if_asked():
    free, raised = (targets(learner(clamp_targets=switch)) for switch in (False, True))
    assert (free < 0).any()
    assert (free > 0).any()
    close(raised, free.double().clamp(min=0))


def test_the_entropy_is_in_the_target_only_if_asked():
    """The difference is the temperature times the log density, where episodes go on."""
    batch = mixed_batch()
    state = replace(learner(), random=Recorded())
    _, log_pi = state.policy.sample(batch.next_observations, state.random)
    without, entropy = (targets(learner(entropy_in_target=x), batch) for x in (False, True))
    close(without - entropy, (ALPHA * batch.discount * log_pi).double())


def test_max_q_backup_takes_the_best_action_of_each_critic_and_then_the_lowest_critic():
    """The critics are a_0 and -a_0, of 3 actions: the target is min(max a_0, -min a_0)."""
    state, batch = learner(max_q_backup=True, num_samples=3, penalty=0.0), mixed_batch()
    target = {k: torch.zeros_like(v) for k, v in state.params["critic_target"].items()}
    target["net.weights.0"][:, 3] = torch.tensor([1.0, -1.0])
    target["net.weights.1"][:, :, 0] = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    state = replace(state, params={**state.params, "critic_target": target}, random=Recorded())
    a = state.policy.sample(batch.next_observations, state.random, 3)[0][..., 0]  # [3, B]
    best = torch.minimum(a.amax(0), -a.amin(0))
    close(targets(state, batch), (batch.rewards + batch.discount * best).double())


def test_a_sparse_model_has_a_penalty_too():
    """The members add their shifts to s_0 by the constant term, which comes first."""
    state = start(MOBILE, hidden=(2,), members=4, elites=3, model="sparse", constant=True)
    dense = learner(penalty=0.7)
    model = {k: torch.zeros_like(v) for k, v in state.params["dynamics"].items()}
    model["coefficients"][:, 0, 0] = SHIFTS
    model["log_variance"] = torch.full((4,), -60.0)
    state.params.update({k: dense.params[k] for k in ("critic_target", "record", "policy")})
    state.params["dynamics"] = model
    s, a = mixed_batch().observations, mixed_batch().actions
    u = state.algorithm.inconsistency(replace(state, random=Recorded()), s, a)
    close(u, SHIFTS[[0, 1, 3]].double().std(correction=1).expand(len(s)))


def test_a_fixed_temperature_is_possible():
    state = learner(initial_alpha=0.2, alpha_lr=0.0)
    after, _ = state.algorithm.update(replace(state, random=Recorded()), mixed_batch(), 0)
    close(after.log_alpha().exp(), 0.2)


def test_the_best_action_without_entropy_and_the_entropy_exclude_each_other():
    with pytest.raises(ValueError, match="entropy_in_target=true is not used"):
        Config(max_q_backup=True, entropy_in_target=True)
