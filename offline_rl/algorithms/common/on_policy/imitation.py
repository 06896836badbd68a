"""Continued imitation on data and new episodes, with an optional one-step student.

The student predicts in one step what the policy generates in several: from the same noise, the
policy's deterministic sampler and the student should end in the same chunk (Lei et al.,
arXiv:2510.14830).
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from offline_rl.algorithms.common.base import Metrics, Network, State, minimize
from offline_rl.algorithms.common.chunk_cloning import with_action_ranges
from offline_rl.algorithms.common.config import BUILT, Rate
from offline_rl.algorithms.common.noising.deterministic import deterministic_table, one_step_table
from offline_rl.algorithms.common.noising.targets import diffusion_targets, flow_targets
from offline_rl.algorithms.common.on_policy.chains import ChainConfig, DenoisingRL
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.data.dataset import Dataset
from offline_rl.replay.batch import Batch, Source, Sources, require
from offline_rl.replay.chunks import Chunks
from offline_rl.replay.mixtures import Mixture
from offline_rl.utils.options import Count, Range, frozen
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import cosine_alphas, sample

FLOW_TIMES = 1.5, 0.999  # flow_policy's defaults: `power` and `latest` of `flow_targets`
Learns = Literal["none", "joint", "afterward"]


@frozen
class ImitationConfig(ChainConfig):
    """Defaults: RL-100's learning rate.

    RL-100's code uses AdamW, and a moving average whose rate decreases (power 0.75).
    """

    imitation_lr: Rate = 1.4e-4  # learning rate of imitation, and of the student in all phases
    average: Annotated[float, Range(0, 1)] = 0.005  # update rate of the averaged policy
    one_step: Annotated[Learns, BUILT] = "joint"  # when a one-step student is trained
    student_updates: Count = 10_000  # student updates with one_step=afterward


class Imitating(DenoisingRL):
    """Phases `imitate`, `settle` (prepare for RL) and, with a student, `distill`."""

    initialized_from_run = ("model", "policy", "behavior", "student", "student_before")
    imitation_phases = ("imitate", "settle", "compare", "distill")

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Set each action's range from the data."""
        return dataset, with_action_ranges(self.cfg, dataset)

    def networks(self) -> dict[str, nn.Module]:
        """Return the networks, with `student` and `student_before`, its last accepted weights."""
        networks, cfg = super().networks(), self.cfg
        if cfg.one_step != "none":
            networks["student"] = DiffusionActor(
                **cfg.head_options(self.spec), table=one_step_table(deterministic_table(cfg))
            )
            networks["student"].load_state_dict(networks["model"].state_dict())
        if cfg.one_step == "joint":
            networks["student_before"] = copy.deepcopy(networks["student"])
        return networks

    def source(self, phase: str, sources: Sources) -> Source:
        if phase in ("improve", "update", ONLINE):
            return require(sources, "rollouts")
        cfg, buffers = self.cfg, (self.offline_source(phase, sources), sources.get("online"))
        sizes = {name: getattr(cfg, name) for name in ("n_obs_steps", "horizon", "n_action_steps")}
        chunks: list[Any] = [Chunks(x, **sizes) for x in buffers if x is not None]
        return Mixture(chunks[0], chunks[1], None) if len(chunks) == 2 else chunks[0]

    def imitate(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the model by denoising regression; the policy follows by a moving average."""
        cfg, random, head = self.cfg, state.random, self.modules["model"]
        a = head.normalize_actions(batch.actions)  # type: ignore[operator]
        inputs = (random, a, 1)
        if cfg.process == "flow":
            x, times, target = flow_targets(*inputs, *FLOW_TIMES)
        else:
            alphas = cosine_alphas(cfg.num_train_timesteps)
            x, times, target = diffusion_targets(*inputs, alphas, cfg.prediction_type)

        def loss(model: Network) -> Tensor:
            error: Tensor = model(batch.observations, x, times) - target
            return error.square().mean()

        state, value = minimize(state, "model", loss)
        old, new = state.params["policy"], state.params["model"]
        moved = {k: torch.lerp(old[k], new[model_name(k)], cfg.average) for k in old}
        state = replace(state, params={**state.params, "policy": moved})
        state, metrics = self.update_student(state, batch.observations)
        return state, metrics | {"imitation_loss": value}

    def settle(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Copy the averaged policy into the model and `behavior`; reset the model's optimizer."""
        old, policy = state.params["model"], state.params["policy"]
        new = {k: policy[k] for k in old}
        params = {**state.params, "model": new, "behavior": new}
        params["policy"] = {k: policy[model_name(k)] for k in policy}
        if "student_before" in params:
            params["student_before"] = params["student"]
        reset = tree_map(torch.zeros_like, state.optimizer["model"])
        change = torch.stack([(old[k] - new[k]).square().mean() for k in new]).mean()
        state = replace(state, params=params, optimizer={**state.optimizer, "model": reset})
        return state, {"settled_by": change.sqrt()}

    def distill(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the one-step student alone."""
        return student_step(state, self.cfg, batch.observations)

    def update_student(self, state: State, observations: Tensor) -> tuple[State, Metrics]:
        """Update the one-step student, if it is trained together with the policy."""
        return (
            student_step(state, self.cfg, observations)
            if self.cfg.one_step == "joint"
            else (state, {})
        )


def model_name(name: str) -> str:
    """Return the name of the model's parameter for the policy's, tuned or pretrained."""
    return f"network.{name.split('.', 1)[1]}"


def student_step(state: State, cfg: Any, observations: Tensor) -> tuple[State, Metrics]:
    """Update `student` toward the chunks of `policy`, on the executed actions.

    observations: [B, n_obs_steps, O].
    """
    head: Any = state.algorithm.modules["student"]
    noise = state.random.normal((len(observations), *head.noise_shape))  # [B, 1, T, A]
    executed = slice(cfg.n_obs_steps - 1, cfg.n_obs_steps - 1 + cfg.n_action_steps)

    def policy(x: Tensor, time: float) -> Tensor:
        prediction: Tensor = state.policy(observations, x, x.new_full(x.shape[:1], time))
        return prediction

    target = sample(deterministic_table(cfg), policy, noise).clip(-1, 1)
    x, time = noise[:, 0], torch.full_like(noise[:, 0, 0, 0], head.table[0][0])

    def loss(model: Network) -> Tensor:
        chunk: Tensor = model(observations, x, time)
        return (chunk - target)[:, executed].square().mean()

    state, value = minimize(state, "student", loss)
    return state, {"student_loss": value}
