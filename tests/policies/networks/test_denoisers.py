"""Networks that denoise chunks against torch's own layers, and what their actions may see."""

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
}


def same(values):
    return values


def made(kind: str, horizon: int = 8, **options):
    torch.manual_seed(0)
    net = build_denoiser(kind, 3, horizon, 2, 5, **(OPTIONS[kind] | options))
    for p in net.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return net


def inputs(rows: int = 4, horizon: int = 8):
    torch.manual_seed(1)
    return torch.randn(rows, horizon, 3), 10 * torch.rand(rows, 1), torch.randn(rows, 2, 5)


def test_a_convolution_is_torchs():
    for size, stride in ((5, 1), (3, 2), (1, 1)):
        conv, x = Conv(3, 4, size, stride), torch.randn(2, 8, 3)
        weight = conv.weight.unflatten(0, (size, 3)).permute(2, 1, 0)
        theirs = F.conv1d(x.mT, weight, conv.bias, stride, size // 2)
        assert (conv(x) - theirs.mT).abs().max() < 1e-6


def test_upsampling_is_torchs_transposed_convolution():
    torch.manual_seed(0)
    ours, theirs, x = Upsample(3), nn.ConvTranspose1d(3, 3, 4, 2, 1), torch.randn(2, 8, 3)
    taps = theirs.weight.permute(2, 0, 1)  # [4, in, out]
    theirs.bias.data[:] = torch.randn(3)
    ours.even.data = torch.cat([taps[3], taps[1]])  # of the step before, and its own
    ours.odd.data = torch.cat([taps[2], taps[0]])
    ours.bias.data = theirs.bias.data
    assert (ours(x) - theirs(x.mT).mT).abs().max() < 1e-6


def test_group_normalization_is_torchs():
    ours, x = GroupNorm(12, 4), 5 + 3 * torch.randn(2, 8, 12)
    ours.weight.data, ours.bias.data = torch.randn(12), torch.randn(12)
    theirs = F.group_norm(x.mT, 4, ours.weight, ours.bias)
    assert (ours(x) - theirs.mT).abs().max() < 1e-5


def test_film_scales_by_its_first_half_and_shifts_by_its_second():
    block, x, known = FilmBlock(3, 8, 6, 5, 4), torch.randn(2, 8, 3), torch.randn(2, 6)
    film = F.mish(known) @ block.film.weights[0] + block.film.biases[0]
    inner = block.first(x) * film[:, None, :8] + film[:, None, 8:]
    expected = block.second(inner) + x @ block.skip.weights[0] + block.skip.biases[0]
    assert (block(x, known, same) - expected).abs().max() < 1e-5


def test_a_unets_window_halves_as_often_as_it_has_levels():
    assert UNet(3, 8, 10, widths=[8, 8, 8, 8], time_size=8).widen is not None
    with pytest.raises(ValueError, match=r"horizon=12 is not a multiple of 8"):
        UNet(3, 12, 10, widths=[8, 8, 8, 8], time_size=8)


def test_times_are_told_apart_by_sines_and_cosines():
    found = sinusoids(torch.tensor([0.0, 3.0]), 6)
    waves = [1, 10_000**-0.5, 1 / 10_000]
    expected = [*(math.sin(3 * w) for w in waves), *(math.cos(3 * w) for w in waves)]
    assert found[0].tolist() == [0, 0, 0, 1, 1, 1]
    assert found[1].tolist() == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="even"):
        TimeEmbedding(5)


def test_the_transformer_is_torchs_decoder():
    net = made("transformer")
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
    x, times, seen = inputs()
    memory = torch.cat([sinusoids(times, 16), net.embed_observation(seen)], 1) + net.memory_place
    step, moment = torch.arange(8)[:, None], torch.arange(3)
    expected = theirs(
        net.embed_action(x) + net.place,
        net.memory(memory),
        tgt_mask=torch.triu(torch.full((8, 8), -math.inf), 1),
        memory_mask=torch.where(step >= moment - 1, 0.0, -math.inf),
    )
    expected = F.layer_norm(expected, (16,), net.norm.weight, net.norm.bias)
    expected = expected @ net.answer.weights[0] + net.answer.biases[0]
    assert (net(x, times, seen, same) - expected).abs().max() < 1e-5


def test_in_the_transformer_an_action_sees_no_later_one_and_no_later_observation():
    net = made("transformer")
    x, times, seen = (v.requires_grad_() for v in inputs(1))
    for step in (0, 1, 5):
        answer = net(x, times, seen, same)[0, step].sum()
        by_action, by_seen = torch.autograd.grad(answer, [x, seen])
        used = by_action[0].abs().sum(-1) > 0
        assert used.tolist() == [k <= step for k in range(8)]
        assert (by_seen[0].abs().sum(-1) > 0).tolist() == [True, step >= 1]


@pytest.mark.parametrize("kind", OPTIONS)
def test_every_network_sees_all_that_it_is_told_and_rows_do_not_mix(kind: str):
    net = made(kind)
    x, times, seen = inputs()
    before = net(x, times, seen, same)
    assert before.shape == x.shape
    for changed in (
        net(x, times + torch.tensor([[0.0], [1.0], [0.0], [0.0]]), seen, same),
        net(x, times, seen.index_add(0, torch.tensor([1]), torch.ones(1, 2, 5)), same),
        net(x.index_add(0, torch.tensor([1]), torch.ones(1, 8, 3)), times, seen, same),
    ):
        moved = (changed - before).abs().amax((1, 2)) > 1e-5
        assert moved.tolist() == [False, True, False, False]


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_network_holds_no_buffers_and_answers_in_float32_at_any_precision(kind: str):
    from policies.networks.precision import find_product_modules, set_compute_dtype

    net = made(kind)
    exact = net(*inputs(), same)
    assert not list(net.buffers())
    assert len(find_product_modules(net)) > 1
    set_compute_dtype(net, torch.bfloat16)
    rough = net(*inputs(), same)
    assert rough.dtype == torch.float32
    assert 0 < (rough - exact).abs().max() < 0.2 * exact.abs().max()


def test_a_size_that_heads_do_not_divide_is_refused():
    with pytest.raises(ValueError, match="size=16 is not a multiple of heads=3"):
        ChunkTransformer(3, 8, 2, 5, size=16, heads=3)
