"""Detect whether a change altered any result: hash what every algorithm learns in a few updates.

    python -m benchmarks.fingerprint             # compare with the committed hashes
    python -m benchmarks.fingerprint write       # replace the committed hashes

Offline: 20 eager float32 updates of each phase of every algorithm that learns from data, except
model-based methods, for one seed and for two stacked seeds. Online: SAC (undisturbed and resumed),
RLPD, ResFiT, DPPO and RL-100 in an environment, with the actions of their bundles.

A hash covers the bytes of floating-point tensors. It does not depend on the tensors' names or on
counters, and its key does not name the phase. So renaming something leaves all hashes equal. Hashes
are valid for one processor type and one PyTorch version, which are stored with them. On another
machine, run `write` on the parent commit first.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

import envs
import policies
from offline_rl import Dataset, finetune, train
from offline_rl.algorithms.common.on_policy.chains import DenoisingRL
from offline_rl.algorithms.common.registry import algorithm_class, algorithm_names
from offline_rl.engine.engine import Engine
from offline_rl.training.sources import offline_source
from offline_rl.utils.hardware import cpu_flags
from offline_rl.utils.options import build
from policies import Spec

REFERENCE = Path("benchmarks/results/fingerprints.json")
UPDATES = 20
OBSERVATION_DIM, ACTION_DIM = 5, 2
SIZES = ("hidden", "policy_hidden", "critic_hidden", "vae_hidden")
SMALL: dict[str, Any] = {key: [16, 16] for key in SIZES}
SMALL |= {
    "num_samples": 3,
    "num_critics": 3,
    "batch_size": 32,
    "num_policy_samples": 2,
    "horizon": 4,
    "context_length": 4,
    "dim_model": 8,
}
SMALL |= {"num_layers": 2, "num_heads": 2, "episode_steps": 20, "num_warmup_updates": 5}
SMALL |= {"target_return": 3.0, "return_scale": 2.0, "target_cost": 5.0}
SMALL |= {
    "network": "mlp",
    "widths": [8, 16],
    "n_action_steps": 2,
    "num_train_timesteps": 10,
    "num_inference_steps": 5,
}

TASK = "pendulum-of-20-steps"
# A run in an environment: Pendulum's observations and actions, tiny networks, no compilation.
RUN: dict[str, Any] = {"task": TASK, "batch_size": 32, "precision": "fp32"}
RUN |= {"compile": "never", "eval_episodes": 2, "tracker": "none", "show": False}
HIDDEN: dict[str, Any] = {"algorithm.hidden": [16, 16]}
CHUNKS: dict[str, Any] = {"algorithm.network": "mlp", "algorithm.widths": [16]}
CHUNKS |= {"algorithm.horizon": 4, "algorithm.n_action_steps": 2, "algorithm.n_obs_steps": 1}
CHUNKS |= {
    "algorithm.num_train_timesteps": 20,
    "algorithm.num_inference_steps": 10,
    "algorithm.prediction_type": "sample",
}
TUNE: dict[str, Any] = {
    "algorithm.sampler": "ddim",
    "algorithm.num_inference_steps": 5,
    "algorithm.tuned": 3,
}
TUNE |= {"algorithm.environments": 2, "algorithm.decisions": 24, "algorithm.batch_size": 24}
TUNE |= {"algorithm.epochs": 2, "algorithm.value_hidden": [16], "num_env_steps": 192}
RL100: dict[str, Any] = {"algorithm.critic_hidden": [16], "algorithm.dynamics_hidden": [16]}
RL100 |= {"algorithm.members": 3, "algorithm.elites": 2, "algorithm.imagined": 2}
RL100 |= {"algorithm.iterations": 1, "algorithm.judge_updates": 120, "algorithm.improvements": 2}
RL100 |= {"algorithm.dynamics_lr": 1e-2}
RL100 |= {"algorithm.imitation_updates": 4, "algorithm.one_step": "none"}


def dataset(rows: int = 300, seed: int = 0) -> Dataset:
    """Return episodes of 30 random steps, alternately truncated and terminated."""
    random = np.random.default_rng(seed)
    ends = np.arange(rows) % 30 == 29
    return Dataset.from_arrays(
        random.normal(size=(rows, OBSERVATION_DIM)),
        random.uniform(-1, 1, (rows, ACTION_DIM)),
        random.normal(size=rows),
        ends & (np.arange(rows) % 60 == 29),
        ends & (np.arange(rows) % 60 != 29),
        random.normal(size=(rows, OBSERVATION_DIM)),
        extras={"costs": (np.arange(rows) % 3 == 0).astype(np.float32)},
    )


def pendulum_dataset(rows: int = 400) -> Dataset:
    """Return data in Pendulum's shapes with simple dynamics, which a model can fit."""
    random = np.random.default_rng(0)
    observations, actions = random.normal(size=(rows, 3)), random.uniform(-1, 1, (rows, 1))
    ends = np.arange(rows) % 20 == 19
    rewards = 1 - np.square(actions[:, 0] - 0.8)
    return Dataset.from_arrays(
        observations, actions, rewards, ends & False, ends, observations + 0.3 * actions
    )


