"""Policies of all stacked seeds, evaluated in a single call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from offline_rl.algorithms.common.base import Network
from offline_rl.engine.trace import trace
from offline_rl.utils.errors import UserError
from offline_rl.utils.random import Random
from policies import channels
from policies.channels import Observations
from policies.episodes import MEMORY, RunningEpisodes
from policies.heads.head import Head
from policies.heads.schedules import sample
from policies.networks.precision import in_float32

EXPLORATION = 1 << 33  # separates the random numbers of exploration from those of updates
NO_COSTS = (
    "the environment returns no info 'cost', but a {kind} reads the costs of its episode. Add the "
    "cost to the info of every step."
)


class StackedPolicy:
    """The policies of S seeds; each acts in `batch` episodes in parallel.

    A call maps observations [S, batch, *obs] and a step to actions [S, batch, A]. It computes in
    float32, independent of the engine's precision.

    `reset` starts episodes, and `observe` passes the raw rewards and costs of the last actions.
    Both have an effect only for policies with a memory, an observation history, noise or chunks.
    The memory stays on the device.

    The policies act with the current parameters or, after `snapshot`, with a copy of them.
    """

    def __init__(
        self,
        module: Head,
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
        self.has_memory, self.needs_costs = module.has_memory, module.needs_costs
        self.shape = len(seeds), batch
        self._step, self._rows = 0, np.arange(len(seeds) * batch)
        self.live, structure = tree_flatten(params)
        self._structure = structure
        self.leaves = [x.to(device) for x in self.live]
        sizes = module.n_obs_steps, module.chunk_size, *module.noise_shape
        is_stateless = sizes == (1, 1) and not self.has_memory
        self._episodes: RunningEpisodes | None = None
        if not is_stateless:
            self._episodes = RunningEpisodes(
                self._decide,
                self._initial_memory,
                n_obs_steps=module.n_obs_steps,
                n_action_steps=module.n_action_steps,
                noise_shape=module.noise_shape,
                temporal_ensemble_coeff=module.temporal_ensemble_coeff,
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

        def decide(step: Tensor, params: Any, seed: Tensor, *inputs: Any) -> Any:
            network = Network(module, params)
            if explore:
                return network.explore(*inputs, Random(seed + EXPLORATION, step))
            return network.decide(*inputs)

        def encode(step: Tensor, params: Any, seed: Tensor, obs: Tensor) -> Tensor:
            return Network(module, params).encode(obs)

        def predict(step: Tensor, params: Any, seed: Tensor, *inputs: Tensor) -> Tensor:
            return Network(module, params).predict(*inputs)

        def example_history(shape: tuple[int, ...]) -> Tensor:
            dtype = torch.uint8 if channels.is_image(shape) else torch.float32
            return zeros(module.n_obs_steps, *shape).to(dtype)

        self.graphs: dict[str, Callable[..., Any]] = {}
        self._no_noise = zeros(0)
        example = channels.map_channels(example_history, observation_shape)
        if module.table is None:
            memory = {k: self._stack(v) for k, v in self._initial_memory(len(self._rows)).items()}
            noise = zeros(*(module.noise_shape or (0,)))
            self.graphs["decide"] = graph(decide, example, memory, noise)
        else:  # one graph for all denoising steps
            self.graphs["encode"] = graph(encode, example)
            encoded = self.graphs["encode"](self.leaves, first_step, example)
            x = zeros(*module.noise_shape[1:])
            self.graphs["predict"] = graph(predict, encoded, x, zeros())

    def snapshot(self) -> None:
        """Copy the current parameters, and act with them while training continues."""
        self.leaves = [x.detach().to(self.device, copy=True) for x in self.live]

    def weights(self, s: int) -> dict[str, np.ndarray]:
        """Return copies of the parameters with which the s-th seed's policy acts."""
        params = tree_unflatten(self.leaves, self._structure)
        return {name: x[s].detach().cpu().numpy().copy() for name, x in params.items()}

    def reset(self, seeds: np.ndarray | None = None, rows: np.ndarray | None = None) -> None:
        """Start new episodes.

        seeds: seeds of the episodes, [S * batch], for the noise; by default the index of each
        episode. rows: indices of the episodes that restart, [R], by default all; `seeds` then has
        R entries.
        """
        if self._episodes is not None:
            self._episodes.reset(self._rows % self.batch if seeds is None else seeds, rows)

    def memory(self, s: int) -> dict[str, Tensor]:
        """Return the state of the s-th seed's episodes, which includes the policy's memory.

        It is {} for a policy whose actions depend on the present observation only.
        """
        if self._episodes is None:
            return {}
        state = self._episodes.state(self._rows[s * self.batch : (s + 1) * self.batch])
        return {name: torch.as_tensor(x).cpu() for name, x in state.items()}

    def restore_memory(self, s: int, memory: Mapping[str, Tensor]) -> None:
        """Restore what `memory` returned. Call `reset` first."""
        if self._episodes is not None:
            state = {
                name: x.to(self.device) if name.startswith(f"{MEMORY}/") else x.numpy()
                for name, x in memory.items()
            }
            self._episodes.load(self._rows[s * self.batch : (s + 1) * self.batch], state)

    def observe(self, rewards: Tensor, costs: Tensor | None = None) -> None:
        """Store the raw rewards and costs of the last actions, [S, batch] each.

        Finished episodes are ignored. costs: None if the environment reports none. Raises UserError
        if the policy reads costs.
        """
        if self._episodes is None or not self.has_memory:
            return
        self._episodes.add_rewards(rewards.flatten().cpu().numpy())
        if self.needs_costs:
            if costs is None:
                raise UserError(NO_COSTS.format(kind=type(self.module).__name__))
            self._episodes.add_costs(costs.flatten().cpu().numpy())

    def __call__(self, observations: Observations, step: int = 0) -> Tensor:
        self._step = step
        if self._episodes is None:
            history = channels.map_channels(lambda x: x[:, :, None], observations)
            actions: Tensor = self._run("decide", history, {}, self._no_noise)[0][:, :, 0]
            return actions
        rows = channels.map_channels(lambda x: x.flatten(0, 1).cpu().numpy(), observations)
        return self._stack(self._episodes.step(rows))

    def _run(self, name: str, *inputs: Any) -> Any:
        step = torch.tensor(self._step, device=self.device)
        with torch.no_grad():
            return self.graphs[name](self.leaves, step, *inputs)

    def _stack(self, values: np.ndarray | Tensor) -> Tensor:
        """Return an array of all episodes, [S * batch, …], as a tensor [S, batch, …]."""
        return torch.as_tensor(values).to(self.device).unflatten(0, self.shape)

    def _initial_memory(self, count: int) -> dict[str, Tensor]:
        return {k: v.to(self.device) for k, v in self.module.initial_memory(count).items()}

    def _decide(
        self,
        observations: Observations,
        memory: Mapping[str, Any],
        noise: np.ndarray,
        rows: np.ndarray,
    ) -> tuple[np.ndarray, dict[str, Tensor]]:
        """Decide in the episodes `rows`; see `policies.episodes.Decide`.

        The graphs always compute all episodes. Inputs of the other episodes are zeros.
        """

        def all_rows(values: np.ndarray | Tensor) -> Tensor:
            values = torch.as_tensor(values).to(self.device)
            if len(rows) < len(self._rows):
                padded = values.new_zeros(len(self._rows), *values.shape[1:])
                padded[rows] = values
                values = padded
            return values.unflatten(0, self.shape)

        def due_rows(values: Tensor) -> Tensor:
            values = values.flatten(0, 1)
            return values if len(rows) == len(self._rows) else values[rows]

        inputs = channels.map_channels(all_rows, observations)
        numbers = all_rows(noise)
        if self.module.table is None:
            stacked = {name: all_rows(x) for name, x in memory.items()}
            chunks, stacked = self._run("decide", inputs, stacked, numbers)
            memory = {name: due_rows(x) for name, x in stacked.items()}
            return due_rows(chunks).cpu().numpy(), memory
        head: Any = self.module
        encoded = self._run("encode", inputs)

        def network(x: Tensor, time: float) -> Tensor:
            times = torch.full(self.shape, time, device=self.device)
            return self._run("predict", encoded, x.unflatten(0, self.shape), times).flatten(0, 1)

        chunks = head.finish(sample(head.table, network, numbers.flatten(0, 1)))
        return chunks.cpu().numpy()[rows], {}
