"""What methods share that reinforce a policy's denoising steps: its run, its chains, its rollouts.

`model` learns; in `policy`, which acts, its weights lie beside those from before (`TunedActor`). An
iteration collects decisions with their chains (`replay.rollouts`), computes advantages once from
all of them (`digest`), and then learns from pairs of a decision and one of its denoising steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import (
    Algorithm,
    Metrics,
    Network,
    State,
    minimize,
    minimize_with,
    require,
)
from offline_rl.algorithms.common.chunk_cloning import Built, DenoiserShape
from offline_rl.algorithms.common.config import BUILT, Discount, Fraction, Sizes
from offline_rl.algorithms.common.critics import Value
from offline_rl.algorithms.common.on_policy.denoising import (
    clamp_std,
    mean_over_executed,
    normal_log_prob,
    replay_log_prob,
    sample_chain,
    table_rows,
    transition_params,
)
from offline_rl.algorithms.common.on_policy.ppo import (
    FIRST_COUNT,
    clipped_loss,
    gae,
    normalize_rewards,
    running_returns,
    update_moments,
)
from offline_rl.replay.batch import Source, Sources
from offline_rl.replay.rollouts import Decisions, Shapes
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Amount, Count, Positive, Range, Share
from policies.heads.diffusion import DiffusionActor, TunedActor
from policies.heads.schedules import Table, cosine_alphas, ddim, ddpm, euler

DENSITIES = (-5.0, 2.0)  # a log density that is compared lies between, as DPPO's authors have it


@dataclass(frozen=True)
class ChainConfig(DenoiserShape):
    """Defaults: DPPO's for gym (irom-princeton/dppo:cfg/gym/finetune)."""

    process: Annotated[Literal["ddpm", "flow"], BUILT] = "ddpm"  # the run's: how it was taught
    num_train_timesteps: Built = 100  # the run's, of ddpm
    prediction_type: Annotated[Literal["epsilon", "sample"], BUILT] = (
        "epsilon"  # the run's, of ddpm
    )
    sampler: Annotated[Literal["ddpm", "ddim"], BUILT] = "ddpm"  # of ddpm
    num_inference_steps: Built = 20  # from noise to a chunk
    tuned: Built = 10  # of these, the last that are fine-tuned
    eta: Fraction = 1.0  # noise of ddim and flows while exploring; acting has none
    sampling_floor: Positive = 0.1  # least deviation of a round, while exploring
    density_floor: Positive = 0.1  # and in densities that are compared
    noise_max: Annotated[float, Range(above=0), BUILT] = 3.0  # noise is cut at +- this
    environments: Built = 40  # of each seed
    decisions: Built = 20_000  # of an iteration, in all environments together
    batch_size: Count = 50_000  # denoising steps
    discount: Discount = 0.9975  # gamma, of an environment step
    trace: Share = 0.95  # lambda of generalized advantages
    scale_rewards: bool = True  # by the deviation of their running sums

    epochs: Built = 5  # visits to all of an iteration's denoising steps
    value_warmup: Amount = 0  # iterations in which the critic alone learns
    value_hidden: Sizes = (256, 256, 256)  # units of each hidden layer of the critic

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tuned > self.num_inference_steps:
            raise ValueError(
                f"tuned={self.tuned} steps are more than the sampler's {self.num_inference_steps}"
            )
        if self.process == "ddpm" and self.num_inference_steps > self.num_train_timesteps:
            raise ValueError(
                f"num_inference_steps={self.num_inference_steps} are more than num_train_timesteps={self.num_train_timesteps}"
            )
        if self.decisions % self.environments:
            raise ValueError(
                f"environments={self.environments} do not divide decisions={self.decisions}"
            )
        pairs = self.decisions * self.tuned
        if pairs % self.batch_size:
            nearest = min(range(1, pairs + 1), key=lambda n: (pairs % n, abs(n - self.batch_size)))
            raise ValueError(
                f"batch_size={self.batch_size} does not divide decisions x tuned, {pairs}; "
                f"{nearest} does"
            )


