"""Errors of damaged card files: one sentence with the file, the card and the fault."""

import importlib
from pathlib import Path

import pytest

from envs import CardError
from offline_rl.cli.main import main
from offline_rl.data.download import download
from offline_rl.utils.errors import UserError

cards = importlib.import_module("envs.cards")  # `envs.cards` is the function
SUITE = "{layout: d4rl, source: x, license: y, cards: {own: {files: {train: a.hdf5}, MORE: 1}}}"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("cards: {", ""),
        ("[]", "cards: "),
        ("cards: 3", "cards: "),
        (SUITE.replace("license: y, ", ""), "own: license is missing"),
        (SUITE.replace("license: y", "license: 3").replace(", MORE: 1", ""), "own: license is 3"),
        (SUITE.replace("files", "fils"), "own: files is missing"),
        (SUITE.replace("a.hdf5", "[1]"), "own: "),
        (SUITE, "own: .*MORE"),
        (SUITE.replace("MORE: 1", "max_episode_steps: no"), "own: .*max_episode_steps is False"),
        (SUITE.replace("MORE: 1", "preprocessing: {a: b}"), "own: .*preprocessing is"),
    ],
)
def test_a_damaged_card_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, text: str, fault: str
) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    monkeypatch.setattr(cards, "share", lambda _: tmp_path)
    cards.cards.cache_clear()
    try:
        with pytest.raises(CardError, match=rf"mine\.yaml: {fault}") as error:
            cards.cards()
        assert "\n" not in str(error.value)
        learn = ["train", "algorithm=bc", "task=none", "dataset=own"]
        for arguments in (
            ["data", "list"],
            ["data", "info", "own"],
            ["data", "download", "own"],
            learn,
            [*learn, "--help"],
        ):
            assert main(arguments) == 2
            assert "mine.yaml" in capsys.readouterr().err
    finally:
        cards.cards.cache_clear()


def test_all_cards_of_the_repository_load() -> None:
    assert len(cards.cards()) > 200


def test_data_that_is_published_as_a_pickle_is_refused_with_the_conversion(
    tmp_path: Path,
) -> None:
    """The archives of D5RL's A1 data contain pickles, which this project never loads."""
    for name in ("a1-interpolate-v0", "a1-extrapolate-above-v0", "a1-hiking-v0"):
        assert cards.card(name).env is None
        with pytest.raises(UserError, match=f"{name}: .* is not published.*Convert it once"):
            download([name], tmp_path)
