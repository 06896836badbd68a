"""ACT: layers against torch's, the loss by hand, and the inputs of the style encoder."""

import math

import pytest
import torch
from by_hand import Recorded, close, start
from test_diffusion_policy import chunks
from torch import nn

from offline_rl.algorithms.act import ACT, Config
from policies.networks.act import Layer, PositionalAttention, sinusoidal_positions

SMALL = {
    "n_obs_steps": 2,
    "horizon": 4,
    "n_action_steps": 2,
    "dim_model": 8,
    "num_heads": 2,
    "dim_feedforward": 16,
}
SMALL |= {"num_layers": 2, "num_vae_encoder_layers": 1, "latent_dim": 3}


def identity(values):
    return values


def copy_attention(ours: PositionalAttention, theirs: nn.MultiheadAttention) -> None:
    parts = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.data[:] = torch.cat([p.weights[0].T for p in parts]).detach()
    theirs.in_proj_bias.data[:] = torch.cat([p.biases[0] for p in parts]).detach()
    theirs.out_proj.weight.data[:] = ours.out.weights[0].T.detach()
    theirs.out_proj.bias.data[:] = ours.out.biases[0].detach()


def test_a_layer_equals_torchs_attention_with_positions_in_queries_and_keys():
    torch.manual_seed(0)
    layer = Layer(8, 2, 16, cross_attends=True)
    for p in layer.parameters():
        p.data += 0.2 * torch.randn_like(p)
    own, recall = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))
    copy_attention(layer.self_attention, own)
    copy_attention(layer.cross_attention, recall)
    x, memory, place, there = (torch.randn(*s) for s in ((3, 5, 8), (3, 4, 8), (5, 8), (4, 8)))
    everything = torch.ones(1, 1, dtype=torch.bool)
    found = layer(x, place, everything, identity, (memory, there))

    def norm(module, values):
        return nn.functional.layer_norm(values, (8,), module.weight, module.bias)

    y = norm(layer.norm_self, x + own(x + place, x + place, x)[0])
    y = norm(layer.norm_cross, y + recall(y + place, memory + there, memory)[0])
    inner = torch.relu(y @ layer.mlp.weights[0] + layer.mlp.biases[0])
    y = norm(layer.norm_mlp, y + inner @ layer.mlp.weights[1] + layer.mlp.biases[1])
    assert (found - y).abs().max() < 1e-5


def test_layers_have_xavier_initialization_except_in_the_style_encoder():
    """LeRobot initializes encoder and decoder only. Checked by the largest of many weights."""
    head = start(ACT, **SMALL | {"dim_model": 64, "dim_feedforward": 192}).algorithm.head()
    for layer, out, mlp in (
        (head.style_blocks[0], 1 / 8, 1 / 8),
        (head.encoder[1], math.sqrt(6 / 128), math.sqrt(6 / 256)),
        (head.decoder[0], math.sqrt(6 / 128), math.sqrt(6 / 256)),
    ):
        expected = {
            layer.self_attention.out: out,
            layer.self_attention.query: math.sqrt(6 / 256),
            layer.mlp: mlp,
        }
        for module, bound in expected.items():
            assert module.weights[0].abs().max().item() == pytest.approx(bound, rel=0.01)


def test_fixed_positions_are_sines_and_cosines():
    found = sinusoidal_positions(3, 4, torch.device("cpu"))
    expected = [math.sin(2), math.cos(2), math.sin(2 / 100), math.cos(2 / 100)]
    assert found[2].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_loss_is_absolute_error_plus_ten_times_the_kl_divergence():
    state, batch, random = start(ACT, dropout=0.0, **SMALL), chunks(), Recorded()
    _, metrics = state.algorithm.update(state, batch, 0)
    head = state.algorithm.modules["model"]
    with torch.no_grad():
        mean, log_variance = head.encode_style(
            batch.observations.flatten(1), batch.actions, batch.valid, None
        )
        z = mean + (log_variance / 2).exp() * random.normal(mean.shape)
        chunk = head.decode(batch.observations.flatten(1), z)
    error = (chunk - batch.actions).abs()[batch.valid].mean()
    normal = torch.distributions.Normal(0.0, 1.0)
    told = torch.distributions.Normal(mean, (log_variance / 2).exp())
    kl = torch.distributions.kl_divergence(told, normal).sum(-1).mean()
    close(metrics["l1_loss"], error)
    close(metrics["kl"], kl)
    close(metrics["policy_loss"], error + 10 * kl)


def test_the_style_encoder_ignores_padding():
    head, batch = start(ACT, **SMALL).algorithm.head(), chunks()
    seen = batch.observations.flatten(1)
    other = torch.where(batch.valid[..., None], batch.actions, torch.rand(8, 4, 2))
    before = head.encode_style(seen, batch.actions, batch.valid, None)
    after = head.encode_style(seen, other, batch.valid, None)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    moved = head.encode_style(seen, -batch.actions, batch.valid, None)
    assert (moved[0] - before[0]).abs().max() > 1e-4


def test_it_acts_deterministically_with_its_last_weights():
    state = start(ACT, **SMALL)
    head = state.algorithm.head()
    assert (head.noise_shape, head.n_obs_steps, head.chunk_size) == ((), 2, 4)
    seen, nothing = torch.randn(5, 2, 3), torch.zeros(5, 0)
    chunk = head.decide(seen, {}, nothing)[0]
    assert chunk.shape == (5, 4, 2)
    head.embed_style.weights[0].data *= 10  # of a style that is 0
    assert torch.equal(head.decide(seen, {}, nothing)[0], chunk)
    for k in range(3):
        state = state.algorithm.update(state, chunks(k), 0)[0]
    for name, value in state.params["policy"].items():
        assert torch.equal(value, state.params["model"][name])


def test_temporal_ensembling_needs_a_prediction_at_every_step():
    with pytest.raises(
        ValueError,
        match=r"temporal_ensemble_coeff=0.01 .* but n_action_steps=100. Set n_action_steps=1",
    ):
        Config(temporal_ensemble_coeff=0.01)
    head = start(
        ACT, temporal_ensemble_coeff=0.01, **(SMALL | {"n_action_steps": 1})
    ).algorithm.head()
    assert head.temporal_ensemble_coeff == 0.01


def test_a_size_that_is_not_a_multiple_of_the_heads_is_refused():
    with pytest.raises(ValueError, match="dim_model=10 must be even and a multiple of num_heads=4"):
        Config(dim_model=10, num_heads=4)
