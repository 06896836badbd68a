"""Data sets without the frames after which progress falls, and with mirror images.

The progress filter of GR-RL (arXiv:2512.01801) uses the critics of a run of `gr_rl`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from envs.cards import cards
from offline_rl.algorithms.gr_rl import GRRL, progress
from offline_rl.data.augment.mirror import parse_mirror, read_mirror, with_mirror
from offline_rl.data.augment.progress import find_successes, largest_falls
from offline_rl.data.convert import new_target, save
from offline_rl.data.dataset import Dataset
from offline_rl.data.load import load
from offline_rl.generation.options import FilterOptions
from offline_rl.runs.folder import SeedFolder
from offline_rl.runs.run import runs_of
from offline_rl.runs.start import continued_keys, start_of
from offline_rl.trained import Trained
from offline_rl.training.prepare import prepare
from offline_rl.utils.errors import UserError


def filter_dataset(run: str | Path, target: str | Path, **options: Any) -> str:
    """Write a run's data set without the frames after which progress falls; return a summary.

    run: folder of a run of gr_rl. Progress is the mean over its seeds and critics.
    target: as in `convert`. options: those of `FilterOptions`. Raises UserError.
    """
    passed = FilterOptions(**options)
    path, layout = new_target(target, passed.format)
    start, config = start_of(run)
    if start.algorithm != "gr_rl":
        raise UserError(f"{run} is a run of {start.algorithm}. Filter with a run of gr_rl.")
    keys = continued_keys(config, {"num_updates": config["num_updates"]}, start)
    data = prepare(runs_of(keys)).dataset
    assert data is not None
    if data.sha256 != config["data"]:
        raise UserError(f"{data.path} has changed since {run} was trained on it. Train a new run.")
    seeds = [Trained(SeedFolder(start.run, seed)) for seed in start.checkpoints]
    mean = np.mean([progress_of(seed, data) for seed in seeds], 0)
    horizon, reward = config["hyper"]["horizon"], config["hyper"]["success_reward"]
    keep, sentence = select(mean, data, passed, horizon, reward)
    filtered = data.take(np.flatnonzero(keep))
    if not filtered.usable.all():  # D4RL's layout has next observations for all rows, or for none
        index = np.where(filtered.truncated, -1, filtered.next_index)
        filtered = replace(filtered, next_index=index)
    return f"{sentence}\n{save(filtered, path, layout)}"


def progress_of(trained: Trained, data: Dataset) -> np.ndarray:
    """Return the progress of each row of raw data, [N], by the critics of one seed."""
    algorithm, rows = trained.algorithm, slice(data.num_rows)
    assert isinstance(algorithm, GRRL)
    observations = trained.transform.normalizer(data.observations[rows])
    return progress(algorithm, trained.parameters, observations)


def select(
    progress: np.ndarray,
    data: Dataset,
    options: FilterOptions,
    horizon: int,
    success_reward: float | None,
) -> tuple[np.ndarray, str]:
    """Return the rows to keep, [N] bool, and a sentence about the rows that are left out.

    progress: [N].  horizon: default of the option `window`.
    """
    window = options.window or horizon
    ends = np.repeat(find_successes(data, success_reward)[1], data.episode_lengths())
    before_end = np.arange(data.num_rows) <= ends
    progress = np.where(before_end, progress, progress.max())  # progress is complete after success
    falls = np.where(before_end, largest_falls(progress, data, window), 0)
    delta = options.delta
    if delta is None:
        delta = float(np.quantile(falls[before_end], options.quantile))
    keep = falls <= delta
    dropped, episodes = np.flatnonzero(~keep), data.num_episodes
    affected = len(np.unique(np.searchsorted(data.episode_ends, dropped)))
    return keep, (
        f"{len(dropped):,} of {data.num_rows:,} frames left out ({len(dropped) / len(keep):.1%}), "
        f"in {affected:,} of {episodes:,} episodes: within the next {window} steps, progress falls "
        f"by more than delta={delta:.3g}"
    )


def mirror_dataset(
    source: str | Path,
    target: str | Path,
    *,
    mirror: str | Path | None = None,
    data_dir: str | Path | None = None,
    format: str | None = None,
    source_format: str | None = None,
    **options: Any,
) -> str:
    """Write a data set and the mirror images of its episodes; return a summary.

    source, target, format, source_format, options: as in `convert`. mirror: YAML file of the
    mirror; by default the mirror of the card `source`. Raises UserError.
    """
    path, layout = new_target(target, format)
    if mirror is not None:
        parts = read_mirror(mirror)
    elif (card := cards().get(str(source))) is not None and card.mirror:
        parts = parse_mirror(card.mirror, f"card {card.name}")
    else:
        raise UserError(f"{source} has no mirror in a dataset card. Pass one with mirror=<file>.")
    if source_format is not None:
        options["format"] = source_format
    return save(with_mirror(load(source, data_dir, **options), parts), path, layout)
