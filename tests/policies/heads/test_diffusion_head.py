"""The diffusion head: chunks, action normalization, and several noise levels in one pass."""

import pytest
import torch

from offline_rl.utils.random import Random
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import DenoisingStep, cosine_alphas, ddim

SIZES = {"network": "mlp", "options": {"hidden": [16], "time_size": 8}}
SIZES |= {"n_obs_steps": 3, "horizon": 8, "n_action_steps": 4}
ECHO = [DenoisingStep(0, 1, 0, 0, 1, 0, 0, 0)]  # the chunk is the noise


def make_head(table=ECHO, **options) -> DiffusionActor:
    torch.manual_seed(0)
    return DiffusionActor(5, 2, table=table, **(SIZES | options))


def test_the_chunk_starts_with_the_present_action():
    """The horizon starts at the oldest of three observations, so the first two actions are past."""
    head, noise = make_head(), torch.rand(4, 1, 8, 2)
    chunk = head.decide(torch.randn(4, 3, 5), {}, noise)[0]
    assert head.chunk_size == 6
    assert torch.equal(chunk, noise[:, 0, 2:])


def test_actions_are_scaled_to_their_range_in_the_data_and_back():
    head = make_head(action_low=[-0.5, 0.3], action_high=[1.0, 0.3])
    actions = torch.tensor([[-0.5, 0.3], [1.0, 0.3], [0.25, 0.4]])
    scaled = head.normalize_actions(actions)
    assert scaled[:, 0].tolist() == pytest.approx([-1, 1, 0])
    assert scaled[:, 1].tolist() == pytest.approx(
        [0, 0, 0.1]
    )  # a constant action is shifted but not scaled
    assert torch.allclose(head.denormalize_actions(scaled), actions)
    noise = torch.full((1, 1, 8, 2), 5.0)
    chunk = head.decide(torch.zeros(1, 3, 5), {}, noise)[0][0, 0]
    assert chunk.tolist() == pytest.approx([1.0, 1.0])  # clipped to [-1, 1]
    chunk = head.decide(torch.zeros(1, 3, 5), {}, -noise)[0][0, 0]
    assert chunk.tolist() == pytest.approx([-0.5, -0.7])  # clipped to the range in the data


def test_several_noise_levels_of_an_observation_equal_separate_passes():
    head = make_head()
    s, x, times = torch.randn(4, 3, 5), torch.randn(6, 4, 8, 2), 9 * torch.rand(6, 4)
    together = head(s, x, times)
    by_level = torch.stack([head(s, x[k], times[k]) for k in range(6)])
    assert torch.allclose(together, by_level, atol=1e-6)
    by_row = torch.stack([head(s[[b]], x[:, b], times[:, b]) for b in range(4)], 1)
    assert torch.allclose(together, by_row.reshape(together.shape), atol=1e-6)


def test_an_observation_is_encoded_once_for_all_noise_levels(monkeypatch):
    head, encoded = make_head(), []
    encode = head.encode
    monkeypatch.setattr(head, "encode", lambda o, *_: encoded.append(o.shape) or encode(o))
    head(torch.randn(4, 3, 5), torch.randn(6, 4, 8, 2), torch.rand(6, 4))
    head.decide(torch.randn(4, 3, 5), {}, torch.randn(4, *head.noise_shape))
    assert encoded == [(4, 3, 5)] * 2


def test_hidden_units_are_dropped_in_training_and_not_when_acting():
    """The network has one hidden layer and a linear output, so dropout preserves the mean."""
    head, plain = make_head(dropout_rate=0.3), make_head()
    s, x, times = torch.randn(1, 3, 5), torch.randn(1, 1, 8, 2), torch.full((20_000, 1), 4.0)
    many = x.expand(20_000, -1, -1, -1)
    expected = plain(s, x, times[:1])
    assert torch.equal(head(s, x, times[:1]), expected)
    dropped = head(s, many, times, Random(torch.tensor(0), torch.tensor(0)))
    assert (dropped.std(0) > 0.02).all()
    assert (dropped.mean(0) - expected).abs().max() < 0.01
    noise = torch.randn(1, *head.noise_shape)
    assert torch.equal(head.decide(s, {}, noise)[0], plain.decide(s, {}, noise)[0])


def test_the_head_is_rebuilt_from_its_arguments_and_weights():
    head = make_head(ddim(cosine_alphas(100), 5, "epsilon"), action_low=[-0.5, 0.0])
    copy = DiffusionActor(**head.arguments)
    copy.load_state_dict(head.state_dict())
    s, noise = torch.randn(4, 3, 5), torch.randn(4, *head.noise_shape)
    assert torch.equal(head.decide(s, {}, noise)[0], copy.decide(s, {}, noise)[0])


def test_n_action_steps_above_the_chunk_size_is_refused():
    with pytest.raises(ValueError, match=r"n_action_steps=7 is more than 6"):
        make_head(n_action_steps=7)
