"""Selective state spaces (Mamba), and the block of Decision Mamba, which scans tokens and steps.

Shapes: B batch, T position of a sequence, D embedding size, I inner size, N state of a channel,
W width of the convolution. A token sequence has the three tokens of each step: [B, T, 3, D].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from policies.networks.mlp import MLP, LayerNorm

WIDTH = 4  # of the causal convolution
MIN_STEP, MAX_STEP = 1e-3, 0.1  # range of the step sizes at the start


class Carry(NamedTuple):
    """State of a `Mixer` after a position of the sequence."""

    tail: Tensor  # [B, W - 1, I], the last inputs of the convolution
    state: Tensor  # [B, I, N]


class BlockMemory(NamedTuple):
    """State of a `MambaBlock` after a step. Its size does not depend on the number of steps."""

    coarse: Carry
    fine: Carry | None = None  # None: the block has no fine branch
    feature: Tensor | None = None  # [B, D], output of the fine branch for the last step


def scan_states(decay: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    """Return the states [B, T, I, N] of h_t = decay_t * h_(t-1) + inputs_t.

    decay, inputs: [B, T, I, N].  state: [B, I, N], before the first position.
    The sequence is cut into about sqrt(T) parts that are scanned in parallel.
    """
    count = decay.shape[1]
    length = math.ceil(math.sqrt(count))
    if padding := -count % length:
        shape = (decay.shape[0], padding, *decay.shape[2:])
        decay = torch.cat([decay, decay.new_ones(shape)], 1)
        inputs = torch.cat([inputs, inputs.new_zeros(shape)], 1)
    decays, values = (x.unflatten(1, (-1, length)).unbind(2) for x in (decay, inputs))
    products, locals_ = [decays[0]], [values[0]]  # within the parts, from a state of zero
    for factor, value in zip(decays[1:], values[1:], strict=True):
        products.append(factor * products[-1])
        locals_.append(factor * locals_[-1] + value)
    starts = [state]  # states before the parts
    for product, local in zip(products[-1].unbind(1), locals_[-1].unbind(1), strict=True):
        starts.append(product * starts[-1] + local)
    before = torch.stack(starts[:-1], 1)[:, :, None]
    states = torch.stack(locals_, 2) + torch.stack(products, 2) * before
    return states.flatten(1, 2)[:, :count]


class RMSNorm(nn.Module):
    """Division by the root mean square, with a gain."""

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x [..., size]."""
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


