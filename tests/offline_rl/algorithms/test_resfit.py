"""A frozen base and its correction: what is observed, learnt, resumed, kept and refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import envs
from envs import tasks
from offline_rl import Dataset
from offline_rl.algorithms.common.base import Interaction, State
from offline_rl.algorithms.resfit import Config, Online, ResFiT
from offline_rl.online.with_base import WithBase, base_of, labelled
from offline_rl.replay.batch import Batch
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
