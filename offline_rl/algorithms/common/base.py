"""Base class of all algorithms: networks, optimizers and a functional update, for one seed.

The training engine stacks seeds, samples batches, compiles and counts updates. Inside `update`,
`state.<name>(…)` calls a network with its current parameters; `minimize` and `soft_update` return
the next state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.utils._pytree import tree_map

from offline_rl.algorithms.common.optim import Adam, clip_norm
from offline_rl.algorithms.common.schedule import ONLINE, Interact, Learn, Online, Piece
from offline_rl.replay.batch import Batch, Source, Sources, require
from offline_rl.replay.columns import columns
from offline_rl.replay.mixtures import Mixture
from offline_rl.utils.random import Random
from policies.bundle import Bundle, Composition
from policies.heads.head import Head
from policies.spec import Spec

if TYPE_CHECKING:
    import numpy as np

    from offline_rl.algorithms.common.models.facts import Facts
    from offline_rl.data.dataset import Dataset

Params = Mapping[str, Tensor]
Metrics = dict[str, Tensor]
LossAndMetrics = tuple[Tensor, Metrics]
Loss = Callable[..., Tensor]  # of one or several `Network`s


class _Method(nn.Module):
    """Wrapper through which `functional_call` reaches a method other than `forward`."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.net, method)(*args, **kwargs)


