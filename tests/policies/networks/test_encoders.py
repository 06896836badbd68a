"""Vision encoders, compared with PyTorch layers and closed forms, and image crops."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from offline_rl.utils.random import Random
from policies.heads.vision import VisionHead
from policies.networks.encoders import (
    Conv,
    ImageEncoder,
    ObservationEncoder,
    ResNet18,
    SmallConv,
    crop_images,
    spatial_softmax,
)
from policies.networks.precision import set_compute_dtype


def random(seed: int = 0, update: int = 0) -> Random:
    return Random(torch.tensor(seed), torch.tensor(update))


def make_images(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def to_torch_layer(conv: Conv) -> nn.Conv2d:
    """Return PyTorch's layer with the parameters of `conv`."""
    out, inputs, size, _ = conv.weight.shape
    layer = nn.Conv2d(inputs, out, size, conv.stride, size // 2, bias=conv.bias is not None)
    layer.weight.data = conv.weight.data
    if conv.bias is not None:
        layer.bias.data = conv.bias.data
    return layer


def test_resnet18_has_the_published_number_of_parameters() -> None:
    """The published network has 11,689,512 parameters, of which 513,000 are in the classifier."""
    assert sum(p.numel() for p in ResNet18(3).parameters()) == 11_689_512 - 513_000


def test_resnet18_equals_the_network_of_pytorchs_layers() -> None:
    torch.manual_seed(0)
    ours, x = ResNet18(3), torch.randn(2, 3, 40, 48)
    for parameter in ours.parameters():
        if parameter.dim() == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)

    def norm(layer: nn.Module) -> nn.GroupNorm:
        norm = nn.GroupNorm(len(layer.weight) // 16, len(layer.weight))
        norm.weight.data, norm.bias.data = layer.weight.data, layer.bias.data
        return norm

    conv = to_torch_layer
    y = norm(ours.stem_norm)(conv(ours.stem)(x)).relu()
    y = nn.MaxPool2d(3, 2, 1)(y)
    for block in ours.blocks:
        inner = norm(block.first_norm)(conv(block.first)(y)).relu()
        inner = norm(block.second_norm)(conv(block.second)(inner))
        skip = y if block.skip is None else norm(block.skip_norm)(conv(block.skip)(y))
        y = (inner + skip).relu()
    assert y.shape == (2, 512, 2, 2)
    torch.testing.assert_close(ours(x), y)


def test_the_small_encoder_equals_the_network_of_pytorchs_layers() -> None:
    torch.manual_seed(0)
    ours, x = SmallConv(3), torch.randn(2, 3, 24, 16)
    y = x
    for layer in ours.layers:
        y = to_torch_layer(layer)(y).relu()
    assert y.shape == (2, 32, 6, 4)
    torch.testing.assert_close(ours(x), y)


def test_a_keypoint_is_at_the_maximum_of_its_map() -> None:
    maps = torch.zeros(1, 3, 5, 9)
    maps[0, 0, 0, 8] = 100.0  # top right
    maps[0, 1, 4, 2] = 100.0  # bottom, halfway to the left
    keypoints = spatial_softmax(maps).reshape(3, 2)
    expected = torch.tensor([[1.0, -1.0], [-0.5, 1.0], [0.0, 0.0]])
    torch.testing.assert_close(keypoints, expected)


def test_crops_are_at_the_given_corners() -> None:
    images = make_images(3, 6, 7, 2)
    top, left = torch.tensor([0, 2, 1]), torch.tensor([3, 0, 2])
    crops = crop_images(images, top, left, (4, 4))
    for k in range(3):
        expected = images[k, top[k] : top[k] + 4, left[k] : left[k] + 4]
        torch.testing.assert_close(crops[k], expected)


def test_crops_are_at_the_center_when_acting_and_random_in_training() -> None:
    """Border pixels affect the features in some training crops, and never when acting."""
    torch.manual_seed(0)
    encoder, plain = ImageEncoder((16, 16, 3), crop=0.5), make_images(1, 16, 16, 3)
    border = plain.clone()
    border[:, :4] ^= 255
    border[:, :, :4] ^= 255
    border[:, 12:] ^= 255
    border[:, :, 12:] ^= 255
    torch.testing.assert_close(encoder(plain), encoder(border))
    many = plain.expand(64, -1, -1, -1), border.expand(64, -1, -1, -1)
    features, border_features = (encoder(x, random()) for x in many)
    assert len(features.unique(dim=0)) > 32
    assert ((features - border_features).abs().amax(1) > 1e-4).float().mean() > 0.9
    torch.testing.assert_close(encoder(many[0], random()), features, rtol=0, atol=0)
    assert (encoder(many[0], random(update=1)) != features).any()


def test_every_camera_has_its_encoder_and_vectors_are_copied() -> None:
    torch.manual_seed(0)
    shapes = {"left": (12, 12, 3), "state": (2,), "right": (8, 10, 1), "pose": (2, 3)}
    encoder = ObservationEncoder(shapes, num_keypoints=4)
    observations = {
        "left": make_images(5, 12, 12, 3),
        "right": make_images(5, 8, 10, 1),
        "state": torch.randn(5, 2),
        "pose": torch.randn(5, 2, 3),
    }
    features = encoder(observations)
    assert features.shape == (5, encoder.features) == (5, 8 + 2 + 8 + 6)
    torch.testing.assert_close(features[:, 8:10], observations["state"])
    torch.testing.assert_close(features[:, 18:], observations["pose"].flatten(1))
    inverted = encoder(observations | {"right": 255 - observations["right"]})
    changed = (features != inverted).any(0)
    assert changed[10:18].any()
    assert not changed[:10].any()


def test_each_image_of_a_history_is_encoded_separately() -> None:
    encoder, history = ImageEncoder((8, 8, 3)), make_images(3, 2, 8, 8, 3)
    features = encoder(history)
    assert features.shape == (3, 2, 64)
    torch.testing.assert_close(features[:, 1], encoder(history[:, 1]))


@pytest.mark.parametrize("kind", ["conv", "resnet18"])
def test_stacked_seeds_give_the_outputs_of_single_seeds(kind: str) -> None:
    torch.manual_seed(0)
    arguments = {"channels": {"image": [32, 32, 3], "state": [2]}, "head": "DeterministicActor"}
    arguments |= {"head_arguments": {"actions": 2, "hidden": [8]}, "encoder": {"kind": kind}}
    heads = [VisionHead(**arguments) for _ in range(2)]
    params = [dict(head.named_parameters()) for head in heads]
    stacked = {name: torch.stack([p[name] for p in params]) for name in params[0]}
    observations = {"image": make_images(2, 3, 32, 32, 3), "state": torch.randn(2, 3, 2)}

    def run_seed(parameters, observations, seed):
        source = Random(seed, torch.tensor(5))
        return functional_call(heads[0], parameters, (observations, source))

    together = vmap(run_seed)(stacked, observations, torch.tensor([3, 4]))
    for s, head in enumerate(heads):
        single = head({k: v[s] for k, v in observations.items()}, random(3 + s, 5))
        torch.testing.assert_close(together[s], single)


def test_matrix_products_run_in_the_dtype_that_is_set() -> None:
    torch.manual_seed(0)
    encoder, images = ImageEncoder((16, 16, 3)), make_images(2, 16, 16, 3)
    exact = encoder(images)
    set_compute_dtype(encoder, torch.bfloat16)
    rough = encoder(images)
    assert rough.dtype == torch.float32
    assert 0 < (rough - exact).abs().max() < 0.1


@pytest.mark.parametrize("kind", ["conv", "resnet18"])
def test_every_parameter_of_an_encoder_has_a_gradient(kind: str) -> None:
    torch.manual_seed(0)
    encoder = ImageEncoder((64, 64, 3), kind=kind, num_keypoints=4)
    (encoder(make_images(2, 64, 64, 3)) * torch.randn(8)).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0, name
