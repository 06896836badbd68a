"""The engine: runs an algorithm's update many times, fast, for several seeds at once.

The update of one seed is traced into a graph of tensor operations: sampling, losses, gradients,
optimisers and targets of one whole period, with a leading axis for S stacked seeds
(`torch.func.vmap`) and the new state copied into the old one's storage. That graph is run as it is
(eager) or compiled; on a GPU it is replayed as a CUDA graph. Nothing in it waits for the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten, tree_map, tree_map_with_path, tree_unflatten

from offline_rl.algorithms.common.base import Algorithm, State, check_stackable
from offline_rl.engine.acting import StackedPolicy
from offline_rl.engine.compile import captured, compiled
from offline_rl.engine.trace import traced
from offline_rl.replay.batch import Source
from offline_rl.utils import hardware
from offline_rl.utils.random import Random
from offline_rl.utils.trees import flatten
from policies.networks.precision import set_compute_dtype

Precision = Literal["fp32", "tf32", "bf16"]
Compile = Literal["auto", "always", "never"]
COUNTS = ("steps", "update")  # the state's leaves that are the same for all stacked seeds


class Engine:
    """S seeds of one algorithm, trained together on one source of batches."""

    def __init__(
        self,
        make: Callable[[int], Algorithm],
        seeds: Sequence[int],
        source: Source,
        *,
        batch_size: int = 256,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
        compile: bool = False,
        values: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """make(s): the algorithm of the s-th seed; initialised by that seed alone.

        values: float fields of the config with one value for each seed, trained side by side.
        """
        torch.set_flush_denormal(True)  # dead units' moments decay to numbers 100 times slower
        if torch.device(device).type == "cpu":
            hardware.keep_memory()
        self.seeds, self.batch_size = list(seeds), batch_size
        self.device, self.precision, self.compiled = torch.device(device), precision, compile
        self.compile_seconds, self.metric_names = 0.0, dict[str, list[str]]()
        algorithms, trees = [], []
        for s, seed in enumerate(self.seeds):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                algorithms.append(make(s))
            counters = {"seed": torch.tensor(seed), "update": torch.tensor(0)}
            trees.append(algorithms[-1].initial() | {"counters": counters})
        self.algorithm = algorithms[0]
        self.source = self.algorithm.source(source)
        check_stackable(type(self.algorithm.cfg), values or {})
        self.state = tree_map(lambda *xs: torch.stack(xs).to(self.device), *trees)
        self.values = {k: torch.tensor(v, device=self.device) for k, v in (values or {}).items()}
        set_precision(self.algorithm, precision, self.device)
        self._traced: dict[str, GraphModule] = {}
        self._programs: dict[str, Callable[[], Tensor]] = {}
        self._totals: dict[str, Tensor] = {}
        self._calls: dict[str, int] = {}

    @property
    def updates(self) -> int:
        """Updates done so far, all phases together. Raises ValueError where seeds differ in it."""
        done = self.state["counters"]["update"].tolist()
        if len(set(done)) > 1:
            raise ValueError(f"seeds {self.seeds} have done {done} updates: not to be stacked")
        return done[0]

    def run(self, num_updates: int, phase: str = "update") -> None:
        """num_updates more updates of every seed; a multiple of the algorithm's period."""
        period = self.algorithm.period
        if num_updates % period:
            raise ValueError(f"{num_updates} updates do not divide into periods of {period}")
        program, ready = self.program(phase), getattr(self.source, "ready", None)
        first = self.updates if ready else 0
        for done in range(0, num_updates, period):
            if ready:
                ready(first + done)
            self._totals[phase] += program()
        self._calls[phase] += num_updates // period

    def metrics(self, phase: str = "update") -> dict[str, np.ndarray]:
        """The mean of each metric since it was last asked for, per seed. Waits for the device."""
        calls, total = self._calls.get(phase, 0), self._totals.get(phase)
        if total is None or not calls:
            return {}
        mean = (total / calls).cpu().numpy()  # [S, metrics]
        total.zero_()
        self._calls[phase] = 0
        return {name: mean[:, j] for j, name in enumerate(self.metric_names[phase])}

    def finite(self) -> np.ndarray:
        """Whether all of a seed's parameters are numbers, [S]. Waits for the device."""
        leaves = flatten(self.state["params"]).values()
        sound = torch.stack([x.reshape(len(x), -1).isfinite().all(1) for x in leaves])
        return sound.all(0).cpu().numpy()

    def program(self, phase: str = "update") -> Callable[[], Tensor]:
        """One period of updates as a call without arguments; -> the metrics' means [S, metrics]."""
        if phase not in self._programs:
            started = time.perf_counter()
            self._programs[phase] = self._build(phase, self.compiled)
            self._totals[phase] = torch.zeros(
                len(self.seeds), len(self.metric_names[phase]), device=self.device
            )
            self._calls[phase] = 0
            self.compile_seconds += time.perf_counter() - started
        return self._programs[phase]

    def _one_seed(self, phase: str) -> Callable[[Any, Any, Any], tuple[Any, Tensor]]:
        """A period of updates of one seed: (state, values, data) -> (state, metrics)."""

        def program(tree: Any, values: Any, data: Any) -> tuple[Any, Tensor]:
            algorithm = self.algorithm.with_values(values)
            params, optimiser, counters = tree["params"], tree["optimiser"], tree["counters"]
            update, sums = counters["update"], dict[str, list[Tensor]]()
            for i in range(algorithm.period):
                random = Random(counters["seed"], update + i)
                batch = self.source.sample(data, random, self.batch_size, algorithm.cfg.discount)
                state = State(algorithm, params, optimiser, random)
                state, metrics = getattr(algorithm, phase)(state, batch, i)
                params, optimiser = state.params, state.optimiser
                for name, value in metrics.items():
                    sums.setdefault(name, []).append(value)
            self.metric_names[phase] = sorted(sums)
            means = [torch.stack(sums[name]).mean() for name in sorted(sums)]
            counters = {"seed": counters["seed"], "update": update + algorithm.period}
            tree = {"params": params, "optimiser": optimiser, "counters": counters}
            return tree, torch.stack(means)

        return program

    def _trace(self, phase: str) -> tuple[GraphModule, list[Tensor], list[Tensor]]:
        """The period's graph and what it is called with: the state's leaves, values and data."""
        one, leaves, form = self._one_seed(phase), *tree_flatten(self.state)
        inputs, inputs_form = tree_flatten((self.values, self.source.tensors()))

        def stacked(leaves: list[Tensor], inputs: list[Tensor]) -> Tensor:
            tree = tree_unflatten(leaves, form)
            values, data = tree_unflatten(inputs, inputs_form)
            if len(self.seeds) == 1:
                tree, values, data = tree_map(lambda x: x[0], (tree, values, data))
                new, metrics = tree_map(lambda x: x[None], one(tree, values, data))
            else:  # shared data has a leading axis of 1; counts are equal, so that what is made of
                # them is one number for all seeds, and an optimiser one pass over their memory
                axes = (
                    tree_map_with_path(lambda at, _: None if at[-1].key in COUNTS else 0, tree),
                    tree_map(lambda _: 0, values),
                    tree_map(lambda x: 0 if len(x) == len(self.seeds) else None, data),
                )
                arguments = tree_map(
                    lambda x, axis: x[0] if axis is None else x, (tree, values, data), axes
                )
                new, metrics = vmap(one, in_dims=axes)(*arguments)
            for old, value in zip(leaves, tree_flatten(new)[0], strict=True):
                if old is not value:
                    old.copy_(value)
            return metrics

        if phase not in self._traced:
            with self._untaught(), torch.no_grad():
                graph = traced(stacked, leaves, inputs)
            graph.graph.eliminate_dead_code()
            graph.recompile()
            self._traced[phase] = graph
        return self._traced[phase], leaves, inputs

    def _build(self, phase: str, compile: bool) -> Callable[[], Tensor]:
        graph, leaves, inputs = self._trace(phase)
        run: Callable[..., Tensor] = graph
        with self._untaught(), torch.no_grad():
            if compile:
                both = enumerate([*leaves, *inputs])
                counts = {k for k, x in both if x.dtype == torch.int64 and x.dim() == 1}
                run = compiled(graph, counts, len(self.seeds))
                run(leaves, inputs)
            if self.device.type == "cuda":
                run = captured(run, leaves, inputs)

        def program() -> Tensor:
            with torch.no_grad():
                return run(leaves, inputs)

        return program

    @contextmanager
    def _untaught(self) -> Iterator[None]:
        """Puts the state back as it was: what is learnt inside is thrown away."""
        leaves = tree_flatten(self.state)[0]
        before = [x.clone() for x in leaves]
        yield
        for leaf, value in zip(leaves, before, strict=True):
            leaf.copy_(value)

    def eager_seconds(self, calls: int = 3) -> float:
        """Seconds per update of the uncompiled program."""
        return self._seconds(self._build("update", False), calls) / self.algorithm.period

    def choose_threads(self, cores: int) -> int:
        """1 thread or `cores`, whichever runs the program faster; torch is left at that number."""
        program, options = self.program(), sorted({1, cores})
        seconds = dict.fromkeys(options, float("inf"))
        for _ in range(3):
            for threads in options:
                torch.set_num_threads(threads)
                seconds[threads] = min(seconds[threads], self._seconds(program, 5))
        best = min(seconds, key=seconds.__getitem__)
        torch.set_num_threads(best)
        return best

    def _seconds(self, program: Callable[[], Tensor], calls: int) -> float:
        """Of one call."""
        with self._untaught():
            program()
            started = time.perf_counter()
            for _ in range(calls):
                program()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            return (time.perf_counter() - started) / calls

    def stacked_policy(
        self, batch: int, *, explore: bool = False, device: torch.device | None = None
    ) -> StackedPolicy:
        """The policies of all seeds, for `batch` episodes of each.

        explore: with the algorithm's own noise, which is a function of the seed and the step alone;
        otherwise deterministic. device: where they act, if not where they learn.
        """
        name = self.algorithm.policy
        return StackedPolicy(
            self.algorithm.modules[name],
            self.state["params"][name],
            self.state["counters"]["seed"],
            self.algorithm.spec.observation_shape,
            batch,
            explore=explore,
            device=device or self.device,
        )

    def seed_state(self, s: int) -> dict[str, Tensor]:
        """The s-th seed's whole state, flat: `params/critic/net.weights.0` and so on."""
        return flatten(tree_map(lambda x: x[s].detach().cpu().clone(), self.state))

    def load_seed_state(self, s: int, flat: dict[str, Tensor]) -> None:
        """Puts a state of `seed_state` in the s-th place. Raises ValueError naming what differs."""
        own = flatten(self.state)
        if missing := own.keys() ^ flat.keys():
            raise ValueError(f"the checkpoint's tensors differ in {sorted(missing)[:3]}")
        for name, value in flat.items():
            if own[name][s].shape != value.shape or own[name].dtype != value.dtype:
                raise ValueError(
                    f"{name} is {tuple(value.shape)} {value.dtype} in the checkpoint, "
                    f"{tuple(own[name][s].shape)} {own[name].dtype} here"
                )
            own[name][s] = value.to(self.device)


def set_precision(algorithm: Algorithm, precision: Precision, device: torch.device) -> None:
    """Matrix products in `precision`; weights, optimiser and everything else stay float32."""
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    for module in algorithm.modules.values():
        set_compute_dtype(module, dtype)
