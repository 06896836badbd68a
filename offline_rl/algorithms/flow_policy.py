"""Flow policy: demonstrated chunks of actions, reached along straight lines out of noise.

Between noise and a chunk lies a line; a network learns its direction from points of it, given what
was seen before. From noise alone it follows the directions in a few steps of one size.

Paper:   Lipman et al., ICLR 2023, arXiv:2210.02747; times: Black et al., arXiv:2410.24164.
Differs: from LeRobot's multi_task_dit (huggingface/lerobot:src/lerobot/policies/multi_task_dit),
         whose loss and times these are, in the network, optimizer and moving average, Diffusion
         Policy's; that times are told to it times 1,000, of which sinusoids are made; and that
         every row is the present one, there not an episode's last. There they take 100 steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from offline_rl.algorithms.common.base import Metrics, State, minimize
from offline_rl.algorithms.common.chunk_cloning import Denoising, DenoisingConfig
from offline_rl.algorithms.common.noising.targets import flow_targets
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, Positive, Share
from policies.heads.schedules import Table, euler


@dataclass(frozen=True)
class Config(DenoisingConfig):
    """Defaults: Diffusion Policy's network and optimizer, LeRobot's times."""

    num_inference_steps: Count = 10  # steps from noise to a chunk
    time_power: Positive = 1.5  # times are 1 - u ** (1 / this): above 1 nearer to the noise
    time_max: Share = 0.999  # and at most this


class FlowPolicy(Denoising):
    Config = Config

    def table(self) -> Table:
        return euler(self.cfg.num_inference_steps)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """One step of regression on directions, at `levels` times of each chunk."""
        cfg, random, a = self.cfg, state.random, self.unit(batch.actions)  # [B, T, A]
        x, times, direction = flow_targets(random, a, cfg.levels, cfg.time_power, cfg.time_max)

        def policy_loss(model) -> Tensor:
            told = model(batch.observations, x, times, random)
            return self.masked_mean((told - direction).square(), batch)

        state, policy_value = minimize(state, "model", policy_loss)
        return self.update_average(state), {"policy_loss": policy_value}
