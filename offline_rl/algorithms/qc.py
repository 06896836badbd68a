"""QC: Q-chunking, which executes the best of N chunks that a flow policy samples.

The policy imitates the chunks of the data. The critics evaluate chunks. They select one of N
sampled chunks to execute, and one in the next state of the critics' target. No gradient of a critic
reaches the policy. Chunks are executed open loop. Steps after the end of an episode are left out of
the imitation loss. With horizon=1 and num_samples=4, it is the paper's baseline BFN.

Paper:   Li, Zhou, Levine, NeurIPS 2025, arXiv:2507.07969.
Differs: from the authors' code (ColinQiyangLi/qc:agents/acfql.py, actor_type=best-of-n). Chunks
         that the end of an episode cuts short bootstrap from the last observation, so that the
         reward for success enters through all of them. The authors' critic loss leaves them out, so
         it enters through one of `horizon` chunks: partial=drop. Rewards after a step that
         terminates are left out of a chunk's sum; the authors add them. Online, new steps do not
         replace rows of the data; in the authors' code they do if the data has 2 million rows or
         more. Their unused and untrained one-step policy is left out. As there, target critics are
         updated with the critics from before the gradient step.
"""

from __future__ import annotations

from typing import Annotated

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import Metrics, State, minimize, update_targets
from offline_rl.algorithms.common.config import BUILT
from offline_rl.algorithms.common.noising.flow_critic import BestOfNChunks, FlowConfig
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, frozen


@frozen
class Config(FlowConfig):
    """Defaults: the authors' code."""

    horizon: Annotated[Count, BUILT] = 5  # actions of a chunk; all of them are executed
    num_samples: Annotated[Count, BUILT] = 32  # chunks sampled per decision (N)


class QC(BestOfNChunks):
    Config = Config
    Online = schedule.Chunked
    samples_per_row = "num_samples"

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update critics and policy. Both losses read the networks as before the update."""
        target = self.target(state, batch, self.best_chunks(state, batch.next_observations))
        critic_loss, flow_loss = self.critic_loss(batch, target), self.flow_loss(state, batch)
        state, critic_value = minimize(update_targets(state), "critic", critic_loss)
        state, policy_value = minimize(state, "policy", flow_loss)
        losses = {"critic_loss": critic_value, "policy_loss": policy_value}
        return state, losses | {"target": target.mean()}
