"""What turns pictures into numbers, and several channels into one vector.

Pictures come as they are kept, [..., H, W, C] of uint8, and are scaled here. While a network
learns, a piece of each is cut out at random (`random`); otherwise the piece in the middle. Features
are the places where each of some maps is strongest: Finn et al., arXiv:1509.06113.

Shapes: P pictures, C channels of a convolution, K maps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, group_norm, max_pool2d

from policies.channels import is_picture
from policies.networks.dropout import Random
from policies.networks.init import torch_init

Kind = Literal["conv", "resnet18"]


class Conv(nn.Module):
    """A convolution over [P, C, H, W], with torch's initialization."""

    compute_dtype = torch.float32

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int = 1, *, bias: bool = True
    ) -> None:
        """size: odd; edges are padded with zeros, size // 2 on each side."""
        super().__init__()
        self.size, self.stride = size, stride
        self.weight, start = (
            nn.Parameter(torch.empty(outputs, inputs, size, size)),
            torch.empty(outputs),
        )
        torch_init(self.weight, start, inputs * size * size, False)
        self.bias = nn.Parameter(start) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[P, inputs, H, W] -> [P, outputs, H / stride, W / stride]."""
        dtype, edge = self.compute_dtype, self.size // 2
        made = conv2d(x.to(dtype), self.weight.to(dtype), None, self.stride, edge).float()
        return made if self.bias is None else made + self.bias[:, None, None]


class GroupNorm(nn.Module):
    """Normalized over the picture and each group of 16 channels; eps is torch's."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.groups = channels // 16
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[P, C, H, W] -> the same."""
        return group_norm(x, self.groups, self.weight, self.bias)


class SmallConv(nn.Module):
    """Convolutions of ReLUs, the first of size 5, then of size 3; the first two halve the sides."""

    widths = (16, 32, 32)

    def __init__(self, colors: int) -> None:
        super().__init__()
        pairs = enumerate(pairwise((colors, *self.widths)))
        self.layers = nn.ModuleList(
            Conv(inputs, out, 3 if k else 5, 2 if k < 2 else 1) for k, (inputs, out) in pairs
        )

    def forward(self, x: Tensor) -> Tensor:
        """[P, colors, H, W] -> [P, 32, H / 4, W / 4]."""
        for layer in self.layers:
            x = layer(x).relu()
        return x


class Residual(nn.Module):
    """Two convolutions beside a skip, each normalized: ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = (
            Conv(inputs, outputs, 3, stride, bias=False),
            GroupNorm(outputs),
        )
        self.second, self.second_norm = Conv(outputs, outputs, 3, bias=False), GroupNorm(outputs)
        same = inputs == outputs and stride == 1
        self.skip = None if same else Conv(inputs, outputs, 1, stride, bias=False)
        self.skip_norm = None if same else GroupNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[P, inputs, H, W] -> [P, outputs, H / stride, W / stride]."""
        inner = self.second_norm(self.second(self.first_norm(self.first(x)).relu()))
        skip = x if self.skip is None or self.skip_norm is None else self.skip_norm(self.skip(x))
        return (inner + skip).relu()


class ResNet18(nn.Module):
    """He et al., arXiv:1512.03385, up to its last map; groups of 16 channels for batches.

    So Diffusion Policy has it (arXiv:2303.04137, section 3.2), since a moving average of weights
    and the statistics of batches do not go together.
    """

    widths = (64, 64, 128, 256, 512)

    def __init__(self, colors: int) -> None:
        super().__init__()
        self.stem, self.stem_norm = Conv(colors, 64, 7, 2, bias=False), GroupNorm(64)
        pairs = enumerate(pairwise(self.widths))
        self.blocks = nn.ModuleList(
            block
            for k, (inputs, out) in pairs
            for block in (Residual(inputs, out, 2 if k else 1), Residual(out, out, 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        """[P, colors, H, W] -> [P, 512, H / 32, W / 32]."""
        x = max_pool2d(self.stem_norm(self.stem(x)).relu(), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return x


BACKBONES: dict[str, Callable[[int], Any]] = {"conv": SmallConv, "resnet18": ResNet18}


class PictureEncoder(nn.Module):
    """A camera's picture as the places of `num_keypoints` things in it: 2 * num_keypoints numbers."""

    def __init__(
        self,
        shape: Sequence[int],
        *,
        kind: Kind = "conv",
        num_keypoints: int = 32,
        crop: float = 0.875,
    ) -> None:
        """shape: [H, W, C].  crop: the share of its sides that is looked at."""
        super().__init__()
        height, width, colors = shape
        self.piece = (max(round(height * crop), 1), max(round(width * crop), 1))
        self.spare = (height - self.piece[0], width - self.piece[1])
        self.backbone = BACKBONES[kind](colors)
        self.maps = Conv(
            self.backbone.widths[-1], num_keypoints, 1, bias=False
        )  # as softmax has it
        self.features = 2 * num_keypoints

    def forward(self, pictures: Tensor, random: Random | None = None) -> Tensor:
        """[..., H, W, C] of uint8 -> [..., features]; with `random`, cut out as in training."""
        rows = pictures.reshape(-1, *pictures.shape[-3:])
        if random is None:
            (top, left), (height, width) = (room // 2 for room in self.spare), self.piece
            x = rows[:, top : top + height, left : left + width]
        else:
            tops, lefts = (random.integers(room + 1, rows.shape[:1]) for room in self.spare)
            x = cut(rows, tops, lefts, self.piece)
        x = x.permute(0, 3, 1, 2).float() / 127.5 - 1  # [P, C, h, w] in [-1, 1]
        places = keypoints(self.maps(self.backbone(x)))
        return places.reshape(*pictures.shape[:-3], self.features)


def cut(pictures: Tensor, top: Tensor, left: Tensor, piece: tuple[int, int]) -> Tensor:
    """[P, H, W, C], the pieces' corners [P] each -> [P, *piece, C]."""
    own = torch.arange(pictures.shape[0], device=pictures.device)[:, None, None]
    rows = top[:, None] + torch.arange(piece[0], device=pictures.device)
    columns = left[:, None] + torch.arange(piece[1], device=pictures.device)
    return pictures[own, rows[:, :, None], columns[:, None, :]]


def keypoints(maps: Tensor) -> Tensor:
    """[P, K, h, w] -> [P, 2 K]: where each map's softmax is on average, x then y, in [-1, 1]."""
    height, width = maps.shape[-2:]
    shares = maps.flatten(-2).softmax(-1).unflatten(-1, (height, width))
    x = (shares.sum(-2) * middles(width, maps)).sum(-1)
    y = (shares.sum(-1) * middles(height, maps)).sum(-1)
    return torch.stack([x, y], -1).flatten(-2)


def middles(count: int, like: Tensor) -> Tensor:
    """`count` places from -1 to 1; of one, the middle."""
    if count == 1:
        return like.new_zeros(1)
    return torch.linspace(-1, 1, count, device=like.device, dtype=like.dtype)


class Sees(nn.Module):
    """Several channels as one vector: pictures encoded, each camera's by its own, vectors as is."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], **encoder: Any) -> None:
        """shapes: of each channel, whose parts of the vector are in this order.

        encoder: `PictureEncoder`'s options.
        """
        super().__init__()
        self.axes = {name: len(shape) for name, shape in shapes.items()}
        seen = [name for name, shape in shapes.items() if is_picture(shape)]
        self.place = {name: k for k, name in enumerate(seen)}  # of a camera's encoder
        cameras = [PictureEncoder(shapes[name], **encoder) for name in seen]
        self.cameras = nn.ModuleList(cameras)
        felt = sum(torch.Size(shape).numel() for name, shape in shapes.items() if name not in seen)
        self.features = felt + sum(camera.features for camera in cameras)

    def forward(self, observations: Mapping[str, Tensor], random: Random | None = None) -> Tensor:
        """{channel: [..., *shape]} -> [..., features]."""
        parts = []
        for name, axes in self.axes.items():
            x = observations[name]
            if name in self.place:
                parts.append(self.cameras[self.place[name]](x, random))
            else:
                parts.append(x.flatten(-axes))
        return torch.cat(parts, -1)
