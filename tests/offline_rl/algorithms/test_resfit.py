"""A frozen base and its correction: what is observed, learnt, resumed, kept and refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from safetensors.torch import load_file

import envs
import policies
from envs import tasks
from offline_rl import Dataset, UserError, finetune, train
from offline_rl.algorithms.common.base import Interaction, State
from offline_rl.algorithms.resfit import Config, Online, ResFiT
from offline_rl.evaluation.evaluate import evaluate, play
from offline_rl.online.with_base import WithBase, base_of, labelled
from offline_rl.replay.batch import Batch
from offline_rl.training.run_folder import SeedFolder
from offline_rl.utils.random import Random
from policies import Spec
from policies.channels import BASE_ACTION
from policies.heads.residual import ResidualActor

BASE = '''
import numpy as np

class Chunked:
    """Goes back to 0 with what it saw up to three steps ago, and noise of its own."""
    history, executed, noise_shape = 2, 3, (4, 1)
    asked = 0
    def plan(self, observations, noise):
        Chunked.asked += len(observations)
        last, before = observations[:, -1, :1], observations[:, -2, :1]
        return np.clip(-last - 0.1 * before, -0.9, 0.9)[:, None] + 0.1 * np.tanh(noise)

def simple(observations):
    return np.full((len(observations), 1), 0.25)

class Failing:
    """Whatever it is asked after a while."""
    asked = 0
    def __call__(self, observations):
        self.asked += 1
        if self.asked > 60:
            raise OSError("the model is gone")
        return np.zeros((len(observations), 1))

class Blind(Failing):
    def __call__(self, observations):
        self.asked += 1
        return np.full((len(observations), 1), np.nan if self.asked > 60 else 0.0)

def wide(observations):
    return np.zeros((len(observations), 3))
'''
QUICK: dict[str, Any] = {"batch_size": 8, "compile": "never", "precision": "fp32", "seeds": 2}
QUICK |= {"algorithm.hidden": [8], "algorithm.critics": 3, "algorithm.actor_lr": 1e-2}
QUICK |= {"eval_episodes": 2, "tracker": "none", "show": False, "checkpoint_every": 100}
QUICK |= {"online.warm_up": 12, "online.critic_updates": 8, "eval_every": 1000}


class Line(gymnasium.Env):
    """A point on a line; at most 10 steps; it ends where it has gone too far."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.uniform(-1, 1)), 0
        return np.array([self.x, 0], np.float32), {}

    def step(self, action: np.ndarray):
        self.x, self.t = self.x + 0.3 * float(action[0]), self.t + 1
        seen = np.array([self.x, self.t], np.float32)
        return seen, -abs(self.x), abs(self.x) > 1.2, False, {}


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> str:
    """A task's name."""
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    envs.register("line", Line, max_episode_steps=10)
    return "line"


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], str]:
    """The name of a base in a file."""
    (tmp_path / "bases.py").write_text(BASE)
    return lambda name: f"{tmp_path}/bases.py:{name}"


@pytest.fixture
def data() -> Dataset:
    """Demonstrations of the line's shape, of episodes of different lengths."""
    draw = np.random.default_rng(0)
    ends = np.isin(np.arange(60), [4, 14, 17, 29, 44, 59])
    seen, after = draw.normal(size=(60, 2)), draw.normal(size=(60, 2))
    after[:-1][~ends[:-1]] = seen[1:][~ends[:-1]]
    rest = (draw.uniform(-1, 1, (60, 1)), draw.uniform(size=60))
    return Dataset.from_arrays(seen, *rest, ends & False, ends, after)


def learn(base: str, data: Dataset, out: Path, steps: int = 40, **keys: Any):
    told = {**QUICK, "task": "line", "base": base, "dataset": data, "out": str(out), **keys}
    return finetune(**told, num_env_steps=steps)


