"""Setup for references written in JAX: float64, no jit, and random numbers from the tape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.conformance.inputs import Arrays, subtree
from benchmarks.conformance.job import Link, Replay

replay: Replay | None = None  # set during an update
backward_losses: list[float] = []  # always empty in JAX; see `Learner.losses`


def prepare() -> None:
    """Patch JAX for a process that runs nothing else; restore functions that newer JAX lacks."""
    jax.config.update("jax_enable_x64", True)
    jax.tree_multimap = jax.tree_map = jax.tree_util.tree_map
    jax.jit = lambda function=None, **_: (lambda f: f) if function is None else function
    clip = jnp.clip
    jnp.clip = lambda x, low=None, high=None, *, a_min=None, a_max=None: clip(
        x, low if a_min is None else a_min, high if a_max is None else a_max
    )
    original = {name: getattr(jax.random, name) for name in ("normal", "uniform", "bernoulli")}

    def is_idle(key: Any) -> bool:
        """True between updates, and while flax only traces shapes."""
        return replay is None or isinstance(key, jax.core.Tracer)

    def normal(key: Any, shape: Any = (), dtype: Any = None, **_: Any) -> Any:
        if is_idle(key):
            return original["normal"](key, shape)
        return jnp.asarray(replay("normal", shape))

    def uniform(
        key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0, **_: Any
    ) -> Any:
        if is_idle(key):
            return original["uniform"](key, shape, minval=minval, maxval=maxval)
        u = jnp.asarray(replay("uniform", shape))
        return 2 * u - 1 if (minval, maxval) == (-1, 1) else minval + (maxval - minval) * u

    def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, **_: Any) -> Any:
        """Return a dropout mask; our dropout keeps a unit if its number is at least the rate."""
        if is_idle(key):
            return original["bernoulli"](key, p, shape)
        return uniform(key, shape) >= 1 - p

    jax.random.normal, jax.random.uniform, jax.random.bernoulli = normal, uniform, bernoulli


def make_batch(columns: Arrays) -> Any:
    """Return a batch as JAX arrays by name; the expert batch is `expert`."""
    arrays = {name: jnp.asarray(values) for name, values in columns.items() if "/" not in name}
    expert = subtree(columns, "expert/")
    return SimpleNamespace(**arrays, expert=make_batch(expert) if expert else None)


class Store:
    """Access to parameters in an immutable tree.

    read: return the tree. write: replace it. state: return the optimizer's state.
    """

    def __init__(
        self, read: Callable[[], Any], write: Callable[[Any], None], state: Callable[[], Any]
    ) -> None:
        self.read, self.write, self.state = read, write, state

    def link(self, name: str, path: str, index: Any = ...) -> Link:
        """Return a link from the parameter at `path` (a/b/c) to ours, or to a part of ours."""
        keys = tuple(path.split("/"))

        def flat(tree: Any) -> dict[tuple[str, ...], Any]:
            return flax.traverse_util.flatten_dict(flax.core.unfreeze(tree))

        def write(values: np.ndarray) -> None:
            tree = flat(self.read())
            tree[keys] = jnp.asarray(values).reshape(jnp.shape(tree[keys]))
            nested = flax.traverse_util.unflatten_dict(tree)
            is_frozen = isinstance(self.read(), flax.core.FrozenDict)
            self.write(flax.core.freeze(nested) if is_frozen else nested)

        def moment() -> np.ndarray | None:
            moments = list(first_moments(self.state()))
            return np.asarray(flat(moments[0])[keys]) if moments else None

        return Link(name, index, lambda: np.asarray(flat(self.read())[keys]), write, moment)

    def mlp(
        self, name: str, layers: Iterable[str], member: int | None = None, *, stacked: bool = False
    ) -> list[Link]:
        """Return links from Dense layers at these paths to our MLP `name`, or to one member.

        stacked: the reference's layers have the ensemble axis too.
        """
        links = []
        for i, path in enumerate(layers):
            at, bias = (..., ...) if member is None else ((member,), (member, 0))
            if stacked:
                bias = (slice(None), 0)
            links.append(self.link(f"{name}.weights.{i}", f"{path}/kernel", at))
            links.append(self.link(f"{name}.biases.{i}", f"{path}/bias", bias))
        return links

    def norms(self, name: str, layers: Iterable[str], *, stacked: bool = False) -> list[Link]:
        """Return links from layer normalizations at these paths to those of our MLP `name`."""
        at = (slice(None), 0) if stacked else ...
        parts = [("weight", "scale"), ("bias", "bias")]
        pairs = [(i, path, *pair) for i, path in enumerate(layers) for pair in parts]
        return [self.link(f"{name}.norms.{i}.{a}", f"{path}/{b}", at) for i, path, a, b in pairs]


def attribute_store(owner: Any, name: str) -> Store:
    """Return the Store of `owner.name`, a model with `params`, `opt_state` and `replace`."""

    def write(tree: Any) -> None:
        model = getattr(owner, name)
        setattr(owner, name, model.replace(params=tree, opt_state=to_float64(model.opt_state)))

    return Store(lambda: getattr(owner, name).params, write, lambda: getattr(owner, name).opt_state)


def to_float64(state: Any) -> Any:
    """Return an optimizer's state, created for float32 parameters, in float64."""
    return jax.tree_util.tree_map(
        lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, state
    )


def first_moments(state: Any) -> Iterable[Any]:
    """Yield Adam's first moments, wherever they are in an optimizer's state."""
    if hasattr(state, "mu"):
        yield state.mu
    elif isinstance(state, tuple):
        for entry in state:
            yield from first_moments(entry)


def use_frozen_dicts() -> None:
    """Let flax initialize parameters as immutable dicts, as code from before 2023 expects."""
    init = flax.linen.Module.init
    flax.linen.Module.init = lambda *args, **keys: flax.core.freeze(init(*args, **keys))


def set_norm_epsilon(epsilon: float) -> None:
    """Set the epsilon of layer normalization; flax's default is 1e-6, torch's 1e-5."""
    flax.linen.LayerNorm = partial(flax.linen.LayerNorm, epsilon=epsilon)
