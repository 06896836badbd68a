"""MLPs, compared with torch layers, and the independence of ensemble members."""

import math
from typing import get_args

import pytest
import torch
from torch import nn

from policies.networks.init import lecun_init, orthogonal_init
from policies.networks.mlp import MLP, Activation, CategoricalCritic

BETWEEN = {"relu": nn.ReLU(), "elu": nn.ELU(), "gelu": nn.GELU(), "silu": nn.SiLU()}
BETWEEN["gelu_tanh"] = nn.GELU("tanh")
BETWEEN |= {"tanh": nn.Tanh(), "mish": nn.Mish()}


def build_with_torch(net: MLP, member: int | None = None) -> nn.Sequential:
    """Build torch layers with the parameters of `net`, or of one member of an ensemble."""

    def select(p: torch.Tensor) -> torch.Tensor:
        return p.detach() if member is None else p.detach()[member]

    layers, between = list[nn.Module](), BETWEEN[net.activation]
    for count, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
        linear = nn.Linear(*select(weight).shape)
        linear.weight.data, linear.bias.data = select(weight).T, select(bias).flatten()
        layers.append(linear)
        if count < len(net.norms):
            norm = nn.LayerNorm(linear.out_features)
            norm.weight.data = select(net.norms[count].weight).flatten()
            norm.bias.data = select(net.norms[count].bias).flatten()
            layers += [between, norm] if net.norm_after_activation else [norm, between]
        elif count < len(net.weights) - 1:
            layers.append(between)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("layer_norm", [False, True, "after"])
@pytest.mark.parametrize("rows", [(), (5,), (2, 5), (4, 2, 5)])
def test_members_are_independent_networks(rows, layer_norm):
    torch.manual_seed(0)
    after = layer_norm == "after"
    net = MLP(3, 2, (8, 6), ensemble=2, layer_norm=bool(layer_norm), norm_after_activation=after)
    with torch.no_grad():
        for p in net.parameters():
            p += 0.1 * torch.randn_like(p)  # gains and shifts of the members differ
    x = torch.randn(*rows, 3)
    assert net(x).shape == (2, *rows, 2)
    for member in (0, 1):
        torch.testing.assert_close(net(x)[member], build_with_torch(net, member)(x))
    for p in net.parameters():
        (gradient,) = torch.autograd.grad(net(x)[0].sum(), p)
        assert (gradient[1] == 0).all(), (
            "the output of one member changes another member's gradient"
        )


def test_a_single_network_has_no_ensemble_axis():
    net = MLP(3, 2, (8,), layer_norm=True)
    x = torch.randn(5, 3)
    assert net(x).shape == (5, 2)
    torch.testing.assert_close(net(x), build_with_torch(net)(x))


@pytest.mark.parametrize("activation", get_args(Activation))
def test_every_activation_equals_that_of_torch(activation):
    assert set(BETWEEN) == set(get_args(Activation))
    net, x = MLP(3, 2, (8, 8), activation=activation, layer_norm=True), torch.randn(5, 3)
    torch.testing.assert_close(net(x), build_with_torch(net)(x))


@pytest.mark.parametrize("ensemble", [None, 3])
@pytest.mark.parametrize("hidden", [(), (64, 64)])
@pytest.mark.parametrize("inner", [False, True])
def test_in_bf16_the_output_layer_preserves_small_differences_of_large_values(
    ensemble, hidden, inner
):
    """Outputs near 300 differ by about 1, but bf16 has steps of 2 there. `inner` loses this."""
    net, last = MLP(4, 1, hidden, ensemble=ensemble, inner=inner), -1
    x = torch.randn(256, 4)
    if hidden:  # a unit whose output is always 1
        net.weights[-2].data[..., 0], net.biases[-2].data[..., 0] = 0, 1
    else:
        x[:, 0] = 1
    net.weights[last].data[..., 0, :] = 300
    exact = net(x)
    net.weights[last].data[..., 1:, :] /= exact.std()
    exact = net(x)
    net.compute_dtype = torch.bfloat16
    error = (net(x) - exact).std()
    assert error > 0.2 if inner else error < 0.05
    assert bool(error) is bool(inner or hidden)


