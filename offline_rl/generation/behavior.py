"""NeoRL-2 data recorded again with the publishers' behavior networks.

The publishers' recipe (`polixir/neorl2_dataset:scripts/get_data.py`): episode n has the seed n, the
networks alternate between episodes, their actions are clipped and have no noise, and the last
episode is complete.
The networks are files of this repository, which the user downloads. They are read without pickle.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import envs
from offline_rl.data import Dataset
from offline_rl.data.load import data_folder
from offline_rl.generation.store import Act, is_stored, record, summarize_set
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum, make_folder, write_atomically, write_json

Network = Callable[[np.ndarray], np.ndarray]  # observations [B, O] -> actions [B, A]


@dataclass(frozen=True, kw_only=True)
class Behavior:
    """Published behavior networks, and the file that is recorded with them."""

    task: str
    file: str  # name of the recorded file
    source: str  # URL of the folder with the networks
    networks: dict  # file -> SHA-256. Of n networks, network k plays the episodes k, k + n, …
    rows: int = 100_000  # minimum number of rows


def generate_behavior(
    plan: Behavior, recipe: str, out: str | None, keys: Mapping[str, Any], show: bool
) -> str:
    """Record the set, write it in NeoRL-2's layout, and return its folder. Raises UserError.

    out: folder of the set. keys: options of the command.
    """
    for key in keys.keys() - {"recipe", "out"}:
        raise UserError(f"{key}= does not apply to recipe={recipe}, which has one set. Remove it.")
    published = data_folder() / plan.task  # where the card's files are
    folder = Path(out) if out else published
    make_folder(folder)
    path = folder / plan.file
    card = {"set": path.stem, "recipe": {"name": recipe, **asdict(plan)}}
    if is_stored(path, card, show):
        return str(folder)
    networks = [find_network(plan, published / "networks", name) for name in plan.networks]
    data = record(plan.task, plan.rows, 0, partial(actor, networks), whole_episodes=True)
    columns = columns_of(data)
    write_atomically(path, lambda part: save(part, columns))
    facts = summarize_set(data, path, plan.task)
    write_json(path.with_suffix(".json"), {**card, **facts})
    if show:
        print(
            f"{path}: {facts['rows']:,} rows in {facts['episodes']:,} episodes, mean return "
            f"{facts['return_mean']:.2f}"
        )
    return str(folder)


def find_network(plan: Behavior, folder: Path, name: str) -> Network:
    """Return a network of the plan. Raises UserError if its file is missing or differs."""
    path, url = folder / name, f"{plan.source}/{name}"
    remedy = f"Download it with: curl -L --create-dirs -o '{path}' {url}"
    if not path.is_file():
        raise UserError(f"{path} is missing, a behavior network of {plan.task}. {remedy}")
    if checksum(path) != plan.networks[name]:
        raise UserError(f"{path} is not the published file: its SHA-256 differs. {remedy}")
    return read_network(path)


def read_network(path: Path) -> Network:
    """Return the mean of a Gaussian policy stored by torch: two hidden layers with ReLU.

    The file is a zip archive. It holds each tensor's numbers as plain float32, in the order of the
    layers: weight [out, in], bias [out]. The pickle in the archive is not read.
    """
    layers = []
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].split("/")[0]
        numbers = [np.frombuffer(archive.read(f"{root}/data/{k}"), "<f4") for k in range(6)]
    for weight, bias in zip(numbers[::2], numbers[1::2], strict=True):
        layers.append((weight.reshape(len(bias), -1).T, bias))

    def network(observations: np.ndarray) -> np.ndarray:
        hidden = observations
        for weight, bias in layers[:-1]:
            hidden = np.maximum(hidden @ weight + bias, 0)
        weight, bias = layers[-1]
        return hidden @ weight + bias

    return network


def actor(networks: list[Network], env: envs.VectorEnv, first_seed: int) -> Act:
    """Return an actor that selects the network of an episode by the episode's seed."""

    def act(observations: Any, indices: np.ndarray) -> np.ndarray:
        turn = (first_seed + indices) % len(networks)
        actions = np.empty((len(indices), env.action_dim), np.float32)
        for k, network in enumerate(networks):
            actions[turn == k] = network(observations[turn == k])
        return actions.clip(-1, 1)

    return act


def columns_of(data: Dataset) -> dict[str, np.ndarray]:
    """Return the arrays of NeoRL-2's layout, all float32."""
    columns = {
        "obs": data.observations[: data.num_rows],
        "action": data.actions,
        "next_obs": data.next_observations,
        "reward": data.rewards,
        "done": data.terminated,
        "truncated": data.truncated,
    }
    return {name: np.asarray(column, np.float32) for name, column in columns.items()}


def save(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write the arrays as a compressed .npz file, whatever the name of the path."""
    with path.open("wb") as file:
        np.savez_compressed(file, **dict(columns))  # type: ignore[arg-type]
