"""Common parts of methods that apply RL to a policy's denoising steps (DPPO, RL-100).

`model` is trained. `policy` acts: it holds the model's weights and, for earlier denoising steps,
the pretrained ones (`TunedActor`). An iteration collects decisions with their denoising chains
(`replay.rollouts`), computes all advantages once (`compute_advantages`), and then trains on pairs
of a decision and one of its denoising steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import Metrics, Mode, Network, State, minimize
from offline_rl.algorithms.common.chunk_cloning import Built, DenoiserShape
from offline_rl.algorithms.common.config import BUILT, SAME, Discount, Fraction, Sizes
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
from offline_rl.algorithms.common.on_policy.ppo import clipped_loss
from offline_rl.algorithms.common.on_policy.rollouts import OnPolicy
from offline_rl.replay.rollouts import Decisions, Shapes
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Amount, Count, Positive, Range, Share, frozen
from policies.heads.diffusion import DiffusionActor, TunedActor
from policies.heads.schedules import Table, cosine_alphas, ddim, ddpm, euler

DENSITIES = (-5.0, 2.0)  # bounds of log densities in ratios, as in DPPO's code


@frozen
class ChainConfig(DenoiserShape):
    """Defaults: DPPO's for gym (irom-princeton/dppo:cfg/gym/finetune)."""

    process: Annotated[Literal["ddpm", "flow"], BUILT] = "ddpm"  # the run's diffusion process
    num_train_timesteps: Built = 100  # noise levels of the run's ddpm schedule
    prediction_type: Annotated[Literal["epsilon", "sample"], BUILT] = (
        "epsilon"  # what the run's ddpm network predicts
    )
    sampler: Annotated[Literal["ddpm", "ddim"], BUILT] = "ddpm"  # sampler for process=ddpm
    num_inference_steps: Built = 20  # denoising steps
    tuned: Built = 10  # last denoising steps, which are fine-tuned (K')
    eta: Annotated[Fraction, SAME] = 1.0  # noise of ddim and flow steps, only in exploration
    sampling_floor: Positive = 0.1  # minimum std of a denoising step in exploration
    density_floor: Positive = 0.1  # minimum std in log densities
    noise_max: Annotated[float, Range(above=0), BUILT] = 3.0  # noise is clipped to +- this
    environments: Built = 40  # parallel environments per seed
    decisions: Built = 20_000  # decisions per iteration, over all environments
    batch_size: Count = 50_000  # denoising steps per update
    discount: Discount = 0.9975  # discount factor gamma per environment step
    trace: Share = 0.95  # lambda of generalized advantage estimation
    scale_rewards: bool = True  # divide rewards by the standard deviation of running returns

    epochs: Built = 5  # passes over an iteration's denoising steps
    value_warmup: Amount = 0  # iterations in which only the critic is updated
    value_hidden: Sizes = (256, 256, 256)  # units of each hidden layer of the critic

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tuned > self.num_inference_steps:
            raise ValueError(
                f"tuned={self.tuned} exceeds num_inference_steps={self.num_inference_steps}. "
                "Use at most that."
            )
        if self.process == "ddpm" and self.num_inference_steps > self.num_train_timesteps:
            raise ValueError(
                f"num_inference_steps={self.num_inference_steps} exceeds "
                f"num_train_timesteps={self.num_train_timesteps}. Use at most that."
            )
        if self.decisions % self.environments:
            raise ValueError(
                f"decisions={self.decisions} is not a multiple of environments={self.environments}."
            )
        pairs = self.decisions * self.tuned
        if pairs % self.batch_size:
            nearest = min(range(1, pairs + 1), key=lambda n: (pairs % n, abs(n - self.batch_size)))
            raise ValueError(
                f"batch_size={self.batch_size} does not divide decisions x tuned = {pairs}. "
                f"Use {nearest}."
            )

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {
            "num_train_timesteps": 10,
            "tuned": 3,
            "environments": 4,
            "decisions": 32,
            "epochs": 2,
            "value_hidden": (16,),
        }


