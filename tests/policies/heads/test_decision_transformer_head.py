"""The Decision Transformer's network against torch's own layers, and its memory."""

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
        self.generator, self.asked = torch.Generator().manual_seed(0), []

    def uniform(self, shape):
        self.asked.append(tuple(shape))
        return torch.rand(tuple(shape), generator=self.generator)

    def normal(self, shape):
        return torch.randn(tuple(shape), generator=self.generator)


def made(**options) -> DecisionTransformer:
    """A network whose every parameter matters."""
    torch.manual_seed(0)
    net = DecisionTransformer(3, 2, **(OPTIONS | options))
    for p in net.parameters():
        p.data += 0.3 * torch.randn_like(p)
    return net


def windows(batch: int = 5, steps: int = 4) -> dict[str, torch.Tensor]:
    """Windows that begin at the third step of an episode; all steps real."""
    torch.manual_seed(1)
    return {
        "observations": torch.randn(batch, steps, 3),
        "actions": torch.rand(batch, steps, 2),
        "returns": torch.randn(batch, steps),
        "timesteps": torch.arange(2, 2 + steps).expand(batch, steps),
        "real": torch.ones(batch, steps, dtype=torch.bool),
    }


def torchs(net: DecisionTransformer, x: dict[str, torch.Tensor]) -> torch.Tensor:
    """The same by torch's linear, embedding, normalization and encoder layers."""

    def linear(mlp, x, layer=0):
        return nn.functional.linear(x, mlp.weights[layer].T, mlp.biases[layer])

    place = nn.functional.embedding(x["timesteps"], net.embed_place)
    tokens = [
        linear(net.embed_return, x["returns"][..., None] / 2) + place,
        linear(net.embed_observation, x["observations"]) + place,
        linear(net.embed_action, x["actions"]) + place,
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


def test_answers_are_those_of_torchs_layers():
    net, x = made(), windows()
    torch.testing.assert_close(net(**x), torchs(net, x))


def test_a_step_sees_its_return_and_observation_and_what_came_before_alone():
    net, x = made(), windows()
    before = net(**x)
    for name in ("returns", "observations", "actions"):
        changed = x | {name: x[name].clone()}
        changed[name][:, 2] += 1.0
        difference = (net(**changed) - before).abs().amax((0, 2))  # [T]
        first = 3 if name == "actions" else 2  # a step's own action is not seen
        assert (difference[:first] == 0).all()
        assert (difference[first:] > 1e-6).all()


def test_what_is_not_real_is_not_seen_wherever_it_stands():
    """Padding before the window or after it, whatever it holds: the real steps' answers stay."""
    net, x = made(), windows(steps=2)
    expected = net(**x)
    for place in (slice(0, 2), slice(2, 4)):
        padded = windows(steps=4)
        padded = {k: v.clone() if k != "real" else torch.zeros_like(v) for k, v in padded.items()}
        for name in x:
            padded[name][:, place] = x[name]
        answers = net(**padded)
        assert answers.isfinite().all()
        torch.testing.assert_close(answers[:, place], expected)


def test_steps_beyond_the_last_place_count_as_the_last():
    net, x = made(), windows()
    late, later = (x | {"timesteps": x["timesteps"] + k} for k in (7, 50))
    torch.testing.assert_close(net(**late)[:, 0], net(**later)[:, 0])
    assert not torch.allclose(net(**late), net(**x))


def test_acting_step_by_step_is_looking_at_the_last_window_of_the_whole_episode():
    """Nine steps, a window of four, two episodes side by side; returns fall by raw rewards."""
    net, steps = made(), 9
    torch.manual_seed(2)
    observations, rewards = torch.randn(steps, 2, 3), torch.randn(steps, 2)
    context, told = net.reset(2), torch.zeros(2)
    actions, returns = [], [torch.full((2,), 6.0)]
    for t in range(steps):
        ours, context = net.step(observations[t], told, context)
        first = max(0, t - 3)
        past = [*actions[first:], torch.full((2, 2), 99.0)]  # the present one is not seen
        count = t + 1 - first
        expected = net(
            observations[first : t + 1].transpose(0, 1),
            torch.stack(past, 1),
            torch.stack(returns[first:], 1),
            torch.arange(first, t + 1).expand(2, count),
            torch.ones(2, count, dtype=torch.bool),
        )[:, -1]
        torch.testing.assert_close(ours, expected)
        actions.append(ours)
        told = rewards[t]
        returns.append(returns[-1] - rewards[t])
    assert context["timesteps"][0].tolist() == [5, 6, 7, 8]
    assert context["real"].all()


def test_dropout_is_for_training_alone_and_right_on_average():
    """Only with random numbers given; what is kept is scaled up to the same mean."""
    x, random = windows(), Numbers()
    plain = made()
    torch.testing.assert_close(made(dropout_rate=0.0)(**x, random=random), plain(**x))
    wet = made(dropout_rate=0.3)
    torch.testing.assert_close(wet(**x), plain(**x))
    assert not torch.allclose(wet(**x, random=random), wet(**x, random=random))
    for (
        block
    ) in wet.blocks:  # so that what leaves them is what entered, dropped, and next to nothing
        block.mlp.weights[1].data *= 1e-3
        block.attention_out.weights[0].data *= 1e-3
    many = {k: v[:1].expand(4000, *v.shape[1:]) for k, v in x.items()}
    seen = []
    wet.norm_out.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    wet(**many, random=random)
    wet(**many)
    mean, spread = seen[0].mean(0), seen[0].std(0) / math.sqrt(4000)
    assert ((mean - seen[1][0]).abs() < 5 * spread + 1e-3).all()
    assert (seen[0][0] == 0).sum() == 0  # what the blocks add is never exactly zero


def test_dropout_is_where_gpt2_has_it():
    """After the embedding; in a block of attention's weights, its output and the perceptron's."""
    random = Numbers()
    made(dropout_rate=0.3)(**windows(5, 4), random=random)
    assert random.asked == [(5, 12, 8), *[(5, 2, 12, 12), (5, 12, 8), (5, 12, 8)] * 2]


def test_heads_must_divide_the_size():
    with pytest.raises(ValueError, match="dim_model=8 is not a multiple of num_heads=3"):
        made(num_heads=3)
