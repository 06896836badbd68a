"""Seeds of environment episodes, in disjoint ranges for training, evaluation and generated data.

No two episodes of training, evaluation, selection and generated data share a seed. Each training
seed and each generated data set has its own block of `EPISODES` episode seeds.
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
    "selection": range(1_602_000_000, 1_802_000_000),  # comparison of hyper-parameters
}
EVALUATION_SEED = RANGES["evaluation"].start  # episode k of every evaluation has this number + k
SELECTION_SEED = RANGES["selection"].start  # likewise in the runs of a search
TRAINING_SEEDS = (len(RANGES["training"]) + len(RANGES["further training"])) // EPISODES


def training_episode_seed(seed: int, episode: int) -> int:
    """Return the environment seed of an episode (counted from 0) of a training run.

    seed: the training seed. Raises UserError after `EPISODES` episodes.
    """
    first = len(RANGES["training"]) // EPISODES  # the first training seed in the second range
    if seed < first:
        return episode_seed("training", seed, episode)
    return episode_seed("further training", seed - first, episode)


def episode_seed(name: str, block: int, episode: int = 0) -> int:
    """Return the environment seed of an episode, from the block-th block of a range.

    Raises UserError if the range has no such block, or the block no such episode.
    """
    if not 0 <= episode < EPISODES or not 0 <= block < len(RANGES[name]) // EPISODES:
        raise UserError(
            f"{name}: no seed exists for episode {episode:,} of block {block}. There are "
            f"{len(RANGES[name]) // EPISODES:,} blocks of {EPISODES:,} episodes."
        )
    return RANGES[name][block * EPISODES + episode]
