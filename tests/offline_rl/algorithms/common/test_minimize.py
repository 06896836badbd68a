"""Joint steps of several networks and parameter groups, against torch's optimizers."""

import pytest
import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import Algorithm, State, keep_where, minimize
from offline_rl.algorithms.common.config import BaseConfig
from offline_rl.algorithms.common.optim import Adam
from offline_rl.utils.random import Random
from policies.spec import Spec

RATES = {"encoder": 1e-2, "actor": 3e-3, "value": 1e-3}
INPUTS = torch.linspace(-1, 1, 15).reshape(5, 3)


class Joint(Algorithm):
    """Encoder with two outputs; each network has its own learning rate."""

    Config: type = BaseConfig

    def networks(self) -> dict[str, nn.Module]:
        sizes = {"encoder": (3, 4), "actor": (4, 2), "value": (4, 1)}
        return {name: nn.Linear(*size) for name, size in sizes.items()}

    def optimizers(self) -> dict[str, Adam]:
        return {name: Adam(lr) for name, lr in RATES.items()}


def joint_loss(encoder, actor, value) -> Tensor:
    """Return a loss whose gradients have a norm of several hundred."""
    features = encoder(INPUTS)
    return 100 * (actor(features).square().sum() + (value(features) - 3).square().sum())


def start() -> State:
    torch.manual_seed(0)
    learner = Joint(Spec((3,), 2), BaseConfig())
    tree = learner.initial()
    random = Random(torch.tensor(0), torch.tensor(0))
    return State(learner, tree["params"], tree["optimizer"], random)


@pytest.mark.parametrize("max_grad_norm", [None, 5.0])
def test_a_joint_step_equals_one_torch_optimizer_with_a_group_per_network(max_grad_norm):
    state = start()
    nets = {name: nn.Linear(*m.weight.T.shape) for name, m in state.algorithm.modules.items()}
    for name, net in nets.items():
        net.load_state_dict(dict(state.params[name]))
    parameters = [p for net in nets.values() for p in net.parameters()]
    adam = torch.optim.Adam(
        [{"params": net.parameters(), "lr": RATES[name]} for name, net in nets.items()]
    )
    for _ in range(3):
        adam.zero_grad()
        expected = joint_loss(*nets.values())
        expected.backward()
        if max_grad_norm is not None:
            assert torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm) > 10 * max_grad_norm
        adam.step()
        state, value = minimize(state, tuple(RATES), joint_loss, max_grad_norm=max_grad_norm)
        torch.testing.assert_close(value, expected.detach())
    for name, net in nets.items():
        for key, p in net.named_parameters():
            torch.testing.assert_close(state.params[name][key], p.detach())
            moment = state.optimizer[name]["first"][key]
            torch.testing.assert_close(moment, adam.state[p]["exp_avg"])


def test_networks_that_are_not_named_stay_and_extras_are_detached():
    state = start()
    old = state

    def loss(actor, encoder):
        features = old.encoder(INPUTS)
        return (actor(features) + encoder(INPUTS).mean()).square().sum(), {"f": encoder(INPUTS)}

    state, value, extra = minimize(state, ("actor", "encoder"), loss)
    assert not value.requires_grad
    assert not extra["f"].requires_grad
    torch.testing.assert_close(extra["f"], old.encoder(INPUTS).detach())
    for name in RATES:
        is_equal = [torch.equal(old.params[name][k], v) for k, v in state.params[name].items()]
        assert all(is_equal) == any(is_equal) == (name == "value")


def test_networks_are_built_when_they_are_first_read_and_shared_by_later_copies():
    learner = Joint(Spec((3,), 2), BaseConfig())
    assert "modules" not in vars(learner)
    assert learner.modules is learner.for_phase("update").modules
    assert learner.modules is learner.with_values({}).modules


def test_keep_where_returns_the_old_networks_and_optimizers_where_they_stay():
    old = start()
    new, _ = minimize(old, tuple(RATES), joint_loss)
    for stays, expected in ((True, old), (False, new)):
        state = keep_where(old, new, torch.tensor(stays))
        for name in RATES:
            weight = expected.params[name]["weight"]
            assert torch.equal(state.params[name]["weight"], weight)
            steps = expected.optimizer[name]["count"]["steps"]
            assert torch.equal(state.optimizer[name]["count"]["steps"], steps)
