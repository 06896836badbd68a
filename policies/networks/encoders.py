"""Encoders that map images to feature vectors, and several observation channels to one vector.

Images are uint8 [..., H, W, C], as in the data, and the encoder scales them. Training crops each
image at a random position. Acting crops each image at its center. The features are spatial softmax
keypoints: the expected position in each feature map (Finn et al., arXiv:1509.06113).

Shapes: P images, C channels of a convolution, K feature maps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, group_norm, max_pool2d

from policies.channels import is_image
from policies.networks.dropout import Random
from policies.networks.init import torch_init

Kind = Literal["conv", "resnet18"]


class Conv(nn.Module):
    """A convolution over [P, C, H, W], with torch's initialization."""

    compute_dtype = torch.float32

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int = 1, *, bias: bool = True
    ) -> None:
        """Create the convolution.

        size: kernel size, odd. Each side gets zero padding of size // 2.
        """
        super().__init__()
        self.size, self.stride = size, stride
        self.weight = nn.Parameter(torch.empty(outputs, inputs, size, size))
        initial_bias = torch.empty(outputs)
        torch_init(self.weight, initial_bias, inputs * size * size, False)
        self.bias = nn.Parameter(initial_bias) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return [P, outputs, H / stride, W / stride] for x [P, inputs, H, W]."""
        dtype, padding = self.compute_dtype, self.size // 2
        y = conv2d(x.to(dtype), self.weight.to(dtype), None, self.stride, padding).float()
        return y if self.bias is None else y + self.bias[:, None, None]


class GroupNorm(nn.Module):
    """Group normalization with groups of 16 channels and torch's default eps."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.groups = channels // 16
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x [P, C, H, W]."""
        return group_norm(x, self.groups, self.weight, self.bias)


class SmallConv(nn.Module):
    """Three convolutions with ReLUs. The kernel sizes are 5, 3 and 3, the strides 2, 2 and 1."""

    widths = (16, 32, 32)

    def __init__(self, colors: int) -> None:
        super().__init__()
        pairs = enumerate(pairwise((colors, *self.widths)))
        self.layers = nn.ModuleList(
            Conv(inputs, out, 3 if k else 5, 2 if k < 2 else 1) for k, (inputs, out) in pairs
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return [P, 32, H / 4, W / 4] for images x [P, colors, H, W]."""
        for layer in self.layers:
            x = layer(x).relu()
        return x


class ResidualBlock(nn.Module):
    """ResNet's basic block: two normalized convolutions and a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = (
            Conv(inputs, outputs, 3, stride, bias=False),
            GroupNorm(outputs),
        )
        self.second, self.second_norm = Conv(outputs, outputs, 3, bias=False), GroupNorm(outputs)
        is_identity = inputs == outputs and stride == 1
        self.skip = None if is_identity else Conv(inputs, outputs, 1, stride, bias=False)
        self.skip_norm = None if is_identity else GroupNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return [P, outputs, H / stride, W / stride] for x [P, inputs, H, W]."""
        inner = self.second_norm(self.second(self.first_norm(self.first(x)).relu()))
        skip = x if self.skip is None or self.skip_norm is None else self.skip_norm(self.skip(x))
        return (inner + skip).relu()


