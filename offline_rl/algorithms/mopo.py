"""MOPO: model-based offline policy optimization with a penalty for the model's uncertainty.

Soft actor-critic is trained on the data and on short rollouts of a dynamics model. The reward of a
predicted transition is reduced by `penalty` times the uncertainty of the prediction, so that the
policy keeps to states and actions where the model is reliable.

Paper:   Yu et al., NeurIPS 2020, arXiv:2005.13239.
Differs: from yihaosun1124/OfflineRL-Kit, whose settings are used. Members are trained on bootstrap
         samples whose batches are drawn anew; there each epoch is a permutation. A fit has at most
         `dynamics_epochs` epochs; there it has no limit. The actor's learning rate falls with each
         update; there with each 1,000. The log density is exact; there 1e-6 is added inside its
         logarithm. The authors' code (tianheyu927/mopo, TensorFlow 1) has a second output layer for
         the variance, and a learning rate of 3e-4 for policy, critics and temperature.
"""

from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.common.config import BUILT
from offline_rl.algorithms.common.models.rollouts import ModelBased, ModelConfig, Prediction
from offline_rl.utils.options import NonNegative, frozen

Uncertainty = Literal["aleatoric", "disagreement", "spread"]


@frozen
class Config(ModelConfig):
    """Defaults: OfflineRL-Kit's (run_example/run_mopo.py)."""

    penalty: NonNegative = 1.0  # weight of the uncertainty, in units of the reward
    uncertainty: Annotated[Uncertainty, BUILT] = (
        "aleatoric"  # predicted noise, or how much members differ: largest distance, or mean spread
    )


class MOPO(ModelBased):
    Config = Config

    def imagined_reward(self, state: State, prediction: Prediction, rewards: Tensor) -> Tensor:
        """Return r - penalty * u(s, a), [B]; eq. 8."""
        return rewards - self.cfg.penalty * uncertainty(prediction, self.cfg.uncertainty)


def uncertainty(prediction: Prediction, kind: Uncertainty) -> Tensor:
    """Return the uncertainty u(s, a) of predictions, [B], over all members.

    aleatoric: the largest norm of a member's standard deviations. disagreement: the largest
    distance of a member's mean from the mean over members. spread: the root of the mean variance of
    the members' means.
    """
    if kind == "aleatoric":
        return prediction.stds.norm(dim=-1).amax(0)
    means = prediction.means[..., :-1]  # [E, B, O]
    if kind == "disagreement":
        return (means - means.mean(0)).norm(dim=-1).amax(0)
    return means.var(0, correction=0).mean(-1).sqrt()
