"""RL-100: its phases in order, its gate, its one-step head, and refused options."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from on_a_line import CLONE as ON_A_LINE
from on_a_line import data_of_a_line, registered, run_of
from safetensors.torch import load_file

import policies
from offline_rl import Dataset, UserError, finetune, train
from offline_rl.algorithms.common.base import Interaction, State
from offline_rl.algorithms.common.schedule import Collect, Fill, Learn
from offline_rl.algorithms.rl100 import RL100, Config
from offline_rl.data.writers.d4rl import write
from offline_rl.engine.engine import Engine
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.columns import held_out
from offline_rl.replay.rollouts import Rollouts
from offline_rl.runs.folder import SeedFolder
from offline_rl.utils.random import Random
from policies import Spec

SMALL: dict[str, Any] = {"network": "mlp", "widths": (16,), "n_obs_steps": 2, "horizon": 4}
SMALL |= {
    "n_action_steps": 2,
    "num_inference_steps": 2,
    "tuned": 2,
    "value_hidden": (16,),
    "critic_hidden": (16,),
}
SMALL |= {"environments": 4, "decisions": 24, "batch_size": 24, "epochs": 1, "imagined": 2}
SMALL |= {
    "dynamics_hidden": (16,),
    "members": 3,
    "elites": 2,
    "one_step": "none",
    "prediction_type": "sample",
}
SMALL |= {"action_low": (-1.0, -1.0), "action_high": (1.0, 1.0)}
LAST = "network.trunk.biases.1"


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a task and return its name."""
    return registered(monkeypatch)


def dataset(rows: int = 400) -> Dataset:
    """Return data of a point that moves as commanded; the best reward is at (0.8, 0.8)."""
    draw, ends = np.random.default_rng(0), np.arange(rows) % 10 == 9
    seen, actions = draw.normal(size=(rows, 3)), draw.uniform(-1, 1, (rows, 2))
    after = seen + 0.3 * np.concatenate([actions, actions[:, :1]], 1)
    paid = 1 - np.square(actions - 0.8).sum(1)
    return Dataset.from_arrays(seen, actions, paid, ends & False, ends, after)


def engine(seeds: Sequence[int] = (0,), **changes: Any) -> Engine:
    """Return an engine at its initial state."""
    cfg, spec, data = Config(**(SMALL | changes)), Spec((3,), 2), dataset()
    how = Interaction(RL100.Online(), cfg)
    columns, carried = RL100(spec, cfg, 1, how).columns()
    size = cfg.decisions // cfg.environments, cfg.environments
    store = Rollouts(len(seeds), size, columns, steps=cfg.tuned, carried=carried)
    offline = ReplayBuffer.from_dataset(data, columns={"held_out": held_out(data)})
    sources = {"offline": offline, "rollouts": store}
    return Engine(lambda _: RL100(spec, cfg, 1, how), seeds, sources, batch_size=cfg.batch_size)


@pytest.fixture(scope="module")
def judged() -> dict[str, torch.Tensor]:
    """Return the state of a seed with trained critics and transition model."""
    e = engine(dynamics_lr=3e-3, critic_lr=3e-3)
    e.run(150, "judge")
    assert e.metrics("judge")["held_out_error"][0] < 1
    e.run(1, "settle")
    return e.seed_state(0)


def test_after_imitation_training_continues_from_the_average_with_a_new_optimizer():
    """All denoising steps are copied, including those that were the pretrained policy's."""
    e = engine(tuned=1, imitation_lr=1e-2, average=0.1)
    e.run(3, "imitate")
    before = e.seed_state(0)
    acted = {k.split("/")[2]: v for k, v in before.items() if k.startswith("params/policy/network")}
    learned = {k.split("/")[2]: v for k, v in before.items() if k.startswith("params/model/")}
    assert not are_equal(acted, learned)
    assert any(v.any() for k, v in before.items() if k.startswith("optimizer/model/"))
    e.run(1, "settle")
    after = e.seed_state(0)
    for name, value in acted.items():
        for network in ("model", "behavior", "policy"):
            assert torch.equal(after[f"params/{network}/{name}"], value)
        base = name.replace("network.", "base.", 1)
        assert torch.equal(after[f"params/policy/{base}"], before[f"params/policy/{base}"])
        assert torch.equal(after[f"params/policy/{base}"], value)  # it follows as well
    assert not any(v.any() for k, v in after.items() if k.startswith("optimizer/model/"))
    moved = torch.stack([(learned[k] - acted[k]).square().mean() for k in acted]).mean().sqrt()
    assert e.metrics("settle")["settled_by"][0] == pytest.approx(moved.item(), rel=1e-5)


