"""Policies of all stacked seeds, evaluated in a single call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from offline_rl.algorithms.common.base import Network
from offline_rl.engine.trace import trace
from offline_rl.utils.random import Random
from policies import channels
from policies.channels import Observations
from policies.chunks import ChunkExecutor
from policies.heads.schedules import sample
from policies.networks.precision import in_float32

REWARDS = "last_rewards"  # saved together with a head's memory
EXPLORATION = 1 << 33  # separates the random numbers of exploration from those of updates


class StackedPolicy:
    """The policies of S seeds; each acts in `batch` episodes in parallel.

    A call maps observations [S, batch, O] and a step to actions [S, batch, A]. It computes in
    float32, independent of the engine's precision.

    This class stores the memory of a recurrent policy (`heads.head.Recurrent`) on the device. For
    such a policy, `reset` starts `batch` new episodes of each seed, and `observe` passes the raw
    rewards of the last actions. For a policy that predicts chunks (`heads.head.Planner`), `reset`
    passes the episodes' seeds. Other policies need neither method.

    The policies act with the current parameters or, after `snapshot`, with a copy of them.
    """

    def __init__(
        self,
        module: nn.Module,
        params: Any,
        seeds: Tensor,
        observation_shape: Any,
        batch: int,
        *,
        explore: bool,
        device: torch.device,
    ) -> None:
        """Trace the graphs for acting.

        params: parameters of `module`, [S, …] each. seeds: [S]. observation_shape: one shape, or
        {channel: shape}. Other arguments: see `Engine.stacked_policy`.
        """
        self.module, self.device, self.batch = module, device, batch
        self.is_recurrent = hasattr(module, "step")
        self.shape = (len(seeds), batch)
        self.live, structure = tree_flatten(params)
        self.leaves = [x.to(device) for x in self.live]
        self.executor: ChunkExecutor | None = None
        head: Any = module
        if hasattr(module, "plan"):
            sizes: dict[str, Any] = {
                "n_obs_steps": head.n_obs_steps,
                "n_action_steps": head.n_action_steps,
            }
            sizes |= {"noise_shape": tuple(head.noise_shape)}
            self.executor = ChunkExecutor(
                self._plan,
                **sizes,
                temporal_ensemble_coeff=getattr(head, "temporal_ensemble_coeff", None),
            )
        self.reset()
        device_seeds, first_step = seeds.to(device), torch.tensor(0, device=device)

        def graph(one_seed: Callable[..., Any], *inputs: Any) -> Callable[..., Any]:
            """Trace `one_seed(step, params, seed, *inputs)` into one graph for all seeds.

            inputs: examples of the arguments, [S, …] each.
            """

            def all_seeds(leaves: list[Tensor], step: Tensor, *inputs: Any) -> Any:
                arguments = (tree_unflatten(leaves, structure), device_seeds, *inputs)
                if len(device_seeds) == 1:
                    result = one_seed(step, *tree_map(lambda x: x[0], arguments))
                    return tree_map(lambda x: x[None], result)
                return vmap(one_seed, in_dims=(None, *(0 for _ in arguments)))(step, *arguments)

            with in_float32(module), torch.no_grad():
                return trace(all_seeds, self.leaves, first_step, *inputs)

        def zeros(*sizes: int) -> Tensor:
            return torch.zeros(*self.shape, *sizes, device=device)

        def act(step: Tensor, params: Any, seed: Tensor, obs: Tensor, *more: Any) -> Any:
            network, (rewards, context) = Network(module, params), more
            if self.is_recurrent:
                return network.step(obs, rewards, context)
            if explore:
                return network.explore(obs, Random(seed + EXPLORATION, step)), context
            return network.act(obs), context

        def plan(step: Tensor, params: Any, seed: Tensor, obs: Tensor, noise: Tensor) -> Tensor:
            return Network(module, params).plan(obs, noise)

        def example_observations(*leading: int) -> Any:
            def example(shape: tuple[int, ...]) -> Tensor:
                dtype = torch.uint8 if channels.is_image(shape) else torch.float32
                return zeros(*leading, *shape).to(dtype)

            return channels.map_channels(example, observation_shape)

        def encode(step: Tensor, params: Any, seed: Tensor, obs: Tensor) -> Tensor:
            return Network(module, params).encode(obs)

        def predict(step: Tensor, params: Any, seed: Tensor, *inputs: Tensor) -> Tensor:
            return Network(module, params).predict(*inputs)

        self.graphs: dict[str, Callable[..., Any]] = {}
        if self.executor is None:
            example = example_observations()
            self.graphs["act"] = graph(act, example, self.rewards, self.context)
        elif hasattr(module, "table"):  # one graph for all denoising steps
            example = example_observations(head.n_obs_steps)
            self.graphs["encode"] = graph(encode, example)
            encoded = self.graphs["encode"](self.leaves, first_step, example)
            self.graphs["predict"] = graph(predict, encoded, zeros(*head.noise_shape[1:]), zeros())
        else:
            example = example_observations(head.n_obs_steps)
            self.graphs["plan"] = graph(plan, example, zeros(*(head.noise_shape or (0,))))

    def snapshot(self) -> None:
        """Copy the current parameters, and act with them while training continues."""
        self.leaves = [x.detach().to(self.device, copy=True) for x in self.live]

    def reset(self, seeds: np.ndarray | None = None, rows: np.ndarray | None = None) -> None:
        """Start new episodes.

        seeds: seeds of the episodes, [S * batch], for the sampling noise; by default the index of
        each episode. rows: indices of the episodes that restart, [R], by default all; `seeds` then
        has R entries.
        """
        if self.executor is not None:
            all_seeds = np.tile(np.arange(self.batch), self.shape[0]) if seeds is None else seeds
            self.executor.reset(all_seeds, rows)
        start = self.module.reset(self.batch) if self.is_recurrent else {}  # type: ignore[operator]
        initial = {
            k: v.to(self.device).expand(self.shape[0], *v.shape).clone() for k, v in start.items()
        }
        if rows is None:
            self.rewards, self.context = torch.zeros(self.shape, device=self.device), initial
            return
        restarts = torch.zeros(self.shape, dtype=torch.bool)
        restarts.view(-1)[torch.from_numpy(rows)] = True
        restarts = restarts.to(self.device)
        self.rewards = self.rewards.masked_fill(restarts, 0)
        for name, value in initial.items():
            mask = restarts.reshape(*self.shape, *[1] * (value.dim() - 2))
            self.context[name] = torch.where(mask, value, self.context[name])

    def memory(self, s: int) -> dict[str, Tensor]:
        """Return the policy's memory of the s-th seed's episodes; {} for policies without memory.

        For a policy that predicts chunks, it is the state of the action queue.
        """
        if self.executor is not None:
            rows = slice(s * self.batch, (s + 1) * self.batch)
            return {name: torch.from_numpy(x) for name, x in self.executor.state(rows).items()}
        parts = self.context | {REWARDS: self.rewards} if self.is_recurrent else {}
        return {name: x[s].cpu().contiguous().clone() for name, x in parts.items()}

    def restore_memory(self, s: int, memory: Mapping[str, Tensor]) -> None:
        """Restore what `memory` returned. Call `reset` first."""
        if self.executor is not None:
            rows = slice(s * self.batch, (s + 1) * self.batch)
            self.executor.load(rows, {name: x.numpy() for name, x in memory.items()})
        elif self.is_recurrent:
            self.rewards[s] = memory[REWARDS].to(self.device)
            for name, value in self.context.items():
                value[s] = memory[name].to(self.device)

    def observe(self, rewards: Tensor) -> None:
        """Store the raw rewards of the last actions, [S, batch]; finished episodes are ignored."""
        self.rewards = rewards

    def __call__(self, observations: Observations, step: int = 0) -> Tensor:
        if self.executor is None:
            actions, self.context = self._run(
                "act", observations, self.rewards, self.context, step=step
            )
            return actions
        rows = channels.map_channels(lambda x: x.flatten(0, 1).cpu().numpy(), observations)
        actions = self.executor.step(rows)
        return torch.from_numpy(actions).unflatten(0, self.shape).to(self.device)

    def _run(self, name: str, *inputs: Any, step: int = 0) -> Any:
        with torch.no_grad():
            return self.graphs[name](self.leaves, torch.tensor(step, device=self.device), *inputs)

    def _plan(self, observations: Observations, noise: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Predict chunks for the episodes `rows`; see `policies.chunks.Plan`.

        The graphs always compute all episodes. Inputs of the other episodes are zeros.
        """

        def all_rows(values: np.ndarray) -> Tensor:
            kind = np.uint8 if values.dtype == np.uint8 else np.float32
            array = np.zeros((self.shape[0] * self.batch, *values.shape[1:]), kind)
            array[rows] = values
            return torch.from_numpy(array).unflatten(0, self.shape).to(self.device)

        head: Any = self.module
        batch = channels.map_channels(all_rows, observations)
        if "plan" in self.graphs:
            chunks = self._run("plan", batch, all_rows(noise)).flatten(0, 1)
            return chunks.cpu().numpy()[rows]
        encoded = self._run("encode", batch)

        def network(x: Tensor, time: float) -> Tensor:
            times = torch.full(self.shape, time, device=self.device)
            return self._run("predict", encoded, x.unflatten(0, self.shape), times).flatten(0, 1)

        chunks = head.finish(sample(head.table, network, all_rows(noise).flatten(0, 1)))
        return chunks.cpu().numpy()[rows]
