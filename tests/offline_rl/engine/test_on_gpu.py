"""GPU settings that can be checked on a machine without a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import symbolic_trace

from offline_rl.engine import compile as compile_module
from offline_rl.engine.choices import choose, log_interval
from offline_rl.engine.compile import CompiledGraph, inductor_options
from offline_rl.engine.cost import UpdateCost
from offline_rl.engine.engine import Engine, set_precision

CUDNN, MATMUL = torch.backends.cudnn, torch.backends.cuda.matmul
FLAGS = [(MATMUL, "allow_tf32")]
FLAGS += [(CUDNN, name) for name in ("allow_tf32", "deterministic", "benchmark")]


@pytest.fixture
def flags() -> Iterator[None]:
    """Restore torch's flags afterward."""
    before = [getattr(owner, name) for owner, name in FLAGS]
    yield
    for (owner, name), value in zip(FLAGS, before, strict=True):
        setattr(owner, name, value)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_products_and_convolutions_are_tf32_on_request_only_and_always_deterministic(
    precision: Any, flags: None
) -> None:
    MATMUL.allow_tf32 = CUDNN.allow_tf32 = precision != "tf32"
    CUDNN.deterministic, CUDNN.benchmark = False, True
    algorithm: Any = SimpleNamespace(modules={})
    set_precision(algorithm, precision, torch.device("cuda"))
    assert (MATMUL.allow_tf32, CUDNN.allow_tf32) == (precision == "tf32",) * 2
    assert CUDNN.deterministic
    assert not CUDNN.benchmark


@pytest.mark.parametrize(("device", "deterministic"), [("meta", True), ("cpu", False)])
def test_inductor_chooses_a_gpus_kernels_without_timing(
    device: str, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.config

    patches: dict[str, object] = {}

    def compile(*_: object, options: dict[str, Any], **__: object) -> Any:
        patches.update(options["config_patches"])
        return lambda x: x

    monkeypatch.setattr(torch._inductor, "standalone_compile", compile)
    CompiledGraph(symbolic_trace(lambda x: x + 1))(torch.zeros(2, device=device))
    assert patches["deterministic"] == deterministic
    assert patches.get("combo_kernels", False) == deterministic
    assert all(hasattr(torch._inductor.config, name.split(".")[0]) for name in patches)
    assert not inductor_options(device == "cpu", "separate").get("combo_kernels", False)


class CUDA:
    """A fake of `torch.cuda` for captures that records the device and stream of each call."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.index, self.stream, self.noted = 0, "default", list[tuple[Any, ...]]()
        for name in ("device", "graph"):
            patch.setattr(torch.cuda, name, getattr(self, f"_{name}"))
        patch.setattr(torch.cuda, "stream", self._stream)
        patch.setattr(torch.cuda, "Stream", self._new_stream)
        patch.setattr(torch.cuda, "current_device", lambda: self.index)
        patch.setattr(torch.cuda, "current_stream", lambda: self._new_stream(self.index))
        patch.setattr(torch.cuda, "CUDAGraph", object)

    def _new_stream(self, index: int) -> Any:
        return SimpleNamespace(index=index, wait_stream=lambda _: None)

    @contextmanager
    def _device(self, device: torch.device) -> Iterator[None]:
        before, self.index = self.index, device.index
        yield
        self.index = before

    @contextmanager
    def _stream(self, stream: Any) -> Iterator[None]:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    @contextmanager
    def _graph(self, _: object, **options: Any) -> Iterator[None]:
        self.noted.append(("capture", self.index, options))
        with self._stream(options["stream"]):
            yield


def test_a_program_is_captured_on_the_engines_gpu_while_other_threads_allocate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All programs of a device share a stream, because cuBLAS keeps memory for each stream."""
    compile_module.capture_stream.cache_clear()
    cuda, device = CUDA(monkeypatch), torch.device("cuda", 1)

    def update(leaves: list[Tensor], inputs: list[Tensor]) -> Tensor:
        cuda.noted.append(("update", cuda.index, cuda.stream))
        return torch.zeros(1)

    engine: Any = SimpleNamespace(device=device, capture=True, state=[], log=print)
    engine._state_preserved, engine._trace = (
        lambda: Engine._state_preserved(engine),
        lambda *_: (update, [], []),
    )
    for _ in range(2):
        Engine._build(engine, "update", (0,), False)
    stream = compile_module.capture_stream(1)
    options = {"stream": stream, "capture_error_mode": "thread_local"}
    calls = [("update", 1, stream)] * 3 + [("capture", 1, options), ("update", 1, stream)]
    assert cuda.noted == 2 * calls
    assert stream.index == 1
    assert cuda.index == 0
    compile_module.capture_stream.cache_clear()


def engine_with(device: str, cost: UpdateCost) -> Any:
    """Return a stand-in for an engine on `device` whose updates have a given cost."""
    return SimpleNamespace(
        device=torch.device(device), precision="fp32", update_cost=lambda _="update": cost
    )


@pytest.mark.parametrize(
    ("device", "calls", "expected"),
    [("cpu", 400, 1_000), ("cuda", 400, 10_000), ("cuda", 1_600, 10_000), ("cuda", 1_700, 1_000)],
)
def test_short_updates_on_a_gpu_are_logged_less_often(
    device: str, calls: int, expected: int
) -> None:
    """The estimate is 3 µs per call, so 1,000 updates of 1,666 calls take 5 s."""
    assert log_interval(engine_with(device, UpdateCost(calls, 0, 0, 0)), "update") == expected


def test_a_run_on_a_gpu_uses_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    large = engine_with("cuda", UpdateCost(400, 1e9, 20, 1e12))
    assert choose("never", large, 10).threads == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # the user's choice
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert choose("never", large, 10).threads == 3