def moments() -> dict[str, Any]:
    """Return an optimizer state after seven steps, the last of them NaN."""
    lost = torch.tensor([1.0, float("nan")])
    return {"model": {"count": {"steps": torch.tensor(7)}, "first": {LAST: lost}}}


def run_gate(judged: Mapping[str, torch.Tensor], lower: float, **changes: Any) -> Any:
    """Return the gate's state before and after, and its metrics, with lowered model predictions."""
    cfg = Config(**(SMALL | changes))
    algorithm: Any = RL100(Spec((3,), 2), cfg).for_phase("compare")
    params: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in judged.items():
        kind, network, *rest = name.split("/", 2)
        if kind == "params":
            moved = (network, rest[0]) == ("model", LAST)
            params.setdefault(network, {})[rest[0]] = value - lower * moved
    random = Random(torch.tensor(0), torch.tensor(0))
    buffer = ReplayBuffer.from_dataset(dataset(), columns={"held_out": held_out(dataset())})
    source = algorithm.source("compare", {"offline": buffer})
    one = {name: x[0] for name, x in source.tensors().items()}
    batch = source.sample(one, random, 24, 0.99)
    state, told = algorithm.compare(State(algorithm, params, moments(), random), batch, 0)
    steps = state.optimizer["model"]["count"]["steps"]
    assert steps.dtype == torch.int64
    assert steps == 0  # what comes next is another loss, whoever has won
    assert not state.optimizer["model"]["first"][LAST].any()
    return params, state.params, told


def test_scores_are_minimum_critic_values_along_imagined_steps(judged):
    """Two decisions from each start; member 2 is no elite and is untrained."""
    cfg = Config(**(SMALL | {"imagined": 4}))
    algorithm: Any = RL100(Spec((3,), 2), cfg).for_phase("compare")
    params: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in judged.items():
        kind, network, *rest = name.split("/", 2)
        if kind == "params":
            params.setdefault(network, {})[rest[0]] = value.clone()
    params["fit"]["error"] = torch.tensor([0.3, 0.2, 0.9])
    for name, value in params["dynamics"].items():
        if name.startswith("net."):
            value[2] = float("nan")
    draw = torch.Generator().manual_seed(0)
    seen = torch.randn(24, 2, 3, generator=draw)
    state = State(algorithm, params, moments(), Random(torch.tensor(0), torch.tensor(0)))
    num_inference_steps = [
        (
            torch.randn(24, *algorithm.modules["policy"].noise_shape, generator=draw),
            torch.randint(2, (24,), generator=draw),
            torch.randn(24, 6, generator=draw),
        )
        for _ in range(2)
    ]
    total, now = torch.zeros(24), seen
    for noise, member, drawn in num_inference_steps:
        s = now.flatten(1)
        a = state.policy.decide(now, {}, noise)[0][:, :2].flatten(1)
        total = total + state.critic(s, a).min(0).values
        mean, log_variance = (
            x[member, torch.arange(24)] for x in state.dynamics(torch.cat([s, a], 1))
        )
        now = (s + mean + (log_variance / 2).exp() * drawn).reshape(24, 2, 3)
    found = algorithm.score(state, "behavior", seen, num_inference_steps)
    assert found.item() == pytest.approx(total.mean().item(), rel=1e-5)
    buffer = ReplayBuffer.from_dataset(dataset(), columns={"held_out": held_out(dataset())})
    source = algorithm.source("compare", {"offline": buffer})
    one = {name: x[0] for name, x in source.tensors().items()}
    _, told = algorithm.compare(state, source.sample(one, state.random, 24, 0.99), 0)
    assert told["score_after"].isfinite()
    assert told["model_error"] == pytest.approx(0.25)


def are_equal(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[k], b[k]) for k in a)


def test_the_gate_rejects_a_worse_policy_and_restores_the_old_one_exactly(
    judged,
):
    before, after, told = run_gate(judged, 3.0)
    assert told["accepted"] == 0
    assert told["score_after"] < told["score_before"]
    for network in ("behavior", "model", "policy"):
        assert are_equal(before["behavior"], after[network])


