"""What both sides are given: sizes, initial parameters, batches. All of it from frozen generators.

`np.random.RandomState` gives the same numbers in every version of numpy, so nothing is stored.
Imported by the references' interpreters too: numpy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

OBS, ACT, BATCH, WIDTH, SAMPLES, CRITICS, WINDOW = 5, 3, 7, 8, 4, 3, 6
SEED = 20
EXPERT = 1000  # updates from a batch to that of the expert's beside it
Arrays = dict[str, np.ndarray]


def parameters(shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Every parameter uniform in +-1/2, gains around 1; targets are no copies of their sources.

    A `scale`, which nothing trains, is 1/4 in both.
    """
    draw, found = np.random.RandomState(SEED), {}
    for name in sorted(shapes):
        middle = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        found[name] = np.asarray(middle + draw.uniform(-0.5, 0.5, shapes[name]))
        if name.endswith("/scale"):
            found[name] = np.asarray(0.25)
    return found


def batch(update: int, discount: float, lead: tuple[int, ...] = (BATCH,)) -> Arrays:
    """Transitions, [*lead, …] each; a third of them terminates, with every column there is."""
    draw = np.random.RandomState([SEED, update])
    columns = {
        "observations": draw.standard_normal((*lead, OBS)),
        "actions": draw.uniform(-0.99, 0.99, (*lead, ACT)),
        "rewards": draw.standard_normal(lead),
        "terminated": (draw.uniform(size=lead) < 1 / 3).astype(np.float64),
        "next_observations": draw.standard_normal((*lead, OBS)),
        "next_actions": draw.uniform(-0.99, 0.99, (*lead, ACT)),
        "mc_returns": draw.standard_normal(lead),
    }
    return columns | {"discount": discount * (1 - columns["terminated"])}


def part(arrays: Arrays, prefix: str) -> Arrays:
    """The entries below `prefix`."""
    return {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}


def stacked(n_obs_steps: Sequence[Arrays]) -> Arrays:
    """What was seen after each update as one array a quantity, NaN where it was not there."""
    shapes = {name: x.shape for now in n_obs_steps for name, x in now.items()}
    return {
        name: np.stack([now.get(name, np.full(shape, np.nan)) for now in n_obs_steps])
        for name, shape in shapes.items()
    }


def windows(update: int, *, whole: bool) -> Arrays:
    """A batch of windows [BATCH, WINDOW, …]; those that are not whole end with their episode."""
    draw, columns = np.random.RandomState([SEED, update, 2]), batch(update, 1.0, (BATCH, WINDOW))
    first, steps = draw.randint(0, 5, (BATCH, 1)), np.arange(WINDOW)
    count = np.full((BATCH, 1), WINDOW) if whole else draw.randint(1, WINDOW + 1, (BATCH, 1))
    return columns | {"timesteps": first + steps, "real": steps < count}


def chunks(update: int, n_obs_steps: int, horizon: int) -> Arrays:
    """A batch of chunks: observations [BATCH, n_obs_steps, OBS], actions [BATCH, horizon, ACT]."""
    columns = windows(update, whole=False)
    for name, count in (("observations", n_obs_steps), ("actions", horizon), ("real", horizon)):
        columns[name] = columns[name][:, :count]
    return columns


class Tape:
    """Random numbers of one update: drawn and named by our side, read by name by the other."""

    def __init__(self, update: int, names: tuple[str, ...]) -> None:
        """names: of our draws in their order; an update may make fewer; one again repeats it."""
        self.draw, self.names = np.random.RandomState([SEED, update, 1]), iter(names)
        self.drawn: Arrays = {}  # "<kind>/<name>"

    def record(self, kind: str, shape: tuple[int, ...]) -> np.ndarray:
        """kind: normal or uniform. Raises ValueError for a draw without a name."""
        name = next(self.names, None)
        if name is None:
            raise ValueError(f"a {kind} draw of {shape} after {[*self.drawn]} has no name")
        if f"{kind}/{name}" not in self.drawn:
            draw = self.draw.standard_normal if kind == "normal" else self.draw.uniform
            self.drawn[f"{kind}/{name}"] = draw(size=shape)
        return self.drawn[f"{kind}/{name}"].reshape(shape)
