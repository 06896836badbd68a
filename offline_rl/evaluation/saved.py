"""Saved evaluations: JSON files next to a policy bundle.

    policy.evaluation.<task>-<episodes>[-<key>_<value>].json

A file holds the command's options, every episode's return, length and seed, the version and commit
of the code, and a checksum of the policy. With decision_every=, `paces` holds the episodes at each
interval. Repeating a command replaces its file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from envs import Reference, Task
from offline_rl.evaluation.constrained import UNLIMITED, Limits
from offline_rl.evaluation.decisions.frequency import Frequency, Played
from offline_rl.evaluation.decisions.player import Pace
from offline_rl.evaluation.rollout import Episodes
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json_object, write_json
from offline_rl.utils.options import build
from offline_rl.utils.trees import to_json_values
from offline_rl.version import __version__
from policies import Bundle, BundleError, bundle

MAX_VALUE = 60  # characters of an option's value in the name of a file
PLAIN = re.compile(r"[A-Za-z0-9._/:-]*")  # values that names of files tell apart


@dataclass(frozen=True)
class SavedEvaluation:
    """Saved result of `offline-rl evaluate` for one bundle."""

    file: Path
    keys: dict[str, Any]  # options of the command: task, episodes, and all others that were set
    reference: Reference | None
    episodes: Episodes
    policy: str  # checksum of the policy
    limits: Limits  # cost limits by which it is judged
    frequency: Frequency | None = None  # results of decision_every=

    @property
    def score(self) -> float | None:
        """The mean normalized score; None if the task has no score references."""
        if self.reference is None:
            return None
        return float(self.reference.score(self.episodes.returns, self.episodes.success).mean())

    @property
    def is_current(self) -> bool:
        """True if the bundle next to the file still holds the policy that was evaluated."""
        path = self.file.parent / f"{self.file.name.split('.evaluation.')[0]}.bundle"
        try:
            return path.is_file() and digest(bundle.read(path)) == self.policy
        except BundleError:  # a damaged bundle holds no policy
            return False


def save(
    path: Path,
    policy: Bundle,
    task: Task,
    keys: Mapping[str, Any],
    played: Episodes,
    limits: Limits = UNLIMITED,
    paced: Played | None = None,
) -> Path:
    """Write the evaluation of the bundle at `path`. Raises UserError if that fails.

    paced: episodes at the paces of decision_every=.
    """
    options = {"task": task.name, **{k: v for k, v in keys.items() if v is not None}}
    file = path.with_name(f"{path.stem}.evaluation.{name_of(options)}.json")
    content = {
        "keys": options,
        "score_reference": asdict(task.reference) if task.reference else None,
        "policy_sha256": digest(policy),
        "version": __version__,
        "commit": hardware.current_commit(),
        **played._asdict(),
    }
    if played.costs is not None:
        content |= limits.to_json()
    if paced:
        content["paces"] = [{**asdict(pace), **e._asdict()} for pace, e in paced.items()]
    write_json(file, to_json_values(content))
    return file


def name_of(keys: Mapping[str, Any]) -> str:
    """Return the part of the file name that differs between the evaluations of a bundle."""
    rest = [f"{k}_{_short(v)}" for k, v in sorted(keys.items()) if k not in ("task", "episodes")]
    return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join([keys["task"], str(keys["episodes"]), *rest]))


def _short(value: Any) -> str:
    """Return a value as text. Of a long one or a formula, the start and a checksum.

    Names of files are short, and do not tell `x < 1` from `x > 1`.
    """
    text = str(value)
    checksum = hashlib.sha256(text.encode()).hexdigest()[:8]
    if len(text) <= MAX_VALUE and PLAIN.fullmatch(text):
        return text
    return f"{text[: MAX_VALUE - 9]}-{checksum}"


def saved_evaluations(path: Path) -> list[SavedEvaluation]:
    """Return the saved evaluations of a bundle, sorted by file name. Raises UserError."""
    return [read(file) for file in sorted(path.parent.glob(f"{path.stem}.evaluation.*.json"))]


def read(file: Path) -> SavedEvaluation:
    """Read a file that `save` wrote. Raises UserError that names the file if it is damaged."""
    content = read_json_object(file)
    try:
        values = content["score_reference"]
        reference = None if values is None else build(Reference, values, f"{file}: ")
        keys, policy = dict(content["keys"]), content["policy_sha256"]
        episodes, limits = Episodes.from_row(content), Limits.of(content)
        names = [each.name for each in fields(Pace)]
        paced = {
            Pace(**{name: row[name] for name in names}): Episodes.from_row(row)
            for row in content.get("paces", ())
        }
        frequency = Frequency.of(paced, reference) if paced else None
        return SavedEvaluation(file, keys, reference, episodes, policy, limits, frequency)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file} is not a saved evaluation: {error!r}. Remove it, or evaluate again."
        ) from None


def digest(policy: Bundle) -> str:
    """Return a checksum of the mapping that a policy computes. Exporting does not change it."""
    checksum = hashlib.sha256()
    arrays = dict(policy.weights)
    for name, normalizer in policy.normalizers.items():
        arrays |= {f"{name}/mean": normalizer.mean, f"{name}/scale": normalizer.scale}
    about = [policy.kind, policy.arguments, policy.spec.to_json()]
    checksum.update(json.dumps(about, sort_keys=True, default=str).encode())
    for name in sorted(arrays):
        checksum.update(f"{name} {arrays[name].shape} {arrays[name].dtype}".encode())
        checksum.update(arrays[name].tobytes())
    text = checksum.hexdigest()
    return text if policy.base is None else f"{text}+{digest(policy.base)}"
