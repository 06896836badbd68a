"""Work is counted on the graph, and what is chosen follows from it alone."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from offline_rl.engine.work import Work, compiling_pays, count

# (calls, MB written, products, MFLOP) of an update as the engine traced it for docs/performance.md
TD3_BC, TD3_BC_8 = Work(378, 29.2e6, 21, 451e6), Work(405, 283e6, 21, 3610e6)
IQL, IQL_8 = Work(567, 37.6e6, 33, 572e6), Work(605, 362e6, 33, 4579e6)
CQL, CQL_8 = Work(985, 372e6, 46, 13725e6), Work(1040, 3883e6, 46, 109802e6)
BC = Work(194, 7.1e6, 8, 107e6)


def test_products_calls_and_what_they_write_are_counted() -> None:
    """Two products, a sum and a ReLU; that a matrix is read transposed costs nothing."""

    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.relu(x @ w @ w.t() + b)

    graph = make_fx(program)(torch.ones(3, 4), torch.ones(4, 5), torch.ones(4))
    work = count(graph, 1)
    assert work == Work(
        calls=4, bytes=4 * (3 * 5 + 3 * (3 * 4)), products=2, flops=2 * (2 * 3 * 4 * 5)
    )
    assert count(graph, 2) == Work(*(total / 2 for total in work))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("work", [TD3_BC, TD3_BC_8, IQL, IQL_8, CQL, CQL_8])
def test_usual_networks_take_both_of_two_cores(work: Work, precision: str) -> None:
    assert work.threads(2, precision) == 2
    assert work.threads(1, precision) == 1


def test_small_products_take_one_thread_and_bf16_ones_sooner() -> None:
    assert Work(400, 1e6, 20, 20 * 2 * 256 * 64 * 64).threads(2, "fp32") == 1
    assert (BC.threads(2, "fp32"), BC.threads(2, "bf16")) == (2, 1)
    assert Work(5, 1e3, 0, 0).threads(8, "fp32") == 1


@pytest.mark.parametrize(
    ("work", "measured"), [(BC, 585), (Work(687, 129e6, 33, 2290e6), 52.7)], ids=["bc", "f_dvl"]
)
def test_the_time_by_rule_is_near_the_time_on_the_clock(work: Work, measured: float) -> None:
    """updates/s of the uncompiled graph on two cores: benchmarks/results/speed-cpu.json."""
    assert 1 / work.seconds("cpu", "fp32", 2) == pytest.approx(measured, rel=0.25)


def test_the_demo_is_compiled_and_a_look_is_not() -> None:
    three = Work(580, 130e6, 33, 3 * 572e6)  # IQL, three seeds
    for precision in ("fp32", "bf16"):
        seconds = three.seconds("cpu", precision, 2)
        assert compiling_pays(seconds, 20_000)
        assert not compiling_pays(seconds, 1_000)
