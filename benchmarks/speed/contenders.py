"""Contenders of this project: our engine, the eager baseline and plain matrix multiplications."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import DeviceType

from benchmarks.speed import diffusion
from benchmarks.speed.clock import ACT, OBS, Clock, arrays, synchronizer
from benchmarks.speed.eager import BASELINES, Buffer, plain_fault
from offline_rl.algorithms.common.registry import algorithm_class
from offline_rl.data import Dataset
from offline_rl.engine.compile import capture_graph
from offline_rl.engine.engine import Engine, Precision, set_gpu_precision
from offline_rl.training.sources import offline_source
from offline_rl.utils import hardware
from policies import Spec

DIFFUSION = "diffusion_policy"
# matrix multiplications in one CUDA graph; single launches would measure the launch overhead
PRODUCTS = 20


def engine(
    algorithm: str,
    seeds: int,
    precision: Any,
    device: str,
    compile: bool,
    obs: int = OBS,
    act: int = ACT,
) -> Engine:
    """Return an engine as `offline-rl train` builds it, on random transitions.

    obs, act: sizes of an observation and an action.
    """
    data, cls = arrays(obs, act), algorithm_class(algorithm)
    columns = ("observations", "actions", "rewards", "dones", "timeouts", "next_observations")
    dataset = Dataset.from_arrays(*(data[name] for name in columns))
    settings = diffusion.settings(device) if algorithm == DIFFUSION else {}
    spec = Spec((obs,), act)
    dataset, cfg = cls(spec, cls.Config(**settings)).prepare(dataset)
    make = partial(cls, spec, cfg, 1_000_000)
    expert = dataset if "expert" in cls.extra_columns else None
    return Engine(
        lambda _: make(),
        range(seeds),
        offline_source(make(), dataset, expert, device=device),
        batch_size=cfg.batch_size,
        device=device,
        precision=precision,
        compile=compile,
    )


def run_ours(
    clock: Clock,
    algorithm: str,
    seeds: int,
    precision: str,
    device: str,
    profile: bool = False,
    compile: bool = True,
    combine: bool = True,
    **sizes: int,
) -> None:
    """Run the engine's training loop. sizes: `obs` and `act` of `engine`.

    combine: on a GPU, combine kernels that do not depend on each other.
    """
    if device == "cuda":
        torch.cuda.CUDAGraph = CountedGraph  # type: ignore[misc,assignment]
    build = partial(engine, algorithm, seeds, precision)
    learner = build(device, compile, **sizes)
    learner.capture &= not profile
    learner.fallbacks |= {} if combine else {"update": "separate"}
    period = learner.algorithm.period
    cost = learner.update_cost()
    clock.facts = {"flops": cost.flops / seeds, "state_bytes": state_bytes(learner)}
    if device == "cpu":
        clock.facts["threads"] = cost.threads(hardware.num_cores(), precision)
        torch.set_num_threads(clock.facts["threads"])
    learner.programs()
    clock.facts["compile_seconds"] = learner.compile_seconds
    clock.facts["fallbacks"] = learner.fallbacks
    clock.fault = partial(fault, learner)
    if device == "cuda":
        clock.facts["kernels"] = sum(CountedGraph.kernels) / period
        if compile and seeds == 1 and precision == "fp32":
            clock.facts["cpu_difference"] = difference(learner, build("cpu", False, **sizes))
    if profile:
        clock.facts["profile"] = profile_shares(learner)
    wait = synchronizer(device)
    while True:
        learner.run(period)
        clock.tick(period, wait)


class CountedGraph(torch.cuda.CUDAGraph):
    """CUDA graph whose kernels and copies are counted when it is captured."""

    kernels: ClassVar[list[int]] = []  # of all graphs

    def __new__(cls) -> CountedGraph:
        return super().__new__(cls, keep_graph=True)

    def __init__(self) -> None:
        super().__init__(keep_graph=True)  # otherwise its nodes cannot be counted

    def capture_end(self) -> None:
        super().capture_end()
        count = ctypes.c_size_t()
        graph = ctypes.c_void_p(self.raw_cuda_graph())
        ctypes.CDLL(None).cudaGraphGetNodes(graph, None, ctypes.byref(count))
        self.kernels.append(count.value)


def state_bytes(learner: Engine) -> float:
    """Return how many bytes of a seed's training state an update replaces, on average."""
    positions = learner._position_groups("update")
    graphs = [learner._trace("update", group)[0].graph for group in positions]
    replaced = [
        node.args[0].meta["val"].nbytes
        for graph in graphs
        for node in graph.nodes
        if node.target is torch.ops.aten.copy_.default
    ]
    return sum(replaced) / learner.algorithm.period / len(learner.seeds)


