"""Decision Mamba: a Decision Transformer with selective scans and self-evolving targets.

Each block has two selective scans (Mamba) in place of attention: a coarse scan over the tokens
return-to-go, observation and action, and a fine scan over steps. Their sum predicts the action, the
next observation and the next return-to-go. During training, the action targets move from the data's
actions toward those of an earlier snapshot of the policy, which reduces the effect of noisy data.
Acting uses the recurrent state of the scans, so its cost does not grow with the episode.

Paper:   Lv, Deng, Chen, Wang, Nie, NeurIPS 2024, arXiv:2406.05427.
Differs: from the authors' code (aopolin-lv/DecisionMamba). In it, tokens receive the fine features
         of later steps, and every action of a context except the last is an input of its own
         prediction. Here, tokens receive the fine features of the previous step. The authors'
         targets use the current policy instead of a snapshot, with weight 0; another weight would
         only scale the loss, which does not change the steps of Adam. `as_released=true` uses the
         authors' features and targets. Networks are smaller: the authors use 24 blocks of size 768.
         Embeddings and the action head are linear, as in the authors' settings for Hopper. Scans
         skip padding. The authors' policy acts on the last 20 steps (running_state=false).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from offline_rl.algorithms import decision_transformer as dt
from offline_rl.algorithms.common.base import Metrics, Network, State, minimize
from offline_rl.algorithms.common.optim import Adam, warm_up
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, Count, Range, Share, frozen
from policies.heads.sequences.decision_mamba import DecisionMamba

HEAD = (  # options of the policy
    *("target_return", "return_scale", "context_length", "dim_model", "num_layers", "state_size"),
    *("episode_steps", "fine", "running_state", "as_released"),
)


@frozen
class Config(dt.Config):
    """Defaults: the authors' code, with smaller networks. They train for 100,000 updates."""

    num_layers: Count = 3  # blocks, each with two scans
    num_heads: ClassVar[int] = 1  # type: ignore[misc]
    dropout: ClassVar[float] = 0.0  # type: ignore[misc]
    dim_model: Count = 128  # embedding size
    state_size: Count = 16  # state size of each channel of a scan
    fine: bool = True  # add the fine scan over steps to the coarse scan over tokens
    running_state: bool = True  # act on the recurrent state; false: on the last steps only
    evolution: Share = 0.85  # weight of the snapshot in the targets at the end of training
    max_evolution: Share = 0.5  # largest weight of the snapshot in the targets
    snapshot_every: Count = 2500  # updates between snapshots of the policy
    prediction_weight: Annotated[float, Range(0, 0.5)] = (
        0.05  # weight of the prediction loss of next observations, and of that of next returns
    )
    as_released: bool = False  # use the fine features and targets of the authors' code
    weight_decay: Share = 1e-5  # weight decay of AdamW
    num_warmup_updates: Amount = 2500  # updates over which the learning rate rises

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.as_released and self.running_state:
            raise ValueError(
                "as_released needs all steps of the context to act. Set running_state=false."
            )

    @classmethod
    def small(cls) -> dict[str, Any]:
        absent = ("num_heads", "dropout")
        values = {k: v for k, v in super().small().items() if k not in absent}
        return values | {"state_size": 2, "snapshot_every": 2, "context_length": 4}


class DM(dt.DT):
    Config: type = Config
    targets = {"snapshot": "policy"}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.cfg.as_released:  # no snapshot
            self.targets = {}  # type: ignore[misc]

    def networks(self) -> dict[str, nn.Module]:
        self.check_targets()
        sizes = self.spec.observation_dim, self.spec.action_dim
        options: Any = {name: getattr(self.cfg, name) for name in HEAD}
        return {"policy": DecisionMamba(*sizes, **options)}

    def optimizers(self) -> dict[str, Adam]:
        cfg = self.cfg
        undecayed = ("bias", "norm_in", "norm_fine")
        options: dict[str, Any] = {"weight_decay": cfg.weight_decay, "undecayed": undecayed}
        options |= {"max_grad_norm": cfg.max_grad_norm, "eps": 1e-6}
        return {"policy": Adam(cfg.lr, schedule=warm_up(cfg.num_warmup_updates), **options)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the policy by regression on mixed action targets and on the next steps."""
        s, a, valid = batch.observations, batch.actions, batch.valid  # [B, T, O], [B, T, A], [B, T]
        assert batch.timesteps is not None
        assert batch.mc_returns is not None
        assert valid is not None
        context = s, a, batch.mc_returns, batch.timesteps.long(), valid
        targets, share = a, torch.zeros_like(a[0, 0, 0])
        if not self.cfg.as_released:
            state, share = self.evolve(state)
            targets = torch.lerp(a, state.snapshot(*context).actions, share)
        weight, last = self.cfg.prediction_weight, valid[:, 1:]
        scaled = batch.mc_returns[:, 1:, None] / self.cfg.return_scale

        def policy_loss(policy: Network) -> Any:  # means over valid steps and dimensions
            predicted = policy(*context)
            action_loss = masked_mean((predicted.actions - targets).square(), valid)
            next_s, next_return = predicted.next_observations, predicted.next_returns[..., None]
            state_loss = masked_mean(huber(next_s[:, :-1], s[:, 1:]), last)
            return_loss = masked_mean(huber(next_return[:, :-1], scaled), last)
            loss = (1 - 2 * weight) * action_loss + weight * (state_loss + return_loss)
            return loss, {"action_loss": action_loss, "prediction_loss": state_loss + return_loss}

        state, loss, metrics = minimize(state, "policy", policy_loss)
        return state, metrics | {"policy_loss": loss, "snapshot_weight": share}

    def evolve(self, state: State) -> tuple[State, Tensor]:
        """Return the state with a new snapshot if it is due, and the snapshot's weight.

        In period k of K, it is evolution * k / K. The first period has no earlier policy.
        """
        cfg, old, new = self.cfg, state.params["snapshot"], state.params["policy"]
        count, total = state.done // cfg.snapshot_every, self.num_updates / cfg.snapshot_every
        share = (cfg.evolution * (count + 1).float() / total).clamp(max=cfg.max_evolution)
        share = share * (count > 0)
        is_due = state.done % cfg.snapshot_every == 0
        snapshot = {k: torch.where(is_due, new[k], x) for k, x in old.items()}
        state = replace(state, params={**state.params, "snapshot": snapshot})
        return state, share


def huber(x: Tensor, target: Tensor) -> Tensor:
    """Return the Huber loss of each element."""
    return smooth_l1_loss(x, target, reduction="none")


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Return the mean of x [B, T, D] over valid steps [B, T] and dimensions; 0 without steps."""
    return (x.mean(-1) * valid).sum() / valid.sum().clamp(min=1)
