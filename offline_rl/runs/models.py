"""Dynamics model that a run loads from another run by `dynamics=`.

Seed s loads the model of the other run's seed s, or of its only seed. Both runs must have the same
data, the same transform and the same size of the model. Their algorithms and policies may differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offline_rl.algorithms.common.base import Reusable, network_name
from offline_rl.data.transform import Preprocessing, Transform
from offline_rl.runs.folder import SeedFolder, checksum, common_checkpoint, seed_numbers
from offline_rl.runs.options import IDENTITY, DataOptions, roles
from offline_rl.runs.refusals import model_based_names, refuse
from offline_rl.runs.run import Run
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json_object
from offline_rl.utils.options import format_value
from offline_rl.utils.trees import to_json_values


@dataclass(frozen=True)
class StoredModel:
    """Dynamics model in a checkpoint of another run."""

    folder: SeedFolder
    config: Mapping[str, Any]  # of the other run
    transform: Mapping[str, Any]  # of the other run, as JSON
    tensors: Mapping[str, Tensor]  # flat, as in checkpoints
    is_fitted: bool

    @cached_property
    def sha256(self) -> str:
        """Checksum of the model alone, without the rest of the checkpoint."""
        return checksum("", self.tensors)

    def into(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a seed's flat state with this model in it. Raises UserError if it does not fit."""
        for name, tensor in self.tensors.items():
            shape = tuple(state[name].shape) if name in state else None
            if shape != tuple(tensor.shape):
                raise UserError(
                    f"{self.folder.path}: {name} of its dynamics model has the shape "
                    f"{tuple(tensor.shape)}, but here it is {shape}. Fit a model for this run."
                )
        return {**state, **self.tensors}

    def check_transform(self, transform: Transform) -> None:
        """Raise UserError if the model was fitted to data with another transform."""
        current = to_json_values(transform.to_json())
        differing = [key for key, value in current.items() if self.transform.get(key) != value]
        if differing:
            raise UserError(
                f"{self.folder.path}: its dynamics model was fitted with another transform of "
                f"observations, actions or rewards ({', '.join(differing)}). Fit a model for this "
                "run."
            )


def load_models(runs: list[Run]) -> tuple[dict[int, StoredModel], dict[int, str]]:
    """Return the model of each run's seed, and its checksum. Raises UserError.

    A resumed run has the model in its own checkpoints. If the folder of `dynamics=` no longer
    exists, only the checksum of such a run is returned.
    """
    models, sums = dict[int, StoredModel](), dict[int, str]()
    by_folder = dict[Path, StoredModel]()
    for run in runs:
        if run.data.dynamics is None:
            continue
        if (stored := stored_checksum(run)) is not None:
            sums[run.seed] = stored
            continue
        folder, reusable = source_folder(run.data.dynamics, run.seed), run.method.cls.dynamics_model
        assert reusable is not None  # refused earlier
        if folder.path not in by_folder:
            by_folder[folder.path] = load_model(folder, reusable)
        model = models[run.seed] = by_folder[folder.path]
        refuse(wrong_model(run, model, reusable))
        sums[run.seed] = model.sha256
    return models, sums


def stored_checksum(run: Run) -> str | None:
    """Return the stored checksum if the run is resumed and its `dynamics=` is gone, else None."""
    is_started = run.folder.finished or run.folder.checkpoints()
    if Path(str(run.data.dynamics)).expanduser().exists() or not is_started:
        return None
    sums = (run.folder.stored_config() or {}).get("dynamics_sha256", {})
    return sums.get(str(run.seed)) if isinstance(sums, dict) else None


def source_folder(dynamics: str, seed: int) -> SeedFolder:
    """Return the folder of the seed from which `seed` loads its model. Raises UserError.

    dynamics: a run's folder, or the folder of one seed.
    """
    path, remedy = Path(dynamics).expanduser(), "Use the folder that contains seed_0."
    if not path.is_dir():
        problem = "is a file" if path.is_file() else "does not exist"
        raise UserError(f"dynamics={dynamics} {problem}. {remedy}")
    prefix, _, number = path.resolve().name.partition("_")
    if prefix == "seed" and number.isdigit():
        return SeedFolder(path.resolve().parent, int(number))
    seeds = seed_numbers(path)
    if not seeds:
        raise UserError(f"dynamics={dynamics} contains no seeds. {remedy}")
    if seed not in seeds and len(seeds) > 1:
        raise UserError(
            f"dynamics={dynamics} has no model for seed {seed}, only for {seeds}. Use one model "
            f"for all seeds, with dynamics={path / f'seed_{seeds[0]}'}, or change seeds=."
        )
    return SeedFolder(path, seed if seed in seeds else seeds[0])


def load_model(folder: SeedFolder, reusable: Reusable) -> StoredModel:
    """Load the model from the newest checkpoint of a seed. Raises UserError."""
    config = read_json_object(folder.config)
    done = common_checkpoint([folder], "use another dynamics=")
    if done is None:
        raise UserError(
            f"{folder.path} has no checkpoint, so its dynamics model is not fitted. Repeat the "
            "command of that run, to finish it first."
        )
    tensors, content = folder.load(done)
    params = {k: v for k, v in tensors.items() if k.startswith("params/")}
    model = {k: v for k, v in params.items() if network_name(k) in reusable.networks}
    if {network_name(name) for name in model} != {*reusable.networks}:
        raise UserError(
            f"{folder.path} is a run of {config.get('algorithm')}, which has no dynamics model of "
            f"this kind. Use a run of {model_based_names(reusable)}."
        )
    last = content["counters"].get(reusable.phases[-1], {})
    is_fitted = bool(last.get("updates")) or config.get("dynamics") is not None
    is_fitted &= not is_trained_further(model)
    return StoredModel(folder, config, content["transform"], model, is_fitted)


def is_trained_further(model: Mapping[str, Tensor]) -> bool:
    """Return True if the weights differ from those at the end of the fit."""
    start = "params/best_dynamics/net."
    best = {k.removeprefix(start): v for k, v in model.items() if k.startswith(start)}
    return not all(torch.equal(model[f"params/dynamics/net.{k}"], v) for k, v in best.items())


def wrong_model(run: Run, model: StoredModel, reusable: Reusable) -> Iterator[str]:
    """Yield an error message if the model of another run does not fit this run."""
    path, config, hyper = model.folder.path, model.config, model.config.get("hyper", {})
    if not model.is_fitted:
        yield (
            f"{path}: the fit of its dynamics model is not finished, or the model was changed "
            "after it. Use a finished run with num_updates=0, which only fits the model."
        )
    values = {"task": (config.get("task"), run.task.name)}
    if config.get("task") == run.task.name and config.get("data") != run.checksums["data"]:
        yield (
            f"{path}: its dynamics model was fitted to other data ({config.get('dataset')}). Use "
            "the data of that run, or fit a model for this run."
        )
    options = [f.name for f in fields(DataOptions) if roles()[f.name] == IDENTITY]
    values |= {name: (config.get(name), getattr(run.data, name)) for name in options}
    for name in (*reusable.settings, *(f.name for f in fields(Preprocessing))):
        values[f"algorithm.{name}"] = hyper.get(name), getattr(run.method.cfg, name)
    for key, pair in values.items():
        old, new = map(to_json_values, pair)
        if old != new:
            texts = [format_value(value) or "null" for value in (old, new)]
            yield (
                f"{path}: its dynamics model was fitted with {key}={texts[0]}, but here it is "
                f"{texts[1]}. Use {key}={texts[0]}, or fit a model for this run."
            )
