"""Options and helpers of algorithms that can be trained on images."""

from __future__ import annotations

from typing import Annotated, Any

from offline_rl.algorithms.common.config import BUILT, BaseConfig, Fraction
from offline_rl.utils.options import Count, frozen
from policies.heads.head import Head
from policies.heads.vision import VisionHead
from policies.networks.encoders import Kind
from policies.spec import Spec


@frozen
class VisionConfig(BaseConfig):
    """Options of the image encoders, one for each camera."""

    encoder: Kind = "conv"  # three convolutions, or ResNet18 with GroupNorm
    num_keypoints: Count = 32  # spatial keypoints per image passed to the policy
    crop: Annotated[Fraction, BUILT] = 0.875  # cropped share of image sides, random in training

    @property
    def encoder_options(self) -> dict[str, Any]:
        """Options of `ImageEncoder`."""
        return {"kind": self.encoder, "num_keypoints": self.num_keypoints, "crop": self.crop}


def build_head(spec: Spec, cfg: VisionConfig, head: type[Head], **arguments: Any) -> Head:
    """Return `head` on the single observation vector, or on the features of `cfg`'s encoders.

    arguments: JSON-serializable arguments of `head`, except its observation size.
    """
    if spec.single_vector is not None:
        return head(spec.observation_dim, **arguments)
    return VisionHead(spec.observation_shapes, head.__name__, arguments, cfg.encoder_options)


def input_options(spec: Spec, cfg: Any) -> dict[str, Any]:
    """Return the input options of a head with its own encoder: a size, or all channels and options.

    cfg: a `VisionConfig` if there is more than a single observation vector.
    """
    if spec.single_vector is not None:
        return {"observations": spec.observation_dim}
    return {"observations": spec.observation_shapes, "encoder": cfg.encoder_options}
