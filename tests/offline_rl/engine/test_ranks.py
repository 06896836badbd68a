"""Several processes on slices of one batch: equal to one process, without starting processes."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from close_training import TOLERANCE, assert_close
from torch.utils._pytree import tree_map

from offline_rl.algorithms.act import ACT
from offline_rl.algorithms.common.base import Algorithm, Metrics, State
from offline_rl.algorithms.diffusion_policy import DiffusionPolicy
from offline_rl.algorithms.flow_policy import FlowPolicy
from offline_rl.cli.main import main
from offline_rl.data import Dataset
from offline_rl.engine import ranks as ranks_module
from offline_rl.engine.compile import assign_parts, is_exchange
from offline_rl.engine.engine import Engine
from offline_rl.engine.ranks import Ranks, first_difference
from offline_rl.replay.batch import Source
from offline_rl.runs.run import runs_of
from offline_rl.training.sources import offline_source
from offline_rl.utils import hardware
from offline_rl.utils.errors import SharedError, UserError
from offline_rl.utils.random import Random, SlicedRandom
from offline_rl.utils.trees import flatten
from policies.spec import Channel, Spec

WORLD = 2
BATCH = 6
SIDE = 12


class Threads:
    """Ranks that are threads of this process and exchange tensors in memory."""

    def __init__(self) -> None:
        self.barrier, self.values = threading.Barrier(WORLD), dict[int, Any]()

    def average(self, rank: int) -> Callable[[Any], Any]:
        def mean(tree: Any) -> Any:
            self.values[rank] = tree
            self.barrier.wait(10)
            result = tree_map(lambda *x: sum(x) / WORLD, *(self.values[k] for k in range(WORLD)))
            self.barrier.wait(10)
            return result

        return mean

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        results: list[Any] = [None] * WORLD

        def target(rank: int) -> None:
            try:
                results[rank] = work(rank)
            except BaseException as error:
                self.barrier.abort()
                results[rank] = error

        threads = [threading.Thread(target=target, args=(rank,)) for rank in range(WORLD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


def learner(cls: type[Algorithm], spec: Spec, **config: Any) -> Algorithm:
    small = {"lr": 1e-3, "num_warmup_updates": 0, "decay_lr": False}
    algorithm = cls(spec, cls.Config(**(cls.Config.small() | small | config)), 10)
    torch.manual_seed(0)
    assert algorithm.modules
    return algorithm


def data(images: bool) -> tuple[Dataset, Spec]:
    """Return four episodes of different lengths, and their spec."""
    draw, rows = np.random.default_rng(0), 40
    observations: Any = draw.normal(size=(rows, 3)).astype(np.float32)
    spec = Spec((3,), 2)
    if images:
        pixels = draw.integers(0, 256, (rows, SIDE, SIDE, 3), dtype=np.uint8)
        observations = {"camera": pixels, "state": observations}
        channels = Channel("camera", (SIDE, SIDE, 3), "image"), Channel("state", (3,))
        spec = replace(spec, channels=channels)
    ends = np.isin(np.arange(rows), (5, 12, 30, rows - 1))
    actions = draw.uniform(-1, 1, (rows, 2)).astype(np.float32)
    arrays = observations, actions, np.zeros(rows), ends & False, ends
    return Dataset.from_arrays(*arrays), spec


def updated(
    algorithm: Algorithm,
    source: Source,
    size: int,
    random: Callable[[torch.Tensor, torch.Tensor], Random],
    updates: int = 3,
) -> tuple[State, Metrics]:
    """Return the state after some updates on batches of `size` rows, and the last metrics."""
    tree = algorithm.initial()
    tensors = {name: x[0] for name, x in source.tensors().items()}
    numbers = random(torch.tensor(5), torch.tensor(0))
    state = State(algorithm, tree["params"], tree["optimizer"], numbers)
    for k in range(updates):
        numbers = random(torch.tensor(5), torch.tensor(k))
        batch = source.sample(tensors, numbers, size, 1.0)
        state = replace(state, random=numbers, done=torch.tensor(k))
        state, metrics = algorithm.update(state, batch, 0)
    return state, metrics


def tensors_of(state: State) -> dict[str, torch.Tensor]:
    """Return the parameters and moments as in checkpoints."""
    return flatten({"params": dict(state.params), "optimizer": dict(state.optimizer)})


CASES = {
    "noise levels and dropout": (DiffusionPolicy, {"levels": 3, "dropout": 0.2}),
    "unet": (
        DiffusionPolicy,
        {"network": "unet", "widths": (16, 16), "levels": 2, "dropout": 0.2, "mask_ends": True},
    ),
    "edm": (DiffusionPolicy, {"process": "edm", "levels": 2, "num_train_timesteps": 100}),
    "transformer": (
        FlowPolicy,
        {"network": "transformer", "widths": (8, 8), "num_heads": 2, "levels": 2, "dropout": 0.2},
    ),
    "masked ends": (ACT, {"dropout": 0.1, "num_heads": 2, "n_obs_steps": 1}),
    "images": (FlowPolicy, {"levels": 2, "crop": 0.7, "num_keypoints": 3, "dropout": 0.2}),
    "images with masked ends": (
        ACT,
        {"num_heads": 2, "n_obs_steps": 2, "crop": 0.7, "num_keypoints": 3},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_on_slices_equal_one_process_on_the_batch(name: str) -> None:
    cls, config = CASES[name]
    dataset, spec = data(images="images" in name)
    exchange = Threads()

    def train(rank: int | None) -> tuple[State, Metrics]:
        algorithm = learners[rank]
        source = algorithm.source("update", {"offline": offline_source(algorithm, dataset)})
        if rank is None:
            return updated(algorithm, source, BATCH, Random)
        algorithm.average = exchange.average(rank)
        size = BATCH // WORLD
        return updated(algorithm, source, size, lambda *key: SlicedRandom(*key, rank, WORLD))

    learners = {rank: learner(cls, spec, **config) for rank in (None, *range(WORLD))}
    whole, metrics = train(None)
    parts, part_metrics = zip(*exchange.run(train), strict=True)
    expected, actual, other = map(tensors_of, (whole, *parts))
    for key, value in actual.items():
        assert other[key].equal(value)
    assert_close(expected, actual)
    for part in part_metrics:
        for key, value in metrics.items():
            torch.testing.assert_close(part[key], value)
    first = flatten({"params": learners[None].initial()["params"]})
    assert max(float((expected[k] - x).abs().max()) for k, x in first.items()) > 100 * TOLERANCE


@pytest.mark.parametrize("shape", [(4, 3, 5), (12,), (12, 2, 2)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_slices_of_random_numbers_form_those_of_the_batch(
    shape: tuple[int, ...], groups: int
) -> None:
    """A shape [G * b, …] has `groups` consecutive groups of b rows for each slice."""
    key = torch.tensor(3), torch.tensor(7)

    def all_numbers(random: Random, shape: tuple[int, ...]) -> list[torch.Tensor]:
        kinds = random.uniform(shape, groups), random.normal(shape, groups)
        return [*kinds, random.integers(9, shape, groups)]

    slices = [all_numbers(SlicedRandom(*key, rank, 3), shape) for rank in range(3)]
    whole = all_numbers(Random(*key), (3 * shape[0], *shape[1:]))
    for kind, expected in enumerate(whole):
        grouped = [x[kind].reshape(groups, -1, *shape[1:]) for x in slices]
        assert torch.cat(grouped, 1).reshape(expected.shape).equal(expected)


@pytest.fixture
def group() -> Iterator[Ranks]:
    """Connections of a single rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Ranks(0, 1)
    dist.destroy_process_group()


