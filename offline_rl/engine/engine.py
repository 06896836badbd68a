"""The engine: runs an algorithm's update many times, fast, for several seeds at once.

The update of one seed is traced into a graph of tensor operations: sampling, losses, gradients,
optimizers and targets of one whole period, with a leading axis for S stacked seeds
(`torch.func.vmap`) and the new state copied into the old one's storage. That graph is run as it is
(eager) or compiled; on a GPU it is replayed as a CUDA graph. Nothing in it waits for the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten, tree_map, tree_map_with_path, tree_unflatten

from offline_rl.algorithms.common.base import Algorithm, State
from offline_rl.algorithms.common.config import check_stackable
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.engine import verify
from offline_rl.engine.acting import StackedPolicy
from offline_rl.engine.compile import Code, captured, compiled
from offline_rl.engine.trace import traced
from offline_rl.engine.work import Work, count
from offline_rl.replay.batch import Source, Sources
from offline_rl.utils import hardware
from offline_rl.utils.random import Random
from offline_rl.utils.trees import flatten
from policies.networks.precision import set_compute_dtype

Precision = Literal["fp32", "tf32", "bf16"]
ELSEWHERE = "elsewhere"  # a counter that no checkpoint holds; see `Engine.done`
COUNTS = ("steps", "update", ELSEWHERE)  # leaves that are the same for all stacked seeds
UNROLLED = 4  # places of a period that one program has at most
APART = 1 << 35  # keeps what `apply` draws apart from an update's numbers
Places = tuple[int, ...]  # of a period
Fallback = Literal["avx2", "uncompiled"]  # in place of a program that failed its check


class Drawn(NamedTuple):
    """A batch of so many rows, from where a phase's batches come from."""

    phase: str
    rows: int


