"""References written in PyTorch: doubles for floats, our numbers for theirs, narrow layers."""

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
    """A weight and a bias that have other names there."""

    weight: Tensor
    bias: Tensor


replay: Replay | None = None  # set for the time of an update
backward_losses: list[float] = []  # what backward() was called on
optimizers: list[torch.optim.Optimizer] = []  # every one that was made


def prepare() -> None:
    """For a process that runs nothing else: whatever is made or drawn from now on is replaced."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.FloatTensor = torch.DoubleTensor

    def numbers(kind: str, shape: Sequence[int], own: Callable[[], Tensor]) -> Tensor:
        return own() if replay is None else torch.from_numpy(replay(kind, tuple(shape)).copy())

    def size(shape: tuple[Any, ...]) -> tuple[int, ...]:
        return tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape

    def normal(mean: Any, std: Any = 1.0, *args: Any, **kwargs: Any) -> Tensor:
        if replay is None:
            return own["normal"](mean, std, *args, **kwargs)
        shape = torch.broadcast_shapes(*(x.shape for x in (mean, std) if isinstance(x, Tensor)))
        return mean + std * numbers("normal", shape, lambda: torch.empty(0))

    def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
        if replay is None:
            return own["uniform_"](self, low, high)
        drawn = numbers("uniform", self.shape, lambda: self)
        return self.copy_(2 * drawn - 1 if (low, high) == (-1, 1) else low + (high - low) * drawn)

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or not p:
            return x
        return x * ((torch.rand(x.shape) >= p) / (1 - p))

    own: dict[str, Any] = {"normal": torch.normal, "uniform_": torch.Tensor.uniform_}
    for name, kind in {"randn": "normal", "rand": "uniform"}.items():
        plain, like = getattr(torch, name), getattr(torch, f"{name}_like")

        def drawn(*shape: Any, _plain: Any = plain, _kind: str = kind, **keys: Any) -> Tensor:
            return numbers(_kind, size(shape or (keys["size"],)), lambda: _plain(*shape, **keys))

        def alike(x: Tensor, _like: Any = like, _kind: str = kind, **keys: Any) -> Tensor:
            return numbers(_kind, x.shape, lambda: _like(x, **keys))

        setattr(torch, name, drawn)
        setattr(torch, f"{name}_like", alike)
    torch.normal = normal
    torch.Tensor.uniform_ = uniform_
    nn.functional.dropout = dropout
    for place in (torch.distributions.normal, torch.distributions.utils):
        place._standard_normal = lambda shape, dtype, device: torch.randn(shape)
    backward, start = torch.Tensor.backward, torch.optim.Optimizer.__init__

    def told(self: Tensor, *args: Any, **kwargs: Any) -> None:
        backward_losses.append(self.item())
        backward(self, *args, **kwargs)

    def kept(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        optimizers.append(self)

    torch.Tensor.backward = told
    torch.optim.Optimizer.__init__ = kept


def narrow(units: int = 256) -> None:
    """Layers that a file has fixed at so many units get our number instead."""

    class Narrow(nn.Linear):
        def __init__(self, inputs: int, outputs: int, *args: Any, **kwargs: Any) -> None:
            inputs, outputs = (WIDTH if size == units else size for size in (inputs, outputs))
            super().__init__(inputs, outputs, *args, **kwargs)

    nn.Linear = Narrow


def given(columns: Arrays) -> Any:
    """A batch as doubles, by name; what is [B] also as [B, 1]: `b.column.rewards`."""
    tensors = {name: torch.from_numpy(values.copy()) for name, values in columns.items()}
    flat = {name: x[..., None] for name, x in tensors.items() if x.dim() == 1}
    return SimpleNamespace(**tensors, column=SimpleNamespace(**flat))


def link(name: str, tensor: Tensor, index: Any = ..., *, transposed: bool = False) -> Link:
    """Their tensor as ours, or as a part of ours; transposed: a weight of nn.Linear."""

    def turned(x: Any) -> Any:
        return x.T if transposed else x

    def write(values: np.ndarray) -> None:
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(np.array(turned(values))).reshape(tensor.shape))

    def moment() -> np.ndarray | None:
        states = [o.state[tensor] for o in optimizers if tensor in o.state]
        return turned(states[0]["exp_avg"]).numpy() if states and states[0] else None

    return Link(name, index, lambda: turned(tensor.detach()).numpy().copy(), write, moment)


def viewed(name: str, tensor: Tensor, view: Callable[[Tensor], Tensor], index: Any = ...) -> Link:
    """A view of their tensor, whose numbers in their order are ours, or a part of ours."""

    def write(values: np.ndarray) -> None:
        with torch.no_grad():
            part = view(tensor)
            part.copy_(torch.from_numpy(np.array(values)).reshape(part.shape))

    def moment() -> np.ndarray | None:
        states = [o.state[tensor] for o in optimizers if tensor in o.state]
        return view(states[0]["exp_avg"]).numpy() if states and states[0] else None

    return Link(name, index, lambda: view(tensor.detach()).numpy().copy(), write, moment)


def copied(name: str, links: Sequence[Link]) -> list[Link]:
    """Links as our network `name` too, which after every update is a copy of theirs."""
    names = [link.name.partition("/")[2] for link in links]
    pairs = zip(names, links, strict=True)
    return [Link(f"{name}/{own}", x.index, x.read, lambda _: None) for own, x in pairs]


def linears(module: nn.Module) -> list[nn.Linear]:
    """Its linear layers in their order."""
    return [m for m in module.modules() if isinstance(m, nn.Linear)]


def mlp(
    name: str,
    layers: Iterable[Any] | nn.Module,
    member: int | None = None,
    *,
    transposed: bool = True,
) -> list[Link]:
    """Linear layers as our MLP `name`, or as one member of an ensemble."""
    found = linears(layers) if isinstance(layers, nn.Module) else list(layers)
    links = []
    for i, layer in enumerate(found):
        at = ... if member is None else (member,)
        bias = ... if member is None else (member, 0)
        links.append(link(f"{name}.weights.{i}", layer.weight, at, transposed=transposed))
        links.append(link(f"{name}.biases.{i}", layer.bias, bias))
    return links


def stacked(name: str, layers: Iterable[Any]) -> list[Link]:
    """Layers of weights [E, in, out] and biases [E, 1, out] as our ensemble `name`."""
    pairs = list(enumerate(layers))
    weights = [link(f"{name}.weights.{i}", layer.weight) for i, layer in pairs]
    return weights + [link(f"{name}.biases.{i}", layer.bias) for i, layer in pairs]


def two_heads(name: str, trunk: Sequence[Any], mean: nn.Linear, log_std: nn.Linear) -> list[Link]:
    """A policy whose mean and log deviation have an output layer each; ours have one for both."""
    last, count = len(trunk), mean.out_features
    links = mlp(name, trunk)
    for head, columns in ((mean, slice(0, count)), (log_std, slice(count, 2 * count))):
        at = slice(None), columns
        links.append(link(f"{name}.weights.{last}", head.weight, at, transposed=True))
        links.append(link(f"{name}.biases.{last}", head.bias, (columns,)))
    return links
