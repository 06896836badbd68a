"""Content of a checkpoint: training state, experience and progress of each seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from torch import Tensor

from offline_rl.algorithms.common.schedule import Counts, Position
from offline_rl.engine.engine import Engine
from offline_rl.online.collector import Collector
from offline_rl.replay.ring import Ring
from offline_rl.runs.folder import Done, SeedFolder, learner_tensors
from offline_rl.training.work import Progress
from offline_rl.utils.files import read_json_object, write_json


def save(
    folders: Sequence[SeedFolder],
    done: Done,
    progress: Progress,
    engine: Engine,
    collector: Collector | None,
    shared: Mapping[str, Any],
) -> None:
    """Save a checkpoint of every seed. shared: further content, equal for all seeds."""
    shared = {"spec": engine.algorithm.spec.to_json(), **shared}
    for s, (folder, tensors) in enumerate(zip(folders, engine.seed_states(), strict=True)):
        content = {**asdict(progress), "diverged": progress.diverged[s], **shared}
        if collector is not None:
            content["collector"] = collector.state(s)
            tensors |= collector.tensors(s)
        for name, ring in _rings(engine).items():
            stored = ring.stream_state(s)
            tensors |= {f"rings/{name}/{k}": v.cpu().contiguous() for k, v in stored.items()}
        folder.save(done, tensors, content)


def load(
    folders: Sequence[SeedFolder],
    done: Done,
    engine: Engine,
    collector: Collector | None,
) -> Progress:
    """Load the checkpoint at `done` of every seed into engine, rings and collector."""
    contents, experience = list[dict[str, Any]](), list[dict[str, Tensor]]()  # per seed
    for s, folder in enumerate(folders):
        tensors, content = folder.load(done)
        learner = learner_tensors(tensors)
        engine.load_seed_state(s, learner)
        for name, ring in _rings(engine).items():
            start = f"rings/{name}/"
            ring.load(s, {k[len(start) :]: v for k, v in tensors.items() if k.startswith(start)})
        contents.append(content)
        experience.append(
            {k: v for k, v in tensors.items() if k.startswith(("buffer/", "memory/"))}
        )
    if collector is not None:
        collector.restore([content["collector"] for content in contents], experience)
    progress = progress_of(contents[0] | {"diverged": [x["diverged"] for x in contents]})
    engine.done = {phase: counts.updates for phase, counts in progress.counters.items()}
    return progress


def progress_of(content: Mapping[str, Any]) -> Progress:
    """Return the progress from its JSON."""
    values = {f.name: content[f.name] for f in fields(Progress)}
    values |= {name: Position(*values[name]) for name in ("position", "evaluate_at")}
    values["counters"] = {phase: Counts(**counts) for phase, counts in values["counters"].items()}
    return Progress(**values)


def send(progress: Progress, engine: Engine) -> Progress:
    """Send the progress and the training state of rank 0 to the other ranks; return the progress.

    Does nothing on a single process.
    """
    if engine.ranks is None:
        return progress
    received = progress_of(engine.ranks.share(asdict(progress)))
    engine.copy_from_first({phase: counts.updates for phase, counts in received.counters.items()})
    return progress if engine.ranks.rank == 0 else received


def _rings(engine: Engine) -> dict[str, Ring]:
    """Return the rings that the algorithm fills, by name."""
    return {name: x for name, x in engine.sources.items() if isinstance(x, Ring)}


def store_fallbacks(folders: Sequence[SeedFolder], engine: Engine, choices: dict[str, Any]) -> None:
    """Store the programs whose compiled code failed its check, for a resumed run to replace."""
    if engine.fallbacks == choices.get("fallbacks", {}):
        return
    choices["fallbacks"] = dict(engine.fallbacks)
    for folder in folders:
        path = folder.path / "environment.json"
        write_json(path, read_json_object(path) | {"choices": choices})