@dataclass
class Program:
    """One or more updates of all seeds as a call, and what its metrics came to."""

    run: Callable[[], Tensor]  # -> the metrics' means [S, metrics]
    metrics: list[str]
    total: Tensor  # of the calls since it was last asked for, [S, metrics]
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
    ) -> None:
        """make(s): the algorithm of the s-th seed; initialized by that seed alone.

        sources: what the phases learn from; a lone one is the offline data.
        values: float fields of the config with one value for each seed, trained side by side.
        """
        torch.set_flush_denormal(True)  # dead units' moments decay to numbers 100 times slower
        if torch.device(device).type == "cpu":
            hardware.keep_memory()
        self.seeds, self.batch_size = list(seeds), batch_size
        self.device, self.precision, self.compiled = torch.device(device), precision, compile
        self.capture = self.device.type == "cuda"  # in a CUDA graph; a profiler sees one call
        self.brief: Collection[str] = ()  # phases that are not, whose updates are few
        self.compile_seconds = 0.0
        self.fallbacks: dict[str, Fallback] = {}  # by program; filled in here, kept by a run
        self.say: Callable[[str], object] = lambda _: None  # is told what is going to take long
        self.compiling: Callable[[], AbstractContextManager[None]] = nullcontext  # entered for it
        algorithms, trees = [], []
        for s, seed in enumerate(self.seeds):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                algorithms.append(make(s))
            counters = {"seed": torch.tensor(seed), "update": torch.tensor(0)}
            counters[ELSEWHERE] = torch.tensor(0)
            trees.append(algorithms[-1].initial() | {"counters": counters})
        self.algorithm = algorithms[0]
        self.sources = sources if isinstance(sources, Sources) else Sources(offline=sources)
        check_stackable(type(self.algorithm.cfg), values or {})
        self.state = tree_map(lambda *xs: torch.stack(xs).to(self.device), *trees)
        self.values = {k: torch.tensor(v, device=self.device) for k, v in (values or {}).items()}
        set_precision(self.algorithm, precision, self.device)
        # phase -> its updates so far; a checkpoint holds them beside the state. The state's counter
        # "elsewhere" is how many of all updates were of other phases than the one entered last
        self.done: dict[str, int] = {}
        self._entered: str | None = None
        self._phases: dict[str, tuple[Algorithm, Source]] = {}
        self._traced: dict[tuple[str, Places], GraphModule] = {}
        self._programs: dict[tuple[str, Places], Program] = {}
        self._applied: dict[tuple[str, str], GraphModule] = {}

    @property
    def updates(self) -> int:
        """Updates done so far, all phases together. Raises ValueError where seeds differ in it."""
        done = self.state["counters"]["update"].tolist()
        if len(set(done)) > 1:
            raise ValueError(f"seeds {self.seeds} have done {done} updates: not to be stacked")
        return done[0]

    def at(self, phase: str) -> tuple[Algorithm, Source]:
        """The algorithm as it is in a phase, and what it learns from then."""
        if phase not in self._phases:
            algorithm = self.algorithm.at(phase)
            self._phases[phase] = algorithm, algorithm.source(phase, self.sources)
        return self._phases[phase]

    def period(self, phase: str = "update") -> int:
        """Updates after which a phase's sequence of work repeats."""
        return self.at(phase)[0].period

    def run(self, num_updates: int, phase: str = "update") -> None:
        """num_updates more updates of every seed; a multiple of the phase's period."""
        period = self.period(phase)
        if num_updates % period:
            raise ValueError(f"{num_updates} updates do not divide into periods of {period}")
        cycle, ready = self.programs(phase), getattr(self.at(phase)[1], "ready", None)
        self._enter(phase)
        first = self.updates if ready else 0
        for done in range(0, num_updates, period):
            if ready:
                ready(first + done)
            for program in cycle:
                program.total += program.run()
                program.calls += 1
            self.done[phase] = self.done.get(phase, 0) + period

    def _enter(self, phase: str) -> None:
        """Let `State.done` count the updates of `phase`. Waits for the device if it is another."""
        if phase != self._entered:
            others = self.updates - self.done.get(phase, 0)
            self.state["counters"][ELSEWHERE].fill_(others)
            self._entered = phase

    def metrics(self, phase: str = "update") -> dict[str, np.ndarray]:
        """The mean of each metric since it was last asked for, per seed. Waits for the device."""
        sums: dict[str, list[Any]] = {}
        for (own, _), program in self._programs.items():
            if own != phase or not program.calls:
                continue
            total = program.total.cpu().numpy().copy()  # [S, metrics]
            for j, name in enumerate(program.metrics):
                sums.setdefault(name, []).append((total[:, j], program.calls))
            program.total.zero_()
            program.calls = 0
        return {name: sum(t for t, _ in x) / sum(n for _, n in x) for name, x in sums.items()}

    def finite(self) -> np.ndarray:
        """Whether all of a seed's parameters are numbers, [S]. Waits for the device."""
        leaves = flatten(self.state["params"]).values()
        sound = torch.stack([x.reshape(len(x), -1).isfinite().all(1) for x in leaves])
        return sound.all(0).cpu().numpy()

    def programs(self, phase: str = "update") -> list[Program]:
        """What makes one period: a program of all its places, or one a place where it is long.

        Places with the same work, as the algorithm says by `alike`, share a program.
        """
        algorithm, _ = self.at(phase)
        places = [tuple(range(algorithm.period))]
        if algorithm.period > UNROLLED:
            places = [(algorithm.alike(i),) for i in range(algorithm.period)]
        for own in places:
            if (phase, own) not in self._programs:
                started = time.perf_counter()
                run = self._build(phase, own, self.compiled and phase not in self.brief)
                names: list[str] = self._traced[phase, own].meta["metrics"]
                total = torch.zeros(len(self.seeds), len(names), device=self.device)
                self._programs[phase, own] = Program(run, names, total)
                self.compile_seconds += time.perf_counter() - started
        return [self._programs[phase, own] for own in places]

    def _one_seed(
        self, phase: str, places: Places, names: list[str]
    ) -> Callable[[Any, Any, Any], tuple[Any, Tensor]]:
        """Updates of one seed at `places`: (state, values, data) -> (state, metrics by `names`)."""
        now, source = self.at(phase)

        def program(tree: Any, values: Any, data: Any) -> tuple[Any, Tensor]:
            algorithm = now.with_values(values)
            work = getattr(algorithm, "update" if phase == ONLINE else phase)
            params, optimizer, counters = tree["params"], tree["optimizer"], tree["counters"]
            update, sums = counters["update"], dict[str, list[Tensor]]()
            first = update - counters[ELSEWHERE]
            for done, i in enumerate(places):
                random = Random(counters["seed"], update + done)
                batch = source.sample(data, random, self.batch_size, algorithm.cfg.discount)
                state = State(algorithm, params, optimizer, random, first + done)
                state, metrics = work(state, batch, i)
                params, optimizer = state.params, state.optimizer
                for name, value in metrics.items():
                    sums.setdefault(name, []).append(value)
            names[:] = sorted(sums)
            means = [torch.stack(sums[name]).mean() for name in names]
            counters = {**counters, "update": update + len(places)}
            tree = {"params": params, "optimizer": optimizer, "counters": counters}
            return tree, torch.stack(means)

        return program

    def _trace(self, phase: str, places: Places) -> tuple[GraphModule, list[Tensor], list[Tensor]]:
        """The places' graph and what it is called with: the state's leaves, values and data."""
        names: list[str] = []
        one, leaves, form = self._one_seed(phase, places, names), *tree_flatten(self.state)
        inputs, inputs_form = tree_flatten((self.values, self.at(phase)[1].tensors()))

        def stacked(leaves: list[Tensor], inputs: list[Tensor]) -> Tensor:
            tree = tree_unflatten(leaves, form)
            values, data = tree_unflatten(inputs, inputs_form)
            if len(self.seeds) == 1:
                tree, values, data = tree_map(lambda x: x[0], (tree, values, data))
                new, metrics = tree_map(lambda x: x[None], one(tree, values, data))
            else:  # shared data has a leading axis of 1; counts are equal, so that what is made of
                # them is one number for all seeds, and an optimizer one pass over their memory
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

        if (phase, places) not in self._traced:
            self.say(f"tracing: {phase}")
            with self._untaught(), torch.no_grad():
                graph = traced(stacked, leaves, inputs)
            graph.graph.eliminate_dead_code()
            graph.recompile()
            graph.meta["metrics"] = names
            self._traced[phase, places] = graph
        return self._traced[phase, places], leaves, inputs

    def _build(self, phase: str, places: Places, compile: bool) -> Callable[[], Tensor]:
        graph, leaves, inputs = self._trace(phase, places)
        run: Callable[..., Tensor] = graph
        on_gpu = self.device.type == "cuda"  # Inductor and captures use the current device
        current = torch.cuda.device(self.device) if on_gpu else nullcontext()
        with self._untaught(), torch.no_grad(), current:
            if compile:
                self.say(f"compiling: {phase}, about a minute")
                if ready := getattr(self.at(phase)[1], "ready", None):
                    ready(self.updates)  # the check below needs a batch
                whole = len(places) == self.period(phase)
                name = phase if whole else f"{phase} {places[0]}"
                begins, _ = self.at(phase)[0].policy_begins(phase)  # the check is of all networks
                counters = self.state["counters"]
                counters[ELSEWHERE].copy_(counters["update"] - begins)
                with self.compiling():
                    run = self._compile(name, graph, leaves, inputs)
            if self.capture:
                run = captured(run, leaves, inputs)

        def program() -> Tensor:
            with torch.no_grad():
                return run(leaves, inputs)

        return program

    def _compile(
        self, name: str, graph: GraphModule, leaves: list[Tensor], inputs: list[Tensor]
    ) -> Callable[..., Tensor]:
        """Return the fastest program of `graph` that computes the same, by one call of each.

        What it falls back to is kept in `fallbacks` under `name`, and used without a further try
        where it is there from the start. Changes the state, which the caller puts back.
        """
        codes: list[Code] = ["default", "avx2"] if self.device.type == "cpu" else ["default"]
        match self.fallbacks.get(name):
            case "avx2":
                codes = ["avx2"]
            case "uncompiled":
                return graph
        both = enumerate([*leaves, *inputs])
        counts = {k for k, x in both if x.dtype == torch.int64 and x.dim() == 1}
        paths = list(flatten(self.state))
        parameters = [
            k
            for k, path in enumerate(paths)
            if path.startswith("params/") and leaves[k].is_floating_point()
        ]
        verify.fill_zeros(leaves, parameters)
        expected = verify.call(graph, leaves, inputs)
        size = verify.ROUNDING[self.precision]
        others = verify.rounded(graph, leaves, inputs, parameters, size)
        for code in codes:
            run = compiled(graph, counts, len(self.seeds), code)
            found = verify.call(run, leaves, inputs)
            outputs = [*paths, *graph.meta["metrics"]]
            fault = verify.difference(expected, found, others, outputs)
            if fault is None:
                if code != "default":
                    self.fallbacks[name] = code
                return run
            then = "Compiling again for AVX2" if code != codes[-1] else "Updates run uncompiled"
            self.say(f"The compiled update is wrong on this machine: {name}, {fault}. {then}.")
        self.fallbacks[name] = "uncompiled"
        return graph

    @contextmanager
    def _untaught(self) -> Iterator[None]:
        """Puts the state back as it was: what is learned inside is thrown away."""
        leaves = tree_flatten(self.state)[0]
        before = [x.clone() for x in leaves]
        try:
            yield
        finally:
            for leaf, value in zip(leaves, before, strict=True):
                leaf.copy_(value)

    def apply(
        self, method: str, inputs: Mapping[str, Tensor] | Drawn, phase: str = "update"
    ) -> Any:
        """What the algorithm's `method(state, inputs)` answers for each seed; nothing is learned.

        inputs, and what comes back: [S, …] each, of the same names and shapes in every call; or the
        batch that is drawn.
        """
        now = self.at(phase)[0]
        self._enter(phase)
        source = self.at(inputs.phase)[1] if isinstance(inputs, Drawn) else None
        given = source.tensors() if source is not None else inputs
        leaves, form = tree_flatten((self.state, self.values, given))

        def one(tree: Any, values: Any, given: Any) -> Any:
            algorithm, counters = now.with_values(values), tree["counters"]
            random = Random(counters["seed"] + APART, counters["update"])
            done = counters["update"] - counters[ELSEWHERE]
            state = State(algorithm, tree["params"], tree["optimizer"], random, done)
            if isinstance(inputs, Drawn):
                assert source is not None
                given = source.sample(given, random, inputs.rows, algorithm.cfg.discount)
            return getattr(algorithm, method)(state, given)

        def stacked(leaves: list[Tensor]) -> Any:
            arguments = tree_unflatten(leaves, form)
            if len(self.seeds) == 1:
                return tree_map(lambda x: x[None], one(*tree_map(lambda x: x[0], arguments)))
            axes = tree_map(lambda x: 0 if len(x) == len(self.seeds) else None, arguments)
            shared = tree_map(lambda x, axis: x[0] if axis is None else x, arguments, axes)
            return vmap(one, in_dims=axes)(*shared)

        with torch.no_grad():
            if (phase, method) not in self._applied:
                graph = traced(stacked, leaves)
                graph.graph.eliminate_dead_code()
                graph.recompile()
                self._applied[phase, method] = graph
            return self._applied[phase, method](leaves)

    def work(self, phase: str = "update") -> Work:
        """What an update of a phase costs, all seeds together."""
        places = tuple(range(min(self.period(phase), UNROLLED)))
        return count(self._trace(phase, places)[0], len(places))

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
            self.algorithm.spec.seen,
            batch,
            explore=explore,
            device=device or self.device,
        )

    def seed_state(self, s: int) -> dict[str, Tensor]:
        """The s-th seed's whole state, flat: `params/critic/net.weights.0` and so on."""
        return {name: x[s].detach().cpu().clone() for name, x in self._saved().items()}

    def seed_states(self) -> Iterator[dict[str, Tensor]]:
        """Yield the `seed_state` of each seed; every leaf is copied from the device only once."""
        host = {name: x.detach().cpu() for name, x in self._saved().items()}
        for s in range(len(self.seeds)):
            yield {name: x[s].clone() for name, x in host.items()}

    def _saved(self) -> dict[str, Tensor]:
        """Return the tensors that checkpoints hold, stacked over seeds."""
        tensors = flatten(self.state)
        return {name: x for name, x in tensors.items() if name != f"counters/{ELSEWHERE}"}

    def load_seed_state(self, s: int, flat: dict[str, Tensor]) -> None:
        """Puts a state of `seed_state` in the s-th place. Raises ValueError naming what differs.

        Every phase begins anew, unless `done` is set afterward.
        """
        own = self._saved()
        self.done, self._entered = {}, None
        if missing := own.keys() ^ flat.keys():
            raise ValueError(f"the checkpoint's tensors differ in {sorted(missing)[:3]}")
        for name, value in flat.items():
            if own[name][s].shape != value.shape or own[name].dtype != value.dtype:
                raise ValueError(
                    f"{name} is {tuple(value.shape)} {value.dtype} in the checkpoint, "
                    f"{tuple(own[name][s].shape)} {own[name].dtype} here"
                )
            own[name][s] = value.to(self.device)


def set_gpu_precision(precision: Precision) -> None:
    """Set how GPUs compute float32 products and convolutions in this process.

    TF32 only if `precision` is tf32, and always by deterministic algorithms.
    """
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False  # it chooses by stopwatch


def set_precision(algorithm: Algorithm, precision: Precision, device: torch.device) -> None:
    """Matrix products in `precision`; weights, optimizer and everything else stay float32."""
    if device.type == "cuda":
        set_gpu_precision(precision)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    for module in algorithm.modules.values():
        set_compute_dtype(module, dtype)
