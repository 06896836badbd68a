"""Compare one and several noise levels per encoded image by the training time to a held-out loss.

    python -m benchmarks.noise_levels [levels=[1,8]] [batch_size=32] [updates=2000] [encoder=conv]

Diffusion Policy on images of the planar push task, with an expensive encoder and a small denoising
network. The loss is the noise prediction error on episodes that no run trains on, with the moving
average of the parameters and center crops of the images. Nothing else should run on the machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.figures import run_measurement
from offline_rl.algorithms.common.base import Network
from offline_rl.data import Dataset
from offline_rl.data.load import load
from offline_rl.training.train import train
from offline_rl.training.trainer import Trainer
from offline_rl.utils.options import Checked, Count, build, parse_options
from offline_rl.utils.text import table, wrap_text
from policies import channels
from policies.heads.schedules import cosine_alphas
from policies.networks.encoders import Kind

FILE = Path("benchmarks/results/diffusion/noise-levels.json")
TASK, TRAINING_EPISODES, HORIZON = "push/standard-pixels-expert", 120, 8
ROWS, LEVELS, NUM_TIMESTEPS = 256, 8, 100  # held-out rows, noise levels per row, training timesteps
NOTE = (
    "Batches of {batch_size} chunks, {updates:,} updates, one seed. The encoder ({encoder}) runs "
    "once per image of a batch, for any number of levels. Seconds count updates only, without "
    "compilation. {cores} cores, load {load}."
)


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command."""

    levels: tuple[int, ...] = (1, 8)
    batch_size: Count = 32
    updates: Count = 2000
    every: Count = 100  # updates between evaluations of the loss
    encoder: Kind = "conv"


class HeldOut:
    """Noise prediction error (MSE) on held-out episodes, with the same noise for every run."""

    def __init__(self, data: Dataset) -> None:
        starts = data.episode_starts[TRAINING_EPISODES:]
        steps = data.episode_lengths()[TRAINING_EPISODES:] - HORIZON
        rows = np.concatenate([s + np.arange(n) for s, n in zip(starts, steps, strict=True)])
        self.rows = np.random.default_rng(0).choice(rows, ROWS, replace=False)
        self.data, random = data, torch.Generator().manual_seed(0)
        actions = data.actions[self.rows[:, None] + np.arange(HORIZON)]
        self.noise = torch.randn((LEVELS, *actions.shape), generator=random)
        self.times = torch.randint(NUM_TIMESTEPS, (LEVELS, ROWS), generator=random)
        self.actions = torch.from_numpy(actions)

    def __call__(self, trainer: Trainer) -> float:
        algorithm, state = trainer.engine.algorithm, trainer.engine.state
        rows = trainer.transform.normalizer(channels.take(self.data.observations, self.rows))
        observations = channels.map_channels(lambda x: torch.from_numpy(x[:, None]), rows)
        params = {k: v[0] for k, v in state["params"]["policy"].items()}
        chunks: Tensor = algorithm.normalize_actions(self.actions)  # type: ignore[attr-defined]
        alpha = torch.tensor(cosine_alphas(NUM_TIMESTEPS), dtype=torch.float32)[self.times][
            ..., None, None
        ]
        noised = alpha.sqrt() * chunks + (1 - alpha).sqrt() * self.noise
        with torch.inference_mode():
            model = Network(algorithm.modules["model"], params)
            prediction = model(observations, noised, self.times.float())
            return float((prediction - self.noise).square().mean())


def curve(levels: int, options: Options, held_out: HeldOut) -> list[tuple[int, float, float]]:
    """Train and return (updates, seconds of updates, loss) at each evaluation."""
    points = list[tuple[int, float, float]]()

    def watch(trainer: Trainer) -> None:
        points.append((trainer.engine.updates, trainer.progress.seconds, held_out(trainer)))

    keys: dict[str, Any] = {
        "network": "mlp",
        "widths": [256] * 3,
        "n_obs_steps": 1,
        "horizon": HORIZON,
    }
    keys |= {
        "n_action_steps": 4,
        "levels": levels,
        "encoder": options.encoder,
        "prediction_type": "epsilon",
    }
    with tempfile.TemporaryDirectory() as out:
        train(
            algorithm="diffusion_policy",
            task=TASK,
            episodes=TRAINING_EPISODES,
            num_updates=options.updates,
            eval_every=options.every,
            eval_episodes=1,
            batch_size=options.batch_size,
            compile="always",
            tracker="none",
            out=out,
            show=False,
            watch=watch,
            **{f"algorithm.{name}": value for name, value in keys.items()},
        )
    return points


def first_below(
    points: Sequence[tuple[int, float, float]], loss: float
) -> tuple[int, float] | None:
    """Return the first (updates, seconds) with a loss of at most `loss`, or None."""
    return next(((updates, s) for updates, s, value in points if value <= loss), None)


def page(results: Mapping[str, Any]) -> str:
    """Return the page: final losses, and time to the best loss of the run with fewest levels."""
    curves = {int(levels): points for levels, points in results["curves"].items()}
    best = min(loss for _, _, loss in curves[min(curves)])
    body = []
    for levels, points in curves.items():
        updates, seconds, loss = points[-1]
        first = first_below(points, best)
        cells = ["never", "never"] if first is None else [f"{first[0]:,}", f"{first[1]:.1f}"]
        body.append([str(levels), f"{1e3 * seconds / updates:.1f}", f"{loss:.4f}", *cells])
    header = [
        "levels",
        "ms per update",
        "final loss",
        f"updates to {best:.4f}",
        f"seconds to {best:.4f}",
    ]
    machine = results["machine"]
    note = NOTE.format(**results["options"], cores=machine["cores"], load=results["load"])
    head = "# Noise levels per image\n\n*Made by `python -m benchmarks.noise_levels`.*"
    return f"{head}\n\n{table(header, body, left=0, markdown=True)}\n\n{wrap_text(note)}"


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status: 0, or 2 for a user error."""

    def measure() -> tuple[Path, dict[str, Any]]:
        options = build(Options, parse_options(arguments), "")
        held_out = HeldOut(load(TASK))
        return FILE, {
            "curves": {k: curve(k, options, held_out) for k in options.levels},
            "options": vars(options),
            "load": round(os.getloadavg()[0], 1),
        }

    return run_measurement(measure, page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