class DenoisingRL(OnPolicy):
    """RL on denoising steps.

    A subclass defines `optimizers`, and an `update` that ends in `copy_to_policy`.
    """

    mode = Mode(
        start="run",
        runs="a run of diffusion_policy with process=ddpm, or of flow_policy",
        learns=("environment",),
    )
    max_std: float = math.inf  # of a denoising step
    # networks that start as the run's policy
    initialized_from_run: ClassVar[tuple[str, ...]] = ("model", "policy")

    @classmethod
    def config_from_run(cls, algorithm: str, hyper: Mapping[str, Any]) -> dict[str, Any]:
        process = {"diffusion_policy": hyper.get("process", "ddpm"), "flow_policy": "flow"}
        if (kind := process.get(algorithm)) in ("ddpm", "flow"):
            return {"process": kind}
        reason = "it is no diffusion or flow policy"
        if "horizon" in hyper and "num_inference_steps" in hyper:
            reason = "its denoising steps are deterministic and have no density"
        if "tuned" in hyper:
            reason = "it applies RL to denoising steps itself"
        raise UserError(
            f"{cls.__name__.lower()} cannot continue from {algorithm}: {reason}. "
            f"Use {DenoisingRL.mode.runs}."
        )

    def columns(self) -> tuple[Shapes, Shapes]:
        """Return the column shapes of a decision, and of values carried to the next rollout."""
        cfg, chunk = self.cfg, (self.cfg.horizon, self.spec.action_dim)
        history = (cfg.n_obs_steps, *self.spec.observation_shape)
        scalars = ("terminated", "truncated", "advantages", "returns")
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(scalars, ())
        shapes |= {"observations": history, "next_observations": history}
        shapes |= {"log_probs": (cfg.tuned,), "chain": (cfg.tuned + 1, *chunk)}
        shapes |= dict.fromkeys(("rewards", "executed"), (cfg.n_action_steps,))
        return shapes, {"moments": (3,), "so_far": (cfg.environments,)}

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of the standard normal noise of one exploring decision."""
        return self.cfg.num_inference_steps + 1, self.cfg.horizon, self.spec.action_dim

    def table(self, eta: float) -> Table:
        """Return the sampler's table."""
        cfg = self.cfg
        if cfg.process == "flow":
            return euler(cfg.num_inference_steps, eta)
        alphas = cosine_alphas(cfg.num_train_timesteps)
        if cfg.sampler == "ddpm":
            return ddpm(alphas, cfg.num_inference_steps, cfg.prediction_type)
        return ddim(alphas, cfg.num_inference_steps, cfg.prediction_type, eta)

    def networks(self) -> dict[str, nn.Module]:
        """Return the trained `model`, the acting `policy` that contains it, and `value`."""
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
        self, initial: Mapping[str, Tensor], other: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Initialize model and policy from the policy of another run."""
        result = {**initial, "counters/update": other["counters/update"]}
        for name, value in initial.items():
            kind, network, *rest = name.split("/", 2)
            if kind != "params" or network not in self.initialized_from_run:
                continue
            weights = other.get(f"params/policy/network.{rest[0].split('.', 1)[1]}")
            if weights is None or weights.shape != value.shape:
                raise ValueError(f"{name}, {tuple(value.shape)}, is missing or has another shape")
            result[name] = weights
        return result

    def decide(self, state: State, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return chains and actions [E, n_action_steps, A] for observations and noise.

        observations: [E, n_obs_steps, O].
        """
        chain = self.chain(state, state.model, inputs["observations"], inputs["noise"])
        return {"chain": chain, "actions": self.executed_actions(chain)}

    def chain(self, state: State, network: Network, observations: Tensor, noise: Tensor) -> Tensor:
        """Return denoising chains [E, K'+1, T, A].

        network: predicts in the last `tuned` steps; in earlier steps, the pretrained policy does.
        """
        cfg = self.cfg

        def base(x: Tensor, times: Tensor) -> Tensor:
            prediction: Tensor = state.policy.predict_pretrained(observations, x, times)
            return prediction

        def model(x: Tensor, times: Tensor) -> Tensor:
            prediction: Tensor = network(observations, x, times)
            return prediction

        options: Any = {"floor": cfg.sampling_floor, "ceiling": self.max_std, "cut": cfg.noise_max}
        return sample_chain(self.table(cfg.eta), base, model, noise, tuned=cfg.tuned, **options)

    def executed_actions(self, chain: Tensor) -> Tensor:
        """Return the executed actions at the end of chains, [E, n_action_steps, A]."""
        head: Any = self.modules["model"]
        first = self.cfg.n_obs_steps - 1
        chunk = chain[:, -1, first : first + self.cfg.n_action_steps].clip(-1, 1)
        return head.denormalize_actions(chunk).clip(-1, 1)

    def compute_advantages(self, state: State, data: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return advantages, returns and log densities before any update on a rollout."""
        flat = (data[name].flatten(0, 1) for name in ("observations", "chain", "executed"))
        log_probs = self.chain_log_probs(state.model, *flat)
        sizes = data["terminated"].shape  # T, E
        return self.advantages_of(state.value, data) | {"log_probs": log_probs.unflatten(0, sizes)}

    def chain_log_probs(
        self, network: Network, observations: Tensor, chain: Tensor, executed: Tensor
    ) -> Tensor:
        """Return the log density of each step of chains under `network`, [N, K']."""

        def model(x: Tensor, times: Tensor) -> Tensor:
            prediction: Tensor = network(observations, x, times)
            return prediction

        table, floor = self.table(self.cfg.eta), self.cfg.density_floor
        densities = replay_log_prob(table, model, chain, floor, self.max_std)
        steps = [self.executed_log_prob(densities[:, k], executed) for k in range(self.cfg.tuned)]
        return torch.stack(steps, -1)

    def executed_log_prob(self, densities: Tensor, executed: Tensor) -> Tensor:
        """Return log densities [B, T, A] averaged over the executed actions, [B]."""
        return mean_over_executed(densities.clamp(*DENSITIES), executed, self.cfg.n_obs_steps - 1)

    def sampler_rows(self, batch: Decisions) -> Tensor:
        """Return the sampler-table row of each denoising step in a batch, [B, 8].

        Call it outside losses: they cannot create tensors.
        """
        return table_rows(self.table(self.cfg.eta), self.cfg.tuned, batch.chain)[batch.step]

    def density(self, model: Network, batch: Decisions, rows: Tensor) -> Tensor:
        """Return the log density of a batch's denoising steps, [B], as in `chain_log_probs`."""
        cfg, k = self.cfg, batch.step
        i = torch.arange(len(k), device=k.device)

        def predict(x: Tensor, times: Tensor) -> Tensor:
            prediction: Tensor = model(batch.observations, x, times)
            return prediction

        mean, std = transition_params(predict, rows, batch.chain[i, k])
        std = clamp_std(std, cfg.density_floor, self.max_std)
        return self.executed_log_prob(
            normal_log_prob(batch.chain[i, k + 1], mean, std), batch.executed
        )

    def update_policy(
        self, state: State, batch: Decisions, advantages: Tensor, clip: float | Tensor
    ) -> tuple[State, Metrics]:
        """Update the model on the clipped PPO loss. advantages, clip: [B], clip also a number."""
        rows = self.sampler_rows(batch)
        old_log_prob = batch.log_probs.gather(1, batch.step[:, None])[:, 0]  # [B]

        def policy_loss(model: Network) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            log_ratio = self.density(model, batch, rows) - old_log_prob
            result = clipped_loss(log_ratio, advantages, clip)
            return result.loss, (result.divergence, result.share)

        state, value, (divergence, share) = minimize(state, "model", policy_loss)
        return state, {"policy_loss": value, "divergence": divergence, "clipped": share}

    def update_value(
        self, state: State, batch: Decisions, weight: float = 1.0
    ) -> tuple[State, Metrics]:
        """Update the critic on `weight` times the squared error."""

        def value_loss(value: Network) -> Tensor:
            return weight * (value(batch.observations.flatten(1)) - batch.returns).square().mean()

        state, loss = minimize(state, "value", value_loss)
        return state, {"value_loss": loss, "returns": batch.returns.mean()}

    def updates_before_policy(self, phase: str) -> tuple[int, str]:
        iterations = self.cfg.value_warmup if phase == schedule.ONLINE else 0
        return iterations * self.updates, "algorithm.value_warmup"

    def in_critic_warmup(self, state: State) -> Tensor:
        """True while the policy is not updated yet, 0-d."""
        return state.done < self.updates_before_policy(schedule.ONLINE)[0]

    def copy_to_policy(self, state: State) -> State:
        """Copy the model's weights into the policy."""
        policy = {**state.params["policy"], **state.params["model"]}
        return replace(state, params={**state.params, "policy": policy})
