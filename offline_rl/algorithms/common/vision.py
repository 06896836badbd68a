"""What algorithms share that may be shown pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from torch import nn

from offline_rl.algorithms.common.config import BUILT, BaseConfig, Fraction
from offline_rl.utils.options import Count
from policies.heads.seeing import Seeing, SeeingPlanner
from policies.networks.encoders import Kind
from policies.spec import Spec


@dataclass(frozen=True, kw_only=True)
class VisionConfig(BaseConfig):
    """How pictures are looked at, where there are any; each camera has an encoder of its own."""

    encoder: Kind = "conv"  # three convolutions, or ResNet18 with GroupNorm
    num_keypoints: Count = 32  # places in a picture that are told on
    crop: Annotated[Fraction, BUILT] = 0.875  # share of its sides cut out, at random while learning

    @property
    def encoder_options(self) -> dict[str, Any]:
        """The options of `PictureEncoder`."""
        return {"kind": self.encoder, "num_keypoints": self.num_keypoints, "crop": self.crop}


def build_head(spec: Spec, cfg: VisionConfig, head: type[nn.Module], **arguments: Any) -> nn.Module:
    """`head` on the one vector, or on what `cfg`'s encoders make of all channels.

    arguments: of `head`, as JSON takes them, but for the size of its observation.
    """
    if spec.lone is not None:
        return head(spec.observation_dim, **arguments)
    kind = SeeingPlanner if hasattr(head, "plan") else Seeing
    return kind(spec.seen, head.__name__, arguments, cfg.encoder_options)


def input_options(spec: Spec, cfg: Any) -> dict[str, Any]:
    """What a head that encodes by itself is told: a size, or all channels and how.

    cfg: a `SeeingConfig` where there is more to see than one vector.
    """
    if spec.lone is not None:
        return {"observations": spec.observation_dim}
    return {"observations": spec.seen, "encoder": cfg.encoder_options}
