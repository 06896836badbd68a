"""docs/datasets.md, made from the cards in datasets/.

python -m docs.generate.datasets
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

from envs import Card, cards, task
from envs.tasks import NATIVE
from offline_rl.utils.files import read_yaml

CARDS, PAGE = Path("datasets"), Path("docs/datasets.md")
HEAD = """# Datasets and environments

*Made by `python -m docs.generate.datasets` from the cards in `datasets/`, not by hand.*

A dataset's name is a task: `offline-rl train task=<name>`. Score 0 and 100 are the returns that the
field's normalized score maps there. Where no environment is named there is data only: train with
`task=none dataset=<name>`. `offline-rl data download <name>` fetches what is published,
`offline-rl generate recipe=<recipe>` makes the rest (recipes are in `configs/recipe`;
`qualities=[…]` makes only some of a recipe's sets), `offline-rl data info <name>` shows what a
file holds, and where its references come from.
"""
OWN = """Each is a task by itself, learned online or from `dataset=`: `offline-rl train task=<name>`.
Some need an extra (`box2d`, `robotics`, `pusht`, `ogbench`), which the command then names.
"""
MADE = """An agent's recipe gives the same bytes again on the same processor with the same versions,
which the card's `made_with` names. Another processor rounds differently, and its agent lives
another life: with AMX units the walker's expert came to 3,612, without them to 4,570.

Replay sets are all that an agent saw until its policy was medium, and smaller than D4RL's: 200,000
rows of hopper, 150,000 of walker2d and 100,000 of halfcheetah, there 402,000, 302,000 and 202,000.
So short an agent (`medium_after` in `configs/recipe`) is made in hours on a CPU.
"""


def number(x: float) -> str:
    """Short, without trailing zeros."""
    return f"{x:.6g}"


def row(card: Card) -> str:
    """One line of a suite's table."""
    low, high = ("", "")
    if card.reference is not None:
        low, high = number(card.reference.min), number(card.reference.max)
    files = ", ".join(f"`{file.name}`" for file in card.files.values())
    limit = f"{card.max_episode_steps:,}" if card.max_episode_steps else ""
    cells = [f"`{card.name}`", card.env or "", limit, low, high, files]
    return "| " + " | ".join(cells) + " |"


def made() -> list[str]:
    """What our recipes made on one machine: the committed cards of the files."""
    lines = ["| set | rows | episodes | mean return | score | bytes | SHA-256 |", "|---" * 7 + "|"]
    for path in sorted(CARDS.glob("*/*.json")):
        card = json.loads(path.read_text())
        name, score = f"{card['recipe'].get('suite', 'gym')}/{card['set']}", ""
        if (known := task(name)).reference is not None:
            score = f"{known.score(card['return_mean']):.1f}"
        cells = [f"`{name}`", f"{card['rows']:,}", f"{card['episodes']:,}"]
        cells += [f"{card['return_mean']:.4g}", score, f"{card['size_bytes']:,}"]
        lines.append("| " + " | ".join([*cells, f"`{card['sha256'][:12]}…`"]) + " |")
    return lines


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for suite, group in groupby(cards().values(), key=lambda card: card.suite):
        own = list(group)
        title = read_yaml(CARDS / f"{suite}.yaml")["title"]
        parts += [f"## {title}", "", f"{len(own)} sets. License: {own[0].license}.", ""]
        parts += [f"Layout: {own[0].layout}. Source: {own[0].source}.", ""]
        if any(c.env for c in own):
            kinds = sorted({c.env.split("-")[0] for c in own if c.env})
            parts += ["Simulated: " + ", ".join(kinds) + ".", ""]
        parts += ["| name | environment | steps | score 0 | score 100 | files |", "|---" * 6 + "|"]
        parts += [*map(row, own), ""]
    parts += ["## Environments by their own names", "", OWN]
    parts += [", ".join(f"`{name}`" for name in sorted(NATIVE)) + ".", ""]
    return "\n".join([*parts, "## What the recipes made", "", MADE, *made()]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
