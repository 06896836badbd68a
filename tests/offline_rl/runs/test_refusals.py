"""Refusals of options that contradict each other, before anything is read."""

import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

import envs
from offline_rl.data import Dataset
from offline_rl.runs.refusals import (
    wrong_chunks,
    wrong_data,
    wrong_learner,
    wrong_outcomes,
    wrong_start,
)
from offline_rl.runs.run import runs_of
from offline_rl.utils.errors import UserError
from policies import Spec

OWN = Path(__file__).parents[1] / "contracts" / "best_of_n.py"
ONLINE: dict[str, Any] = {"task": "env:Pendulum-v1", "num_updates": 0, "num_env_steps": 400}


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("overlap", "overlap=true does not work with dppo, which is on-policy"),
        ("keep_data", "keep_data=true does not work with dppo, which does not store"),
    ],
)
def test_an_on_policy_method_refuses_options_of_a_replay_buffer(option: str, sentence: str) -> None:
    runs_of({**ONLINE, "algorithm": "dppo"})
    with pytest.raises(UserError, match=sentence):
        runs_of({**ONLINE, "algorithm": "dppo", option: True})

    """Without updates, the networks of the phase would stay as they were initialized."""
    """Its networks would stay as they were initialized."""
    for updates, refused in ((0, True), (100, False)):
        keys = {**ONLINE, "algorithm": "cql", "algorithm.bc_updates": 5, "dataset": "a.npz"}
        (run,) = runs_of({**keys, "num_updates": updates})
        learner = run.learner(Spec((3,), 1))
        schedule = learner.schedule(updates, 400, None)
        sentences = [*wrong_learner(run, learner, learner.acting_head(), schedule, None)]
        assert any("must train on a dataset" in x for x in sentences) == refused


@pytest.mark.parametrize(
    ("algorithm", "options", "chunk"),
    [
        ("qc", {"horizon": 9}, 9),
        ("bc", {"horizon": 12, "n_action_steps": 11}, 12),
        ("diffusion_policy", {"n_action_steps": 9}, 15),  # of 16 actions, one precedes
        (str(OWN), {"horizon": 9}, 9),
    ],
)
def test_a_chunk_longer_than_every_episode_is_refused(
    algorithm: str, options: dict[str, int], chunk: int
) -> None:
    keys = {"algorithm": algorithm, "task": "none", "dataset": "a.npz", "num_updates": 1}
    (run,) = runs_of({**keys, **{f"algorithm.{k}": v for k, v in options.items()}})
    learner = run.learner(Spec((3,), 1))
    head = learner.acting_head()
    for longest, refused in ((chunk - 1, True), (chunk, False)):
        rows = longest + 2  # a short episode and a long one
        ends = np.isin(np.arange(rows), (1, rows - 1))
        data = Dataset.from_arrays(np.ones((rows, 3)), np.zeros((rows, 1)), np.zeros(rows), ends)
        sentences = [*wrong_chunks(learner, head, data)]
        expected = f"data: the longest episode has {longest} steps, a chunk has {chunk}. Lower"
        assert [expected in x for x in sentences] == [True] * refused


def test_a_history_longer_than_every_episode_is_refused() -> None:
    keys = {"algorithm": "iql", "task": "none", "dataset": "a.npz", "num_updates": 1}
    (run,) = runs_of({**keys, "algorithm.n_obs_steps": 5})
    learner = run.learner(Spec((3,), 1))
    head = learner.acting_head()
    for longest, refused in ((4, True), (5, False)):
        ends = np.arange(longest) == longest - 1
        arrays = np.ones((longest, 3)), np.zeros((longest, 1)), np.zeros(longest), ends
        sentences = [*wrong_chunks(learner, head, Dataset.from_arrays(*arrays))]
        expected = f"episode has {longest} steps, an observation history has 5. Lower algorithm.n"
        assert [expected in x for x in sentences] == [True] * refused
    (run,) = runs_of({**keys, "algorithm.n_obs_steps": 301, "task": "PointMaze-umaze-v1"})
    sentences = [*wrong_learner(run, learner, run.learner(Spec((4,), 2)).acting_head(), [], None)]
    assert "an episode of PointMaze-umaze-v1 has 300 steps" in sentences[0]