def test_an_equal_policy_is_accepted_only_without_a_margin(judged):
    """Values are negative here; the margin is relative to their magnitude."""
    assert run_gate(judged, 0.0, margin=0.0)[2]["accepted"] == 1
    _, _, told = run_gate(judged, 0.0, margin=0.05)
    assert told["accepted"] == 0
    assert told["score_before"] < 0
    assert told["score_after"] == told["score_before"]


def test_without_gate_all_weights_are_accepted_and_without_rollback_rejected_ones_stay(judged):
    before, after, _ = run_gate(judged, 3.0, gate=False)
    assert are_equal(before["model"], after["behavior"])
    before, after, _ = run_gate(judged, 3.0, rollback=False)
    assert are_equal(before["model"], after["model"])
    assert are_equal(before["behavior"], after["behavior"])


def test_the_gate_decides_per_stacked_seed(judged):
    """The second seed's model does the opposite of what is rewarded."""
    e = engine((0, 1), margin=0.0)
    for s in range(2):
        e.load_seed_state(s, judged | {"counters/seed": torch.tensor(s)})
    kept = {k: v.clone() for k, v in e.state["params"]["model"].items()}
    e.state["params"]["model"][LAST][1] -= 3
    e.run(1, "compare")
    assert e.metrics("compare")["accepted"].tolist() == [1, 0]
    assert are_equal(kept, e.state["params"]["model"])


@pytest.mark.parametrize("gate", [True, False])
def test_the_gate_treats_the_one_step_head_like_its_policy(judged, gate):
    e = engine(one_step="joint", gate=gate)
    e.load_seed_state(0, e.seed_state(0) | judged)
    e.run(1, "settle")
    params = e.state["params"]
    accepted = {k: v.clone() for k, v in params["student"].items()}
    params["model"][LAST] -= 3
    params["student"][LAST] -= 3
    wanted = accepted if gate else {k: v.clone() for k, v in params["student"].items()}
    e.run(1, "compare")
    assert e.metrics("compare")["accepted"][0] == (not gate)
    for network in ("student", "student_before"):
        assert are_equal(wanted, e.state["params"][network])


def test_chains_on_data_states_have_ratio_one_and_improve_the_reward(judged):
    """An untrained policy's actions, near 0, are far from the rewarded ones."""
    e = engine(offline_lr=3e-3, gate=False, sampling_floor=0.3, density_floor=0.3)
    e.load_seed_state(0, judged)
    seen = torch.from_numpy(np.random.default_rng(1).normal(size=(1, 50, 2, 3))).float()
    noise = torch.from_numpy(np.random.default_rng(2).normal(size=(1, 50, 3, 4, 2))).float()

    def action() -> float:
        given = {"observations": seen, "noise": noise}
        return float(e.apply("decide", given, "improve")["actions"].mean())

    first, store, known = action(), e.sources["rollouts"], dataset().observations[:400]
    assert isinstance(store, Rollouts)
    for _ in range(6):
        e.fill("improve", 24, "imitate", "rollouts")
        rows = store.data["observations"].reshape(-1, 2, 3)[:, -1].numpy()
        assert (rows[:, None] == known.astype(np.float32)).all(-1).any(1).all()
        assert store.data["advantages"].mean().abs() < 1e-5
        e.metrics("improve")
        e.run(1, "improve")
        assert abs(e.metrics("improve")["divergence"][0]) < 1e-6
        e.run(7, "improve")
        e.run(1, "compare")
    assert action() > first + 0.1


def test_a_model_that_does_not_fit_is_refused_with_its_error():
    algorithm = RL100(Spec((3,), 2), Config(**SMALL))
    algorithm.check_phase("compare", {"model_error": np.array([0.5, 0.2])})
    algorithm.check_phase("judge", {"model_error": np.array([2.0])})
    for worst, words in ((1.3, r"1\.30"), (np.nan, "nan")):
        with pytest.raises(
            UserError, match=rf"does not fit: its error on held-out episodes is {words}"
        ):
            algorithm.check_phase("compare", {"model_error": np.array([0.5, worst])})
    free = RL100(Spec((3,), 2), Config(**(SMALL | {"gate": False})))  # the model decides nothing
    free.check_phase("compare", {"model_error": np.array([1.3])})


