"""Denoising networks and their causal masks, compared with torch layers."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from policies.networks.denoisers import build_denoiser
from policies.networks.time import TimeEmbedding, sinusoids
from policies.networks.transformer import ChunkTransformer
from policies.networks.unet import Conv, FilmBlock, GroupNorm, UNet, Upsample

OPTIONS = {
    "unet": {"widths": [8, 16, 24], "time_size": 8},
    "mlp": {"hidden": [32, 32], "time_size": 8},
    "transformer": {"size": 16, "layers": 2, "heads": 2},
    "plain": {"hidden": [32, 32]},
    "ln_resnet": {"width": 16, "blocks": 2, "time_size": 8},
}


def no_dropout(values):
    return values


def make_net(kind: str, horizon: int = 8, **options):
    torch.manual_seed(0)
    net = build_denoiser(kind, 3, horizon, 2, 5, **(OPTIONS[kind] | options))
    for p in net.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return net


def make_inputs(rows: int = 4, horizon: int = 8):
    torch.manual_seed(1)
    return torch.randn(rows, horizon, 3), 10 * torch.rand(rows, 1), torch.randn(rows, 2, 5)


def test_a_convolution_equals_that_of_torch():
    for size, stride in ((5, 1), (3, 2), (1, 1)):
        conv, x = Conv(3, 4, size, stride), torch.randn(2, 8, 3)
        weight = conv.weight.unflatten(0, (size, 3)).permute(2, 1, 0)
        theirs = F.conv1d(x.mT, weight, conv.bias, stride, size // 2)
        assert (conv(x) - theirs.mT).abs().max() < 1e-6


def test_upsampling_equals_torchs_transposed_convolution():
    torch.manual_seed(0)
    ours, theirs, x = Upsample(3), nn.ConvTranspose1d(3, 3, 4, 2, 1), torch.randn(2, 8, 3)
    taps = theirs.weight.permute(2, 0, 1)  # [4, in, out]
    theirs.bias.data[:] = torch.randn(3)
    ours.even.data = torch.cat([taps[3], taps[1]])  # for input steps k - 1 and k
    ours.odd.data = torch.cat([taps[2], taps[0]])
    ours.bias.data = theirs.bias.data
    assert (ours(x) - theirs(x.mT).mT).abs().max() < 1e-6


def test_group_normalization_equals_that_of_torch():
    ours, x = GroupNorm(12, 4), 5 + 3 * torch.randn(2, 8, 12)
    ours.weight.data, ours.bias.data = torch.randn(12), torch.randn(12)
    theirs = F.group_norm(x.mT, 4, ours.weight, ours.bias)
    assert (ours(x) - theirs.mT).abs().max() < 1e-5


def test_film_scales_by_the_first_half_of_its_output_and_shifts_by_the_second():
    block, x, condition = FilmBlock(3, 8, 6, 5, 4), torch.randn(2, 8, 3), torch.randn(2, 6)
    film = F.mish(condition) @ block.film.weights[0] + block.film.biases[0]
    inner = block.first(x) * film[:, None, :8] + film[:, None, 8:]
    expected = block.second(inner) + x @ block.skip.weights[0] + block.skip.biases[0]
    assert (block(x, condition, no_dropout) - expected).abs().max() < 1e-5


def test_a_unets_horizon_must_be_halved_at_each_level_but_the_last():
    assert UNet(3, 8, 10, widths=[8, 8, 8, 8], time_size=8).widen is not None
    with pytest.raises(ValueError, match=r"horizon=12 is not a multiple of 8"):
        UNet(3, 12, 10, widths=[8, 8, 8, 8], time_size=8)


def test_times_are_embedded_by_sines_and_cosines():
    embeddings = sinusoids(torch.tensor([0.0, 3.0]), 6)
    waves = [1, 10_000**-0.5, 1 / 10_000]
    expected = [*(math.sin(3 * w) for w in waves), *(math.cos(3 * w) for w in waves)]
    assert embeddings[0].tolist() == [0, 0, 0, 1, 1, 1]
    assert embeddings[1].tolist() == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="even"):
        TimeEmbedding(5)


def test_the_transformer_equals_torchs_decoder():
    net = make_net("transformer")
    theirs = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(16, 2, 64, 0.0, "gelu", batch_first=True, norm_first=True), 2
    )
    for ours, layer in zip(net.blocks, theirs.layers, strict=True):
        weights = {
            layer.self_attn.in_proj_weight: ours.self_in.weights[0].T,
            layer.self_attn.in_proj_bias: ours.self_in.biases[0],
            layer.self_attn.out_proj.weight: ours.self_out.weights[0].T,
            layer.self_attn.out_proj.bias: ours.self_out.biases[0],
            layer.multihead_attn.in_proj_weight: torch.cat(
                [ours.cross_query.weights[0], ours.cross_in.weights[0]], 1
            ).T,
            layer.multihead_attn.in_proj_bias: torch.cat(
                [ours.cross_query.biases[0], ours.cross_in.biases[0]]
            ),
            layer.multihead_attn.out_proj.weight: ours.cross_out.weights[0].T,
            layer.multihead_attn.out_proj.bias: ours.cross_out.biases[0],
            layer.linear1.weight: ours.mlp.weights[0].T,
            layer.linear1.bias: ours.mlp.biases[0],
            layer.linear2.weight: ours.mlp.weights[1].T,
            layer.linear2.bias: ours.mlp.biases[1],
        }
        norms = (ours.norm_self, ours.norm_cross, ours.norm_mlp)
        for mine, norm in zip(norms, (layer.norm1, layer.norm2, layer.norm3), strict=True):
            weights |= {norm.weight: mine.weight, norm.bias: mine.bias}
        for to, value in weights.items():
            to.data[:] = value.data
    x, times, features = make_inputs()
    memory = torch.cat([sinusoids(times, 16), net.embed_observation(features)], 1)
    memory = memory + net.memory_place
    step, memory_step = torch.arange(8)[:, None], torch.arange(3)
    expected = theirs(
        net.embed_action(x) + net.place,
        net.memory(memory),
        tgt_mask=torch.triu(torch.full((8, 8), -math.inf), 1),
        memory_mask=torch.where(step >= memory_step - 1, 0.0, -math.inf),
    )
    expected = F.layer_norm(expected, (16,), net.norm.weight, net.norm.bias)
    expected = expected @ net.answer.weights[0] + net.answer.biases[0]
    assert (net(x, times, features, no_dropout) - expected).abs().max() < 1e-5


def test_in_the_transformer_an_action_depends_on_no_later_action_or_observation():
    net = make_net("transformer")
    x, times, features = (v.requires_grad_() for v in make_inputs(1))
    for step in (0, 1, 5):
        output = net(x, times, features, no_dropout)[0, step].sum()
        by_action, by_features = torch.autograd.grad(output, [x, features])
        assert (by_action[0].abs().sum(-1) > 0).tolist() == [k <= step for k in range(8)]
        assert (by_features[0].abs().sum(-1) > 0).tolist() == [True, step >= 1]


@pytest.mark.parametrize("kind", OPTIONS)
def test_every_network_uses_all_inputs_and_keeps_rows_independent(kind: str):
    net = make_net(kind)
    x, times, features = make_inputs()
    original = net(x, times, features, no_dropout)
    assert original.shape == x.shape
    row, drop = torch.tensor([1]), no_dropout
    for changed in (
        net(x, times + torch.tensor([[0.0], [1.0], [0.0], [0.0]]), features, drop),
        net(x, times, features.index_add(0, row, torch.ones(1, 2, 5)), drop),
        net(x.index_add(0, row, torch.ones(1, 8, 3)), times, features, drop),
    ):
        rows = (changed - original).abs().amax((1, 2)) > 1e-5
        assert rows.tolist() == [False, True, False, False]


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_network_has_no_buffers_and_returns_float32_in_any_precision(kind: str):
    from policies.networks.precision import find_product_modules, set_compute_dtype

    net = make_net(kind)
    exact = net(*make_inputs(), no_dropout)
    assert not list(net.buffers())
    assert find_product_modules(net)
    set_compute_dtype(net, torch.bfloat16)
    rough = net(*make_inputs(), no_dropout)
    assert rough.dtype == torch.float32
    assert 0 < (rough - exact).abs().max() < 0.2 * exact.abs().max()


def test_a_size_that_is_not_a_multiple_of_the_heads_is_refused():
    with pytest.raises(ValueError, match="size=16 is not a multiple of heads=3"):
        ChunkTransformer(3, 8, 2, 5, size=16, heads=3)
