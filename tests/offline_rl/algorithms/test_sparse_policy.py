"""Sparse policy: recovered teachers, choice of the settings, valid teachers, and its bundle."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from on_a_line import registered, run_of
from torch import Tensor

import policies
from offline_rl import UserError
from offline_rl.algorithms.common.base import Metrics, State
from offline_rl.algorithms.common.registry import algorithm_class, algorithm_names
from offline_rl.algorithms.sparse_policy import Config, SparsePolicy
from offline_rl.replay.batch import Batch
from offline_rl.training.train import distill
from offline_rl.utils.random import Random
from policies import Spec

UNCLIPPED = '{"hidden": [], "tanh_mean": false}'
TANH = '{"hidden": [], "tanh_mean": true}'
CURVED = '{"hidden": [8], "activation": "tanh", "tanh_mean": false}'  # no polynomial equals it
SMALL: dict[str, Any] = {"teacher_kind": "GaussianActor", "teacher_arguments": UNCLIPPED}
SMALL |= {"degree": 2, "members": 5}


def observations(count: int = 400) -> tuple[Tensor, Tensor]:
    """Return states and the held-out mask: a fifth of the rows."""
    draw = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, generator=draw), (torch.arange(count) % 5 == 2).float()


def fit(s: Tensor, held_out: Tensor, **options: Any) -> tuple[SparsePolicy, State, Metrics]:
    """Return the policy after one update, with the teacher of the test's seed."""
    torch.manual_seed(0)
    algorithm = SparsePolicy(Spec((3,), 2), Config(**(SMALL | options)))
    tree = algorithm.initial()
    for value in tree["params"]["teacher"].values():
        value.copy_(0.5 * torch.randn_like(value))
    state = State(algorithm, tree["params"], {}, Random(torch.tensor(0), torch.tensor(0)))
    zeros = torch.zeros(len(s))
    batch = Batch(s, torch.zeros(len(s), 2), zeros, zeros, s, zeros, held_out=held_out)
    return algorithm, *algorithm.update(state, batch, 0)


@pytest.mark.parametrize("teacher", [UNCLIPPED, TANH])
def test_a_teacher_with_linear_sums_is_recovered(teacher: str):
    """The labels are the sums before clipping or tanh; many are outside [-1, 1]."""
    algorithm, state, metrics = fit(*observations(), teacher_arguments=teacher)
    weight, bias = (state.params["teacher"][f"trunk.{k}.0"] for k in ("weights", "biases"))
    terms = algorithm.modules["sparse"].library.terms
    expected = torch.zeros(len(terms), 2)
    expected[0] = bias.reshape(2)
    expected[[terms.index((k,)) for k in range(3)]] = weight
    assert (algorithm.label(state, observations()[0]).abs() > 1).float().mean() > 0.1
    torch.testing.assert_close(state.params["sparse"]["coefficients"], expected, atol=1e-5, rtol=0)
    assert metrics["num_terms"] == 8
    assert metrics["policy_loss"] < 1e-10


def test_labels_of_a_teacher_without_tanh_have_a_limit_of_5():
    s, held_out = observations()
    algorithm, state, _ = fit(20 * s, held_out)
    labels = algorithm.label(state, 20 * s)
    torch.testing.assert_close(labels, state.teacher(20 * s).clamp(-5, 5))
    assert labels.abs().max() == 5


def test_the_loss_is_the_error_of_clipped_actions_on_held_out_states():
    s, held_out = observations()
    _, state, metrics = fit(s, held_out, teacher_arguments=CURVED)
    error = state.sparse.act(s) - state.teacher.act(s)
    expected = error[held_out == 1].square().mean()
    assert metrics["policy_loss"].item() == pytest.approx(expected.item(), rel=1e-4)
    assert expected > 1e-5


def test_held_out_states_are_not_fitted():
    s, held_out = observations()
    one_pair: dict[str, Any] = {"ridges": (1e-4,), "thresholds": (1e-3,)}
    one_pair["teacher_arguments"] = CURVED
    _, state, _ = fit(s, held_out, **one_pair)
    _, other, _ = fit(torch.where(held_out[:, None] == 1, 3 + s, s), held_out, **one_pair)
    _, third, _ = fit(torch.where(held_out[:, None] == 0, 3 + s, s), held_out, **one_pair)
    coefficients = state.params["sparse"]["coefficients"]
    assert torch.equal(other.params["sparse"]["coefficients"], coefficients)
    assert not torch.equal(third.params["sparse"]["coefficients"], coefficients)


