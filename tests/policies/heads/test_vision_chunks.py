"""Chunk heads with image observations: number of encoder calls, and crops."""

from typing import Any

import pytest
import torch
from torch import Tensor

from offline_rl.utils.random import Random
from policies.heads.act import ActionChunkingTransformer
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import cosine_alphas, ddim
from policies.networks.encoders import ImageEncoder

CHANNELS = {"image": (12, 12, 3), "state": (2,)}
ENCODER = {"num_keypoints": 4, "crop": 0.5}


def make_diffusion_head() -> DiffusionActor:
    torch.manual_seed(0)
    sizes = {"network": "mlp", "options": {"hidden": [16], "time_size": 8}, "horizon": 4}
    table = ddim(cosine_alphas(20), 5, "epsilon")
    return DiffusionActor(CHANNELS, 2, table=table, n_action_steps=2, encoder=ENCODER, **sizes)


def make_act_head() -> ActionChunkingTransformer:
    torch.manual_seed(0)
    small = {
        "dim_model": 8,
        "num_heads": 2,
        "hidden": 8,
        "num_layers": 1,
        "num_vae_encoder_layers": 1,
        "latent_dim": 3,
    }
    small |= {"n_obs_steps": 2, "horizon": 4, "n_action_steps": 2}
    return ActionChunkingTransformer(CHANNELS, 2, encoder=ENCODER, **small)


def make_observations(rows: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (rows, 2, 12, 12, 3), generator=generator, dtype=torch.uint8)
    return {"image": images, "state": torch.randn(rows, 2, 2, generator=generator)}


def random(update: int = 0) -> Random:
    return Random(torch.tensor(0), torch.tensor(update))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Return a list that collects the shapes of all encoded images."""
    shapes, forward = list[torch.Size](), ImageEncoder.forward

    def recording_forward(self: ImageEncoder, images: Tensor, *rest: Any) -> Tensor:
        shapes.append(images.shape)
        return forward(self, images, *rest)

    monkeypatch.setattr(ImageEncoder, "forward", recording_forward)
    return shapes


def test_an_image_is_encoded_once_for_all_noise_levels_and_denoising_steps(encoded) -> None:
    head, x = make_diffusion_head(), torch.randn(6, 3, 4, 2)
    head(make_observations(), x, torch.rand(6, 3), random())
    head.decide(make_observations(), {}, torch.randn(3, *head.noise_shape))
    assert len(head.table) == 5
    assert encoded == [(3, 2, 12, 12, 3)] * 2


def test_several_noise_levels_of_images_equal_separate_passes() -> None:
    head, x, times = make_diffusion_head(), torch.randn(6, 3, 4, 2), 9 * torch.rand(6, 3)
    together = head(make_observations(), x, times)
    separate = torch.stack([head(make_observations(), x[k], times[k]) for k in range(6)])
    torch.testing.assert_close(together, separate)


def test_features_are_those_of_the_image_encoder_followed_by_the_vector() -> None:
    head, observations = make_diffusion_head(), make_observations()
    features = head.encode(observations)
    assert head.observation_encoder is not None
    (camera,) = head.observation_encoder.cameras
    images = observations["image"].flatten(0, 1)
    torch.testing.assert_close(features[..., :8].flatten(0, 1), camera(images))
    torch.testing.assert_close(features[..., 8:], observations["state"])


@pytest.mark.parametrize("make", [make_diffusion_head, make_act_head])
def test_images_are_cropped_at_the_center_when_acting_and_randomly_in_training(make: Any) -> None:
    head, plain = make(), make_observations()
    border = plain | {"image": plain["image"].clone()}
    border["image"][..., :3, :, :] ^= 255
    border["image"][..., 9:, :] ^= 255
    noise = torch.randn(3, *(head.noise_shape or (0,)))
    torch.testing.assert_close(head.decide(plain, {}, noise)[0], head.decide(border, {}, noise)[0])

    def encode_in_training(observations: dict[str, Tensor], update: int) -> Tensor:
        return head.encode(observations, random(update))

    features = encode_in_training(plain, 0)
    assert torch.equal(features, encode_in_training(plain, 0))
    assert not torch.equal(features, encode_in_training(plain, 1))
    assert not torch.equal(features, encode_in_training(border, 0))
    assert not torch.equal(features, head.encode(plain))


@pytest.mark.parametrize("make", [make_diffusion_head, make_act_head])
def test_a_head_is_rebuilt_with_its_encoder(make: Any) -> None:
    head = make()
    copy = type(head)(**head.arguments)
    copy.load_state_dict(head.state_dict())
    noise = torch.randn(3, *(head.noise_shape or (0,)))
    observations = make_observations()
    assert torch.equal(
        head.decide(observations, {}, noise)[0], copy.decide(observations, {}, noise)[0]
    )
    dark = make_observations()
    dark["image"] //= 2
    assert not torch.equal(head.decide(dark, {}, noise)[0], copy.decide(observations, {}, noise)[0])
