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
from policies.chunks import Queue
from policies.heads.schedules import sample
from policies.networks.precision import in_float32

REWARDS = "last_rewards"  # saved together with a head's memory
EXPLORATION = 1 << 33  # separates the random numbers of exploration from those of updates


class StackedPolicy:
    """The policies of S seeds, which act in `batch` episodes each.

    Called with observations [S, batch, O] and a step, it returns actions [S, batch, A], in float32
    whatever the engine's precision. A policy with memory (`heads.head.Recurrent`) has its memory
    here, on the device: `reset` starts `batch` new episodes of each seed, and `observe` takes the
    raw rewards of the last actions. A policy that predicts chunks (`heads.head.Planner`) takes the
    episodes' seeds by `reset`. Other policies need neither.

    It uses the current parameters or, after `snapshot`, those of that time.
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

        params: parameters of `module`, [S, …] each. seeds: [S]. observation_shape: a shape, or a
        shape for each channel by name. Other arguments: see `Engine.stacked_policy`.
        """
        self.module, self.device, self.batch = module, device, batch
        self.remembers = hasattr(module, "step")
        self.shape = (len(seeds), batch)
        self.live, form = tree_flatten(params)
        self.leaves = [x.to(device) for x in self.live]
        self.queue: Queue | None = None
        head: Any = module
        if hasattr(module, "plan"):
            sizes: dict[str, Any] = {
                "n_obs_steps": head.n_obs_steps,
                "n_action_steps": head.n_action_steps,
            }
            sizes |= {"noise_shape": tuple(head.noise_shape)}
            self.queue = Queue(
                self._plan,
                **sizes,
                temporal_ensemble_coeff=getattr(head, "temporal_ensemble_coeff", None),
            )
        self.reset()
        seed_of, first_step = seeds.to(device), torch.tensor(0, device=device)

        def graph(one: Callable[..., Any], *inputs: Any) -> Callable[..., Any]:
            """Return the graph of `one(step, params, seed, *inputs)` for all seeds.

            inputs: examples of the arguments, [S, …] each.
            """

            def of_all(leaves: list[Tensor], step: Tensor, *inputs: Any) -> Any:
                arguments = (tree_unflatten(leaves, form), seed_of, *inputs)
                if len(seed_of) == 1:
                    result = one(step, *tree_map(lambda x: x[0], arguments))
                    return tree_map(lambda x: x[None], result)
                return vmap(one, in_dims=(None, *(0 for _ in arguments)))(step, *arguments)

            with in_float32(module), torch.no_grad():
                return trace(of_all, self.leaves, first_step, *inputs)

        def zeros(*sizes: int) -> Tensor:
            return torch.zeros(*self.shape, *sizes, device=device)

        def act(step: Tensor, params: Any, seed: Tensor, obs: Tensor, *more: Any) -> Any:
            network, (rewards, context) = Network(module, params), more
            if self.remembers:
                return network.step(obs, rewards, context)
            if explore:
                return network.explore(obs, Random(seed + EXPLORATION, step)), context
            return network.act(obs), context

        def plan(step: Tensor, params: Any, seed: Tensor, obs: Tensor, noise: Tensor) -> Tensor:
            return Network(module, params).plan(obs, noise)

        def example_observations(*before: int) -> Any:
            def one(shape: tuple[int, ...]) -> Tensor:
                dtype = torch.uint8 if channels.is_image(shape) else torch.float32
                return zeros(*before, *shape).to(dtype)

            return channels.map_channels(one, observation_shape)

        def encode(step: Tensor, params: Any, seed: Tensor, obs: Tensor) -> Tensor:
            return Network(module, params).encode(obs)

        def predict(step: Tensor, params: Any, seed: Tensor, *inputs: Tensor) -> Tensor:
            return Network(module, params).predict(*inputs)

        self.graphs: dict[str, Callable[..., Any]] = {}
        if self.queue is None:
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

        seeds: the episodes' seeds, [S * batch], which determine the sampling noise; default: their
        indices. rows: indices of the episodes that restart, [R], with R seeds; default: all.
        """
        if self.queue is not None:
            all_seeds = np.tile(np.arange(self.batch), self.shape[0]) if seeds is None else seeds
            self.queue.reset(all_seeds, rows)
        start = self.module.reset(self.batch) if self.remembers else {}  # type: ignore[operator]
        fresh = {
            k: v.to(self.device).expand(self.shape[0], *v.shape).clone() for k, v in start.items()
        }
        if rows is None:
            self.rewards, self.context = torch.zeros(self.shape, device=self.device), fresh
            return
        new = torch.zeros(self.shape, dtype=torch.bool)
        new.view(-1)[torch.from_numpy(rows)] = True
        new = new.to(self.device)
        self.rewards = self.rewards.masked_fill(new, 0)
        for name, value in fresh.items():
            mask = new.reshape(*self.shape, *[1] * (value.dim() - 2))
            self.context[name] = torch.where(mask, value, self.context[name])

    def memory(self, s: int) -> dict[str, Tensor]:
        """Return the memory of the s-th seed's running episodes; empty for policies without one."""
        if self.queue is not None:
            rows = slice(s * self.batch, (s + 1) * self.batch)
            return {name: torch.from_numpy(x) for name, x in self.queue.state(rows).items()}
        parts = self.context | {REWARDS: self.rewards} if self.remembers else {}
        return {name: x[s].cpu().contiguous().clone() for name, x in parts.items()}

    def restore_memory(self, s: int, memory: Mapping[str, Tensor]) -> None:
        """Restore the result of `memory`, after `reset`."""
        if self.queue is not None:
            rows = slice(s * self.batch, (s + 1) * self.batch)
            self.queue.load(rows, {name: x.numpy() for name, x in memory.items()})
        elif self.remembers:
            self.rewards[s] = memory[REWARDS].to(self.device)
            for name, value in self.context.items():
                value[s] = memory[name].to(self.device)

    def observe(self, rewards: Tensor) -> None:
        """Take the raw rewards of the last actions, [S, batch]; ended episodes are ignored."""
        self.rewards = rewards

    def __call__(self, observations: Observations, step: int = 0) -> Tensor:
        if self.queue is None:
            actions, self.context = self._run(
                "act", observations, self.rewards, self.context, step=step
            )
            return actions
        rows = channels.map_channels(lambda x: x.flatten(0, 1).cpu().numpy(), observations)
        actions = self.queue.step(rows)
        return torch.from_numpy(actions).unflatten(0, self.shape).to(self.device)

    def _run(self, name: str, *inputs: Any, step: int = 0) -> Any:
        with torch.no_grad():
            return self.graphs[name](self.leaves, torch.tensor(step, device=self.device), *inputs)

    def _plan(self, observations: Observations, noise: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Predict chunks for some rows; see `policies.chunks.Plan`.

        Graphs compute all rows. The inputs of other rows are zeros.
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
