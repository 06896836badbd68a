"""Encoders of pictures: against plain PyTorch, closed forms, and what crops may and may not see."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from offline_rl.utils.random import Random
from policies.heads.vision import VisionHead
from policies.networks.encoders import (
    Conv,
    ImageEncoder,
    ResNet18,
    ObservationEncoder,
    SmallConv,
    crop_images,
    spatial_softmax,
)
from policies.networks.precision import set_compute_dtype


def random(seed: int = 0, update: int = 0) -> Random:
    return Random(torch.tensor(seed), torch.tensor(update))


def pictures(*shape: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)


def twin(conv: Conv) -> nn.Conv2d:
    """PyTorch's own layer with the same numbers."""
    out, inputs, size, _ = conv.weight.shape
    made = nn.Conv2d(inputs, out, size, conv.stride, size // 2, bias=conv.bias is not None)
    made.weight.data = conv.weight.data
    if conv.bias is not None:
        made.bias.data = conv.bias.data
    return made


def test_resnet18_has_the_published_number_of_parameters() -> None:
    """11,689,512 of the published network less its last layer's 512 * 1000 + 1000."""
    assert sum(p.numel() for p in ResNet18(3).parameters()) == 11_689_512 - 513_000


def test_resnet18_equals_the_same_network_of_pytorchs_layers() -> None:
    torch.manual_seed(0)
    ours, x = ResNet18(3), torch.randn(2, 3, 40, 48)
    for parameter in ours.parameters():
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)

    def norm(own: nn.Module) -> nn.GroupNorm:
        made = nn.GroupNorm(len(own.weight) // 16, len(own.weight))
        made.weight.data, made.bias.data = own.weight.data, own.bias.data
        return made

    made = norm(ours.stem_norm)(twin(ours.stem)(x)).relu()
    made = nn.MaxPool2d(3, 2, 1)(made)
    for block in ours.blocks:
        inner = norm(block.first_norm)(twin(block.first)(made)).relu()
        inner = norm(block.second_norm)(twin(block.second)(inner))
        skip = made if block.skip is None else norm(block.skip_norm)(twin(block.skip)(made))
        made = (inner + skip).relu()
    assert made.shape == (2, 512, 2, 2)
    torch.testing.assert_close(ours(x), made)


def test_the_small_encoder_equals_the_same_network_of_pytorchs_layers() -> None:
    torch.manual_seed(0)
    ours, x = SmallConv(3), torch.randn(2, 3, 24, 16)
    made = x
    for layer in ours.layers:
        made = twin(layer)(made).relu()
    assert made.shape == (2, 32, 6, 4)
    torch.testing.assert_close(ours(x), made)


def test_a_keypoint_is_where_its_map_is_strong() -> None:
    maps = torch.zeros(1, 3, 5, 9)
    maps[0, 0, 0, 8] = 100.0  # above, right
    maps[0, 1, 4, 2] = 100.0  # below, half way to the left
    found = spatial_softmax(maps).reshape(3, 2)
    expected = torch.tensor([[1.0, -1.0], [-0.5, 1.0], [0.0, 0.0]])
    torch.testing.assert_close(found, expected)


def test_a_piece_is_cut_where_it_is_said() -> None:
    whole = pictures(3, 6, 7, 2)
    top, left = torch.tensor([0, 2, 1]), torch.tensor([3, 0, 2])
    pieces = crop_images(whole, top, left, (4, 4))
    for k in range(3):
        expected = whole[k, top[k] : top[k] + 4, left[k] : left[k] + 4]
        torch.testing.assert_close(pieces[k], expected)


def test_acting_looks_at_the_middle_and_learning_at_pieces_all_over() -> None:
    """Pixels at the rim are seen while it learns, at some draw, and never when it acts."""
    torch.manual_seed(0)
    encoder, plain = ImageEncoder((16, 16, 3), crop=0.5), pictures(1, 16, 16, 3)
    rim = plain.clone()
    rim[:, :4] ^= 255
    rim[:, :, :4] ^= 255
    rim[:, 12:] ^= 255
    rim[:, :, 12:] ^= 255
    torch.testing.assert_close(encoder(plain), encoder(rim))
    many = plain.expand(64, -1, -1, -1), rim.expand(64, -1, -1, -1)
    learned, others = (encoder(x, random()) for x in many)
    assert len(learned.unique(dim=0)) > 32
    assert ((learned - others).abs().amax(1) > 1e-4).float().mean() > 0.9
    torch.testing.assert_close(encoder(many[0], random()), learned, rtol=0, atol=0)
    assert (encoder(many[0], random(update=1)) != learned).any()


def test_every_camera_has_an_encoder_of_its_own_and_vectors_pass() -> None:
    torch.manual_seed(0)
    shapes = {"left": (12, 12, 3), "state": (2,), "right": (8, 10, 1), "pose": (2, 3)}
    eyes = ObservationEncoder(shapes, num_keypoints=4)
    seen = {
        "left": pictures(5, 12, 12, 3),
        "right": pictures(5, 8, 10, 1),
        "state": torch.randn(5, 2),
        "pose": torch.randn(5, 2, 3),
    }
    features = eyes(seen)
    assert features.shape == (5, eyes.features) == (5, 8 + 2 + 8 + 6)
    torch.testing.assert_close(features[:, 8:10], seen["state"])
    torch.testing.assert_close(features[:, 18:], seen["pose"].flatten(1))
    other = eyes(seen | {"right": 255 - seen["right"]})
    changed = (features != other).any(0)
    assert changed[10:18].any()
    assert not changed[:10].any()


def test_a_history_is_encoded_picture_by_picture() -> None:
    encoder, long = ImageEncoder((8, 8, 3)), pictures(3, 2, 8, 8, 3)
    features = encoder(long)
    assert features.shape == (3, 2, 64)
    torch.testing.assert_close(features[:, 1], encoder(long[:, 1]))


@pytest.mark.parametrize("kind", ["conv", "resnet18"])
def test_stacked_seeds_see_what_single_ones_see(kind: str) -> None:
    torch.manual_seed(0)
    arguments = {"channels": {"picture": [32, 32, 3], "state": [2]}, "head": "DeterministicActor"}
    arguments |= {"head_arguments": {"actions": 2, "hidden": [8]}, "encoder": {"kind": kind}}
    heads = [VisionHead(**arguments) for _ in range(2)]
    params = [dict(head.named_parameters()) for head in heads]
    stacked = {name: torch.stack([p[name] for p in params]) for name in params[0]}
    seen = {"picture": pictures(2, 3, 32, 32, 3), "state": torch.randn(2, 3, 2)}

    def one(own, observations, seed):
        drawn = Random(seed, torch.tensor(5))
        return functional_call(heads[0], own, (observations, drawn))

    together = vmap(one)(stacked, seen, torch.tensor([3, 4]))
    for s, head in enumerate(heads):
        alone = head({k: v[s] for k, v in seen.items()}, random(3 + s, 5))
        torch.testing.assert_close(together[s], alone)


def test_products_take_the_precision_that_is_asked_for() -> None:
    torch.manual_seed(0)
    encoder, seen = ImageEncoder((16, 16, 3)), pictures(2, 16, 16, 3)
    exact = encoder(seen)
    set_compute_dtype(encoder, torch.bfloat16)
    rough = encoder(seen)
    assert rough.dtype == torch.float32
    assert 0 < (rough - exact).abs().max() < 0.1


@pytest.mark.parametrize("kind", ["conv", "resnet18"])
def test_every_weight_of_an_encoder_is_taught(kind: str) -> None:
    torch.manual_seed(0)
    encoder = ImageEncoder((64, 64, 3), kind=kind, num_keypoints=4)
    (encoder(pictures(2, 64, 64, 3)) * torch.randn(8)).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0, name
