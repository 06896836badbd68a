"""Refusals of options that contradict each other, before anything is read."""

from typing import Any

import pytest

from offline_rl.runs.refusals import wrong_learner
from offline_rl.runs.run import runs_of
from offline_rl.utils.errors import UserError
from policies import Spec

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
