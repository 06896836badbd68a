"""Check of compiled updates, the fallbacks, and the compiler bug behind them."""

import math
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_data import save_small
from torch import Tensor
from torch._inductor import config
from torch._inductor.cpp_builder import CppOptions, is_gcc

from offline_rl.algorithms.td3_bc import TD3BC
from offline_rl.data import Dataset
from offline_rl.engine import engine as engine_module
from offline_rl.engine import verify
from offline_rl.engine.compile import CompiledGraph, inductor_options
from offline_rl.engine.engine import Engine
from offline_rl.engine.trace import trace
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.training.train import train
from offline_rl.utils import hardware
from offline_rl.utils.files import read_json
from offline_rl.utils.trees import flatten
from policies import Spec

Run = Callable[[list[Tensor], list[Tensor]], Tensor]
# transpose of 32 rows of 32 16-bit numbers, as Inductor's kernels call it for bf16
TILE = """
#include <immintrin.h>
__attribute__((noipa)) void f(const short *src, long step, short *dst) {
  __m512i r[32], d[32];
  for (int i = 0; i < 32; i++) r[i] = _mm512_loadu_si512(src + i * step);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) {
    d[2 * i] = _mm512_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    d[2 * i + 1] = _mm512_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  __builtin_memcpy(dst, d, sizeof d);
}
int main(void) {
  static short a[1024], b[1040];
  int wrong = 0;
  for (int i = 0; i < 1024; i++) a[i] = 1;
  f(a, 32, b + 2);
  for (int i = 0; i < 1024; i++) wrong += b[i + 2] != 1;
  return wrong != 0;
}
"""
avx512 = pytest.mark.skipif(
    "avx512bw" not in hardware.cpu_flags() or hardware.missing_compiler() is not None,
    reason="needs AVX-512 and a C++ compiler",
)


@pytest.fixture(scope="module")
def traced_once() -> Engine:
    draw = np.random.default_rng(0)
    ends = np.arange(100) % 20 == 19
    columns = draw.normal(size=(100, 3)), draw.uniform(-1, 1, (100, 2)), draw.normal(size=100)
    data = Dataset.from_arrays(*columns, ends, ~ends & False, draw.normal(size=(100, 3)))
    cfg, buffer = TD3BC.Config(hidden=(8, 8)), ReplayBuffer.from_dataset(data)
    e = Engine(lambda _: TD3BC(Spec((3,), 2), cfg), [0, 1], buffer, batch_size=16, compile=True)
    e._trace("update", (0, 1))
    return e


@pytest.fixture
def e(traced_once: Engine) -> Iterator[Engine]:
    """An engine that has traced its update and has not compiled it."""
    leaves = flatten(traced_once.state).values()
    before = [x.clone() for x in leaves]
    yield traced_once
    for x, old in zip(leaves, before, strict=True):
        x.copy_(old)
    traced_once._programs.clear()
    traced_once.fallbacks.clear()


def spoiled(graph: Run, change: Callable[[list[Tensor], Tensor], object]) -> Run:
    """Return an update that runs the graph, and then changes leaves or metrics."""

    def run(leaves: list[Tensor], inputs: list[Tensor]) -> Tensor:
        metrics = graph(leaves, inputs)
        change(leaves, metrics)
        return metrics

    return run


def place(e: Engine, name: str) -> int:
    return list(flatten(e.state)).index(name)


FAULTS: dict[str, Callable[[Tensor], object]] = {
    "NaN in one number": lambda x: x[1].view(-1)[3].fill_(float("nan")),
    "numbers in the wrong place": lambda x: x[1].copy_(x[1].flatten().flip(0).view_as(x[1])),
    "nothing stored": lambda x: x[0].zero_(),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("right", "fallback"), [("avx2", "avx2"), (None, "uncompiled")])
