"""Inputs of both sides: sizes, initial parameters and batches, from seeded generators.

`np.random.RandomState` gives the same numbers in every version of NumPy, so inputs are not stored.
The references' interpreters import this module too, so it imports nothing but NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

OBS, ACT, BATCH, WIDTH, SAMPLES, CRITICS, WINDOW = 5, 3, 7, 8, 4, 3, 6
ROWS = 40  # rows of the data that a dynamics model is fitted to
SEED = 20
RECORD = "record/"  # prefix of the parameters that record the fit of a dynamics model
EXPERT = 1000  # an update's expert batch has the update's number plus this as its seed
Arrays = dict[str, np.ndarray]


def parameters(
    shapes: Mapping[str, tuple[int, ...]], key: Callable[[str], str] | None = None
) -> Arrays:
    """Return random parameters, uniform in +-1/2; gains of normalization are centered at 1.

    The standard deviations that divide a model's inputs are also centered at 1. Target networks are
    not copies of the networks that they follow. A `scale`, which is not trained, is 1/4. In the
    record of a fit, errors are random and everything else is 0; it has a random generator of its
    own. key: sort key of the names; values are sampled in this order.
    """
    rng, values = np.random.RandomState(SEED), {}
    for name in sorted(shapes, key=key):
        if name.startswith(RECORD):
            is_error = name == f"{RECORD}error"
            errors = np.random.RandomState([SEED, 5]).uniform(0.5, 1.5, shapes[name])
            values[name] = errors if is_error else np.zeros(shapes[name])
            continue
        is_gain = "norm" in name and name.endswith("weight")
        center = 1.0 if is_gain or name.endswith("input_std") else 0.0
        values[name] = np.asarray(center + rng.uniform(-0.5, 0.5, shapes[name]))
        if name.endswith("/scale"):
            values[name] = np.asarray(0.25)
    return values


def batch(update: int, discount: float, lead: tuple[int, ...] = (BATCH,)) -> Arrays:
    """Return transitions, [*lead, …] each, with all columns; a third of them terminate."""
    rng = np.random.RandomState([SEED, update])
    columns = {
        "observations": rng.standard_normal((*lead, OBS)),
        "actions": rng.uniform(-0.99, 0.99, (*lead, ACT)),
        "rewards": rng.standard_normal(lead),
        "terminated": (rng.uniform(size=lead) < 1 / 3).astype(np.float64),
        "next_observations": rng.standard_normal((*lead, OBS)),
        "next_actions": rng.uniform(-0.99, 0.99, (*lead, ACT)),
        "mc_returns": rng.standard_normal(lead),
    }
    return columns | {"discount": discount * (1 - columns["terminated"])}


def costs(update: int, lead: tuple[int, ...] = (BATCH,)) -> np.ndarray:
    """Return the costs of transitions, [*lead]; about half of them are 0."""
    rng = np.random.RandomState([SEED, update, 6])
    return rng.uniform(size=lead) * (rng.uniform(size=lead) < 1 / 2)


def window_costs(update: int) -> Arrays:
    """Return the columns of costs of `windows`; about half of the steps cost 1."""
    lead = (BATCH, WINDOW)
    return {
        "costs": (costs(update, lead) > 0).astype(np.float64),
        "mc_costs": 10 * costs(update + EXPERT, lead),
    }


def episodes(update: int) -> Arrays:
    """Return episodes of one step, of which four each have a similar cost and return."""
    rng, groups = np.random.RandomState([SEED, update, 7]), np.repeat(np.arange(10.0), 4)
    columns = batch(update, 1.0, (40,))
    columns["mc_costs"] = 10 * groups + 0.1 * rng.uniform(size=40)
    columns["mc_returns"] = 100 * np.sqrt(groups) + 50 * (groups % 3 > 0)
    columns["mc_returns"] += 0.1 * rng.uniform(size=40)
    return columns


def timesteps(update: int) -> np.ndarray:
    """Return the steps of transitions within their episodes, [BATCH]; about half of them are 0."""
    return np.random.RandomState([SEED, update, 7]).randint(0, 2, BATCH)


def is_end(next_observations: Any) -> Any:
    """Return a mask of the transitions that end an episode of a dynamics model, [...]."""
    return next_observations[..., 0] > 0.5


def subtree(arrays: Arrays, prefix: str) -> Arrays:
    """Return the entries whose names start with `prefix`, without it."""
    return {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}


def stack_updates(results: Sequence[Arrays]) -> Arrays:
    """Return each quantity of all updates as one array; missing values are NaN."""
    shapes = {name: x.shape for result in results for name, x in result.items()}
    return {
        name: np.stack([result.get(name, np.full(shape, np.nan)) for result in results])
        for name, shape in shapes.items()
    }


def windows(update: int, *, full: bool) -> Arrays:
    """Return a batch of windows [BATCH, WINDOW, …]; `valid` is the mask of steps without padding.

    full: all windows have WINDOW steps; otherwise windows may end early, with their episode.
    """
    rng, columns = np.random.RandomState([SEED, update, 2]), batch(update, 1.0, (BATCH, WINDOW))
    first, steps = rng.randint(0, 5, (BATCH, 1)), np.arange(WINDOW)
    count = np.full((BATCH, 1), WINDOW) if full else rng.randint(1, WINDOW + 1, (BATCH, 1))
    return columns | {"timesteps": first + steps, "valid": steps < count}


def chunks(update: int, n_obs_steps: int, horizon: int) -> Arrays:
    """Return a batch of chunks.

    Observations are [BATCH, n_obs_steps, OBS], actions [BATCH, horizon, ACT].
    """
    columns = windows(update, full=False)
    for name, count in (("observations", n_obs_steps), ("actions", horizon), ("valid", horizon)):
        columns[name] = columns[name][:, :count]
    return columns


def chunk_transitions(update: int, discount: float, horizon: int, *, full: bool) -> Arrays:
    """Return transitions of chunks.

    Observations are [BATCH, 1, OBS], actions [BATCH, horizon, ACT], rewards [BATCH].
    full: all chunks have `horizon` steps; otherwise some end with their episode and have weight 0.
    """
    columns, steps = batch(update, discount**horizon), batch(update, 1.0, (BATCH, horizon))
    columns |= {"actions": steps["actions"], "valid": np.ones((BATCH, horizon), bool)}
    if not full:
        count = np.random.RandomState([SEED, update, 2]).randint(1, horizon + 3, (BATCH, 1))
        columns["valid"] = np.arange(horizon) < count
        columns["weights"] = columns["valid"][:, -1].astype(np.float64)
    return columns | {k: columns[k][:, None] for k in ("observations", "next_observations")}


class Tape:
    """Random numbers of one update. Our side samples and names them; the reference reads them."""

    def __init__(self, update: int, names: tuple[str, ...]) -> None:
        """Create the tape.

        names: names of our draws in order; a repeated name returns the same numbers again. An
        update may make fewer draws.
        """
        self.rng, self.names = np.random.RandomState([SEED, update, 1]), iter(names)
        self.arrays: Arrays = {}  # keys: "<kind>/<name>"

    def record(self, kind: str, shape: tuple[int, ...]) -> np.ndarray:
        """Sample, store and return random numbers.

        kind: normal or uniform. Raises ValueError for a draw without a name.
        """
        name = next(self.names, None)
        if name is None:
            raise ValueError(f"a {kind} draw of {shape} after {[*self.arrays]} has no name")
        if f"{kind}/{name}" not in self.arrays:
            draw = self.rng.standard_normal if kind == "normal" else self.rng.uniform
            self.arrays[f"{kind}/{name}"] = draw(size=shape)
        return self.arrays[f"{kind}/{name}"].reshape(shape)
