"""Names, cards, scores, and Gymnasium environments as tasks."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import envs
from envs import tasks
from envs.cards import File
from envs.suites.locomotion import Hopper


class Line(gymnasium.Env):
    """A point moved along a line by up to 2 per step; terminates beyond 5."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    action_space = Box(np.float32([0]), np.float32([2]))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple:
        super().reset(seed=seed)
        self.x = self.np_random.uniform()
        return np.float32([self.x]), {}

    def step(self, action: np.ndarray) -> tuple:
        self.x += float(action[0])
        return np.float32([self.x]), float(action[0]), self.x > 5, False, {}


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(tasks, "_registered", {})
    envs.register("line", Line, max_episode_steps=4)
    return "line"


def test_every_card_is_a_task_with_files_and_with_a_reference_if_simulated() -> None:
    for name, card in envs.cards().items():
        task = envs.task(name)
        assert task.card is card
        assert card.name == name
        assert card.license
        assert card.source
        suites = {card.suite} if card.costs_from is None else {card.suite, "gym", "d4rl"}
        assert {file.path.split("/")[0] for file in card.files.values()} <= suites
        assert task.max_episode_steps
        if task.env_id:
            assert task.reference
            assert "{" not in task.reference.environment
            environment = tasks.NATIVE[task.env_id]
            assert tasks.episode_limit(environment) == task.max_episode_steps


def test_the_suites_are_complete() -> None:
    cards = envs.cards()
    count = {suite: sum(card.suite == suite for card in cards.values()) for suite in SUITES}
    assert count == SUITES
    qualities = ["random", "medium", "medium-replay", "medium-expert", "expert"]
    for runner in ("hopper", "walker2d", "halfcheetah"):
        assert all(f"gym/{runner}-{quality}" in cards for quality in qualities)
        assert all(f"{runner}-{quality}-v2" in cards for quality in [*qualities, "full-replay"])


SUITES = {"d4rl": 183, "neorl2": 8, "gym": 28, "d5rl": 6, "push": 11, "fetch": 6, "ogbench": 506}
SUITES |= {"dsrl": 38, "safe": 10}


def test_cards_have_the_published_files() -> None:
    card = envs.card("hopper-medium-replay-v1")
    name = "hopper_medium_replay-v1.hdf5"
    where = f"://rail.eecs.berkeley.edu/datasets/offline_rl/gym_mujoco_v1/{name}"
    urls = (f"https{where}", f"http{where}")
    assert card.files == {"train": File(name, f"d4rl/{name}", urls)}
    assert (card.layout, card.env) == ("d4rl", "Hopper-v4")
    newer = envs.card("hopper-medium-replay-v2").files["train"]
    assert newer.path == "d4rl/hopper_medium_replay-v2.hdf5"
    assert newer.urls[1].endswith("huggingface.co/datasets/imone/D4RL/resolve/main/" + newer.name)
    assert newer.size_bytes == 75854457
    val = envs.card("neorl2/DMSD").files["val"]
    assert val.path == "neorl2/DMSD/DMSD-high-20000-val.npz"
    assert val.md5 == "be6c39c0e73c17029206e714068f26b7"
    assert val.sha256 == "15a8df46b8c6c0203cc0a73b60a97e31274ade1eafa8c6df47f5f43440ef15bb"
    pipeline = envs.card("neorl2/Pipeline").files["train"]  # the public repository's file differs
    assert pipeline.sha256 is None
    assert not any("github" in url for url in pipeline.urls)
    assert envs.card("neorl2/RocketRecovery").files["train"].first_episodes == 100


def test_no_two_different_d4rl_files_have_one_name() -> None:
    files = {file for card in envs.cards().values() for file in card.files.values()}
    assert len({file.path for file in files}) == len(files)


def test_scores_are_d4rls_normalized_scores() -> None:
    """Hopper's random return scores 0 and its expert's return 100, as in D4RL's infos.py."""
    task = envs.task("hopper-medium-v2")
    np.testing.assert_allclose(task.score([-20.272305, 3234.3]), [0, 100])
    assert envs.task("neorl2/Pipeline").score(429.0) == pytest.approx(69.25, abs=0.01)
    with pytest.raises(ValueError, match="no score references"):
        envs.task("env:Pendulum-v1").score([1.0])


