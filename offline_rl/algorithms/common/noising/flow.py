"""Flow policies of actions and their critics, with the networks of seohongpark/fql."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from offline_rl.algorithms.common.base import Network, State, minimize
from offline_rl.algorithms.common.critics import Critic
from offline_rl.algorithms.common.noising.targets import flow_targets
from offline_rl.replay.batch import Batch
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import euler
from policies.networks.init import xavier_init
from policies.spec import Spec

# layer normalization of values: after the activation, with the epsilon of flax
NORM: dict[str, Any] = {"layer_norm": True, "norm_after_activation": True, "norm_eps": 1e-6}


def build_flow(spec: Spec, cfg: Any) -> DiffusionActor:
    """Return a flow policy of chunks, all of whose actions are executed."""
    options = {"hidden": [*cfg.hidden], "activation": cfg.activation}
    shape = {"n_obs_steps": 1, "horizon": cfg.horizon, "n_action_steps": cfg.horizon}
    table, sizes = euler(cfg.num_inference_steps), (spec.observation_dim, spec.action_dim)
    return DiffusionActor(*sizes, network="plain", options=options, table=table, **shape)


def build_critic(spec: Spec, cfg: Any) -> nn.Module:
    """Return the critics of chunks."""
    options = NORM | {"activation": cfg.activation, "init": xavier_init}
    return Critic(spec.observation_dim, cfg.horizon * spec.action_dim, cfg.hidden, **options)


def imitate(state: State, name: str, batch: Batch) -> tuple[State, Tensor]:
    """Return the state after an update of the flow policy `name`, and its loss.

    The loss is the squared error of velocities at uniform times, a mean over all steps and actions.
    Steps that only repeat the last action of an episode count as 0.
    """
    x, times, velocity = flow_targets(state.random, batch.actions, 1, 1.0, 1.0)  # [1, B, H, A]
    assert batch.valid is not None

    def loss(flow: Network) -> Tensor:
        error = (flow(batch.observations, x, times) - velocity).square()[0]
        return (error * batch.valid[..., None]).mean()

    return minimize(state, name, loss)
