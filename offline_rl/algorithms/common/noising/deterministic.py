"""From noise to a chunk without chance on the way: what one-step heads are taught."""

from __future__ import annotations

from typing import Any

from policies.heads.schedules import Round, Table, cosine_alphas, ddim, euler, karras


def deterministic_table(cfg: Any) -> Table:
    """The rounds of a config's policy, whose `process` is ddpm, edm or flow, without noise."""
    if cfg.process == "flow":
        return euler(cfg.num_inference_steps)
    if cfg.process == "edm":
        return karras(cfg.num_inference_steps)
    return ddim(
        cosine_alphas(cfg.num_train_timesteps), cfg.num_inference_steps, cfg.prediction_type
    )


def one_step_table(table: Table) -> Table:
    """Of a head that is asked where the first round of `table` is, and tells the chunk itself."""
    return [Round(table[0][0], 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)]
