"""Several noise levels for each encoded picture, or one: seconds of updates to a held-out loss.

    python -m benchmarks.noise_levels [levels=[1,8]] [batch_size=32] [updates=2000] [encoder=conv]

Diffusion Policy on pictures of the planar push: a dear encoder, a small network that denoises. The
loss is that of the noise, on episodes that no run learns from, by the moving average that acts and
from the middle of each picture. Nothing else should run meanwhile.
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
TASK, LEARNED, WINDOW = "push/standard-pixels-expert", 120, 8  # episodes that are learned from
ROWS, LEVELS, TRAINED = 256, 8, 100  # of the held-out loss: rows, levels of each, levels in all
NOTE = (
    "Batches of {batch_size} chunks, {updates:,} updates, one seed; the encoder ({encoder}) looks "
    "once at each picture of a batch, whatever the number of levels. Seconds are of updates alone, "
    "compilation left out. {cores} cores, load {load}."
)


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """What the command takes."""

    levels: tuple[int, ...] = (1, 8)
    batch_size: Count = 32
    updates: Count = 2000
    every: Count = 100  # updates between two looks
    encoder: Kind = "conv"


class HeldOut:
    """The noise's mean squared error on episodes that are not learned from, alike for every run."""

    def __init__(self, data: Dataset) -> None:
        starts = data.episode_starts[LEARNED:]
        steps = data.episode_lengths()[LEARNED:] - WINDOW
        rows = np.concatenate([s + np.arange(n) for s, n in zip(starts, steps, strict=True)])
        self.rows = np.random.default_rng(0).choice(rows, ROWS, replace=False)
        self.data, random = data, torch.Generator().manual_seed(0)
        actions = data.actions[self.rows[:, None] + np.arange(WINDOW)]
        self.noise = torch.randn((LEVELS, *actions.shape), generator=random)
        self.times = torch.randint(TRAINED, (LEVELS, ROWS), generator=random)
        self.actions = torch.from_numpy(actions)

    def __call__(self, trainer: Trainer) -> float:
        algorithm, state = trainer.engine.algorithm, trainer.engine.state
        seen = trainer.transform.normalizer(channels.take(self.data.observations, self.rows))
        shown = channels.map_channels(lambda x: torch.from_numpy(x[:, None]), seen)
        own = {k: v[0] for k, v in state["params"]["policy"].items()}
        chunks: Tensor = algorithm.unit(self.actions)  # type: ignore[attr-defined]
        alpha = torch.tensor(cosine_alphas(TRAINED), dtype=torch.float32)[self.times][
            ..., None, None
        ]
        noised = alpha.sqrt() * chunks + (1 - alpha).sqrt() * self.noise
        with torch.inference_mode():
            model = Network(algorithm.modules["model"], own)
            return float((model(shown, noised, self.times.float()) - self.noise).square().mean())


def curve(levels: int, options: Options, held_out: HeldOut) -> list[tuple[int, float, float]]:
    """(updates, seconds of updates, loss) as a run goes on."""
    found = list[tuple[int, float, float]]()

    def watch(trainer: Trainer) -> None:
        found.append((trainer.engine.updates, trainer.progress.seconds, held_out(trainer)))

    keys: dict[str, Any] = {
        "network": "mlp",
        "widths": [256] * 3,
        "n_obs_steps": 1,
        "horizon": WINDOW,
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
            episodes=LEARNED,
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
    return found


def reached(points: Sequence[tuple[int, float, float]], loss: float) -> tuple[int, float] | None:
    """The first (updates, seconds) at or below `loss`."""
    return next(((updates, s) for updates, s, found in points if found <= loss), None)


def page(found: Mapping[str, Any]) -> str:
    """A table: seconds to the best loss of the run with fewest levels, and at the end."""
    curves = {int(levels): points for levels, points in found["curves"].items()}
    goal = min(loss for _, _, loss in curves[min(curves)])
    body = []
    for levels, points in curves.items():
        updates, seconds, loss = points[-1]
        first = reached(points, goal)
        told = ["never", "never"] if first is None else [f"{first[0]:,}", f"{first[1]:.1f}"]
        body.append([str(levels), f"{1e3 * seconds / updates:.1f}", f"{loss:.4f}", *told])
    header = [
        "levels",
        "ms an update",
        "loss at the end",
        f"updates to {goal:.4f}",
        "seconds to it",
    ]
    machine = found["machine"]
    note = NOTE.format(**found["options"], cores=machine["cores"], load=found["load"])
    head = "# Noise levels for each picture\n\n*Made by `python -m benchmarks.noise_levels`.*"
    return f"{head}\n\n{table(header, body, left=0, markdown=True)}\n\n{wrap_text(note)}"


def main(arguments: Sequence[str]) -> int:
    """0: measured and written; 2: the user's mistake."""

    def measured() -> tuple[Path, dict[str, Any]]:
        options = build(Options, parse_options(arguments), "")
        held_out = HeldOut(load(TASK))
        return FILE, {
            "curves": {k: curve(k, options, held_out) for k in options.levels},
            "options": vars(options),
            "load": round(os.getloadavg()[0], 1),
        }

    return run_measurement(measured, page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
