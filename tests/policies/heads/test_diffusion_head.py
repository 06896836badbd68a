"""The head that denoises chunks: its answer, how it scales actions, many levels in one pass."""

import pytest
import torch

from offline_rl.utils.random import Random
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import DenoisingStep, cosine_alphas, ddim

SIZES = {"network": "mlp", "options": {"hidden": [16], "time_size": 8}}
SIZES |= {"n_obs_steps": 3, "horizon": 8, "n_action_steps": 4}
ECHO = [DenoisingStep(0, 1, 0, 0, 1, 0, 0, 0)]  # the noise itself is the chunk


def made(table=ECHO, **options) -> DiffusionActor:
    torch.manual_seed(0)
    return DiffusionActor(5, 2, table=table, **(SIZES | options))


def test_the_answer_begins_with_the_present_action():
    """Of a window beside the oldest of three observations two actions are over."""
    head, noise = made(), torch.rand(4, 1, 8, 2)
    chunk = head.plan(torch.randn(4, 3, 5), noise)
    assert head.chunk_size == 6
    assert torch.equal(chunk, noise[:, 0, 2:])


def test_actions_are_scaled_to_the_datas_range_and_back():
    head = made(action_low=[-0.5, 0.3], action_high=[1.0, 0.3])
    actions = torch.tensor([[-0.5, 0.3], [1.0, 0.3], [0.25, 0.4]])
    unit = head.normalize_actions(actions)
    assert unit[:, 0].tolist() == pytest.approx([-1, 1, 0])
    assert unit[:, 1].tolist() == pytest.approx([0, 0, 0.1])  # hardly moves: shifted alone
    assert torch.allclose(head.denormalize_actions(unit), actions)
    noise = torch.full((1, 1, 8, 2), 5.0)
    chunk = head.plan(torch.zeros(1, 3, 5), noise)[0, 0]
    assert chunk.tolist() == pytest.approx([1.0, 1.0])  # never outside [-1, 1]
    chunk = head.plan(torch.zeros(1, 3, 5), -noise)[0, 0]
    assert chunk.tolist() == pytest.approx([-0.5, -0.7])  # nor outside the data's range


def test_several_noise_levels_of_an_observation_equal_separate_passes():
    head = made()
    seen, x, times = torch.randn(4, 3, 5), torch.randn(6, 4, 8, 2), 9 * torch.rand(6, 4)
    together = head(seen, x, times)
    apart = torch.stack([head(seen, x[k], times[k]) for k in range(6)])
    assert torch.allclose(together, apart, atol=1e-6)
    of_one = torch.stack([head(seen[[b]], x[:, b], times[:, b]) for b in range(4)], 1)
    assert torch.allclose(together, of_one.reshape(together.shape), atol=1e-6)


def test_one_observation_is_encoded_once_for_all_its_noise_levels(monkeypatch):
    head, encoded = made(), []
    encode = head.encode
    monkeypatch.setattr(head, "encode", lambda o, *_: encoded.append(o.shape) or encode(o))
    head(torch.randn(4, 3, 5), torch.randn(6, 4, 8, 2), torch.rand(6, 4))
    head.plan(torch.randn(4, 3, 5), torch.randn(4, *head.noise_shape))
    assert encoded == [(4, 3, 5)] * 2


def test_hidden_units_are_dropped_while_it_learns_and_none_when_it_acts():
    """Behind one hidden layer all is linear, so that over many draws nothing is lost."""
    head, whole = made(dropout_rate=0.3), made()
    seen, x, times = torch.randn(1, 3, 5), torch.randn(1, 1, 8, 2), torch.full((20_000, 1), 4.0)
    many = x.expand(20_000, -1, -1, -1)
    plain = whole(seen, x, times[:1])
    assert torch.equal(head(seen, x, times[:1]), plain)
    dropped = head(seen, many, times, Random(torch.tensor(0), torch.tensor(0)))
    assert (dropped.std(0) > 0.02).all()
    assert (dropped.mean(0) - plain).abs().max() < 0.01
    noise = torch.randn(1, *head.noise_shape)
    assert torch.equal(head.plan(seen, noise), whole.plan(seen, noise))


def test_what_a_bundle_holds_builds_it_again():
    head = made(ddim(cosine_alphas(100), 5, "epsilon"), action_low=[-0.5, 0.0])
    again = DiffusionActor(**head.arguments)
    again.load_state_dict(head.state_dict())
    seen, noise = torch.randn(4, 3, 5), torch.randn(4, *head.noise_shape)
    assert torch.equal(head.plan(seen, noise), again.plan(seen, noise))


def test_more_actions_cannot_be_executed_than_are_answered():
    with pytest.raises(ValueError, match=r"n_action_steps=7: .* 6 lie ahead"):
        made(n_action_steps=7)
