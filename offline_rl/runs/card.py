"""Folder of a policy for a model hub: model card, bundle, settings and evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json_object, write_folder_atomically, write_json, write_text
from offline_rl.utils.text import table
from policies import bundle

CARD, EVALUATION, SETTINGS = "README.md", "evaluation.json", "config.json"
REPOSITORY = "<owner>/<repository>"  # placeholder in the commands of the card


def write_hub_folder(source: Path, out: Path, license: str | None) -> None:
    """Write the folder of the policy in the bundle `source`.

    license: identifier of the policy's license, such as `apache-2.0`. Raises UserError or
    BundleError before anything is written.
    """
    if not license:
        raise UserError(
            "format=hub writes a model card, which names a license. Add license=…, for example "
            "license=apache-2.0."
        )
    if out.exists():
        raise UserError(f"out={out} exists already. Remove it, or choose another folder.")
    policy = bundle.read(source)
    facts, settings = facts_of(source, policy), source.with_name(SETTINGS)

    def fill(folder: Path) -> None:
        bundle.write(folder / bundle.BUNDLE, without_paths(policy))
        write_text(folder / CARD, card(policy, facts, license))
        write_json(folder / EVALUATION, facts)
        if settings.is_file():
            hyper = read_json_object(settings).get("hyper", {})
            write_json(folder / SETTINGS, {"algorithm": facts.get("algorithm"), "hyper": hyper})

    write_folder_atomically(out, fill)


def without_paths(policy: bundle.Bundle) -> bundle.Bundle:
    """Return the bundle, and its base, with file names instead of local paths in its provenance."""
    provenance = {
        key: Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
        for key, value in policy.provenance.items()
    }
    base = None if policy.base is None else without_paths(policy.base)
    return replace(policy, provenance=provenance, base=base)


def facts_of(source: Path, policy: bundle.Bundle) -> dict[str, Any]:
    """Return the result of the run for card and evaluation.json, without local paths."""
    result = source.with_name("result.json")
    facts = dict(read_json_object(result) if result.is_file() else policy.provenance)
    facts.pop("last_checkpoint", None)
    name = facts.get("dataset")
    return facts | {"dataset": Path(name).name if name else None}


def card(policy: bundle.Bundle, facts: Mapping[str, Any], license: str) -> str:
    """Return the model card: front matter, usage, evaluation and training settings."""
    algorithm, task = facts.get("algorithm") or policy.kind, facts.get("task") or "none"
    title = f"{algorithm} on {task}"
    rows = evaluation(facts)
    metrics = [{"type": name, "name": name, "value": value} for name, value in rows.items()]
    front = {
        "license": license,
        "library_name": "offline_rl",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "offline-rl", "robotics", algorithm],
    }
    if metrics:
        kind = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
        data = {"type": task, "name": task}
        front["model-index"] = [
            {"name": title, "results": [{"task": kind, "dataset": data, "metrics": metrics}]}
        ]
    spec = policy.spec
    channels = ", ".join(f"`{c.name}` {list(c.shape)}" for c in spec.channels)
    trained = [
        ("algorithm", algorithm),
        ("task", task),
        ("data", facts.get("dataset")),
        ("SHA-256 of the data", facts.get("dataset_sha256")),
        ("updates", facts.get("num_updates")),
        ("environment steps", facts.get("num_env_steps")),
        ("training seed", facts.get("seed")),
        ("offline_rl", facts.get("version")),
        ("commit", facts.get("commit")),
    ]
    settings = [[name, str(value)] for name, value in trained if value not in (None, "", 0)]
    parts = [
        f"# {title}",
        f"A policy trained with offline_rl. Its bundle, `{bundle.BUNDLE}`, contains the weights, "
        "the normalizers and a recorded output for verification. Loading it runs no code from the "
        "file and loads no pickle files.",
        "## Use",
        "```python\nimport policies\n\n"
        f'policy = policies.load("hub:{REPOSITORY}", units=True)\n```',
        f"Observations: {channels}, {spec.n_obs_steps} per decision. Actions: {spec.action_dim} "
        f"numbers. Each decision predicts {spec.chunk_size} and executes {spec.n_action_steps} "
        "actions.",
        "## Evaluation",
        table(["metric", "value"], [[k, f"{v:,}"] for k, v in rows.items()], markdown=True)
        if rows
        else "No evaluation is stored with this policy.",
        "## Training",
        table(["setting", "value"], settings, markdown=True),
    ]
    header = yaml.safe_dump(front, sort_keys=False, allow_unicode=True)
    return f"---\n{header}---\n\n" + "\n\n".join(parts) + "\n"


def evaluation(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the rounded metrics of the last evaluation, by name."""
    returns, costs = facts.get("returns") or [], facts.get("costs") or []
    values = {
        "episodes": len(returns) or None,
        "mean return": facts.get("mean_return"),
        "standard deviation of the return": float(np.std(returns)) if len(returns) else None,
        "normalized score": facts.get("score"),
        "mean cost": float(np.mean(costs)) if len(costs) else None,
        "target cost": facts.get("target_cost"),
    }
    success = facts.get("success")
    if success:
        values["success rate"] = float(np.mean(success))
    return {k: v if isinstance(v, int) else round(v, 3) for k, v in values.items() if v is not None}
