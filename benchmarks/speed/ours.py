"""Contenders that need nothing but this project: ours, the eager baseline, and bare products."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType

from benchmarks.speed import diffusion
from benchmarks.speed.clock import ACT, OBS, Clock, arrays, waiting
from benchmarks.speed.eager import BASELINES, Buffer, plain_fault
from offline_rl.algorithms.common.registry import algorithm_class
from offline_rl.data import Dataset
from offline_rl.engine.compile import captured
from offline_rl.engine.engine import Engine, Precision, set_gpu_precision
from offline_rl.training.sources import offline_source
from offline_rl.utils import hardware
from policies import Spec

DIFFUSION = "diffusion_policy"
PRODUCTS = 20  # in one CUDA graph: launched one by one, they would measure the launches


def engine(algorithm: str, seeds: int, precision: Any, device: str, compile: bool) -> Engine:
    """As `offline-rl train` makes it, on the random transitions."""
    data, cls = arrays(), algorithm_class(algorithm)
    columns = ("observations", "actions", "rewards", "dones", "timeouts", "next_observations")
    dataset = Dataset.from_arrays(*(data[name] for name in columns))
    given = diffusion.settings(device) if algorithm == DIFFUSION else {}
    cfg = cls.complete(cls.Config(**given), dataset)
    make = partial(cls, Spec((OBS,), ACT), cfg, 1_000_000)
    expert = dataset if "expert" in cls.needs else None
    return Engine(
        lambda _: make(),
        range(seeds),
        offline_source(cls, cfg, make().prepare(dataset), expert, device=device),
        batch_size=cfg.batch_size,
        device=device,
        precision=precision,
        compile=compile,
    )


def ours(
    clock: Clock,
    algorithm: str,
    seeds: int,
    precision: str,
    device: str,
    profile: bool = False,
    compile: bool = True,
) -> None:
    """The engine's own loop."""
    learner = engine(algorithm, seeds, precision, device, compile)
    learner.capture &= not profile
    period = learner.algorithm.period
    work = learner.work()
    clock.facts = {"flops": work.flops / seeds}
    if device == "cpu":
        clock.facts["threads"] = work.threads(hardware.cores(), precision)
        torch.set_num_threads(clock.facts["threads"])
    learner.programs()
    clock.facts["compile_seconds"] = learner.compile_seconds
    clock.fault = partial(fault, learner)
    if profile:
        clock.facts["profile"] = profiled(learner)
    wait = waiting(device)
    while True:
        learner.run(period)
        clock.tick(period, wait)


def fault(learner: Engine) -> str | None:
    """Return why the speed of `learner` means nothing; None if it means something."""
    if learner.fallbacks:
        return f"compiled updates are wrong on this machine; it used {learner.fallbacks}"
    if not learner.finite().all():
        return f"the parameters are not finite after {learner.updates} updates"
    return None


def profiled(learner: Engine) -> dict[str, float]:
    """Profile some updates; on a GPU the engine must not capture them. Return `shares`."""
    from torch.profiler import profile

    learner.run(2 * learner.algorithm.period)
    with torch._inductor.config.patch({"cpp.enable_kernel_profile": True}), profile() as found:
        learner.run(10 * learner.algorithm.period)
    return shares(found.key_averages(), learner.device.type)


def shares(events: Iterable[Any], device: str) -> dict[str, float]:
    """Return the share of time in matrix products, fused kernels and everything between.

    events: the profiler's averages. A GPU's time is read from the operations that launched it;
    the kernels' own rows would count it twice.
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


def uncompiled(clock: Clock, **job: Any) -> None:
    """The same update as a plain sequence of PyTorch operations: where there is no baseline."""
    ours(clock, **job, compile=False)


def eager(clock: Clock, algorithm: str, device: str) -> None:
    """The eager single-seed baseline's loop, in float32."""
    torch.backends.cudnn.allow_tf32 = False  # torch's default for convolutions is True
    if algorithm == DIFFUSION:
        diffusion.eager(clock, device)
    data = {k: torch.from_numpy(v).to(device) for k, v in arrays().items()}
    data["dones"] = data["dones"].float()
    buffer, learner = Buffer(data), BASELINES[algorithm](OBS, ACT, device)
    wait = waiting(device)
    clock.fault = partial(plain_fault, learner)
    while True:
        learner.train(buffer.sample())
        clock.tick(1, wait)


def products(clock: Clock, precision: Precision, device: str) -> None:
    """Products of 2048 x 256 by 256 x 256, which are what the networks are made of."""
    set_gpu_precision(precision)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a = torch.randn(2048, 256, device=device, dtype=dtype)
    b, out = torch.randn(256, 256, device=device, dtype=dtype), torch.empty_like(a)
    clock.facts, wait = {"flops": 2.0 * 2048 * 256 * 256}, waiting(device)
    multiply, count = partial(torch.mm, a, b, out=out), 1
    if device == "cuda":

        def repeated() -> Tensor:
            for _ in range(PRODUCTS):
                multiply()
            return out

        multiply, count = captured(repeated), PRODUCTS
    while True:
        multiply()
        clock.tick(count, wait)