def test_the_pair_with_the_smallest_held_out_error_acts_or_one_with_fewer_terms():
    s, held_out = observations()
    pairs = {"thresholds": (1e-4, 0.03, 0.3), "ridges": (1e-6,), "teacher_arguments": CURVED}
    alone = [fit(s, held_out, **(pairs | {"thresholds": (t,)})) for t in pairs["thresholds"]]
    errors = [metrics["policy_loss"].item() for _, _, metrics in alone]
    terms = [metrics["num_terms"].item() for _, _, metrics in alone]
    chosen = []
    for tolerance in (0.0, 1e6):
        _, state, _ = fit(s, held_out, **pairs, tolerance=tolerance)
        eligible = [k for k in range(3) if errors[k] <= (1 + tolerance) * min(errors)]
        chosen.append(min(eligible, key=terms.__getitem__))
        best = alone[chosen[-1]][1].params["sparse"]["coefficients"]
        torch.testing.assert_close(state.params["sparse"]["coefficients"], best)
    assert terms[chosen[0]] > terms[chosen[1]]
    assert errors[chosen[0]] == min(errors)


def test_teachers_are_policies_of_one_observation_without_noise():
    found = set()
    for name in algorithm_names():
        cls = algorithm_class(name)
        if cls.mode.start == "scratch":
            from_data = {"target_return": 1.0, "return_scale": 1.0, "episode_steps": 5}
            hyper = asdict(cls.Config()) | from_data | {"target_cost": 1.0}  # no null is left
            config = SparsePolicy.config_from_teacher(name, hyper)
            found |= {name} if config else set()
            assert config is None or Config(**config).teacher_kind
    assert {"bc", "td3_bc", "iql", "sac", "edac", "cql", "awac"} <= found
    assert not found & {"diffusion_policy", "act", "fql", "qc", "decision_transformer", "idql"}
    assert SparsePolicy.config_from_teacher("bc", {"horizon": 4, "n_action_steps": 2}) is None


@pytest.mark.parametrize("options", [{"teacher_kind": "ChunkActor"}, {"ridges": ()}])
def test_an_unknown_teacher_and_an_empty_list_are_refused(options: dict[str, Any]):
    with pytest.raises(ValueError, match=r"use DeterministicActor|must not be empty"):
        Config(**options)


def test_a_library_too_large_is_refused_before_training():
    algorithm = SparsePolicy(Spec((60,), 2), Config())
    with pytest.raises(UserError, match=r"39,711 terms.*Use a lower algorithm.degree"):
        algorithm.prepare(None)  # type: ignore[arg-type]


def test_a_distilled_run_acts_like_its_formula(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    task = registered(monkeypatch)
    teacher = run_of("bc", task, tmp_path)
    keys: dict[str, Any] = {"algorithm": "sparse_policy", "algorithm.degree": 1, "num_updates": 1}
    keys |= {"compile": "never", "eval_episodes": 1, "tracker": "none", "show": False}
    result = distill(run=str(teacher), **keys)
    (path,) = result.path.glob("seed_*/policy.bundle")
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    policy = policies.load(path)
    assert policy.bundle.kind == "SparseActor"
    z = policy.normalizer(x)
    (formula,) = policy.bundle.provenance["formula"]
    terms = re.fullmatch(r"action_1 = tanh\((.*)\)", formula)
    assert terms
    sums = re.sub(r" z\(observation_(\d)\)", r" * z[:, \1 - 1]", terms[1])
    expected = np.tanh(eval(sums, {"z": z}))
    for runtime in ("torch", "numpy"):
        actions, _ = policies.load(path, runtime=runtime).act(x)
        np.testing.assert_allclose(actions[:, 0, 0], expected, atol=2e-3)
    own, _ = policies.load(*teacher.glob("seed_*/policy.bundle")).act(x)
    assert np.abs(own[:, 0, 0] - expected).max() < 0.1 + own.std()


def test_a_polynomial_head_is_rebuilt_from_its_arguments():
    head = SparsePolicy(Spec((3,), 2), Config(**SMALL)).modules["sparse"]
    torch.nn.init.normal_(head.coefficients)
    copy = type(head)(**head.arguments)
    copy.load_state_dict(head.state_dict())
    x = torch.randn(4, 3)
    assert torch.equal(copy.act(x), head.act(x))
    assert head.act(x).abs().max() <= 1 < head(x).abs().max()