def digest(tensors: Iterable[Tensor]) -> str:
    """Return the hash of the floating-point tensors' bytes, whatever their order."""
    parts = [
        hashlib.sha256(f"{tuple(x.shape)}".encode() + x.contiguous().numpy().tobytes()).digest()
        for x in tensors
        if x.is_floating_point()
    ]
    return hashlib.sha256(b"".join(sorted(parts))).hexdigest()[:16]


def offline(name: str, seeds: list[int]) -> dict[str, str]:
    """Return the hashes of an algorithm's state after each phase, and of its actions."""
    cls = algorithm_class(name)
    config_fields = cls.Config.__dataclass_fields__
    small = {k: v for k, v in SMALL.items() if k in config_fields}
    if "num_critics" in small:  # at most the default number
        small["num_critics"] = min(small["num_critics"], config_fields["num_critics"].default)
    if name == "bc":  # single actions
        del small["horizon"], small["n_action_steps"]
    if "widths" in small:  # an MLP, not a transformer
        del small["num_heads"]
    cfg = build(cls.Config, small)
    expert = dataset(100, seed=1) if "expert" in cls.extra_columns else None
    spec = Spec((OBSERVATION_DIM,), ACTION_DIM)
    source = offline_source(cls(spec, cfg), dataset(), expert)
    engine = Engine(lambda _: cls(spec, cfg, 100), seeds, source, batch_size=32)
    hashes = {}
    for k, phase in enumerate([*engine.algorithm.phases, "update"], 1):
        engine.run(UPDATES, phase)
        for s, seed in enumerate(seeds):
            state = engine.seed_state(s).values()
            hashes[f"phase {k}, seed {seed} of {len(seeds)}"] = digest(state)
    shape = (len(seeds), 4, OBSERVATION_DIM)
    observations = torch.from_numpy(np.random.default_rng(2).normal(size=shape)).float()
    hashes[f"actions of {len(seeds)}"] = digest([engine.stacked_policy(4)(observations)])
    return hashes


def outcome(path: Path, label: str) -> dict[str, str]:
    """Return the hashes of a finished run: its newest checkpoints and its bundles' actions."""
    hashes = {}
    for folder in sorted(path.glob("seed_*")):
        tensors = load_file(sorted((folder / "checkpoints").glob("*.safetensors"))[-1])
        state = [x for name, x in tensors.items() if not name.startswith("buffer/")]
        hashes[f"{label}, {folder.name}"] = digest(state)
        policy = policies.load(folder / "policy.bundle")
        actions, _ = policy.act(np.array([[0.5, -0.5, 1.0]], np.float32))
        hashes[f"{label}, actions, {folder.name}"] = digest([torch.from_numpy(actions)])
    return hashes


