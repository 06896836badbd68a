"""Contracts of algorithms, each proved by an example in a file of its own, as users write it.

best_of_n        two networks act together: a critic selects among the samples of a policy
chunked_critic   chunks of actions in an environment
learned_model    transitions that a learned model predicts, in a ring on the device
world_model      one loss through three networks; a policy with memory and noise
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_data import save_small

import offline_rl
import policies
from offline_rl.cli.main import main
from offline_rl.runs.folder import SeedFolder
from offline_rl.training.trainer import Trainer
from offline_rl.utils.errors import UserError
from policies.heads.chunk import ChunkActor
from policies.networks.mlp import MLP

HERE = Path(__file__).parent
KEYS: dict[str, Any] = {"task": "env:Pendulum-v1", "max_episode_steps": 7, "batch_size": 8}
KEYS |= {"compile": "never", "eval_episodes": 1, "tracker": "none", "show": False}
SMALL: dict[str, Any] = {"algorithm.hidden": [8]}
OPTIONS: dict[str, dict[str, Any]] = {
    "best_of_n": SMALL | {"num_updates": 6, "checkpoint_every": 4},
    "chunked_critic": SMALL
    | {"num_updates": 0, "num_env_steps": 24, "online.warmup_steps": 8, "checkpoint_every": 16},
    "learned_model": SMALL
    | {"num_updates": 100, "pretrain_updates": 6, "checkpoint_every": 30}
    | {"algorithm.updates_per_round": 2, "algorithm.rows": 16, "algorithm.capacity": 100},
    "world_model": {"algorithm.recurrent": 8, "algorithm.latent": 2}
    | {"num_updates": 6, "checkpoint_every": 4},
}
# One process trains the runs of an algorithm, which several tests use.
each_algorithm = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.xdist_group(f"contract {n}")) for n in OPTIONS]
)
Train = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with data.npz, three episodes with the shapes of Pendulum."""
    made = tmp_path_factory.mktemp("contracts")
    save_small(made / "data.npz", obs=3, act=1)
    return made


@pytest.fixture(scope="module")
def train(folder: Path) -> Train:
    """Return a function that trains an example and returns its run; equal calls train once."""
    runs = dict[str, Path]()

    def run(name: str, out: str = "undisturbed", **more: Any) -> Path:
        key = repr((name, out, more))
        if key not in runs:
            keys = {"seeds": 2, "out": str(folder / out)} | KEYS | OPTIONS[name] | more
            data = {"dataset": str(folder / "data.npz")} if keys["num_updates"] else {}
            runs[key] = offline_rl.train(algorithm=str(HERE / f"{name}.py"), **keys, **data).path
        return runs[key]

    return run


def tensors(run: Path, seed: int, checkpoint: int = -1) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint, by default of the newest."""
    files = SeedFolder(run, seed).checkpoints()
    return load_file(files[sorted(files)[checkpoint]])


def evaluations(run: Path, seed: int = 0) -> list[dict[str, Any]]:
    rows = SeedFolder(run, seed).rows("evaluations")
    return [{k: v for k, v in row.items() if k != "wall_seconds"} for row in rows]


def module(make: Callable[..., torch.nn.Module], stored: dict[str, torch.Tensor], name: str) -> Any:
    """Return a network with the parameters that a checkpoint has under `name`."""
    start = f"params/{name}/"
    made = make()
    made.load_state_dict({k[len(start) :]: v for k, v in stored.items() if k.startswith(start)})
    return made.requires_grad_(False)


@each_algorithm
def test_the_saved_policy_scores_as_in_training(name: str, train: Train) -> None:
    run = train(name)
    for bundle, returns in offline_rl.evaluate(run=str(run), episodes=1).returns.items():
        seed = int(bundle.parent.name.removeprefix("seed_"))
        np.testing.assert_allclose(returns, evaluations(run, seed)[-1]["returns"], rtol=1e-5)


@each_algorithm
def test_stacked_seeds_equal_single_seeds(name: str, train: Train) -> None:
    stacked, single = tensors(train(name), 1), tensors(train(name, "single", seeds=[1]), 1)
    assert stacked.keys() == single.keys()
    for key, value in single.items():
        torch.testing.assert_close(stacked[key], value, atol=1e-4, rtol=1e-4, msg=key)


@each_algorithm
def test_a_resumed_run_equals_an_undisturbed_one(
    name: str, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is interrupted after the first checkpoint in its main phase, and then repeated."""
    undisturbed, save = train(name), Trainer.save

    def save_and_stop(trainer: Trainer) -> None:
        save(trainer)
        if trainer.work.moment.phase != "fit_model":
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "save", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        train(name, "resumed")
    monkeypatch.undo()
    stored = tensors(undisturbed.parents[3] / "resumed" / Path(*undisturbed.parts[-3:]), 0)
    if name == "chunked_critic":
        assert stored["memory/_taken"].item() == 2  # of 4 actions
    if name == "learned_model":
        assert stored["rings/imagined/added"][0] > 100  # the oldest rows are overwritten
    resumed = train(name, "resumed")
    for seed in range(2):
        one, two = tensors(undisturbed, seed), tensors(resumed, seed)
        assert one.keys() == two.keys()
        assert [k for k in one if not torch.equal(one[k], two[k])] == []
        assert evaluations(undisturbed, seed) == evaluations(resumed, seed)