def difference(learner: Engine, other: Engine) -> float:
    """Return the largest difference of the states after two periods; relative if above 1."""
    for one in (learner, other):
        one.run(2 * one.algorithm.period)
    states = zip(learner.seed_states(), other.seed_states(), strict=True)
    pairs = [(a[k].double(), b[k].double()) for a, b in states for k in a]
    return max(((x - y).abs().max() / y.abs().max().clamp(min=1)).item() for x, y in pairs)


def fault(learner: Engine) -> str | None:
    """Return why the speed of `learner` is meaningless; None if it is meaningful."""
    if wrong := {name: x for name, x in learner.fallbacks.items() if x != "separate"}:
        return f"compiled updates are wrong on this machine; fallbacks used: {wrong}"
    if not learner.finite_seeds().all():
        return f"the parameters are not finite after {learner.updates} updates"
    return None


def profile_shares(learner: Engine) -> dict[str, float]:
    """Profile some updates and return `shares`. On a GPU the engine must not use CUDA graphs."""
    from torch.profiler import profile

    learner.run(2 * learner.algorithm.period)
    with torch._inductor.config.patch({"cpp.enable_kernel_profile": True}), profile() as profiler:
        learner.run(10 * learner.algorithm.period)
    return shares(profiler.key_averages(), learner.device.type)


def shares(events: Iterable[Any], device: str) -> dict[str, float]:
    """Return the fractions of time in matrix multiplications, fused kernels and the rest.

    events: the profiler's averages. GPU time is read from the operations that launch kernels. The
    kernels have rows too, which are skipped, because they would count the same time twice.
    """
    time = dict.fromkeys(("products", "fused kernels", "rest"), 0.0)
    for event in events:
        if event.device_type != DeviceType.CPU:
            continue
        products = event.key.removeprefix("aten::").removeprefix("aoti_torch_cpu_")
        products = products.startswith(("mm", "bmm", "addmm", "baddbmm"))
        kernel = event.key.startswith(("cpp_", "graph_", "triton_"))
        name = "products" if products else "fused kernels" if kernel else "rest"
        on_cpu = device == "cpu"
        time[name] += event.self_cpu_time_total if on_cpu else event.self_device_time_total
    total = sum(time.values()) or 1.0
    return {name: round(value / total, 3) for name, value in time.items()}


def run_uncompiled(clock: Clock, **job: Any) -> None:
    """Run our update as a sequence of PyTorch operations, for algorithms without a baseline."""
    run_ours(clock, **job, compile=False)


def run_separate(clock: Clock, **job: Any) -> None:
    """Run our update with separate kernels on a GPU, to measure what combining them gains."""
    run_ours(clock, **job, combine=False)


def run_eager(clock: Clock, algorithm: str, device: str) -> None:
    """Run the eager single-seed baseline in float32."""
    torch.backends.cudnn.allow_tf32 = False  # torch's default for convolutions is True
    if algorithm == DIFFUSION:
        diffusion.run_eager(clock, device)
    data = {k: torch.from_numpy(v).to(device) for k, v in arrays().items()}
    data["dones"] = data["dones"].float()
    buffer, learner = Buffer(data), BASELINES[algorithm](OBS, ACT, device)
    wait = synchronizer(device)
    clock.fault = partial(plain_fault, learner)
    while True:
        learner.train(buffer.sample())
        clock.tick(1, wait)


def run_products(clock: Clock, precision: Precision, device: str) -> None:
    """Run matrix multiplications of 2048 x 256 by 256 x 256, the networks' main operation."""
    set_gpu_precision(precision)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a = torch.randn(2048, 256, device=device, dtype=dtype)
    b, out = torch.randn(256, 256, device=device, dtype=dtype), torch.empty_like(a)
    clock.facts, wait = {"flops": 2.0 * 2048 * 256 * 256}, synchronizer(device)
    multiply, count = partial(torch.mm, a, b, out=out), 1
    if device == "cuda":

        def repeat() -> Tensor:
            for _ in range(PRODUCTS):
                multiply()
            return out

        multiply, count = capture_graph(repeat), PRODUCTS
    while True:
        multiply()
        clock.tick(count, wait)
