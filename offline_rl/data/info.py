"""Descriptions of data sets: the list of cards, and the contents of a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_rl.data.dataset import Dataset
from offline_rl.data.load import data_folder, known_cards, load
from offline_rl.data.read import round_for_display
from offline_rl.utils.files import checksum
from policies import channels

if TYPE_CHECKING:
    from envs.cards import Card, File


def list_cards(data_dir: str | Path | None = None) -> str:
    """Return a table of all cards: name, environment, reference returns, location of the data."""
    table: list[tuple[str, ...]] = [("name", "evaluated in", "score 0", "score 100", "data")]
    for card in listed_cards():
        reference = card.reference
        numbers = (f"{reference.min:.7g}", f"{reference.max:.7g}") if reference else ("-", "-")
        numbers = ("0 %", "100 %") if reference and reference.success else numbers
        table.append((card.name, card.env or "data only", *numbers, state_of(card, data_dir)))
    return _align(table)


def listed_cards() -> list["Card"]:
    """Return all cards without the variants of others."""
    return [card for card in known_cards().values() if card.variant_of is None]


def state_of(card: "Card", data_dir: str | Path | None = None) -> str:
    """Return where the data of a card is: here, embedded, to download or to generate."""
    from envs.paths import share

    folder, file = data_folder(data_dir), card.files.get("train") or next(iter(card.files.values()))
    if all((folder / shard.path).is_file() for shard in file.shards):
        return "here"
    if (share("datasets") / "embedded" / file.name).is_file():
        return "embedded"
    return "to download" if file.urls else "to generate"


def info(source: str | Path, data_dir: str | Path | None = None, **options: Any) -> str:
    """Describe the data of a file, task or card: rows, episodes, returns, flags, checksum.

    options: options of `read`.
    """
    data = load(source, data_dir, **options)
    s, rate = data.summary(), data.spec.rate_hz if data.spec is not None else None
    unusable = f", {s.rows - s.usable:,} without a next observation" if s.usable < s.rows else ""
    lines: list[tuple[str, ...]] = [
        ("file", data.path or "-"),
        (
            "actions",
            f"{list(data.actions.shape[1:])} from {s.action_min:.4g} to {s.action_max:.4g}",
        ),
        *([("limits", limits)] if (limits := describe_action_range(data)) else []),
        ("rows", f"{s.rows:,}{unusable}"),
        *(
            (column, f"{list(array.shape[1:])} {array.dtype}")
            for column, array in channels.flatten({"observations": data.observations}).items()
        ),
        *([("rate", f"{rate:g} actions a second")] if rate is not None else []),
        ("rewards", f"from {s.reward_min:.4g} to {s.reward_max:.4g}"),
        ("episodes", f"{s.episodes:,}: {s.terminated:,} terminated, {s.truncated:,} truncated"),
        ("lengths", f"{s.length_min:,} to {s.length_max:,}, mean {s.length_mean:,.1f}"),
        (
            "returns",
            f"{s.return_mean:.3f} ± {s.return_std:.3f}, from {s.return_min:.3f} to "
            f"{s.return_max:.3f}",
        ),
    ]
    if (card := card_of(data)) and card.reference and not card.reference.success:
        low, high = card.reference.min, card.reference.max
        score = 100 * (s.return_mean - low) / (high - low)
        lines.append(("score", f"{score:.2f} (100 (R - {low:g}) / ({high:g} - {low:g}))"))
    if card:
        lines.append(("card", f"{card.name}, {card.license}"))
        lines += [("note", card.note)] if card.note else []
    if data.extras:
        lines.append(("extras", ", ".join(data.extras)))
    lines += [("note", note) for note in data.notes]
    return _align([*lines, ("SHA-256", data.sha256 or "-")])


def describe_action_range(data: Dataset) -> str | None:
    """Describe the actions that became -1 and 1, in the file's units; None if not scaled."""
    spec = data.spec
    if spec is None or not spec.action_low or {*spec.action_low, *spec.action_high} == {-1, 1}:
        return None
    low, high = (round_for_display(np.array(end)) for end in (spec.action_low, spec.action_high))
    if len({*low}) == len({*high}) == 1:
        return f"-1 and 1 stand for {low[0]:g} and {high[0]:g}"
    return f"-1 and 1 stand for {low} and {high}"


def card_of(data: Dataset) -> "Card | None":
    """Return the card of a data set, by its name, or by file name and checksum; None if unknown."""
    cards = known_cards()
    if data.name in cards:
        return cards[data.name]
    path = Path(data.path) if data.path else None
    for card in cards.values():
        for file in card.files.values():
            if path and file.name == path.name and _has_checksum(file, path, data.sha256):
                return card
    return None


def _has_checksum(file: "File", path: Path, sha256: str | None) -> bool:
    if file.sha256:
        return file.sha256 == sha256
    return file.md5 is None or file.md5 == checksum(path, "md5")


def _align(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)
