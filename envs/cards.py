"""Dataset cards: which files there are, where they come from, and what a score of 0 and 100 is.

`datasets/<suite>.yaml` holds the suite's `title` in docs/datasets.md, its `source`, `license` and
`layout`, what its `reference`s share, and under `cards` the rest of each Card's fields. In
`reference.environment`, {env} and {mujoco} stand for the card's environment and the installed
MuJoCo's version. Where a suite names `hosts`, a file is its path there; a host with `only` has the
files of these names (`*`: anything).
What is damaged or misspelled is a CardError that names file and card.
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
    """A name that nothing is known by; the message lists the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, remedy: str = "") -> None:
        near = difflib.get_close_matches(name, list(known), n=4, cutoff=0.5)
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        super().__init__(f"unknown {kind} '{name}'.{hint}{' ' + remedy if remedy else ''}")


class CardError(ValueError):
    """A file of cards that is damaged: which, and where."""


@dataclass(frozen=True)
class Reference:
    """What a normalized score means."""

    min: float  # return that scores 0
    max: float  # return that scores 100
    source: str
    environment: str  # what really simulates here, and how it differs from the source's

    def in_words(self) -> str:
        """What a score means, in two sentences."""
        ends = f"Score 0 is a return of {self.min:g}, 100 one of {self.max:g}"
        return f"{ends} ({self.source}). Environment: {self.environment}."


@dataclass(frozen=True)
class File:
    name: str
    path: str  # below the data folder: <suite>/<name> or neorl2/<Task>/<name>
    urls: tuple[str, ...] = ()  # to be tried in this order
    sha256: str | None = None
    md5: str | None = None
    size_bytes: int | None = None
    first_episodes: int | None = None  # the benchmark uses only so many of the file's episodes


@dataclass(frozen=True)
class Card:
    name: str
    suite: str  # the name of its file
    layout: str  # of the files, in a word
    files: dict[str, File]  # by split: train, val
    source: str
    license: str
    env: str | None = None  # None: data only
    reference: Reference | None = None
    max_episode_steps: int | None = None
    preprocessing: dict[str, float] = field(default_factory=dict)  # what is done before learning
    note: str | None = None


@functools.cache
def cards() -> dict[str, Card]:
    """All cards by name. Raises CardError."""
    import yaml

    found: dict[str, Card] = {}
    for path in sorted(share("datasets").glob("*.yaml")):
        name = "cards"
        try:
            text = path.read_text(encoding="utf-8")
            suite = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            for name, entry in suite["cards"].items():
                found[name] = _card(name, path.stem, suite, entry)
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
    return found


def card(name: str) -> Card:
    """The card of one dataset. Raises UnknownName or CardError."""
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
    own = {key: value for key, value in entry.items() if key not in ("files", "reference")}
    made = Card(name=name, suite=suite_name, files=files, reference=reference, **(shared | own))
    return check_types(made)


def _file(folder: str, hosts: Iterable[dict[str, Any]], fields: str | dict[str, Any]) -> File:
    """A bare string, or `at`, is the path on the suite's hosts."""
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


def check_types(made: Any) -> Any:
    """`made`, of a class above. Raises TypeError for a field of another type than it says."""
    for each in fields(made):
        if not _is(value := getattr(made, each.name), each.type):
            raise TypeError(f"{each.name} is {value!r}, {each.type} is expected")
    return made


def _is(value: object, hint: Any) -> bool:
    kind, args = get_origin(hint) or hint, get_args(hint)
    if kind is UnionType:
        return any(_is(value, option) for option in args)
    if kind is tuple:
        return isinstance(value, tuple) and all(_is(v, args[0]) for v in value)
    if kind is dict:
        pairs = value.items() if isinstance(value, dict) else [(None, None)]
        return all(_is(k, args[0]) and _is(v, args[1]) for k, v in pairs)
    if kind is float:
        return type(value) in (int, float) and isfinite(value)  # type: ignore[arg-type]
    return type(value) is kind
