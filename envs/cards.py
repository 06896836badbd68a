"""Dataset cards: the files of a dataset, their source, and the returns that score 0 and 100.

`datasets/<suite>.yaml` describes a suite:
  title: heading of the suite in docs/datasets.md.
  source, license, layout: values for all cards of the suite.
  reference: fields that all score references of the suite share. In `environment`, {env} and
    {mujoco} stand for the card's environment and the version of the installed MuJoCo.
  hosts: servers. If a suite lists them, a file is given as its path on the servers. A host with
    `only` has only the files that match these patterns (`*`: anything).
  cards: the other fields of each Card, by name.
A damaged or misspelled entry raises a CardError with the file and the card.
"""

import difflib
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from importlib import metadata
from math import isfinite
from types import UnionType
from typing import Any, get_args, get_origin

from envs.paths import share


class UnknownName(ValueError):
    """Raised for an unknown name; the message lists the closest known names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, remedy: str = "") -> None:
        near = difflib.get_close_matches(name, list(known), n=4, cutoff=0.5)
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        super().__init__(f"unknown {kind} '{name}'.{hint}{' ' + remedy if remedy else ''}")


class CardError(ValueError):
    """Raised for a damaged card file; the message names the file and the entry."""


@dataclass(frozen=True)
class Reference:
    """The two returns that define a normalized score, and their source."""

    min: float  # return that scores 0
    max: float  # return that scores 100
    source: str
    environment: str  # the simulator used here, and how it differs from the source's

    def in_words(self) -> str:
        """Return two sentences that explain a score."""
        ends = f"Score 0 is a return of {self.min:g}, and score 100 is a return of {self.max:g}"
        source = "chosen by this project" if self.source == "own" else self.source
        return f"{ends} ({source}). Environment: {self.environment}."


@dataclass(frozen=True)
class File:
    name: str
    path: str  # relative to the data folder: <suite>/<name> or neorl2/<Task>/<name>
    urls: tuple[str, ...] = ()  # tried in this order
    sha256: str | None = None
    md5: str | None = None
    size_bytes: int | None = None
    first_episodes: int | None = None  # the benchmark uses only this many of the file's episodes


@dataclass(frozen=True)
class Card:
    name: str
    suite: str  # the name of the YAML file
    layout: str  # name of the file layout
    files: dict[str, File]  # keys: train, val
    source: str
    license: str
    env: str | None = None  # None: data only
    reference: Reference | None = None
    max_episode_steps: int | None = None
    preprocessing: dict[str, float] = field(default_factory=dict)  # applied before training
    # columns to negate or swap in a mirror image; see offline_rl/data/augment/mirror.py
    mirror: dict[str, dict[str, list | str | dict[int, float]]] = field(default_factory=dict)
    note: str | None = None


@functools.cache
def cards() -> dict[str, Card]:
    """Return all cards by name. Raises CardError."""
    import yaml

    by_name: dict[str, Card] = {}
    for path in sorted(share("datasets").glob("*.yaml")):
        name = "cards"
        try:
            text = path.read_text(encoding="utf-8")
            suite = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            for name, entry in suite["cards"].items():
                by_name[name] = _card(name, path.stem, suite, entry)
        except KeyError as error:
            raise CardError(f"{path}: {name}: {error.args[0]} is missing") from None
        except (
            AttributeError,
            IndexError,
            OSError,
            TypeError,
            ValueError,
            yaml.YAMLError,
        ) as error:
            raise CardError(f"{path}: {name}: {' '.join(str(error).split())}") from None
    return by_name


def card(name: str) -> Card:
    """Return the card of one dataset. Raises UnknownName or CardError."""
    if name not in cards():
        raise UnknownName("dataset", name, cards())
    return cards()[name]


@functools.cache
def mujoco_version() -> str:
    return metadata.version("mujoco")


def _card(name: str, suite_name: str, suite: dict[str, Any], entry: dict[str, Any]) -> Card:
    folder = name if name.startswith(f"{suite_name}/") and suite.get("own_folders") else suite_name
    hosts = suite.get("hosts", ())
    files = {split: _file(folder, hosts, fields) for split, fields in entry["files"].items()}
    reference = None
    if "reference" in entry:
        fields = suite["reference"] | entry["reference"]
        fields["environment"] = fields["environment"].format(
            mujoco=mujoco_version(), env=entry.get("env")
        )
        reference = check_types(Reference(**fields))
    shared = {key: suite[key] for key in ("layout", "source", "license")}
    rest = {key: value for key, value in entry.items() if key not in ("files", "reference")}
    card = Card(name=name, suite=suite_name, files=files, reference=reference, **(shared | rest))
    return check_types(card)


def _file(folder: str, hosts: Iterable[dict[str, Any]], fields: str | dict[str, Any]) -> File:
    """Return the File of an entry.

    fields: path of the file on the suite's hosts, or a mapping with fields of `File`. In a mapping,
    the optional key `at` is that path.
    """
    fields = {"at": fields} if isinstance(fields, str) else dict(fields)
    if at := fields.pop("at", None):
        name = fields["name"] = at.rsplit("/", 1)[-1]
        fields["urls"] = [
            host["url"].format(path=at, name=name)
            for host in hosts
            if any(fnmatchcase(name, pattern) for pattern in host.get("only", ["*"]))
        ]
    urls = tuple(fields.get("urls", ()))
    return check_types(File(**(fields | {"path": f"{folder}/{fields['name']}", "urls": urls})))


def check_types(instance: Any) -> Any:
    """Return the dataclass instance. Raises TypeError if a field has the wrong type."""
    for each in fields(instance):
        if not _matches(value := getattr(instance, each.name), each.type):
            raise TypeError(f"{each.name} is {value!r}, expected {each.type}")
    return instance


def _matches(value: object, hint: Any) -> bool:
    kind, args = get_origin(hint) or hint, get_args(hint)
    if kind is UnionType:
        return any(_matches(value, option) for option in args)
    if kind is tuple:
        return isinstance(value, tuple) and all(_matches(v, args[0]) for v in value)
    if kind is dict:
        pairs = value.items() if isinstance(value, dict) else [(None, None)]
        return all(_matches(k, args[0]) and _matches(v, args[1]) for k, v in pairs)
    if kind is float:
        return type(value) in (int, float) and isfinite(value)  # type: ignore[arg-type]
    return type(value) is kind
