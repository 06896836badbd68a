"""Ranks that exchange tensors, and what each rank of a run does, without starting processes."""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_data import save_small

from offline_rl.algorithms.flow_policy import FlowPolicy
from offline_rl.engine import engine as engine_module
from offline_rl.engine import ranks as ranks_module
from offline_rl.engine.engine import Engine
from offline_rl.engine.ranks import Ranks
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.runs.run import runs_of
from offline_rl.training import checkpoint
from offline_rl.training.prepare import prepare
from offline_rl.training.train import train_stack
from offline_rl.training.work import Counts, Progress
from offline_rl.utils.random import SlicedRandom
from offline_rl.utils.trees import to_json_values
from policies.spec import Spec

WORLD = 3


class Distributed:
    """The functions of torch.distributed that ranks call. Each rank is a thread."""

    ReduceOp = SimpleNamespace(SUM=sum, MAX=max, MIN=min)

    def __init__(self) -> None:
        self.own, self.barrier = threading.local(), threading.Barrier(WORLD)
        self.slots: list[Any] = [None] * WORLD

    def get_rank(self) -> int:
        rank: int = self.own.rank
        return rank

    def get_world_size(self) -> int:
        return WORLD

    def exchange(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks."""
        self.slots[self.get_rank()] = x.clone()
        self.barrier.wait(20)
        tensors = list(self.slots)
        self.barrier.wait(20)
        return tensors

    def all_reduce(self, x: torch.Tensor, op: Any = sum) -> None:
        x.copy_(torch.as_tensor(op(self.exchange(x))))

    def all_gather(self, tensors: list[torch.Tensor], x: torch.Tensor) -> None:
        for target, value in zip(tensors, self.exchange(x), strict=True):
            target.copy_(value)

    def broadcast(self, x: torch.Tensor, source: int) -> None:
        x.copy_(self.exchange(x)[source])


@pytest.fixture
def on_all(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Any]]:
    """Function that returns the results of work(ranks) on three connected ranks."""
    distributed = Distributed()
    monkeypatch.setattr(ranks_module, "dist", distributed)

    def run(work: Callable[[Ranks], Any]) -> list[Any]:
        results: list[Any] = [None] * WORLD

        def target(rank: int) -> None:
            distributed.own.rank = rank
            results[rank] = work(Ranks(rank, WORLD))

        threads = [threading.Thread(target=target, args=(k,)) for k in range(WORLD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return results

    return run


def test_the_gradients_of_all_ranks_are_averaged(on_all: Any) -> None:
    def work(ranks: Ranks) -> Any:
        k = float(ranks.rank)
        return ranks.average({"w": torch.tensor([[k, 10.0]]), "b": torch.tensor(6 * k)})

    for tree in on_all(work):
        assert tree["w"].tolist() == [[1, 10]]
        assert tree["b"].item() == 6


def test_values_of_different_lengths_are_gathered_and_rank_0_shares_its_own(on_all: Any) -> None:
    values = ["", [1, "é", None], {"a": "b" * 40}]
    assert on_all(lambda ranks: ranks.gather(values[ranks.rank])) == [values] * WORLD
    assert on_all(lambda ranks: ranks.share(f"of rank {ranks.rank}")) == ["of rank 0"] * WORLD


def test_the_largest_number_counts_and_one_true_flag(on_all: Any) -> None:
    assert on_all(lambda ranks: ranks.largest((5, 9, 7)[ranks.rank])) == [9] * WORLD
    assert on_all(lambda ranks: ranks.any(lambda: ranks.rank == 1)()) == [True] * WORLD
    assert on_all(lambda ranks: ranks.any(lambda: False)()) == [False] * WORLD


def test_all_ranks_receive_the_tensors_of_rank_0(on_all: Any) -> None:
    def work(ranks: Ranks) -> list[list[float]]:
        tensors = {"x": torch.full((2,), float(ranks.rank)), "n": torch.tensor([ranks.rank + 5])}
        ranks.copy_from_first(tensors)
        return [x.tolist() for x in tensors.values()]

    assert on_all(work) == [[[0, 0], [5]]] * WORLD


class Role(Ranks):
    """One of two ranks, alone. Rank 1 receives what rank 0 has shared in its run before."""

    def __init__(self, rank: int, shared: list[Any] | None = None, slice_size: int = 7) -> None:
        super().__init__(rank, 2)
        self.shared: list[Any] = [] if shared is None else list(shared)
        self.slice_size, self.facts = slice_size, dict[str, Any]()
        self.checked, self.copied = list[str](), 0
        self.stops = False

    def average(self, tree: Any) -> Any:
        return tree

    def largest(self, value: int) -> int:
        return self.slice_size

    def any(self, flag: Callable[[], bool]) -> Callable[[], bool]:
        return lambda: self.stops

    def share(self, value: Any) -> Any:
        if self.rank:
            return self.shared.pop(0)
        self.shared.append(json.loads(json.dumps(to_json_values(value))))
        return self.shared[-1]

    def copy_from_first(self, tensors: Any) -> None:
        self.copied += 1

    def agree(self, facts: Any, error: str | None = None) -> None:
        self.facts = dict(facts)

    def check_equal(self, tensors: Any, moment: object) -> None:
        self.checked += [*tensors]


KEYS: dict[str, Any] = {"algorithm": "flow_policy", "task": "none", "dataset": "small.npz"}
KEYS |= {"algorithm.network": "mlp", "algorithm.widths": [8, 8], "algorithm.levels": 2}
KEYS |= {"algorithm.num_warmup_updates": 2, "algorithm.horizon": 4, "algorithm.n_action_steps": 2}
KEYS |= {"batch_size": 4, "compile": "never", "device": "cpu", "tracker": "none"}


@pytest.fixture
def slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of updates of each call of the engine. The working folder has data."""
    monkeypatch.chdir(tmp_path)
    save_small(tmp_path / "small.npz")
    numbers, run = list[int](), Engine.run

    def recorded(engine: Engine, updates: int, *arguments: Any) -> None:
        numbers.append(updates)
        run(engine, updates, *arguments)

    monkeypatch.setattr(Engine, "run", recorded)
    return numbers


def test_rank_1_trains_as_rank_0_does_and_writes_and_prints_nothing(
    slices: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both run the updates in the slices that all ranks agree on, here 7 after the first one."""
    first = Role(0)
    result = train_stack(prepare(runs_of(KEYS | {"num_updates": 20, "out": "zero"})), ranks=first)
    assert slices == [1, 7, 7, 5]
    assert list(Path("zero").rglob("policy.bundle"))
    capsys.readouterr()
    slices.clear()
    second = Role(1, first.shared)
    prepared = prepare(runs_of(KEYS | {"num_updates": 20, "out": "one"}))
    followed = train_stack(prepared, ranks=second)
    assert slices == [1, 7, 7, 5]
    assert second.shared == []
    assert not Path("one").exists()
    assert capsys.readouterr().out == ""
    assert followed.results[0]["num_updates"] == result.results[0]["num_updates"] == 20
    for role in (first, second):
        assert role.copied == 1
        assert any(name.startswith("params/") for name in role.checked)
    assert first.facts == second.facts
    assert {"torch", "offline_rl"} <= first.facts.keys()
    assert "20" in map(str, first.facts.values())  # num_updates


def test_all_ranks_stop_when_one_of_them_has_to(slices: list[int]) -> None:
    role = Role(0)
    role.stops = True
    with pytest.raises(KeyboardInterrupt):
        train_stack(prepare(runs_of(KEYS | {"num_updates": 20, "out": "zero"})), False, ranks=role)
    assert sum(slices) < 20
    assert list(Path("zero").rglob("checkpoints/*"))


def test_a_rank_continues_from_the_progress_of_rank_0() -> None:
    theirs = Progress(counters={"update": Counts(updates=60)}, wall_seconds=5.0)
    own = Progress()
    done = list[Any]()
    engine: Any = SimpleNamespace(copy_from_first=done.append)
    engine.ranks = Role(1, [json.loads(json.dumps(to_json_values(asdict(theirs))))])
    assert checkpoint.send(own, engine) == theirs
    assert done == [{"update": 60}]
    engine.ranks = Role(0)
    assert checkpoint.send(theirs, engine) is theirs
    assert checkpoint.send(own, SimpleNamespace(ranks=None)) is own  # type: ignore[arg-type]


def flow_engine(**options: Any) -> Engine:
    cfg = FlowPolicy.Config(**FlowPolicy.Config.small())
    return Engine(
        lambda _: FlowPolicy(Spec((3,), 2), cfg, 10),
        [0],
        ReplayBuffer((3,), 2, 40),
        batch_size=6,
        **options,
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_samples_its_slice_of_a_batch(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = flow_engine(ranks=Role(rank))
    _, source = engine.for_phase("update")
    sampled = list[Any]()

    def sample(data: Any, random: Any, rows: int, discount: Any) -> Any:
        sampled.append((random, rows))
        raise InterruptedError

    monkeypatch.setattr(source, "sample", sample)
    with pytest.raises(InterruptedError):
        engine.run(1)
    ((random, rows),) = sampled
    assert rows == 3
    assert isinstance(random, SlicedRandom)
    assert (random.rank, random.world_size) == (rank, 2)


def test_all_ranks_run_uncompiled_if_the_compiled_code_of_one_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here, the compiled code is the graph itself, which is right."""
    monkeypatch.setattr(engine_module, "compile_graph", lambda graph, *_: graph)
    monkeypatch.setattr(engine_module.verify, "difference", lambda *_: None)
    graph, messages = torch.fx.symbolic_trace(torch.nn.Identity()), list[str]()
    graph.meta["metrics"] = []
    for slice_size, code in ((0, {}), (1, {"update": "uncompiled"})):
        engine = flow_engine(ranks=Role(0, slice_size=slice_size))
        engine.log = messages.append
        monkeypatch.setattr(engine_module.verify, "fill_zeros", lambda *_: None)
        monkeypatch.setattr(engine_module.verify, "call", lambda *_: [])
        monkeypatch.setattr(engine_module.verify, "call_with_rounding_errors", lambda *_: [])
        leaves = [torch.zeros(1) for _ in range(len(engine_module.flatten(engine.state)))]
        engine._compile("update", graph, leaves, [])
        assert engine.fallbacks == code
    assert "on another rank" in messages[0]


@pytest.mark.parametrize(("rank", "text"), [(0, "a line\n"), (1, "")])
def test_only_rank_0_prints(
    rank: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ranks_module, "join", lambda: Ranks(rank, 2))
    with ranks_module.session() as ranks:
        assert ranks.in_session
        print("a line")
    assert capsys.readouterr().out == text
    assert not ranks.in_session