@pytest.mark.parametrize("process", ["ddpm", "flow"])
def test_untuned_denoising_steps_use_the_pretrained_weights(process: str):
    """Outputs are NaN wherever they depend on weights that are NaN."""
    changes = {"tuned": 1, "process": process, "decisions": 8, "batch_size": 8}
    cfg = Config(**(SMALL | changes))
    algorithm: Any = RL100(Spec((3,), 2), cfg).for_phase("improve")
    draw = torch.Generator().manual_seed(0)
    seen = torch.randn(8, 2, 3, generator=draw)
    num_inference_steps = [
        (
            torch.randn(8, *algorithm.modules["policy"].noise_shape, generator=draw),
            torch.zeros(8, dtype=torch.int64),
            torch.randn(8, 6, generator=draw),
        )
    ]
    source = algorithm.source("imitate", {"offline": ReplayBuffer.from_dataset(dataset())})
    one = {name: x[0] for name, x in source.tensors().items()}
    random = Random(torch.tensor(0), torch.tensor(0))
    batch = source.sample(one, random, 8, 0.99)
    asked = {"model": set[str](), "behavior": set[str](), "chain": set[str]()}
    for network, part in (
        ("policy", "base."),
        ("policy", "network."),
        ("model", "network."),
        ("behavior", "network."),
    ):
        params = algorithm.initial()["params"]
        params[network] = {
            k: v * float("nan") if k.startswith(part) else v for k, v in params[network].items()
        }
        state = State(algorithm, params, {}, random)
        found = {
            name: algorithm.score(state, name, seen, num_inference_steps)
            for name in ("model", "behavior")
        }
        found["chain"] = algorithm.fill(state, batch)["chain"].sum()
        for name, value in found.items():
            if value.isnan():
                asked[name].add(f"{network}/{part}")
    assert asked["model"] == {"policy/base.", "model/network."}
    assert asked["behavior"] == asked["chain"] == {"policy/base.", "behavior/network."}


def test_the_one_step_head_is_trained_toward_the_policys_chunk():
    """The loss of the one-step head falls below 30 % within 150 updates of imitation."""
    e = engine(one_step="joint", imitation_lr=1e-2, average=0.0)
    e.run(1, "imitate")
    first = e.metrics("imitate")["student_loss"][0]
    e.run(150, "imitate")
    e.metrics("imitate")
    e.run(1, "imitate")
    assert e.metrics("imitate")["student_loss"][0] < 0.3 * first


def test_in_the_online_warm_up_only_v_is_trained():
    e = engine(value_warmup=1)
    e.fill("improve", 24, "imitate", "rollouts")
    for phase, learns in (("improve", {"model", "policy"}), ("online", {"value"})):
        before = e.seed_state(0)
        e.run(1, phase)
        after = e.seed_state(0)
        moved = {k.split("/")[1] for k, v in after.items() if (v != before[k]).any()}
        assert moved == {*learns, "update"}


def test_phases_run_in_order():
    cfg = Config(**(SMALL | {"iterations": 2, "improvements": 2, "one_step": "afterward"}))
    work = RL100(Spec((3,), 2), cfg).schedule(7, 4 * 48, None)
    names = [piece.phase for piece in work]
    step = ["improve", "improve", "compare"]
    again = ["settle", "judge", *step, *step, "gather", "imitate"]
    assert names == ["imitate", *again, *again, "settle", *4 * ["online"], "distill"]
    assert [type(x) for x in work[3:6]] == [Fill, Learn, Learn]
    assert [x.adds for x in work if isinstance(x, Collect)] == [True, True, False, False]
    assert sum(x.size for x in work if isinstance(x, Collect)) == 4 * 48


CLONES = (
    "network",
    "widths",
    "n_obs_steps",
    "horizon",
    "n_action_steps",
    "num_inference_steps",
    "prediction_type",
)
CLONES = (*CLONES, "action_low", "action_high")  # of the run that is gone on from
TUNE: dict[str, Any] = {"algorithm": "rl100", "num_env_steps": 96, "eval_every": 10_000}
TUNE |= {f"algorithm.{k}": v for k, v in SMALL.items() if k not in CLONES}
TUNE |= {"algorithm.iterations": 1, "algorithm.improvements": 1, "algorithm.dynamics_lr": 1e-2}
TUNE |= {"algorithm.judge_updates": 120, "algorithm.imitation_updates": 3}
TUNE |= {"compile": "never", "eval_episodes": 1, "tracker": "none", "show": False}
CLONE = ON_A_LINE | {"algorithm.sampler": "ddim", "algorithm.num_inference_steps": 2, "seeds": 1}