class Mixer(nn.Module):
    """A selective state space layer (Gu and Dao, arXiv:2312.00752, figure 3 and algorithm 2).

        u = silu(conv(x W_in)),   delta, b, c = functions of u
        h_t = exp(-delta_t exp(log_decay)) h_(t-1) + delta_t b_t u_t
        y_t = ((c_t h_t) + skip u_t) silu(gate_t) W_out

    Matrix multiplications run in `compute_dtype`, the scan in float32.
    """

    compute_dtype = torch.float32

    def __init__(self, size: int, state_size: int = 16) -> None:
        """Create the layer. It has 2 * size channels, with `state_size` numbers each."""
        super().__init__()
        inner, rank = 2 * size, math.ceil(size / 16)
        self.inner, self.sizes = inner, [rank, state_size, state_size]

        def uniform(*shape: int, fan_in: int) -> nn.Parameter:
            bound = 1 / math.sqrt(fan_in)
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

        self.weight_in = uniform(size, 2 * inner, fan_in=size)
        self.weight_conv = uniform(WIDTH, inner, fan_in=WIDTH)
        self.bias_conv = uniform(inner, fan_in=WIDTH)
        self.weight_select = uniform(inner, sum(self.sizes), fan_in=inner)
        self.delta = MLP(rank, inner, (), inner=True)
        self.log_decay = nn.Parameter(torch.arange(1.0, state_size + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        self.weight_out = uniform(inner, size, fan_in=inner)
        low, high = math.log(MIN_STEP), math.log(MAX_STEP)
        steps = (torch.rand(inner) * (high - low) + low).exp()
        with torch.no_grad():  # so that softplus(bias) is the step size
            self.delta.biases[0].copy_(steps + (-(-steps).expm1()).log())

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x @ weight, [B, T, out], for x [B, T, in] and weight [in, out]."""
        dtype = self.compute_dtype
        return (x.to(dtype) @ weight.to(dtype)).float()

    def start(self, x: Tensor) -> Carry:
        """Return the state before a sequence x [B, ...]."""
        batch = x.shape[0]  # not len(x), which an export would fix
        tail = x.new_zeros(batch, WIDTH - 1, self.inner)
        return Carry(tail, x.new_zeros(batch, self.inner, self.sizes[-1]))

    def forward(
        self, x: Tensor, carry: Carry | None = None, real: Tensor | None = None
    ) -> tuple[Tensor, Carry]:
        """Return outputs [B, T, D] for x [B, T, D], and the state after the last position.

        carry: state before the first position; None: zeros.
        real: [B, T, 1], 0 for padding, which leaves the state unchanged; its outputs are
        meaningless.
        """
        tail, state = self.start(x) if carry is None else carry
        u, gate = self.multiply(x, self.weight_in).chunk(2, -1)
        u = u if real is None else u * real
        count, past = x.shape[1], torch.cat([tail, u], 1)  # [B, W - 1 + T, I]
        taps = enumerate(self.weight_conv.unbind(0))
        u = silu(sum((w * past[:, k : k + count] for k, w in taps), self.bias_conv))
        low, b, c = self.multiply(u, self.weight_select).split(self.sizes, -1)
        delta = softplus(self.delta(low))
        delta = delta if real is None else delta * real
        decay = (delta[..., None] * -self.log_decay.exp()).exp()  # [B, T, I, N]
        states = scan_states(decay, (delta * u)[..., None] * b[:, :, None], state)
        y = (states * c[:, :, None]).sum(-1) + self.skip * u
        return self.multiply(y * silu(gate), self.weight_out), Carry(past[:, count:], states[:, -1])


class MambaBlock(nn.Module):
    """A residual block with a scan over tokens and a scan over steps (Lv et al., arXiv:2406.05427).

    The fine branch merges the three tokens of a step and scans the steps. Its output for a step
    depends on the step's action, so that the first two tokens get the output for the previous step.

    as_released: token i of K steps gets the output for step i mod K instead, as in the authors'
    code. Predictions then depend on their own targets and on later steps.
    """

    def __init__(
        self, size: int, state_size: int = 16, *, fine: bool = True, as_released: bool = False
    ) -> None:
        """Create the block. fine: include the scan over steps. Others: see the class."""
        super().__init__()
        self.as_released, self.has_fine = as_released, fine
        self.norm, self.coarse = RMSNorm(size), Mixer(size, state_size)
        if fine:
            self.merge = MLP(3 * size, size, (), inner=True)
            self.fine, self.norm_fine = Mixer(size, state_size), LayerNorm(size)

    def start(self, x: Tensor) -> BlockMemory:
        """Return the memory before the first step of episodes; x: [B, D]."""
        if not self.has_fine:
            return BlockMemory(self.coarse.start(x))
        return BlockMemory(self.coarse.start(x), self.fine.start(x), torch.zeros_like(x))

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """Return [B, T, 3, D] for x [B, T, 3, D].  real: [B, T, 1], 0 for padding."""
        normed = self.norm(x)
        out = x + self.coarse(normed.flatten(1, 2), real=real.repeat_interleave(3, 1))[0].view_as(x)
        if not self.has_fine:
            return out
        if self.as_released:  # the last token of the window is not observed
            last = torch.cat([normed[:, -1:, :2], torch.zeros_like(normed[:, -1:, 2:])], 2)
            normed = torch.cat([normed[:, :-1], last], 1)
        features, _ = self.fine(self.merge(normed.flatten(2)), real=real)
        features = features * real  # [B, T, D]
        if self.as_released:
            tiled = features.repeat(1, 3, 1).unflatten(1, (-1, 3))
        else:
            before = torch.cat([torch.zeros_like(features[:, :1]), features[:, :-1]], 1)
            tiled = torch.stack([before, before, features], 2)
        return out + self.norm_fine(tiled)

    def read(self, x: Tensor, memory: BlockMemory) -> tuple[Tensor, Tensor, BlockMemory]:
        """Read the first two tokens of a step, x [B, 2, D].

        Return the outputs [B, 2, D], the normalized tokens for `finish`, and the next memory.
        """
        normed = self.norm(x)
        out, coarse = self.coarse(normed, memory.coarse)
        if memory.feature is not None:
            out = out + self.norm_fine(memory.feature)[:, None]
        return x + out, normed, memory._replace(coarse=coarse)

    def finish(self, x: Tensor, normed: Tensor, memory: BlockMemory) -> tuple[Tensor, BlockMemory]:
        """Read the last token of a step, x [B, 1, D]; return its output and the next memory."""
        last = self.norm(x)
        out, coarse = self.coarse(last, memory.coarse)
        if not self.has_fine:
            return x + out, BlockMemory(coarse)
        merged = self.merge(torch.cat([normed, last], 1).flatten(1))[:, None]
        feature, fine = self.fine(merged, memory.fine)
        return x + out + self.norm_fine(feature), BlockMemory(coarse, fine, feature[:, 0])
