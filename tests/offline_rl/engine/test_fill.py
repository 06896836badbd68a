"""Tests of `Engine.fill`: rows that an algorithm computes are stored and sampled on the device."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import Algorithm, Metrics, State, minimize
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.schedule import Counts
from offline_rl.data import Dataset
from offline_rl.engine.engine import Engine
from offline_rl.replay.batch import Batch, Source, Sources, require
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.ring import Ring
from offline_rl.runs.folder import Done, SeedFolder
from offline_rl.training import checkpoint
from offline_rl.training.work import Progress
from policies.spec import Spec

ROWS, CAPACITY, SEEDS = 8, 30, [3, 5]


@dataclass(frozen=True)
class Config:
    discount: float = 0.9


class Imagines(Algorithm):
    """Stores rows of the data with a number that the network predicts as their reward."""

    Config: ClassVar[type] = Config

    def networks(self) -> dict[str, nn.Module]:
        return {"policy": nn.Linear(1, 1)}

    def optimizers(self) -> dict[str, Adam]:
        return {"policy": Adam(1e-2)}

    def rings(self) -> Mapping[str, int]:
        return {"imagined": CAPACITY}

    def source(self, phase: str, sources: Sources) -> Source:
        return require(sources, "imagined" if phase == "update" else "offline")

    def fill(self, state: State, batch: Batch) -> dict[str, Tensor]:
        """Return two steps, s -> s + 100 -> s + 200, from each state; the second, if s is even."""
        s = batch.observations  # [B, 1]
        observations = torch.stack([s, s + 100], 1).flatten(0, 1)  # [2 B, 1]
        is_second = torch.arange(len(observations), device=s.device) % 2
        is_even = s.repeat_interleave(2, 0)[:, 0] % 2 == 0
        valid = (is_second == 0) | is_even
        return {
            "observations": observations,
            "actions": state.random.uniform(observations.shape),
            "rewards": state.policy(observations)[:, 0],
            "terminated": torch.zeros_like(is_second),
            "truncated": (is_second == 1) | ~is_even,
            "next_observations": observations + 100,
            "valid": valid,
        }

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Regress the reward toward the state."""

        def loss(policy: Any) -> Tensor:
            return (policy(batch.observations) - batch.observations / 100).square().mean()

        state, value = minimize(state, "policy", loss)
        return state, {"loss": value, "imagined": batch.observations.max()}


def data() -> Dataset:
    rows = np.arange(20)
    observations = rows[:, None].astype(np.float32)
    return Dataset.from_arrays(
        observations, 0 * observations, 0.0 * rows, rows == 19, rows < 0, observations + 1
    )


def engine(seeds: list[int]) -> Engine:
    ring = Ring((1,), 1, CAPACITY, streams=len(seeds))
    sources = {"offline": ReplayBuffer.from_dataset(data()), "imagined": ring}
    return Engine(lambda _: Imagines(Spec((1,), 1), Config()), seeds, sources, batch_size=16)


def rows_of(ring: Any, s: int) -> list[tuple[float, ...]]:
    """Return (state, next state, action, reward, truncated) from the oldest row to the newest."""
    tensors = {k: v[s] for k, v in ring.tensors().items()}
    at = (tensors["oldest"] + torch.arange(int(tensors["size"]))) % CAPACITY
    parts = [tensors["observations"][at, 0], tensors["observations"][at + CAPACITY, 0]]
    parts += [tensors["actions"][at, 0], tensors["rewards"][at], tensors["truncated"][at]]
    return list(zip(*(part.tolist() for part in parts), strict=True))


def expected_rows(e: Engine, s: int, states: list[float]) -> list[tuple[float, ...]]:
    """Return the rows that follow from states of the data, without their actions."""
    weights = {k: v[s].flatten().item() for k, v in e.state["params"]["policy"].items()}
    rows = []
    for start in states:
        for step in range(2 if start % 2 == 0 else 1):
            now = start + 100 * step
            reward = weights["weight"] * now + weights["bias"]
            rows.append((now, now + 100, reward, float(step == 1 or start % 2 == 1)))
    return rows