class ResNet18(nn.Module):
    """ResNet-18 (He et al., arXiv:1512.03385) with group norm, and without pooling and classifier.

    As in Diffusion Policy (arXiv:2303.04137, section 3.2), group normalization replaces batch
    normalization, which is incompatible with an exponential moving average (EMA) of the weights.
    Each group has 16 channels.
    """

    widths = (64, 64, 128, 256, 512)

    def __init__(self, colors: int) -> None:
        super().__init__()
        self.stem, self.stem_norm = Conv(colors, 64, 7, 2, bias=False), GroupNorm(64)
        pairs = enumerate(pairwise(self.widths))
        self.blocks = nn.ModuleList(
            block
            for k, (inputs, out) in pairs
            for block in (ResidualBlock(inputs, out, 2 if k else 1), ResidualBlock(out, out, 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return [P, 512, H / 32, W / 32] for images x [P, colors, H, W]."""
        x = max_pool2d(self.stem_norm(self.stem(x)).relu(), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return x


BACKBONES: dict[str, Callable[[int], Any]] = {"conv": SmallConv, "resnet18": ResNet18}


class ImageEncoder(nn.Module):
    """An encoder of the images of one camera: a backbone and spatial softmax keypoints."""

    def __init__(
        self,
        shape: Sequence[int],
        *,
        kind: Kind = "conv",
        num_keypoints: int = 32,
        crop: float = 0.875,
    ) -> None:
        """Create the encoder.

        shape: [H, W, C].
        kind: backbone, a small convolutional network or ResNet-18.
        num_keypoints: number of feature maps. Each gives two features, x and y of its keypoint.
        crop: height of the crop divided by the height of the image; the same for the width.
        """
        super().__init__()
        height, width, colors = shape
        self.crop_size = (max(round(height * crop), 1), max(round(width * crop), 1))
        self.margins = (height - self.crop_size[0], width - self.crop_size[1])
        self.backbone = BACKBONES[kind](colors)
        width = self.backbone.widths[-1]
        self.maps = Conv(width, num_keypoints, 1, bias=False)  # the softmax ignores a bias
        self.features = 2 * num_keypoints

    def forward(self, images: Tensor, random: Random | None = None) -> Tensor:
        """Encode uint8 images [..., H, W, C] to features [..., F].

        random: source of random numbers for crops, in training only. None: crop at the center.
        """
        rows = images.reshape(-1, *images.shape[-3:])
        if random is None:
            (top, left), (height, width) = (margin // 2 for margin in self.margins), self.crop_size
            x = rows[:, top : top + height, left : left + width]
        else:
            tops, lefts = (random.integers(margin + 1, rows.shape[:1]) for margin in self.margins)
            x = crop_images(rows, tops, lefts, self.crop_size)
        x = x.permute(0, 3, 1, 2).float() / 127.5 - 1  # [P, C, h, w] in [-1, 1]
        keypoints = spatial_softmax(self.maps(self.backbone(x)))
        return keypoints.reshape(*images.shape[:-3], self.features)


def crop_images(images: Tensor, top: Tensor, left: Tensor, size: tuple[int, int]) -> Tensor:
    """Crop images [P, H, W, C] to [P, *size, C]. top, left: upper left corners, [P] each."""
    index = torch.arange(images.shape[0], device=images.device)[:, None, None]
    rows = top[:, None] + torch.arange(size[0], device=images.device)
    columns = left[:, None] + torch.arange(size[1], device=images.device)
    return images[index, rows[:, :, None], columns[:, None, :]]


def spatial_softmax(maps: Tensor) -> Tensor:
    """Return the keypoints [P, 2 K] of feature maps [P, K, h, w].

    A keypoint is the expected position under the softmax of its map: x, then y, in [-1, 1].
    """
    height, width = maps.shape[-2:]
    probabilities = maps.flatten(-2).softmax(-1).unflatten(-1, (height, width))
    x = (probabilities.sum(-2) * pixel_positions(width, maps)).sum(-1)
    y = (probabilities.sum(-1) * pixel_positions(height, maps)).sum(-1)
    return torch.stack([x, y], -1).flatten(-2)


def pixel_positions(count: int, like: Tensor) -> Tensor:
    """Return `count` evenly spaced positions from -1 to 1. A single position is 0."""
    if count == 1:
        return like.new_zeros(1)
    return torch.linspace(-1, 1, count, device=like.device, dtype=like.dtype)


class ObservationEncoder(nn.Module):
    """An encoder that maps several channels to one vector.

    Each image channel has its own `ImageEncoder`. Vector channels are copied. The vector is the
    concatenation of both, in the order of the channels.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], **encoder: Any) -> None:
        """Create the image encoders.

        shapes: shape of each channel.  encoder: options of `ImageEncoder`.
        """
        super().__init__()
        self.axes = {name: len(shape) for name, shape in shapes.items()}
        images = [name for name, shape in shapes.items() if is_image(shape)]
        self.encoder_index = {name: k for k, name in enumerate(images)}
        cameras = [ImageEncoder(shapes[name], **encoder) for name in images]
        self.cameras = nn.ModuleList(cameras)
        vectors = [shape for name, shape in shapes.items() if name not in images]
        size = sum(torch.Size(shape).numel() for shape in vectors)
        self.features = size + sum(camera.features for camera in cameras)

    def forward(self, observations: Mapping[str, Tensor], random: Random | None = None) -> Tensor:
        """Encode observations {channel: [..., *shape]} to features [..., F].

        random: source of random numbers for crops, in training only.
        """
        parts = []
        for name, axes in self.axes.items():
            x = observations[name]
            if name in self.encoder_index:
                parts.append(self.cameras[self.encoder_index[name]](x, random))
            else:
                parts.append(x.flatten(-axes))
        return torch.cat(parts, -1)
