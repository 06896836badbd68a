"""Fitting of a dynamics model: loss, early stopping per member and seed, and elites."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import SPEC, assert_same_leaves, close, completed, leaves, made_batch, start
from torch import Tensor
from torch.nn.functional import silu
from torch.utils._pytree import tree_map

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.common.models import fitting
from offline_rl.algorithms.common.models.facts import Facts
from offline_rl.algorithms.common.models.rollouts import ModelBased
from offline_rl.algorithms.common.schedule import Learn, Piece
from offline_rl.data import Dataset
from offline_rl.engine.engine import Engine
from offline_rl.replay.batch import Batch
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.ring import Ring
from offline_rl.training.work import Work
from offline_rl.utils.errors import UserError
from offline_rl.utils.trees import flatten

TINY: dict[str, Any] = {"hidden": (8,), "dynamics_hidden": (7,), "dynamics_decay": (0.1, 0.2)}
WEIGHTS = np.random.default_rng(7).normal(size=(5, 4)) / 3
NOISE = np.array([0.3, 0.4, 0.5, 0.2])  # of the changes of three observations, and of the reward


def linear_system(rows: int) -> Dataset:
    """Return transitions of a linear system with noise, in episodes of one step."""
    draw = np.random.default_rng(0)
    s, a = draw.normal(size=(rows, 3)), draw.uniform(-1, 1, (rows, 2))
    y = np.concatenate([s, a], 1) @ WEIGHTS + NOISE * draw.normal(size=(rows, 4))
    ended = np.ones(rows, bool)
    columns = [x.astype(np.float32) for x in (s, a, y[:, 3])]
    return Dataset.from_arrays(*columns, ~ended, ended, (s + y[:, :3]).astype(np.float32))


def started(**config: Any) -> State:
    return start(ModelBased, **TINY | config)


def padded(seed: int, size: int = 12, rows: int = 9) -> Batch:
    """Return a batch of `size` rows; those after the first `rows` are padding."""
    return replace(made_batch(seed, size), weights=(torch.arange(size) < rows).float())


# --- one update


def predictions(own: dict[str, Tensor], x: Tensor, member: int) -> tuple[Tensor, Tensor]:
    """Return mean and log variance of one member, [B, O + 1], by the published formula."""
    x = (x - own["input_mean"]) / own["input_std"]
    for layer in range(2):
        x = x @ own[f"net.weights.{layer}"][member] + own[f"net.biases.{layer}"][member, 0]
        x = silu(x) if layer == 0 else x
    mean, raw = x.tensor_split(2, -1)
    soft = torch.nn.Softplus(threshold=1e9)
    bounded = own["most"] - soft(own["most"] - raw)
    return mean, own["least"] + soft(bounded - own["least"])


@pytest.mark.parametrize("scale_inputs", [True, False])
def test_updates_of_the_model_equal_plain_pytorch(scale_inputs):
    """Each member has rows of its own. The loss has no factor 1/2, and decays weights alone."""
    rates = {"dynamics_lr": 1e-2, "bounds_weight": 0.3, "scale_inputs": scale_inputs}
    state = started(members=3, elites=2, **rates)
    scale = {"input_mean": torch.arange(5.0) / 5, "input_std": torch.arange(5) + 0.5}
    model = {**state.params["dynamics"], **(scale if scale_inputs else {})}
    state = replace(state, params={**state.params, "dynamics": model})
    own = leaves(model)
    if not scale_inputs:
        assert not scale.keys() & own.keys()
        own |= {"input_mean": torch.zeros(5).double(), "input_std": torch.ones(5).double()}
    trained = [v for k, v in own.items() if not k.startswith("input_")]
    adam = torch.optim.Adam(trained, lr=1e-2)
    for count in range(3):
        batch = made_batch(count, 3 * 8)
        state, metrics = state.algorithm.fit_dynamics(state, batch, 0)
        s, a, r, s2 = (
            x.double().unflatten(0, (3, 8))
            for x in (batch.observations, batch.actions, batch.rewards, batch.next_observations)
        )
        loss = torch.tensor(0.0, dtype=torch.float64)
        for m in range(3):
            mean, log_variance = predictions(own, torch.cat([s[m], a[m]], -1), m)
            y = torch.cat([s2[m] - s[m], r[m][:, None]], -1)
            loss = loss + ((mean - y) ** 2 / log_variance.exp() + log_variance).mean()
        for factor, layer in ((0.1, 0), (0.2, 1)):
            loss = loss + 0.5 * factor * (own[f"net.weights.{layer}"] ** 2).sum()
        loss = loss + 0.3 * (own["most"] - own["least"]).sum()
        adam.zero_grad()
        loss.backward(inputs=trained)
        adam.step()
        close(metrics["dynamics_loss"], loss)
    if scale_inputs:
        for name, value in scale.items():
            assert torch.equal(state.params["dynamics"][name], value)
    assert_same_leaves(state, "dynamics", {k: own[k] for k in model}, None)
    moments = state.optimizer["dynamics"]["first"]
    for name in ("most", "least", "net.weights.0", "net.biases.1"):
        close(moments[name], adam.state[own[name]]["exp_avg"])


def test_the_defaults_are_those_of_offlinerl_kit():
    """offlinerlkit/modules/dynamics_module.py, run_example/run_mopo.py."""
    state = start(ModelBased)
    sizes = [tuple(state.params["dynamics"][f"net.weights.{k}"].shape) for k in range(5)]
    assert sizes == [(7, 5, 200), *[(7, 200, 200)] * 3, (7, 200, 8)]
    for k, (_, fan_in, _) in enumerate(sizes):
        weights = state.params["dynamics"][f"net.weights.{k}"]
        assert weights.std().item() == pytest.approx(0.5 / fan_in**0.5, rel=0.1)
        assert not state.params["dynamics"][f"net.biases.{k}"].any()
    assert state.params["dynamics"]["most"].tolist() == [0.5] * 4
    assert state.params["dynamics"]["least"].tolist() == [-10.0] * 4
    adam = state.algorithm.optimizers()["dynamics"]
    assert (adam.lr, adam.weight_decay) == (1e-3, 0)


def test_fitting_starts_with_the_scale_of_the_training_rows_and_an_empty_record():
    """Padding has no part in the scale. A constant input is not scaled."""
    state, batch = started(), padded(0)
    batch = replace(batch, actions=torch.cat([batch.actions[:, :1], torch.full((12, 1), 0.3)], 1))
    record = {k: v + 5 for k, v in state.params["record"].items()}
    begun = replace(state, params={**state.params, "record": record})
    new, metrics = state.algorithm.start_dynamics(begun, batch, 0)
    x = torch.cat([batch.observations, batch.actions], 1)[:9].double().numpy()
    for name in ("dynamics", "best_dynamics"):
        close(new.params[name]["input_mean"], torch.from_numpy(x.mean(0)))
        expected = torch.tensor([*x.std(0)[:4], 1.0])
        close(new.params[name]["input_std"], expected)
    assert metrics["training_rows"] == 9
    assert new.params["record"]["training_rows"] == 9
    for key, value in state.params["record"].items():
        assert key == "training_rows" or torch.equal(new.params["record"][key], value)
    assert new.params["record"]["error"].tolist() == [1e10] * 7
    unscaled = started(scale_inputs=False)
    same, _ = unscaled.algorithm.start_dynamics(unscaled, batch, 0)
    assert same.params["dynamics"] is unscaled.params["dynamics"]


# --- validation


def with_errors(state: State, errors: Sequence[float], epoch: int) -> State:
    """Return a model whose member m predicts `sqrt(errors[m])` too much in every output.

    In the validation batch, changes and rewards are 0. All weights are the number of the epoch.
    """
    model = {k: torch.zeros_like(v) for k, v in state.params["dynamics"].items()}
    model |= {"input_std": torch.ones(5), "most": torch.full((4,), float(epoch))}
    outputs = torch.tensor(errors).sqrt()[:, None, None].expand(-1, 1, 4)
    model["net.biases.1"] = torch.cat([outputs, torch.full_like(outputs, epoch)], -1)
    model["net.weights.0"] = torch.full_like(model["net.weights.0"], float(epoch))
    return replace(state, params={**state.params, "dynamics": model})


def at_rest() -> Batch:
    batch = padded(1)
    holes = torch.where(batch.weights[:, None] > 0, 0.0, 99.0)  # padding has other values
    return replace(
        batch, rewards=holes[:, 0], next_observations=batch.observations + holes
    )  # fmt: skip


@pytest.mark.parametrize("patience", [1, 3])
@pytest.mark.parametrize("min_improvement", [0.0, 0.01, 0.3])
def test_members_are_stored_and_fitting_stops_by_the_published_rules(patience, min_improvement):
    """A second implementation with loops, for decreasing random errors with plateaus and NaN.

    The weights of a member that improves by more than `min_improvement` are stored. Fitting stops
    after `patience` epochs in a row without an improvement.
    """
    draw = np.random.default_rng(1)
    table = np.exp(draw.normal(size=(25, 4)).cumsum(0) * 0.3 - 0.05 * np.arange(25)[:, None])
    table[3, 1] = np.nan
    table[5], table[-6:] = table[4], table[-6]
    config = {"patience": patience, "min_improvement": min_improvement}
    state = started(members=4, elites=2, **config)
    stored, epochs = [-1] * 4, 0
    best, since, stopped = [1e10] * 4, 0, False
    for epoch, errors in enumerate(table.tolist()):
        state = with_errors(state, errors, epoch)
        before = state
        state, metrics = state.algorithm.validate_dynamics(state, at_rest(), 0)
        improved = False
        for m, error in enumerate(errors):
            if not stopped and (best[m] - error) / best[m] > min_improvement:
                best[m], stored[m], improved = error, epoch, True
        if not stopped:
            epochs, since = epochs + 1, 0 if improved else since + 1
            stopped = since == patience
        record = state.params["record"]
        np.testing.assert_allclose(record["error"], best, rtol=1e-4)
        np.testing.assert_allclose(record["by_output"], np.outer(best, [1] * 4), rtol=1e-4)
        assert (record["stale"], record["finished"]) == (since, float(stopped))
        assert record["epochs"] == epochs
        kept = state.params["best_dynamics"]["net.weights.0"][:, 0, 0].tolist()
        assert [k for k, e in zip(kept, stored, strict=True) if e >= 0] == [
            e for e in stored if e >= 0
        ]
        assert state.params["dynamics"] is before.params["dynamics"]
        assert state.optimizer is before.optimizer
        if np.isfinite(errors).all():
            assert metrics["holdout_error"].item() == pytest.approx(
                np.mean(sorted(errors)[:2]), rel=1e-4
            )
    assert stopped
    # then all members get their stored weights back; parameters they share stay as they are
    chosen, metrics = state.algorithm.select_dynamics(state, at_rest(), 0)
    model = chosen.params["dynamics"]
    assert model["net.weights.0"][:, 1, 2].tolist() == stored
    np.testing.assert_allclose(model["net.biases.1"][:, 0, 0], np.sqrt(best), rtol=1e-4)
    assert model["net.biases.1"][:, 0, 5].tolist() == stored
    assert model["most"].tolist() == [24.0] * 4
    elites = state.algorithm.elite_members(chosen).tolist()
    assert elites == np.argsort(best)[:2].tolist()
    assert metrics["holdout_error"].item() == pytest.approx(np.mean(sorted(best)[:2]), rel=1e-4)


def test_the_error_is_the_mean_squared_error_of_the_mean_prediction():
    """Mean over rows and outputs, in the units of the data; the variance has no part in it."""
    state, batch = started(members=2, elites=1), padded(2)
    new, _ = state.algorithm.validate_dynamics(state, batch, 0)
    s, a, r, s2 = (
        x[:9].double()
        for x in (batch.observations, batch.actions, batch.rewards, batch.next_observations)
    )
    own, y = leaves(state.params["dynamics"]), torch.cat([s2 - s, r[:, None]], -1)
    close(new.params["record"]["variance"], y.var(0, correction=0))
    assert new.params["record"]["holdout_rows"] == 9
    for m in range(2):
        mean, _ = predictions(own, torch.cat([s, a], -1), m)
        squares = (mean - y).square()
        close(new.params["record"]["by_output"][m], squares.mean(0))
        close(new.params["record"]["error"][m], squares.mean())


def test_a_finished_model_does_not_learn():
    state = started(members=2, elites=1)
    for finished in (0.0, 1.0):
        record = {**state.params["record"], "finished": torch.tensor(finished)}
        begun = replace(state, params={**state.params, "record": record})
        new, _ = state.algorithm.fit_dynamics(begun, made_batch(0, 16), 0)
        changes = [
            not torch.equal(x, flatten(new.optimizer)[k])
            for k, x in flatten(begun.optimizer).items()
        ]
        changes += [
            not torch.equal(x, new.params["dynamics"][k])
            for k, x in begun.params["dynamics"].items()
        ]
        assert any(changes) is (finished == 0)


# --- all phases, in an engine

FIT: dict[str, Any] = TINY | {
    "members": 3,
    "elites": 2,
    "dynamics_lr": 3e-2,
    "dynamics_epochs": 7,
    "epoch_updates": 3,
    "patience": 1,
    "min_improvement": 0.02,
    "starts": 6,
    "horizon": 2,
    "rollout_every": 2,
    "ends": "never",
}


def engine_of(seeds: list[int], data: Dataset, **config: Any) -> Engine:
    def make(_: int) -> ModelBased:
        algorithm = ModelBased(SPEC, ModelBased.Config(**config), num_updates=4)
        algorithm.facts = Facts(center=[0.0] * 3, width=[1.0] * 3)
        return algorithm

    ring = Ring((3,), 2, 60, streams=len(seeds))
    sources = {"offline": ReplayBuffer.from_dataset(data), "imagined": ring}
    return Engine(make, seeds, sources, batch_size=16)


def work(engine: Engine, schedule: Sequence[Piece]) -> Work:
    """Run a schedule, and return what was done."""
    curves: Any = SimpleNamespace(
        diverged=[None] * len(engine.seeds),
        show_progress=lambda *_: None,
        exclude=lambda _: None,
    )
    never = {"eval_every": 10**9, "checkpoint_every": 10**9}
    done = Work(engine, schedule, None, curves, overlap=False, **never)
    while done.current is not None:
        done.advance()
    return done


def counters(done: Work) -> dict[str, tuple[int, int, int]]:
    """Return the updates, environment steps and rows of each phase."""
    numbers = done.progress.counters.items()
    return {phase: (n.updates, n.env_steps, n.rows) for phase, n in numbers}


def schedule_of(engine: Engine) -> list[Piece]:
    return engine.algorithm.schedule(4, 0, None)


@pytest.fixture(scope="module")
def stacked() -> Engine:
    """Two seeds whose fits stop after the third and the sixth of seven epochs."""
    return engine_of([3, 5], linear_system(60), **FIT)


Snapshot = dict[str, Tensor]


def restart(engine: Engine, initial: Sequence[Snapshot]) -> None:
    for s, state in enumerate(initial):
        engine.load_seed_state(s, state)
    for name in ("size", "oldest", "newest"):
        engine.sources["imagined"].tensors()[name].zero_()


def snapshot(engine: Engine) -> Snapshot:
    tensors = engine.state | {"ring": engine.sources["imagined"].tensors()}
    return {k: v.clone() for k, v in flatten(tensors).items()}


def test_an_early_end_equals_all_epochs_also_in_the_updates_after_it(stacked):
    """The rows that the model predicts and the later updates have the same random numbers."""
    initial, results = [*stacked.seed_states()], []
    early = schedule_of(stacked)
    full = [replace(p, skips=0) if isinstance(p, Learn) else p for p in early]
    for schedule in (early, full):
        restart(stacked, initial)
        done = work(stacked, schedule)
        results.append((snapshot(stacked), dict(stacked.done), stacked.updates, done))
    restart(stacked, initial)
    (one, *counts, skipped), (other, *all_counts, complete) = results
    assert counts == all_counts
    for name, value in one.items():
        if name != "counters/elsewhere":  # computed anew when a phase starts
            assert torch.equal(value, other[name]), name
    assert counters(skipped) == counters(complete)
    assert skipped.progress.position == complete.progress.position
    assert complete.progress.timed_updates == counts[1] == 1 + 7 * 4 + 1 + 4
    assert skipped.progress.timed_updates == 1 + 6 * 4 + 1 + 4


def test_a_finished_seed_stands_still_while_another_goes_on_and_equals_a_single_seed(stacked):
    initial = [*stacked.seed_states()]
    stacked.run(1, "start_dynamics")
    ends: dict[int, tuple[int, Snapshot]] = {}
    for epoch in range(1, 8):
        stacked.run(3, "fit_dynamics")
        stacked.run(1, "validate_dynamics")
        finished = stacked.state["params"]["record"]["finished"] > 0
        assert stacked.has_converged("validate_dynamics") is bool(finished.all())
        for s in finished.nonzero()[:, 0].tolist():
            ends.setdefault(s, (epoch, stacked.seed_state(s)))
        assert set(ends) == set(finished.nonzero()[:, 0].tolist())  # never goes on
    assert [ends[s][0] for s in (0, 1)] == [3, 6]
    for s, last in enumerate(stacked.seed_states()):
        for name, value in ends[s][1].items():
            assert name == "counters/update" or torch.equal(last[name], value), name
    single = engine_of([5], linear_system(60), **FIT)
    done = work(single, single.algorithm.fitting_pieces(3)[:-1])
    assert done.progress.timed_updates == 1 + 4 * ends[1][0]
    assert single.updates == stacked.updates == 1 + 7 * 4
    for name, value in single.seed_state(0).items():
        torch.testing.assert_close(last[name], value, rtol=1e-3, atol=1e-5)
    restart(stacked, initial)


def test_the_model_of_a_linear_system_reaches_the_variance_of_its_noise():
    """The squared error on the holdout is that of the true system, and at most 20 % above it.

    The predicted variance is that of the noise, too.
    """
    config = FIT | {"dynamics_hidden": (32,), "dynamics_decay": (0.0,), "dynamics_lr": 1e-2}
    engine = engine_of([0], linear_system(2_000), **config | {"patience": 3})
    engine.batch_size = 64
    engine.run(1, "start_dynamics")
    for _ in range(7):
        engine.run(50, "fit_dynamics")
        engine.run(1, "validate_dynamics")

    source: Any = engine.for_phase("validate_dynamics")[1]
    tensors = tree_map(lambda x: x[0], source.tensors())
    holdout = source.sample(tensors, None, 0, 0.99)
    x, y = (z.double().numpy() for z in fitting.inputs_and_targets(holdout))
    noise = ((y - x @ WEIGHTS) ** 2)[: int(tensors["held"])].mean(0)
    np.testing.assert_allclose(noise, NOISE**2, rtol=0.3)
    ratio = engine.state["params"]["record"]["by_output"][0].numpy() / noise  # [E, O + 1]
    assert (ratio > 0.97).all()
    assert (ratio.mean(0) < 1.2).all()

    params = {k: {n: x[0] for n, x in v.items()} for k, v in engine.state["params"].items()}
    state = replace(started(**config), params=params)
    _, log_variance = state.dynamics(torch.from_numpy(x).float())
    np.testing.assert_allclose(log_variance.exp().mean((0, 1)), NOISE**2, rtol=0.2)


# --- options


def test_an_epoch_is_one_pass_over_the_training_rows():
    for config, expected in (
        ({}, 2),  # (100 - 20) / 64, rounded up
        ({"holdout_max": 3}, 2),
        ({"holdout_share": 0.36}, 1),
        ({"holdout": "episodes"}, 2),
        ({"epoch_updates": 9}, 9),
    ):
        cfg = ModelBased.Config(**config, batch_size=64)
        assert completed(ModelBased, linear_system(100), cfg).epoch_updates == expected


def test_an_epoch_has_no_rows_whose_next_observation_is_not_known():
    """Half of 100 rows terminate, in data without next observations: 50 - 10 rows are training."""
    t = np.arange(100)
    s = t[:, None].astype(np.float32)
    data = Dataset.from_arrays(s, 0 * s, 1.0 * t, t % 2 == 1)
    cfg = ModelBased.Config(batch_size=8)
    assert completed(ModelBased, data, cfg).epoch_updates == 5


def test_fitting_ends_with_the_choice_of_elites_and_skips_nothing_else():
    """Each validation skips the epochs that are left, but not what follows them."""
    algorithm = start(ModelBased, **FIT).algorithm
    pieces = algorithm.fitting_pieces(3)
    assert [p.phase for p in pieces] == [
        "start_dynamics",
        *["fit_dynamics", "validate_dynamics"] * 7,
        "select_dynamics",
    ]
    assert [p.size for p in pieces] == [1, *[3, 1] * 7, 1]
    assert not any(p.evaluate for p in pieces)
    for k, piece in enumerate(pieces):
        is_validation = piece.phase == "validate_dynamics"
        assert k + piece.skips + 1 == (len(pieces) - 1 if is_validation else k + 1)
    work = algorithm.schedule(10, 0, None)
    assert work[: len(pieces)] == pieces
    assert dict(algorithm.phases) == {p.phase: 1 for p in pieces} | {"fit_dynamics": 21}


def test_data_without_a_holdout_is_refused():
    for config, message in (
        ({}, r"holdout_share=0.2 of 4 rows is less than one"),
        ({"holdout": "episodes"}, r"holdout_share=0.2 of 4 episodes is less than one"),
    ):
        with pytest.raises(UserError, match=message):
            completed(ModelBased, linear_system(4), ModelBased.Config(**config))


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match=r"elites=8 exceeds members=7\."):
        ModelBased.Config(elites=8)
    with pytest.raises(ValueError, match=r"dynamics_decay has 5 factors, but the .* has 2 layers"):
        ModelBased.Config(dynamics_hidden=(8,))
    algorithm = start(ModelBased, **FIT).algorithm
    with pytest.raises(UserError, match=r"pretrain_updates=5 is not used"):
        algorithm.schedule(10, 0, 5)
    streamed: Any = SimpleNamespace()
    with pytest.raises(UserError, match=r"this data is streamed. Use stream=never"):
        algorithm.source("fit_dynamics", {"offline": streamed})


@pytest.mark.parametrize(("holdout", "held"), [("rows", 15), ("episodes", 20)])
def test_each_phase_has_its_part_of_the_data(holdout, held):
    options = {"holdout_share": 0.4, "holdout_max": 15, "holdout": holdout}
    engine = engine_of([0], linear_system(50), **FIT, **options)
    parts = ["all_training", "training", "holdout", "holdout"]
    for phase, part in zip(engine.algorithm.phases, parts, strict=True):
        source: Any = engine.for_phase(phase)[1]
        assert (source.part, source.members, int(source.data["held"])) == (part, 3, held)