class Network:
    """A module with given parameters. Call it or any of its methods.

    With an encoder, the first argument of a call is an observation, which is encoded first.
    """

    def __init__(self, module: nn.Module, params: Params, encoder: Network | None = None) -> None:
        self._module, self._params, self._encoder = module, params, encoder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self._module, dict(self._params), self._encoded(args), kwargs)

    def _encoded(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._encoder is None or not args:
            return args
        return self._encoder(args[0]), *args[1:]

    def __getattr__(self, method: str) -> Callable[..., Any]:
        params = {f"net.{k}": v for k, v in self._params.items()}
        module = _Method(self._module)

        def call(*args: Any, **kwargs: Any) -> Any:
            return functional_call(module, params, (method, *self._encoded(args)), kwargs)

        return call


@dataclass(frozen=True)
class State:
    """Training state of one seed, as tensors; `state.<network>` is that network, callable."""

    algorithm: Algorithm
    params: dict[str, Params]
    optimizer: dict[str, Mapping[str, Params]]
    random: Random
    done: Tensor = field(default_factory=lambda: torch.tensor(0))  # updates done in this phase
    # Function of the state, which `minimize` adds to the losses of networks in `trained_with`, and
    # the metrics that it returned.
    extra_loss: Callable[[State], LossAndMetrics] | None = None
    extra_metrics: Metrics = field(default_factory=dict)

    def __getattr__(self, name: str) -> Network:
        if name.startswith("__") or name not in self.params:
            raise AttributeError(f"no network is named {name!r}. Networks: {[*self.params]}")
        encoder = self.algorithm.encoder_of(name)
        encode = None if encoder is None else getattr(self, encoder)
        return Network(self.algorithm.modules[name], self.params[name], encode)


@dataclass(frozen=True)
class Interaction:
    """Settings of online training: its options, and the config of the online phase."""

    online: Online
    cfg: Any  # config of online training
    num_updates: int = 1  # updates of online training, for learning-rate schedules
    fixed_online_fields: frozenset[str] = frozenset()  # fields of cfg that are set only online

    def with_config(self, cfg: Any) -> Interaction:
        """Return the same settings for another config; `fixed_online_fields` keep their values."""
        return replace(
            self, cfg=replace(cfg, **{k: getattr(self.cfg, k) for k in self.fixed_online_fields})
        )

    def own_values(self, cfg: Any) -> dict[str, Any]:
        """Return the config fields with a value of their own online, whatever `cfg` has."""
        return {
            name: value
            for name, value in vars(self.cfg).items()
            if name in self.fixed_online_fields or value != getattr(cfg, name)
        }


@dataclass(frozen=True)
class Mode:
    """Declaration of how an algorithm starts and what it learns from."""

    # scratch: new networks. run, teacher: needs a run to fine-tune or to distill. base: acts on a
    # frozen base policy
    start: Literal["scratch", "run", "teacher", "base"] = "scratch"
    runs: str = ""  # with start=run or teacher: the suitable runs, for messages
    learns: tuple[Literal["data", "environment"], ...] = ("data",)
    # with start=base. residual: observes the base's action and adds to it. noise: its action times
    # the option `noise_scale` (default 1) is the noise from which the base's sampler starts
    how: Literal["residual", "noise"] = "residual"
    # base= is optional. Its bundle becomes the attribute `base`, a frozen part of the networks
    takes_base: bool = False

    @property
    def online(self) -> bool:
        """True if it can be trained in an environment, with the options `Online`."""
        return "environment" in self.learns


DATA_THEN_ONLINE = Mode(learns=("data", "environment"))


class Reusable(NamedTuple):
    """Declaration of a dynamics model that is fitted to data; other runs load it by `dynamics=`."""

    networks: tuple[str, ...]  # loaded from the other run
    # phases that fit the model. A run that loads it skips all of them except the last one, which
    # prepares the main phase
    phases: tuple[str, ...]
    settings: tuple[str, ...]  # config fields that must be equal in both runs
    numbers: tuple[str, ...] = ()  # real-valued config fields that the fit depends on; (): unknown


class Algorithm:
    """Base of all algorithms. Define `Config`, `networks`, `optimizers` and `update`."""

    Config: type
    mode: ClassVar[Mode] = Mode()
    targets: ClassVar[Mapping[str, str]] = {}  # target network -> network copied at the start
    frozen_networks: ClassVar[tuple[str, ...]] = ()  # never trained, such as a teacher
    offline_networks: ClassVar[tuple[str, ...]] = ()  # unchanged by online training
    extra_columns: ClassVar[tuple[str, ...]] = ()  # additional batch columns that it needs
    Online: type[Online] = Online
    decay_ends: ClassVar[tuple[str, ...]] = ()  # config fields that are the `end` of `linear_decay`
    follows_card: ClassVar[bool] = True  # uses the preprocessing of the task's card
    acts: tuple[str, ...] = ("policy",)  # names of the networks that act
    acts_as: ClassVar[Mapping[str, str]] = {}  # network -> its name in a composed acting head
    # network -> other networks that its losses train too, if they exist
    trained_with: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    needed_phases: ClassVar[tuple[str, ...]] = ()  # preliminary phases that "update" needs
    # Phases that never read `next_observations`. They use every row of the data, including the
    # last of an episode. If "update" is one of them, no phase reads it.
    imitation_phases: ClassVar[tuple[str, ...]] = ()
    samples_per_row: ClassVar[str] = ""  # config field: number of sampled actions per row
    vector_only: ClassVar[bool] = True  # cannot use named channels, such as images
    fixed_online_fields: frozenset[str] = frozenset()  # config fields set only for this phase
    base: Bundle | None = None  # with `mode.takes_base`: the policy of base=, set before networks
    uses_facts: ClassVar[bool] = False  # uses `facts`, which are set before training
    facts: Facts | None = None  # facts of the task and its data, in the units of training
    dynamics_model: ClassVar[Reusable | None] = None  # None: no dynamics model is fitted to data
    # Processes of torchrun can share each batch. Every loss must then be a mean over the rows of
    # the batch, and every random number must belong to one row; see `random.SlicedRandom`.
    data_parallel: ClassVar[bool] = False
    # It solves linear systems or compares likelihoods; precision=auto does not choose tf32.
    needs_fp32: ClassVar[bool] = False
    # With several processes: the mean over processes of each tensor in a tree. Set by the engine
    average: Callable[[Any], Any] | None = None

    def __init__(
        self, spec: Spec, cfg: Any, num_updates: int = 1, interaction: Interaction | None = None
    ) -> None:
        """Store the arguments; networks are built when `modules` is first read.

        num_updates: length of the main phase, for learning-rate schedules over all of it.
        interaction: online training; default: the defaults of `Online`.
        """
        self.spec, self.cfg, self.num_updates = spec, cfg, num_updates
        online_cfg = replace(cfg, **self.Online.config_changes)
        self.interaction = interaction or Interaction(self.Online(), online_cfg)

    @cached_property
    def modules(self) -> dict[str, nn.Module]:
        """All networks by name, with target networks.

        Copies of the algorithm for a phase or for per-seed values share these networks, if the
        networks are built before the copy.
        """
        modules = self.networks()
        for target, source in self.targets.items():
            modules[target] = copy.deepcopy(modules[source])
        return modules

    @classmethod
    def starts_online(cls) -> bool:
        """Return True if training starts in an environment with random actions."""
        return cls.mode.online and cls.Online().warmup_policy == "random"

    @property
    def period(self) -> int:
        """Number of updates after which the computation repeats (policy delay, UTD ratio)."""
        return 1

    def prefers_stacked_seeds(self, device: str) -> bool:
        """Return True if stacked seeds train faster than one after another.

        device: cpu or cuda. Large networks gain nothing from stacking.
        """
        return True

    def equivalent_step(self, i: int) -> int:
        """Return the first step of the period with the same computation as step i."""
        return i

    def for_phase(self, phase: str) -> Algorithm:
        """Return the algorithm for `phase`; its config may differ, its networks do not."""
        if phase != ONLINE:
            return self
        algorithm, online_cfg = copy.copy(self), self.interaction.cfg
        changed = self.interaction.own_values(self.cfg).keys() | self.Online.config_changes.keys()
        algorithm.cfg, algorithm.fixed_online_fields = online_cfg, frozenset(changed)
        algorithm.num_updates = self.interaction.num_updates
        return algorithm

    def schedule(self, num_updates: int, num_env_steps: int, pretrain: int | None) -> list[Piece]:
        """Return the phases in order.

        pretrain: updates of each preliminary phase; None: the numbers in `phases`.
        """
        lengths = {name: n if pretrain is None else pretrain for name, n in self.phases.items()}
        work: list[Piece] = [Learn(name, n) for name, n in lengths.items()] if num_updates else []
        work += [Learn("update", num_updates), Interact(ONLINE, num_env_steps)]
        return [piece for piece in work if piece.size]

    @property
    def phases(self) -> Mapping[str, int]:
        """Preliminary phases in order: the name of their update method, and their updates."""
        return {}

    def networks(self) -> dict[str, nn.Module]:
        """Return the trainable modules by name, freshly initialized."""
        raise NotImplementedError

    def acting_head(self) -> Head:
        """Return the head that acts. Override it if it is composed of several networks.

        The networks are then submodules of the head, under their names in `acts`, or in `acts_as`.
        """
        head: Any = self.modules[self.acts[0]]
        return head

    def acting_params(self, params: Mapping[str, Params]) -> Params:
        """Return the parameters of `acting_head`. params: parameters of all networks."""
        if len(self.acts) == 1:
            return params[self.acts[0]]
        parts = {self.acts_as.get(name, name): params[name] for name in self.acts}
        return {f"{name}.{k}": v for name, part in parts.items() for k, v in part.items()}

    def exploring_head(self) -> Head:
        """Return the head that collects experience. It is not exported."""
        return self.acting_head()

    def exploring_params(self, params: Mapping[str, Params]) -> Params:
        """Return the parameters of `exploring_head`. params: parameters of all networks."""
        return self.acting_params(params)

    def optimizers(self) -> dict[str, Adam]:
        """Return an optimizer per trained network; names of absent networks are ignored."""
        raise NotImplementedError

    def encoder_of(self, network: str) -> str | None:
        """Return the name of the network that encodes the observations of `network`, or None."""
        return None

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Return the next state and metrics (0-d, detached).

        i: the index of the update in the period, a plain integer.
        """
        raise NotImplementedError

    def run_update(self, phase: str, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Run the update of `phase`. The engine calls this; see `update`."""
        result: tuple[State, Metrics] = getattr(self, "update" if phase == ONLINE else phase)(
            state, batch, i
        )
        return result

    @classmethod
    def composition(cls, cfg: Any) -> Composition | None:
        """Return how the policy acts on a frozen base policy; None if it has none."""
        if cls.mode.start != "base":
            return None
        steers = cls.mode.how == "noise"
        return Composition(cls.mode.how, float(getattr(cfg, "noise_scale", 1)) if steers else 1.0)

    @classmethod
    def uses_rewards(cls, cfg: Any) -> bool:
        """Return True if it cannot be trained on data without rewards."""
        return True

    @classmethod
    def can_stream(cls, cfg: Any) -> bool:
        """Return True if it trains on single steps of one data set, which can stay on disk."""
        return cls.source is Algorithm.source

    @classmethod
    def unusable_rows(cls, dataset: Dataset) -> int:
        """Return the number of rows without a next observation; 0 if it reads none."""
        return 0 if "update" in cls.imitation_phases else int((~dataset.usable).sum())

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Return the part of the raw data to train on, and the completed config.

        Config values that are null and follow from the data are set. Raises UserError if the config
        does not fit the data.
        """
        return dataset, self.cfg

    def make_columns(self, dataset: Dataset) -> dict[str, np.ndarray]:
        """Return the `extra_columns` of preprocessed data, [N, ...]."""
        return columns(self.extra_columns, dataset, self.mc_returns)

    def mc_returns(self, dataset: Dataset) -> np.ndarray:
        """Return Monte-Carlo returns [N] of `dataset`, with the rewards used for training."""
        return dataset.monte_carlo_returns(self.cfg.discount)

    @classmethod
    def config_from_teacher(cls, algorithm: str, hyper: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the config values that a student takes from a run.

        None if that run cannot be a teacher. hyper: the run's hyper-parameters.
        """
        raise NotImplementedError

    def source(self, phase: str, sources: Sources) -> Source:
        """Return the source of a phase's batches: one of `sources`, a view of it, or a mixture."""
        if phase != ONLINE:
            return self.offline_source(phase, sources)
        options, online = self.interaction.online, require(sources, "online")
        fraction = options.offline_fraction
        ratio = None if fraction == "rows" else float(fraction)
        buffers = (sources.get("offline"), online)
        views = [x.with_n_step(options.n_step) for x in buffers if x is not None]
        return views[-1] if ratio == 0 or len(views) == 1 else Mixture(views[0], views[1], ratio)

    def updates_before_policy(self, phase: str) -> tuple[int, str]:
        """Return the updates at the start of `phase` that leave the policy unchanged.

        Also returns the option that sets them. A run with no more updates than these is refused.
        """
        online = self.interaction.online
        if phase != ONLINE:
            return 0, ""
        return online.critic_only_updates(self.period), online.critic_only_option

    def offline_source(self, phase: str, sources: Sources) -> Source:
        """Return the data of a phase: every row for imitation, else rows with a successor."""
        every_row = sources.get("every_row") if phase in self.imitation_phases else None
        return require(sources, "offline") if every_row is None else every_row

    def rings(self) -> Mapping[str, int]:
        """Return the rings that `fill` writes: their names in `sources`, and rows per seed."""
        return {}

    def has_converged(self, phase: str, params: Mapping[str, Params]) -> Tensor:
        """Return a mask of the seeds for which more updates of `phase` change nothing, [S].

        params: parameters of all networks, with the seed axis. See `schedule.Learn.skips`.
        """
        raise NotImplementedError

    def check_phase(self, phase: str, metrics: Mapping[str, np.ndarray]) -> None:
        """Raise UserError if a phase had no useful result. metrics: recent means, per seed."""

    def summary(self, params: Mapping[str, Params], seconds: Mapping[str, float]) -> dict[str, Any]:
        """Return entries of result.json that describe the fitted models of one seed.

        `dynamics`: see `offline_rl.reporting.runs.DynamicsFit`.
        params: parameters of all networks.  seconds: time that the updates of each phase took.
        """
        return {}

    def initialize_from(
        self, initial: Mapping[str, Tensor], other: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the state of a seed that continues from another algorithm's state.

        initial: state of a new seed.  other: state to continue from. Both are flat, as in
        checkpoints. Networks, the update counter, and the moments of the optimizers in both states
        are taken from `other`. Raise ValueError if a tensor is missing or has another shape.
        """
        result = dict(initial)
        networks = {network_name(name) for name in initial if name.startswith("params/")}
        for name, tensor in other.items():
            if (
                name not in initial
                and network_name(name) in networks
                and name.startswith("params/")
            ):
                raise ValueError(f"{name}, {tuple(tensor.shape)}, does not exist in this algorithm")
        for name, tensor in initial.items():
            source = other.get(name)
            fits = source is not None and source.shape == tensor.shape
            if not fits and not name.startswith("optimizer/"):
                problem = "is missing" if source is None else f"is {tuple(source.shape)}"
                raise ValueError(f"{name} {problem}, here it is {tuple(tensor.shape)}")
        missing = (n for n in initial if n.startswith("optimizer/") and n not in other)
        fresh = {network_name(n) for n in missing}  # their optimizers start from zero
        for name in initial:
            if network_name(name) not in fresh or not name.startswith("optimizer/"):
                result[name] = other[name]
        return result

    @classmethod
    def config_from_run(cls, algorithm: str, hyper: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config values that follow from another algorithm's run.

        hyper: hyper-parameters of that run. Raises UserError if it cannot continue from that run.
        """
        return {}

    def initial(self) -> dict[str, Any]:
        """Return the state tree of a new seed: {params, optimizer}, tensors at the leaves."""
        params = {
            name: {k: v.detach().clone() for k, v in module.named_parameters()}
            for name, module in self.modules.items()
        }
        adams = {name: adam for name, adam in self.optimizers().items() if name in params}
        optimizer = {name: adam.init(params[name]) for name, adam in adams.items()}
        return {"params": params, "optimizer": optimizer}

    def with_values(self, values: Mapping[str, Tensor]) -> Algorithm:
        """Return this algorithm with some float fields of its config replaced by tensors."""
        algorithm = copy.copy(self)
        changed = {name: v for name, v in values.items() if name not in self.fixed_online_fields}
        algorithm.cfg = replace(self.cfg, **changed)
        return algorithm


class DelayedActor(Algorithm):
    """Several critic updates per environment step; the actor is updated with the last one."""

    @property
    def period(self) -> int:
        return max(1, round(self.interaction.online.utd))

    def equivalent_step(self, i: int) -> int:
        return i if self.updates_actor(i) else 0

    def updates_actor(self, i: int) -> bool:
        """Return True if update i of the period also updates the actor."""
        return i == self.period - 1


def network_name(name: str) -> str:
    """Return the network of a checkpoint's tensor."""
    return name.split("/")[1]


def linear_decay(state: State, end: float | Tensor) -> Tensor:
    """Return a factor that falls linearly from 1 with the updates of the phase, down to `end`."""
    return (1 - state.done / state.algorithm.num_updates).clamp(min=end)


@overload
def minimize(
    state: State, names: str | tuple[str, ...], loss: Loss, *, max_grad_norm: float | None = None
) -> tuple[State, Tensor]: ...


@overload
def minimize(
    state: State,
    names: str | tuple[str, ...],
    loss: Callable[..., tuple[Tensor, Any]],
    *,
    max_grad_norm: float | None = None,
) -> tuple[State, Tensor, Any]: ...


def minimize(
    state: State,
    names: str | tuple[str, ...],
    loss: Callable[..., Any],
    *,
    max_grad_norm: float | None = None,
) -> Any:
    """Return the state after one step on `loss(*networks)`, and the loss.

    Each of the networks `names`, and of those that are `trained_with` them, takes a step with its
    own optimizer. If the loss returns a second result besides its value, that is returned too,
    detached. max_grad_norm: clip the joint norm of the gradients of all these networks to this.

    With several processes, each computes the loss of its slice of the batch. Gradients, loss and
    second result are averaged here.
    """
    names = (names,) if isinstance(names, str) else names
    others = (x for name in names for x in state.algorithm.trained_with.get(name, ()))
    further = tuple(x for x in others if x in state.params)
    trained_names = names + further
    modules, adams = state.algorithm.modules, state.algorithm.optimizers()
    for name in names:
        for kind, known in (("network", modules), ("optimizer", adams)):
            if name not in known:
                raise ValueError(f"minimize: no {kind} is named {name!r}. There are {[*known]}.")

    def value_and_extra(trained: Mapping[str, Params]) -> tuple[Tensor, Any]:
        inside = replace(state, params={**state.params, **trained})
        result = loss(*(getattr(inside, name) for name in names))
        value, *extra = result if isinstance(result, tuple) else (result,)
        if further and state.extra_loss is not None:
            more, metrics = state.extra_loss(inside)
            return value + more, (value, extra, metrics)
        return value, (value, extra, {})

    params, optimizer = {**state.params}, {**state.optimizer}
    gradient = grad_and_value(value_and_extra, has_aux=True)
    grads, (_, (value, extra, metrics)) = gradient({name: params[name] for name in trained_names})
    if state.algorithm.average is not None:
        grads, value, extra = state.algorithm.average((grads, value, extra))
    if max_grad_norm is not None:
        grads = clip_norm(grads, max_grad_norm)
    for name in trained_names:
        params[name], optimizer[name] = adams[name].step(params[name], grads[name], optimizer[name])
    metrics = {**state.extra_metrics, **tree_map(Tensor.detach, metrics)}
    state = replace(state, params=params, optimizer=optimizer, extra_metrics=metrics)
    return state, value.detach(), *tree_map(Tensor.detach, extra)


def soft_update(state: State, target: str, source: str, tau: float | Tensor) -> State:
    """Return the state after target <- (1 - tau) target + tau source, for every parameter."""
    old, new = state.params[target], state.params[source]
    updated = {k: torch.lerp(old[k], new[k], tau) for k in old}
    return replace(state, params={**state.params, target: updated})


def update_targets(state: State) -> State:
    """Return the state after a `soft_update` of each target network at the config's rate `tau`."""
    for target, source in state.algorithm.targets.items():
        state = soft_update(state, target, source, state.algorithm.cfg.tau)
    return state


def keep_where(old: State, new: State, keep: Tensor) -> State:
    """Return the state with `old`'s networks and optimizers if `keep` (0-d), else `new`'s.

    If `keep` may differ between seeds, the optimizers must be created with `seeds_stop=True`.
    """

    def select(old_tree: Any, new_tree: Any) -> Any:
        return tree_map(lambda x, y: x if x is y else torch.where(keep, x, y), old_tree, new_tree)

    return replace(
        new,
        params=select(old.params, new.params),
        optimizer=select(old.optimizer, new.optimizer),
    )


def reset_optimizer(state: State, network: str, reset: Tensor) -> State:
    """Return the state; if `reset` (0-d), a network's optimizer is in its initial state."""
    optimizer = tree_map(lambda x: torch.where(reset, 0, x), state.optimizer[network])
    return replace(state, optimizer={**state.optimizer, network: optimizer})
