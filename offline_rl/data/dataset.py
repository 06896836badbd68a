"""A data set of transitions in memory: flat arrays with one row per step, episode after episode.

    row            0    1    2    3    4         The observation after an episode's last step is
    episode        |--- A ---|    |- B -|        stored in an extra row at the end of
    terminated               x                   `observations`. `next_index` is, for each step,
    truncated                          x         the row of its next observation.

Observations are one array, or a mapping of named channels (`policies.channels`): vectors, and
uint8 images.

`terminated` means that the task ended: the value of the next observation is 0. `truncated` means
that only the recording stopped (time limit, end of file): algorithms bootstrap from the value of
the next observation. An episode ends at both, except at a terminated row that `continues`: there
the recording continues after the task has ended, as in OGBench.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from offline_rl.data.action_range import scale_arrays
from offline_rl.data.checks import (
    FLAGS,
    component_names,
    describe_overshoot,
    find_errors,
    find_precision_losses,
)
from offline_rl.data.containers.video import VideoFrames
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import ActionRange
from policies import channels
from policies.arrays import as_array
from policies.channels import Observations
from policies.spec import Spec

ARRAYS = ("observations", "next_index", "actions", "rewards", "terminated", "truncated")
NO_REWARDS = "no rewards are stored: all are 0"  # note for files without rewards


class Summary(NamedTuple):
    """Statistics of a data set; returns are undiscounted sums of raw rewards."""

    rows: int
    usable: int  # rows whose next observation is stored or not needed
    episodes: int
    terminated: int  # episodes that ended so
    truncated: int
    length_min: int
    length_mean: float
    length_max: int
    return_mean: float
    return_std: float  # ddof = 0, over episodes
    return_min: float
    return_max: float
    reward_min: float
    reward_max: float
    action_min: float
    action_max: float


@dataclass(frozen=True, eq=False)
class Dataset:
    """N steps in time order, episode after episode.

    Build one with `from_arrays`, `load` or `from_minari`.
    """

    observations: Observations  # [M, *obs] float32 (or uint8 images): N rows, then extra rows
    next_index: np.ndarray  # [N] int64, row of the next observation; -1: it is not stored
    actions: np.ndarray  # [N, A] float32 in [-1, 1]
    rewards: np.ndarray  # [N] float32
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool, False where terminated
    name: str = "data"
    path: str | None = None
    sha256: str | None = None  # SHA-256 of the file
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)  # [N, ...] each, e.g. costs
    notes: tuple[str, ...] = ()  # what was left out or assumed in reading, and warnings
    spec: Spec | None = None  # names, units, control rate, and the range of the actions
    # [N] bool, True in terminated rows whose episode continues; None: there are no such rows
    continues: np.ndarray | None = None

    # Constructors that read files. `data/load.py` defines them, because it imports this module.
    load: ClassVar[Callable[..., "Dataset"]]  # see `data.load.load_dataset`
    from_minari: ClassVar[Callable[..., "Dataset"]]  # see `data.load.load_minari`

    @classmethod
    def from_arrays(
        cls,
        observations: Observations,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray | None = None,
        truncated: np.ndarray | None = None,
        next_observations: Observations | None = None,
        *,
        terminals: np.ndarray | None = None,
        timeouts: np.ndarray | None = None,
        action_scale: float | None = None,
        action_range: ActionRange | None = None,
        final_observations: Observations | None = None,
        extras: Mapping[str, np.ndarray] | None = None,
        spec: Spec | None = None,
        name: str = "data",
        path: str | None = None,
        sha256: str | None = None,
        keys: Mapping[str, str] | None = None,
    ) -> "Dataset":
        """Build a data set from arrays with one row per step.

        observations, next_observations: [N, *obs], or {channel: [N, *obs]} if there are several
        channels; images are uint8, [N, H, W, C].
        actions: [N, A] in [-1, 1].
        rewards, terminated, truncated: [N] or [N, 1].
        final_observations: [episodes, *obs], the observation after each episode's last row. Use it
        instead of next_observations if, within an episode, the next observation of a row is the
        observation of the next row.
        terminals, timeouts: D4RL's names for terminated and truncated.
        action_scale, action_range: units of the actions, as in `read`. If `spec` is None, the spec
        of the data set has this range.
        spec: names, units and control rate. Policy bundles trained on this data store them.
        keys: the names of the arrays in error messages, if they differ from the argument names.

        If the last row has no flag, it is truncated. Without next and final observations, the next
        observation of a truncated row is unknown, so the row is not a usable transition.
        Raises UserError at the first problem.
        """
        terminated = _choose_alias("terminated", terminated, "terminals", terminals)
        truncated = _choose_alias("truncated", truncated, "timeouts", timeouts)
        arrays = {
            "observations": observations,
            "actions": actions,
            "rewards": rewards,
            "terminated": terminated,
            "truncated": truncated,
            "next_observations": next_observations,
            "final_observations": final_observations,
        }
        where = path or name
        keys = keys or {}
        for column in ("observations", "actions", "rewards", "terminated"):
            if arrays[column] is None:
                raise UserError(f"{where}: {column} is None. Pass an array.")
        c = as_columns(channels.flatten({k: v for k, v in arrays.items() if v is not None}))
        c, notes = convert_to_float32(c, keys)
        bounds = None
        if action_scale is not None or action_range is not None:
            c, bounds = scale_arrays(where, c, action_scale, action_range)
        for sentence in find_errors(c, where, keys, bounds):
            raise UserError(sentence)
        if (note := describe_overshoot(c["actions"])) is not None:
            notes.append(f"{keys.get('actions', 'actions')} {note}")
        if bounds is not None and spec is None:
            shape, count = channels.shapes(channels.get(c, "observations")), c["actions"].shape[1]
            low, high = (tuple(np.broadcast_to(b, count).astype(float).tolist()) for b in bounds)
            spec = Spec(shape, count, action_low=low, action_high=high)

        is_terminated = c["terminated"].astype(bool)
        is_truncated = (
            c["truncated"].astype(bool) if "truncated" in c else np.zeros_like(is_terminated)
        )
        is_truncated[-1] |= not is_terminated[-1]
        successors, next_index = _successors(c, is_terminated, is_truncated, where, keys)
        extras = {key: as_array(array) for key, array in (extras or {}).items()}
        for key, array in extras.items():
            if len(array) != len(is_terminated):
                raise UserError(
                    f"{where}: {key} has {len(array):,} rows and {keys.get('rewards', 'rewards')} "
                    f"{len(is_terminated):,}; each array needs one row for every step."
                )
        observed = channels.get(c, "observations")
        return cls(
            channels.concatenate([observed, successors]) if channels.size(successors) else observed,
            next_index,
            np.clip(c["actions"], -1, 1) if np.abs(c["actions"]).max() > 1 else c["actions"],
            c["rewards"],
            is_terminated,
            is_truncated,
            name,
            path,
            sha256,
            extras,
            tuple(notes),
            spec,
        )

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        observed = channels.shapes(self.observations)
        shapes = f"observations {observed}, actions {self.actions.shape[1:]}"
        return (
            f"<Dataset {self.name}: {len(self):,} rows, {self.num_episodes:,} episodes, {shapes}>"
        )

    @property
    def num_rows(self) -> int:
        return len(self.rewards)

    @property
    def has_rewards(self) -> bool:
        """False if the file stores no rewards; then all rewards are 0."""
        return NO_REWARDS not in self.notes

    @property
    def num_episodes(self) -> int:
        return len(self.episode_ends)

    @property
    def usable(self) -> np.ndarray:
        """Mask of the rows that are transitions, [N] bool.

        A row is a transition if its next observation is stored, or not needed because the row is
        terminated.
        """
        return self.next_index >= 0

    @property
    def lacks_next(self) -> np.ndarray:
        """Mask of the terminated rows whose next observation is not stored, [N] bool.

        Critics do not need it, because nothing bootstraps there. `next_index` of such a row is the
        row itself.
        """
        return np.asarray(self.terminated & (self.next_index == np.arange(self.num_rows)))

    @property
    def next_observations(self) -> Observations:
        """Next observation of each row, [N, *obs]. Raises UserError if a row is not `usable`."""
        missing = int((~self.usable).sum())
        if missing:
            raise UserError(
                f"{self.path or self.name}: the next observation of {missing:,} time-out rows is "
                f"not in the data. Use only the rows that are `usable`."
            )
        return channels.take(self.observations, self.next_index)

    @property
    def is_last(self) -> np.ndarray:
        """Mask of the last row of each episode, [N] bool."""
        last = self.terminated | self.truncated
        return last if self.continues is None else last & ~self.continues

    @cached_property
    def episode_starts(self) -> np.ndarray:
        """First row of each episode, [E] int64."""
        return np.concatenate([[0], self.episode_ends[:-1] + 1]).astype(np.int64)

    @cached_property
    def episode_ends(self) -> np.ndarray:
        """Last row of each episode (inclusive), [E] int64."""
        return np.flatnonzero(self.is_last)

    def episode_lengths(self) -> np.ndarray:
        """Return the number of steps of each episode, [E] int64."""
        return self.episode_ends - self.episode_starts + 1

    def episode_returns(self) -> np.ndarray:
        """Return the undiscounted sum of rewards of each episode, [E] float64."""
        return np.add.reduceat(self.rewards.astype(np.float64), self.episode_starts)

    def episode_costs(self) -> np.ndarray:
        """Return the undiscounted sum of costs of each episode, [E] float64.

        Raises KeyError if the data has no costs.
        """
        return np.add.reduceat(self.extras["costs"].astype(np.float64), self.episode_starts)

    def monte_carlo_returns(self, discount: float, tail: np.ndarray | None = None) -> np.ndarray:
        """Return G_t = r_t + discount * G_{t+1} within each episode, [N] float32.

        G_t = r_t where the row terminated. tail: [E], return after the last row of each episode, by
        default 0; ignored for episodes that terminated.
        """
        tail = np.zeros(self.num_episodes) if tail is None else tail
        tail = np.where(self.terminated[self.episode_ends], 0, tail)
        lengths = self.episode_lengths()
        order = np.argsort(-lengths, kind="stable")
        lengths, ends = lengths[order], self.episode_ends[order]
        returns = np.empty(self.num_rows, np.float32)
        running = tail[order]  # one value per episode, computed backward from the last rows
        for back in range(lengths[0]):
            active = int(np.searchsorted(-lengths, -back, side="left"))  # lengths > back
            rows = ends[:active] - back
            bootstraps = discount * ~self.terminated[rows]
            running[:active] = self.rewards[rows] + bootstraps * running[:active]
            returns[rows] = running[:active]
        return returns

    def top_episodes(self, fraction: float) -> "Dataset":
        """Return the int(fraction * E) episodes with the highest returns, in file order.

        With fraction 0.1, this is the data of 10%-BC.
        """
        count = int(_check_fraction(fraction) * self.num_episodes)
        if count == 0:
            raise UserError(
                f"{self.path or self.name}: a fraction of {fraction:g} of {self.num_episodes} "
                f"episodes is less than one. Use a larger fraction."
            )
        return self.select(np.argsort(-self.episode_returns(), kind="stable")[:count])

    def top_timesteps(self, fraction: float) -> "Dataset":
        """Return the episodes with the highest returns, up to this fraction of all rows.

        Their total length is below the fraction of all rows, but the best episode is always
        included. This is the rule of kzl/decision-transformer:gym/experiment.py (`pct_traj`).
        """
        order = np.argsort(-self.episode_returns(), kind="stable")
        total = np.cumsum(self.episode_lengths()[order])
        max_rows = max(int(_check_fraction(fraction) * self.num_rows), 1)
        count = int(np.searchsorted(total, max_rows))
        return self.select(order[: max(count, 1)])

    def select(self, episodes: Sequence[int] | np.ndarray) -> "Dataset":
        """Return the episodes with these indices, in file order."""
        selected = np.zeros(self.num_episodes, bool)
        selected[np.asarray(episodes)] = True
        return self.take(np.flatnonzero(np.repeat(selected, self.episode_lengths())))

    def take(self, rows: np.ndarray) -> "Dataset":
        """Return a data set of these rows, which must increase.

        A row that becomes the last of its episode is truncated, unless it is terminated.
        """
        after = self.next_index[rows]  # in the old numbering
        renumbered = np.full(channels.size(self.observations), -1)
        renumbered[rows] = np.arange(len(rows))
        outside = np.unique(after[(after >= 0) & (renumbered[after] < 0)])
        renumbered[outside] = len(rows) + np.arange(len(outside))
        truncated = self.truncated[rows].copy()
        gap = np.append(np.diff(rows) != 1, True)  # the next row is not selected
        truncated[gap & ~self.terminated[rows]] = True
        continues = None if self.continues is None else self.continues[rows] & ~gap
        return replace(
            self,
            observations=select(self.observations, np.concatenate([rows, outside])),
            next_index=np.where(after >= 0, renumbered[after], -1),
            actions=self.actions[rows],
            rewards=self.rewards[rows],
            terminated=self.terminated[rows],
            truncated=truncated,
            continues=continues,
            extras={key: array[rows] for key, array in self.extras.items()},
        )

    def span(self, start: int, stop: int) -> "Dataset":
        """Return the rows from `start` up to `stop`, which must consist of complete episodes.

        Unlike `take`, it reads only these rows of memory-mapped arrays.
        """
        rows, after = slice(start, stop), self.next_index[start:stop]
        inside = (after >= start) & (after < stop)
        outside = ~inside & (after >= 0)  # next observations that are stored in extra rows
        stored = np.concatenate([np.arange(start, stop), after[outside]])
        index = np.where(inside, after - start, -1)
        index[outside] = stop - start + np.arange(int(outside.sum()))
        return replace(
            self,
            observations=select(self.observations, stored),
            next_index=index,
            actions=self.actions[rows],
            rewards=self.rewards[rows],
            terminated=self.terminated[rows],
            truncated=self.truncated[rows],
            continues=None if self.continues is None else self.continues[rows],
            extras={key: array[rows] for key, array in self.extras.items()},
        )

    def checksum(self) -> str:
        """Return the SHA-256 of all arrays, including their names, types and shapes.

        Images of videos are represented by the SHA-256 of the video files.
        """
        arrays = channels.flatten({name: getattr(self, name) for name in ARRAYS}) | {**self.extras}
        arrays |= {} if self.continues is None else {"continues": self.continues}
        digest = hashlib.sha256()
        for name, array in sorted(arrays.items()):
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            if isinstance(array, VideoFrames):
                digest.update(array.fingerprint())
            else:
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def summary(self) -> Summary:
        """Return statistics of the data set."""
        lengths, returns = self.episode_lengths(), self.episode_returns()
        return Summary(
            rows=self.num_rows,
            usable=int(self.usable.sum()),
            episodes=self.num_episodes,
            terminated=int(self.terminated[self.episode_ends].sum()),
            truncated=int(self.truncated.sum()),
            length_min=int(lengths.min()),
            length_mean=float(lengths.mean()),
            length_max=int(lengths.max()),
            return_mean=float(returns.mean()),
            return_std=float(returns.std()),
            return_min=float(returns.min()),
            return_max=float(returns.max()),
            reward_min=float(self.rewards.min()),
            reward_max=float(self.rewards.max()),
            action_min=float(self.actions.min()),
            action_max=float(self.actions.max()),
        )


def select(observations: Observations, rows: np.ndarray) -> Observations:
    """Return the observations at `rows`. Images of videos are not decoded."""
    return channels.map_channels(
        lambda x: x.select(rows) if isinstance(x, VideoFrames) else x[rows], observations
    )


def _choose_alias(column: str, array: Any, alias: str, other: Any) -> Any:
    """Return the argument that was passed. Raises UserError if both were passed."""
    if array is not None and other is not None:
        raise UserError(f"{column}= and {alias}= are the same argument. Give one of them.")
    return other if array is None else array


def as_columns(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert numbers to float32, and scalars of shape [N, 1] to [N].

    Images (uint8) and flags keep their types. Actions keep their type if they are one non-negative
    integer per step, because they may be discrete. Arrays that would lose precision in float32 are
    not converted here: `convert_to_float32` converts them and adds a note, or `find_errors` reports
    an error.
    """
    columns = {}
    for column, values in arrays.items():
        array = values if isinstance(values, VideoFrames) else as_array(values)
        if (
            not column.partition("/")[0].endswith(("observations", "actions"))
            and array.ndim == 2
            and array.shape[1] == 1
        ):
            array = array[:, 0]
        image = array.dtype == np.uint8 and array.ndim > 2
        discrete = column == "actions" and array.dtype.kind in "iu" and array.size == len(array)
        discrete = discrete and not (array < 0).any()
        if array.dtype.kind in "fiub" and column not in FLAGS and not image and not discrete:
            if find_precision_losses(array):
                columns[column] = array
                continue
            with np.errstate(over="ignore"):  # overflow becomes infinite; `find_errors` refuses it
                array = array.astype(np.float32, copy=False)
        columns[column] = array
    return columns


