"""Logged experience in memory: flat arrays, one row a step, and never a row across an episode.

    row            0    1    2    3    4         observations also holds the true observation
    episode        |--- A ---|    |- B -|        after the last row of an episode, as an extra
    terminated               x                   row at its end; `next_index` says for each row
    truncated                          x         which row follows it.

Observations are one array, or a mapping of named channels (`policies.channels`): vectors, and
pictures of uint8.

`terminated` means the task is over: nothing follows, no bootstrap. `truncated` means the recording
stopped (time limit, end of file): the task would have gone on, so the value bootstraps.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offline_rl.data.faults import FLAGS, faults, losses, named_in, overshoot
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import ActionRange
from offline_rl.utils.words import unknown
from policies import channels
from policies.arrays import as_array
from policies.channels import Observations
from policies.spec import Spec

ARRAYS = ("observations", "next_index", "actions", "rewards", "terminated", "truncated")
NO_REWARDS = "no rewards are stored: all are 0"  # the note of whoever reads such a file


class Summary(NamedTuple):
    """A data set in numbers; returns are undiscounted sums of raw rewards."""

    rows: int
    usable: int  # rows whose next observation is known or not needed
    episodes: int
    terminated: int
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
    """N steps in time order, episode after episode. Build one with `from_arrays` or `read`."""

    observations: Observations  # [M, *obs] float32 (or uint8 pictures): N rows, then extra rows
    next_index: np.ndarray  # [N] int64, row of `observations` that follows; -1 unknown
    actions: np.ndarray  # [N, A] float32 in [-1, 1]
    rewards: np.ndarray  # [N] float32
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool, never where terminated
    name: str = "data"
    path: str | None = None
    sha256: str | None = None  # of the file
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)  # [N, ...] each, e.g. costs
    notes: tuple[str, ...] = ()  # what reading the file left out, had to assume, or doubts
    spec: Spec | None = None  # names, units, rate, and what actions of -1 and 1 stand for

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
        """A data set from one array per word, each with a row for every step.

        observations, next_observations: [N, *obs], or {channel: [N, *obs]} where more is seen than
        one vector; then pictures are uint8, [N, H, W, C].  actions: [N, A] in [-1, 1].
        rewards, terminated, truncated: [N] or [N, 1].  final_observations: [episodes, *obs], the
        observation after each episode's last row, where next_observations would repeat the rest.
        terminals, timeouts: D4RL's words for terminated and truncated.  action_scale, action_range:
        where actions are in other units, as for `read`; the spec says so, where none is given.
        spec: what the numbers are called and measured in; bundles that are learned here say it.
        keys: what errors call the arrays, if not as here.
        A last row without a flag counts as truncated. Where neither next nor final observations
        are given, a truncated row's successor is unknown and the row is no usable transition.
        Raises UserError on the first thing wrong.
        """
        terminated = _one_of("terminated", terminated, "terminals", terminals)
        truncated = _one_of("truncated", truncated, "timeouts", timeouts)
        given = {
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
        for word in ("observations", "actions", "rewards", "terminated"):
            if given[word] is None:
                raise UserError(f"{where}: {word} is None; an array is expected")
        c = as_columns(channels.flat({k: v for k, v in given.items() if v is not None}))
        c, notes = narrowed(c, keys)
        bounds = None
        if action_scale is not None or action_range is not None:
            from offline_rl.data.read import in_range

            c, bounds = in_range(where, c, action_scale, action_range)
        for sentence in faults(c, where, keys, bounds):
            raise UserError(sentence)
        if (note := overshoot(c["actions"])) is not None:
            notes.append(f"{keys.get('actions', 'actions')} {note}")
        if bounds is not None and spec is None:
            shape, count = channels.shapes(channels.of(c, "observations")), c["actions"].shape[1]
            low, high = (tuple(np.broadcast_to(b, count).astype(float).tolist()) for b in bounds)
            spec = Spec(shape, count, action_low=low, action_high=high)

        ended = c["terminated"].astype(bool)
        cut = c["truncated"].astype(bool) if "truncated" in c else np.zeros_like(ended)
        cut[-1] |= not ended[-1]
        successors, next_index = _successors(c, ended, cut, where, keys)
        extras = {key: as_array(array) for key, array in (extras or {}).items()}
        for key, array in extras.items():
            if len(array) != len(ended):
                raise UserError(
                    f"{where}: {key} has {len(array):,} rows and {keys.get('rewards', 'rewards')} "
                    f"{len(ended):,}; each array needs one row for every step."
                )
        observed = channels.of(c, "observations")
        return cls(
            channels.concatenate([observed, successors]) if channels.size(successors) else observed,
            next_index,
            np.clip(c["actions"], -1, 1) if np.abs(c["actions"]).max() > 1 else c["actions"],
            c["rewards"],
            ended,
            cut,
            name,
            path,
            sha256,
            extras,
            tuple(notes),
            spec,
        )

    @classmethod
    def load(
        cls, source: str | Path, data_dir: str | Path | None = None, **options: Any
    ) -> "Dataset":
        """Load a file or folder of any layout that is read, or the data of a card or task.

        source: a path, a name such as `gym/hopper-medium-replay`, `minari:<id>` or
        `lerobot:<repository>`.  data_dir: where the files of cards lie.  options: those of
        `offline_rl.data.read.read`, such as `action_range` or `observation_keys`; split="val" takes
        a card's validation file.  Raises UserError.
        """
        from offline_rl.data.load import load
        from offline_rl.data.read import read

        known = {"split", *signature(read).parameters} - {"path"}
        for name in options:
            if name not in known:
                raise UserError(unknown("option", name, known))
        return load(source, data_dir, **options)

    @classmethod
    def from_minari(cls, dataset: Any) -> "Dataset":
        """That of an id of Minari's, on this machine, or of a `minari.MinariDataset`.

        Of one that was filtered, the episodes that are left. Raises UserError.
        """
        from offline_rl.data.load import load

        if isinstance(dataset, str):
            return load(f"minari:{dataset}")
        data = load(Path(dataset.storage.data_path).parent)
        return data.select(dataset.episode_indices)

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        seen = channels.shapes(self.observations)
        shapes = f"observations {seen}, actions {self.actions.shape[1:]}"
        return (
            f"<Dataset {self.name}: {len(self):,} rows, {self.num_episodes:,} episodes, {shapes}>"
        )

    @property
    def num_rows(self) -> int:
        return len(self.rewards)

    @property
    def has_rewards(self) -> bool:
        """False where the file had none and `rewards` are zeros in their place."""
        return NO_REWARDS not in self.notes

    @property
    def num_episodes(self) -> int:
        return len(self.episode_ends)

    @property
    def usable(self) -> np.ndarray:
        """[N] bool: the row is a transition, its next observation known (or masked by its end)."""
        return self.next_index >= 0

    @property
    def next_observations(self) -> Observations:
        """[N, *obs]. Raises UserError where any is unknown; `usable` says which."""
        unknown = int((~self.usable).sum())
        if unknown:
            raise UserError(
                f"{self.path or self.name}: the next observation of {unknown:,} time-out rows is "
                f"not in the data. Use only the rows that are `usable`."
            )
        return channels.take(self.observations, self.next_index)

    @cached_property
    def episode_starts(self) -> np.ndarray:
        """[E] int64: the first row of each episode."""
        return np.concatenate([[0], self.episode_ends[:-1] + 1]).astype(np.int64)

    @cached_property
    def episode_ends(self) -> np.ndarray:
        """[E] int64: the last row of each episode (itself part of it)."""
        return np.flatnonzero(self.terminated | self.truncated)

    def episode_lengths(self) -> np.ndarray:
        """[E] int64."""
        return self.episode_ends - self.episode_starts + 1

    def episode_returns(self) -> np.ndarray:
        """[E] float64: undiscounted sums of rewards."""
        return np.add.reduceat(self.rewards.astype(np.float64), self.episode_starts)

    def monte_carlo_returns(self, discount: float, tail: np.ndarray | None = None) -> np.ndarray:
        """[N] float32: G_t = r_t + discount * G_{t+1} within the episode.

        tail: [E], G after the last row of each episode that did not terminate; default 0.
        """
        tail = np.zeros(self.num_episodes) if tail is None else tail
        tail = np.where(self.terminated[self.episode_ends], 0, tail)
        lengths = self.episode_lengths()
        order = np.argsort(-lengths, kind="stable")
        lengths, ends = lengths[order], self.episode_ends[order]
        returns = np.empty(self.num_rows, np.float32)
        running = tail[order]  # of all episodes at once, backward from their last rows
        for back in range(lengths[0]):
            alive = int(np.searchsorted(-lengths, -back, side="left"))  # lengths > back
            rows = ends[:alive] - back
            running[:alive] = self.rewards[rows] + discount * running[:alive]
            returns[rows] = running[:alive]
        return returns

    def top_episodes(self, fraction: float) -> "Dataset":
        """The int(fraction * E) episodes of highest return, in file order: the data of 10%-BC."""
        count = int(_share(fraction) * self.num_episodes)
        if count == 0:
            raise UserError(
                f"{self.path or self.name}: a fraction of {fraction:g} of {self.num_episodes} "
                f"episodes is less than one. Take a larger fraction."
            )
        return self.select(np.argsort(-self.episode_returns(), kind="stable")[:count])

    def top_timesteps(self, fraction: float) -> "Dataset":
        """The best episodes as long as they stay below the fraction of rows; at least the best one.

        The rule of kzl/decision-transformer:gym/experiment.py (`pct_traj`).
        """
        order = np.argsort(-self.episode_returns(), kind="stable")
        total = np.cumsum(self.episode_lengths()[order])
        count = int(np.searchsorted(total, max(int(_share(fraction) * self.num_rows), 1)))
        return self.select(order[: max(count, 1)])

    def select(self, episodes: Sequence[int] | np.ndarray) -> "Dataset":
        """The data set of these episodes (indices), in file order."""
        wanted = np.zeros(self.num_episodes, bool)
        wanted[np.asarray(episodes)] = True
        return self.take(np.flatnonzero(np.repeat(wanted, self.episode_lengths())))

    def take(self, rows: np.ndarray) -> "Dataset":
        """The data set of these rows (increasing); a row now last of its episode is truncated."""
        after = self.next_index[rows]  # in the old numbering
        renumbered = np.full(channels.size(self.observations), -1)
        renumbered[rows] = np.arange(len(rows))
        outside = np.unique(after[(after >= 0) & (renumbered[after] < 0)])
        renumbered[outside] = len(rows) + np.arange(len(outside))
        truncated = self.truncated[rows].copy()
        gap = np.append(np.diff(rows) != 1, True)  # the row that followed is gone
        truncated[gap & ~self.terminated[rows]] = True
        return replace(
            self,
            observations=channels.take(self.observations, np.concatenate([rows, outside])),
            next_index=np.where(after >= 0, renumbered[after], -1),
            actions=self.actions[rows],
            rewards=self.rewards[rows],
            terminated=self.terminated[rows],
            truncated=truncated,
            extras={key: array[rows] for key, array in self.extras.items()},
        )

    def checksum(self) -> str:
        """SHA-256 of all arrays, with their names, types and shapes."""
        own = channels.flat({name: getattr(self, name) for name in ARRAYS})
        arrays = {**own, **self.extras}
        digest = hashlib.sha256()
        for name, array in sorted(arrays.items()):
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def summary(self) -> Summary:
        lengths, returns = self.episode_lengths(), self.episode_returns()
        return Summary(
            rows=self.num_rows,
            usable=int(self.usable.sum()),
            episodes=self.num_episodes,
            terminated=int(self.terminated.sum()),
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


def _one_of(word: str, array: Any, alias: str, other: Any) -> Any:
    """What is given under either name. Raises UserError where it is under both."""
    if array is not None and other is not None:
        raise UserError(f"{word}= and {alias}= are one; give one of them.")
    return other if array is None else array


def as_columns(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Numbers as float32, [N, 1] scalars as [N].

    Images stay uint8 and flags as they are. Integers from 0 on, one a step, may choose one of
    several actions, and stay integers too. What would lose its resolution stays as it is, for
    `narrowed` to convert and note, or `faults` to refuse.
    """
    columns = {}
    for word, given in arrays.items():
        array = as_array(given)
        if (
            not word.partition("/")[0].endswith(("observations", "actions"))
            and array.ndim == 2
            and array.shape[1] == 1
        ):
            array = array[:, 0]
        picture = array.dtype == np.uint8 and array.ndim > 2
        choice = word == "actions" and array.dtype.kind in "iu" and array.size == len(array)
        choice = choice and not (array < 0).any()
        if array.dtype.kind in "fiub" and word not in FLAGS and not picture and not choice:
            if losses(array):
                columns[word] = array
                continue
            with np.errstate(over="ignore"):  # what does not fit is infinite, and refused as such
                array = array.astype(np.float32, copy=False)
        columns[word] = array
    return columns