def tensors(run: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    files = SeedFolder(run, seed).checkpoints()
    return load_file(files[max(files)])


def bundle_of(line: str, tmp_path: Path, data: Dataset) -> str:
    """Of a clone that plans."""
    keys = {"algorithm.network": "mlp", "algorithm.widths": [8, 16], "algorithm.noise_levels": 4}
    keys |= {"algorithm.window": 4, "algorithm.executed": 2, "batch_size": 8, "show": False}
    keys = {k: v for k, v in keys.items() if k.removeprefix("algorithm.") in known("flow_policy")}
    told = {"eval_episodes": 1, "tracker": "none", "compile": "never", "precision": "fp32"}
    made = train(
        algorithm="flow_policy", task=line, dataset=data, num_updates=2, out=str(tmp_path),
        **keys, **told,
    )  # fmt: skip
    return str(made.path / "seed_0" / "policy.bundle")


def known(algorithm: str) -> set[str]:
    from dataclasses import fields

    from offline_rl.algorithms.common.registry import algorithm_class

    return {f.name for f in fields(algorithm_class(algorithm).Config)} | {"show", "batch_size"}


def test_demonstrations_are_labelled_with_what_the_base_did_itself(
    line: str, own: Callable[[str], str]
) -> None:
    """Episodes that the base acted in, each from its number as a seed: the labels are its actions,
    and after an end what it would have done next, though histories and chunks differ."""
    env = envs.make_vector(line, 1)
    base, rows, after_ends = base_of(own("Chunked"), env), [], []
    for episode in range(5):
        world = WithBase(env, base)
        seen = world.reset([episode])
        for _ in range(10):
            step = world.step(seen[BASE_ACTION])
            rows.append((seen["observation"][0], seen[BASE_ACTION][0], step))
            seen = step.observations
            if step.terminated[0] or step.truncated[0]:
                break
        after_ends.append(seen[BASE_ACTION][0])
    made = labelled(
        Dataset.from_arrays(
            np.stack([row[0] for row in rows]),
            np.stack([row[1] for row in rows]),
            np.array([row[2].rewards[0] for row in rows]),
            np.array([row[2].terminated[0] for row in rows]),
            np.array([row[2].truncated[0] for row in rows]),
            np.stack([row[2].observations["observation"][0] for row in rows]),
        ),
        base,
    )
    found = made.observations[BASE_ACTION]
    np.testing.assert_array_equal(found[: len(rows)], made.actions)
    np.testing.assert_array_equal(found[made.next_index[made.episode_ends]], after_ends)


def test_environments_side_by_side_show_what_each_alone_shows(
    line: str, own: Callable[[str], str]
) -> None:
    """Whatever runs beside, in whatever order they end, a chunk is asked for once."""
    env = envs.make_vector(line, 3)
    base = base_of(own("Chunked"), env)
    many = WithBase(env, base)
    seen, running = many.reset([5, 6, 7]), np.arange(3)
    shown = {k: [seen[BASE_ACTION][k]] for k in range(3)}
    for _ in range(9):
        step = many.step(np.full((len(running), 1), 0.3), running)
        for k, row in enumerate(running):
            shown[int(row)].append(step.observations[BASE_ACTION][k])
        running = running[~(step.terminated | step.truncated)]
    for k in range(3):
        alone = WithBase(envs.make_vector(line, 1), base)
        expected = [alone.reset([5 + k])[BASE_ACTION][0]]
        while len(expected) < len(shown[k]):
            expected.append(alone.step(np.array([[0.3]])).observations[BASE_ACTION][0])
        np.testing.assert_array_equal(np.stack(shown[k]), np.stack(expected))


def test_the_correction_begins_at_nothing_and_stays_within_its_scale() -> None:
    torch.manual_seed(0)
    actor = ResidualActor(5, 2, [8], scale=0.1)
    seen = torch.rand(64, 5) * 2 - 1
    assert torch.equal(actor.act(seen), seen[:, -2:])
    for weight in actor.trunk.weights:
        torch.nn.init.normal_(weight, std=9.0)
    moved = actor.act(seen)
    assert (moved - seen[:, -2:]).abs().max() <= 0.1 + 1e-6
    assert (moved - seen[:, -2:]).abs().max() > 0.09
    assert moved.abs().max() <= 1
    noisy = actor.explore(seen, Random(torch.tensor(0), torch.tensor(0)))
    assert noisy.abs().max() <= 1


def small(online: dict[str, Any] | None = None, **values: Any) -> ResFiT:
    cfg = Config(hidden=(16,), critics=4, **values)
    how = Interaction(Online(utd=2.0, **(online or {})), cfg)
    torch.manual_seed(0)
    return ResFiT(Spec({"joints": (3,), BASE_ACTION: (2,)}, 2), cfg, 10, how)


def batch(size: int = 32) -> Batch:
    draw = torch.Generator().manual_seed(0)

    def seen() -> dict[str, torch.Tensor]:
        base = torch.rand(size, 2, generator=draw) * 2 - 1
        return {"joints": torch.randn(size, 3, generator=draw), BASE_ACTION: base}

    rest = [torch.rand(size, *shape, generator=draw) for shape in ((2,), (), ())]
    return Batch(seen(), *rest, seen())


def state_of(algorithm: ResFiT, done: int) -> State:
    tree, random = algorithm.initial(), Random(torch.tensor(0), torch.tensor(0))
    return State(algorithm, tree["params"], tree["optimiser"], random, torch.tensor(done))


def test_the_actor_stands_still_until_the_critics_have_learnt_alone() -> None:
    algorithm = small({"critic_updates": 5}, actor_lr=1e-2)
    for done in (4, 5):
        state = state_of(algorithm, done)
        new, _ = algorithm.update(state, batch(), 1)
        for name in ("policy", "policy_target"):
            pairs = zip(state.params[name].values(), new.params[name].values(), strict=True)
            moved = any(not torch.equal(a, b) for a, b in pairs)
            assert moved == (done >= 5), (done, name)
        assert int(new.optimiser["policy"]["count"]["steps"]) == (done >= 5)
        assert any(
            not torch.equal(a, new.params["critic"][k]) for k, a in state.params["critic"].items()
        )
        assert torch.equal(new.params["policy"]["head.scale"], torch.tensor(0.1))


def test_the_target_is_of_the_clipped_sum_and_the_least_of_different_critics() -> None:
    """Float64 by hand, without noise; with it the target's action is within the noise's clip."""
    algorithm, drawn = small({"critic_updates": 0}, target_noise=False, subset=4), batch()
    state = state_of(algorithm, 0)
    y = algorithm.target(state, drawn, torch.tensor(True))
    after = drawn.next_observations
    q = state.critic_target(after, after[BASE_ACTION].clamp(-1, 1))
    expected = drawn.rewards.double() + drawn.discount.double() * q.double().amin(0)
    torch.testing.assert_close(y.double(), expected, atol=1e-6, rtol=0)
    loud = small({"critic_updates": 0}, noise=50.0, noise_clip=0.0, subset=4)
    torch.testing.assert_close(loud.target(state, drawn, torch.tensor(True)), y)
    early = small(noise=0.3, subset=4)
    torch.testing.assert_close(early.target(state, drawn, torch.tensor(False)), y)


def test_critics_are_squared_each_for_itself_unless_the_code_is_asked_for() -> None:
    drawn = batch()
    for mean_first in (False, True):
        algorithm = small(mean_first=mean_first, subset=4)
        state = state_of(algorithm, 0)
        errors = (
            state.critic(drawn.observations, drawn.actions)
            - algorithm.target(state, drawn, torch.tensor(False))
        ).double()
        by_hand = errors.abs().mean(0).square().mean() if mean_first else errors.square().mean()
        _, metrics = algorithm.update(state, drawn, 0)
        assert metrics["critic_loss"].item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_work_comes_in_the_papers_order() -> None:
    """Nothing in the warm-up, then the critics alone at once, then so many a step."""
    online = Online(warm_up=100, critic_updates=50, utd=4.0)
    assert [online.due(n, 8, 4) for n in (0, 99, 100)] == [0, 0, 0]
    assert [online.due(n, 8, 4) for n in (101, 102)] == [52 + 4, 52 + 8]
    seen = {BASE_ACTION: np.array([0.95, -0.2])}
    drawn = np.stack([online.drawn(np.random.default_rng(k), seen, 2) for k in range(200)])
    assert drawn.max() == 1
    assert np.abs(drawn - seen[BASE_ACTION]).max() <= 0.2
    assert np.abs(drawn[:, 1] + 0.2).max() > 0.19


def test_the_first_evaluation_is_the_bases_and_what_was_learnt_is_resumed_in_mid_chunk(
    line: str, own: Callable[[str], str], data: Dataset, tmp_path: Path
) -> None:
    whole = learn(own("Chunked"), data, tmp_path / "whole")
    told = (whole.path / "seed_0" / "evaluations.jsonl").read_text().splitlines()
    first = json.loads(told[0])
    env = envs.make_vector(line, 2)
    world = WithBase(env, base_of(own("Chunked"), env))
    seen, returns, running = world.reset(first["seeds"]), np.zeros(2), np.arange(2)
    actions = seen[BASE_ACTION].copy()
    while len(running):
        step = world.step(actions[running], running)
        returns[running] += step.rewards
        actions[running] = step.observations[BASE_ACTION]
        running = running[~(step.terminated | step.truncated)]
    assert first["returns"] == returns.tolist()

    def stop(trainer: Any) -> None:
        if trainer.clock == 25:
            trainer.save()
            raise KeyboardInterrupt

    keys = {"eval_every": 25, "checkpoint_every": 25}
    told = {**QUICK, "task": "line", "base": own("Chunked"), "dataset": data, **keys}
    told |= {"algorithm": "resfit", "num_updates": 0, "num_env_steps": 40, "watch": stop}
    with pytest.raises(KeyboardInterrupt):
        train(**told, out=str(tmp_path / "cut"))
    again = learn(own("Chunked"), data, tmp_path / "cut", **keys)
    for seed in (0, 1):
        one, two = tensors(whole.path, seed), tensors(again.path, seed)
        assert one.keys() == two.keys()
        assert "buffer/observations/base_action" in one
        for name in one:
            assert torch.equal(one[name], two[name]), name
        moved = one["params/policy/head.trunk.weights.1"]
        assert moved.abs().max() > 0


def test_a_residual_bundle_holds_its_base_and_acts_as_it_was_evaluated(
    line: str, data: Dataset, tmp_path: Path
) -> None:
    base = bundle_of(line, tmp_path / "base", data)
    before = Path(base).read_bytes()
    made = learn(base, data, tmp_path / "out", seeds=1)
    assert Path(base).read_bytes() == before
    file = made.path / "seed_0" / "policy.bundle"
    policy = policies.load(file)
    assert policy.bundle.base is not None
    first = policies.load(base).bundle.weights
    for name, weight in policy.bundle.base.weights.items():
        np.testing.assert_array_equal(weight, first[name])
    assert (policy.spec.seen, policy.spec.horizon) == ((2,), 1)
    played = json.loads(evaluate(run=str(file), episodes=2, json=True))["bundles"][0]["returns"]
    assert played == made.results[0]["returns"]
    untouched = play(policies.load(base), envs.make_vector(line, 2)).returns
    assert played != untouched.tolist()
    seen, state = np.array([[0.5, 0.0], [0.1, 0.0]], np.float32), None
    for _ in range(3):
        kept = state
        chunk, state = policy.act(seen, kept)
        again, _ = policy.act(seen, kept)
        np.testing.assert_array_equal(chunk, again)
        assert chunk.shape == (2, 1, 1)


@pytest.mark.parametrize(
    ("name", "fault"), [("Failing", "the model is gone"), ("Blind", "answers NaN")]
)
def test_a_base_that_fails_ends_the_episode_and_at_last_the_run(
    line: str, own: Callable[[str], str], data: Dataset, tmp_path: Path, name: str, fault: str
) -> None:
    found = rf"the base policy broke in step 0.*:{name}.*{fault}.*for the 5th time in a row"
    with pytest.raises(UserError, match=found):
        learn(own(name), data, tmp_path, 200, seeds=1, **{"online.warm_up": 150})


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"base": "wide"}, r"answers \[1, 1, 3\] for one observation; actions \[1, 1\]"),
        ({"base": "absent"}, "AttributeError"),
        ({"algorithm.scale": 0.0}, "scale"),
        ({"num_updates": 10}, "learns in an environment alone"),
        ({"task": None}, "say where the base is corrected, with task="),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    line: str,
    own: Callable[[str], str],
    data: Dataset,
    tmp_path: Path,
    keys: dict[str, Any],
    fault: str,
) -> None:
    told = {"base": "simple", "task": line} | keys
    told["base"] = own(told["base"])
    told = {k: v for k, v in told.items() if v is not None}
    with pytest.raises(UserError, match=fault):
        finetune(
            **{**QUICK, "dataset": data, "out": str(tmp_path / "no"), "num_env_steps": 20} | told
        )
    assert not (tmp_path / "no").exists()


def test_who_corrects_nothing_takes_no_base(
    line: str, own: Callable[[str], str], data: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="base= is read by resfit; iql corrects no policy"):
        train(algorithm="iql", task=line, base=own("simple"), dataset=data, out=str(tmp_path))


def test_demonstrations_out_of_the_corrections_reach_are_told_of(
    line: str, own: Callable[[str], str], data: Dataset, tmp_path: Path, capsys: Any
) -> None:
    learn(own("simple"), data, tmp_path, steps=2, seeds=1, show=True)
    share = np.mean(np.abs(data.actions[:, 0] - 0.25) > 0.1)
    assert f"{share:.0%} of its actions are further than scale=0.1" in capsys.readouterr().out
