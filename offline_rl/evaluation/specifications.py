"""Formulas of signal temporal logic in evaluations: their robustness, and the backup policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import policies
from envs import VectorEnv
from offline_rl.data.specs import spec_of
from offline_rl.evaluation.options import EvaluateOptions
from offline_rl.evaluation.rollout import Episodes
from offline_rl.utils.errors import UserError
from offline_rl.utils.text import table
from policies.episodes import RunningEpisodes
from policies.policy import BundlePolicy
from policies.stl.backup import BackupEpisodes, BackupPolicy, Switch
from policies.stl.formula import Formula, FormulaError, parse
from policies.stl.signals import SignalReader

HEADER = ["bundle", "satisfied %", "robustness", "lowest", "backup %"]
LEGEND = (
    "satisfied %: share of episodes that satisfy the formula. robustness: margin of the formula, "
    "median over episodes."
)
BACKUP_OPTIONS = ("margin", "release", "window")


def signal_reader(formula: str | None, env: VectorEnv) -> SignalReader | None:
    """Return the reader of a formula's signals in `env`; None without a formula.

    Raises UserError, with the position in the formula.
    """
    if formula is None:
        return None
    try:
        return SignalReader(parsed(formula), spec_of(env))
    except FormulaError as error:
        raise UserError(f"{error}.") from None


def parsed(formula: str) -> Formula:
    """Return the formula. Raises UserError, with the position of the problem."""
    try:
        return parse(formula)
    except FormulaError as error:
        raise UserError(f"{error}.") from None


def check_backup_options(options: EvaluateOptions) -> None:
    """Raise UserError for options of a backup policy without one, or without a formula.

    A formula that is not grammatical is refused too.
    """
    given = [name for name in BACKUP_OPTIONS if getattr(options, name) is not None]
    if options.backup is None and given:
        raise UserError(f"{given[0]}= is for a backup policy. Add backup=<bundle>, or remove it.")
    if options.backup is not None and options.stl is None:
        raise UserError("backup= needs the formula that it watches. Add stl=…")
    if options.stl is not None:
        parsed(options.stl)


def with_backup(
    policy: BundlePolicy, options: EvaluateOptions | None, env: VectorEnv
) -> BundlePolicy:
    """Return `policy` with the backup policy of the options, if they name one.

    Raises UserError if the two policies or the formula do not fit.
    """
    if options is None or options.backup is None:
        return policy
    assert options.stl is not None
    given = {name: getattr(options, name) for name in BACKUP_OPTIONS}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        switch = Switch(options.stl, **given)
        return BackupPolicy(policy, policies.load(Path(options.backup)), switch, spec_of(env))
    except FormulaError as error:
        raise UserError(f"{error}. With backup=, the formula is about observations only.") from None
    except ValueError as error:  # BundleError
        raise UserError(f"backup={options.backup}: {error}.") from None


class BackupLog:
    """Record of the steps in which a backup policy acts; without a backup policy, it is empty."""

    def __init__(self, episodes: RunningEpisodes) -> None:
        self._episodes = episodes if isinstance(episodes, BackupEpisodes) else None
        self._acted = list[np.ndarray]()  # [B] per step

    def add(self) -> None:
        """Add the current step."""
        if self._episodes is not None:
            self._acted.append(self._episodes.active.copy())

    def completed(self, played: Episodes) -> Episodes:
        """Return the episodes with the number of steps of the backup policy."""
        if self._episodes is None:
            return played
        acted = np.stack(self._acted)  # [T, B], also for episodes that have ended
        running = np.arange(len(acted))[:, None] < played.lengths
        return played._replace(backup_steps=(acted & running).sum(0))


def saved_keys(options: EvaluateOptions) -> dict[str, Any]:
    """Return the options of a formula and a backup policy that an evaluation saves."""
    return {name: getattr(options, name) for name in ("stl", "backup", *BACKUP_OPTIONS)}


def metrics(episodes: Episodes) -> dict[str, float]:
    """Return the metrics of a formula in an evaluation; {} without a formula."""
    if episodes.robustness is None or episodes.satisfied is None:
        return {}
    values = {
        "eval/robustness": float(np.median(episodes.robustness)),
        "eval/satisfied": float(episodes.satisfied.mean()),
    }
    return {name: value for name, value in values.items() if np.isfinite(value)}


def numbers(episodes: Episodes) -> dict[str, Any]:
    """Return the results of a formula for JSON output; {} without a formula."""
    if episodes.satisfied is None:
        return {}
    return {
        "satisfied": episodes.satisfied.mean(),
        "robustness": episodes.robustness,
        "backup": backup_share(episodes),
    }


def satisfied_cell(played: Sequence[Episodes]) -> str:
    """Return the share of all episodes that satisfy the formula, in %; "" without a formula."""
    held = [e.satisfied for e in played if e.satisfied is not None]
    return f"{100 * np.concatenate(held).mean():.1f}" if held else ""


def backup_share(episodes: Episodes) -> float | None:
    """Return the share of all steps in which the backup policy acted; None without a backup."""
    if episodes.backup_steps is None:
        return None
    return float(episodes.backup_steps.sum() / episodes.lengths.sum())


def lines_of(
    by_target: Mapping[float | None, Mapping[Path, Episodes]], formula: str | None
) -> list[str]:
    """Return the lines of a formula's table, one row per bundle; [] without a formula.

    by_target: target cost -> bundle -> episodes.
    """
    if formula is None:
        return []
    body = []
    for target, played in by_target.items():
        suffix = "" if target is None else f", target_cost={target:g}"
        body += [[f"{path}{suffix}", *cells(episodes)] for path, episodes in played.items()]
    return ["", f"stl: {formula}", "", table(HEADER, body), "", LEGEND]


def cells(episodes: Episodes) -> list[str]:
    """Return the cells of an evaluation below HEADER, without the bundle."""
    assert episodes.robustness is not None
    assert episodes.satisfied is not None
    share, rho = backup_share(episodes), episodes.robustness
    return [
        f"{100 * episodes.satisfied.mean():.1f}",
        f"{np.median(rho):.3g}",
        f"{rho.min():.3g}",
        "" if share is None else f"{100 * share:.1f}",
    ]
