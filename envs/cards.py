"""Dataset cards: the files of a dataset, their source, and the returns that score 0 and 100.

`datasets/<suite>.yaml` describes a suite:
  title: heading of the suite in docs/datasets.md.
  source, license, layout: values for all cards of the suite.
  reference: fields that all score references of the suite share. In `environment`, {env} and
    {mujoco} stand for the card's environment and the version of the installed MuJoCo.
  hosts: servers. If a suite lists them, a file is given as its path on the servers. A host with
    `only` has only the files that match these patterns (`*`: anything).
  cards: the other fields of each Card, by name. If a name contains `{task}`, the entry stands for
    one card for each value in `tasks`. The first one is listed; the others are its variants.
    `data_of: <card>` instead of `files` uses the files of a card that is read before.
A damaged or misspelled entry raises a CardError with the file and the card.
"""

import difflib
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from importlib import metadata
from math import isfinite
from types import UnionType
from typing import Any, get_args, get_origin

import numpy as np

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
    """The definition of a score, and its source: two returns, or the rate of success."""

    min: float  # return that scores 0
    max: float  # return that scores 100
    source: str
    environment: str  # the simulator used here, and how it differs from the source's
    success: bool = False  # True: the score is the percentage of successful episodes
    last_evaluations: int = 1  # a run's score is the mean of this many last evaluations

    def in_words(self) -> str:
        """Return two sentences that explain a score."""
        what = f"Score 0 is a return of {self.min:g}, and score 100 is a return of {self.max:g}"
        what = "The score is the percentage of successful episodes" if self.success else what
        if self.last_evaluations > 1:
            what += f". A run has the mean of its last {self.last_evaluations} evaluations"
        source = "chosen by this project" if self.source == "own" else self.source
        return f"{what} ({source}). Environment: {self.environment}."

    def score(self, returns: Any, success: Any = None) -> np.ndarray:
        """Return the score of each episode.

        returns: undiscounted returns R. success: whether each episode succeeded; needed if the
        score is a percentage of successes. An episode whose return is NaN has the score NaN.
        """
        returns = np.asarray(returns, np.float64)
        if not self.success:
            return 100 * (returns - self.min) / (self.max - self.min)
        if success is None:
            raise ValueError("The score is a success rate, and the environment reports no success.")
        return np.where(np.isnan(returns), np.nan, 100 * np.asarray(success, np.float64))


@dataclass(frozen=True)
class File:
    name: str
    path: str  # relative to the data folder: <suite>/<name> or neorl2/<Task>/<name>
    urls: tuple[str, ...] = ()  # tried in this order
    sha256: str | None = None
    md5: str | None = None
    size_bytes: int | None = None
    skip_episodes: int = 0  # episodes at the file's beginning that are not used
    first_episodes: int | None = None  # the benchmark uses only this many of the file's episodes
    num_shards: int = 1  # number of files; `name`, `path` and `urls` then contain `{shard}`

    @property
    def shards(self) -> "list[File]":
        """The files one by one: `{shard}` is replaced by 000, 001, …"""
        if self.num_shards == 1:
            return [self]
        numbers = [f"{number:03d}" for number in range(self.num_shards)]
        return [
            replace(
                self,
                name=self.name.replace("{shard}", n),
                path=self.path.replace("{shard}", n),
                urls=tuple(url.replace("{shard}", n) for url in self.urls),
                num_shards=1,
            )
            for n in numbers
        ]


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
    cost_limits: tuple[
        float, ...
    ] = ()  # published limits on an episode's cost; (): not constrained
    preprocessing: dict[str, float] = field(default_factory=dict)  # applied before training
    # columns to negate or swap in a mirror image; see offline_rl/data/augment/mirror.py
    mirror: dict[str, dict[str, list | str | dict[int, float]]] = field(default_factory=dict)
    costs_from: str | None = None  # environment whose function in `envs.tasks.COSTS` adds costs
    # the task observes only this many leading columns of the files' observations; None: all
    observed_columns: int | None = None
    note: str | None = None
    variant_of: str | None = None  # card of the same data for another task; only that one is listed


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
                for variant, fields in _variants(name, entry, suite.get("tasks", ())):
                    data = by_name[fields["data_of"]] if "data_of" in fields else None
                    by_name[variant] = _card(variant, path.stem, suite, fields, data)
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


def _variants(
    name: str, entry: dict[str, Any], tasks: Iterable[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the fields of each card that an entry stands for."""
    if "{task}" not in name:
        yield name, entry
        return
    listed = None
    for task in tasks:
        of_task = {key: _with_task(value, task) for key, value in entry.items()}
        of_task |= {"variant_of": listed} if listed else {}
        yield _with_task(name, task), of_task
        listed = listed or _with_task(name, task)


def _with_task(value: Any, task: str) -> Any:
    return value.replace("{task}", task) if isinstance(value, str) else value


def _card(
    name: str,
    suite_name: str,
    suite: dict[str, Any],
    entry: dict[str, Any],
    data: Card | None = None,
) -> Card:
    """Return the card of an entry. data: the card whose files it uses; None: the entry's files."""
    folder = name if name.startswith(f"{suite_name}/") and suite.get("own_folders") else suite_name
    hosts = suite.get("hosts", ())
    if data is None:
        files = {split: _file(folder, hosts, fields) for split, fields in entry["files"].items()}
        shared = {key: suite[key] for key in ("layout", "source", "license")}
    else:
        files, shared = data.files, {k: getattr(data, k) for k in ("layout", "source", "license")}
    reference = None
    if "reference" in entry:
        fields = suite["reference"] | entry["reference"]
        fields["environment"] = fields["environment"].format(
            mujoco=mujoco_version(), env=entry.get("env")
        )
        reference = check_types(Reference(**fields))
    rest = {k: v for k, v in entry.items() if k not in ("files", "reference", "data_of")}
    rest |= {"cost_limits": check_limits(entry["cost_limits"])} if "cost_limits" in entry else {}
    card = Card(name=name, suite=suite_name, files=files, reference=reference, **(shared | rest))
    return check_types(card)


def check_limits(limits: Iterable[float]) -> tuple[float, ...]:
    """Return the limits on the cost of an episode. Raises ValueError if they do not increase."""
    limits = tuple(limits)
    if any(limit < 0 for limit in limits) or sorted({*limits}) != [*limits]:
        raise ValueError(f"cost_limits is {limits}. Use increasing numbers of at least 0.")
    return limits


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
