"""What an algorithm is: networks, optimizers and one functional update, written for one seed.

The engine owns the rest: it stacks seeds, samples, compiles and counts. Inside `update`,
`state.<name>(…)` is a network with its present parameters; `minimize` and `soft_update` return the
next state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.utils._pytree import tree_map

from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.schedule import ONLINE, Interact, Learn, Online, Piece
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.mixtures import Mixture
from offline_rl.utils.random import Random
from policies.spec import Spec

if TYPE_CHECKING:
    import numpy as np

    from offline_rl.data.dataset import Dataset

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
    """Everything one seed has learned, as tensors; `state.<network>` is that network, callable."""

    algorithm: Algorithm
    params: dict[str, Params]
    optimizer: dict[str, Mapping[str, Params]]
    random: Random
    done: Tensor = field(default_factory=lambda: torch.tensor(0))  # updates of this phase so far

    def __getattr__(self, name: str) -> Network:
        if name.startswith("__") or name not in self.params:
            raise AttributeError(f"no network is called {name!r}; there are {[*self.params]}")
        return Network(self.algorithm.modules[name], self.params[name])


@dataclass(frozen=True)
class Interaction:
    """What an algorithm is told of the time in an environment."""

    online: Online
    cfg: Any  # its config then
    num_updates: int = 1  # that this brings, for schedules that end with it
    fixed_online_fields: frozenset[str] = frozenset()  # fields of cfg that were set for then

    def of(self, cfg: Any) -> Interaction:
        """The same for a run with another config: its own values, but for those set for then."""
        return replace(
            self, cfg=replace(cfg, **{k: getattr(self.cfg, k) for k in self.fixed_online_fields})
        )


class Algorithm:
    """Base of all algorithms. A subclass gives `Config`, `networks`, `optimizers` and `update`."""

    Config: ClassVar[type]
    targets: ClassVar[Mapping[str, str]] = {}  # target network -> what it starts as a copy of
    frozen: ClassVar[tuple[str, ...]] = ()  # networks that nothing trains: a teacher
    distills_from: ClassVar[str] = ""  # what it begins with, where it cannot begin from nothing
    finetunes_from: ClassVar[str] = ""  # what it fine-tunes, where it cannot begin from nothing
    extra_columns: ClassVar[tuple[str, ...]] = ()  # of the batch, beyond the usual five columns
    online: ClassVar[bool] = False  # can learn in an environment; then how:
    Online: ClassVar[type[Online]] = Online
    follows_card: ClassVar[bool] = True  # learns values from data as the task's card prepares it
    policy: str = "policy"  # the network that acts
    phases_without_eval: ClassVar[tuple[str, ...]] = ()  # phases that leave what acts as it is
    needed_phases: ClassVar[tuple[str, ...]] = ()  # preliminary ones that "update" relies on
    # phases that never read `next_observations`: they use every row of the data, the last of an
    # episode included; "update" among them means that no phase reads it
    imitation_phases: ClassVar[tuple[str, ...]] = ()
    is_residual: ClassVar[bool] = False  # adds to a frozen base's actions, which it observes
    vector_only: ClassVar[bool] = True  # cannot learn from named channels, pictures among them
    fixed_online_fields: frozenset[str] = (
        frozenset()
    )  # fields of its config whose value is this phase's own

    def __init__(
        self, spec: Spec, cfg: Any, num_updates: int = 1, interaction: Interaction | None = None
    ) -> None:
        """num_updates: length of the main phase, for schedules that end with it.

        interaction: how it goes on in an environment; default: as `Online` has it.
        """
        self.spec, self.cfg, self.num_updates = spec, cfg, num_updates
        then = replace(cfg, **self.Online.config_changes)
        self.interaction = interaction or Interaction(self.Online(), then)
        self.modules = self.networks()
        for target, source in self.targets.items():
            self.modules[target] = copy.deepcopy(self.modules[source])

    @classmethod
    def starts_online(cls) -> bool:
        """Whether it begins in an environment, with random actions, whatever data it has beside."""
        return cls.online and cls.Online().warmup_policy == "random"

    @property
    def period(self) -> int:
        """Updates after which the sequence of work repeats: a policy delay, a UTD ratio."""
        return 1

    def prefers_stacked_seeds(self, device: str) -> bool:
        """Whether seeds side by side are faster than one after another: not where one is large.

        device: cpu or cuda.
        """
        return True

    def equivalent_step(self, i: int) -> int:
        """The first place in the period whose work is the same as that of place i."""
        return i

    def for_phase(self, phase: str) -> Algorithm:
        """The algorithm as it is in `phase`: its config may be another, its networks are not."""
        if phase != ONLINE:
            return self
        other, then = copy.copy(self), self.interaction.cfg
        changed = {
            f.name for f in fields(then) if getattr(then, f.name) != getattr(self.cfg, f.name)
        }
        changed |= self.Online.config_changes.keys() | self.interaction.fixed_online_fields
        other.cfg, other.fixed_online_fields = then, frozenset(changed)
        other.num_updates = self.interaction.num_updates
        return other

    def schedule(self, num_updates: int, num_env_steps: int, pretrain: int | None) -> list[Piece]:
        """The order of work; pretrain: updates of each preliminary phase, if not its own."""
        before = {name: n if pretrain is None else pretrain for name, n in self.phases.items()}
        work: list[Piece] = [Learn(name, n) for name, n in before.items()] if num_updates else []
        work += [Learn("update", num_updates), Interact(ONLINE, num_env_steps)]
        return [piece for piece in work if piece.size]

    @property
    def phases(self) -> Mapping[str, int]:
        """Preliminary phases in order: the method that is their update, and how many updates."""
        return {}

    def networks(self) -> dict[str, nn.Module]:
        """The trainable modules by name, freshly initialized."""
        raise NotImplementedError

    def optimizers(self) -> dict[str, Adam]:
        """An optimizer for each trained network; those of networks that are not there are idle."""
        raise NotImplementedError

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """One update. i: its place in the period, a plain integer. Metrics are 0-d and detached."""
        raise NotImplementedError

    @classmethod
    def uses_rewards(cls, cfg: Any) -> bool:
        """Whether data without rewards is of no use to it."""
        return True

    @classmethod
    def can_stream(cls, cfg: Any) -> bool:
        """Whether it learns from single steps of one set of data, which may lie in its file."""
        return cls.source is Algorithm.source

    @classmethod
    def unusable_rows(cls, dataset: Dataset) -> int:
        """Return how many rows its main phase cannot use: their next observation is unknown."""
        return 0 if "update" in cls.imitation_phases else int((~dataset.usable).sum())

    def prepare(self, dataset: Dataset) -> Dataset:
        """The part of the raw data to learn from, before any statistics are taken."""
        return dataset

    @classmethod
    def mc_returns(cls, cfg: Any, dataset: Dataset) -> np.ndarray:
        """The column of that name, [N]; `dataset`'s rewards are those that are learned from."""
        return dataset.monte_carlo_returns(cfg.discount)

    @classmethod
    def complete_config(cls, cfg: Any, dataset: Dataset) -> Any:
        """`cfg` with the values that only the data can tell, where they were left open."""
        return cfg

    @classmethod
    def config_from_teacher(cls, algorithm: str, hyper: Mapping[str, Any]) -> dict[str, Any] | None:
        """What a student's config has of its teacher's run; None where that can be none.

        hyper: the run's hyper-parameters.
        """
        raise NotImplementedError

    def source(self, phase: str, sources: Sources) -> Source:
        """Where a phase's batches come from: one of `sources`, a view of it, or a mixture."""
        if phase != ONLINE:
            return self.offline_source(phase, sources)
        how, online = self.interaction.online, require(sources.online)
        ratio = None if how.offline_fraction == "rows" else float(how.offline_fraction)
        parts = [with_n_step(x, how.n_step) for x in (sources.offline, online) if x is not None]
        return parts[-1] if ratio == 0 or len(parts) == 1 else Mixture(parts[0], parts[1], ratio)

    def updates_before_policy(self, phase: str) -> tuple[int, str]:
        """Updates at the start of `phase` that leave the policy as it is, and the key behind them.

        A run with no more updates than these is refused.
        """
        online = self.interaction.online
        return (
            (online.critic_only_updates(self.period), online.critic_only_option)
            if phase == ONLINE
            else (0, "")
        )

    def offline_source(self, phase: str, sources: Sources) -> Source:
        """Return the data of a phase: every row for imitation, else rows with a successor."""
        every = sources.every_row if phase in self.imitation_phases else None
        return require(sources.offline) if every is None else every

    def check_phase(self, phase: str, metrics: Mapping[str, np.ndarray]) -> None:
        """Raises UserError where a phase came to nothing; metrics: means of late, per seed."""

    def initialize_from(
        self, own: Mapping[str, Tensor], other: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """A seed's state that goes on from another algorithm's; both flat, as in checkpoints.

        All networks and the count of updates are the other's, as are the moments of optimizers that
        it has too. Raises ValueError naming a tensor that it lacks or that has another shape.
        """
        taken = dict(own)
        networks = {network_name(name) for name in own if name.startswith("params/")}
        for name, tensor in other.items():
            if name not in own and network_name(name) in networks and name.startswith("params/"):
                raise ValueError(f"{name}, {tuple(tensor.shape)}, has no place here")
        for name, tensor in own.items():
            found = other.get(name)
            fits = found is not None and found.shape == tensor.shape
            if not fits and not name.startswith("optimizer/"):
                there = "is missing" if found is None else f"is {tuple(found.shape)}"
                raise ValueError(f"{name} {there}, here it is {tuple(tensor.shape)}")
        fresh = {network_name(n) for n in own if n.startswith("optimizer/") and n not in other}
        for name in own:
            if network_name(name) not in fresh or not name.startswith("optimizer/"):
                taken[name] = other[name]
        return taken

    @classmethod
    def config_from_run(cls, algorithm: str, hyper: Mapping[str, Any]) -> dict[str, Any]:
        """Values of its config that follow from another algorithm's run, that run's `hyper`.

        Raises UserError for a run that it cannot go on from.
        """
        return {}

    def initial(self) -> dict[str, Any]:
        """The state tree of a new learner: {params, optimizer}, tensors at the leaves."""
        params = {
            name: {k: v.detach().clone() for k, v in module.named_parameters()}
            for name, module in self.modules.items()
        }
        adams = {name: adam for name, adam in self.optimizers().items() if name in params}
        optimizer = {name: adam.init(params[name]) for name, adam in adams.items()}
        return {"params": params, "optimizer": optimizer}

    def with_values(self, values: Mapping[str, Tensor]) -> Algorithm:
        """This algorithm with some float fields of its config replaced by tensors."""
        other = copy.copy(self)
        changed = {name: v for name, v in values.items() if name not in self.fixed_online_fields}
        other.cfg = replace(self.cfg, **changed)
        return other


class DelayedActor(Algorithm):
    """As many critic updates as an environment step brings; the actor's comes with the last."""

    @property
    def period(self) -> int:
        return max(1, round(self.interaction.online.utd))

    def equivalent_step(self, i: int) -> int:
        return i if self.updates_actor(i) else 0

    def updates_actor(self, i: int) -> bool:
        """Whether place i is the one in which the actor learns too."""
        return i == self.period - 1


def network_name(name: str) -> str:
    """The network of a tensor in a checkpoint."""
    return name.split("/")[1]


def linear_decay(state: State, end: float | Tensor) -> Tensor:
    """A factor that falls from 1 with the phase's share that is done, and stays at `end`."""
    return (1 - state.done / state.algorithm.num_updates).clamp(min=end)


def require(source: Source | None) -> Source:
    """A source that a phase needs. Raises ValueError where the run has none of it."""
    if source is None:
        raise ValueError("this phase has nothing to learn from")
    return source


def with_n_step(source: Source, n_step: int) -> Any:
    """`source` with transitions that bootstrap after `n_step` steps."""
    return source.after(n_step) if n_step > 1 else source  # type: ignore[attr-defined]


def minimize(state: State, name: str, loss: Loss) -> tuple[State, Tensor]:
    """One optimizer step of network `name` on `loss(network)`; -> the next state, the loss."""
    state, value, _ = minimize_with(state, name, lambda net: (loss(net), ()))
    return state, value


def minimize_with(
    state: State, name: str, loss: Callable[[Network], tuple[Tensor, Any]]
) -> tuple[State, Tensor, Any]:
    """`minimize` for a loss that also returns tensors for later use; they come back detached."""
    module = state.algorithm.modules[name]
    gradient = grad_and_value(lambda params: loss(Network(module, params)), has_aux=True)
    grads, (value, extra) = gradient(state.params[name])
    return step(state, name, grads), value.detach(), tree_map(Tensor.detach, extra)


def step(state: State, name: str, grads: Params) -> State:
    """One optimizer step of network `name` along given gradients."""
    adam = state.algorithm.optimizers()[name]
    params, moments = adam.step(state.params[name], grads, state.optimizer[name])
    return replace(
        state,
        params={**state.params, name: params},
        optimizer={**state.optimizer, name: moments},
    )


def soft_update(state: State, target: str, source: str, tau: float | Tensor) -> State:
    """target <- (1 - tau) target + tau source, parameter by parameter."""
    old, new = state.params[target], state.params[source]
    moved = {k: torch.lerp(old[k], new[k], tau) for k in old}
    return replace(state, params={**state.params, target: moved})


def keep_where(old: State, new: State, stays: Tensor) -> State:
    """`old`'s networks and optimizers where `stays`, 0-d, is true, else `new`'s."""

    def chosen(before: Any, after: Any) -> Any:
        return tree_map(lambda x, y: x if x is y else torch.where(stays, x, y), before, after)

    return replace(
        new,
        params=chosen(old.params, new.params),
        optimizer=chosen(old.optimizer, new.optimizer),
    )