def test_a_wrong_program_is_replaced_and_training_continues_as_uncompiled(
    fault: str, right: str | None, fallback: str, e: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf, messages = "optimizer/critic/first/net.weights.1", list[str]()
    k, start = place(e, leaf), [e.seed_state(s) for s in range(2)]

    def compile(graph: Run, counts: set[int], seeds: int, code: str) -> Run:
        if code == right:
            return graph
        return spoiled(graph, lambda leaves, _: FAULTS[fault](leaves[k]))

    monkeypatch.setattr(engine_module, "compile_graph", compile)
    e.log = messages.append
    random = torch.get_rng_state()
    e.run(4)
    assert torch.equal(random, torch.get_rng_state())
    assert e.fallbacks == {"update": fallback}
    (first, *_) = [line for line in messages if "wrong" in line]
    assert first.startswith("The compiled update is wrong on this machine: update, " + leaf)
    assert first.endswith("Compiling again for AVX2.")
    end = [e.seed_state(s) for s in range(2)]
    for s in range(2):
        e.load_seed_state(s, start[s])
    for _ in range(2):
        e._traced["update", (0, 1)](*e._trace("update", (0, 1))[1:])
    for s in range(2):
        for name, value in e.seed_state(s).items():
            assert torch.equal(value, end[s][name]), name


@pytest.mark.parametrize(
    ("leaf", "what"),
    [
        ("params/policy/trunk.weights.1", "differs by 2"),  # steps in the opposite direction
        ("params/critic_target/net.weights.0", "differs by 100 %"),  # a target without updates
        ("counters/update", "is wrong"),
        ("a metric", "differs by"),
    ],
)
def test_every_output_is_compared(
    leaf: str, what: str, e: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = list[str]()
    before = [x.clone() for x in flatten(e.state).values()]

    def change(leaves: list[Tensor], metrics: Tensor) -> None:
        if leaf == "a metric":
            metrics[1, 0] *= 3
            return
        k = place(e, leaf)
        if "policy" in leaf:
            leaves[k].copy_(2 * before[k] - leaves[k])
        elif "target" in leaf:
            leaves[k].copy_(before[k])
        else:
            leaves[k] += 1

    monkeypatch.setattr(engine_module, "compile_graph", lambda graph, *_: spoiled(graph, change))
    e.log = messages.append
    e.programs()
    assert e.fallbacks == {"update": "uncompiled"}
    name = "" if leaf == "a metric" else leaf
    assert any(name in line and what in line for line in messages)


def test_a_wrong_gradient_behind_an_output_layer_of_zeros_is_found(
    e: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A residual policy starts so. Its gradients are zero, whether the code is right or wrong."""
    k, output = place(e, "optimizer/policy/first/trunk.weights.0"), "params/policy/trunk.weights.2"
    (start := flatten(e.state)[output]).zero_()
    monkeypatch.setattr(
        engine_module,
        "compile_graph",
        lambda graph, *_: spoiled(graph, lambda leaves, _: leaves[k].neg_()),
    )
    e.programs()
    assert e.fallbacks == {"update": "uncompiled"}
    assert not start.any()


def test_the_checked_update_changes_the_policy(e: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first updates may train only the critics."""
    counts = set[int]()

    def note(leaves: list[Tensor], _: Tensor) -> None:
        update, elsewhere = (leaves[place(e, f"counters/{k}")] for k in ("update", "elsewhere"))
        counts.update((update - elsewhere).tolist())

    monkeypatch.setattr(TD3BC, "updates_before_policy", lambda *_: (7, "some.key"))
    monkeypatch.setattr(engine_module, "compile_graph", lambda graph, *_: spoiled(graph, note))
    e.programs()
    assert counts == {7 + e.period()}  # after the update
    assert (flatten(e.state)["counters/elsewhere"] == 0).all()


def test_a_program_that_only_rounds_differently_passes(
    e: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(leaves: list[Tensor], metrics: Tensor) -> None:
        for x in (*leaves, metrics):
            if x.is_floating_point():
                x *= 1 + 1e-7

    monkeypatch.setattr(engine_module, "compile_graph", lambda graph, *_: spoiled(graph, change))
    e.programs()
    assert e.fallbacks == {}


@pytest.mark.parametrize(
    ("size", "phrase"),
    [(1e-9, None), (1e-3, "kl differs by 100 %"), (math.nan, "kl is not finite")],
)
def test_an_output_whose_terms_cancel_may_be_a_rounding_error(
    size: float, phrase: str | None
) -> None:
    """An example is the divergence of two policies that are equal at the start."""
    zero, ones = torch.zeros(2, 1), [torch.ones(2, 3)]
    right = verify.Outputs(ones, zero)
    actual = verify.Outputs(ones, torch.tensor([[0.0], [size]]))
    assert verify.difference(right, actual, [right, right], ["weights", "kl"]) == phrase


@pytest.mark.parametrize("fault", ["RuntimeError", "nan"])
def test_a_gpus_kernels_are_compiled_separately_if_combined_ones_fail(
    fault: str, e: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The meta device is treated like a GPU that cannot capture graphs."""

    def compile(graph: Run, counts: set[int], seeds: int, code: str) -> Run:
        def fail(leaves: list[Tensor], metrics: Tensor) -> None:
            if fault == "RuntimeError":
                raise RuntimeError("out of shared memory")
            metrics.fill_(math.nan)

        compilations.append(code)
        return graph if code == "separate" else spoiled(graph, fail)

    compilations: list[str] = []
    messages: list[str] = []
    monkeypatch.setattr(engine_module, "compile_graph", compile)
    monkeypatch.setattr(e, "device", torch.device("meta"))
    monkeypatch.setattr(e, "log", messages.append)
    for _ in range(2):  # the second time as a resumed run
        e._build("update", (0, 1), True)
    assert e.fallbacks == {"update": "separate"}
    assert compilations == ["default", "separate", "separate"]
    problem = "RuntimeError: out of shared memory" if fault == "RuntimeError" else "not finite"
    [line] = [line for line in messages if problem in line]
    assert line.endswith(". Compiling again with separate kernels.")


def test_a_fallback_is_recorded_with_the_run_and_repeated_when_it_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compile(graph: Run, counts: set[int], seeds: int, code: str) -> Run:
        compilations.append(code)
        return graph if code == "avx2" else spoiled(graph, lambda _, metrics: metrics.fill_(np.nan))

    compilations: list[str] = []
    monkeypatch.setattr(engine_module, "compile_graph", compile)
    keys: dict[str, Any] = {
        "algorithm": "bc",
        "task": "none",
        "num_updates": 60,
        "checkpoint_every": 30,
    }
    keys |= {"dataset": str(save_small(tmp_path / "small.npz")), "tracker": "none"}
    keys |= {"compile": "always", "algorithm.hidden": [8], "batch_size": 8, "device": "cpu"}
    for times in (1, 2):
        (seed,) = train(**keys, out=str(tmp_path / "runs")).path.glob("seed_*")
        choices = read_json(seed / "environment.json")["choices"]
        assert (choices["compile"], choices["fallbacks"]) == (True, {"update": "avx2"})
        assert ("is wrong on this machine" in capsys.readouterr().out) == (times == 1)
        assert read_json(seed / "result.json")["compiled"]
        (seed / "result.json").unlink()
        max((seed / "checkpoints").iterdir()).unlink()
    assert compilations == ["default", "avx2", "avx2"]


@avx512
@pytest.mark.skipif(sys.platform != "linux", reason="flags of GCC")
def test_the_flags_of_compiled_code_keep_the_stores_of_a_transposed_tile(tmp_path: Path) -> None:
    """GCC 12 with generic tuning deletes them unless dead-store elimination is off."""
    if not is_gcc():
        pytest.skip("the compiler is not GCC")
    source, program = tmp_path / "tile.cpp", tmp_path / "tile"
    source.write_text(TILE)
    with config.patch(inductor_options(on_cpu=True)):
        options = CppOptions(warning_all=False)
    flags = shlex.split(" ".join(f"-{flag}" for flag in options.get_cflags()))
    flags = [flag for flag in flags if flag not in ("-shared", "-fPIC")]
    command = [options.get_compiler(), str(source), *flags, "-mtune=generic"]
    subprocess.run([*command, "-mavx512f", "-mavx512bw", "-o", str(program)], check=True)
    assert subprocess.run([str(program)]).returncode == 0


@avx512
@pytest.mark.slow
def test_a_transposed_bf16_tile_is_read_twice_by_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backward pass of layer normalization does so, with 64 units and batches of 64."""
    if not hasattr(config.cpp, "march"):
        pytest.skip("this PyTorch has no option for the tuning")
    monkeypatch.setattr(config.cpp, "march", "native -mtune=generic")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def reductions(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        y = x.transpose(-1, -2).float() * z
        return y.sum(-2), (y * z).sum(-2)

    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 64, 64, generator=draw).bfloat16()
    z = torch.randn(3, 64, 64, generator=draw)
    results = CompiledGraph(trace(reductions, x, z))(x, z)
    for result, expected in zip(results, reductions(x, z), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)
