"""The network of the Decision Transformer, compared with torch's layers, and its memory."""

import math

import pytest
import torch
from torch import nn

from policies.heads.decision_transformer import DecisionTransformer

OPTIONS = {
    "target_return": 6.0,
    "return_scale": 2.0,
    "context_length": 4,
    "dim_model": 8,
    "num_heads": 2,
}
OPTIONS |= {"num_layers": 2, "episode_steps": 10}


class Numbers:
    """A source of random numbers."""

    def __init__(self) -> None:
        self.generator, self.shapes = torch.Generator().manual_seed(0), []

    def uniform(self, shape, groups=1):
        self.shapes.append(tuple(shape))
        return torch.rand(tuple(shape), generator=self.generator)

    def normal(self, shape, groups=1):
        return torch.randn(tuple(shape), generator=self.generator)


def make_net(**options) -> DecisionTransformer:
    """Create a network with random parameters, so that every parameter has an effect."""
    torch.manual_seed(0)
    net = DecisionTransformer(3, 2, **(OPTIONS | options))
    for p in net.parameters():
        p.data += 0.3 * torch.randn_like(p)
    return net


def make_context(batch: int = 5, steps: int = 4) -> dict[str, torch.Tensor]:
    """Return contexts that start at the third step of an episode, without padding."""
    torch.manual_seed(1)
    return {
        "observations": torch.randn(batch, steps, 3),
        "actions": torch.rand(batch, steps, 2),
        "returns": torch.randn(batch, steps),
        "timesteps": torch.arange(2, 2 + steps).expand(batch, steps),
        "real": torch.ones(batch, steps, dtype=torch.bool),
    }


def run_with_torch_layers(net: DecisionTransformer, x: dict[str, torch.Tensor]) -> torch.Tensor:
    """Compute `net(x)` with torch's linear, embedding, normalization and encoder layers."""

    def linear(mlp, x, layer=0):
        return nn.functional.linear(x, mlp.weights[layer].T, mlp.biases[layer])

    position = nn.functional.embedding(x["timesteps"], net.embed_place)
    tokens = [
        linear(net.embed_return, x["returns"][..., None] / 2) + position,
        linear(net.embed_observation, x["observations"]) + position,
        linear(net.embed_action, x["actions"]) + position,
    ]
    batch, steps = x["returns"].shape
    sequence = torch.empty(batch, 3 * steps, 8)
    for kind, token in enumerate(tokens):
        sequence[:, kind::3] = token
    sequence = nn.functional.layer_norm(sequence, (8,), net.norm_in.weight, net.norm_in.bias)
    for block in net.blocks:
        layer = nn.TransformerEncoderLayer(
            8, 2, 32, dropout=0.0, activation="relu", batch_first=True, norm_first=True
        )
        ours = {
            "self_attn.in_proj_weight": block.attention_in.weights[0].T,
            "self_attn.in_proj_bias": block.attention_in.biases[0],
            "self_attn.out_proj.weight": block.attention_out.weights[0].T,
            "self_attn.out_proj.bias": block.attention_out.biases[0],
            "linear1.weight": block.mlp.weights[0].T,
            "linear1.bias": block.mlp.biases[0],
            "linear2.weight": block.mlp.weights[1].T,
            "linear2.bias": block.mlp.biases[1],
            "norm1.weight": block.norm_attention.weight,
            "norm1.bias": block.norm_attention.bias,
            "norm2.weight": block.norm_mlp.weight,
            "norm2.bias": block.norm_mlp.bias,
        }
        layer.load_state_dict(ours)
        mask = nn.Transformer.generate_square_subsequent_mask(3 * steps)
        sequence = layer(sequence, src_mask=mask, is_causal=True)
    sequence = nn.functional.layer_norm(sequence, (8,), net.norm_out.weight, net.norm_out.bias)
    return linear(net.head, sequence[:, 1::3]).tanh()


def test_outputs_equal_those_of_torchs_layers():
    net, x = make_net(), make_context()
    torch.testing.assert_close(net(**x), run_with_torch_layers(net, x))


