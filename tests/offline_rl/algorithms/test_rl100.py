"""RL-100: its phases in order, its gate, its one-step head; what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from on_a_line import CLONE, registered, run_of
from safetensors.torch import load_file

import policies
from offline_rl import Dataset, UserError, finetune, train
from offline_rl.algorithms.common.base import Interaction
from offline_rl.algorithms.common.schedule import Collect, Fill, Learn
from offline_rl.algorithms.rl100 import RL100, Config
from offline_rl.engine.engine import Drawn, Engine
from offline_rl.replay.batch import Sources
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.columns import held_out
from offline_rl.replay.rollouts import Rollouts
from offline_rl.training.run_folder import SeedFolder
from policies import Spec

SMALL: dict[str, Any] = {"network": "mlp", "widths": (16,), "history": 2, "window": 4}
SMALL |= {"executed": 2, "rounds": 4, "tuned": 4, "value_hidden": (16,), "critic_hidden": (16,)}
SMALL |= {"environments": 4, "decisions": 24, "batch_size": 24, "epochs": 1, "imagined": 4}
SMALL |= {"dynamics_hidden": (16,), "members": 3, "elites": 2, "one_step": "none"}
SMALL |= {"action_low": (-1.0, -1.0), "action_high": (1.0, 1.0)}


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> str:
    """A task's name."""
    return registered(monkeypatch)


def dataset(rows: int = 400) -> Dataset:
    """A point that goes where it is sent; being sent up is paid."""
    draw, ends = np.random.default_rng(0), np.arange(rows) % 10 == 9
    seen, actions = draw.normal(size=(rows, 3)), draw.uniform(-1, 1, (rows, 2))
    after = seen + 0.3 * np.concatenate([actions, actions[:, :1]], 1)
    return Dataset.from_arrays(seen, actions, actions.sum(1), ends & False, ends, after)


def engine(seeds: tuple[int, ...] = (0,), **changes: Any) -> Engine:
    cfg, spec, data = Config(**(SMALL | changes)), Spec((3,), 2), dataset()
    how = Interaction(RL100.Online(), cfg)
    columns, carried = RL100(spec, cfg, 1, how).columns()
    size = cfg.decisions // cfg.environments, cfg.environments
    store = Rollouts(len(seeds), size, columns, steps=cfg.tuned, carried=carried)
    offline = ReplayBuffer.from_dataset(data, columns={"held_out": held_out(data)})
    sources = Sources(offline, rollouts=store)
    return Engine(lambda _: RL100(spec, cfg, 1, how), seeds, sources, batch_size=cfg.batch_size)


def params(e: Engine, network: str) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in e.state["params"][network].items()}


def scramble(e: Engine, s: int) -> None:
    """Makes the model of one seed a bad one."""
    draw = torch.Generator().manual_seed(0)
    for value in e.state["params"]["model"].values():
        value[s] += 3 * torch.randn(value[s].shape, generator=draw)


def fill(e: Engine) -> Rollouts:
    store = e.sources.rollouts
    assert isinstance(store, Rollouts)
    store.put(e.apply("fill", Drawn("imitate", e.algorithm.cfg.decisions), "improve"), e.updates)
    return store


def test_the_gate_puts_back_the_weights_of_the_seed_that_got_worse_bit_for_bit():
    """One seed's model is scrambled, the other's is as it was, and no margin is asked of it."""
    e = engine((0, 1), margin=0.0)
    e.run(1, "settle")
    e.run(300, "judge")
    e.run(1, "settle")
    before = params(e, "behaviour")
    scramble(e, 1)
    e.run(1, "compare")
    told = e.metrics("compare")
    assert told["accepted"].tolist() == [1, 0]
    assert told["score_after"][0] == told["score_before"][0]
    assert told["score_after"][1] < told["score_before"][1]
    for network in ("behaviour", "model", "policy"):
        assert all(torch.equal(params(e, network)[k], v) for k, v in before.items())


