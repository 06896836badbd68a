"""RL-100: a clone that denoises, improved by its data, by new episodes, and then online.

Imitation comes first. Some times over, critics and a model of what comes next learn from all the
data; chains of the policy on the data's states are reinforced by what the critics say of them; what
comes of it is kept where it does better in the model; new episodes become data, and imitation goes
on. Then proximal policy optimization goes on with rollouts alone.

Paper:   Lei et al., arXiv:2510.14830. `acting` is its one-step head or the policy itself.
Differs: updates equal those of the authors' code (Lei-Kun/RL-100; benchmarks/conformance), with
         vectors for what it sees, without its encoder and its losses. Around them, denoising steps
         are drawn in minibatches from all decisions, there each decision's are taken one after
         another, and V learns once for them, its values and gradient cut; later imitation goes on
         from where the policy stands, by Adam and a moving average of one rate, there by AdamW and
         one that slows down; a batch has one size, there 256 rows of data and 512 in improvement;
         phases are shorter, there 8,000 times 10 updates with a gate after each 50 times; online
         V's optimizer goes on, there it begins anew; rates and clips do not fall; both policies are
         scored from the same starts and rejected weights are put back, as the paper has it; a last
         round ends without noise but for `sampling_floor`, there at the least noisy level, and
         noise is cut at `noise_max`; chunks are judged as they are taken, in their range; targets
         follow every update, there each second; the model's weights do not decay, and it tells no
         rewards; the head is told the policy's first time, and held to chunks in [-1, 1], there in
         the actions' own units. Its flows' transitions are `dppo`'s.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import Algorithm, Metrics, State, keep_where
from offline_rl.algorithms.common.chunk_cloning import Built
from offline_rl.algorithms.common.config import BUILT, Discount, Rate, Sizes
from offline_rl.algorithms.common.on_policy.imitation import Imitating, ImitationConfig
from offline_rl.algorithms.common.on_policy.offline import OfflineConfig, OfflineImprovement
from offline_rl.algorithms.common.on_policy.ppo import standardize
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.rollouts import Decisions
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Amount, Count, Positive, Range, Share


@dataclass(frozen=True)
class Config(OfflineConfig, ImitationConfig):
    """Defaults: the authors' for single actions, but for the numbers of updates in phases.

    The policy's own numbers are its run's.
    """

    iterations: Count = 3  # of critics, improvement, new episodes and imitation
    judge_updates: Count = 10_000  # of critics and transition model, in each
    improvements: Count = 10  # chances at the gate, in each
    passes: Count = 1  # visits to the denoising steps of each, before the gate
    imitation_updates: Amount = 5_000  # on all the data, at the end of each
    acting: Annotated[Literal["num_inference_steps", "one_step"], BUILT] = (
        "num_inference_steps"  # what acts, but to explore
    )
    clip: Positive = 0.2  # of ratios, online
    offline_clip: Positive = 0.25  # and on the data's states
    offline_lr: Rate = 1e-5  # of the policy, on the data's states
    policy_lr: Rate = 3e-6  # and online
    value_lr: Rate = 3e-4  # of V, online
    max_grad_norm: Positive = 0.5  # of a gradient in reinforcement

    sampler: Annotated[Literal["ddpm", "ddim"], BUILT] = "ddim"
    num_inference_steps: Built = 10
    tuned: Built = 10
    sampling_floor: Positive = 0.01
    density_floor: Positive = 0.01
    spread_max: Annotated[float, Range(above=0), BUILT] = 0.8  # most deviation of a round
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
            raise ValueError("acting=one_step needs a one-step head: one_step=joint or afterward")


@dataclass(frozen=True, kw_only=True)
class Online(schedule.OnPolicy):
    """From data and its own rollouts, in turns."""

    offline_fraction: Share | Literal["rows"] = "rows"


class RL100(OfflineImprovement, Imitating):
    Config: ClassVar[type] = Config
    Online: ClassVar[type[schedule.Online]] = Online
    extra_columns = ("held_out",)
    finetunes_from = ""
    targets: ClassVar = {"critic_target": "critic", "behavior": "model"}
    phases_without_eval = ("settle", "judge")

    def __init__(self, spec: Any, cfg: Any, *rest: Any, **more: Any) -> None:
        self.phase, self.max_std = "", cfg.spread_max
        super().__init__(spec, cfg, *rest, **more)
        self.policy = "student" if cfg.acting == "one_step" else "policy"

    def for_phase(self, phase: str) -> Algorithm:
        """Rates are the phase's."""
        now: Any = copy.copy(super().for_phase(phase))
        now.phase = phase
        return now

    def optimizers(self) -> dict[str, Adam]:
        cfg, phase = self.cfg, self.phase
        rates = {"student": cfg.imitation_lr, "critic": cfg.critic_lr, "dynamics": cfg.dynamics_lr}
        rates["value"] = cfg.critic_lr if phase == "judge" else cfg.value_lr
        policy = {"imitate": cfg.imitation_lr, "improve": cfg.offline_lr}.get(phase, cfg.policy_lr)
        cut = None if phase == "imitate" else cfg.max_grad_norm
        return {"model": Adam(policy, max_grad_norm=cut)} | {
            k: Adam(rate) for k, rate in rates.items()
        }

    @property
    def phases(self) -> Mapping[str, int]:
        """Each once; `schedule` repeats them."""
        cfg, pairs = self.cfg, self.cfg.decisions * self.cfg.tuned // self.cfg.batch_size
        distil = cfg.student_updates if cfg.one_step == "afterward" else 0
        made = {"imitate": cfg.imitation_updates, "settle": 1, "judge": cfg.judge_updates}
        return made | {"improve": cfg.passes * pairs, "compare": 1, "distil": distil}

    def schedule(
        self, num_updates: int, num_env_steps: int, pretrain: int | None
    ) -> list[schedule.Piece]:
        """num_updates: of the first imitation, beyond that of the run it goes on from."""
        cfg, online, size = self.cfg, schedule.ONLINE, self.cfg.decisions * self.cfg.n_action_steps
        count, rest = divmod(num_env_steps, size)
        if pretrain is not None:
            own = "phases here have lengths of their own, such as algorithm.judge_updates; give"
            raise UserError(f"pretrain_updates={pretrain}: {own} these")
        if rest or count < cfg.iterations:
            least = f"at least {cfg.iterations * size} for algorithm.iterations={cfg.iterations}"
            raise UserError(
                f"num_env_steps={num_env_steps}: new episodes and online iterations take {size} "
                f"steps each, algorithm.decisions={cfg.decisions} of {cfg.n_action_steps}; give a "
                f"multiple of that, {least}"
            )
        learn = {name: schedule.Learn(name, n) for name, n in self.phases.items()}
        fill = schedule.Fill("improve", cfg.decisions, "imitate")
        gather = schedule.Collect("gather", cfg.decisions, cfg.n_action_steps, adds=True)
        rollouts = schedule.Collect(online, cfg.decisions, cfg.n_action_steps)
        improved = [fill, learn["improve"], learn["compare"]] * cfg.improvements
        offline = [learn["settle"], learn["judge"], *improved, gather, learn["imitate"]]
        work = [schedule.Learn("imitate", num_updates), *offline * cfg.iterations, learn["settle"]]
        work += [rollouts, schedule.Learn(online, self.updates)] * (count - cfg.iterations)
        return [piece for piece in [*work, learn["distil"]] if piece.size]

    def compute_advantages(self, state: State, data: Mapping[str, Tensor]) -> dict[str, Tensor]:
        made = super().compute_advantages(state, data)
        return made | {"advantages": standardize(made["advantages"])}

    def executed_log_prob(self, densities: Tensor, executed: Tensor) -> Tensor:
        """[B, T, A] -> [B]: the sum over the actions that were taken."""
        first = self.cfg.n_obs_steps - 1
        return (densities[:, first : first + executed.shape[-1]].sum(-1) * executed).sum(-1)

    def improve(self, state: State, batch: Decisions, i: int) -> tuple[State, Metrics]:
        """One step of the policy, here on chains of `behavior` on the data's states."""
        clip = self.cfg.offline_clip if self.phase == "improve" else self.cfg.clip
        state, metrics = self.update_policy(state, batch, batch.advantages, clip)
        state, told = self.update_student(self.copy_to_policy(state), batch.observations)
        return state, metrics | told

    def update(self, state: State, batch: Decisions, i: int) -> tuple[State, Metrics]:  # type: ignore[override]
        """The same on a rollout, and one step of V."""
        learned, metrics = self.improve(state, batch, i)
        state, told = self.update_value(
            keep_where(state, learned, self.in_critic_warmup(state)), batch
        )
        return state, metrics | told
