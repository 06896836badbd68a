"""References written in JAX: jit off, float64, our numbers for theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.conformance.inputs import Arrays, part
from benchmarks.conformance.job import Link, Replay

replay: Replay | None = None  # set for the time of an update
backward_losses: list[float] = []  # not told here: see `Learner.losses`


def prepare() -> None:
    """For a process that runs nothing else; with what newer versions no longer have."""
    jax.config.update("jax_enable_x64", True)
    jax.tree_multimap = jax.tree_map = jax.tree_util.tree_map
    jax.jit = lambda function=None, **_: (lambda f: f) if function is None else function
    clip = jnp.clip
    jnp.clip = lambda x, low=None, high=None, *, a_min=None, a_max=None: clip(
        x, low if a_min is None else a_min, high if a_max is None else a_max
    )
    own = {name: getattr(jax.random, name) for name in ("normal", "uniform", "bernoulli")}

    def idle(key: Any) -> bool:
        """Between updates, or where flax only asks for the shapes of what it would draw."""
        return replay is None or isinstance(key, jax.core.Tracer)

    def normal(key: Any, shape: Any = (), dtype: Any = None, **_: Any) -> Any:
        return own["normal"](key, shape) if idle(key) else jnp.asarray(replay("normal", shape))

    def uniform(
        key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0, **_: Any
    ) -> Any:
        if idle(key):
            return own["uniform"](key, shape, minval=minval, maxval=maxval)
        drawn = jnp.asarray(replay("uniform", shape))
        return 2 * drawn - 1 if (minval, maxval) == (-1, 1) else minval + (maxval - minval) * drawn

    def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, **_: Any) -> Any:
        """A dropout's mask: what is kept. Ours keeps where a number is at least its rate."""
        return own["bernoulli"](key, p, shape) if idle(key) else uniform(key, shape) >= 1 - p

    jax.random.normal, jax.random.uniform, jax.random.bernoulli = normal, uniform, bernoulli


def given(columns: Arrays) -> Any:
    """A batch as JAX's doubles, by name, an expert's as `expert`."""
    own = {name: jnp.asarray(values) for name, values in columns.items() if "/" not in name}
    expert = part(columns, "expert/")
    return SimpleNamespace(**own, expert=given(expert) if expert else None)


class Store:
    """Parameters in an immutable tree: `owner.<attribute>` is replaced by what is written.

    params: from that attribute to its parameters; moments: to its optimizer's state.
    """

    def __init__(
        self, read: Callable[[], Any], write: Callable[[Any], None], state: Callable[[], Any]
    ) -> None:
        self.read, self.write, self.state = read, write, state

    def link(self, name: str, path: str, index: Any = ...) -> Link:
        """The parameter at `path` (a/b/c) as ours, or as a part of ours."""
        keys = tuple(path.split("/"))

        def flat(tree: Any) -> dict[tuple[str, ...], Any]:
            return flax.traverse_util.flatten_dict(flax.core.unfreeze(tree))

        def write(values: np.ndarray) -> None:
            tree = flat(self.read())
            tree[keys] = jnp.asarray(values).reshape(jnp.shape(tree[keys]))
            whole = flax.traverse_util.unflatten_dict(tree)
            is_frozen = isinstance(self.read(), flax.core.FrozenDict)
            self.write(flax.core.freeze(whole) if is_frozen else whole)

        def moment() -> np.ndarray | None:
            found = list(means(self.state()))
            return np.asarray(flat(found[0])[keys]) if found else None

        return Link(name, index, lambda: np.asarray(flat(self.read())[keys]), write, moment)

    def mlp(
        self, name: str, layers: Iterable[str], member: int | None = None, *, stacked: bool = False
    ) -> list[Link]:
        """Dense layers at these paths as our MLP `name`, or as one member of an ensemble.

        stacked: theirs have the ensemble's axis too.
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
        """Layer normalizations at these paths as those of our MLP `name`."""
        at = (slice(None), 0) if stacked else ...
        parts = [("weight", "scale"), ("bias", "bias")]
        pairs = [(i, path, *part) for i, path in enumerate(layers) for part in parts]
        return [self.link(f"{name}.norms.{i}.{a}", f"{path}/{b}", at) for i, path, a, b in pairs]


def attribute(owner: Any, name: str) -> Store:
    """Of a learner whose attribute is a model with `params`, `opt_state` and `replace`."""

    def write(tree: Any) -> None:
        model = getattr(owner, name)
        setattr(owner, name, model.replace(params=tree, opt_state=doubles(model.opt_state)))

    return Store(lambda: getattr(owner, name).params, write, lambda: getattr(owner, name).opt_state)


def doubles(state: Any) -> Any:
    """An optimizer's state, made beside float32 parameters, in float64."""
    return jax.tree_util.tree_map(
        lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, state
    )


def means(state: Any) -> Iterable[Any]:
    """Adam's first moments in an optimizer's state, wherever it keeps them."""
    if hasattr(state, "mu"):
        yield state.mu
    elif isinstance(state, tuple):
        for part in state:
            yield from means(part)


def frozen() -> None:
    """Parameters start in flax's immutable dicts, as code from before 2023 expects."""
    init = flax.linen.Module.init
    flax.linen.Module.init = lambda *args, **keys: flax.core.freeze(init(*args, **keys))


def norm_epsilon(epsilon: float) -> None:
    """Layer normalization as torch's by default: flax adds 1e-6 to the variance."""
    flax.linen.LayerNorm = partial(flax.linen.LayerNorm, epsilon=epsilon)
