"""Contenders from other projects: unmodified files of a checkout, or an installed package.

They run in the interpreter of `python=`, which needs the packages of these projects (torch, or jax,
flax, optax, distrax). It needs neither our packages nor a simulator: `gym`, `d4rl`, `wandb` and
others are replaced by stubs.
"""

from __future__ import annotations

import math
import runpy
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.clock import ACT, BATCH, OBS, Clock, arrays, synchronizer


def add_module(name: str, **attributes: Any) -> types.ModuleType:
    """Register a stub module with these attributes, so that `import name` finds it."""
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(attributes)
    return module


class Box:
    """Stub of an action or observation space."""

    def __init__(self, size: int) -> None:
        self.shape, self.low, self.high = (size,), -np.ones(size), np.ones(size)
        self.seed = lambda seed=None: None


class Environment:
    """Stub of an environment that is never stepped."""

    observation_space = single_observation_space = Box(OBS)
    action_space = single_action_space = Box(ACT)
    spec = types.SimpleNamespace(max_episode_steps=0)

    def __init__(self, *_: Any, **__: Any) -> None:
        self.env_fns = [lambda: self]

    def seed(self, seed: int | None = None) -> None:
        pass

    def reset(self) -> np.ndarray:
        return np.zeros((1, OBS))

    def close(self) -> None:
        pass


def add_stubs(columns: dict[str, np.ndarray] | None = None) -> None:
    """Register stubs of simulator and tracker modules.

    columns: the result of `d4rl.qlearning_dataset`; default: random transitions.
    """
    if (data := columns) is None:
        data = arrays()
        data["terminals"] = data["dones"]

    def dataset(*_: Any, **__: Any) -> dict[str, np.ndarray]:
        return {k: v.copy() for k, v in data.items()}

    def make(*_: Any, **__: Any) -> Environment:
        return Environment()

    score = {"get_normalized_score": lambda name, x: x}
    add_module("d4rl", qlearning_dataset=dataset, **score)
    wrappers = types.SimpleNamespace(TransformObservation=make, TransformReward=make)
    add_module("gym", make=make, Env=object, wrappers=wrappers, vector=types.SimpleNamespace())
    sys.modules["gym"].vector.make = make  # type: ignore[attr-defined]
    quiet = dict.fromkeys(("init", "save", "finish"), lambda *_, **__: None)
    add_module("wandb", log=lambda *_, **__: None, run=types.SimpleNamespace(save=lambda: None))
    vars(sys.modules["wandb"]).update(quiet)


def corl(clock: Clock, algorithm: str, checkout: str, device: str) -> None:
    """Run CORL's training loop, which calls wandb.log after every update."""
    add_stubs()
    wait = synchronizer(device)

    def log(values: Mapping[str, Any], **_: Any) -> None:
        if not all(math.isfinite(x) for x in values.values() if isinstance(x, float)):
            clock.fault = lambda: f"the logged numbers are not finite: {values}"
        clock.tick(1, wait)

    sys.modules["wandb"].log = log  # type: ignore[attr-defined]
    add_module("pyrallis", wrap=lambda: lambda function: function)
    names = runpy.run_path(str(Path(checkout) / "algorithms/offline" / f"{algorithm}.py"), {}, "it")
    config = names["TrainConfig"]()
    config.device, config.batch_size, config.checkpoints_path = device, BATCH, None
    config.max_timesteps, config.eval_freq = 10**9, 10**9
    config.buffer_size = 200_000
    for name, value in {"q_n_hidden_layers": 3, "bc_steps": 0, "cql_n_actions": 10}.items():
        if hasattr(config, name):
            setattr(config, name, value)
    names["train"](config)


