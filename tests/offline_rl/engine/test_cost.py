"""The cost of an update is counted on its graph; threads and compilation depend only on it."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from offline_rl.engine.cost import UpdateCost, count_cost, is_worth_compiling

# (calls, MB written, products, MFLOP) of traced updates in docs/explanation/performance.md
TD3_BC, TD3_BC_8 = UpdateCost(378, 29.2e6, 21, 451e6), UpdateCost(405, 283e6, 21, 3610e6)
IQL, IQL_8 = UpdateCost(567, 37.6e6, 33, 572e6), UpdateCost(605, 362e6, 33, 4579e6)
CQL, CQL_8 = UpdateCost(985, 372e6, 46, 13725e6), UpdateCost(1040, 3883e6, 46, 109802e6)
BC = UpdateCost(194, 7.1e6, 8, 107e6)


def test_calls_products_and_written_bytes_are_counted() -> None:
    """Two products, a sum and a ReLU. The transposed view costs nothing."""

    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.relu(x @ w @ w.t() + b)

    graph = make_fx(program)(torch.ones(3, 4), torch.ones(4, 5), torch.ones(4))
    cost = count_cost(graph, 1)
    assert cost == UpdateCost(
        calls=4, bytes=4 * (3 * 5 + 3 * (3 * 4)), matmuls=2, flops=2 * (2 * 3 * 4 * 5)
    )
    assert count_cost(graph, 2) == UpdateCost(*(total / 2 for total in cost))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("cost", [TD3_BC, TD3_BC_8, IQL, IQL_8, CQL, CQL_8])
def test_usual_networks_use_both_of_two_cores(cost: UpdateCost, precision: str) -> None:
    assert cost.threads(2, precision) == 2
    assert cost.threads(1, precision) == 1


def test_small_products_use_one_thread_and_bf16_has_a_higher_threshold() -> None:
    assert UpdateCost(400, 1e6, 20, 20 * 2 * 256 * 64 * 64).threads(2, "fp32") == 1
    assert (BC.threads(2, "fp32"), BC.threads(2, "bf16")) == (2, 1)
    assert UpdateCost(5, 1e3, 0, 0).threads(8, "fp32") == 1


@pytest.mark.parametrize(
    ("cost", "measured"),
    [(BC, 585), (UpdateCost(687, 129e6, 33, 2290e6), 52.7)],
    ids=["bc", "f_dvl"],
)
def test_the_estimated_time_is_close_to_the_measured_time(
    cost: UpdateCost, measured: float
) -> None:
    """updates/s of the uncompiled graph on two cores: benchmarks/results/speed-cpu.json."""
    assert 1 / cost.seconds("cpu", "fp32", 2) == pytest.approx(measured, rel=0.25)


def test_the_demo_is_compiled_and_a_short_run_is_not() -> None:
    three = UpdateCost(580, 130e6, 33, 3 * 572e6)  # IQL, three seeds
    for precision in ("fp32", "bf16"):
        seconds = three.seconds("cpu", precision, 2)
        assert is_worth_compiling(seconds, 20_000)
        assert not is_worth_compiling(seconds, 1_000)
