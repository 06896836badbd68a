"""Heads of chunks that are shown pictures: what is encoded, how often, and by which pieces."""

from typing import Any

import pytest
import torch
from torch import Tensor

from offline_rl.utils.random import Random
from policies.heads.act import ActionChunkingTransformer
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import cosine_alphas, ddim
from policies.networks.encoders import ImageEncoder

CHANNELS = {"picture": (12, 12, 3), "state": (2,)}
ENCODER = {"num_keypoints": 4, "crop": 0.5}


def denoiser() -> DiffusionActor:
    torch.manual_seed(0)
    sizes = {"network": "mlp", "options": {"hidden": [16], "time_size": 8}, "horizon": 4}
    table = ddim(cosine_alphas(20), 5, "epsilon")
    return DiffusionActor(CHANNELS, 2, table=table, n_action_steps=2, encoder=ENCODER, **sizes)


def transformer() -> ActionChunkingTransformer:
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


def seen(rows: int = 3) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    pictures = torch.randint(0, 256, (rows, 2, 12, 12, 3), generator=draw, dtype=torch.uint8)
    return {"picture": pictures, "state": torch.randn(rows, 2, 2, generator=draw)}


def random(update: int = 0) -> Random:
    return Random(torch.tensor(0), torch.tensor(update))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of all pictures that any encoder is shown."""
    found, forward = list[torch.Size](), ImageEncoder.forward

    def told(self: ImageEncoder, pictures: Tensor, *rest: Any) -> Tensor:
        found.append(pictures.shape)
        return forward(self, pictures, *rest)

    monkeypatch.setattr(ImageEncoder, "forward", told)
    return found


def test_a_picture_is_encoded_once_however_many_noise_levels_and_rounds(encoded) -> None:
    head, x = denoiser(), torch.randn(6, 3, 4, 2)
    head(seen(), x, torch.rand(6, 3), random())
    head.plan(seen(), torch.randn(3, *head.noise_shape))
    assert len(head.table) == 5
    assert encoded == [(3, 2, 12, 12, 3)] * 2


def test_several_noise_levels_of_pictures_equal_separate_passes() -> None:
    head, x, times = denoiser(), torch.randn(6, 3, 4, 2), 9 * torch.rand(6, 3)
    together = head(seen(), x, times)
    apart = torch.stack([head(seen(), x[k], times[k]) for k in range(6)])
    torch.testing.assert_close(together, apart)


def test_what_is_seen_is_the_encoders_word_of_each_picture_beside_the_vector() -> None:
    head, given = denoiser(), seen()
    told = head.encode(given)
    assert head.observation_encoder is not None
    (camera,) = head.observation_encoder.cameras
    pictures = given["picture"].flatten(0, 1)
    torch.testing.assert_close(told[..., :8].flatten(0, 1), camera(pictures))
    torch.testing.assert_close(told[..., 8:], given["state"])


@pytest.mark.parametrize("make", [denoiser, transformer])
def test_acting_sees_the_middle_and_learning_pieces_that_an_update_draws(make: Any) -> None:
    head, plain = make(), seen()
    rim = plain | {"picture": plain["picture"].clone()}
    rim["picture"][..., :3, :, :] ^= 255
    rim["picture"][..., 9:, :] ^= 255
    noise = torch.randn(3, *(head.noise_shape or (0,)))
    torch.testing.assert_close(head.plan(plain, noise), head.plan(rim, noise))

    def learned(given: dict[str, Tensor], update: int) -> Tensor:
        return head.encode(given, random(update))

    assert torch.equal(learned(plain, 0), learned(plain, 0))
    assert not torch.equal(learned(plain, 0), learned(plain, 1))
    assert not torch.equal(learned(plain, 0), learned(rim, 0))
    assert not torch.equal(learned(plain, 0), head.encode(plain))


@pytest.mark.parametrize("make", [denoiser, transformer])
def test_what_a_bundle_holds_builds_it_with_its_encoder(make: Any) -> None:
    head = make()
    again = type(head)(**head.arguments)
    again.load_state_dict(head.state_dict())
    noise = torch.randn(3, *(head.noise_shape or (0,)))
    assert torch.equal(head.plan(seen(), noise), again.plan(seen(), noise))
    dark = seen()
    dark["picture"] //= 2
    assert not torch.equal(head.plan(dark, noise), again.plan(seen(), noise))
