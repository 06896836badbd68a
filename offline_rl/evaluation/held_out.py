"""Errors of policies on recorded actions that were held out of the training data.

For tasks without an environment, this error replaces the return. A small error shows that a policy
imitates the data, not that its returns are high.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from offline_rl.data import Dataset
from offline_rl.data.load import load, load_dataset
from offline_rl.utils.errors import UserError
from offline_rl.utils.text import format_mean_std, table, wrap_text
from offline_rl.utils.trees import to_json_values
from policies import Player, channels
from policies.policy import BundlePolicy

HEADER = ["bundle", "action error", "relative error"]


@dataclass(frozen=True)
class HeldOutErrors:
    """Errors of bundles on held-out actions. `print` shows the same text as the command."""

    data: str
    rows: int
    episodes: int
    variance: float  # squared error of the mean held-out action, averaged over dimensions
    errors: dict[Path, float]  # bundle -> mean squared error over rows and action dimensions
    json: bool

    def relative(self, path: Path) -> float:
        """Return the error of a bundle, divided by that of the mean action."""
        return self.errors[path] / self.variance

    def __str__(self) -> str:
        if self.json:
            bundles = [
                {"bundle": str(p), "action_error": e, "relative_error": self.relative(p)}
                for p, e in self.errors.items()
            ]
            content = {"data": self.data, "rows": self.rows, "episodes": self.episodes}
            return json.dumps(to_json_values({**content, "bundles": bundles}), indent=2)
        body = [[str(p), f"{e:.4g}", f"{self.relative(p):.3f}"] for p, e in self.errors.items()]
        if len(body) > 1:
            error, relative = (
                format_mean_std(values, 4)
                for values in (self.errors.values(), map(self.relative, self.errors))
            )
            body.append([f"mean of {len(body)} bundles ± std over bundles", error, relative])
        title = f"{self.data}: {self.rows:,} held-out rows in {self.episodes} episodes"
        note = (
            "Action error: squared difference from the data's action, mean over rows and action "
            "dimensions; actions are in [-1, 1]. Relative error: action error divided by that of "
            "the mean action."
        )
        return "\n".join([title, "", table(HEADER, body), "", wrap_text(note)])

    __repr__ = __str__


def held_out_errors(
    loaded: Mapping[Path, BundlePolicy], source: str, *, as_json: bool
) -> HeldOutErrors:
    """Return the errors of policies on a data set.

    loaded: bundle -> its policy. source: name of a card, whose validation file is used, or a file.
    Raises UserError.
    """
    is_card = not Path(source).exists() and ":" not in source
    data = load(source, split="val") if is_card else load_dataset(source)
    errors = {path: action_error(policy, data, path) for path, policy in loaded.items()}
    name = f"{source} (val)" if is_card else source
    variance = float(np.var(data.actions, axis=0, dtype=np.float64).mean())
    return HeldOutErrors(name, data.num_rows, data.num_episodes, variance, errors, as_json)


def action_error(policy: BundlePolicy, data: Dataset, path: Path) -> float:
    """Return the mean squared error of a policy that observes the recorded episodes.

    The episodes are replayed in parallel, so observation histories and action chunks work as in an
    environment. path: bundle, for error messages. Raises UserError if the data do not fit it.
    """
    lengths = data.episode_lengths()
    ends = np.asarray(data.episode_ends)
    starts, player, total = ends + 1 - lengths, Player(policy), 0.0
    player.reset(np.arange(len(starts)))
    feedback: list[np.ndarray | None] = [None, None]  # rewards and costs of the last step
    columns = data.rewards, data.extras.get("costs")
    for step in range(int(lengths.max())):
        rows = np.minimum(starts + step, ends)  # an episode that is over repeats its last row
        try:
            actions = player.step(channels.take(data.observations, rows), *feedback)
        except ValueError as error:
            raise UserError(f"{path} does not fit {data.name}: {error}.") from None
        running = step < lengths
        if actions.shape[1:] != data.actions.shape[1:]:
            raise UserError(
                f"{path} does not fit {data.name}: the policy has {actions.shape[1]} action "
                f"dimensions, and the data {data.actions.shape[1]}. Use the data of its task."
            )
        difference = actions[running].astype(np.float64) - data.actions[rows[running]]
        total += float(np.square(difference).sum())
        feedback = [None if x is None else np.asarray(x[rows], np.float64) for x in columns]
    return total / data.actions.size