def test_a_tasks_cost_limit_is_the_middle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_registered", {})
    for name, limits, middle in (("a", (), None), ("b", [3], 3), ("c", [3, 8], 3)):
        envs.register(name, Line, max_episode_steps=4, cost_limits=limits)
        assert envs.task(name).cost_limits == tuple(limits)
        assert envs.task(name).cost_limit == middle
    envs.register("d", Line, max_episode_steps=4, cost_limits=[0, 20, 40.5])
    assert envs.task("d").cost_limit == 20
    for wrong in ([20, 10], [-1, 5], [5, 5]):
        with pytest.raises(ValueError, match=r"cost_limits is .*Use increasing numbers"):
            envs.register("e", Line, max_episode_steps=4, cost_limits=wrong)


def test_cost_limits_are_those_of_the_card_then_of_the_environments_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert envs.task("hopper-medium-v2").cost_limits == ()
    monkeypatch.setattr(Hopper, "cost_limits", (20, 40, 80), raising=False)
    for name in ("Hopper-v4", "hopper-medium-v2"):
        assert envs.task(name).cost_limits == (20, 40, 80)
    changed = replace(envs.card("hopper-medium-v2"), cost_limits=(5.0, 6.0))
    monkeypatch.setitem(envs.cards(), "hopper-medium-v2", changed)
    assert envs.task("hopper-medium-v2").cost_limits == (5, 6)
    assert envs.task("d4rl:hopper-medium-v2").cost_limits == (5, 6)
    file = tmp_path / "constrained_line.py"
    file.write_text(
        "import gymnasium\nclass Limited(gymnasium.Env):\n    max_episode_steps = 7\n"
        "    cost_limits = (1, 2)\n"
    )
    assert envs.task(f"env:{file}:Limited").cost_limits == (1, 2)


def test_references_describe_the_simulator() -> None:
    for name, words in {
        "hopper-medium-v2": ["Hopper-v4", "MuJoCo", "mujoco-py"],
        "gym/hopper-medium": ["Hopper-v4", "own data", "only a scale"],
        "antmaze-umaze-v2": ["AntMaze-umaze", "MuJoCo", "each episode draws its goal"],
        "neorl2/Fusion": ["data only"],
        "neorl2/Salespromotion": ["data only"],
        "neorl2/RandomFrictionHopper": ["MuJoCo", "contact margins"],
    }.items():
        reference = envs.task(name).reference
        assert reference is not None
        assert all(word in reference.environment for word in words)


def test_an_unknown_name_lists_similar_ones() -> None:
    with pytest.raises(envs.UnknownName, match="hopper-medium-v2"):
        envs.task("hoper-medium-v2")
    with pytest.raises(envs.UnknownName, match="neorl2/DMSD"):
        envs.card("neorl2/DMDS")
    with pytest.raises(envs.UnknownName, match="Pendulum-v1"):
        envs.task("env:Pendulm-v1")
    with pytest.raises(ValueError, match="no_such_module"):
        envs.task("env:no_such_module:Thing-v0")


@pytest.mark.parametrize(
    "name", ["carla-lane-v0", "neorl2/Fusion", "neorl2/Salespromotion", "none"]
)
def test_data_only_is_refused_with_the_remedy(name: str) -> None:
    for make in (envs.make, lambda task: envs.make_vector(task, 2)):
        with pytest.raises(ValueError, match=r"no environment.*task=none"):
            make(name)


