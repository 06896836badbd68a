"""The data of the suite `dual`: a few demonstrations, one of them, much other data, and all of it.

    python -m benchmarks.dual

Made in runs/dual/data of our hopper sets (`offline-rl generate recipe=hopper` makes those): expert
has 10 episodes of hopper-expert, one the first of them; other has 30 more, unmarked, among 200,000
steps of hopper-random; both is expert and other as one set.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from offline_rl.data import load
from offline_rl.data.writers.d4rl import write
from offline_rl.generation.recipes import join

FOLDER = Path("runs/dual/data")
DEMONSTRATIONS, HIDDEN, RANDOM_ROWS = 10, 30, 200_000  # episodes shown; episodes in the other data


def main() -> None:
    good, random = load("gym/hopper-expert"), load("gym/hopper-random")
    few = int((random.episode_lengths().cumsum() <= RANDOM_ROWS).sum())
    expert = good.select(range(DEMONSTRATIONS))
    hidden = good.select(range(DEMONSTRATIONS, DEMONSTRATIONS + HIDDEN))
    other = join([random.select(range(few + 1)), hidden])
    sets = {"one": expert.select([0]), "expert": expert, "other": other}
    sets["both"] = join([other, expert])
    for name, data in sets.items():
        path = FOLDER / f"{name}.hdf5"
        write(replace(data, name=name), path, next_observations="final")
        print(path)


if __name__ == "__main__":
    main()
