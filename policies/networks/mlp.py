"""MLPs and ensembles of MLPs, with layer normalization.

Each module holds the parameters of one seed. `offline_rl.engine` trains several seeds together: it
stacks their parameters along a leading axis and applies the module with `torch.func.vmap`.

Shapes: B batch, E ensemble member, O observation, A action. Every module maps [..., in] to
[..., out], and an ensemble maps [..., in] to [E, ..., out].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, gelu, layer_norm, mish, silu

from policies.networks.init import Init, torch_init

Activation = Literal["relu", "elu", "gelu", "gelu_tanh", "silu", "tanh", "mish"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "elu": elu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),  # the default in JAX
    "silu": silu,
    "tanh": torch.tanh,
    "mish": mish,
}


class MLP(nn.Module):
    """Linear layers with activations in between, or an ensemble of such networks.

    Matrix multiplications run in `compute_dtype` (see `policies.networks.precision`), and all other
    operations in float32. The output layer also runs in float32, because the 8 significant bits of
    bfloat16 cannot represent small differences between two values near 100.
    """

    compute_dtype = torch.float32

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        ensemble: int | None = None,
        layer_norm: bool = False,
        norm_after_activation: bool = False,
        norm_eps: float = 1e-5,
        inner: bool = False,
        init: Init = torch_init,
    ) -> None:
        """Create the network.

        ensemble: number of members; None: a single network without an ensemble axis.
        layer_norm: normalize each hidden layer before the activation.
        norm_after_activation: normalize after the activation instead.
        norm_eps: number added to the variance in the layer normalization.
        inner: the MLP is part of a larger network. Its last layer also uses `compute_dtype`.
        """
        super().__init__()
        self.activation, self.inner = activation, inner
        self.norm_after_activation = norm_after_activation
        sizes, self.ensemble, members = [inputs, *hidden, outputs], ensemble, ensemble or 1
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for layer, (fan_in, out) in enumerate(pairwise(sizes)):
            weight, bias = torch.empty(members, fan_in, out), torch.empty(members, 1, out)
            for member in range(members):
                init(weight[member], bias[member, 0], fan_in, layer == len(sizes) - 2)
            stacked = ensemble is not None
            self.weights.append(nn.Parameter(weight if stacked else weight[0]))
            self.biases.append(nn.Parameter(bias if stacked else bias[0, 0]))
        norms = [LayerNorm(size, ensemble, norm_eps) for size in hidden] if layer_norm else []
        self.norms = nn.ModuleList(norms)

    def forward(
        self,
        x: Tensor,
        dropout: Callable[[Tensor], Tensor] | None = None,
        *,
        per_member: bool = False,
        members: Tensor | None = None,
    ) -> Tensor:
        """Return [..., outputs] for x [..., inputs], or [E, ..., outputs] for an ensemble.

        dropout: function applied after each activation, in training only.
        per_member: x is [E, ..., inputs], with separate inputs for each member of the ensemble.
        members: [K], indices of the members to evaluate; the result is [K, ..., outputs].
        """
        last, activate = len(self.weights) - 1, ACTIVATIONS[self.activation]
        slices, rows = (x.shape[:1], x.shape[1:-1]) if per_member else ((), x.shape[:-1])
        flat = x.reshape(*slices, -1, x.shape[-1])
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            dtype = self.compute_dtype if layer < last or self.inner else torch.float32
            weight, bias = select_members(weight, members), select_members(bias, members)
            flat = flat.to(dtype) @ weight.to(dtype)
            # For a single network, adding the bias in the dtype of the matrix multiplication would
            # fuse both into one slower library call.
            flat = flat.float() + bias if self.ensemble is None else flat + bias.to(dtype)
            if layer < last:
                flat = activate(flat) if self.norm_after_activation else flat
                if len(self.norms):
                    flat = self.norms[layer](flat.float(), members)
                flat = flat if self.norm_after_activation else activate(flat)
                flat = flat if dropout is None else dropout(flat)
        axis = () if self.ensemble is None else flat.shape[:1]
        return flat.float().reshape(*axis, *rows, flat.shape[-1])


class LayerNorm(nn.Module):
    """Layer normalization. Each member of an ensemble has its own gain and shift."""

    def __init__(self, size: int, ensemble: int | None = None, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        shape = (size,) if ensemble is None else (ensemble, 1, size)
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """Normalize x [..., size], or [E, R, size] for an ensemble.

        members: see `MLP.forward`.
        """
        gain, shift = select_members(self.weight, members), select_members(self.bias, members)
        return layer_norm(x, x.shape[-1:], eps=self.eps) * gain + shift


def select_members(stacked: Tensor, members: Tensor | None) -> Tensor:
    """Return the members [K, ...] of a tensor [E, ...]. members: [K], indices; None: all."""
    return stacked if members is None else stacked.index_select(0, members)


class Scalar(nn.Module):
    """One learnable number, such as a log temperature."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(float(value)))

    def forward(self) -> Tensor:
        """Return the number as a 0-d tensor."""
        return self.value