def online(out: str) -> dict[str, dict[str, str]]:
    """Return the hashes of runs in an environment."""
    envs.register(TASK, lambda: gymnasium.make("Pendulum-v1"), max_episode_steps=20)
    common: dict[str, Any] = RUN | {"out": out}
    data: dict[str, Any] = {"dataset": pendulum_dataset()}
    sac = common | HIDDEN | {"algorithm": "sac", "seeds": 2, "num_updates": 0, "num_env_steps": 300}
    sac |= {"online.warmup_steps": 50, "eval_every": 150, "checkpoint_every": 150}
    hashes = {"sac online": outcome(train(**sac, name="undisturbed").path, "undisturbed")}
    try:
        train(**sac, name="resumed", watch=interrupt)
    except KeyboardInterrupt:
        hashes["sac online"] |= outcome(train(**sac, name="resumed").path, "resumed")

    short = common | {"num_env_steps": 80, "num_updates": 0, "eval_every": 10_000}
    rlpd = short | HIDDEN | {"algorithm": "rlpd", "online.warmup_steps": 40, "seeds": 1}
    hashes["rlpd online"] = outcome(train(**rlpd, **data, utd=4).path, "rlpd")

    bc = train(**common, **HIDDEN, **data, algorithm="bc", num_updates=UPDATES, seeds=1)
    resfit = short | {"base": str(bc.path / "seed_0" / "policy.bundle"), "seeds": 1}
    resfit |= {"online.warmup_steps": 40, "algorithm.hidden": [16, 16]}
    hashes["resfit online"] = outcome(finetune(**resfit, **data).path, "resfit")

    chunks = common | CHUNKS | {"algorithm": "diffusion_policy", "num_updates": UPDATES, "seeds": 1}
    run = train(**chunks, **data).path
    tune = {k: v for k, v in (common | TUNE).items() if k != "batch_size"}
    hashes["dppo online"] = outcome(finetune(run=run, algorithm="dppo", **tune).path, "dppo")
    hashes["rl100 online"] = outcome(
        finetune(run=run, algorithm="rl100", **tune, **RL100, **data).path, "rl100"
    )
    return hashes


def interrupt(trainer: Any) -> None:
    """Interrupt a run at its second evaluation."""
    if trainer.env_steps >= 150:
        raise KeyboardInterrupt


def machine() -> dict[str, str]:
    """Return the PyTorch version and the processor type, on which the bytes depend."""
    flags = sorted(cpu_flags() & {"avx2", "avx512f", "avx512_bf16", "amx_bf16"})
    return {"torch": torch.__version__, "processor": " ".join(flags)}


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        hashes = {"machine": machine(), **online(folder)}
    for name in algorithm_names():
        if (cls := algorithm_class(name)).mode.start == "base" or issubclass(cls, DenoisingRL):
            continue  # this algorithm learns only in an environment
        if cls.uses_facts:
            continue  # it needs rollouts of a model; recorded in tests/offline_rl/conformance
        hashes[name] = offline(name, [0]) | offline(name, [0, 1])
        print(name, flush=True)
    if arguments == ["write"]:
        REFERENCE.write_text(json.dumps(hashes, indent=1) + "\n")
        return 0
    reference = json.loads(REFERENCE.read_text())
    if reference["machine"] != hashes["machine"]:
        print(
            f"The committed hashes are from {reference['machine']}, this machine is "
            f"{hashes['machine']}. Hashes may differ. Run `write` on the parent commit first."
        )
    wrong = [
        f"{name}: {key} is {value}, was {reference[name].get(key)}"
        for name, values in hashes.items()
        if name in reference
        for key, value in values.items()
        if reference[name].get(key) != value
    ]
    missing = sorted(reference.keys() - hashes.keys())
    print("\n".join(wrong + [f"{name}: missing" for name in missing]) or "nothing has changed")
    return 1 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
