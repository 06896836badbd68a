"""Seeds of environment episodes, from disjoint ranges for training, evaluation and data generation.

No two episodes of training, evaluation and generated data share a seed. Each training seed and each
generated data set has room for `EPISODES` episodes.
"""

from __future__ import annotations

from offline_rl.utils.errors import UserError

EPISODES = 1_000_000
RANGES = {
    "training": range(1_000_000, 500_000_000),  # training seeds 0 to 498
    "rolled-out sets": range(500_000_000, 600_000_000),  # data generated with trained policies
    "scripted sets": range(600_000_000, 1_000_000_000),  # data generated with scripts
    "evaluation": range(1_000_000_000, 1_200_000_000),
    "further training": range(1_200_000_000, 1_602_000_000),  # training seeds 499 to 900
}
EVALUATION_SEED = RANGES["evaluation"].start  # episode k of every evaluation has this seed + k
TRAINING_SEEDS = (len(RANGES["training"]) + len(RANGES["further training"])) // EPISODES


def training_episode_seed(seed: int, episode: int) -> int:
    """Return the seed of an episode, counted from 0, of a training seed.

    Raises UserError after `EPISODES` episodes.
    """
    first = len(RANGES["training"]) // EPISODES  # the first training seed in the second range
    if seed < first:
        return episode_seed("training", seed, episode)
    return episode_seed("further training", seed - first, episode)


def episode_seed(name: str, block: int, episode: int = 0) -> int:
    """Return the seed of an episode in the block-th part of a range.

    Raises UserError if the range has no such part or the part no such episode.
    """
    if not 0 <= episode < EPISODES or not 0 <= block < len(RANGES[name]) // EPISODES:
        raise UserError(
            f"{name}: no seed is left for episode {episode:,} of part {block}; there are "
            f"{len(RANGES[name]) // EPISODES:,} parts of {EPISODES:,} episodes"
        )
    return RANGES[name][block * EPISODES + episode]