def convert_to_float32(
    columns: Mapping[str, np.ndarray], names: Mapping[str, str], components: Sequence[str] = ()
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Convert arrays to float32 if enough precision remains; return all columns, and notes.

    names: column -> the file's name of it.  components: the file's names of the components of an
    observation.
    """
    converted, notes = dict(columns), []
    for column, array in columns.items():
        lost = find_precision_losses(array) if column not in FLAGS else []
        if lost and not any(loss.refused for loss in lost):
            converted[column] = array.astype(np.float32)
            sentence = lost[0].describe(array, component_names(column, components))
            notes.append(f"{names.get(column, column)}: {sentence}")
    return converted, notes


def _successors(
    c: Mapping[str, np.ndarray],
    is_terminated: np.ndarray,
    is_truncated: np.ndarray,
    where: str,
    keys: Mapping[str, str],
) -> tuple[Observations, np.ndarray]:
    """Return the next observations that are not rows of the data, and `next_index`.

    `next_index` counts the rows of the data first, then these extra rows.
    """
    num_rows, last = len(is_terminated), is_terminated | is_truncated
    index = np.arange(1, num_rows + 1)
    extra = np.zeros(num_rows, bool)
    observed = channels.get(c, "observations")
    rows = channels.take(observed, slice(0))
    if (stored := channels.get(c, "next_observations")) is not None:
        extra = last | differs_from_next(stored, observed)
        rows = channels.take(stored, extra)
    elif (final := channels.get(c, "final_observations")) is not None:
        extra, rows = last, final
        if (count := channels.size(rows)) != last.sum():
            name = keys.get("final_observations", "final_observations")
            raise UserError(
                f"{where}: {name} has {count:,} rows; one is expected for each of the "
                f"{last.sum():,} episodes."
            )
    else:
        index[is_terminated] = np.flatnonzero(
            is_terminated
        )  # any row will do, because the discount is 0 there
        index[is_truncated] = -1
    index[extra] = num_rows + np.arange(int(extra.sum()))
    return rows, index


def differs_from_next(stored: Observations, observations: Observations) -> np.ndarray:
    """Return a mask of the rows whose stored next observation is not the next row's, [N] bool.

    The last row counts as different.
    """
    different = np.ones(channels.size(observations), bool)
    different[:-1] = channels.any_channel(channels.map_channels(_rows_differ, stored, observations))
    return different


def _rows_differ(stored: np.ndarray, array: np.ndarray) -> np.ndarray:
    flat = (len(array), -1)
    return (stored.reshape(flat)[:-1] != array.reshape(flat)[1:]).any(axis=1)


def _check_fraction(fraction: float) -> float:
    if not 0 < fraction <= 1:
        raise UserError(f"fraction={fraction:g} is out of range. Use a number above 0, at most 1.")
    return fraction
