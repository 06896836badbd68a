"""The engine: runs an algorithm's updates for several seeds at the same time.

The updates of one period are traced into a graph of tensor operations: sampling, losses, gradients,
optimizers and target networks. `torch.func.vmap` adds a leading axis for S stacked seeds, and the
new state is copied into the storage of the old state. The graph runs uncompiled or compiled; on a
GPU it is replayed as a CUDA graph. No operation of the graph waits for the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.fx import GraphModule
from torch.utils._pytree import (
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_map_with_path,
    tree_unflatten,
)

from offline_rl.algorithms.common.base import Algorithm, State
from offline_rl.algorithms.common.config import check_stackable
from offline_rl.engine import verify
from offline_rl.engine.acting import StackedPolicy
from offline_rl.engine.compile import Code, capture_graph, compile_graph
from offline_rl.engine.cost import UpdateCost, count_cost
from offline_rl.engine.trace import trace
from offline_rl.replay.batch import Source, Sources, require
from offline_rl.utils import hardware
from offline_rl.utils.random import Random
from offline_rl.utils.trees import flatten
from policies.networks.precision import set_compute_dtype

if TYPE_CHECKING:
    from offline_rl.engine.ranks import Ranks

Precision = Literal["fp32", "tf32", "bf16"]
# Key of the counter of updates in all phases except the current one. Checkpoints do not contain it;
# it is computed from `Engine.done`.
OTHER_PHASES = "elsewhere"
COUNTS = ("steps", "update", OTHER_PHASES)  # leaves with equal values for all stacked seeds
MAX_UNROLLED = 4  # longer periods are split into programs of one update each
APPLY_STREAM = 1 << 35  # separates the random numbers of `apply` from those of updates
REPEAT_STREAM = 1 << 36  # separates those of several calls between two updates
Positions = tuple[int, ...]  # indices of updates within a period
SeedFunction = Callable[[Any, Any, Any], Any]  # (state, values, data) of one seed -> results
# Replacement of a program that failed its check. A program may also fail to compile on a GPU.
Fallback = Literal["avx2", "separate", "uncompiled"]
REMEDIES = {"avx2": "for AVX2", "separate": "with separate kernels"}


class SampleRequest(NamedTuple):
    """A request for a batch of `rows` rows from the source of a phase."""

    phase: str
    rows: int


@dataclass
class Program:
    """One or more updates of all seeds in a single call, with accumulated metrics."""

    run: Callable[[], Tensor]  # returns the mean of each metric over the updates, [S, metrics]
    metrics: list[str]
    total: Tensor  # sum over the calls since `Engine.metrics` was last called, [S, metrics]
    calls: int = 0


class Engine:
    """S seeds of one algorithm, trained together on one source of batches."""

    def __init__(
        self,
        make: Callable[[int], Algorithm],
        seeds: Sequence[int],
        sources: Source | Sources,
        *,
        batch_size: int = 256,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
        compile: bool = False,
        values: Mapping[str, Sequence[float]] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Create the state of all seeds.

        make(s) creates the algorithm of the s-th seed. Its networks are built with torch's random
        generator seeded with that seed. sources: training data of the phases by name; a single
        source is the offline data. values: float fields of the config that differ between seeds,
        {field: [S values]}. ranks: the processes that share the batches of a single seed; each uses
        its slice of `batch_size` rows, which must be a multiple of their number.
        """
        torch.set_flush_denormal(True)  # denormal moments of dead units are 100 times slower
        if torch.device(device).type == "cpu":
            hardware.keep_freed_memory()
        self.seeds, self.batch_size = list(seeds), batch_size
        self.device, self.precision, self.compiled = torch.device(device), precision, compile
        # Use CUDA graphs. A profiler shows a replayed graph as a single call.
        self.capture = self.device.type == "cuda"
        self.uncompiled_phases: Collection[str] = ()  # phases too short to be worth compiling
        self.compile_seconds = 0.0
        self.fallbacks: dict[str, Fallback] = {}  # program -> fallback; stored in the run's folder
        self.log: Callable[[str], object] = lambda _: None  # prints a message before slow steps
        # Creates a context manager that is active during each compilation.
        self.compiling: Callable[[], AbstractContextManager[None]] = nullcontext
        algorithms, trees = [], []
        for s, seed in enumerate(self.seeds):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                algorithms.append(make(s))
                tree = algorithms[-1].initial()  # builds the networks
            counters = {"seed": torch.tensor(seed), "update": torch.tensor(0)}
            counters[OTHER_PHASES] = torch.tensor(0)
            trees.append(tree | {"counters": counters})
        self.algorithm, self.ranks = algorithms[0], ranks
        if ranks is not None:
            self.algorithm.average = ranks.average
        self.sources = sources if isinstance(sources, Mapping) else {"offline": sources}
        check_stackable(type(self.algorithm.cfg), values or {})
        self.state = tree_map(lambda *xs: torch.stack(xs).to(self.device), *trees)
        self.values = {k: torch.tensor(v, device=self.device) for k, v in (values or {}).items()}
        set_precision(self.algorithm, precision, self.device)
        # Number of updates of each phase so far. Checkpoints contain `done` and the state.
        # `_entered` is the current phase. The state's counter OTHER_PHASES is the number of updates
        # in all phases except `_entered`.
        self.done: dict[str, int] = {}
        self._entered: str | None = None
        self._updates: int | None = 0  # number of updates of all phases; None: read it from `state`
        self._phases: dict[str, tuple[Algorithm, Source]] = {}
        self._traced: dict[tuple[str, Positions], GraphModule] = {}
        self._programs: dict[tuple[str, Positions], Program] = {}
        self._applied: dict[tuple[str, str, SampleRequest | None], GraphModule] = {}

    @property
    def updates(self) -> int:
        """Number of updates so far, over all phases. Raises ValueError if the seeds differ."""
        if self._updates is None:
            counts = self.state["counters"]["update"].tolist()
            if len(set(counts)) > 1:
                raise ValueError(
                    f"seeds {self.seeds} have done {counts} updates and cannot be trained "
                    "together. Load checkpoints with the same number of updates."
                )
            self._updates = counts[0]
        return self._updates

    def for_phase(self, phase: str) -> tuple[Algorithm, Source]:
        """Return the algorithm with the config of a phase, and the source of its batches."""
        if phase not in self._phases:
            algorithm = self.algorithm.for_phase(phase)
            self._phases[phase] = algorithm, algorithm.source(phase, self.sources)
        return self._phases[phase]

    def period(self, phase: str = "update") -> int:
        """Return the number of updates after which the sequence of computations repeats."""
        return self.for_phase(phase)[0].period

    def run(self, num_updates: int, phase: str = "update") -> None:
        """Run `num_updates` more updates of every seed, a multiple of the phase's period."""
        period = self.period(phase)
        if num_updates % period:
            raise ValueError(
                f"{num_updates} updates are not a multiple of the period {period}. Use a multiple "
                f"of {period}."
            )
        programs, source = self.programs(phase), self.for_phase(phase)[1]
        self._enter(phase)
        for _ in range(0, num_updates, period):
            source.prefetch(self.updates)
            for program in programs:
                program.total += program.run()
                program.calls += 1
            self.done[phase] = self.done.get(phase, 0) + period
            self._updates = self.updates + period

    def has_converged(self, phase: str) -> bool:
        """Return True if more updates of `phase` change no seed. Waits for the device."""
        return bool(self.for_phase(phase)[0].has_converged(phase, self.state["params"]).all())

    def skip(self, num_updates: int, phase: str) -> None:
        """Count `num_updates` of `phase` as done without running them.

        Random numbers depend on the number of updates. Therefore, a run that skips updates without
        effect is equal to a run that computes them.
        """
        updates = self.updates + num_updates
        self.done[phase] = self.done.get(phase, 0) + num_updates
        self.state["counters"]["update"].fill_(updates)
        self._updates, self._entered = updates, None

    def _enter(self, phase: str) -> None:
        """Make `State.done` count the updates of `phase`."""
        if phase != self._entered:
            other_updates = self.updates - self.done.get(phase, 0)
            self.state["counters"][OTHER_PHASES].fill_(other_updates)
            self._entered = phase

    def metrics(self, phase: str = "update") -> dict[str, np.ndarray]:
        """Return the mean of each metric since the last call, per seed. Waits for the device."""
        sums: dict[str, list[Any]] = {}
        for (program_phase, _), program in self._programs.items():
            if program_phase != phase or not program.calls:
                continue
            total = program.total.cpu().numpy().copy()  # [S, metrics]
            for j, name in enumerate(program.metrics):
                sums.setdefault(name, []).append((total[:, j], program.calls))
            program.total.zero_()
            program.calls = 0
        return {name: sum(t for t, _ in x) / sum(n for _, n in x) for name, x in sums.items()}

    def metric_names(self, phase: str = "update") -> list[str]:
        """Return the names of the metrics of a phase, without running or compiling it."""
        positions = self._position_groups(phase)[-1]
        names: list[str] = self._trace(phase, positions)[0].meta["metrics"]
        return names

    def finite_seeds(self) -> np.ndarray:
        """Return a mask of the seeds with only finite parameters, [S]. Waits for the device."""
        leaves = flatten(self.state["params"]).values()
        finite = torch.stack([x.reshape(len(x), -1).isfinite().all(1) for x in leaves])
        return finite.all(0).cpu().numpy()

    def programs(self, phase: str = "update") -> list[Program]:
        """Return the programs of one period: one, or one per update if the period is long.

        Updates that the algorithm declares equal (`equivalent_step`) share a program.
        """
        position_groups = self._position_groups(phase)
        compile = self.compiled and phase not in self.uncompiled_phases
        for positions in position_groups:
            if (phase, positions) not in self._programs:
                started = time.perf_counter()
                run = self._build(phase, positions, compile)
                names: list[str] = self._traced[phase, positions].meta["metrics"]
                total = torch.zeros(len(self.seeds), len(names), device=self.device)
                self._programs[phase, positions] = Program(run, names, total)
                self.compile_seconds += time.perf_counter() - started
        return [self._programs[phase, positions] for positions in position_groups]

    def _position_groups(self, phase: str) -> list[Positions]:
        """Return the positions of the updates in each program of a period."""
        algorithm, _ = self.for_phase(phase)
        if algorithm.period > MAX_UNROLLED:
            return [(algorithm.equivalent_step(i),) for i in range(algorithm.period)]
        return [tuple(range(algorithm.period))]

    def _make_seed_update(self, phase: str, positions: Positions, names: list[str]) -> SeedFunction:
        """Return a function (state, values, data) -> (state, metrics) that updates one seed.

        The function runs the updates at `positions` of the period, and writes the names of the
        metrics to `names`.
        """
        configured, source = self.for_phase(phase)
        make_random = Random if self.ranks is None else self.ranks.random
        rows = self.batch_size // (1 if self.ranks is None else self.ranks.world_size)

        def program(tree: Any, values: Any, data: Any) -> tuple[Any, Tensor]:
            algorithm = configured.with_values(values)
            params, optimizer, counters = tree["params"], tree["optimizer"], tree["counters"]
            update, sums = counters["update"], dict[str, list[Tensor]]()
            phase_update = update - counters[OTHER_PHASES]
            for offset, i in enumerate(positions):
                random = make_random(counters["seed"], update + offset)
                batch = source.sample(data, random, rows, algorithm.cfg.discount)
                state = State(algorithm, params, optimizer, random, phase_update + offset)
                state, metrics = algorithm.run_update(phase, state, batch, i)
                params, optimizer = state.params, state.optimizer
                for name, value in metrics.items():
                    sums.setdefault(name, []).append(value)
            names[:] = sorted(sums)
            means = [torch.stack(sums[name]).mean() for name in names]
            counters = {**counters, "update": update + len(positions)}
            tree = {"params": params, "optimizer": optimizer, "counters": counters}
            return tree, torch.stack(means)

        return program

    def _for_each_seed(self, function: SeedFunction, tree: Any, values: Any, data: Any) -> Any:
        """Return the results of `function` for all seeds, [S, …] each.

        tree: the state. values, data: tensors [S, …], or [1, …] if all seeds share them.
        """
        if len(self.seeds) == 1:
            only = tree_map(lambda x: x[0], (tree, values, data))
            leaves = zip(tree_leaves(only), tree_leaves((tree, values, data)), strict=True)
            unchanged = {id(x): stacked for x, stacked in leaves}
            return tree_map(
                lambda x: unchanged[id(x)] if id(x) in unchanged else x[None], function(*only)
            )
        # COUNTS are equal for all seeds and are passed without a seed axis. The bias correction of
        # an optimizer step then has no seed axis either, so the step is a single pass over memory.
        state_axes = tree_map_with_path(lambda at, _: None if at[-1].key in COUNTS else 0, tree)
        data_axes = tree_map(lambda x: 0 if len(x) == len(self.seeds) else None, (values, data))
        axes = (state_axes, *data_axes)
        shared = tree_map(lambda x, axis: x[0] if axis is None else x, (tree, values, data), axes)
        return vmap(function, in_dims=axes)(*shared)

    def _trace(
        self, phase: str, positions: Positions
    ) -> tuple[GraphModule, list[Tensor], list[Tensor]]:
        """Return the graph of the updates at `positions`, and the arguments of the graph.

        The arguments are two lists of leaves: those of the state, and those of values and data.
        """
        names: list[str] = []
        one_seed = self._make_seed_update(phase, positions, names)
        leaves, structure = tree_flatten(self.state)
        inputs, inputs_structure = tree_flatten((self.values, self.for_phase(phase)[1].tensors()))

        def all_seeds(leaves: list[Tensor], inputs: list[Tensor]) -> Tensor:
            arguments = tree_unflatten(leaves, structure), *tree_unflatten(inputs, inputs_structure)
            new, metrics = self._for_each_seed(one_seed, *arguments)
            for old, value in zip(leaves, tree_flatten(new)[0], strict=True):
                if old is not value:
                    old.copy_(value)
            return metrics

        if (phase, positions) not in self._traced:
            self.log(f"tracing: {phase}")
            with self._state_preserved(), torch.no_grad():
                graph = trace(all_seeds, leaves, inputs)
            graph.meta["metrics"] = names
            self._traced[phase, positions] = graph
        return self._traced[phase, positions], leaves, inputs

    def _build(self, phase: str, positions: Positions, compile: bool) -> Callable[[], Tensor]:
        graph, leaves, inputs = self._trace(phase, positions)
        run: Callable[..., Tensor] = graph
        on_gpu = self.device.type == "cuda"  # Inductor and captures use the current device
        current = torch.cuda.device(self.device) if on_gpu else nullcontext()
        with self._state_preserved(), torch.no_grad(), current:
            if compile:
                self.log(f"compiling: {phase}, about a minute")
                algorithm, source = self.for_phase(phase)
                source.prefetch(self.updates)  # the check below needs a batch
                complete = len(positions) == self.period(phase)
                name = phase if complete else f"{phase} {positions[0]}"
                # The check below runs one update, which must change all networks. Some algorithms
                # do not change the policy in the first updates of a phase, so skip those updates.
                first, _ = algorithm.updates_before_policy(phase)
                counters = self.state["counters"]
                counters[OTHER_PHASES].copy_(counters["update"] - first)
                with self.compiling():
                    run = self._compile(name, graph, leaves, inputs)
            if self.capture:
                run = capture_graph(run, leaves, inputs)

        def program() -> Tensor:
            with torch.no_grad():
                return run(leaves, inputs)

        return program

    def _compile(
        self, name: str, graph: GraphModule, leaves: list[Tensor], inputs: list[Tensor]
    ) -> Callable[..., Tensor]:
        """Compile `graph`, check the compiled function and return it, or return a fallback.

        If the function fails the check, `graph` is compiled again: on a CPU for AVX2, on a GPU with
        separate kernels. If no compiled function passes, the uncompiled `graph` is returned. The
        fallback is stored in `fallbacks` under `name`. If `fallbacks` already contains `name`, the
        attempts before that fallback are skipped. This method changes the training state; the
        caller restores it.
        """
        on_cpu = self.device.type == "cpu"
        codes: list[Code] = ["default", "avx2" if on_cpu else "separate"]
        match self.fallbacks.get(name):
            case "avx2" | "separate" as replacement:
                codes = [replacement]
            case "uncompiled":
                return graph
        arguments = enumerate([*leaves, *inputs])
        counts = {k for k, x in arguments if x.dtype == torch.int64 and x.dim() == 1}
        paths = list(flatten(self.state))
        parameters = [
            k
            for k, path in enumerate(paths)
            if path.startswith("params/") and leaves[k].is_floating_point()
        ]
        verify.fill_zeros(leaves, parameters)
        expected = verify.call(graph, leaves, inputs)
        size = verify.ROUNDING[self.precision]
        rounded = verify.call_with_rounding_errors(graph, leaves, inputs, parameters, size)
        for code in codes:
            run = compile_graph(graph, counts, len(self.seeds), code)
            outputs = [*paths, *graph.meta["metrics"]]
            problem = "The compiled update is wrong on this machine"
            try:
                actual = verify.call(run, leaves, inputs)
                fault = verify.difference(expected, actual, rounded, outputs)
            except Exception as error:
                if on_cpu or code == codes[-1] or hardware.is_out_of_memory(error):
                    raise
                problem = "Combined kernels do not compile"
                fault = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".")
            if self.ranks is not None and self.ranks.largest(fault is not None):
                fault = fault or "on another rank"  # all ranks must run the same code
            if fault is None:
                if code != "default":
                    self.fallbacks[name] = code
                return run
            again = code != codes[-1]
            remedy = f"Compiling again {REMEDIES[codes[-1]]}" if again else "Updates run uncompiled"
            self.log(f"{problem}: {name}, {fault}. {remedy}.")
        self.fallbacks[name] = "uncompiled"
        return graph

    @contextmanager
    def _state_preserved(self) -> Iterator[None]:
        """Restore the training state at the end: tracing and compiling run updates on it."""
        leaves = tree_flatten(self.state)[0]
        saved = [x.clone() for x in leaves]
        try:
            yield
        finally:
            for leaf, value in zip(leaves, saved, strict=True):
                leaf.copy_(value)

    def apply(
        self,
        method: str,
        inputs: Mapping[str, Tensor] | SampleRequest,
        phase: str = "update",
        *,
        repeat: int = 0,
    ) -> Any:
        """Return the algorithm's `method(state, inputs)` for each seed, without changing the state.

        inputs: tensors [S, …], with the same names and shapes in every call, or a request for a
        sampled batch. repeat: number of earlier calls since the last update; each value has random
        numbers of its own. All results have the leading axis S.
        """
        configured = self.for_phase(phase)[0]
        self._enter(phase)
        request = inputs if isinstance(inputs, SampleRequest) else None
        source = self.for_phase(request.phase)[1] if request else None
        if source is not None:
            source.prefetch(self.updates)
        tensors = inputs if source is None else source.tensors()
        stream = torch.full((1,), APPLY_STREAM + repeat * REPEAT_STREAM, device=self.device)
        leaves, structure = tree_flatten((self.state, (self.values, stream), tensors))

        def one_seed(tree: Any, values_and_stream: Any, batch: Any) -> Any:
            (values, stream), counters = values_and_stream, tree["counters"]
            algorithm = configured.with_values(values)
            random = Random(counters["seed"] + stream, counters["update"])
            done = counters["update"] - counters[OTHER_PHASES]
            state = State(algorithm, tree["params"], tree["optimizer"], random, done)
            if request is not None and source is not None:
                batch = source.sample(batch, random, request.rows, algorithm.cfg.discount)
            return getattr(algorithm, method)(state, batch)

        def all_seeds(leaves: list[Tensor]) -> Any:
            return self._for_each_seed(one_seed, *tree_unflatten(leaves, structure))

        with torch.no_grad():
            key = (phase, method, request)
            if key not in self._applied:
                self._applied[key] = trace(all_seeds, leaves)
            return self._applied[key](leaves)

    def fill(self, phase: str, rows: int, states: str, target: str, *, repeat: int = 0) -> None:
        """Store rows that the algorithm's `fill` computes, without waiting for the device.

        phase: selects the algorithm's config. rows: size of the batch that `fill` receives. states:
        the phase whose source provides this batch. target: name of the source that stores the
        result. repeat: number of earlier calls since the last update.
        """
        computed = self.apply("fill", SampleRequest(states, rows), phase, repeat=repeat)
        require(self.sources, target).write(computed, self.state["counters"]["update"])

    def update_cost(self, phase: str = "update") -> UpdateCost:
        """Return the cost of an update of a phase, for all seeds together."""
        positions = tuple(range(min(self.period(phase), MAX_UNROLLED)))
        return count_cost(self._trace(phase, positions)[0], len(positions))

    def stacked_policy(
        self, batch: int, *, explore: bool = False, device: torch.device | None = None
    ) -> StackedPolicy:
        """Return the policies of all seeds; each acts in `batch` episodes in parallel.

        explore: add the algorithm's exploration noise, which depends only on the seed and the step;
        otherwise actions are deterministic. device: device of the policies, by default the
        engine's.
        """
        algorithm, params = self.algorithm, self.state["params"]
        return StackedPolicy(
            algorithm.exploring_head() if explore else algorithm.acting_head(),
            algorithm.exploring_params(params) if explore else algorithm.acting_params(params),
            self.state["counters"]["seed"],
            self.algorithm.spec.observation_shapes,
            batch,
            explore=explore,
            device=device or self.device,
        )

    def seed_state(self, s: int) -> dict[str, Tensor]:
        """Return the s-th seed's complete state, flat: `params/critic/net.weights.0` and so on."""
        return {name: x[s].detach().cpu().clone() for name, x in self._saved().items()}

    def seed_states(self) -> Iterator[dict[str, Tensor]]:
        """Yield the `seed_state` of each seed; every leaf is copied from the device only once."""
        host = {name: x.detach().cpu() for name, x in self._saved().items()}
        for s in range(len(self.seeds)):
            yield {name: x[s].clone() for name, x in host.items()}

    def _saved(self) -> dict[str, Tensor]:
        """Return the tensors that checkpoints hold, stacked over seeds."""
        tensors = flatten(self.state)
        return {name: x for name, x in tensors.items() if name != f"counters/{OTHER_PHASES}"}

    def copy_from_first(self, done: Mapping[str, int]) -> None:
        """Give all ranks the training state of rank 0. done: its value of `done`."""
        assert self.ranks is not None
        self.ranks.copy_from_first(flatten(self.state))
        self.done, self._entered, self._updates = dict(done), None, None

    def load_seed_state(self, s: int, flat: dict[str, Tensor]) -> None:
        """Load the result of `seed_state` into the s-th seed.

        The update counts of all phases restart at 0; set `done` afterward to restore them. Raises
        ValueError if names, shapes or types of the tensors differ.
        """
        current = self._saved()
        self.done, self._entered, self._updates = {}, None, None
        if unmatched := current.keys() ^ flat.keys():
            raise ValueError(
                "some tensors exist only in the checkpoint or only in the algorithm: "
                f"{sorted(unmatched)[:3]}. Load a checkpoint of the same algorithm and config."
            )
        for name, value in flat.items():
            tensor = current[name]
            if tensor[s].shape != value.shape or tensor.dtype != value.dtype:
                raise ValueError(
                    f"{name} is {tuple(value.shape)} {value.dtype} in the checkpoint, but "
                    f"{tuple(tensor[s].shape)} {tensor.dtype} in the algorithm. Load a checkpoint "
                    "of the same algorithm and config."
                )
            tensor[s] = value.to(self.device)


def set_gpu_precision(precision: Precision) -> None:
    """Set how GPUs compute float32 matrix multiplications and convolutions in this process.

    TF32 is used only if `precision` is tf32. Only deterministic algorithms are used.
    """
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False  # its choice of algorithms depends on timing


def set_precision(algorithm: Algorithm, precision: Precision, device: torch.device) -> None:
    """Set the precision of matrix multiplications; weights, optimizer and the rest stay float32."""
    if device.type == "cuda":
        set_gpu_precision(precision)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    for module in algorithm.modules.values():
        set_compute_dtype(module, dtype)