def test_fifty_cycles_of_filling_and_learning_keep_the_newest_rows_of_every_seed() -> None:
    e = engine(SEEDS)
    known: list[list[tuple[float, ...]]] = [[], []]
    actions = [set[float](), set[float]()]
    for cycle in range(50):
        before = [list(numbers) for numbers in known]
        e.fill("update", ROWS, "states", "imagined")
        for s in range(len(SEEDS)):
            stored = rows_of(e.sources["imagined"], s)
            new = [row for row in stored if row[2] not in actions[s]]
            actions[s] |= {row[2] for row in new}
            states = [row[0] for row in new if row[0] < 100]
            assert len(states) == ROWS
            known[s] = before[s] + expected_rows(e, s, states)
            found = [(a, b, reward, flag) for a, b, _, reward, flag in stored]
            np.testing.assert_allclose(found, known[s][-CAPACITY:], rtol=1e-5, atol=1e-5)
        e.run(3)
        assert e.done["update"] == e.updates == 3 * (cycle + 1)
    assert rows_of(e.sources["imagined"], 0) != rows_of(e.sources["imagined"], 1)
    assert (e.metrics()["imagined"] >= 100).all()


def test_stacked_seeds_store_what_single_seeds_do() -> None:
    stacked, singles = engine(SEEDS), [engine([seed]) for seed in SEEDS]
    for e in (stacked, *singles):
        for _ in range(6):
            e.fill("update", ROWS, "states", "imagined")
            e.run(5)
    for s, single in enumerate(singles):
        one, other = (rows_of(e.sources["imagined"], k) for e, k in ((stacked, s), (single, 0)))
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_training_resumed_between_filling_and_learning_equals_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    """The checkpoint of each seed holds its networks, its counters and the rows of its ring."""
    one, two = engine(SEEDS), engine([8, 9])
    for _ in range(3):
        one.fill("update", ROWS, "states", "imagined")
        one.run(5)
    one.fill("update", ROWS, "states", "imagined")
    ring, other = (e.sources["imagined"] for e in (one, two))
    assert isinstance(ring, Ring)
    assert isinstance(other, Ring)
    folders, done = [SeedFolder(tmp_path, seed) for seed in SEEDS], Done(updates=15)
    progress = Progress(
        counters={"update": Counts(updates=15, rows=4 * ROWS)}, diverged=[None, None]
    )
    checkpoint.save(folders, done, progress, one, None, {})
    assert checkpoint.load(folders, done, two, None) == progress
    assert two.done == one.done
    for e in (one, two):
        e.run(5)
        e.fill("update", ROWS, "states", "imagined")
    for s in range(2):
        assert rows_of(ring, s) == rows_of(other, s)
        for name, tensor in one.seed_state(s).items():
            assert torch.equal(tensor, two.seed_state(s)[name]), name


def test_fills_between_two_updates_have_random_numbers_of_their_own() -> None:
    e, drawn = engine(SEEDS), [list[float](), list[float]()]
    for repeat in range(2):
        e.fill("update", ROWS, "states", "imagined", repeat=repeat)
    for s in range(len(SEEDS)):
        drawn[s] = [row[2] for row in rows_of(e.sources["imagined"], s)]
        assert len({*drawn[s]}) == len(drawn[s]) > ROWS
    assert not {*drawn[0]} & {*drawn[1]}


def test_a_checkpoint_returns_the_experience_and_the_memory_of_every_seed(tmp_path: Path) -> None:
    class Collects:
        """Has one tensor of experience and one of the policy's memory for each seed."""

        def state(self, s: int) -> dict[str, int]:
            return {"steps": 10 + s}

        def tensors(self, s: int) -> dict[str, Tensor]:
            return {"buffer/x": torch.tensor([1.0 + s]), "memory/y": torch.tensor([5.0 + s])}

        def restore(self, states: Any, tensors: Any) -> None:
            self.states, self.restored = states, tensors

    e, one, two = engine(SEEDS), Collects(), Collects()
    folders, progress = [SeedFolder(tmp_path, s) for s in SEEDS], Progress(diverged=[None, None])
    collectors: list[Any] = [one, two]
    checkpoint.save(folders, Done(), progress, e, collectors[0], {})
    checkpoint.load(folders, Done(), e, collectors[1])
    assert two.states == [{"steps": 10}, {"steps": 11}]
    assert two.restored == [one.tensors(0), one.tensors(1)]


def test_a_source_that_does_not_exist_or_stores_no_rows_is_refused() -> None:
    e = engine([0])
    with pytest.raises(ValueError, match="the run has no source 'dreams'"):
        e.fill("update", ROWS, "states", "dreams")
    with pytest.raises(ValueError, match="ReplayBuffer cannot store rows of a program"):
        e.fill("update", ROWS, "states", "offline")
