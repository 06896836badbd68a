"""Online training with a simulator that can be open only once in a process."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from prepared import prepare
from simulators import Server, Single, Walk

import envs
from envs import tasks
from offline_rl import UserError, train
from offline_rl.evaluation.evaluator import Evaluator
from offline_rl.runs.refusals import wrong_learner
from offline_rl.runs.run import runs_of
from policies.heads.deterministic import DeterministicActor

QUICK: dict[str, Any] = {"algorithm": "sac", "num_updates": 0, "num_env_steps": 60, "seeds": 2}
QUICK |= {"eval_every": 25, "eval_episodes": 2, "batch_size": 8, "algorithm.hidden": [8]}
QUICK |= {"compile": "never", "device": "cpu", "tracker": "none", "online.warmup_steps": 20}


class Few(Walk):
    """Two instances can be open. The collectors of two seeds use both."""

    open: ClassVar[int] = 0

    def __init__(self) -> None:
        if Few.open == 2:
            raise RuntimeError("no license is left")
        Few.open += 1

    def close(self) -> None:
        Few.open -= 1


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_registered", {})
    envs.register("walk", Walk, max_episode_steps=20)
    envs.register("single", Single, max_episode_steps=20)
    envs.register("few", Few, max_episode_steps=20)


def test_seeds_that_share_one_instance_train_one_after_another(tmp_path: Path) -> None:
    plan = prepare({**QUICK, "task": "single", "out": str(tmp_path)})
    assert (plan.trains_in_parallel, Single.open) == (False, 0)
    assert prepare({**QUICK, "task": "walk", "out": str(tmp_path)}).trains_in_parallel


def test_collectors_get_scarce_instances_before_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**QUICK, "out": str(tmp_path), "num_env_steps": 12, "eval_every": 6, "task": "few"}
    assert len(train(**options).results) == 2
    assert "Only 2 instances of few can be open (RuntimeError: no license is left)" in (
        capsys.readouterr().out
    )
    with pytest.raises(UserError, match=r"Only 2 instances of few can be open.*Use fewer seeds"):
        train(**{**options, "seeds": 3, "name": "more"})
    assert Few.open == 0


def test_algorithms_that_need_several_environments_are_refused() -> None:
    with closing(envs.make_vector("single", 2, fewer=True)) as env:
        limit = env.limit

    def wrong(count: int) -> list[str]:
        (run,) = runs_of({"algorithm": "dppo", "task": "single", "num_env_steps": 1})
        interaction = SimpleNamespace(cfg=SimpleNamespace(environments=count))
        run = replace(run, method=replace(run.method, interaction=interaction))
        mode = SimpleNamespace(learns=("data",))
        learner: Any = SimpleNamespace(phases={}, needed_phases=(), mode=mode)
        head = DeterministicActor(1, 1, [8])
        return [*wrong_learner(run, learner, head, [], limit)]

    (sentence,) = wrong(40)
    assert sentence.startswith("Only one instance of single")
    assert sentence.endswith("40 environments at the same time. Use algorithm.environments=1.")
    assert wrong(1) == []


class Stacked:
    """Policies of three training seeds. An action depends on this seed and the episode's seed.

    The policy of the last training seed is broken.
    """

    def __init__(self, width: int) -> None:
        self.shape, self.seeds = (3, width), np.zeros(3 * width)

    def reset(self, seeds: np.ndarray | None = None) -> None:
        self.seeds = np.tile(np.arange(self.shape[1]), 3) if seeds is None else seeds

    def observe(self, rewards: torch.Tensor, costs: torch.Tensor | None) -> None:
        assert rewards.shape == self.shape

    def __call__(self, observations: torch.Tensor) -> torch.Tensor:
        assert observations.shape[:2] == self.shape
        of_policy = torch.tensor([[0.1], [-0.2], [np.nan]])
        return (of_policy * torch.from_numpy(self.seeds % 5).reshape(self.shape))[..., None]


@pytest.mark.parametrize("count", [1, 2, 4, 6, 9])
def test_evaluations_in_fewer_environments_play_the_same_episodes(count: int) -> None:
    """Seeds run in groups, or episodes in groups, of which the last one is smaller."""
    engine: Any = SimpleNamespace(seeds=[0, 1, 2], device=torch.device("cpu"))
    engine.stacked_policy = lambda width, **_: Stacked(width)
    starts, found = np.array([11, 12, 13, 14, 16]), list[Any]()
    for number in (count, 3 * len(starts)):
        with closing(envs.make_vector("walk", number)) as env:
            evaluator = Evaluator(engine, env, lambda x: x, starts, background=False)
            found.append(evaluator._play())
            evaluator.abandon()
    (some, broken), (whole, broken_at_once) = found
    assert broken == broken_at_once == {2}
    np.testing.assert_array_equal(some.seeds, np.tile(starts, 3))
    for column in ("seeds", "returns", "lengths"):
        np.testing.assert_array_equal(getattr(some, column), getattr(whole, column))
    assert len({*whole.returns.tolist()}) == 3 * len(starts)


@pytest.mark.parametrize(
    ("eval_envs", "made"), [(1, 2), pytest.param(None, 4, marks=pytest.mark.slow)]
)
def test_an_environment_whose_second_instance_breaks_the_first_is_trained_in(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    eval_envs: int | None,
    made: int,
) -> None:
    """One instance is opened to check and one to train; otherwise two, and a third to check."""
    monkeypatch.setattr(Server, "made", 0)
    envs.register("server", Server, max_episode_steps=20)
    keys = {**QUICK, "seeds": 1, "num_env_steps": 24, "eval_envs": eval_envs, "task": "server"}
    train(**keys, out=str(tmp_path))
    assert Server.made == made
    assert ("a second one breaks the first" in capsys.readouterr().out) == (eval_envs is None)


@pytest.mark.slow
def test_one_shared_instance_gives_the_results_of_separate_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The running episode continues after each evaluation. Seeds train one after another."""
    found = {}
    for task in ("walk", "single", "few"):
        run = train(**QUICK, task=task, out=str(tmp_path)).path
        rows = [(run / f"seed_{s}" / "evaluations.jsonl").read_text() for s in range(2)]
        found[task] = [[json.loads(row)["returns"] for row in text.splitlines()] for text in rows]
    assert len(found["walk"][0]) > 2
    assert found["single"] == found["few"] == found["walk"]
    assert Single.open == Few.open == 0
    told = capsys.readouterr().out
    assert "(RuntimeError: the simulator runs already). Seeds train one after another" in told
    assert told.count("\nEvaluation runs one episode at a time") == 1
