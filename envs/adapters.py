"""Adapters between single Gymnasium environments and VectorEnv."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Literal, NoReturn

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Space

from envs.faults import (
    USER_ERRORS,
    Broken,
    check_finite,
    describe_briefly,
    describe_error,
    user_line,
)
from envs.instances import Instances, NotReplayable, View, observations_equal
from envs.vector import Step, Threads, VectorEnv


class SingleEnv(gymnasium.Env[Any, np.ndarray]):
    """A Gymnasium environment that wraps a VectorEnv with one environment.

    It applies the time limit itself (`truncated`).
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, vector: VectorEnv, *, render_mode: str | None = None) -> None:
        if vector.num_envs != 1:
            raise ValueError(
                f"SingleEnv needs a VectorEnv with one environment, got {vector.num_envs}."
            )
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode '{render_mode}' is unknown; expected 'rgb_array'.")
        self.vector = vector
        self.render_mode = render_mode
        self.observation_space = space(vector.observation_shape)
        self.action_space = Box(-1, 1, (vector.action_dim,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        return first(self.vector.reset([seed])), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        step = self.vector.step(np.asarray(action)[None])
        infos = {name: values[0] for name, values in step.infos.items()}
        terminated, truncated = bool(step.terminated[0]), bool(step.truncated[0])
        return first(step.observations), float(step.rewards[0]), terminated, truncated, infos

    def render(self) -> np.ndarray | None:
        return self.vector.render() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.vector.close()


def space(shape: Any) -> Space:
    """Return the observation space for a shape, or for a mapping from channels to shapes."""
    if isinstance(shape, Mapping):
        return Dict(
            {
                name: Box(0, 255, s, np.uint8) if len(s) == 3 else space(s)
                for name, s in shape.items()
            }
        )
    return Box(-np.inf, np.inf, shape, np.float32)


def first(observations: Any) -> Any:
    """Return the first observation of a batch."""
    if isinstance(observations, Mapping):
        return {name: values[0] for name, values in observations.items()}
    return observations[0]


class ConvertTypes(gymnasium.Wrapper[Any, np.ndarray, Any, np.ndarray]):
    """Wrapper that makes actions fit the action space and returns plain numbers and vectors.

    Actions are cast to the space's dtype and clipped to its bounds, because rescaling can exceed
    them by a rounding error. Rewards and flags that are arrays with one element become numbers. A
    Box of shape () becomes one of shape (1,).
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._bounds: Any = env.action_space
        inner = env.observation_space
        self.observation_space = at_least_1d(inner)
        parts = inner.spaces if isinstance(inner, Dict) else {}
        self._scalars = {name for name, part in parts.items() if part.shape == ()}
        self._scalar = inner.shape == ()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._convert(observation), info

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        space = self._bounds
        action = np.asarray(action).astype(space.dtype).clip(space.low, space.high)
        observation, reward, terminated, truncated, info = self.env.step(action)
        flags = bool(to_scalar(terminated)), bool(to_scalar(truncated))
        return self._convert(observation), to_scalar(reward), *flags, info

    def _convert(self, observation: Any) -> Any:
        if self._scalar:
            return np.reshape(observation, 1)
        if not self._scalars:
            return observation
        return {k: np.reshape(v, 1) if k in self._scalars else v for k, v in observation.items()}


def at_least_1d(space: Space) -> Space:
    """Return the space with every Box of shape () replaced by one of shape (1,)."""
    if isinstance(space, Dict):
        return Dict({name: at_least_1d(part) for name, part in space.items()})
    if isinstance(space, Box) and space.shape == ():
        return Box(space.low.reshape(1), space.high.reshape(1), dtype=space.dtype.type)
    return space


def to_scalar(value: Any) -> Any:
    """Return the number in an array or tensor with one element; other values unchanged."""
    return value.item() if hasattr(value, "item") else value


class OldGym(gymnasium.Env[np.ndarray, np.ndarray]):
    """Gymnasium wrapper for an environment of gym before 0.26, such as those of the d4rl package.

    A seed determines an episode. Some of these environments use NumPy's global generator, so
    `reset` seeds that generator too.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        low, high = env.action_space.low, env.action_space.high
        self.action_space = Box(low, high, dtype=np.float32)
        self.observation_space = Box(-np.inf, np.inf, env.observation_space.shape, np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            np.random.seed(seed % 2**32)  # noqa: NPY002
            self._env.seed(seed)
        return np.asarray(self._env.reset()), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, done, info = self._env.step(action)
        truncated = bool(done and info.get("TimeLimit.truncated", False))
        return np.asarray(observation), float(reward), bool(done) and not truncated, truncated, info

    def close(self) -> None:
        self._env.close()


# info keys that are true if the goal is reached
SUCCESS = frozenset({"success", "is_success", "goal_achieved"})
RETURNED = {  # return values in Gymnasium's interface
    "reset": "observation, info",
    "step": "observation, reward, terminated, truncated, info",
}
PASSED_INFOS = dict.fromkeys(SUCCESS, np.bool_) | {"cost": np.float64}  # other infos are dropped


TRIAL_STEPS = 8  # steps of the episode that tests whether instances share state


class LoopVectorEnv(VectorEnv):
    """VectorEnv of Gymnasium environments with actions in [-1, 1], stepped one after the other.

    num_threads: threads that step the environments. Above 1, the environments must not share
    state. Threads help if steps run outside Python's global interpreter lock, as in MuJoCo.
    name: the environment's name in errors.
    instances: all open instances of the task. If no more can be opened, this LoopVectorEnv shares
    an open one with others. Default: new instances, which no other LoopVectorEnv uses.
    fewer: accept fewer environments if no more can be opened. False: raise a ValueError.
    single: the reason why only one instance is allowed. All environments of the task then share
    this instance. Default: no limit.
    `reset` and `step` raise Broken for any exception in an environment. The message names the line
    of user code.
    """

    def __init__(
        self,
        make: Callable[[], gymnasium.Env],
        num_envs: int,
        max_steps: int,
        *,
        num_threads: int = 1,
        name: str = "the environment",
        instances: Instances | None = None,
        fewer: bool = False,
        single: str | None = None,
    ) -> None:
        super().__init__(num_envs)
        self.name = name
        self.max_episode_steps = max_steps
        self._instances = instances or Instances(make, name)
        self._single = single and f"Only one instance of {name} is allowed ({single})"
        self._envs = self._open_views(num_envs, fewer)
        super().__init__(len(self._envs))
        self._threads = Threads(min(num_threads, self.num_envs))
        first = self._envs[0].instance.env
        observation_space, action_space = first.observation_space, first.action_space
        assert action_space.shape is not None
        self.observation_shape = (
            {name: part.shape for name, part in observation_space.items()}
            if isinstance(observation_space, Dict)
            else observation_space.shape
        )
        self.observes_dict = observes_dict(first)
        self.action_dim = action_space.shape[0]
        low, high = action_bounds(first)
        if np.isfinite(low).all() and np.isfinite(high).all():
            self.action_low, self.action_high = low, high
        period_s = getattr(first.unwrapped, "dt", None)  # set by MuJoCo and classic environments
        if isinstance(period_s, float) and 0 < period_s < np.inf:
            self.rate_hz = 1 / period_s
        if fewer and num_envs > 1 and not (single or self._instances.compared):
            self._compare_instances(num_envs)
        self.limit = self._instances.limit or self._single or self.limit

    def _open_views(self, count: int, fewer: bool) -> list[View]:
        """Return views of `count` environments, or of as many as can be opened."""
        views = list[View]()
        try:
            while len(views) < count and (view := self._new(views)) is not None:
                views.append(view)
        except USER_ERRORS as error:
            count_open = len(self._instances.open)
            why = describe_briefly(error)
            limit = f"Only {count_open} instances of {self.name} can be open ({why})"
            if fewer and count_open:
                self.limit = limit
                return views or [self._instances.shared()]
            in_use = count_open > len(views)
            for view in views:
                view.close()
            if in_use:
                raise Broken(f"{limit}. Use fewer seeds or environments at once") from error
            raise
        if not views:
            return [self._instances.shared()] if count == 1 or fewer else self._too_many(count)
        if len(views) < count and not fewer:
            for view in views:
                view.close()
            self._too_many(count)
        return views

    def _new(self, views: Sequence[View]) -> View | None:
        """Return a view of a new instance; None if no more than `views` are allowed."""
        if self._single and (views or self._instances.open):
            return None
        return self._instances.new()

    def _too_many(self, count: int) -> NoReturn:
        raise ValueError(
            f"{self._instances.limit or self._single}, and {count} are needed at once. Use "
            "settings that need only one."
        )

    def classify_starts(self) -> Literal["seeded", "random", "alike"]:
        """Return how first observations depend on the seed.

        seeded: a seed determines the observation. random: a repeated seed gives a different one.
        alike: two different seeds give the same one.
        """
        one = np.arange(1)
        start, repeated, other = (first(self.reset([seed], one)) for seed in (0, 0, 1))
        if not observations_equal(start, repeated):
            return "random"
        return "alike" if observations_equal(start, other) else "seeded"

    def _compare_instances(self, count: int) -> None:
        """Keep only one environment if a second one changes or breaks the first one's episode.

        If the second environment broke the first, both are closed and the first is opened again.
        count: the requested number of environments.
        """
        instances = self._instances
        instances.compared = True
        rows, one = np.arange(2), np.arange(1)
        size = (TRIAL_STEPS, 1, self.action_dim)
        actions = np.random.default_rng(0).uniform(-1, 1, size).astype(np.float32)

        def episode(rows: np.ndarray) -> list[Any]:
            """Return the first environment's outputs in one episode.

            A second environment takes the opposite actions.
            """
            outputs = [first(self.reset([0, 1][: len(rows)], rows))]
            for action in actions:
                pair = np.concatenate([action, -action])[: len(rows)]
                step = self.step(pair, rows)
                outputs += [first(step.observations), step.rewards[0]]
                if (step.terminated | step.truncated).any():
                    break
            return outputs

        def equal(a: list[Any], b: list[Any]) -> bool:
            return all(observations_equal(x, y) for x, y in zip(a, b, strict=False))

        def works(alone: list[Any]) -> bool:
            """True if the first environment still returns the same outputs as `alone`."""
            with suppress(Exception):
                return equal(alone, episode(one))
            return False

        try:
            alone = episode(one)
            if self.num_envs == 1:
                return
            if not equal(alone, episode(one)):
                return  # episodes are not reproducible, so a comparison shows nothing
        except Exception as error:
            self._use_one()
            self._reopen_one()
            try:
                episode(one)
            except Exception:  # it also fails alone; `check_first_steps` reports the error
                self._envs += self._open_views(count - 1, True) if instances.limit is None else []
                VectorEnv.__init__(self, len(self._envs))
                return
            if instances.limit is None:
                instances.limit_to_one(f"a second one breaks the first, {describe_briefly(error)}")
            return
        try:
            if equal(alone, episode(rows)):
                return
            instances.limit = f"Instances of {self.name} share state"
        except Exception as error:
            instances.limit_to_one(describe_briefly(error))
        self._use_one()
        if not works(alone):
            self._reopen_one()

    def _use_one(self) -> None:
        """Close all environments except the first."""
        for view in self._envs[1:]:
            with suppress(*USER_ERRORS):  # errors of an unused environment do not matter
                view.close()
        self._envs = self._envs[:1]
        super().__init__(1)

    def _reopen_one(self) -> None:
        """Reopen the first environment while no other is open."""
        with suppress(*USER_ERRORS):  # a broken environment may fail to close
            self._envs[0].close()
        self._envs = [self._instances.new() or self._instances.shared()]

    def _reset(self, seeds: list[int], indices: np.ndarray) -> Any:
        pairs = zip(seeds, indices, strict=True)
        return self._stack([self._call("reset", index, seed=seed)[0] for seed, index in pairs])

    def _call(self, what: str, index: int, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call the method `what` of one environment. Raises Broken for any error."""
        try:
            result = getattr(self._envs[index], what)(*args, **kwargs)
        except USER_ERRORS as error:
            explained = user_line(error) or isinstance(error, NotReplayable)
            hint = "" if explained else f". It must return {RETURNED[what]}"
            if hint and "tensor" in str(error).lower():  # a tensor on a GPU, or one with a gradient
                hint = ". Return a detached CPU tensor or a NumPy array"
            words = describe_error(error).rstrip(".") if hint else describe_error(error)
            raise Broken(f"{self.name}: {what} failed: {words}{hint}") from error
        return tuple(result)

    def check_first_steps(self) -> None:
        """Reset and step the first environment once. Raises Broken if its outputs are invalid."""
        first = np.arange(1)
        shapes = self.observation_shape
        try:
            start = self.reset([0], first)
            step = self.step(np.zeros((1, self.action_dim), np.float32), first)
        except Broken:
            raise
        except Exception as error:  # an output is not a number, or a key is missing
            raise Broken(
                f"{self.name}: {describe_error(error)}. Its outputs do not match its spaces"
            ) from error
        outputs = (("reset", start, None), ("step", step.observations, step.rewards))
        for what, observations, rewards in outputs:
            parts = [(observations, shapes)]
            if isinstance(shapes, Mapping):
                parts = [(observations[name], shape) for name, shape in shapes.items()]
            for array, shape in parts:
                if array.shape[1:] != tuple(shape):
                    raise Broken(
                        f"{self.name}: {what} returned an observation of shape {array.shape[1:]}, "
                        f"its observation_space has {tuple(shape)}"
                    )
            check_finite(f"{self.name}: {what}", observations, rewards)

    def _stack(self, observations: Sequence[Any]) -> Any:
        """Return B observations stacked into a batch."""
        if isinstance(self.observation_shape, Mapping):
            return {k: np.stack([each[k] for each in observations]) for k in self.observation_shape}
        return np.stack(observations)

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        shares = self._threads(self._step_some, actions, indices)
        steps = [step for share in shares for step in share]
        observations, rewards, terminated, truncated, infos = zip(*steps, strict=True)
        reported = PASSED_INFOS.keys() & set[str]().union(*infos)
        return Step(
            self._stack(observations),
            np.array(rewards, np.float64),
            np.array(terminated, bool),
            np.array(truncated, bool),
            {k: np.array([info.get(k, 0) for info in infos], PASSED_INFOS[k]) for k in reported},
        )

    def _step_some(self, actions: np.ndarray, indices: np.ndarray) -> list[tuple[Any, ...]]:
        pairs = zip(actions, indices, strict=True)
        return [self._call("step", index, action) for action, index in pairs]

    def render(self, index: int = 0) -> np.ndarray:
        image = self._envs[index].render()
        if not isinstance(image, np.ndarray):
            raise ValueError(
                "The environment rendered no image. Build it with render_mode='rgb_array'."
            )
        return image

    def close(self) -> None:
        with ExitStack() as stack:  # closes every environment, even if one fails to close
            stack.callback(self._threads.close)
            for env in self._envs:
                stack.callback(env.close)


def action_bounds(env: gymnasium.Env) -> tuple[np.ndarray, np.ndarray]:
    """Return the action limits [A] before `rescale_actions`, in the environment's units."""
    space: Any = env.action_space
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.RescaleAction):
            space = env.env.action_space
            break
        env = env.env
    return space.low.astype(np.float64), space.high.astype(np.float64)


def rescale_actions(env: gymnasium.Env, name: str | None = None) -> gymnasium.Env:
    """Return `env` with actions mapped affinely from [-1, 1] by Gymnasium's RescaleAction.

    name: the environment's name in errors; default: its id. Raises ValueError if the actions are
    not a bounded vector, or the observations are neither a Box nor a Dict of Boxes (channels).
    """
    name = name or (env.spec.id if env.spec else type(env).__name__)
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, Box) or len(actions.shape) != 1 or actions.dtype.kind != "f":
        remedy = " Flatten them." if isinstance(actions, Box) and len(actions.shape) > 1 else ""
        raise ValueError(
            f"{name} has actions {actions}; a vector of real numbers (Box) is needed.{remedy}"
        )
    if not actions.is_bounded():
        raise ValueError(f"{name} has actions without bounds, {actions}. Wrap them to [-1, 1].")
    if not (actions.low < actions.high).all():
        k = int((actions.low >= actions.high).argmax())
        raise ValueError(
            f"{name}: action {k} cannot vary, its bounds are {actions.low[k]:g} and "
            f"{actions.high[k]:g}. Remove it from action_space or widen its bounds."
        )
    if isinstance(observations, Dict):
        for channel, part in observations.items():
            if (problem := channel_problem(channel, part)) is not None:
                raise ValueError(
                    f"{name} observes {channel}: {part}; {problem}. Wrap it, or choose other "
                    "channels with observation_keys=[…]."
                )
    elif not isinstance(observations, Box):
        raise ValueError(f"{name} has observations {observations}; a Box is needed. Wrap it.")
    env = ConvertTypes(env)
    if (actions.low == -1).all() and (actions.high == 1).all():
        return env
    one = np.ones(actions.shape, actions.dtype)
    return gymnasium.wrappers.RescaleAction(env, -one, one)


def select_keys(env: gymnasium.Env, keys: Sequence[str], name: str) -> gymnasium.Env:
    """Return `env` with only these keys of its Dict observation.

    Vectors are concatenated in the order of `keys`. If one of the keys is an image, all keys stay
    separate channels. Raises ValueError for a missing key.
    """
    space = env.observation_space
    if not keys or not isinstance(space, Dict):
        return env
    for key in keys:
        if key not in space.spaces:
            raise ValueError(f"{name} has no observation {key!r}; it has {', '.join(space)}.")
    parts = [space[key] for key in keys]
    boxes = [part for part in parts if isinstance(part, Box) and len(part.shape) < 3]
    if len(boxes) < len(parts):
        return gymnasium.wrappers.FilterObservation(env, keys)
    low, high = (
        np.concatenate([np.ravel(getattr(box, end)) for box in boxes]).astype(np.float32)
        for end in ("low", "high")
    )

    def concatenate(observation: Mapping[str, Any]) -> np.ndarray:
        return np.concatenate([np.ravel(observation[key]) for key in keys]).astype(np.float32)

    return gymnasium.wrappers.TransformObservation(env, concatenate, Box(low, high))


def observes_dict(env: gymnasium.Env) -> bool:
    """True if `env` or an environment that it wraps has Dict observations."""
    while not isinstance(env.observation_space, Dict):
        if not isinstance(env, gymnasium.Wrapper):
            return False
        env = env.env
    return True


def channel_problem(channel: str, part: Space) -> str | None:
    """Return why a Dict entry cannot be a channel; None if it can."""
    if not isinstance(part, Box) or "/" in channel:
        return "a Box is needed, and a name without a slash"
    if len(part.shape) == 3 and (part.dtype != np.uint8 or part.shape[-1] not in (1, 3, 4)):
        return "an image is [height, width, colors] of uint8"
    return None


def make_registered(
    num_envs: int,
    *,
    module: str,
    extra: str,
    env_id: str,
    max_episode_steps: int,
    num_threads: int = 1,
    **kwargs: Any,
) -> VectorEnv:
    """Return environments that `module` registers with Gymnasium.

    Raises ValueError with the extra to install if the module is missing.
    num_threads: not used, because these environments spend their time in Python.
    """
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{env_id} needs {module} ({error}). Install this package's extra [{extra}]."
        ) from error

    def make() -> gymnasium.Env:
        return rescale_actions(gymnasium.make(env_id, **kwargs))

    return LoopVectorEnv(make, num_envs, max_episode_steps)
