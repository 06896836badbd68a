"""Updates compared with the final numbers of public code, in float64.

`python -m benchmarks.conformance` recorded these numbers, with the same weights, batches and random
numbers.
"""

import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks.conformance import our_side
from benchmarks.conformance.cases import CASES, RECORDED_CASES, REPOSITORIES, WITHOUT
from benchmarks.conformance.command import FAULT, conformance, load
from benchmarks.conformance.compare import (
    TOLERANCE,
    final_quantities,
    relative_differences,
    run_reference,
)
from benchmarks.conformance.inputs import subtree
from benchmarks.conformance.our_side import UserError

BY_NAME = {case.name: case for case in CASES}
RECORDED = sorted(case.name for case in RECORDED_CASES)
REFERENCE = """
import d4rl, gym, pyrallis, torch
from torch import nn

class Actor(nn.Module):
    def __init__(self, observations, actions, max_action):
        super().__init__()
        layers = nn.Linear(observations, 256), nn.Linear(256, 256), nn.Linear(256, actions)
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x).tanh()

class BC:
    def __init__(self, max_action, actor, actor_optimizer):
        self.actor, self.optimizer = actor, actor_optimizer

    def train(self, batch):
        loss = nn.functional.mse_loss(self.actor(batch[0]), (1 + 1e-6) * batch[1])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
"""


def measure(case, fault=0.0):
    """Return the relative differences between our results and the recorded numbers."""
    inputs, results = our_side.run(case, fault)
    results = final_quantities(results)
    return relative_differences(results, load(case, results), subtree(inputs, "params/"))


@pytest.mark.parametrize("name", RECORDED)
def test_an_update_equals_public_code(name):
    gaps = measure(BY_NAME[name])
    assert max(gaps.values()) < TOLERANCE, gaps


@pytest.mark.parametrize(
    "name", sorted({case.algorithm: case.name for case in RECORDED_CASES}.values())
)
def test_targets_a_millionth_too_large_are_found(name):
    assert max(measure(BY_NAME[name], FAULT).values()) > 10 * TOLERANCE


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("td3_bc-td3_bc", "tau"),
        ("td3-td3", "policy_noise"),
        ("iql-iql", "beta"),
        ("cql-corl", "weight"),
        ("edac-corl", "eta"),
        ("spot-spot", "support_weight"),
        ("ro2o-ro2o", "q_noise"),
        ("decision_transformer-decision_transformer", "weight_decay"),
        ("act-lerobot", "max_grad_norm"),
        ("consistency-consistency", "dsm_weight"),
        ("flow_policy-lerobot", "time_power"),
        ("resfit-resfit", "noise_clip"),
        ("rl100-rl100-judges", "expectile"),
        ("rl100-rl100-offline", "spread_max"),
        ("rl100-rl100-online", "trace"),
        ("ifql-fql", "expectile"),
        ("idql-idql", "weight_decay"),
        ("idql-idql-online", "tau"),
        ("mopo-offlinerl_kit-fit", "bounds_weight"),
        ("mopo-offlinerl_kit-aleatoric", "penalty"),
        ("combo-offlinerl_kit-model", "conservatism"),
        ("mobile-offlinerl_kit", "penalty"),
        ("cpq-osrl", "ood_limit"),
        ("bcq_lag-osrl", "integral_gain"),
    ],
)
def test_a_setting_a_thousandth_off_is_found(name, field):
    case = BY_NAME[name]
    value = 1.001 * getattr(our_side.make(case).cfg, field)
    changed = replace(case, config={**case.config, field: value})
    # its name is unchanged, so it is compared with the same recorded numbers
    assert max(measure(changed).values()) > 10 * TOLERANCE


def test_a_reference_runs_in_its_own_process(tmp_path):
    """Layers of 256 units become narrow, and missing packages are replaced by mocks.

    The reference's actions are a millionth too large; the comparison finds no other difference.
    """
    case = BY_NAME["bc-corl"]
    file = tmp_path / case.file
    file.parent.mkdir(parents=True)
    file.write_text(REFERENCE)
    inputs, ours = our_side.run(case)
    theirs = run_reference(case, str(tmp_path), inputs, sys.executable)
    assert {name.split("/")[0] for name in theirs} == {"params", "moment", "loss"}
    gaps = relative_differences(ours, theirs, subtree(inputs, "params/"))
    assert 10 * TOLERANCE < max(gaps.values()) < 1e-5, gaps


def test_every_algorithm_has_a_row_or_a_reason():
    assert {case.algorithm for case in CASES} | set(WITHOUT) == set(our_side.algorithm_names())
    assert {case.repository for case in CASES} == set(REPOSITORIES)
    assert len(BY_NAME) == len(CASES)


def test_a_checkout_of_another_commit_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"corl=.* is not a git checkout; .* tinkoff-ai/CORL at 6afec90"
    ):
        conformance(corl=str(tmp_path))
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    commit = ["git", "-C", str(tmp_path), *author, "commit", "-q", "--allow-empty", "-m", "one"]
    subprocess.run(commit, check=True)
    with pytest.raises(UserError, match=r"is at [0-9a-f]{7}; .*git checkout 6afec90"):
        conformance(corl=str(tmp_path))


def test_unknown_repositories_algorithms_and_programs_are_refused():
    with pytest.raises(UserError, match="did you mean corl"):
        conformance(coral="here")
    with pytest.raises(UserError, match="unknown algorithm 'iqll'"):
        conformance(algorithms=["iqll"])
    with pytest.raises(UserError, match="python=nowhere is not a program"):
        conformance(python="nowhere")