def test_any_gymnasium_environment_is_a_task() -> None:
    """Pendulum's torque in [-2, 2] becomes [-1, 1]; seeds, rewards and time limit do not change."""
    theirs, ours = gymnasium.make("Pendulum-v1"), envs.make_vector("env:Pendulum-v1", 2)
    assert (ours.observation_shape, ours.action_dim) == ((3,), 1)
    first, _ = theirs.reset(seed=3)
    np.testing.assert_array_equal(ours.reset([2, 3])[1], first)
    for time in range(200):
        action = np.float32([np.sin(time)])
        observation, reward, *_ = theirs.step(2 * action)
        step = ours.step(np.float32([[0], action]))
        np.testing.assert_allclose(step.observations[1], observation, rtol=1e-5, atol=1e-5)
        assert step.rewards[1] == pytest.approx(reward, rel=1e-5)
        assert (step.truncated == (time == 199)).all()
        assert not step.terminated.any()
    assert envs.make("env:Pendulum-v1").action_space == Box(-1, 1, (1,), np.float32)


def test_a_registered_environment_has_scaled_actions_a_time_limit_and_ends(line: str) -> None:
    env = envs.make_vector(line, 2)
    start = env.reset([0, 1])
    step = env.step(np.array([[0.0], [1.0]]))  # the middle and the end of [0, 2]
    np.testing.assert_allclose(step.observations - start, [[1], [2]], rtol=1e-6)
    for _ in range(2):
        step = env.step(np.array([[-1.0], [1.0]]))
    assert step.terminated.tolist() == [False, True]
    step = env.step(np.array([[-1.0]]), np.array([0]))
    assert (step.terminated[0], step.truncated[0]) == (False, True)
    with pytest.raises(ValueError, match=r"\[0, 1\] have no running episode"):
        env.step(np.zeros((2, 1)))
    with pytest.raises(ValueError, match="exists already"):
        envs.register(line, Line, max_episode_steps=4)


def test_a_termination_at_the_time_limit_is_not_a_truncation(line: str) -> None:
    env = envs.make_vector(line, 1)
    env.reset([0])
    for action in (1.0, 1.0, -0.9, 1.0):
        step = env.step(np.array([[action]]))
    assert (step.terminated[0], step.truncated[0]) == (True, False)


def test_an_environments_own_truncation_is_kept(line: str) -> None:
    class OutOfReach(Line):
        def step(self, action: np.ndarray) -> tuple:
            observation, reward, *_ = super().step(action)
            return observation, reward, False, self.x > 3, {}

    envs.register("out of reach", OutOfReach, max_episode_steps=10)
    env = envs.make_vector("out of reach", 1)
    env.reset([0])
    steps = [env.step(np.array([[1.0]])) for _ in range(2)]
    assert [bool(step.truncated[0]) for step in steps] == [False, True]
    assert not steps[1].terminated[0]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gymnasium.spaces.Discrete(3), "Discrete"),
        (Box(-np.inf, np.inf, (2,)), "without bounds"),
        (Box(-1, 1, (2, 2)), "vector of real numbers"),
    ],
)
def test_other_actions_are_refused(line: str, space: gymnasium.Space, message: str) -> None:
    class Other(Line):
        action_space = space

    envs.register("other", Other, max_episode_steps=4)
    with pytest.raises(ValueError, match=message):
        envs.make("other")


def test_bad_calls_are_refused() -> None:
    env = Hopper(2)
    with pytest.raises(ValueError, match="no running episode"):
        env.step(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="1 seeds for 2"):
        env.reset([0])
    env.reset([0, 1])
    with pytest.raises(ValueError, match=r"\(2, 4\), expected \(2, 3\)"):
        env.step(np.zeros((2, 4)))
    with pytest.raises(ValueError, match=r"\[1\] are not finite"):
        env.step(np.array([[0.0, 0, 0], [0, np.nan, 0]]))


def test_importing_envs_loads_neither_torch_nor_mujoco() -> None:
    code = "import envs, sys; envs.names(); print({'torch', 'mujoco'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


