"""What an algorithm is: networks, optimisers and one functional update, written for one seed.

The engine owns the rest: it stacks seeds, samples, compiles and counts. Inside `update`,
`state.<name>(…)` is a network with its present parameters; `minimise` and `soft_update` return the
next state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.utils._pytree import tree_map

from offline_rl.algorithms.common.optim import Adam
from offline_rl.data.transform import Preprocessing
from offline_rl.replay.batch import Batch
from offline_rl.utils.random import Random
from policies.spec import Spec

if TYPE_CHECKING:
    import numpy as np

    from offline_rl.data.dataset import Dataset
    from offline_rl.replay.batch import Source

Params = Mapping[str, Tensor]
Metrics = dict[str, Tensor]
Loss = Callable[["Network"], Tensor]


class _Method(nn.Module):
    """Lets `functional_call` reach a method other than `forward`."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.net, method)(*args, **kwargs)


class Network:
    """A module with given parameters: call it, or any of its methods."""

    def __init__(self, module: nn.Module, params: Params) -> None:
        self._module, self._params = module, params

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self._module, dict(self._params), args, kwargs)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        params = {f"net.{k}": v for k, v in self._params.items()}
        module = _Method(self._module)

        def call(*args: Any, **kwargs: Any) -> Any:
            return functional_call(module, params, (method, *args), kwargs)

        return call


@dataclass(frozen=True)
class State:
    """Everything one seed has learnt, as tensors; `state.<network>` is that network, callable."""

    algorithm: Algorithm
    params: dict[str, Params]
    optimiser: dict[str, Mapping[str, Params]]
    random: Random

    def __getattr__(self, name: str) -> Network:
        if name.startswith("__") or name not in self.params:
            raise AttributeError(f"no network is called {name!r}; there are {[*self.params]}")
        return Network(self.algorithm.modules[name], self.params[name])


class Algorithm:
    """Base of all algorithms. A subclass gives `Config`, `networks`, `optimisers` and `update`."""

    Config: ClassVar[type]
    targets: ClassVar[Mapping[str, str]] = {}  # target network -> what it starts as a copy of
    needs: ClassVar[tuple[str, ...]] = ()  # of the batch, beyond the usual five columns
    online: ClassVar[bool] = False  # can learn from an environment of its own
    follows_card: ClassVar[bool] = True  # learns values from data as the task's card prepares it
    policy: ClassVar[str] = "policy"  # the network that acts

    def __init__(self, spec: Spec, cfg: Any, num_updates: int = 1) -> None:
        """num_updates: length of the main phase, for schedules that end with it."""
        self.spec, self.cfg, self.num_updates = spec, cfg, num_updates
        self.modules = self.networks()
        for target, source in self.targets.items():
            self.modules[target] = copy.deepcopy(self.modules[source])

    @property
    def period(self) -> int:
        """Updates after which the sequence of work repeats: a policy delay, a UTD ratio."""
        return 1

    @property
    def phases(self) -> Mapping[str, int]:
        """Preliminary phases in order: the method that is their update, and how many updates."""
        return {}

    def networks(self) -> dict[str, nn.Module]:
        """The trainable modules by name, freshly initialised."""
        raise NotImplementedError

    def optimisers(self) -> dict[str, Adam]:
        """An optimiser for each trained network."""
        raise NotImplementedError

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """One update. i: its place in the period, a plain integer. Metrics are 0-d and detached."""
        raise NotImplementedError

    @classmethod
    def uses_rewards(cls, cfg: Any) -> bool:
        """Whether data without rewards is of no use to it."""
        return True

    def prepare(self, dataset: Dataset) -> Dataset:
        """The part of the raw data to learn from, before any statistics are taken."""
        return dataset

    @classmethod
    def mc_returns(cls, cfg: Any, dataset: Dataset) -> np.ndarray:
        """The column of that name, [N]; `dataset`'s rewards are those that are learnt from."""
        return dataset.monte_carlo_returns(cfg.discount)

    @classmethod
    def complete(cls, cfg: Any, dataset: Dataset) -> Any:
        """`cfg` with the values that only the data can tell, where they were left open."""
        return cfg

    def source(self, source: Source) -> Source:
        """Where batches come from: `source` itself, or a view of it such as its windows."""
        return source

    def initial(self) -> dict[str, Any]:
        """The state tree of a new learner: {params, optimiser}, tensors at the leaves."""
        params = {
            name: {k: v.detach().clone() for k, v in module.named_parameters()}
            for name, module in self.modules.items()
        }
        optimiser = {name: adam.init(params[name]) for name, adam in self.optimisers().items()}
        return {"params": params, "optimiser": optimiser}

    def with_values(self, values: Mapping[str, Tensor]) -> Algorithm:
        """This algorithm with some float fields of its config replaced by tensors."""
        other = copy.copy(self)
        other.cfg = replace(self.cfg, **values)
        return other


def minimise(state: State, name: str, loss: Loss) -> tuple[State, Tensor]:
    """One optimiser step of network `name` on `loss(network)`; -> the next state, the loss."""
    state, value, _ = minimise_with(state, name, lambda net: (loss(net), ()))
    return state, value


def minimise_with(
    state: State, name: str, loss: Callable[[Network], tuple[Tensor, Any]]
) -> tuple[State, Tensor, Any]:
    """`minimise` for a loss that also returns tensors for later use; they come back detached."""
    module = state.algorithm.modules[name]
    gradient = grad_and_value(lambda params: loss(Network(module, params)), has_aux=True)
    grads, (value, extra) = gradient(state.params[name])
    return step(state, name, grads), value.detach(), tree_map(Tensor.detach, extra)


def step(state: State, name: str, grads: Params) -> State:
    """One optimiser step of network `name` along given gradients."""
    adam = state.algorithm.optimisers()[name]
    params, moments = adam.step(state.params[name], grads, state.optimiser[name])
    return replace(
        state,
        params={**state.params, name: params},
        optimiser={**state.optimiser, name: moments},
    )


def soft_update(state: State, target: str, source: str, tau: float | Tensor) -> State:
    """target <- (1 - tau) target + tau source, parameter by parameter."""
    old, new = state.params[target], state.params[source]
    moved = {k: torch.lerp(old[k], new[k], tau) for k in old}
    return replace(state, params={**state.params, target: moved})


BUILD_TIME = frozenset({"dropout", "exploration_noise", "initial_alpha", "top_fraction"})


def check_stackable(config: type, names: Iterable[str]) -> None:
    """Raises ValueError for a field that cannot have one value per stacked seed.

    Such are all but floats, those that networks or data are built from, and those of Preprocessing,
    which shape the data that all seeds share.
    """
    shared = {f.name for f in fields(Preprocessing)}
    for name in names:
        own = {f.name: f.type for f in fields(config)}
        if own.get(name) not in (float, "float") or name in BUILD_TIME | shared:
            raise ValueError(f"{name} cannot be stacked: one value serves all seeds of a program")
