"""Seeds of environments' episodes: one table of ranges that never meet.

An episode of a training, an evaluation or a made data set is no other's. Each training seed and
each made set has room for `EPISODES` of them.
"""

from __future__ import annotations

from offline_rl.utils.errors import UserError

EPISODES = 1_000_000
RANGES = {
    "training": range(1_000_000, 500_000_000),  # of the seeds 0 to 498
    "rolled-out sets": range(500_000_000, 600_000_000),  # of generation's policies
    "scripted sets": range(600_000_000, 1_000_000_000),
    "evaluation": range(1_000_000_000, 1_200_000_000),
    "further training": range(1_200_000_000, 1_602_000_000),  # of the seeds 499 to 900
}
EVALUATION_SEED = RANGES["evaluation"].start  # episode k of every evaluation has this + k
TRAINING_SEEDS = (len(RANGES["training"]) + len(RANGES["further training"])) // EPISODES


def training(seed: int, episode: int) -> int:
    """Of a training seed's episode, counted from 0. Raises UserError where it has had too many."""
    first = len(RANGES["training"]) // EPISODES  # of the further seeds
    if seed < first:
        return place("training", seed, episode)
    return place("further training", seed - first, episode)


def place(name: str, block: int, episode: int = 0) -> int:
    """Of an episode in the block-th part of a range. Raises UserError where it has no room."""
    if not 0 <= episode < EPISODES or not 0 <= block < len(RANGES[name]) // EPISODES:
        raise UserError(
            f"{name}: no seed is left for episode {episode:,} of part {block}; there are "
            f"{len(RANGES[name]) // EPISODES:,} parts of {EPISODES:,} episodes"
        )
    return RANGES[name][block * EPISODES + episode]