def engine(config: dict[str, Any], **options: Any) -> Engine:
    dataset, spec = data(images=False)

    def make(s: int) -> Algorithm:
        return DiffusionPolicy(spec, DiffusionPolicy.Config(**config), 10)

    first = make(0)
    sources = {"offline": offline_source(first, dataset)}
    return Engine(make, [0], sources, batch_size=BATCH, **options)


def test_an_update_exchanges_gradients_and_the_number_of_unmasked_steps_once(group: Ranks) -> None:
    config = DiffusionPolicy.Config.small() | {"mask_ends": True, "num_warmup_updates": 0}
    alone, one = engine(config), engine(config, ranks=group)
    alone.run(3)
    one.run(3)
    graph, _, _ = one._trace("update", (0,))
    exchanges = [node for node in graph.graph.nodes if is_exchange(node)]
    count = sum(x.numel() for x in one.algorithm.modules["model"].parameters())
    assert [x.meta["val"].numel() for x in exchanges] == [1, count + 1]  # and the loss
    part = assign_parts(graph, set(), 1)
    assert [part[node] % 2 for node in exchanges] == [1, 1]
    for node in graph.graph.nodes:
        if part[node] in (part[x] for x in exchanges):
            assert node in exchanges
    for key, value in flatten(alone.state).items():
        torch.testing.assert_close(flatten(one.state)[key], value, rtol=0, atol=0)
    assert alone.metrics()["policy_loss"] == one.metrics()["policy_loss"]


@pytest.mark.slow
def test_compiled_updates_of_a_rank_equal_uncompiled_ones(group: Ranks) -> None:
    config = DiffusionPolicy.Config.small() | {"mask_ends": True, "num_warmup_updates": 0}
    alone, compiled = engine(config), engine(config, ranks=group, compile=True)
    alone.run(3)
    compiled.run(3)
    assert not compiled.fallbacks
    for key, value in flatten(alone.state["params"]).items():
        actual = flatten(compiled.state["params"])[key]
        torch.testing.assert_close(actual, value, rtol=0, atol=TOLERANCE)


