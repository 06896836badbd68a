"""The contract of all policies. A head is a network that maps observations to actions in [-1, 1].

    chunk, memory = head.decide(observations, memory, noise)

    observations  [B, n_obs_steps, *obs], or channels of this shape by name; the last is the present
    memory        tensors [B, ...] by name, which the caller passes to the next decision of the
                  episode; {} for most heads. `initial_memory` is the memory of new episodes.
    noise         [B, *noise_shape], standard normal; [B, 0] for a deterministic head
    chunk         [B, chunk_size, A], actions from the present step on

A head stores nothing of an episode and has no random number generator. The caller passes memory and
noise. An update therefore uses the same random numbers whether it runs eagerly, compiled or stacked
over seeds, and the memory can stay on the device. `policies.episodes.RunningEpisodes` is the caller
in evaluations, bundles and robots.

A bundle stores the class name of its head; `load_kinds` finds the class in the modules of this
folder and its subfolders.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from policies.channels import map_channels
from policies.episodes import COSTS, EXECUTED, REWARDS
from policies.heads.schedules import Table
from policies.networks.dropout import Random
from policies.networks.encoders import ObservationEncoder
from policies.normalizer import center_and_half_width

Memory = dict[str, Tensor]  # tensors [B, ...]
ObservationSizes = int | Mapping[str, Sequence[int]]  # size of a single vector, or channel shapes


class Head(nn.Module):
    """Base class of heads. A head without chunks and memory is an `Actor`."""

    arguments: dict[str, Any]  # arguments of the constructor, from which a bundle rebuilds the head
    n_obs_steps: int = 1  # number of observations in the input
    chunk_size: int = 1  # number of predicted actions
    n_action_steps: int = 1  # number of executed actions per chunk, before the next decision
    num_samples: int = 1  # candidate chunks per decision; one is selected
    noise_shape: tuple[int, ...] = ()  # shape of the noise for one decision; () for none
    # True if decisions may start within an episode, after actions that are not in the memory
    memory_starts_anywhere: bool = False
    temporal_ensemble_coeff: float | None = None  # see `policies.episodes.RunningEpisodes`
    # Argument of the constructor that sets `chunk_size`, if a longer chunk begins with the shorter
    # one, so that the policy can act longer without a decision; "" if not
    chunk_argument: str = ""
    # Sampler table of a denoising head, see `heads.schedules`. Such a head also has the methods
    # `encode`, `predict` and `finish`, and the caller may run the loop over denoising steps.
    table: Table | None = None

    @property
    def has_memory(self) -> bool:
        """True if decisions depend on earlier steps of the episode, beyond the observations."""
        return bool(self.initial_memory(1))

    @property
    def needs_rewards(self) -> bool:
        """True if the memory has the entry "rewards", so that decisions depend on rewards."""
        return REWARDS in self.initial_memory(1)

    @property
    def needs_costs(self) -> bool:
        """True if the memory has the entry "costs", so that decisions depend on costs."""
        return COSTS in self.initial_memory(1)

    def initial_memory(self, batch: int) -> Memory:
        """Return the memory at the start of `batch` episodes.

        A head that reads rewards has the entry "rewards", [B]: zeros at the start of an episode.
        Before each decision, the caller overwrites it with the sum of the raw rewards since the
        previous decision. A head that reads costs has the entry "costs", likewise. If it needs the
        cost of the complete episode, it keeps the sum in an entry of its own. The entry "executed",
        [B] float, likewise becomes the number of steps since the previous decision. The entry
        "plan", [B, chunk_size, A], is the chunk of the previous decision, whose first actions were
        executed since then. A caller that executes other actions overwrites them.
        """
        return {}

    def decide(self, observations: Any, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """Return the chunks [B, chunk_size, A] and the next memory; see the module's docstring."""
        raise NotImplementedError

    def explore(
        self, observations: Any, memory: Memory, noise: Tensor, random: Random
    ) -> tuple[Tensor, Memory]:
        """Return what `decide` returns, with the exploration noise of the method from `random`."""
        return self.decide(observations, memory, noise)

    def selection_margins(self, observations: Any, memory: Memory, noise: Tensor) -> Tensor:
        """Return by how much the selected chunk's value exceeds all others, [B].

        Heads with `num_samples` > 1 define it. Arguments: see `decide`.
        """
        raise NotImplementedError

    def describe(
        self, weights: Any, observation_names: Sequence[str], action_names: Sequence[str]
    ) -> dict[str, Any]:
        """Return readable facts about the parameters. A bundle stores them in its provenance.

        weights: arrays by name.  observation_names, action_names: names of the inputs and outputs.
        """
        return {}


