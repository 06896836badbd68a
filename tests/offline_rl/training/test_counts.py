"""Each phase and each unit of work has a counter of its own."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from offline_rl.algorithms.common.schedule import (
    Collect,
    Counts,
    Fill,
    Interact,
    Learn,
    Online,
    Position,
)
from offline_rl.engine.acting import EXPLORATION
from offline_rl.engine.engine import APPLY_STREAM
from offline_rl.online.collector import Collector
from offline_rl.training.work import Progress, Work
from offline_rl.utils.seeds import TRAINING_SEEDS


def test_a_total_adds_one_unit_over_all_phases() -> None:
    counters = {"a": Counts(1, 20, 300), "b": Counts(4, 50, 600)}
    progress = Progress(counters=counters)
    assert progress.total("updates") == 5
    assert progress.total("env_steps") == 70
    assert progress.total("rows") == 900


def test_updates_of_a_phase_are_due_for_its_own_environment_steps_alone() -> None:
    """A phase with 30 steps and batches of 8 owes 22 updates, whatever other phases did."""
    online = Online(utd=1.0)
    algorithm = SimpleNamespace(interaction=SimpleNamespace(online=online), period=1)
    engine: Any = SimpleNamespace(for_phase=lambda phase: (algorithm, None), batch_size=8)
    collector: Any = SimpleNamespace(can_sample=lambda size: True)
    curves: Any = SimpleNamespace(diverged=[None])
    schedule = [Collect("a", 50, 2), Fill("b", 9, "a"), Interact("online", 30)]
    intervals = {"eval_every": 100, "checkpoint_every": 100}
    work = Work(engine, schedule, collector, curves, overlap=False, **intervals)
    work.progress.counters = {"a": Counts(7, 100, 0), "b": Counts(0, 0, 9), "online": Counts(2, 30)}
    assert work._owed_updates("online") == 22 - 2
    assert work.steps() == {"a": 100, "b": 9, "online": 30}


def test_a_phase_goes_on_after_pieces_without_evaluation() -> None:
    """Updates of b between two parts of a are no end of a. The end of the schedule is an end."""
    engine, curves = SimpleNamespace(), SimpleNamespace(diverged=[None])
    model, main = [Learn("b", 3, evaluate=False), Fill("a", 9, "b")], Learn("a", 4)
    schedule = [main, *model, main, *model, Learn("c", 2), main, model[0]]
    ends = [False, False, False, True, False, False, True, True, True]
    intervals = {"eval_every": 100, "checkpoint_every": 100}
    work: Any = Work(engine, schedule, None, curves, overlap=False, **intervals)
    for k, piece in enumerate(schedule):
        work.progress.position = Position(k, piece.size)
        assert work._ended == ends[k], k
        work.progress.position = Position(k, piece.size - 1)
        assert not work._ended


def test_updates_wait_until_every_seed_has_rows() -> None:
    """The episodes of the second seed failed, so that it has no rows yet."""
    for sizes, expected in (([9, 0], False), ([9, 1], True)):
        parts: dict[str, Any] = {
            "buffer": SimpleNamespace(waits_for_episode_end=False, sizes=sizes),
            "sink": SimpleNamespace(appends_steps=True, envs_per_seed=1),
            "episodes": SimpleNamespace(rewards=np.zeros((2, 50))),
        }
        collector: Any = SimpleNamespace(**parts, steps=9, _steps_per_call=1)
        assert Collector.can_sample(collector, 8) is expected


def test_acting_updates_and_filling_never_share_random_numbers() -> None:
    """A stream starts at its number plus the seed of the run."""
    streams = sorted([0, EXPLORATION, APPLY_STREAM])
    assert all(b - a >= TRAINING_SEEDS for a, b in pairwise(streams))
