"""Simulators that allow one open instance, instances that share state, strict environments."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from simulators import Server, Single, Walk

import envs
from envs import Broken, tasks
from envs.adapters import LoopVectorEnv
from offline_rl.evaluation.rollout import rollout

STEPS = 6


class Shared(Walk):
    """Environment whose instances share one position."""

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(Shared, name, value) if name == "place" else super().__setattr__(name, value)


class Unseeded(Walk):
    def reset(self, *, seed: int | None = None, options: object = None) -> tuple:
        return Walk.reset(self)


class Fixed(Walk):
    def reset(self, *, seed: int | None = None, options: object = None) -> tuple:
        super().reset(seed=seed)
        self.place = 0.0
        return np.float32([0]), {}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tasks, "_registered", {})
    for kind in (Walk, Single, Shared, Unseeded, Fixed):
        envs.register(kind.__name__.lower(), kind, max_episode_steps=STEPS)
    yield
    assert Single.open == 0


def returns(env: envs.VectorEnv, seeds: list[int]) -> list[float]:
    """Return the returns of episodes with a constant action, in turn if environments are fewer."""
    result = list[float]()
    for k in range(0, len(seeds), env.num_envs):
        batch = np.array(seeds[k : k + env.num_envs])
        act = np.full((len(batch), 1), 0.5, np.float32)
        result += rollout(env, lambda _, act=act: act, lambda x: x, batch).returns.tolist()
    return result


def test_a_simulator_with_one_instance_plays_episodes_in_turn() -> None:
    many, one = envs.make_vector("walk", 3), envs.make_vector("single", 3, fewer=True)
    assert (one.num_envs, Single.open) == (1, 1)
    assert one.limit == (
        "Only one instance of single can be open (RuntimeError: the simulator runs already)"
    )
    assert returns(one, [4, 5, 6]) == returns(many, [4, 5, 6])
    one.close()
    with pytest.raises(ValueError, match=r"^Only one instance of single .*, and 2 are needed"):
        envs.make_vector("single", 2)


def test_with_two_possible_instances_two_are_open_and_a_third_is_refused() -> None:
    instances = iter([Walk(), Walk()])

    def two() -> Walk:
        if (env := next(instances, None)) is None:
            raise RuntimeError("no license is left")
        return env

    envs.register("two", two, max_episode_steps=STEPS)
    env = envs.make_vector("two", 3, fewer=True)
    assert env.num_envs == 2
    assert env.limit == "Only 2 instances of two can be open (RuntimeError: no license is left)"
    assert returns(env, [4, 5, 6]) == returns(envs.make_vector("walk", 3), [4, 5, 6])
    with pytest.raises(Broken, match=r"Only 2 instances of two can be open \(.*no license is"):
        envs.make_vector("two", 1)
    other = envs.make_vector("two", 1, fewer=True)
    assert (other.num_envs, other.limit) == (1, env.limit)
    assert returns(other, [7]) == returns(envs.make_vector("walk", 1), [7])


def test_an_episode_continues_unchanged_after_another_used_the_only_instance() -> None:
    """This happens to a collector's running episode during an evaluation."""
    alone, mine = envs.make_vector("walk", 1), envs.make_vector("single", 1)
    other = envs.make_vector("single", 1)  # where Single.open is 1
    actions = np.linspace(-1, 1, STEPS, dtype=np.float32)[:, None, None]
    alone.reset([7]), mine.reset([7])
    for t, action in enumerate(actions):
        if t in (2, 3, 5):
            returns(other, [8])
        expected, step = alone.step(action), mine.step(action)
        np.testing.assert_array_equal(step.observations, expected.observations)
        assert step.rewards == expected.rewards
    assert step.truncated[0]
    other.close()
    other.close()
    assert Single.open == 1
    mine.close()