class Actor(Head):
    """A head that maps one observation to one action. Define `act`, and `explore_action`."""

    def act(self, observations: Any) -> Tensor:
        """Return the deterministic actions [..., A] for observations [..., *obs]."""
        raise NotImplementedError

    def explore_action(self, observations: Any, random: Random) -> Tensor:
        """Return the actions of `act` with exploration noise."""
        return self.act(observations)

    def decide(self, observations: Any, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""
        return self.act(take_last(observations))[:, None], memory

    def explore(
        self, observations: Any, memory: Memory, noise: Tensor, random: Random
    ) -> tuple[Tensor, Memory]:
        """See `Head.explore`."""
        return self.explore_action(take_last(observations), random)[:, None], memory


def steps_since(memory: Memory) -> Tensor:
    """Return the number of steps since the last decision, [B]; 1 before the first one.

    memory: with the entry "executed".
    """
    return memory[EXECUTED].clamp(min=1)


def take_last(observations: Any) -> Any:
    """Return the present observations, the last ones of the histories [B, n_obs_steps, *obs]."""
    return map_channels(lambda x: x[:, -1], observations)


class ChunkHead(Head):
    """A head with an observation encoder and min-max normalized actions.

    Actions are normalized by their range, because samplers clip chunks to this range.
    """

    def __init__(
        self,
        observations: ObservationSizes,
        actions: int,
        low: Sequence[float] | None,
        high: Sequence[float] | None,
        encoder: Mapping[str, Any] | None,
    ) -> None:
        """Create the observation encoder and the action normalization.

        A single vector needs no encoder.
        low, high: [A], range of the actions in the data; default -1 and 1.
        encoder: options of `ImageEncoder`.
        """
        super().__init__()
        low, high = [*(low or [-1.0] * actions)], [*(high or [1.0] * actions)]
        self.arguments = {"actions": actions, "action_low": low}
        self.arguments["action_high"] = high
        self.observation_encoder: ObservationEncoder | None = None
        if isinstance(observations, Mapping):
            shapes = {k: [*shape] for k, shape in observations.items()}
            options = dict(encoder or {})
            self.arguments |= {"observations": shapes, "encoder": options}
            self.observation_encoder = ObservationEncoder(shapes, **options)
            self.features = self.observation_encoder.features  # size of an encoded observation
        else:
            self.arguments["observations"] = self.features = observations
        ranges = [center_and_half_width(*bounds) for bounds in zip(low, high, strict=True)]
        self.center, self.half_width = ([pair[k] for pair in ranges] for k in (0, 1))

    def encode(self, observations: Any, random: Random | None = None) -> Tensor:
        """Encode observations to features [B, n_obs_steps, F].

        observations: [B, n_obs_steps, *obs], or channels of this shape by name.
        random: source of random numbers for image crops, in training only.
        """
        if self.observation_encoder is None:
            flat: Tensor = observations.flatten(2)
            return flat
        return self.observation_encoder(observations, random)

    def normalize_actions(self, actions: Tensor) -> Tensor:
        """Scale actions [..., A] from their range in the data to [-1, 1]."""
        return (actions - actions.new_tensor(self.center)) / actions.new_tensor(self.half_width)

    def denormalize_actions(self, chunk: Tensor) -> Tensor:
        """Scale actions [..., A] back: the inverse of `normalize_actions`."""
        return chunk * chunk.new_tensor(self.half_width) + chunk.new_tensor(self.center)


def load_kinds() -> dict[str, type[Head]]:
    """Return the classes of the heads in this folder and its subfolders, by name."""
    kinds: dict[str, type[Head]] = {}
    for info in pkgutil.walk_packages([str(Path(__file__).parent)], f"{__package__}."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            is_local = isinstance(value, type) and value.__module__ == module.__name__
            if is_local and issubclass(value, Head) and info.name != __name__:
                kinds[name] = value
    return kinds