class Critic(nn.Module):
    """Ensemble of E independent Q(s, a), evaluated by batched matrix multiplications.

    Each member is initialized by its own fan-in.
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        ensemble: int = 2,
        layer_norm: bool = False,
        norm_after_activation: bool = False,
        norm_eps: float = 1e-5,
        init: Init = torch_init,
        outputs: int = 1,
    ) -> None:
        """Create the networks. outputs: numbers per member, for subclasses."""
        super().__init__()
        options: dict[str, Any] = {
            "activation": activation,
            "ensemble": ensemble,
            "layer_norm": layer_norm,
            "norm_after_activation": norm_after_activation,
            "norm_eps": norm_eps,
        }
        self.arguments = {"observations": observations, "actions": actions, "hidden": [*hidden]}
        self.arguments |= options
        self.net = MLP(observations + actions, outputs, hidden, init=init, **options)

    def forward(
        self, observations: Tensor, actions: Tensor, members: Tensor | None = None
    ) -> Tensor:
        """Return Q(s, a), [E, ...], for observations [..., O] and actions [..., A].

        Observations [B, O] are repeated for actions [N, B, A].
        members: indices [K] of the critics to evaluate; the result is then [K, ...].
        """
        if observations.dim() < actions.dim():
            observations = observations.expand(*actions.shape[:-1], -1)
        return self.net(torch.cat([observations, actions], -1), members=members).squeeze(-1)

    def per_member(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return Q [E, ...] where member i evaluates slice i of [E, ..., O] and [E, ..., A]."""
        return self.net(torch.cat([observations, actions], -1), per_member=True).squeeze(-1)


class CategoricalCritic(Critic):
    """Ensemble of E independent Q(s, a), each the mean of a categorical distribution over bins.

    The bins divide the range from `low` to `high` evenly. A regression target becomes a
    distribution over the bins, the label, and the loss is the cross-entropy to it. Labels are those
    of HL-Gauss: the mass of a Gaussian around the target in each bin. Its standard deviation is
    `smoothing` bin widths.

    HL-Gauss: Imani and White, ICML 2018, arXiv:1806.04613. For value functions: Farebrother et al.,
    ICML 2024, arXiv:2403.03950.
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        bins: int = 101,
        low: float = 0.0,
        high: float = 1.0,
        smoothing: float = 0.75,
        **options: Any,
    ) -> None:
        """Create the networks. options: those of `Critic`."""
        super().__init__(observations, actions, hidden, outputs=bins, **options)
        self.arguments |= {"bins": bins, "low": low, "high": high, "smoothing": smoothing}
        self.bins, self.low, self.width = bins, low, (high - low) / bins
        self.smoothing = smoothing

    def forward(
        self, observations: Tensor, actions: Tensor, members: Tensor | None = None
    ) -> Tensor:
        """Return Q(s, a), [E, ...]; see `Critic.forward`."""
        return self.mean(self.logits(observations, actions, members))

    def per_member(self, observations: Tensor, actions: Tensor) -> Tensor:
        """See `Critic.per_member`."""
        return self.mean(self.net(torch.cat([observations, actions], -1), per_member=True))

    def logits(
        self, observations: Tensor, actions: Tensor, members: Tensor | None = None
    ) -> Tensor:
        """Return the unnormalized log probabilities of the bins, [E, ..., bins]."""
        return self.net(torch.cat([observations, actions], -1), members=members)

    def mean(self, logits: Tensor) -> Tensor:
        """Return the means [...] of categorical distributions with these logits [..., bins]."""
        centers = self.low + self.width * (torch.arange(self.bins, device=logits.device) + 0.5)
        return logits.softmax(-1) @ centers

    def label(self, values: Tensor) -> Tensor:
        """Return the labels [..., bins] of values [...], which are clipped to [low, high]."""
        edges = torch.arange(self.bins + 1, device=values.device)  # in bin widths from `low`
        position = ((values[..., None] - self.low) / self.width).clamp(0, self.bins)
        below = torch.erf((edges - position) / (self.smoothing * 2**0.5))  # 2 * probability - 1
        return below.diff(dim=-1) / (below[..., -1:] - below[..., :1])

    def cross_entropy(self, observations: Tensor, actions: Tensor, values: Tensor) -> Tensor:
        """Return the cross-entropy between the labels of values [B] and each member, [E, B]."""
        log_probs = self.logits(observations, actions).log_softmax(-1)  # [E, B, bins]
        return -(self.label(values) * log_probs).sum(-1)
