"""Generate the data sets of the suite `dual`.

    python -m benchmarks.dual

The source is our hopper data (made by `offline-rl generate recipe=hopper`). These files are written
to runs/dual/data:
  expert: 10 episodes of hopper-expert.
  one: the first of these episodes.
  other: 30 more episodes of hopper-expert, not labeled as such, and 200,000 steps of hopper-random.
  both: `expert` and `other`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from offline_rl.data import load
from offline_rl.data.writers.d4rl import write
from offline_rl.generation.recipes import join_datasets

FOLDER = Path("runs/dual/data")
# demonstrations; expert episodes in `other`; rows of hopper-random in `other`
DEMONSTRATIONS, HIDDEN, RANDOM_ROWS = 10, 30, 200_000


def main() -> None:
    good, random = load("gym/hopper-expert"), load("gym/hopper-random")
    few = int((random.episode_lengths().cumsum() <= RANDOM_ROWS).sum())
    expert = good.select(range(DEMONSTRATIONS))
    hidden = good.select(range(DEMONSTRATIONS, DEMONSTRATIONS + HIDDEN))
    other = join_datasets([random.select(range(few + 1)), hidden])
    sets = {"one": expert.select([0]), "expert": expert, "other": other}
    sets["both"] = join_datasets([other, expert])
    for name, data in sets.items():
        path = FOLDER / f"{name}.hdf5"
        write(replace(data, name=name), path, next_observations="final")
        print(path)


if __name__ == "__main__":
    main()