def test_initial_weights_of_members_are_within_the_bounds_of_their_fan_in():
    net = MLP(100, 1, (400,), ensemble=3)
    for weight, fan_in in zip(net.weights, (100, 400), strict=True):
        bound = 1 / math.sqrt(fan_in)
        assert 0.98 * bound < weight.abs().max().item() <= bound
        assert not torch.equal(weight[0], weight[1])


def test_orthogonal_layers_scale_lengths_by_their_gain():
    net = MLP(6, 6, (6,), ensemble=2, init=orthogonal_init(2.0, 0.01))
    for weight, gain in zip(net.weights, (2.0, 0.01), strict=True):
        for member in weight:
            torch.testing.assert_close(member @ member.T, gain**2 * torch.eye(6), atol=1e-5, rtol=0)
    assert all((bias == 0).all() for bias in net.biases)


def test_lecun_weights_are_normal_with_the_variance_of_their_fan_in_and_cut_off():
    """Weights are cut off at two standard deviations before they are rescaled, by 1 / 0.8796."""
    torch.manual_seed(0)
    net = MLP(400, 400, (), init=lecun_init)
    weight, bound = net.weights[0], 2 / 0.8796 / 20
    assert weight.std().item() == pytest.approx(1 / 20, rel=0.01)
    assert 0.99 * bound < weight.abs().max() < 1.001 * bound
    assert not net.biases[0].any()


@pytest.mark.parametrize("smoothing", [0.05, 0.75, 2.0])
def test_the_label_of_a_value_is_a_distribution_with_this_mean(smoothing):
    critic = CategoricalCritic(2, 1, [4], bins=50, low=-1.0, high=3.0, smoothing=smoothing)
    width = 4 / 50
    centers = -1 + width * (torch.arange(50) + 0.5)
    values = torch.linspace(-0.5, 2.5, 301)  # several standard deviations from the ends
    labels = critic.label(values)
    assert (labels >= 0).all()
    torch.testing.assert_close(labels.sum(-1), torch.ones(301))
    error = (labels @ centers - values).abs().max()
    assert error < width * (0.5 if smoothing < 0.1 else 0.02)  # a narrow label is one bin
    torch.testing.assert_close(critic.mean(labels.log()), labels @ centers)
    ends = critic.label(torch.tensor([-9.0, -1.0, 3.0, 9.0]))
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[2], ends[3])
    assert (ends.argmax(-1) == torch.tensor([0, 0, 49, 49])).all()


def test_the_cross_entropy_is_least_where_the_prediction_is_the_label():
    critic = CategoricalCritic(2, 1, [4], bins=11)
    s, a, values = torch.randn(6, 2), torch.randn(6, 1), torch.linspace(0.2, 0.8, 6)
    labels = critic.label(values)
    entropy = -torch.special.xlogy(labels, labels).sum(-1)
    log_probs = critic.logits(s, a).log_softmax(-1)  # [E, B, bins]
    divergence = torch.nn.functional.kl_div(log_probs, labels.expand(2, -1, -1), reduction="none")
    loss = critic.cross_entropy(s, a, values)
    torch.testing.assert_close(loss - entropy, divergence.sum(-1), atol=1e-5, rtol=1e-5)


def test_members_of_a_categorical_critic_are_independent():
    critic = CategoricalCritic(2, 1, [4], bins=11, ensemble=3)
    s, a = torch.randn(6, 2), torch.randn(6, 1)
    q = critic(s, a)
    torch.testing.assert_close(critic(s, a, torch.tensor([2, 0])), q[[2, 0]])
    torch.testing.assert_close(critic.per_member(s.expand(3, 6, 2), a.expand(3, 6, 1)), q)
    with torch.no_grad():
        critic.net.biases[-1][1, 0, -1] += 50  # all mass of member 1 in the last bin
    changed = critic(s, a)
    torch.testing.assert_close(changed[1], torch.full((6,), 10.5 / 11))
    assert torch.equal(changed[[0, 2]], q[[0, 2]])
