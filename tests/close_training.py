"""Comparison of two training states that differ in the order of float32 sums."""

from collections.abc import Mapping

import torch
from torch import Tensor

TOLERANCE = 1e-5  # of parameters, after some updates with a learning rate of 0.001
# Parameters with a gradient of 0 in exact arithmetic, because a softmax ignores a constant: biases
# of attention keys, and where all units are active, of the last convolution before a spatial
# softmax. Adam divides their rounding errors by their size, so their steps differ.
IGNORED = ("key.biases", "backbone.layers.2.bias")


def assert_close(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Assert that parameters and gradients are close. one, other: as in checkpoints.

    All gradients are compared by Adam's first moments, relative to the largest of the network.
    """
    assert one.keys() == other.keys()
    first = {k: x for k, x in one.items() if k.startswith("optimizer/model/first/")}
    scale = max(float(x.abs().max()) for x in first.values())
    for name, value in first.items():
        torch.testing.assert_close(other[name], value, rtol=0, atol=1e-5 * scale, msg=name)
    for name, value in one.items():
        if name.startswith("params/") and not any(part in name for part in IGNORED):
            torch.testing.assert_close(other[name], value, rtol=0, atol=TOLERANCE, msg=name)
