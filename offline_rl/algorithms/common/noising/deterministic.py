"""Deterministic sampling from noise to a chunk, which one-step students are trained to match."""

from __future__ import annotations

from typing import Any

from policies.heads.schedules import DenoisingStep, Table, cosine_alphas, ddim, euler, karras


def deterministic_table(cfg: Any) -> Table:
    """Return the sampler table without noise, for a config's `process`: ddpm, edm or flow."""
    if cfg.process == "flow":
        return euler(cfg.num_inference_steps)
    if cfg.process == "edm":
        return karras(cfg.num_inference_steps)
    return ddim(
        cosine_alphas(cfg.num_train_timesteps), cfg.num_inference_steps, cfg.prediction_type
    )


def one_step_table(table: Table) -> Table:
    """Return the table of a one-step head, which predicts at the first timestep of `table`."""
    return [DenoisingStep(table[0][0], 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)]