class DenoisingRL(Algorithm):
    """A subclass gives `optimizers` and `update`, which ends in `acting`."""

    Online: ClassVar[type[schedule.Online]] = schedule.OnPolicy
    finetunes_from = "a run of diffusion_policy with process=ddpm, or of flow_policy"
    online = True
    follows_card = False
    max_std: float = math.inf  # of a round's deviation
    initialized_from_run: ClassVar[tuple[str, ...]] = (
        "model",
        "policy",
    )  # begin as the run's policy

    @classmethod
    def config_from_run(cls, algorithm: str, hyper: Mapping[str, Any]) -> dict[str, Any]:
        process = {"diffusion_policy": hyper.get("process", "ddpm"), "flow_policy": "flow"}
        found = process.get(algorithm)
        if found in ("ddpm", "flow"):
            return {"process": found}
        reason = "it does not denoise"
        if "horizon" in hyper and "num_inference_steps" in hyper:
            reason = "its steps are certain and have no density"
        if "tuned" in hyper:
            reason = "it reinforces a clone's steps itself"
        raise UserError(
            f"{cls.__name__.lower()} cannot go on from {algorithm}: {reason}; give {cls.finetunes_from}"
        )

    @property
    def updates(self) -> int:
        """Of an iteration."""
        return self.cfg.epochs * (self.cfg.decisions * self.cfg.tuned // self.cfg.batch_size)

    def schedule(
        self, num_updates: int, num_env_steps: int, pretrain: int | None
    ) -> list[schedule.Piece]:
        cfg, phase = self.cfg, schedule.ONLINE
        size = cfg.decisions * cfg.n_action_steps
        if num_updates:
            raise UserError(
                f"num_updates={num_updates}: all is learned from its own rollouts; leave it out"
            )
        if num_env_steps % size:
            raise UserError(
                f"num_env_steps={num_env_steps}: One iteration takes {size:,} steps "
                f"({cfg.decisions:,} decisions × {cfg.n_action_steps} actions). Set num_env_steps to a "
                f"multiple of {size}, or lower algorithm.decisions"
            )
        collect = schedule.Collect(phase, cfg.decisions, cfg.n_action_steps)
        return [collect, schedule.Learn(phase, self.updates)] * (num_env_steps // size)

    def source(self, phase: str, sources: Sources) -> Source:
        return require(sources.rollouts)

    def columns(self) -> tuple[Shapes, Shapes]:
        """Of a decision; and what goes on from one rollout to the next."""
        cfg, chunk = self.cfg, (self.cfg.horizon, self.spec.action_dim)
        seen, numbers = (cfg.n_obs_steps, *self.spec.observation_shape), ("terminated", "truncated")
        own: dict[str, tuple[int, ...]] = dict.fromkeys((*numbers, "advantages", "returns"), ())
        own |= {"observations": seen, "next_observations": seen, "log_probs": (cfg.tuned,)}
        own |= {"chain": (cfg.tuned + 1, *chunk)}
        own |= dict.fromkeys(("rewards", "executed"), (cfg.n_action_steps,))
        return own, {"moments": (3,), "so_far": (cfg.environments,)}

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Standard normal numbers that an exploring decision takes."""
        return self.cfg.num_inference_steps + 1, self.cfg.horizon, self.spec.action_dim

    def table(self, eta: float) -> Table:
        """The sampler's."""
        cfg = self.cfg
        if cfg.process == "flow":
            return euler(cfg.num_inference_steps, eta)
        alphas = cosine_alphas(cfg.num_train_timesteps)
        if cfg.sampler == "ddpm":
            return ddpm(alphas, cfg.num_inference_steps, cfg.prediction_type)
        return ddim(alphas, cfg.num_inference_steps, cfg.prediction_type, eta)

    def networks(self) -> dict[str, nn.Module]:
        """`model` learns and is a part of `policy`, which acts."""
        cfg = self.cfg
        options = cfg.head_options(self.spec) | {"table": self.table(0.0)}
        tuned = {} if cfg.tuned == cfg.num_inference_steps else {"tuned": cfg.tuned}
        policy = TunedActor(**options, **tuned) if tuned else DiffusionActor(**options)
        value = Value(
            cfg.n_obs_steps * self.spec.observation_dim, cfg.value_hidden, activation="mish"
        )
        model = DiffusionActor(**options)
        for part in (policy.network, *([policy.base] if isinstance(policy, TunedActor) else [])):
            part.load_state_dict(model.network.state_dict())
        return {"model": model, "policy": policy, "value": value}

    def initialize_from(
        self, own: Mapping[str, Tensor], other: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The other's acting policy is where the model begins, and what came before it stays."""
        taken = {**own, "counters/update": other["counters/update"]}
        for name, value in own.items():
            kind, network, *rest = name.split("/", 2)
            if kind != "params" or network not in self.initialized_from_run:
                continue
            found = other.get(f"params/policy/network.{rest[0].split('.', 1)[1]}")
            if found is None or found.shape != value.shape:
                raise ValueError(f"{name}, {tuple(value.shape)}, is missing or of another shape")
            taken[name] = found
        return taken

    def decide(self, state: State, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Observations [E, n_obs_steps, O] and noise -> chains, actions [E, n_action_steps, A]."""
        chain = self.chain(state, state.model, given["observations"], given["noise"])
        return {"chain": chain, "actions": self.executed_actions(chain)}

    def chain(self, state: State, by: Network, seen: Tensor, noise: Tensor) -> Tensor:
        """Chains [E, K'+1, T, A] of which `by` took the last steps, and the policy those before."""
        cfg = self.cfg

        def base(x: Tensor, times: Tensor) -> Tensor:
            before: Tensor = state.policy.before(seen, x, times)
            return before

        def model(x: Tensor, times: Tensor) -> Tensor:
            told: Tensor = by(seen, x, times)
            return told

        options: Any = {"floor": cfg.sampling_floor, "ceiling": self.max_std, "cut": cfg.noise_max}
        return sample_chain(self.table(cfg.eta), base, model, noise, tuned=cfg.tuned, **options)

    def executed_actions(self, chain: Tensor) -> Tensor:
        """The actions at chains' ends that are executed, [E, n_action_steps, A]."""
        head: Any = self.modules["model"]
        first = self.cfg.n_obs_steps - 1
        chunk = chain[:, -1, first : first + self.cfg.n_action_steps].clip(-1, 1)
        return head.raw(chunk).clip(-1, 1)

    def compute_advantages(self, state: State, data: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Advantages, and what the policy thinks of its own steps, before any update on them."""
        cfg, moments, n = self.cfg, data["moments"], data["executed"].sum(-1)  # [T, E]
        gamma = torch.ones_like(n) * cfg.discount
        rewards = (
            data["rewards"] * gamma[..., None] ** torch.arange(cfg.n_action_steps, device=n.device)
        ).sum(-1)
        ended = data["terminated"] + data["truncated"]
        so_far = running_returns(rewards, ended, data["so_far"], gamma**n)
        made = {"so_far": so_far[-1] * (1 - ended[-1])}
        if cfg.scale_rewards:
            fresh = moments.new_tensor([FIRST_COUNT, 0.0, 1.0])
            moments = update_moments(torch.where(moments[0] > 0, moments, fresh), so_far)
            rewards = normalize_rewards(rewards, moments)
        values, following = (
            state.value(data[name].flatten(2)) for name in ("observations", "next_observations")
        )
        discount = gamma**n * (1 - data["terminated"])
        gained = gae(rewards, values, following, discount, ended, cfg.trace)
        seen, chain, taken = (data[x].flatten(0, 1) for x in ("observations", "chain", "executed"))
        log_probs = self.chain_log_probs(state.model, seen, chain, taken).unflatten(0, n.shape)
        made |= {"moments": moments, "advantages": gained, "returns": gained + values}
        return made | {"log_probs": log_probs}

    def chain_log_probs(self, by: Network, seen: Tensor, chain: Tensor, executed: Tensor) -> Tensor:
        """Log densities of chains' steps as `by` takes them, [N, K']."""

        def model(x: Tensor, times: Tensor) -> Tensor:
            told: Tensor = by(seen, x, times)
            return told

        table, floor = self.table(self.cfg.eta), self.cfg.density_floor
        found = replay_log_prob(table, model, chain, floor, self.max_std)
        steps = [self.executed_log_prob(found[:, k], executed) for k in range(self.cfg.tuned)]
        return torch.stack(steps, -1)

    def executed_log_prob(self, densities: Tensor, executed: Tensor) -> Tensor:
        """[B, T, A] -> [B]: the mean over the actions that were taken."""
        return mean_over_executed(densities.clamp(*DENSITIES), executed, self.cfg.n_obs_steps - 1)

    def sampler_rows(self, batch: Decisions) -> Tensor:
        """Those of each step's round, [B, 8]; made outside of losses, where no tensor may be."""
        return table_rows(self.table(self.cfg.eta), self.cfg.tuned, batch.chain)[batch.step]

    def density(self, model: Network, batch: Decisions, numbers: Tensor) -> Tensor:
        """Log densities of a batch's denoising steps, [B], as `digest` has them."""
        cfg, k = self.cfg, batch.step
        own = torch.arange(len(k), device=k.device)

        def answer(x: Tensor, times: Tensor) -> Tensor:
            told: Tensor = model(batch.observations, x, times)
            return told

        mean, spread = transition_params(answer, numbers, batch.chain[own, k])
        spread = clamp_std(spread, cfg.density_floor, self.max_std)
        return self.executed_log_prob(
            normal_log_prob(batch.chain[own, k + 1], mean, spread), batch.executed
        )

    def update_policy(
        self, state: State, batch: Decisions, gained: Tensor, clip: float | Tensor
    ) -> tuple[State, Metrics]:
        """One step of the model on the clipped loss.  gained: advantages, [B], as `clip` may be."""
        numbers = self.sampler_rows(batch)
        before = batch.log_probs.gather(1, batch.step[:, None])[:, 0]  # [B]

        def policy_loss(model: Network) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            found = clipped_loss(self.density(model, batch, numbers) - before, gained, clip)
            return found.loss, (found.divergence, found.share)

        state, value, (divergence, share) = minimize_with(state, "model", policy_loss)
        return state, {"policy_loss": value, "divergence": divergence, "clipped": share}

    def update_value(
        self, state: State, batch: Decisions, weight: float = 1.0
    ) -> tuple[State, Metrics]:
        """One step of the critic.  weight: of its squared error."""

        def value_loss(value: Network) -> Tensor:
            return weight * (value(batch.observations.flatten(1)) - batch.returns).square().mean()

        state, loss = minimize(state, "value", value_loss)
        return state, {"value_loss": loss, "returns": batch.returns.mean()}

    def updates_before_policy(self, phase: str) -> tuple[int, str]:
        iterations = self.cfg.value_warmup if phase == schedule.ONLINE else 0
        return iterations * self.updates, "algorithm.value_warmup"

    def in_critic_warmup(self, state: State) -> Tensor:
        """Whether what the policy learns is not kept yet; 0-d."""
        return state.done < self.updates_before_policy(schedule.ONLINE)[0]

    def copy_to_policy(self, state: State) -> State:
        """With the model's weights in the policy."""
        policy = {**state.params["policy"], **state.params["model"]}
        return replace(state, params={**state.params, "policy": policy})