@pytest.mark.slow
def test_killed_between_phases_and_resumed_equals_undisturbed(line: str, tmp_path: Path):
    """New episodes, which join the data, are included."""
    run = run_of("diffusion_policy", line, tmp_path, **CLONE)
    data = {"dataset": str(tmp_path / "line.hdf5")}
    whole = finetune(run=run, **TUNE, **data, name="whole").path
    stops: list[int] = []

    def quit_once(trainer: Any) -> None:
        current = trainer.work.current
        if not stops and current is not None and current[0].phase == "imitate":
            stops.append(trainer.env_steps)
            raise RuntimeError("the cable is out")

    keys = {**TUNE, **data, "name": "again", "checkpoint_every": 12, "eval_every": 12}
    with pytest.raises(RuntimeError, match="cable"):
        finetune(run=run, **keys, watch=quit_once)
    again = finetune(run=run, **keys).path
    one, two = (SeedFolder(path, 0).checkpoints() for path in (whole, again))
    first, second = load_file(one[max(one)]), load_file(two[max(two)])
    assert are_equal(first, second)
    assert int(first["buffer/replay/added"][0]) > 0  # rows
    rows = [json.loads(x) for x in (whole / "seed_0" / "metrics.jsonl").read_text().splitlines()]
    assert sum("train/accepted" in row for row in rows) == 1
    phases = ["settle", "judge", "improve", "compare", "gather", "imitate", "settle", "online"]
    assert [phase for phase, _ in groupby(rows, itemgetter("phase"))] == phases
    assert rows[-1]["rows"] == 24  # made by `improve` from states of the data
    evaluations = SeedFolder(again, 0).rows("evaluations")
    assert {row["phase"] for row in evaluations[1:]} == {*phases} - {"settle", "judge"}


@pytest.mark.slow
def test_trained_from_scratch_its_one_step_head_acts_from_a_bundle(line: str, tmp_path: Path):
    data = write(data_of_a_line(), tmp_path / "line.hdf5")
    keys = TUNE | {f"algorithm.{k}": list(v) if k == "widths" else v for k, v in SMALL.items()}
    keys |= {"algorithm.acting": "one_step", "algorithm.action_low": [-1.0]}
    keys |= {"algorithm.action_high": [1.0]}
    keys |= {"algorithm.one_step": "joint", "num_env_steps": 48, "task": line, "num_updates": 3}
    result = train(**keys, dataset=str(data), out=str(tmp_path))
    player = policies.Player(policies.load(result.path / "seed_0" / "policy.bundle"))
    player.reset()
    actions = [player.step(np.array([0.1, 0.0], np.float32)) for _ in range(5)]
    assert all(a.shape == (1,) and abs(a[0]) <= 1 for a in actions)
    assert len(player.policy.bundle.arguments["table"]) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"num_env_steps": 100},
            "Every offline and every online iteration takes 48 environment steps",
        ),
        (
            {"num_env_steps": 48, "algorithm.iterations": 2},
            "at least 96 for algorithm.iterations=2",
        ),
        ({"algorithm.value_warmup": 1}, "The policy would not change: all"),
        ({"algorithm.environments": 8}, "are 6 steps per environment, fewer than the 7 steps"),
        ({"algorithm.elites": 4}, "elites=4 exceeds members=3"),
        ({"algorithm.acting": "one_step"}, "acting=one_step needs a one-step head"),
        ({"pretrain_updates": 5}, "pretrain_updates=5 is not used by rl100"),
        (
            {"algorithm.judge_updates": 1},
            r"The transition model does not fit: its error on held-out episodes is [01]\.\d\d",
        ),
    ],
)
def test_invalid_options_are_refused(line: str, tmp_path: Path, changes: dict, words: str):
    run = run_of("diffusion_policy", line, tmp_path, **CLONE)
    with pytest.raises(UserError, match=words):
        finetune(run=run, **(TUNE | {"dataset": str(tmp_path / "line.hdf5")} | changes))