def test_without_a_gate_worse_weights_stay_and_without_rollback_only_the_model_keeps_them():
    for changes, refused in (({"gate": False}, False), ({"rollback": False}, True)):
        e = engine(**changes)
        e.run(300, "judge")
        e.run(1, "settle")
        before = params(e, "behaviour")
        scramble(e, 0)
        e.run(1, "compare")
        model, kept = params(e, "model"), params(e, "behaviour")
        assert any((model[k] != v).any() for k, v in before.items())
        assert all(torch.equal(kept[k], v) for k, v in before.items()) == refused


def test_chains_on_the_datas_states_have_ratio_one_and_lead_to_what_is_paid():
    """Actions that sum to more are worth more; reinforcement makes more of them."""
    e = engine(discount=0.0, offline_lr=3e-3, critic_lr=3e-3, sampling_floor=0.3)
    e.run(300, "judge")
    e.run(1, "settle")
    seen = torch.from_numpy(np.random.default_rng(1).normal(size=(1, 50, 2, 3))).float()
    noise = torch.from_numpy(np.random.default_rng(2).normal(size=(1, 50, 5, 4, 2))).float()
    acting = {"observations": seen, "noise": noise}

    def paid() -> float:
        return float(e.apply("decide", acting, "improve")["actions"].mean())

    first = paid()
    for k in range(6):
        store = fill(e)
        assert store.data["advantages"].mean().abs() < 1e-5
        e.run(1, "improve")
        told = e.metrics("improve")
        assert abs(told["divergence"][0]) < 1e-6 or k  # of what the model did before, itself
        e.run(7, "improve")
        e.run(1, "compare")
    assert paid() > first + 0.05


def test_states_that_are_filled_are_the_datas():
    e = engine()
    store, data = fill(e), dataset()
    rows = store.data["observations"].reshape(-1, 2, 3)[:, -1]
    distance = torch.cdist(rows, torch.from_numpy(data.observations[: data.num_rows]).float())
    assert distance.amin(1).max() < 1e-5


def test_a_model_that_fits_nothing_is_refused_with_its_error():
    algorithm = engine().algorithm
    algorithm.refuse("compare", {"model_error": np.array([0.5, 0.2])})
    algorithm.refuse("judge", {"model_error": np.array([2.0])})
    with pytest.raises(UserError, match=r"does not fit: on episodes held out its error is 1\.30"):
        algorithm.refuse("compare", {"model_error": np.array([0.5, 1.3])})


def test_the_one_step_head_learns_where_the_policy_ends():
    """From the same noise; after imitation of nothing at all, which leaves the policy alone."""
    e = engine(one_step="joint", imitation_lr=1e-2, average=0.0)
    e.run(1, "imitate")
    first = e.metrics("imitate")["student_loss"][0]
    e.run(150, "imitate")
    e.metrics("imitate")
    e.run(1, "imitate")
    assert e.metrics("imitate")["student_loss"][0] < 0.3 * first


def test_the_order_of_work():
    cfg = Config(**(SMALL | {"iterations": 2, "improvements": 2, "one_step": "afterwards"}))
    work = RL100(Spec((3,), 2), cfg).schedule(7, 4 * 48, None)
    names = [piece.phase for piece in work]
    step = ["improve", "improve", "compare"]
    again = ["settle", "judge", *step, *step, "gather", "imitate"]
    assert names == ["imitate", *again, *again, "settle", *4 * ["online"], "distil"]
    assert [type(x) for x in work[3:6]] == [Fill, Learn, Learn]
    assert [x.adds for x in work if isinstance(x, Collect)] == [True, True, False, False]
    assert sum(x.size for x in work if isinstance(x, Collect)) == 4 * 48


