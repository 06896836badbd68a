"""Each phase and each unit of work has a counter of its own."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

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


class Recorded:
    """An engine, and a collector without updates, that record what they are asked to do."""

    ranks = None  # a single process

    device, batch_size = torch.device("cpu"), 8

    def __init__(self, converged: bool) -> None:
        self.converged, self.done = converged, list[Any]()
        self.steps = self.steps_per_decision = 0

    def __getattr__(self, name: str) -> Any:  # methods without a result that matters
        return lambda *_, **__: None

    def period(self, phase: str) -> int:
        return 1

    def run(self, number: int, phase: str) -> None:
        self.done.append((phase, number))

    def has_converged(self, phase: str) -> bool:
        self.done.append(f"{phase} converged?")
        return self.converged

    def skip(self, number: int, phase: str) -> None:
        self.done.append((phase, number, "skipped"))

    def can_sample(self, size: int) -> bool:
        return False

    def end(self) -> None:
        self.steps += 1


def work_of(schedule: list[Any], *, converged: bool = False) -> tuple[Recorded, Work]:
    engine: Any = Recorded(converged)
    curves: Any = SimpleNamespace(
        diverged=[None], show_progress=engine.show, exclude=engine.exclude
    )
    intervals = {"eval_every": 100, "checkpoint_every": 100}
    work = Work(engine, schedule, engine, curves, overlap=False, **intervals)
    work._log_interval = lambda phase: 100
    return engine, work


def updates(work: Work) -> dict[str, int]:
    return {phase: counts.updates for phase, counts in work.progress.counters.items()}


def test_pieces_after_a_converged_one_are_skipped_and_counted() -> None:
    fit, check = Learn("fit", 3), Learn("check", 1, skips=3)
    schedule = [fit, check, fit, replace(check, skips=1), fit, Learn("end", 2)]
    engine, work = work_of(schedule, converged=True)
    while work.current is not None:
        work.advance()
    skipped = [("fit", 3, "skipped"), ("check", 1, "skipped"), ("fit", 3, "skipped")]
    learned = [each for each in engine.done if each[0] == "fit" and len(each) == 2]
    assert sum(number for _, number in learned) == 3
    assert engine.done[len(learned) :] == [
        ("check", 1),
        "check converged?",
        *skipped,
        ("end", 1),
        ("end", 1),
    ]
    assert updates(work) == {"fit": 9, "check": 2, "end": 2}
    assert work.progress.position == Position(5, 2)
    assert work.progress.timed_updates == 3 + 1 + 2


def test_no_piece_is_skipped_before_convergence_or_within_a_piece() -> None:
    schedule = [Learn("check", 2, skips=1), Learn("fit", 3), Learn("check", 1)]
    engine, work = work_of(schedule, converged=False)
    while work.current is not None:
        work.advance()
    assert not [each for each in engine.done if "skipped" in each]
    assert engine.done.count("check converged?") == 1
    assert updates(work) == {"check": 3, "fit": 3}
    # a requested stop ends the first piece after one of its two updates
    engine, work = work_of(schedule, converged=True)
    work.should_stop = lambda: bool(engine.done)
    work.advance()
    assert engine.done == [("check", 1)]
    assert work.progress.position == Position(0, 1)


@pytest.mark.parametrize("evaluate", [True, False])
def test_environment_steps_are_evaluated_at_their_end_only_if_the_schedule_says_so(
    evaluate: bool,
) -> None:
    """Every third step and the end of the schedule are evaluated in any case."""
    schedule = [Interact("online", 5, evaluate=evaluate), Learn("a", 2, evaluate=False)]
    _, work = work_of([*schedule, Interact("other", 4, evaluate=evaluate)])
    work.eval_every, evaluated = 3, set[Position]()
    while work.current is not None:
        work.advance()
        evaluated.add(work.progress.evaluate_at)
    ends = {Position(0, 5)} if evaluate else set()
    assert evaluated - {Position()} == ends | {Position(0, 3), Position(2, 3), Position(2, 4)}
    assert work.progress.counts("online").env_steps == 5


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
