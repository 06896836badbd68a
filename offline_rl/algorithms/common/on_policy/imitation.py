"""Imitation that goes on, of the data and of what was seen since, and its one-step head.

The head answers in one step what the policy denoises in many: from the same noise the policy,
without further noise, and the head should end in the same chunk (Lei et al., arXiv:2510.14830).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from offline_rl.algorithms.common.base import Metrics, Network, State, minimize, require
from offline_rl.algorithms.common.chunk_cloning import with_action_ranges
from offline_rl.algorithms.common.config import BUILT, Rate
from offline_rl.algorithms.common.noising.deterministic import deterministic_table, one_step_table
from offline_rl.algorithms.common.noising.targets import diffusion_targets, flow_targets
from offline_rl.algorithms.common.on_policy.chains import ChainConfig, DenoisingRL
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.chunks import Chunks
from offline_rl.replay.mixtures import Mixture
from offline_rl.utils.options import Count, Range
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import sample

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset

FLOW_TIMES = 1.5, 0.999  # as flow_policy draws them: `power` and `latest` of `flow_targets`
Learns = Literal["none", "joint", "afterward"]


@dataclass(frozen=True)
class ImitationConfig(ChainConfig):
    """Defaults: RL-100's rate; its average slows down (power 0.75), and it has AdamW."""

    imitation_lr: Rate = 1.4e-4  # of the policy, and of the one-step head throughout
    average: Annotated[float, Range(0, 1)] = 0.005  # share of imitation that enters the policy
    one_step: Annotated[Learns, BUILT] = "joint"  # when a one-step head learns
    student_updates: Count = 10_000  # of one that learns afterward


class Imitating(DenoisingRL):
    """With `imitate`, from which `settle` leads to reinforcement, and `student`, where wanted."""

    initialized_from_run = ("model", "policy", "behavior", "student", "student_before")
    imitation_phases = ("imitate", "settle", "compare", "distil")

    @classmethod
    def complete_config(cls, cfg: Any, dataset: Dataset) -> Any:
        """Each action's range."""
        return with_action_ranges(cfg, dataset)

    def networks(self) -> dict[str, nn.Module]:
        """`student` is the one-step head, `student_before` what it was when last accepted."""
        made, cfg = super().networks(), self.cfg
        if cfg.one_step != "none":
            made["student"] = DiffusionActor(
                **cfg.head_options(self.spec), table=one_step_table(deterministic_table(cfg))
            )
            made["student"].load_state_dict(made["model"].state_dict())
        if cfg.one_step == "joint":
            made["student_before"] = copy.deepcopy(made["student"])
        return made

    def source(self, phase: str, sources: Sources) -> Source:
        if phase in ("improve", "update", ONLINE):
            return require(sources.rollouts)
        cfg, both = self.cfg, (self.offline_source(phase, sources), sources.online)
        sizes = {name: getattr(cfg, name) for name in ("n_obs_steps", "horizon", "n_action_steps")}
        parts: list[Any] = [Chunks(x, **sizes) for x in both if x is not None]
        return Mixture(parts[0], parts[1], None) if len(parts) == 2 else parts[0]

    def imitate(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """One step of denoising regression; the policy follows."""
        cfg, random, head = self.cfg, state.random, self.modules["model"]
        a = head.unit(batch.actions)  # type: ignore[operator]
        noised = (random, a, 1)
        if cfg.process == "flow":
            x, times, answer = flow_targets(*noised, *FLOW_TIMES)
        else:
            x, times, answer = diffusion_targets(
                *noised, cfg.num_train_timesteps, cfg.prediction_type
            )

        def loss(model: Network) -> Tensor:
            error: Tensor = model(batch.observations, x, times) - answer
            return error.square().mean()

        state, value = minimize(state, "model", loss)
        old, new = state.params["policy"], state.params["model"]
        moved = {k: torch.lerp(old[k], new[own(k)], cfg.average) for k in old}
        state = replace(state, params={**state.params, "policy": moved})
        state, metrics = self.update_student(state, batch.observations)
        return state, metrics | {"imitation_loss": value}

    def settle(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """What acted is what goes on, in all its rounds; its optimizer begins anew."""
        before, policy = state.params["model"], state.params["policy"]
        found = {k: policy[k] for k in before}
        params = {**state.params, "model": found, "behavior": found}
        params["policy"] = {k: policy[own(k)] for k in policy}
        if "student_before" in params:
            params["student_before"] = params["student"]
        fresh = tree_map(torch.zeros_like, state.optimizer["model"])
        moved = torch.stack([(before[k] - found[k]).square().mean() for k in found]).mean()
        state = replace(state, params=params, optimizer={**state.optimizer, "model": fresh})
        return state, {"settled_by": moved.sqrt()}

    def distil(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """One step of the one-step head alone."""
        return student_step(state, self.cfg, batch.observations)

    def update_student(self, state: State, seen: Tensor) -> tuple[State, Metrics]:
        """With a step of the one-step head, where it learns beside the policy."""
        return student_step(state, self.cfg, seen) if self.cfg.one_step == "joint" else (state, {})


def own(name: str) -> str:
    """The model's weight that goes into the policy's of that name, of whatever rounds."""
    return f"network.{name.split('.', 1)[1]}"


def student_step(state: State, cfg: Any, seen: Tensor) -> tuple[State, Metrics]:
    """One step of `student` toward the chunks of `policy` in what is executed of them.

    seen: [B, n_obs_steps, O].
    """
    head: Any = state.algorithm.modules["student"]
    noise = state.random.normal((len(seen), *head.noise_shape))  # [B, 1, T, A]
    own = slice(cfg.n_obs_steps - 1, cfg.n_obs_steps - 1 + cfg.n_action_steps)

    def policy(x: Tensor, time: float) -> Tensor:
        told: Tensor = state.policy(seen, x, x.new_full(x.shape[:1], time))
        return told

    target = sample(deterministic_table(cfg), policy, noise).clip(-1, 1)
    x, time = noise[:, 0], torch.full_like(noise[:, 0, 0, 0], head.table[0][0])

    def loss(model: Network) -> Tensor:
        told: Tensor = model(seen, x, time)
        return (told - target)[:, own].square().mean()

    state, value = minimize(state, "student", loss)
    return state, {"student_loss": value}