def test_a_step_depends_on_its_return_and_observation_and_on_earlier_steps_only():
    net, x = make_net(), make_context()
    original = net(**x)
    for name in ("returns", "observations", "actions"):
        changed = x | {name: x[name].clone()}
        changed[name][:, 2] += 1.0
        difference = (net(**changed) - original).abs().amax((0, 2))  # [T]
        first = (
            3 if name == "actions" else 2
        )  # a prediction does not depend on the step's own action
        assert (difference[:first] == 0).all()
        assert (difference[first:] > 1e-6).all()


def test_padding_on_either_side_does_not_change_the_outputs():
    net, x = make_net(), make_context(steps=2)
    expected = net(**x)
    for position in (slice(0, 2), slice(2, 4)):
        padded = make_context(steps=4)
        padded = {k: v.clone() if k != "real" else torch.zeros_like(v) for k, v in padded.items()}
        for name in x:
            padded[name][:, position] = x[name]
        outputs = net(**padded)
        assert outputs.isfinite().all()
        torch.testing.assert_close(outputs[:, position], expected)


def test_late_timesteps_use_the_last_embedding():
    net, x = make_net(), make_context()
    late, later = (x | {"timesteps": x["timesteps"] + k} for k in (7, 50))
    torch.testing.assert_close(net(**late)[:, 0], net(**later)[:, 0])
    assert not torch.allclose(net(**late), net(**x))


def test_acting_step_by_step_equals_the_network_on_the_last_steps_of_the_episode():
    """Two episodes of nine steps, with a context of four. Raw rewards reduce the returns-to-go."""
    net, steps = make_net(), 9
    torch.manual_seed(2)
    observations, rewards = torch.randn(steps, 2, 3), torch.randn(steps, 2)
    memory, reward = net.initial_memory(2), torch.zeros(2)
    actions, returns = [], [torch.full((2,), 6.0)]
    for t in range(steps):
        present, nothing = observations[t][:, None], torch.zeros(2, 0)
        chunk, memory = net.decide(present, memory | {"rewards": reward}, nothing)
        action = chunk[:, 0]
        first = max(0, t - 3)
        past = [*actions[first:], torch.full((2, 2), 99.0)]  # the present action is masked
        count = t + 1 - first
        expected = net(
            observations[first : t + 1].transpose(0, 1),
            torch.stack(past, 1),
            torch.stack(returns[first:], 1),
            torch.arange(first, t + 1).expand(2, count),
            torch.ones(2, count, dtype=torch.bool),
        )[:, -1]
        torch.testing.assert_close(action, expected)
        actions.append(action)
        reward = rewards[t]
        returns.append(returns[-1] - rewards[t])
    assert memory["timesteps"][0].tolist() == [5, 6, 7, 8]
    assert memory["real"].all()


def test_dropout_is_used_in_training_only_and_preserves_the_mean():
    """There is no dropout without `random`. Dropout scales up the remaining units."""
    x, random = make_context(), Numbers()
    plain = make_net()
    torch.testing.assert_close(make_net(dropout_rate=0.0)(**x, random=random), plain(**x))
    net = make_net(dropout_rate=0.3)
    torch.testing.assert_close(net(**x), plain(**x))
    assert not torch.allclose(net(**x, random=random), net(**x, random=random))
    for block in net.blocks:  # so that the blocks' outputs are almost zero
        block.mlp.weights[1].data *= 1e-3
        block.attention_out.weights[0].data *= 1e-3
    many = {k: v[:1].expand(4000, *v.shape[1:]) for k, v in x.items()}
    captured = []
    net.norm_out.register_forward_pre_hook(lambda _, inputs: captured.append(inputs[0]))
    net(**many, random=random)
    net(**many)
    mean, standard_error = captured[0].mean(0), captured[0].std(0) / math.sqrt(4000)
    assert ((mean - captured[1][0]).abs() < 5 * standard_error + 1e-3).all()
    assert (captured[0][0] == 0).sum() == 0  # the blocks add small values to dropped units


def test_dropout_is_applied_where_gpt2_applies_it():
    """GPT-2 drops embeddings, and in each block attention weights, attention and MLP outputs."""
    random = Numbers()
    make_net(dropout_rate=0.3)(**make_context(5, 4), random=random)
    assert random.shapes == [(5, 12, 8), *[(5, 2, 12, 12), (5, 12, 8), (5, 12, 8)] * 2]


def test_heads_must_divide_the_size():
    with pytest.raises(ValueError, match="dim_model=8 is not a multiple of num_heads=3"):
        make_net(num_heads=3)
