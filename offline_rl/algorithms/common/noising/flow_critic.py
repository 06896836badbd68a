"""Common parts of methods with a flow policy and critics of action chunks.

Batches are `replay.chunks.Chunks` with one observation. All actions of a chunk are executed open
loop. With horizon=1, a chunk is a single action.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.actor_critic import ActorCritic, ActorCriticConfig
from offline_rl.algorithms.common.base import DATA_THEN_ONLINE, Loss, Network, State
from offline_rl.algorithms.common.config import BUILT, Ensemble, Sizes
from offline_rl.algorithms.common.critics import Critic, aggregate_q
from offline_rl.algorithms.common.noising.targets import flow_targets
from offline_rl.data.transform import ActionClip
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.chunks import Chunks
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Count, NonNegative, frozen
from policies.heads.best_of_n import BestOfN, repeat_rows, select_rows
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import euler
from policies.networks.init import xavier_init
from policies.networks.mlp import Activation

Partial = Annotated[Literal["bootstrap", "drop"], BUILT]


@frozen
class FlowConfig(ActorCriticConfig):
    """Defaults: seohongpark/fql and ColinQiyangLi/qc."""

    q_aggregate: Annotated[Literal["mean", "min"], BUILT] = (
        "mean"  # how the critics' values are combined
    )
    rho: NonNegative = 0.0  # target values: mean - rho * standard deviation of the critics
    num_critics: Ensemble = 2  # number of critics (E)
    num_inference_steps: Count = 10  # integration steps of the flow from noise to a chunk
    horizon: Annotated[Count, BUILT] = 1  # actions of a chunk; all of them are executed
    partial: Partial = "bootstrap"  # drop: chunks cut short by an episode's end have no critic loss
    hidden: Sizes = (512, 512, 512, 512)
    activation: Activation = "gelu_tanh"
    clip_actions: ActionClip = 1 - 1e-5  # clip the data's actions to +- this, as the authors do

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"num_inference_steps": 3}


class FlowCritic(ActorCritic):
    """Method with a flow policy, which imitates the data's chunks, and critics of chunks."""

    Online: type = schedule.OneBuffer
    mode = DATA_THEN_ONLINE

    def source(self, phase: str, sources: Sources) -> Source:
        if (n_step := self.interaction.online.n_step) > 1:
            raise UserError(
                f"online.n_step={n_step} is not used: rewards are summed over the horizon="
                f"{self.cfg.horizon} actions of a chunk. Use 1."
            )
        length, partial = self.cfg.horizon, self.cfg.partial
        shape: Any = {"n_obs_steps": 1, "horizon": length, "n_action_steps": length}
        chunks = {name: Chunks(x, partial=partial, **shape) for name, x in sources.items()}
        return super().source(phase, chunks)

    def flow(self) -> DiffusionActor:
        """Return the flow policy, whose network predicts velocities."""
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        options = {"hidden": [*cfg.hidden], "activation": cfg.activation}
        shape = {"n_obs_steps": 1, "horizon": cfg.horizon, "n_action_steps": cfg.horizon}
        table = euler(cfg.num_inference_steps)
        return DiffusionActor(obs, act, network="plain", options=options, table=table, **shape)

    def critic(self) -> nn.Module:
        return self.q_network(self.spec.observation_dim, self.spec.action_dim * self.cfg.horizon)

    def q_network(self, observations: int, actions: int) -> nn.Module:
        """Return critics for inputs of these sizes."""
        options = {"ensemble": self.cfg.num_critics, **self.value_options}
        return Critic(observations, actions, self.cfg.hidden, **options)

    @property
    def value_options(self) -> dict[str, Any]:
        """Options of the networks of Q and V."""
        norm: dict[str, Any] = {"layer_norm": True, "norm_after_activation": True, "norm_eps": 1e-6}
        return norm | {"activation": self.cfg.activation, "init": xavier_init}

    def target(self, state: State, batch: Batch, next_chunks: Tensor) -> Tensor:
        """Return r + discount * Q(s', next_chunks), [B].  next_chunks: [B, H, A]."""
        s2 = batch.next_observations.flatten(1)
        q = state.critic_target(s2, next_chunks.flatten(1))  # [E, B]
        return batch.rewards + batch.discount * aggregate_q(q, self.cfg.q_aggregate, self.cfg.rho)

    def critic_loss(self, batch: Batch, target: Tensor) -> Loss:
        """Return the loss of the critics: squared error, mean over the ensemble and the batch."""
        s, chunks = batch.observations.flatten(1), batch.actions.flatten(1)

        def loss(critic: Network) -> Tensor:
            error = (critic(s, chunks) - target).square()  # [E, B]
            return (error if batch.weights is None else error * batch.weights).mean()

        return loss

    def flow_loss(self, state: State, batch: Batch) -> Loss:
        """Return the loss of the flow: squared error of the velocity at uniform flow times.

        In the mean, the error of steps after the end of an episode is 0.
        """
        x, times, velocity = flow_targets(state.random, batch.actions, 1, 1.0, 1.0)  # [1, B, H, A]
        valid = batch.valid
        assert valid is not None

        def loss(flow: Network) -> Tensor:
            error = (flow(batch.observations, x, times) - velocity).square()
            return (error * valid[..., None]).mean()

        return loss


class BestOfNChunks(FlowCritic):
    """Method that executes the best of `num_samples` chunks, by the values of the critics."""

    acts = ("policy", "critic")

    def actor(self) -> nn.Module:
        return self.flow()

    def acting_head(self) -> BestOfN:
        policy, critic = (cast("Any", self.modules[name]) for name in self.acts)
        options: Any = {"num_samples": self.cfg.num_samples, "aggregate": self.cfg.q_aggregate}
        return BestOfN(type(policy).__name__, policy.arguments, critic.arguments, **options)

    def best_chunks(self, state: State, observations: Tensor) -> Tensor:
        """Return the chunks that the policy executes, [B, H, A], for observations [B, 1, O]."""
        count, policy = self.cfg.num_samples, cast("Any", self.modules["policy"])
        s = repeat_rows(observations, count)  # [B * N, 1, O]
        chunks, _ = state.policy.decide(s, {}, state.random.normal((len(s), *policy.noise_shape)))
        q = state.critic(s.flatten(1), chunks.flatten(1))  # [E, B * N]
        values = aggregate_q(q, self.cfg.q_aggregate).unflatten(0, (-1, count))  # [B, N]
        return select_rows(chunks, values.argmax(1), count)