class JaxCorl:
    """JAX-CORL's networks and update, for one seed or, with `jax.vmap`, for several.

    columns: the data in D4RL's columns; default: random transitions. All seeds train on the same
    data with different batches. settings: config values that differ from JAX-CORL's.
    """

    def __init__(
        self,
        algorithm: str,
        checkout: str,
        seeds: int,
        columns: dict[str, np.ndarray] | None = None,
        **settings: Any,
    ) -> None:
        import jax

        add_stubs(columns)
        sys.argv = sys.argv[:1]
        file = {"td3_bc": "td3bc"}.get(algorithm, algorithm)
        names = runpy.run_path(str(Path(checkout) / "algos" / f"{file}.py"), {}, "it")
        config, learner = names["config"], names[algorithm.replace("_", "").upper()]()
        if algorithm == "cql":  # three layers, as in the CQL authors' code and ours
            config.hidden_dims, config.target_entropy = (256,) * 3, -float(ACT)
            config.action_dim = ACT
        for name, value in settings.items():
            setattr(config, name, value)
        self.learner, self.seeds, self.updates = learner, seeds, config.n_jitted_updates
        self.dataset, *self.scaling = names["get_dataset"](Environment(), config)
        first = jax.tree_util.tree_map(lambda x: x[0], self.dataset)
        create = names[f"create_{file}_train_state"]
        example = {"observations": first.observations, "actions": first.actions}
        keys = jax.random.split(jax.random.PRNGKey(0), seeds)
        states = [create(key, **example, config=config) for key in keys]
        update = partial(learner.update_n_times, config=config)
        if seeds == 1:
            self.state, step = states[0], jax.jit(lambda s, d, k: update(s, d, k)[0])
        else:
            is_number = lambda x: isinstance(x, (jax.Array, float, int))  # noqa: E731
            leaves = [jax.tree_util.tree_flatten(s, is_leaf=is_number) for s in states]
            stacked = [jax.numpy.stack(xs) for xs in zip(*(x for x, _ in leaves), strict=True)]
            self.state = jax.tree_util.tree_unflatten(leaves[0][1], stacked)
            step = jax.jit(jax.vmap(lambda s, d, k: update(s, d, k)[0], in_axes=(0, None, 0)))
        self._step = step

    def step(self, key: Any) -> Any:
        """Do `self.updates` updates and return the next key."""
        import jax

        key, step_key = jax.random.split(key)
        keys = step_key if self.seeds == 1 else jax.random.split(step_key, self.seeds)
        self.state = self._step(self.state, self.dataset, keys)
        return key

    def learn(self, updates: int, block: int) -> None:
        """Do this many updates, with the batches and noise of block number `block`."""
        import jax

        key = jax.random.PRNGKey(block)
        for _ in range(updates // self.updates):
            key = self.step(key)

    @cached_property
    def _act(self) -> Callable[[Any, np.ndarray], Any]:
        """Return the policies' means as a function; observations are normalized as in training."""
        import jax

        act, (mean, std) = self.learner.get_action, self.scaling
        if "seed" in act.__code__.co_varnames:  # a stochastic policy
            act = partial(act, seed=jax.random.PRNGKey(0), temperature=0.0)
        return jax.jit(jax.vmap(lambda s, x: act(s, (x - mean) / (std + 1e-5))))

    def actions(self, observations: np.ndarray) -> np.ndarray:
        """Return actions [S, B, A] without noise for observations [S, B, O]."""
        return np.asarray(self._act(self.state, observations))

    def arrays(self) -> list[np.ndarray]:
        """Return the complete training state as arrays."""
        import jax

        return [np.asarray(x) for x in jax.tree_util.tree_leaves(self.state)]

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Restore the training state returned by `arrays`."""
        import jax

        form = jax.tree_util.tree_structure(self.state)
        self.state = jax.tree_util.tree_unflatten(form, list(arrays))


def jax_corl(clock: Clock, algorithm: str, checkout: str, seeds: int) -> None:
    """Run JAX-CORL's compiled step of 8 updates; several seeds use `jax.vmap`."""
    import jax

    peer, key = JaxCorl(algorithm, checkout, seeds), jax.random.PRNGKey(1)
    clock.fault = lambda: (
        None if all(np.isfinite(x).all() for x in peer.arrays()) else "parameters are not finite"
    )
    while True:
        key = peer.step(key)
        clock.tick(peer.updates, partial(jax.block_until_ready, peer.state))


def unifloral(clock: Clock, algorithm: str, checkout: str) -> None:
    """Run Unifloral's script. It resets the environment after every `eval_interval` updates."""
    import jax

    add_stubs()
    interval = 100

    def evaluate(self: Environment) -> np.ndarray:
        state = sys._getframe(1).f_locals["agent_state"]
        clock.tick(count, partial(jax.block_until_ready, state))
        return np.zeros((8, OBS))

    def arguments(cls: Any) -> Any:
        return cls(num_updates=10**9, eval_interval=interval, eval_final_episodes=0)

    count = interval * (
        2 if algorithm == "td3_bc" else 1
    )  # Unifloral's TD3+BC does two critic updates per step
    Environment.reset = evaluate  # type: ignore[method-assign]
    add_module("tyro", cli=arguments)
    runpy.run_path(str(Path(checkout) / "algorithms" / f"{algorithm}.py"), {}, "__main__")


def d3rlpy_learner(
    algorithm: str, device: str, columns: tuple[np.ndarray, ...], **settings: Any
) -> tuple[Any, Callable[..., Any]]:
    """Return d3rlpy's learner with our hidden layers, and a function `fit(n_steps)` on these data.

    columns: observations, actions, rewards, terminated, truncated. settings: for d3rlpy's config.
    """
    from d3rlpy import algos, dataset, logging, models  # type: ignore[import-not-found]

    name = {"td3_bc": "TD3PlusBC", "iql": "IQL", "cql": "CQL"}[algorithm]
    layers = models.VectorEncoderFactory([256] * (3 if algorithm == "cql" else 2))
    encoders = {"actor_encoder_factory": layers, "critic_encoder_factory": layers}
    config = getattr(algos, f"{name}Config")(batch_size=BATCH, **encoders, **settings)
    learner = config.create(device=f"{device}:0")

    def fit(n_steps: int, **options: Any) -> None:
        learner.fit(
            dataset.MDPDataset(*columns[:3], *(flag.astype(np.float32) for flag in columns[3:])),
            n_steps=n_steps,
            n_steps_per_epoch=n_steps,
            show_progress=False,
            logger_adapter=logging.NoopAdapterFactory(),
            **options,
        )

    return learner, fit


def d3rlpy(clock: Clock, algorithm: str, device: str) -> None:
    """Run d3rlpy's `fit`."""
    data = arrays()
    keys = ("observations", "actions", "rewards", "dones", "timeouts")
    _, fit = d3rlpy_learner(algorithm, device, tuple(data[key] for key in keys))
    wait = synchronizer(device)
    fit(10**9, callback=lambda *_: clock.tick(1, wait))