class OldHopper:
    """Environment as in the d4rl package: gym's interface before 0.26, a time limit of 3 steps."""

    def __init__(self) -> None:
        self.action_space = Box(-2, 2, (3,), np.float32)
        self.observation_space = Box(-1, 1, (11,), np.float32)

    def seed(self, seed: int) -> None:
        self.rng = np.random.RandomState(seed)

    def reset(self) -> np.ndarray:
        self.time = 0
        return self.rng.rand(11) + np.random.rand()  # noqa: NPY002

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, dict[str, Any]]:
        self.time += 1
        info = {"TimeLimit.truncated": True} if self.time == 3 else {}
        return self.rng.rand(11), float(action[0]), self.time == 3, info

    def close(self) -> None:
        pass


def test_the_d4rl_package_is_used_if_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    gym = SimpleNamespace(make=lambda env_id: ids.append(env_id) or OldHopper())
    monkeypatch.setitem(sys.modules, "d4rl", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "gym", gym)
    task = envs.task("d4rl:hopper-medium-v2")
    assert task.card is envs.card("hopper-medium-v2")
    assert task.score(3234.3) == 100
    assert task.reference is not None
    assert "d4rl package" in task.reference.environment
    env = envs.make_vector(task, 2)
    first = env.reset([3, 3])
    assert ids == ["hopper-medium-v2"] * 2
    np.testing.assert_array_equal(first[0], first[1])
    for time in range(3):
        step = env.step(np.full((2, 3), 0.5))
        assert step.rewards.tolist() == [1, 1]  # half of the action range of 2
        assert step.truncated.all() == (time == 2)
    assert not step.terminated.any()


def test_without_the_d4rl_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "d4rl", None)
    with pytest.raises(ValueError, match="needs the d4rl package"):
        envs.make("d4rl:hopper-medium-v2")
    with pytest.raises(envs.UnknownName, match="d4rl:hopper-medium-v2"):
        envs.task("d4rl:hoper-medium-v2")


class LineWithImage(Line):
    """The line task with an image of the position and the position as channels."""

    observation_space = Dict(
        {"picture": Box(0, 255, (4, 6, 3), np.uint8), "place": Box(-np.inf, np.inf, (1,))}
    )

    def reset(self, **keys: Any) -> tuple:
        place, info = super().reset(**keys)
        return self.observe(place), info

    def step(self, action: np.ndarray) -> tuple:
        place, *rest = super().step(action)
        return self.observe(place), *rest

    def observe(self, place: np.ndarray) -> dict[str, np.ndarray]:
        image = np.full((4, 6, 3), int(10 * place[0]), np.uint8)
        return {"place": place.astype(np.float64), "picture": image}


def test_a_dict_of_boxes_gives_channels_with_images_in_uint8(line: str) -> None:
    envs.register("with-image", LineWithImage, max_episode_steps=4)
    env, alone = envs.make_vector("with-image", 2), envs.make_vector("line", 2)
    assert env.observation_shape == {"picture": (4, 6, 3), "place": (1,)}
    channels, places = env.reset([3, 4]), alone.reset([3, 4])
    for _ in range(4):
        assert channels["place"].dtype == np.float32
        np.testing.assert_array_equal(channels["place"], places)
        images = channels["picture"]
        assert images.dtype == np.uint8
        assert images.shape == (2, 4, 6, 3)
        np.testing.assert_array_equal(images[:, 0, 0, 0], (10 * places[:, 0]).astype(int))
        actions = np.array([[-1.0], [-0.5]])
        channels, places = env.step(actions).observations, alone.step(actions).observations


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (Box(0, 255, (3, 4, 6), np.uint8), r"image is \[height, width, colors\]"),
        (Box(0, 1, (4, 6, 3), np.float32), "of uint8"),
        (Discrete(3), "a Box is needed"),
    ],
)
def test_a_dict_with_an_invalid_channel_is_refused(line: str, space: Any, sentence: str) -> None:
    kind = type("Odd", (LineWithImage,), {"observation_space": Dict({"view": space})})
    envs.register("odd", kind, max_episode_steps=4)
    with pytest.raises(ValueError, match=sentence):
        envs.make_vector("odd", 1)


def test_a_single_environment_with_channels_has_a_correct_observation_space() -> None:
    env = envs.make("push/standard-pixels")
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert env.observation_space.contains(env.step(env.action_space.sample())[0])
    assert env.observation_space["picture"].dtype == np.uint8


