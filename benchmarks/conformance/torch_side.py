"""Setup for references written in PyTorch: float64, small layers, random numbers from the tape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.conformance.inputs import WIDTH, Arrays
from benchmarks.conformance.job import Link, Replay


@dataclass
class Layer:
    """A weight and a bias that have other names in the reference."""

    weight: Tensor
    bias: Tensor


replay: Replay | None = None  # set during an update
backward_losses: list[float] = []  # losses that backward() was called on
optimizers: list[torch.optim.Optimizer] = []  # all optimizers created so far


def prepare() -> None:
    """Patch PyTorch for a process that runs nothing else: dtypes, random numbers, backward()."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.FloatTensor = torch.DoubleTensor

    def draw(kind: str, shape: Sequence[int], original: Callable[[], Tensor]) -> Tensor:
        return original() if replay is None else torch.from_numpy(replay(kind, tuple(shape)).copy())

    def size(shape: tuple[Any, ...]) -> tuple[int, ...]:
        return tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape

    def normal(mean: Any, std: Any = 1.0, *args: Any, **kwargs: Any) -> Tensor:
        if replay is None:
            return originals["normal"](mean, std, *args, **kwargs)
        shape = torch.broadcast_shapes(*(x.shape for x in (mean, std) if isinstance(x, Tensor)))
        return mean + std * draw("normal", shape, lambda: torch.empty(0))

    def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
        if replay is None:
            return originals["uniform_"](self, low, high)
        u = draw("uniform", self.shape, lambda: self)
        return self.copy_(2 * u - 1 if (low, high) == (-1, 1) else low + (high - low) * u)

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or not p:
            return x
        return x * ((torch.rand(x.shape) >= p) / (1 - p))

    originals: dict[str, Any] = {"normal": torch.normal, "uniform_": torch.Tensor.uniform_}
    for name, kind in {"randn": "normal", "rand": "uniform"}.items():
        plain, like = getattr(torch, name), getattr(torch, f"{name}_like")

        def draw_shape(*shape: Any, _plain: Any = plain, _kind: str = kind, **keys: Any) -> Tensor:
            return draw(_kind, size(shape or (keys["size"],)), lambda: _plain(*shape, **keys))

        def draw_like(x: Tensor, _like: Any = like, _kind: str = kind, **keys: Any) -> Tensor:
            return draw(_kind, x.shape, lambda: _like(x, **keys))

        setattr(torch, name, draw_shape)
        setattr(torch, f"{name}_like", draw_like)
    torch.normal = normal
    torch.Tensor.uniform_ = uniform_
    nn.functional.dropout = dropout
    for module in (torch.distributions.normal, torch.distributions.utils):
        module._standard_normal = lambda shape, dtype, device: torch.randn(shape)
    backward, start = torch.Tensor.backward, torch.optim.Optimizer.__init__

    def record_loss(self: Tensor, *args: Any, **kwargs: Any) -> None:
        backward_losses.append(self.item())
        backward(self, *args, **kwargs)

    def record_optimizer(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        optimizers.append(self)

    torch.Tensor.backward = record_loss
    torch.optim.Optimizer.__init__ = record_optimizer


def narrow(units: int = 256) -> None:
    """Replace nn.Linear, so that layers with `units` units have our width instead."""

    class Narrow(nn.Linear):
        def __init__(self, inputs: int, outputs: int, *args: Any, **kwargs: Any) -> None:
            inputs, outputs = (WIDTH if size == units else size for size in (inputs, outputs))
            super().__init__(inputs, outputs, *args, **kwargs)

    nn.Linear = Narrow


def make_batch(columns: Arrays) -> Any:
    """Return a batch as tensors by name. [B] columns are also in `b.column`, as [B, 1]."""
    tensors = {name: torch.from_numpy(values.copy()) for name, values in columns.items()}
    flat = {name: x[..., None] for name, x in tensors.items() if x.dim() == 1}
    return SimpleNamespace(**tensors, column=SimpleNamespace(**flat))


def link(name: str, tensor: Tensor, index: Any = ..., *, transposed: bool = False) -> Link:
    """Return a link from a reference's tensor to ours, or to a part of ours.

    transposed: the tensor is a weight of nn.Linear.
    """

    def transpose(x: Any) -> Any:
        return x.T if transposed else x

    def write(values: np.ndarray) -> None:
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(np.array(transpose(values))).reshape(tensor.shape))

    def moment() -> np.ndarray | None:
        states = [o.state[tensor] for o in optimizers if tensor in o.state]
        return transpose(states[0]["exp_avg"]).numpy() if states and states[0] else None

    return Link(name, index, lambda: transpose(tensor.detach()).numpy().copy(), write, moment)


def link_view(
    name: str, tensor: Tensor, view: Callable[[Tensor], Tensor], index: Any = ...
) -> Link:
    """Return a link from a view of a reference's tensor to ours, or to a part of ours.

    The view has the numbers in our order.
    """

    def write(values: np.ndarray) -> None:
        with torch.no_grad():
            part = view(tensor)
            part.copy_(torch.from_numpy(np.array(values)).reshape(part.shape))

    def moment() -> np.ndarray | None:
        states = [o.state[tensor] for o in optimizers if tensor in o.state]
        return view(states[0]["exp_avg"]).numpy() if states and states[0] else None

    return Link(name, index, lambda: view(tensor.detach()).numpy().copy(), write, moment)


def link_copies(name: str, links: Sequence[Link]) -> list[Link]:
    """Return read-only links to our network `name`, which copies the linked network."""
    names = [link.name.partition("/")[2] for link in links]
    pairs = zip(names, links, strict=True)
    return [Link(f"{name}/{k}", x.index, x.read, lambda _: None) for k, x in pairs]


def linears(module: nn.Module) -> list[nn.Linear]:
    """Return the module's linear layers in order."""
    return [m for m in module.modules() if isinstance(m, nn.Linear)]


def mlp(
    name: str,
    layers: Iterable[Any] | nn.Module,
    member: int | None = None,
    *,
    transposed: bool = True,
) -> list[Link]:
    """Return links from linear layers to our MLP `name`, or to one member of an ensemble."""
    modules = linears(layers) if isinstance(layers, nn.Module) else list(layers)
    links = []
    for i, layer in enumerate(modules):
        at = ... if member is None else (member,)
        bias = ... if member is None else (member, 0)
        links.append(link(f"{name}.weights.{i}", layer.weight, at, transposed=transposed))
        links.append(link(f"{name}.biases.{i}", layer.bias, bias))
    return links


def stacked_mlp(name: str, layers: Iterable[Any]) -> list[Link]:
    """Return links from weights [E, in, out] and biases [E, 1, out] to our ensemble `name`."""
    pairs = list(enumerate(layers))
    weights = [link(f"{name}.weights.{i}", layer.weight) for i, layer in pairs]
    return weights + [link(f"{name}.biases.{i}", layer.bias) for i, layer in pairs]


def two_heads(name: str, trunk: Sequence[Any], mean: nn.Linear, log_std: nn.Linear) -> list[Link]:
    """Return links of a policy with separate output layers for mean and log standard deviation.

    Our policies have one output layer for both.
    """
    last, count = len(trunk), mean.out_features
    links = mlp(name, trunk)
    for head, columns in ((mean, slice(0, count)), (log_std, slice(count, 2 * count))):
        at = slice(None), columns
        links.append(link(f"{name}.weights.{last}", head.weight, at, transposed=True))
        links.append(link(f"{name}.biases.{last}", head.bias, (columns,)))
    return links