def narrowed(
    columns: Mapping[str, np.ndarray], names: Mapping[str, str], numbers: Sequence[str] = ()
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return columns with all numbers as float32 that keep enough of their resolution, and notes.

    names: what the file calls the columns.  numbers: and the numbers of an observation.
    """
    made, notes = dict(columns), []
    for word, array in columns.items():
        lost = losses(array) if word not in FLAGS else []
        if lost and not any(loss.refused for loss in lost):
            made[word] = array.astype(np.float32)
            notes.append(
                f"{names.get(word, word)}: {lost[0].describe(array, named_in(word, numbers))}"
            )
    return made, notes


def _successors(
    c: Mapping[str, np.ndarray],
    ended: np.ndarray,
    cut: np.ndarray,
    where: str,
    keys: Mapping[str, str],
) -> tuple[Observations, np.ndarray]:
    """Extra rows of observations, and `next_index` into observations followed by them."""
    num_rows, last = len(ended), ended | cut
    index = np.arange(1, num_rows + 1)
    extra = np.zeros(num_rows, bool)
    observed = channels.of(c, "observations")
    rows = channels.take(observed, slice(0))
    if (stored := channels.of(c, "next_observations")) is not None:
        extra = last | differs(stored, observed)
        rows = channels.take(stored, extra)
    elif (final := channels.of(c, "final_observations")) is not None:
        extra, rows = last, final
        if (found := channels.size(rows)) != last.sum():
            name = keys.get("final_observations", "final_observations")
            raise UserError(
                f"{where}: {name} has {found:,} rows; one is expected for each of the "
                f"{last.sum():,} episodes."
            )
    else:
        index[ended] = np.flatnonzero(ended)  # never looked at: the discount there is 0
        index[cut] = -1
    index[extra] = num_rows + np.arange(int(extra.sum()))
    return rows, index


def differs(stored: Observations, observations: Observations) -> np.ndarray:
    """[N] bool: the stored next observation is not, to the bit, the next row's observation."""
    different = np.ones(channels.size(observations), bool)
    different[:-1] = channels.anywhere(channels.each(_unlike, stored, observations))
    return different


def _unlike(stored: np.ndarray, array: np.ndarray) -> np.ndarray:
    flat = (len(array), -1)
    return (stored.reshape(flat)[:-1] != array.reshape(flat)[1:]).any(axis=1)


def _share(fraction: float) -> float:
    if not 0 < fraction <= 1:
        raise UserError(f"fraction={fraction:g}: a share of the data in (0, 1] is expected.")
    return fraction