TUNE: dict[str, Any] = {"algorithm": "rl100", "num_env_steps": 96, "eval_every": 10_000}
TUNE |= {f"algorithm.{k}": v for k, v in SMALL.items() if k not in ("widths", "network", "window")}
TUNE = {k: v for k, v in TUNE.items() if k.split(".")[-1] not in ("history", "executed", "rounds")}
TUNE = {k: v for k, v in TUNE.items() if not k.endswith(("action_low", "action_high"))}
TUNE |= {"algorithm.tuned": 5, "algorithm.iterations": 1, "algorithm.improvements": 1}
TUNE |= {"algorithm.judge_updates": 30, "algorithm.imitation_updates": 3}
TUNE |= {"compile": "never", "eval_episodes": 1, "tracker": "none", "show": False}


def test_killed_between_two_pieces_and_resumed_equals_undisturbed(line: str, tmp_path: Path):
    """New episodes, which are data from then on, among them."""
    clone = CLONE | {"algorithm.sampler": "ddim"}
    run = run_of("diffusion_policy", line, tmp_path, **clone)
    data = {"dataset": str(tmp_path / "line.hdf5")}
    whole = finetune(run=run, **TUNE, **data, name="whole").path
    stops: list[int] = []

    def quit_once(trainer: Any) -> None:
        if not stops and trainer.work is not None and trainer.work[0].phase == "imitate":
            stops.append(trainer.clock)
            raise RuntimeError("the cable is out")

    keys = {**TUNE, **data, "name": "again", "checkpoint_every": 12, "eval_every": 12}
    with pytest.raises(RuntimeError, match="cable"):
        finetune(run=run, **keys, watch=quit_once)
    again = finetune(run=run, **keys).path
    for seed in range(2):
        one, two = (SeedFolder(path, seed).checkpoints() for path in (whole, again))
        first, second = load_file(one[max(one)]), load_file(two[max(two)])
        assert all(torch.equal(first[k], second[k]) for k in first)
        assert int(first["buffer/kept_sizes"]) > 0
    rows = [json.loads(x) for x in (whole / "seed_0" / "metrics.jsonl").read_text().splitlines()]
    assert sum("train/accepted" in row for row in rows) == 1


@pytest.mark.parametrize("acting", ["rounds", "one_step"])
def test_it_learns_from_nothing_and_acts_from_its_bundle(line: str, tmp_path: Path, acting: str):
    run_of("bc", line, tmp_path, **{"algorithm.hidden": [8]})  # writes the data
    keys = TUNE | {f"algorithm.{k}": list(v) if k == "widths" else v for k, v in SMALL.items()}
    keys |= {"algorithm.iterations": 1, "algorithm.improvements": 1, "algorithm.acting": acting}
    keys |= {"algorithm.action_low": [-1.0], "algorithm.action_high": [1.0]}
    keys |= {"algorithm.one_step": "joint", "num_env_steps": 48, "task": line, "num_updates": 3}
    result = train(**keys, dataset=str(tmp_path / "line.hdf5"), out=str(tmp_path))
    player = policies.Player(policies.load(result.path / "seed_0" / "policy.bundle"))
    player.reset()
    actions = [player.step(np.array([0.1, 0.0], np.float32)) for _ in range(5)]
    assert all(a.shape == (1,) and abs(a[0]) <= 1 for a in actions)
    assert len(player.policy.bundle.arguments["table"]) == (1 if acting == "one_step" else 4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_env_steps": 100}, "new episodes and online iterations take 48 steps each"),
        (
            {"num_env_steps": 48, "algorithm.iterations": 2},
            "at least 96 for algorithm.iterations=2",
        ),
        ({"algorithm.elites": 4}, "elites=4 are more than members=3"),
        ({"algorithm.acting": "one_step"}, "acting=one_step needs a one-step head"),
        ({"pretrain_updates": 5}, "pretrain_updates=5: phases here have lengths of their own"),
    ],
)
def test_what_cannot_be_is_refused(line: str, tmp_path: Path, changes: dict, words: str):
    run = run_of("diffusion_policy", line, tmp_path, **CLONE)
    with pytest.raises(UserError, match=words):
        finetune(run=run, **(TUNE | {"dataset": str(tmp_path / "line.hdf5")} | changes))
