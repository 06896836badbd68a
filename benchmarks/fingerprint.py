"""Did a change change a result? Hashes of what every algorithm has learnt after a few updates.

    python -m benchmarks.fingerprint             # compare with what is committed
    python -m benchmarks.fingerprint write       # and keep the new ones

Every algorithm that learns from data: 20 updates of each phase, eager, float32, one seed and two.
Then SAC online, a run stopped and resumed, its bundle. Hashes are of the parameters' bytes and of
actions, so they belong to one kind of processor and one version of PyTorch, both kept beside them;
before a change is judged on another machine, `write` them there from the commit before it.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import policies
from offline_rl import Dataset, train
from offline_rl.algorithms.common.on_policy.chains import DenoisingRL
from offline_rl.algorithms.common.registry import algorithm_class, algorithm_names
from offline_rl.engine.engine import Engine
from offline_rl.training.sources import offline_source
from offline_rl.utils.hardware import cpu_flags
from offline_rl.utils.options import build
from offline_rl.utils.trees import flatten
from policies import Spec

KEPT = Path("benchmarks/results/fingerprints.json")
UPDATES = 20
OBSERVATIONS, ACTIONS = 5, 2
SIZES = ("hidden", "policy_hidden", "critic_hidden", "vae_hidden")
SMALL: dict[str, Any] = {key: [16, 16] for key in SIZES}
SMALL |= {"samples": 3, "critics": 3, "batch_size": 32, "policy_samples": 2, "window": 4, "size": 8}
SMALL |= {"layers": 2, "heads": 2, "episode_steps": 20, "warm_up_updates": 5}
SMALL |= {"target_return": 3.0, "return_scale": 2.0}
SMALL |= {"network": "mlp", "widths": [8, 16], "executed": 2, "noise_levels": 10, "rounds": 5}


def data(rows: int = 300, seed: int = 0) -> Dataset:
    """Episodes of 30 random steps, every other one terminated, the rest cut."""
    draw = np.random.default_rng(seed)
    ends = np.arange(rows) % 30 == 29
    return Dataset.from_arrays(
        draw.normal(size=(rows, OBSERVATIONS)),
        draw.uniform(-1, 1, (rows, ACTIONS)),
        draw.normal(size=rows),
        ends & (np.arange(rows) % 60 == 29),
        ends & (np.arange(rows) % 60 != 29),
        draw.normal(size=(rows, OBSERVATIONS)),
    )


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Of names and bytes."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode() + tensors[name].contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def offline(name: str, seeds: list[int]) -> dict[str, str]:
    """An algorithm's state after each phase, and what it then does."""
    cls = algorithm_class(name)
    known = cls.Config.__dataclass_fields__
    small = {k: v for k, v in SMALL.items() if k in known}
    if "critics" in small:  # no more than it has by itself
        small["critics"] = min(small["critics"], known["critics"].default)
    if name == "bc":  # single actions
        del small["window"], small["executed"]
    if "widths" in small:  # no transformer
        del small["heads"]
    cfg = build(cls.Config, small)
    source = offline_source(cls, cfg, data(), data(100, seed=1) if "expert" in cls.needs else None)
    engine = Engine(
        lambda _: cls(Spec((OBSERVATIONS,), ACTIONS), cfg, 100), seeds, source, batch_size=32
    )
    found = {}
    for phase in [*engine.algorithm.phases, "update"]:
        engine.run(UPDATES, phase)
        for s, seed in enumerate(seeds):
            found[f"{phase}, seed {seed} of {len(seeds)}"] = digest(engine.seed_state(s))
    shape = (len(seeds), 4, OBSERVATIONS)
    observations = torch.from_numpy(np.random.default_rng(2).normal(size=shape)).float()
    found[f"actions of {len(seeds)}"] = digest({"actions": engine.stacked_policy(4)(observations)})
    return found


def online() -> dict[str, str]:
    """SAC in an environment, undisturbed and resumed half-way; and its bundle's action."""
    keys: dict[str, Any] = {
        "algorithm": "sac",
        "task": "env:Pendulum-v1",
        "seeds": 2,
        "num_updates": 0,
        "algorithm.hidden": [16, 16],
        "online.warm_up": 50,
        "batch_size": 32,
        "num_env_steps": 300,
        "eval_every": 150,
        "eval_episodes": 2,
        "checkpoint_every": 150,
        "precision": "fp32",
        "compile": "never",
        "tracker": "none",
        "show": False,
    }
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for way in ("undisturbed", "resumed"):
            own = keys | {"out": folder, "name": way}
            if way == "resumed":
                try:
                    train(**own, watch=stop)
                except KeyboardInterrupt:
                    found["stopped"] = "half-way"
            path = train(**own).path
            for seed in range(2):
                found[f"{way}, seed {seed}"] = checkpoint(path / f"seed_{seed}")
                bundle = path / f"seed_{seed}" / "policy.bundle"
                actions, _ = policies.load(bundle).act(np.array([[0.5, -0.5, 1.0]], np.float32))
                found[f"{way}, action {seed}"] = digest({"actions": torch.from_numpy(actions)})
    return found


def stop(trainer: Any) -> None:
    """Interrupts at the second evaluation."""
    if trainer.env_steps >= 150:
        raise KeyboardInterrupt


def checkpoint(folder: Path) -> str:
    """Of the tensors of the newest checkpoint."""
    from safetensors.torch import load_file

    newest = sorted((folder / "checkpoints").glob("*.safetensors"))[-1]
    tensors = load_file(newest)
    return digest({k: v for k, v in flatten(tensors).items() if not k.startswith("buffer/")})


def machine() -> dict[str, str]:
    """What the bytes depend on."""
    flags = sorted(cpu_flags() & {"avx2", "avx512f", "avx512_bf16", "amx_bf16"})
    return {"torch": torch.__version__, "processor": " ".join(flags)}


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    found = {"machine": machine(), "online": online()}
    for name in algorithm_names():
        if (cls := algorithm_class(name)).corrects or issubclass(cls, DenoisingRL):
            continue  # it learns in an environment
        found[name] = offline(name, [0]) | offline(name, [0, 1])
        print(name, flush=True)
    if arguments == ["write"]:
        KEPT.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    kept = json.loads(KEPT.read_text())
    if kept["machine"] != found["machine"]:
        print(f"kept on {kept['machine']}, this is {found['machine']}: hashes may differ")
    wrong = [
        f"{name}: {key} is {value}, was {kept[name].get(key)}"
        for name, values in found.items()
        if name in kept
        for key, value in values.items()
        if kept[name].get(key) != value
    ]
    gone = sorted(kept.keys() - found.keys())
    print("\n".join(wrong + [f"{name}: gone" for name in gone]) or "nothing has changed")
    return 1 if wrong or gone else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
