"""The policies of all stacked seeds as one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from policies.heads.schedules import sample
from policies.networks.precision import in_float32

REWARDS = "last_rewards"  # beside a head's own memory
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
        seed_of, now = seeds.to(device), torch.tensor(0, device=device)

        def graph(one: Callable[..., Any], *own: Any) -> Callable[..., Any]:
            """`one(step, params, seed, *own)` of every seed, for arguments [S, …] such as `own`."""

            def of_all(leaves: list[Tensor], step: Tensor, *own: Any) -> Any:
                arguments = (tree_unflatten(leaves, form), seed_of, *own)
                if len(seed_of) == 1:
                    alone = one(step, *tree_map(lambda x: x[0], arguments))
                    return tree_map(lambda x: x[None], alone)
                return vmap(one, in_dims=(None, *(0 for _ in arguments)))(step, *arguments)

            with in_float32(module), torch.no_grad():
                return traced(of_all, self.leaves, now, *own)

        def zeros(*sizes: int) -> Tensor:
            return torch.zeros(*self.shape, *sizes, device=device)

        def act(step: Tensor, params: Any, seed: Tensor, seen: Tensor, *more: Any) -> Any:
            network, (rewards, context) = Network(module, params), more
            if self.remembers:
                return network.step(seen, rewards, context)
            if explore:
                return network.explore(seen, Random(seed + EXPLORATION, step)), context
            return network.act(seen), context

        def plan(step: Tensor, params: Any, seed: Tensor, seen: Tensor, noise: Tensor) -> Tensor:
            return Network(module, params).plan(seen, noise)

        def seen(*before: int) -> Any:
            def one(shape: tuple[int, ...]) -> Tensor:
                dtype = torch.uint8 if channels.is_picture(shape) else torch.float32
                return zeros(*before, *shape).to(dtype)

            return channels.each(one, observation_shape)

        def encode(step: Tensor, params: Any, seed: Tensor, seen: Tensor) -> Tensor:
            return Network(module, params).encode(seen)

        def predict(step: Tensor, params: Any, seed: Tensor, *own: Tensor) -> Tensor:
            return Network(module, params).predict(*own)

        self.graphs: dict[str, Callable[..., Any]] = {}
        if self.queue is None:
            example = seen()
            self.graphs["act"] = graph(act, example, self.rewards, self.context)
        elif hasattr(module, "table"):  # a graph of one round, however many there are
            example = seen(head.n_obs_steps)
            self.graphs["encode"] = graph(encode, example)
            own = self.graphs["encode"](self.leaves, now, example), zeros(*head.noise_shape[1:])
            self.graphs["predict"] = graph(predict, *own, zeros())
        else:
            example = seen(head.n_obs_steps)
            self.graphs["plan"] = graph(plan, example, zeros(*(head.noise_shape or (0,))))

    def snapshot(self) -> None:
        """Keeps the policies as they are now, for calls while they go on learning."""
        self.leaves = [x.detach().to(self.device, copy=True) for x in self.live]

    def reset(self, seeds: np.ndarray | None = None, rows: np.ndarray | None = None) -> None:
        """New episodes; seeds: theirs, [S * batch], default: their places. Noise is made of them.

        rows: these alone begin, [R], from so many seeds; the others go on.
        """
        if self.queue is not None:
            own = np.tile(np.arange(self.batch), self.shape[0]) if seeds is None else seeds
            self.queue.reset(own, rows)
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
        """Return what the s-th seed's running episodes are continued from; empty if nothing is."""
        if self.queue is not None:
            rows = slice(s * self.batch, (s + 1) * self.batch)
            return {name: torch.from_numpy(x) for name, x in self.queue.state(rows).items()}
        parts = self.context | {REWARDS: self.rewards} if self.remembers else {}
        return {name: x[s].cpu().contiguous().clone() for name, x in parts.items()}

    def recall(self, s: int, memory: Mapping[str, Tensor]) -> None:
        """Put back what `memory` gave, after `reset`."""
        if self.queue is not None:
            rows = slice(s * self.batch, (s + 1) * self.batch)
            self.queue.load(rows, {name: x.numpy() for name, x in memory.items()})
        elif self.remembers:
            self.rewards[s] = memory[REWARDS].to(self.device)
            for name, value in self.context.items():
                value[s] = memory[name].to(self.device)

    def observe(self, rewards: Tensor) -> None:
        """rewards: [S, batch], raw, of the last actions; any number where an episode is over."""
        self.rewards = rewards

    def __call__(self, observations: Observations, step: int = 0) -> Tensor:
        if self.queue is None:
            actions, self.context = self._run(
                "act", observations, self.rewards, self.context, step=step
            )
            return actions
        rows = channels.each(lambda x: x.flatten(0, 1).cpu().numpy(), observations)
        taken = self.queue.step(rows)
        return torch.from_numpy(taken).unflatten(0, self.shape).to(self.device)

    def _run(self, name: str, *own: Any, step: int = 0) -> Any:
        with torch.no_grad():
            return self.graphs[name](self.leaves, torch.tensor(step, device=self.device), *own)

    def _plan(self, observations: Observations, noise: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """See `policies.chunks.Plan`. Graphs are of all rows: those not asked for are zeros."""

        def whole(values: np.ndarray) -> Tensor:
            kind = np.uint8 if values.dtype == np.uint8 else np.float32
            everywhere = np.zeros((self.shape[0] * self.batch, *values.shape[1:]), kind)
            everywhere[rows] = values
            return torch.from_numpy(everywhere).unflatten(0, self.shape).to(self.device)

        head: Any = self.module
        everything = channels.each(whole, observations)
        if "plan" in self.graphs:
            chunks = self._run("plan", everything, whole(noise)).flatten(0, 1)
            return chunks.cpu().numpy()[rows]
        seen = self._run("encode", everything)

        def network(x: Tensor, time: float) -> Tensor:
            times = torch.full(self.shape, time, device=self.device)
            return self._run("predict", seen, x.unflatten(0, self.shape), times).flatten(0, 1)

        chunks = head.finished(sample(head.table, network, whole(noise).flatten(0, 1)))
        return chunks.cpu().numpy()[rows]