@pytest.mark.parametrize("in_place", [False, True])
def test_an_episode_that_cannot_be_replayed_raises(
    in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test environments that return a new array, or the same array each time (in_place)."""
    array = np.zeros(1, np.float32)

    def reuse(result: tuple) -> tuple:
        array[:] = result[0]
        return (array, *result[1:]) if in_place else result

    monkeypatch.setattr(Single, "reset", lambda self, **_: reuse(Walk.reset(self)))
    monkeypatch.setattr(Single, "step", lambda self, action: reuse(Walk.step(self, action)))
    mine, other = envs.make_vector("single", 1), envs.make_vector("single", 1)
    mine.reset([7])
    mine.step(np.zeros((1, 1)))
    other.reset([8])
    with pytest.raises(Broken, match=r"lead to a different observation$"):  # no other hint
        mine.step(np.zeros((1, 1)))
    mine.reset([9])
    mine.step(np.zeros((1, 1)))
    mine.close(), other.close()


def test_instances_that_share_state_are_detected_and_used_in_turn() -> None:
    shared = envs.make_vector("shared", 3, fewer=True)
    assert (shared.num_envs, shared.limit) == (1, "Instances of shared share state")
    assert returns(shared, [4, 5, 6]) == returns(envs.make_vector("walk", 3), [4, 5, 6])
    sound = envs.make_vector("walk", 3, fewer=True)
    assert (sound.num_envs, sound.limit) == (3, None)


def test_a_second_instance_that_fails_in_use_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    users = list[object]()

    def reset(self: Walk, **keys: Any) -> tuple:
        users.append(self)
        if users[0] is not self:
            raise RuntimeError("connected elsewhere")
        return Walk.reset(self, **keys)

    monkeypatch.setattr(Unseeded, "reset", reset)
    env = envs.make_vector("unseeded", 2, fewer=True)
    assert env.num_envs == 1
    assert env.limit == (
        "Only one instance of unseeded can be open (RuntimeError: connected elsewhere)"
    )


def test_a_first_instance_broken_by_a_second_one_is_reopened_alone() -> None:
    envs.register("server", Server, max_episode_steps=STEPS)
    env = envs.make_vector("server", 3, fewer=True)
    assert (env.num_envs, env.limit) == (
        1,
        "Only one instance of server can be open (a second one breaks the first, RuntimeError: "
        "Not connected to physics server)",
    )
    walk = envs.make_vector("walk", 3)
    assert returns(env, [4, 5, 6]) == returns(walk, [4, 5, 6])
    with closing(envs.make_vector("server", 1)) as other:  # shares the one that is open
        assert returns(other, [7]) == returns(walk, [7])
    env.close()


def test_the_first_instance_is_reopened_after_a_failed_second_constructor_broke_it() -> None:
    class Greedy(Server):
        def __init__(self) -> None:
            in_use = Server.newest is not None
            super().__init__()
            if in_use:
                Server.newest = None
                raise RuntimeError("port in use")

        def close(self) -> None:
            Server.newest = None

    envs.register("greedy", Greedy, max_episode_steps=STEPS)
    with closing(envs.make_vector("greedy", 2, fewer=True)) as env:
        limit = "Only one instance of greedy can be open (RuntimeError: port in use)"
        assert (env.num_envs, env.limit) == (1, limit)
        assert returns(env, [4]) == returns(envs.make_vector("walk", 1), [4])


def test_a_setting_that_allows_one_instance_opens_no_second(monkeypatch: Any) -> None:
    monkeypatch.setattr(Server, "made", 0)
    envs.register("server", Server, max_episode_steps=STEPS)
    one = envs.make_vector("server", 2, fewer=True, single="eval_envs=1")
    other = envs.make_vector("server", 1, single="eval_envs=1")
    assert (one.num_envs, other.num_envs, Server.made) == (1, 1, 1)
    assert one.limit == "Only one instance of server is allowed (eval_envs=1)"
    with pytest.raises(ValueError, match=r"eval_envs=1\), and 2 are needed at once"):
        envs.make_vector("server", 2, single="eval_envs=1")
    one.close(), other.close()
    assert Server.newest is None


def test_an_environment_that_calls_sys_exit_is_a_failed_environment(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text(
        "import sys\nfrom tests.envs.test_instances import Walk\n\n\n"
        "class One(Walk):\n"
        "    max_episode_steps, made = 6, 0\n"
        "    def __init__(self):\n"
        "        if One.made:\n"
        "            sys.exit('license: one instance only')\n"
        "        One.made += 1\n\n\n"
        "class Never(Walk):\n"
        "    max_episode_steps = 6\n"
        "    def __init__(self):\n"
        "        sys.exit('no license')\n\n\n"
        "class Stops(Walk):\n"
        "    max_episode_steps = 6\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        sys.exit('the motor is off')\n"
    )
    (tmp_path / "script.py").write_text("raise SystemExit('usage: script.py')\n")
    where = f"env:{tmp_path}/exits.py"
    with closing(envs.make_vector(f"{where}:One", 2, fewer=True)) as env:
        assert env.num_envs == 1
        assert "can be open (SystemExit: license: one instance only)" in str(env.limit)
    with pytest.raises(ValueError, match=r"Never cannot be built: .*SystemExit: no license"):
        envs.make_vector(f"{where}:Never", 1)
    stops = envs.make_vector(f"{where}:Stops", 1)
    with pytest.raises(Broken, match=r"SystemExit: the motor is off"):
        stops.reset([0])
    with pytest.raises(ValueError, match=r"SystemExit: usage"):
        envs.make_vector(f"env:{tmp_path}/script.py:One", 1)


def test_all_environments_are_closed_if_one_fails_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[object]()

    def close(env: object) -> None:
        closed.append(env)
        raise OSError("no answer")

    monkeypatch.setattr(Fixed, "close", close)
    env = envs.make_vector("fixed", 3)
    with pytest.raises(OSError, match="no answer"):
        env.close()
    assert len({*map(id, closed)}) == len(closed) == 3


@pytest.mark.parametrize(
    ("task", "starts"), [("walk", "seeded"), ("unseeded", "random"), ("fixed", "alike")]
)
def test_the_kind_of_start_is_detected(task: str, starts: str) -> None:
    env = envs.make_vector(task, 2, fewer=True)
    assert isinstance(env, LoopVectorEnv)
    assert env.classify_starts() == starts


def test_an_observation_that_requires_grad_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensor = torch.zeros(1, requires_grad=True)
    monkeypatch.setattr(Walk, "reset", lambda self, **keys: (tensor, {}))
    env = envs.make_vector("walk", 1)
    remedy = r"requires grad.*instead\. Return a detached CPU tensor or a NumPy array$"
    with pytest.raises(Broken, match=rf"^walk: reset failed: RuntimeError: .*{remedy}"):
        env.reset([0])
    monkeypatch.setattr(Walk, "reset", lambda self, **keys: 1)
    with pytest.raises(Broken, match=r"It must return observation, info$"):
        env.reset([0])


class Strict(Walk):
    """Environment that checks its action space and returns arrays with one number."""

    action_space = Box(np.float32(0.1), np.float32(0.7), (2,), np.float64)
    observation_space = Dict({"place": Box(-9, 9, ()), "goal": Box(-9, 9, (2,))})

    def observe(self, place: Any) -> dict[str, Any]:
        return {"place": np.float32(place), "goal": np.zeros(2, np.float32)}

    def reset(self, **keys: Any) -> tuple:
        super().reset(**keys)
        return self.observe(self.place), {}

    def step(self, action: np.ndarray) -> tuple:
        assert self.action_space.contains(action), action
        self.place = float(action[0])
        return self.observe(self.place), np.array([self.place]), np.array([False]), False, {}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_actions_are_in_their_space_and_outputs_are_plain_numbers(
    kind: type, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds are in the space despite rounding; a Box of shape () becomes a channel."""
    space = Box(kind(0.1), kind(0.7), (2,), kind)
    monkeypatch.setattr(Strict, "action_space", space)
    envs.register("strict", Strict, max_episode_steps=STEPS)
    env = envs.make_vector("strict", 2)
    assert isinstance(env, LoopVectorEnv)
    env.check_first_steps()
    assert env.observation_shape == {"place": (1,), "goal": (2,)}
    assert env.reset([0, 1])["place"].shape == (2, 1)
    step = env.step(np.array([[-1, -1], [1, 1]], dtype))
    assert step.rewards.shape == (2,)
    np.testing.assert_allclose(step.rewards, [0.1, 0.7], rtol=1e-6)
    alone = envs.make("strict")
    observation, _ = alone.reset(seed=0)
    assert alone.observation_space.contains(observation)
    _, reward, *ends, _ = alone.step(np.zeros(2, dtype))
    assert (type(reward), ends) == (float, [False, False])


def test_a_unit_box_gets_actions_of_its_type_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Strict, "action_space", Box(-1, 1, (2,), np.float32))
    envs.register("unit", Strict, max_episode_steps=STEPS)
    env = envs.make_vector("unit", 1)
    env.reset([0])
    env.step(np.zeros((1, 2)))  # float64
