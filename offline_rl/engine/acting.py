"""The policies of all stacked seeds as one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from offline_rl.algorithms.common.base import Network
from offline_rl.engine.trace import traced
from offline_rl.utils.random import Random
from policies import channels
from policies.channels import Observations
from policies.chunks import Queue
from policies.networks.precision import in_float32

EXPLORATION = 1 << 33  # keeps the noise of acting apart from the updates'


class StackedPolicy:
    """(observations [S, batch, O], step) -> actions [S, batch, A].

    Float32 whatever the engine's precision. Of a policy with memory (`heads.head.Recurrent`) this
    keeps the memory on the device: `reset` begins `batch` new episodes of each seed, `observe`
    tells the raw rewards of the last actions. One that answers with chunks (`heads.head.Planner`)
    is told the episodes' seeds by `reset`. Others need neither.

    It acts as the policies are at the moment, or, after `snapshot`, as they were then.
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
        """params: of `module`, [S, …] each. seeds: [S]. The rest is `Engine.stacked_policy`'s.

        observation_shape: or one for each channel by name.
        """
        self.module, self.device, self.batch = module, device, batch
        self.shape = (len(seeds), batch)
        self.live, form = tree_flatten(params)
        self.leaves = [x.to(device) for x in self.live]
        seed_of = seeds.to(device)
        plans, before = hasattr(module, "plan"), list[int]()
        told = torch.zeros(self.shape, device=device)  # what a policy takes beside observations
        self.queue: Queue | None = None
        if plans:
            head: Any = module
            shape = tuple(head.noise_shape)
            self.queue = Queue(
                self._plan, history=head.history, executed=head.executed, noise_shape=shape
            )
            before, told = [head.history], torch.zeros(*self.shape, *(shape or (0,)))
        self.reset()

        def one(
            step: Tensor,
            params: Any,
            seed: Tensor,
            observations: Tensor,
            told: Tensor,
            context: Any,
        ) -> tuple[Tensor, Any]:
            network = Network(self.module, params)
            if plans:
                return network.plan(observations, told), context
            if hasattr(self.module, "step"):
                return network.step(observations, told, context)
            if explore:
                return network.explore(observations, Random(seed + EXPLORATION, step)), context
            return network.act(observations), context

        def act(leaves: list[Tensor], step: Tensor, *own: Any) -> tuple[Tensor, Any]:
            arguments = (tree_unflatten(leaves, form), seed_of, *own)
            if len(seed_of) == 1:
                alone = one(step, *tree_map(lambda x: x[0], arguments))
                return tree_map(lambda x: x[None], alone)
            return vmap(one, in_dims=(None, 0, 0, 0, 0, 0))(step, *arguments)

        def zeros(shape: tuple[int, ...]) -> Tensor:
            dtype = torch.uint8 if channels.is_picture(shape) else torch.float32
            return torch.zeros(*self.shape, *before, *shape, dtype=dtype, device=device)

        example = channels.each(zeros, observation_shape)
        now = torch.tensor(0, device=device)
        with in_float32(module), torch.no_grad():
            self.graph = traced(act, self.leaves, now, example, told.to(device), self.context)

    def snapshot(self) -> None:
        """Keeps the policies as they are now, for calls while they go on learning."""
        self.leaves = [x.detach().to(self.device, copy=True) for x in self.live]

    def reset(self, seeds: np.ndarray | None = None, rows: np.ndarray | None = None) -> None:
        """New episodes; seeds: theirs, [S * batch], default: their places. Noise is made of them.

        rows: of a policy that answers with chunks these alone begin, [R], from so many seeds.
        """
        if self.queue is not None:
            own = np.tile(np.arange(self.batch), self.shape[0]) if seeds is None else seeds
            self.queue.reset(own, rows)
        self.rewards = torch.zeros(self.shape, device=self.device)
        context = self.module.reset(self.batch) if hasattr(self.module, "reset") else {}  # type: ignore[operator]
        self.context = {
            k: v.to(self.device).expand(self.shape[0], *v.shape).clone() for k, v in context.items()
        }

    def observe(self, rewards: Tensor) -> None:
        """rewards: [S, batch], raw, of the last actions; any number where an episode is over."""
        self.rewards = rewards

    def __call__(self, observations: Observations, step: int = 0) -> Tensor:
        if self.queue is None:
            return self._answer(observations, self.rewards, step)
        rows = channels.each(lambda x: x.flatten(0, 1).cpu().numpy(), observations)
        actions = self.queue.step(rows)
        return torch.from_numpy(actions).unflatten(0, self.shape).to(self.device)

    def _answer(self, observations: Observations, told: Tensor, step: int = 0) -> Tensor:
        with torch.no_grad():
            now = torch.tensor(step, device=self.device)
            answer, self.context = self.graph(self.leaves, now, observations, told, self.context)
        return answer

    def _plan(self, observations: Observations, noise: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """See `policies.chunks.Plan`. The graph is of all rows: those not asked for are zeros."""

        def whole(values: np.ndarray) -> Tensor:
            kind = np.uint8 if values.dtype == np.uint8 else np.float32
            everywhere = np.zeros((self.shape[0] * self.batch, *values.shape[1:]), kind)
            everywhere[rows] = values
            return torch.from_numpy(everywhere).unflatten(0, self.shape).to(self.device)

        answer = self._answer(channels.each(whole, observations), whole(noise))
        return answer.flatten(0, 1).cpu().numpy()[rows]