def test_a_single_rank_receives_what_it_sends(group: Ranks) -> None:
    value = {"a": [1, 2.5, None, "é"], "b": {"c": True}}
    assert group.gather(value) == [value]
    assert group.share(np.arange(3)) == [0, 1, 2]
    assert group.largest(7) == 7
    assert group.any(lambda: True)()
    assert not group.any(lambda: False)()
    group.check_equal({"x": torch.tensor([1.0, float("nan")]), "n": torch.tensor([3])}, "start")
    group.agree({"torch": "2.13"})
    assert group.agreed
    with pytest.raises(SharedError, match=r"^a mistake\.$"):
        group.agree({}, "a mistake.")


def test_ranks_with_other_parameters_are_named(
    group: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "gather", lambda sums: [sums, [sums[0], sums[1] + 1]])
    words = r"ranks 0 and 1 differ in params/b after 1,000 updates, because .* compile=never\."
    with pytest.raises(SharedError, match=words):
        group.check_equal({"params/a": torch.ones(2), "params/b": torch.ones(3)}, "1,000 updates")


def test_a_difference_between_ranks_is_described_by_its_first_fact() -> None:
    facts = {"torch": "2.13", "data": "ab", "hyper.lr": 0.1}
    assert first_difference([facts, dict(facts)]) is None
    other = facts | {"data": "cd", "hyper.lr": 0.2}
    assert first_difference([facts, facts, other]) == (
        "rank 2 has data=cd, but rank 0 has data=ab. Start all ranks with the same command, "
        "versions and data."
    )
    assert "hyper.x=1, but rank 0 has hyper.x=None" in str(
        first_difference([facts, facts | {"hyper.x": 1}])
    )


@pytest.mark.parametrize(
    ("reports", "message"),
    [
        ([None, "no data."], "rank 1: no data."),
        (["no data.", "no data."], "no data."),
        (["no data.", "no disk."], "rank 0: no data."),
    ],
)
def test_an_error_of_one_rank_ends_all_of_them(
    reports: list[str | None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Ranks(0, 2)
    monkeypatch.setattr(both, "gather", lambda _: [{"facts": {}, "error": e} for e in reports])
    with pytest.raises(SharedError) as error:
        both.agree({})
    assert str(error.value) == message
    assert not both.agreed


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment of rank 1 of 2."""
    for name, value in zip(hardware.TORCHRUN, ("1", "2", "1", "localhost", "1"), strict=True):
        monkeypatch.setenv(name, value)


KEYS: dict[str, Any] = {"algorithm": "diffusion_policy", "task": "none", "dataset": "x.npz"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"algorithm": "iql"},
            r"^iql trains in a single process, and torchrun has started 2\. Remove torchrun, or "
            r"use one of act, diffusion_policy, flow_policy\.$",
        ),
        (
            {"batch_size": 7},
            r"^batch_size=7 is not a multiple of the 2 processes of torchrun\. Use a multiple "
            r"of 2\.$",
        ),
    ],
)
def test_a_run_that_cannot_share_its_batches_is_refused(
    change: dict[str, Any], words: str, torchrun: None
) -> None:
    assert runs_of(KEYS)
    with pytest.raises(UserError, match=words):
        runs_of(KEYS | change)


def test_the_same_runs_are_accepted_without_torchrun() -> None:
    assert hardware.world_size() == 1
    assert runs_of(KEYS | {"algorithm": "iql"})
    assert runs_of(KEYS | {"batch_size": 7})


def test_a_gpu_cannot_be_chosen_with_torchrun(
    torchrun: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hardware.select_device("cpu").type == "cpu"
    with pytest.raises(UserError, match=r"^device=cuda:0: torchrun gives each process its GPU\."):
        hardware.select_device("cuda:0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (
        hardware.select_device("auto") == hardware.select_device("cuda") == torch.device("cuda:1")
    )


@pytest.mark.parametrize("rank", ["0", "1"])
def test_other_verbs_are_refused_and_only_rank_0_says_so(
    rank: str, torchrun: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", rank)
    assert main(["evaluate", "run=x"]) == 2
    sentence = "offline-rl: evaluate runs in a single process. Start it without torchrun.\n"
    assert capsys.readouterr().err == (sentence if rank == "0" else "")


def test_an_exchange_that_fails_says_that_another_rank_has_ended(group: Ranks) -> None:
    words = r"^rank 0 stops, because another rank has ended\."
    with pytest.raises(SharedError, match=words), ranks_module.exchange():
        raise RuntimeError("Connection closed by peer")