POINT_FILE = """
import gymnasium, numpy as np
from gymnasium.spaces import Box

class Point(gymnasium.Env):
    max_episode_steps = 7
    observation_space, action_space = Box(-9, 9, (2,)), Box(-1, 1, (1,))
    def reset(self, *, seed=None, options=None): return np.zeros(2, np.float32), {}
    def step(self, action): return np.zeros(2, np.float32), 1.0, False, False, {}

gymnasium.register("PointOfAFile-v0", Point, max_episode_steps=5)
"""


def test_an_environment_in_a_file_is_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found by class or registered id in any folder; a module in the working folder."""
    monkeypatch.syspath_prepend(str(tmp_path / "nowhere"))  # restores sys.path afterward
    (tmp_path / "point_of_mine.py").write_text(POINT_FILE)
    for name, steps in ((f"{tmp_path}/point_of_mine.py:Point", 7), ("PointOfAFile-v0", 5)):
        env = envs.make_vector(f"env:{name}", 2)
        assert (env.max_episode_steps, env.observation_shape) == (steps, (2,))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "module_of_mine.py").write_text(POINT_FILE.replace("OfAFile", "OfAModule"))
    assert envs.task("env:module_of_mine:PointOfAModule-v0").max_episode_steps == 5
    (tmp_path / "broken_of_mine.py").write_text("x = 1\ny = x / 0\n")
    with pytest.raises(ValueError, match=r"broken_of_mine.py, line 2: ZeroDivisionError"):
        envs.task("env:broken_of_mine.py:Point")
    with pytest.raises(ValueError, match="does not exist"):
        envs.task("env:gone_of_mine.py:Point")
    with pytest.raises(ValueError, match=r"Point cannot be built.*take render_mode=None"):
        envs.make("env:point_of_mine.py:Point", render_mode="rgb_array")
    (tmp_path / "json.py").write_text(POINT_FILE)
    with pytest.raises(ValueError, match="another module is named json"):
        envs.task("env:json.py:Point")


NAMED_FILE = """
import gymnasium, numpy as np
from gymnasium.spaces import Box, Dict, Discrete

class Named(gymnasium.Env):
    observation_space = Dict(a=Box(-1, 1, (2,)), b=Box(-9, 9, ()), floor=Discrete(3))
    action_space = Box(-1, 1, (1,))
    def observe(self): return {"a": np.float32([0.1, 0.2]), "b": np.float32(0.3), "floor": 1}
    def reset(self, *, seed=None, options=None): return self.observe(), {}
    def step(self, action): return self.observe(), 1.0, False, False, {}
"""


def test_a_files_environment_follows_time_limit_and_observation_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors are concatenated in the order of the keys; other entries may have any type."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "named_of_mine.py").write_text(NAMED_FILE)
    task = envs.task(f"env:{tmp_path}/named_of_mine.py:Named")
    with pytest.raises(ValueError, match="other channels with observation_keys="):
        envs.make(task)
    with pytest.raises(ValueError, match=r"no time limit.*max_episode_steps=<steps>"):
        envs.make_vector(task.with_options(None, ["a"]), 1)
    env = envs.make_vector(task.with_options(3, ["b", "a"]), 2)
    np.testing.assert_allclose(env.reset([0, 1]), [[0.3, 0.1, 0.2]] * 2)
    assert [bool(env.step(np.zeros((2, 1))).truncated.all()) for _ in range(3)] == [0, 0, 1]
    longer = envs.task("env:Pendulum-v1").with_options(300, None)
    assert envs.make_vector(longer, 1).max_episode_steps == 300
    assert envs.task("Hopper-v4").with_options(3, ["a"]) == envs.task("Hopper-v4")


def test_warnings_of_mujoco_are_python_warnings_and_write_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gymnasium's model of the cheetah has a deprecated attribute."""
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="settotalmass"):
        envs.make("env:HalfCheetah-v4")
    assert not list(tmp_path.iterdir())
