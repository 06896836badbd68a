"""COMBO: conservative model-based policy optimization, without an estimate of uncertainty.

The critics are trained on the data and on rollouts of a dynamics model. Their loss lowers a soft
maximum of Q over sampled actions, in the states that `states` selects, and raises Q on the data.
Q is therefore a lower bound where the policy leaves the data, even if the model is certain there.

Paper:   Yu et al., NeurIPS 2021, arXiv:2102.08363. There is no code by the authors.
Differs: from yihaosun1124/OfflineRL-Kit, whose settings are used: the log-sum-exp is over all
         sampled actions of a state (logsumexp_samples=all). There, it is over one action of each
         kind, because the code discards the result of a reshape; logsumexp_samples=repeat does the
         same. Other differences are those of `mopo`. In the paper, Q is lowered in states of
         rollouts only (states=model), and actions in rollouts may be uniformly random.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from torch import Tensor

from offline_rl.algorithms.common.base import Metrics, Network, State, minimize, update_targets
from offline_rl.algorithms.common.config import BUILT, Sizes
from offline_rl.algorithms.common.entropy import update_policy, update_temperature
from offline_rl.algorithms.common.models.rollouts import ModelBased, ModelConfig
from offline_rl.algorithms.cql import sample_proposals
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, Positive, Share, frozen

Samples = Literal["all", "repeat"]
KINDS = 3  # kinds of sampled actions: uniform; from the policy at s; from the policy at s'


@frozen
class Config(ModelConfig):
    """Defaults: OfflineRL-Kit's (run_example/run_combo.py)."""

    conservatism: NonNegative = 5.0  # weight of the conservative penalty (beta)
    logsumexp_samples: Samples = "all"  # actions per log-sum-exp: all samples, or one of each kind
    states: Literal["mix", "model"] = (
        "mix"  # where Q is lowered. mix: in all states of a batch; model: of predicted transitions
    )
    num_samples: Count = 10  # sampled actions per kind and state
    real_share: Annotated[Share, BUILT] = 0.5  # share of the data's transitions in a batch
    hidden: Sizes = (256, 256, 256)  # units of each hidden layer
    entropy_in_target: Annotated[bool, BUILT] = False  # include the entropy in critic targets
    alpha_max: Positive | None = None  # upper bound of the temperature; null: none

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < int(self.batch_size * self.real_share) < self.batch_size:
            raise ValueError(
                f"real_share={self.real_share} of batch_size={self.batch_size} leaves no real or "
                "no predicted transition. COMBO needs both. Use real_share=0.5."
            )


class COMBO(ModelBased):
    Config: type = Config
    caution = "a higher algorithm.conservatism"

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update actor, temperature, critics and target, in this order."""
        s, a, cfg = batch.observations, batch.actions, self.cfg
        state, log_pi, metrics = update_policy(state, state, s, self.alpha(state))
        state = update_temperature(state, log_pi, -cfg.entropy_scale * self.spec.action_dim)

        y = self.target(state, batch, self.alpha(state))  # [B]
        lowered = self.lowered(batch)
        # [3 N, R, A], [3 N, R]
        actions, log_density = sample_proposals(state, lowered, cfg.num_samples, "H")
        states = lowered.observations.expand(len(actions), *lowered.observations.shape)
        assert batch.imagined is not None
        real = 1 - batch.imagined  # [B]

        def critic_loss(critic: Network) -> tuple[Tensor, Any]:
            q = critic(s, a)  # [E, B]
            td = (q - y).square().mean(1).sum()
            logits = critic(states, actions) - log_density  # [E, 3 N, R]
            if cfg.logsumexp_samples == "repeat":
                logits = logits.unflatten(1, (KINDS, -1))  # [E, 3, N, R]
            high = logits.logsumexp(1).flatten(1).mean(1)  # [E]
            penalty = high - (q * real).sum(1) / real.sum()
            return td + cfg.conservatism * penalty.sum(), (td, penalty.mean())

        state, _, (td, penalty) = minimize(state, "critic", critic_loss)
        metrics |= {"critic_loss": td, "penalty": penalty, "target": y.mean()}
        return update_targets(state), metrics | self.outside(batch)

    def lowered(self, batch: Batch) -> Batch:
        """Return the transitions in whose states Q is lowered."""
        if self.cfg.states == "mix":
            return batch
        rows = self.predicted_rows(batch)
        s, s2 = batch.observations[rows], batch.next_observations[rows]
        return replace(batch, observations=s, next_observations=s2)