def test_a_chunk_longer_than_the_episodes_of_the_data_or_the_environment_is_refused(
    train: Train,
) -> None:
    """Episodes have 100 steps in the data and 7 in the environment."""
    with pytest.raises(UserError, match=r"has 100 steps, a chunk has 101\. Lower algorithm\.hor"):
        train("best_of_n", "refused", **{"algorithm.horizon": 101})
    with pytest.raises(UserError, match=r"has 7 steps, a chunk has 8\. Lower algorithm\.horizon"):
        train("chunked_critic", "refused", **{"algorithm.horizon": 8})


def test_a_ring_that_nothing_fills_is_refused(folder: Path, tmp_path: Path) -> None:
    text = (HERE / "learned_model.py").read_text().replace("work += [fill, Learn", "work += [Learn")
    (tmp_path / "unfilled.py").write_text(text)
    keys = KEYS | OPTIONS["learned_model"] | {"dataset": str(folder / "data.npz")}
    with pytest.raises(UserError, match=r"the ring 'imagined' of .* would stay empty"):
        offline_rl.train(algorithm=str(tmp_path / "unfilled.py"), out=str(tmp_path), **keys)


@pytest.mark.slow
@each_algorithm
def test_an_exported_policy_acts_as_in_torch(name: str, train: Train) -> None:
    """Two episodes of five steps, with the same noise."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    bundle = train(name) / "seed_0" / "policy.bundle"
    (line,) = offline_rl.export(run=str(bundle))
    assert "within" in line
    players = [policies.Player(policies.load(bundle, runtime=r)) for r in ("onnx", "torch")]
    for player in players:
        player.reset([3, 5])
    for observations in np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32):
        onnx, expected = (player.step(observations) for player in players)
        np.testing.assert_allclose(onnx, expected, atol=1e-5)


def test_the_command_trains_evaluates_and_reports_an_example(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The policy is a head of two networks."""
    keys = {k: v for k, v in (KEYS | OPTIONS["best_of_n"]).items() if k != "show"}
    keys |= {"dataset": folder / "data.npz", "out": folder / "command"}
    words = [f"{name}={value}".replace(" ", "") for name, value in keys.items()]
    assert main(["train", f"algorithm={HERE / 'best_of_n.py'}", *words]) == 0
    (bundle,) = (folder / "command").rglob("policy.bundle")
    assert policies.load(bundle).bundle.kind == "BestOfN"
    assert main(["evaluate", f"run={bundle.parents[1]}", "episodes=1"]) == 0
    assert main(["report", str(folder / "command")]) == 0
    assert "best_of_n" in capsys.readouterr().out


def test_chunks_are_executed_open_loop(train: Train) -> None:
    """The policy acts from the first step on and has no updates. A chunk has 4 of 7 steps."""
    more = {"online.warmup_policy": "policy", "online.warmup_steps": 14, "num_env_steps": 14}
    more |= {"algorithm.exploration_noise": 0.0, "seeds": 1}
    stored = tensors(train("chunked_critic", "open_loop", **more), 0)
    policy = module(lambda: ChunkActor(3, 1, [8], horizon=4, n_action_steps=4), stored, "policy")
    chunks = policy(stored["buffer/observations"][:, None])  # [14, 4, 1]
    for start in (0, 7):
        expected = torch.cat([chunks[start], chunks[start + 4][:3]])
        torch.testing.assert_close(stored["buffer/actions"][start : start + 7], expected)


def test_a_learned_model_fills_its_ring_without_evaluations(train: Train) -> None:
    """50 rounds of 16 rows. All rows are predictions of the model, which no longer changes."""
    run = train("learned_model")
    rows = [(row["updates"], row.get("rows", 0)) for row in evaluations(run)]
    assert rows == [(0, 0), (6, 0), (106, 800)]
    stored = tensors(run, 0)
    ring = {k.removeprefix("rings/imagined/"): v for k, v in stored.items() if "rings" in k}
    assert len(ring["rewards"]) == ring["added"][1] == 100
    states = torch.from_numpy(np.load(run.parents[3] / "data.npz")["obs"])
    s, a = ring["observations"], ring["actions"]
    assert (s[:, None] == states).all(-1).any(1).all()
    assert len(s.unique(dim=0)) > 50
    model = module(lambda: MLP(4, 4, [8]), stored, "model")
    prediction = model(torch.cat([s, a], -1))
    torch.testing.assert_close(ring["next_observations"], s + prediction[:, :3])
    torch.testing.assert_close(ring["rewards"], prediction[:, 3])
    assert ring["truncated"].all()
    assert not ring["terminated"].any()


def test_a_world_model_acts_with_memory_and_noise(train: Train) -> None:
    """The observation is always the same."""
    path = train("world_model") / "seed_0" / "policy.bundle"
    player, observation = policies.Player(policies.load(path)), np.ones(3, np.float32)

    def play(seed: int) -> list[float]:
        player.reset(seed)
        return [float(player.step(observation)[0]) for _ in range(3)]

    actions = play(0)
    assert len(set(actions)) == 3
    assert play(0) == actions
    assert play(1)[0] != actions[0]
    policy = player.policy
    memory, noise = policy.network.initial_memory(1), np.zeros((1, 2), np.float32)
    first, memory = policy.decide(observation[None, None], memory, noise)
    second, _ = policy.decide(observation[None, None], memory, noise)
    assert first != second
