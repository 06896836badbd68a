"""Train your own algorithm, here the class in this file: behavior cloning with an L1 loss.

python examples/own_algorithm.py [updates, default 2,000]

From the command line:  offline-rl train algorithm=examples/own_algorithm.py task=…
The engine compiles `update`, stacks seeds, and writes bundles, checkpoints and reports.
"""

import sys
from dataclasses import dataclass
from typing import ClassVar

import offline_rl
from offline_rl.algorithms.common.base import Algorithm, minimize
from offline_rl.algorithms.common.config import BaseConfig, Rate, Sizes
from offline_rl.algorithms.common.optim import Adam
from policies.heads.deterministic import DeterministicActor


@dataclass(frozen=True)
class Config(BaseConfig):
    lr: Rate = 1e-3  # learning rate; this comment is the --help text
    hidden: Sizes = (256, 256)  # units of each hidden layer
    discount: ClassVar[float] = 1.0


class L1(Algorithm):
    Config = Config

    @classmethod
    def uses_rewards(cls, cfg):
        return False

    def networks(self):
        obs, act = self.spec.observation_dim, self.spec.action_dim
        return {"policy": DeterministicActor(obs, act, self.cfg.hidden)}

    def optimizers(self):
        return {"policy": Adam(self.cfg.lr)}

    def update(self, state, batch, i):
        def loss(policy):
            return (policy(batch.observations) - batch.actions).abs().mean()

        state, value = minimize(state, "policy", loss)
        return state, {"policy_loss": value}


if __name__ == "__main__":
    updates = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    result = offline_rl.train(
        algorithm=__file__,
        task="gym/pointmaze-umaze-200k",  # the data are part of this repository
        num_updates=updates,
        eval_every=updates,
        eval_episodes=5,
        algorithm__hidden=[64, 64],
    )
    print(f"score of the data      {result.results[0]['behavior_score']:.1f}")
    print(f"score of the policy    {result.results[0]['score']:.1f}")
    print(f"policy bundle          {result.path / 'seed_0' / 'policy.bundle'}")
