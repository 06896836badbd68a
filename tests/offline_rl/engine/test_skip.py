"""Updates that change nothing can be skipped: counters and random numbers go on as if they ran."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import Algorithm, Metrics, State
from offline_rl.algorithms.common.optim import Adam
from offline_rl.data import Dataset
from offline_rl.engine.engine import Engine
from offline_rl.replay.batch import Batch
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.utils.trees import flatten
from policies.networks.mlp import Scalar
from policies.spec import Spec


@dataclass(frozen=True)
class Config:
    discount: float = 0.9


class Sums(Algorithm):
    """Adds up random numbers, and notes the numbers of its updates. Phase `idle` does nothing."""

    Config: ClassVar[type] = Config
    names = ("policy", "digits", "idle_digits")

    def networks(self) -> dict[str, nn.Module]:
        return {name: Scalar(0.0) for name in self.names}

    def optimizers(self) -> dict[str, Adam]:
        return {}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        total = state.policy() + state.random.uniform(()) + batch.rewards.sum()
        return self.noted(state, policy=total, digits=10 * state.digits() + state.done)

    def idle(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        return self.noted(state, idle_digits=state.idle_digits() * 1)

    def count(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        return self.noted(state, idle_digits=10 * state.idle_digits() + state.done)

    def noted(self, state: State, **values: Tensor) -> tuple[State, Metrics]:
        params = {**state.params, **{name: {"value": x} for name, x in values.items()}}
        return replace(state, params=params), {"done": state.done.float()}

    def has_converged(self, phase: str, params: Any) -> Tensor:
        assert phase == "idle"
        return params["policy"]["value"] > 0


def engine(seeds: Sequence[int] = (3, 8)) -> Engine:
    rows = np.arange(20.0, dtype=np.float32)
    ends, column = rows == 19, rows[:, None]
    data = Dataset.from_arrays(column, 0 * column, rows, ends, ~ends, column)
    buffer = ReplayBuffer.from_dataset(data)
    return Engine(lambda _: Sums(Spec((1,), 1), Config()), seeds, buffer, batch_size=4)


def test_skipped_updates_equal_updates_that_change_nothing() -> None:
    """Also in the middle of a phase: `done` goes on with the number after the skipped updates."""
    one, two = engine(), engine()
    for e, leave_out in ((one, run_idle), (two, skip_idle)):
        e.run(2)
        leave_out(e, 4)
        e.run(1)
        e.run(1, "idle")
        leave_out(e, 2)
        e.run(2)
    assert one.updates == two.updates == 2 + 4 + 1 + 1 + 2 + 2
    assert one.done == two.done == {"update": 5, "idle": 7}
    for s in range(2):
        a, b = one.seed_state(s), two.seed_state(s)
        assert a.keys() == b.keys()
        for name, value in a.items():
            assert torch.equal(value, b[name]), name
        assert float(a["params/digits/value"]) == 1234  # 0, 1, 2, 3, 4
    assert one.seed_state(0)["params/policy/value"] != one.seed_state(1)["params/policy/value"]


def run_idle(e: Engine, number: int) -> None:
    e.run(number, "idle")


def skip_idle(e: Engine, number: int) -> None:
    e.skip(number, "idle")


def test_the_number_of_an_update_counts_skipped_updates_of_its_phase() -> None:
    e = engine()
    e.run(1, "count")
    e.skip(3, "count")
    e.run(2, "count")
    assert e.seed_state(0)["params/idle_digits/value"] == 45  # 0, then 4 and 5


def test_a_phase_has_converged_if_it_has_for_all_seeds() -> None:
    e = engine()
    for values, expected in (([0.0, 0.0], False), ([1.0, 0.0], False), ([1.0, 2.0], True)):
        e.state["params"]["policy"]["value"].copy_(torch.tensor(values))
        assert e.has_converged("idle") is expected


@pytest.mark.parametrize("phase", ["update", "idle"])
def test_an_update_of_one_seed_writes_only_what_it_computes(phase: str) -> None:
    """Writing the rest onto itself would take memory bandwidth, and kernels on a GPU."""
    e = engine([3])
    graph, _, _ = e._trace(phase, (0,))
    names = dict(zip(graph.graph.find_nodes(op="placeholder"), flatten(e.state), strict=False))
    copies = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    networks = {"update": ["digits", "policy"], "idle": ["idle_digits"]}[phase]
    written = {f"params/{name}/value" for name in networks} | {"counters/update"}
    assert {names[node.args[0]] for node in copies} == written
