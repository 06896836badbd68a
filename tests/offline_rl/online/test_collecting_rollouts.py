"""Rollouts of environments that break: what counts, what is begun again, and when it is enough."""

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import envs
from envs import tasks
from offline_rl.algorithms.common.base import Interaction
from offline_rl.algorithms.common.schedule import OnPolicy
from offline_rl.algorithms.dppo import DPPO, Config
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine
from offline_rl.online.rollouts import RolloutCollector
from offline_rl.replay.batch import Sources
from offline_rl.replay.rollouts import Rollouts
from offline_rl.utils.errors import UserError
from offline_rl.utils.seeds import training
from policies import Spec

ENVIRONMENTS, EXECUTED = 3, 2


class Walk(gymnasium.Env):
    """Ten steps along a line; `faults` says what the n-th step of an episode does, by its seed."""

    faults: ClassVar[Callable[[int, int], str]]
    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.seed, self.x, self.t = seed, float(self.np_random.uniform(-1, 1)), 0
        return np.array([self.x, 0], np.float32), {}

    def step(self, action: np.ndarray):
        fault, self.t = type(self).faults(self.seed, self.t), self.t + 1
        if fault == "raise":
            raise OSError("the cable is out")
        self.x = np.nan if fault == "nan" else self.x + 0.2 * float(action[0])
        return np.array([self.x, self.t], np.float32), self.x, False, False, {}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[RolloutCollector, list]]:
    """One of a seed with three environments, whose faults are given, and what it says."""
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    envs.register("walk", Walk, max_episode_steps=10)

    def made(faults: Callable[[int, int], str]) -> tuple[RolloutCollector, list]:
        monkeypatch.setattr(Walk, "faults", staticmethod(faults), raising=False)
        sizes: dict[str, Any] = {"network": "mlp", "widths": (8,), "history": 1, "window": 4}
        sizes |= {"executed": EXECUTED, "rounds": 2, "tuned": 2, "value_hidden": (8,)}
        sizes |= {"environments": ENVIRONMENTS, "decisions": 60, "batch_size": 60}
        cfg, spec = Config(**sizes), Spec((2,), 1)
        how = Interaction(OnPolicy(), cfg)
        columns, carried = DPPO(spec, cfg, 1, how).columns()
        store = Rollouts(1, (20, ENVIRONMENTS), columns, steps=2, carried=carried)
        e = Engine(lambda _: DPPO(spec, cfg, 1, how), [0], Sources(rollouts=store), batch_size=60)
        said: list[str] = []
        world: Any = lambda count: envs.make_vector("walk", count)  # noqa: E731
        transform = Transform.fit(cfg, None, spec.seen)
        return RolloutCollector(e, world, store, transform, say=said.append), said

    return made


def whole(seed: int, step: int) -> str:
    return ""


def rows(collector: RolloutCollector, first: int, last: int) -> dict[str, torch.Tensor]:
    names = ("observations", "next_observations", "rewards", "executed", "terminated", "truncated")
    return {name: collector.buffer.data[name][0, first:last].clone() for name in names}


@pytest.mark.parametrize("kind", ["raise", "nan"])
def test_a_decision_in_which_an_environment_breaks_counts_for_nothing_and_the_others_go_on(
    kind: str, collector: Any
):
    """The second environment's first episode, in the second action of its third decision."""
    sound, _ = collector(whole)
    for _ in range(3):
        sound.step()
    expected = rows(sound, 0, 3)
    second = training(0, 1)
    broken, said = collector(lambda seed, t: kind if (seed, t) == (second, 5) else "")
    for _ in range(3):
        broken.step()
    found = rows(broken, 0, 3)
    others = [0, 2]
    for name, values in expected.items():
        assert torch.equal(found[name][:2], values[:2])
        assert torch.equal(found[name][2, others], values[2, others])
    assert found["executed"][2, 1].tolist() == [0, 0]
    assert found["rewards"][2, 1].tolist() == [0, 0]
    assert (found["truncated"][2, 1], found["terminated"][2, 1]) == (1, 0)
    assert torch.equal(found["next_observations"][2, 1], found["observations"][2, 1])
    assert len(said) == 1
    assert "seed 0: the environment broke in step 5 of an episode" in said[0]
    broken.step()  # the next one's first
    after = rows(broken, 3, 4)["observations"][0, :, 0, 1]
    assert after.tolist() == [6, 0, 6]


def test_a_fault_that_does_not_come_again_costs_nothing(collector: Any):
    """A step that raises once is taken again in a new environment, after those before it."""
    sound, _ = collector(whole)
    left = [1]

    def once(seed: int, t: int) -> str:
        return "raise" if t == 3 and left and left.pop() else ""

    for _ in range(4):
        sound.step()
    shaky, said = collector(once)
    for _ in range(4):
        shaky.step()
    assert not left
    assert said == []
    for name, values in rows(sound, 0, 4).items():
        assert torch.equal(rows(shaky, 0, 4)[name], values)


def test_an_environment_that_breaks_five_times_in_a_row_stops_the_run(collector: Any):
    """Not where a whole episode lies in between."""
    broken, said = collector(lambda seed, t: "raise" if t == 2 else "")
    with pytest.raises(UserError, match=r"the cable is out.*for the 5th time in a row"):
        _ = [broken.step() for _ in range(20)]
    assert len(said) >= 4
    odd = {training(0, number) for number in range(1, 60, 2)}
    patient, said = collector(lambda seed, t: "raise" if t == 2 and seed in odd else "")
    for _ in range(19):
        patient.step()
    assert said