def test_a_chunk_longer_than_an_episode_of_the_task_is_refused() -> None:
    for horizon, refused in ((201, True), (200, False)):  # an episode has 200 steps
        keys = {**ONLINE, "algorithm": "sequence_rl", "algorithm.horizon": horizon}
        (run,) = runs_of({**keys, "algorithm.hidden": [8]})
        learner = run.learner(Spec((3,), 1))
        sentences = [*wrong_learner(run, learner, learner.acting_head(), [], None)]
        expected = "an episode of env:Pendulum-v1 has 200 steps, a chunk has 201. Lower algorithm.h"
        assert [expected in x for x in sentences] == [True] * refused


def test_data_without_terminations_is_refused_if_the_task_ends_episodes() -> None:
    """The rule of the task ends episodes above 3.5. The next states are 0, 1, 2, 3, 4 and 5."""
    outcomes = envs.Outcomes({"task": lambda s, a, s2: s2[..., 0] > 3.5})
    envs.register("ends_above", lambda: None, max_episode_steps=9, outcomes=outcomes)  # type: ignore[arg-type, return-value]
    states, actions = np.arange(7.0)[:, None], np.zeros((6, 1))

    def sentences(terminated: list[bool], **keys: Any) -> list[str]:
        data = Dataset.from_arrays(
            states[:-1], actions, np.zeros(6), terminated, next_observations=states[1:] - 1
        )
        keys = {"algorithm": "mopo", "task": "ends_above", "dataset": "a.npz", **keys}
        (run,) = runs_of(keys)
        return [*wrong_data(run, run.learner(Spec((1,), 1)), data)]

    (sentence,) = sentences([False] * 6)
    assert "data: 2 rows end an episode of ends_above, but no row is terminated" in sentence
    assert "algorithm.ends=never" in sentence
    assert not sentences([False] * 5 + [True])
    assert not sentences([False] * 6, **{"algorithm.ends": "never"})
    assert not sentences([False] * 6, task="none")


@pytest.mark.parametrize(
    ("is_end", "problem"),
    [
        (lambda s, a, s2: s2 > 0, r"returns the shape \[3, 2\] for 3 rows"),
        (lambda s, a, s2: False, "returns bool"),
        (lambda s, a, s2: s2[..., 0], "returns float32"),
        (lambda s, a, s2: s2[..., 5] > 0, "raises IndexError"),
        (lambda s, a, s2: a[..., 0] > 0 if s2[0, 0] > 0 else a[..., 0] < 0, "raises"),
        (lambda s, a, s2: abs(s2[..., 0]) > 1, None),
    ],
)
def test_a_rule_for_ends_that_cannot_be_used_is_refused(is_end: Any, problem: str | None) -> None:
    """The last but one branches on a value, which a graph cannot do."""
    outcomes = envs.Outcomes({"task": is_end}, reward=lambda s, a, s2: s2[..., 0] > 0)
    name = f"rule_{uuid4().hex}"
    envs.register(name, lambda: None, max_episode_steps=9, outcomes=outcomes)  # type: ignore[arg-type, return-value]

    def sentences(**keys: Any) -> list[str]:
        keys = {"algorithm": "mopo", "task": name, "dataset": "a.npz", **keys}
        return [*wrong_outcomes(runs_of(keys)[0], Spec((2,), 1))]

    if problem is None:
        assert not sentences()
        (sentence,) = sentences(**{"algorithm.rewards": "task"})
        assert "outcomes.reward returns bool. It must return a torch tensor of numbers" in sentence
    else:
        (sentence,) = sentences()
        assert re.search(rf"outcomes.ends\['task'\] {problem}.*must not branch on values", sentence)
        assert not sentences(**{"algorithm.ends": "never"})


def test_a_dataset_that_is_not_read_is_refused() -> None:
    keys = {"algorithm": "mbpo", "task": "env:InvertedPendulum-v5", "num_env_steps": 600}
    assert not [*wrong_start(runs_of(keys)[0])]
    (sentence,) = wrong_start(runs_of({**keys, "dataset": "a.npz"})[0])
    assert "mbpo does not read dataset=a.npz" in sentence
    assert "Remove dataset=" in sentence


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"eval_stl": "always(cost > "}, "eval_stl, position 14: expected a signal"),
        ({"eval_stl": "cost < 1", "task": "none"}, "eval_stl= needs an environment, and task none"),
    ],
)
def test_a_formula_that_evaluations_cannot_use_is_refused(
    options: dict[str, str], sentence: str
) -> None:
    keys = {"algorithm": "bc", "task": "env:Pendulum-v1", "dataset": "a.npz", "num_updates": 5}
    runs_of(keys | {"eval_stl": "always(observation[0] < 1)"})
    with pytest.raises(UserError, match=sentence):
        runs_of(keys | options)
