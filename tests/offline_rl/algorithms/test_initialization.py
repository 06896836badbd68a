"""Initialization, layer normalization and output ranges, as in each algorithm's public code."""

import math

import pytest
import torch
from by_hand import layers_of, start

from offline_rl.algorithms.common.registry import algorithm_class

WIDE = {"hidden": (64, 64)}
APART = {"policy_hidden": (64, 64), "critic_hidden": (64, 64)}
ROOT = math.sqrt(2)


def orthogonal(last=ROOT):
    """Assert that rows or columns are orthogonal with length `gain`, and that there is no bias."""

    def check(weight, bias, is_last):
        short = weight if weight.shape[0] <= weight.shape[1] else weight.T
        gain = last if is_last else ROOT
        torch.testing.assert_close(short @ short.T, gain**2 * torch.eye(len(short)))
        assert not bias.any()

    return check


def fan_in(weight, bias, is_last):
    """Assert torch's initialization: uniform in +-1/sqrt(inputs), biases too."""
    bound = 1 / math.sqrt(len(weight))
    for values in (weight, bias):
        assert values.abs().max() <= bound
    assert weight.abs().max() > 0.9 * bound
    assert bias.any()


def fan_out(weight, bias, is_last):
    """Assert uniform weights in +-1/sqrt(outputs), biases too."""
    fan_in(weight.T, bias, is_last)


def xavier_output(gain):
    def check(weight, bias, is_last):
        if not is_last:
            return fan_in(weight, bias, is_last)
        bound = gain * math.sqrt(6 / sum(weight.shape))
        assert 0.9 * bound < weight.abs().max() <= bound
        assert not bias.any()

    return check


def small_output(bound):
    """Assert EDAC's initialization: hidden biases of 0.1, a last layer uniform in +-bound."""

    def check(weight, bias, is_last):
        if is_last:
            assert 0.8 * bound < weight.abs().max() <= bound
            assert 0 < bias.abs().max() <= bound
        else:
            assert weight.abs().max() <= 1 / math.sqrt(len(weight))
            torch.testing.assert_close(bias, torch.full_like(bias, 0.1))

    return check


DUAL = {"policy": orthogonal(), "critic": orthogonal(), "value": orthogonal()}
TORCH = {"policy": fan_in, "critic": fan_in}
EDAC = {"policy": small_output(1e-3), "critic": small_output(3e-3)}
BEGINNINGS = {
    "bc": (WIDE, {"policy": fan_in}),
    "td3_bc": (WIDE, TORCH),
    "awac": (WIDE, TORCH),
    "mcq": (APART, TORCH),
    "msg": (WIDE, TORCH),
    "lb_sac": (WIDE, {"policy": fan_in, "critic": fan_out}),
    "sac_n": (WIDE, EDAC),
    "edac": (WIDE, EDAC),
    "ro2o": (WIDE, EDAC),
    "rebrac": (WIDE, EDAC),
    "iql": (WIDE, DUAL),
    "xql": (WIDE, DUAL),
    "f_dvl": (WIDE, DUAL),
    "recoil": (WIDE, DUAL),
    "cql": (APART, {"policy": xavier_output(1e-2), "critic": orthogonal(1e-2)}),
    "cal_ql": (APART, {"policy": orthogonal(1e-2), "critic": orthogonal(1e-2)}),
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_networks_are_initialized_like_the_authors(name: str):
    config, networks = BEGINNINGS[name]
    state = start(algorithm_class(name), **config)
    for network, check in networks.items():
        params = state.params[network]
        prefix = "trunk." if network == "policy" else "net."
        members = len(params["net.weights.0"]) if network == "critic" else 1
        for member in range(members):
            layers = [*layers_of(params, prefix, member if network == "critic" else None)]
            assert len(layers) == 3
            for k, (weight, bias, _, _) in enumerate(layers):
                check(weight, bias, k == 2)
        if members > 1:
            assert not torch.equal(*params["net.weights.0"][:2])
    for target, source in algorithm_class(name).targets.items():
        for key, value in state.params[source].items():
            assert torch.equal(state.params[target][key], value)


@pytest.mark.parametrize("name", ["xql", "f_dvl", "recoil"])
def test_layer_norm_is_in_the_value_network_only(name: str):
    params = start(algorithm_class(name), layer_norm=True, **WIDE).params
    assert {network for network in params if any("norm" in key for key in params[network])} == {
        "value"
    }
    assert algorithm_class("xql").Config().layer_norm


def test_awacs_standard_deviation_stays_in_the_authors_range():
    """The density of the mean is -log std - log(2 pi) / 2 for each action."""
    state, s = start(algorithm_class("awac"), **WIDE), torch.zeros(1, 3)
    for far, end in ((-1e3, -20), (1e3, 2)):
        state.params["policy"]["log_std"][:] = far
        density = state.policy.log_prob(s, state.policy(s)).item()
        assert density == pytest.approx(2 * (-end - math.log(2 * math.pi) / 2))


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("cql", -20, 2), ("cal_ql", -20, 2), ("mcq", -5, 2), ("msg", -5, 2)]
    + [(name, -5, 2) for name in ("sac_n", "edac", "lb_sac", "ro2o")],
)
def test_standard_deviations_stay_in_the_authors_range(name: str, low: float, high: float):
    config, _ = BEGINNINGS[name]
    state = start(algorithm_class(name), **config)
    for far, end in ((-1e3, low), (1e3, high)):
        state.params["policy"]["trunk.biases.2"][2:] = far  # two means, then two log deviations
        _, log_std = state.policy(torch.zeros(1, 3))
        assert log_std.flatten().tolist() == [end, end]
