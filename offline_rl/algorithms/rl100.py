"""RL-100: imitation, offline RL and online RL of a diffusion or flow policy, in sequence.

Training starts with imitation. Then an iteration repeats: critics and a transition model are fitted
to all data; PPO reinforces denoising chains on the data's states, with advantages from the critics;
new weights are kept if they score better in the model; new episodes join the data, and imitation
continues. Finally PPO continues online on rollouts alone. `acting` selects the policy that acts:
the multi-step policy or the one-step head.

Paper:   Lei et al., arXiv:2510.14830.
Differs: Updates equal those of the authors' code (Lei-Kun/RL-100; benchmarks/conformance), with
         vector observations, without the authors' image encoder and its losses. The rest differs as
         follows. Denoising steps are drawn in minibatches from all decisions. The authors' code
         takes the steps of each decision one after another, updates V once for them, and clips V's
         values and gradient. Later imitation continues from the current policy with Adam and a
         moving average of constant rate; the authors use AdamW and a decreasing rate. There is one
         batch size; the authors use 256 rows of data, and 512 in policy improvement. Phases are
         shorter; the authors' code repeats 10 updates 8,000 times, with a gate after every 50
         repetitions. Online, V keeps its optimizer state; the authors' code resets it. Learning
         rates and clips do not decay. The gate scores both policies from the same states and
         restores the old weights if it rejects the new ones, as in the paper. The last denoising
         step has no noise except `sampling_floor`; the authors' code ends at the least noisy level
         instead. Noise is clipped to +-`noise_max`. Critics evaluate chunks as they are executed,
         clipped to the action range. Target networks follow every update; in the authors' code they
         follow every second one. The transition model has no weight decay and does not predict
         rewards. The one-step head receives the policy's first denoising timestep, and its chunks
         are limited to [-1, 1]; in the authors' code they are in the actions' own units. The
         transitions of flow policies are those of `dppo`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    Algorithm,
    Metrics,
    State,
    keep_where,
)
from offline_rl.algorithms.common.chunk_cloning import Built
from offline_rl.algorithms.common.config import BUILT, Discount, Rate, Sizes
from offline_rl.algorithms.common.on_policy.imitation import Imitating, ImitationConfig
from offline_rl.algorithms.common.on_policy.offline import OfflineConfig, OfflineImprovement
from offline_rl.algorithms.common.on_policy.ppo import standardize
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.rollouts import Decisions
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Amount, Count, Positive, Range, Share, frozen


@frozen
class Config(OfflineConfig, ImitationConfig):
    """Defaults: the authors' for single actions, except for the numbers of updates per phase.

    Policy sizes are those of the run.
    """

    iterations: Count = 3  # offline iterations of critics, improvement, new episodes, imitation
    judge_updates: Count = 10_000  # updates of critics and transition model per iteration
    improvements: Count = 10  # policy improvements per iteration, each checked by the gate
    passes: Count = 1  # passes over the denoising steps per improvement
    imitation_updates: Amount = 5_000  # imitation updates on all data at the end of an iteration
    acting: Annotated[Literal["multi_step", "one_step"], BUILT] = "multi_step"  # the acting policy
    clip: Positive = 0.2  # PPO clip, online
    offline_clip: Positive = 0.25  # PPO clip, on the data's states
    offline_lr: Rate = 1e-5  # learning rate of the policy, on the data's states
    policy_lr: Rate = 3e-6  # learning rate of the policy, online
    value_lr: Rate = 3e-4  # learning rate of V, online
    max_grad_norm: Positive = 0.5  # policy gradients are clipped to this norm (not in imitation)

    sampler: Annotated[Literal["ddpm", "ddim"], BUILT] = "ddim"
    num_inference_steps: Built = 10
    tuned: Built = 10
    sampling_floor: Positive = 0.01
    density_floor: Positive = 0.01
    spread_max: Annotated[float, Range(above=0), BUILT] = 0.8  # maximum std of a denoising step
    environments: Built = 16
    decisions: Built = 2048
    batch_size: Count = 128
    epochs: Built = 10
    discount: Discount = 0.99
    scale_rewards: bool = False
    value_hidden: Sizes = (512, 512)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.acting == "one_step" and self.one_step == "none":
            raise ValueError(
                "acting=one_step needs a one-step head. Set one_step=joint or one_step=afterward."
            )

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"num_inference_steps": 2, "tuned": 2}


@frozen
class Online(schedule.OnPolicy):
    """Training on rollouts alone, after iterations on the data and new episodes.

    In these iterations, batches are sampled uniformly from all rows of data and new episodes.
    """

    offline_fraction: Share | Literal["rows"] = "rows"


class RL100(OfflineImprovement, Imitating):
    Config: type = Config
    Online: type = Online
    mode = DATA_THEN_ONLINE
    extra_columns = ("held_out",)
    targets: ClassVar = {"critic_target": "critic", "behavior": "model"}
    offline_networks = ("behavior", "student_before", "critic", "critic_target", "dynamics", "fit")

    def __init__(self, spec: Any, cfg: Any, *rest: Any, **more: Any) -> None:
        super().__init__(spec, cfg, *rest, **more)
        self.phase, self.max_std = "", cfg.spread_max
        if cfg.acting == "one_step":
            self.acts = ("student",)

    def for_phase(self, phase: str) -> Algorithm:
        """Return the algorithm with the learning rates of `phase`."""
        algorithm: Any = copy.copy(super().for_phase(phase))
        algorithm.phase = phase
        return algorithm

    def optimizers(self) -> dict[str, Adam]:
        cfg, phase = self.cfg, self.phase
        rates = {"student": cfg.imitation_lr, "critic": cfg.critic_lr, "dynamics": cfg.dynamics_lr}
        rates["value"] = cfg.critic_lr if phase == "judge" else cfg.value_lr
        policy = {"imitate": cfg.imitation_lr, "improve": cfg.offline_lr}.get(phase, cfg.policy_lr)
        max_norm = None if phase == "imitate" else cfg.max_grad_norm
        return {"model": Adam(policy, max_grad_norm=max_norm)} | {
            k: Adam(rate) for k, rate in rates.items()
        }

    @property
    def phases(self) -> Mapping[str, int]:
        """Number of updates of each phase; `schedule` repeats the phases."""
        cfg, pairs = self.cfg, self.cfg.decisions * self.cfg.tuned // self.cfg.batch_size
        distill = cfg.student_updates if cfg.one_step == "afterward" else 0
        phases = {"imitate": cfg.imitation_updates, "settle": 1, "judge": cfg.judge_updates}
        return phases | {"improve": cfg.passes * pairs, "compare": 1, "distill": distill}

    def schedule(
        self, num_updates: int, num_env_steps: int, pretrain: int | None
    ) -> list[schedule.Piece]:
        """Return the order of phases.

        num_updates: updates of the first imitation phase. If rl100 continues a run, they follow the
        updates of that run.
        """
        cfg, online, size = self.cfg, schedule.ONLINE, self.cfg.decisions * self.cfg.n_action_steps
        count, rest = divmod(num_env_steps, size)
        if pretrain is not None:
            raise UserError(
                f"pretrain_updates={pretrain} is not used by rl100. Set the length of each phase "
                "instead, such as algorithm.judge_updates."
            )
        if rest or count < cfg.iterations:
            raise UserError(
                f"num_env_steps={num_env_steps} is not possible. Every offline and every online "
                f"iteration takes {size} environment steps: {cfg.decisions} chunks "
                f"(algorithm.decisions) of {cfg.n_action_steps} steps. Use a multiple of {size}, "
                f"at least {cfg.iterations * size} for algorithm.iterations={cfg.iterations}."
            )
        unchanged = ("settle", "judge")  # phases that do not train the policy
        learn = {
            name: schedule.Learn(name, n, evaluate=name not in unchanged)
            for name, n in self.phases.items()
        }
        fill = schedule.Fill("improve", cfg.decisions, "imitate")
        gather = schedule.Collect("gather", cfg.decisions, cfg.n_action_steps, adds=True)
        rollouts = schedule.Collect(online, cfg.decisions, cfg.n_action_steps)
        improved = [fill, learn["improve"], learn["compare"]] * cfg.improvements
        offline = [learn["settle"], learn["judge"], *improved, gather, learn["imitate"]]
        work = [schedule.Learn("imitate", num_updates), *offline * cfg.iterations, learn["settle"]]
        work += [rollouts, schedule.Learn(online, self.updates)] * (count - cfg.iterations)
        return [piece for piece in [*work, learn["distill"]] if piece.size]

    def compute_advantages(self, state: State, data: Mapping[str, Tensor]) -> dict[str, Tensor]:
        columns = super().compute_advantages(state, data)
        return columns | {"advantages": standardize(columns["advantages"])}

    def executed_log_prob(self, densities: Tensor, executed: Tensor) -> Tensor:
        """Return log densities [B, T, A] summed over the executed actions, [B]."""
        first = self.cfg.n_obs_steps - 1
        return (densities[:, first : first + executed.shape[-1]].sum(-1) * executed).sum(-1)

    def improve(self, state: State, batch: Decisions, i: int) -> tuple[State, Metrics]:
        """Update the policy with PPO; offline, on chains of `behavior` on the data's states."""
        clip = self.cfg.offline_clip if self.phase == "improve" else self.cfg.clip
        state, metrics = self.update_policy(state, batch, batch.advantages, clip)
        state, student_metrics = self.update_student(self.copy_to_policy(state), batch.observations)
        return state, metrics | student_metrics

    def update(self, state: State, batch: Decisions, i: int) -> tuple[State, Metrics]:  # type: ignore[override]
        """Update policy and V on online rollouts."""
        learned, metrics = self.improve(state, batch, i)
        state = keep_where(state, learned, self.in_critic_warmup(state))
        state, value_metrics = self.update_value(state, batch)
        return state, metrics | value_metrics
