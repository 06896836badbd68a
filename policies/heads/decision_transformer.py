"""Decision Transformers: causal transformers over return-to-go, observation and action tokens.

    tokens   R0 o0 a0 | R1 o1 a1 | …      a token attends to itself and the tokens to its left
    output      a0    |    a1    | …      the observation token of a step predicts its action

The constrained variant has a fourth token, the cost-to-go, after the return-to-go.

Shapes: B batch, T step of the context, K token of a step, D embedding size, H attention head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from policies.episodes import COSTS, EXECUTED, REWARDS
from policies.heads.head import Head, Memory, steps_since
from policies.networks.dropout import Random, hidden_dropout
from policies.networks.init import normal_init
from policies.networks.mlp import MLP, Activation, LayerNorm
from policies.networks.transformer import Block


class DecisionTransformer(Head):
    """A return-conditioned policy (Chen et al., arXiv:2106.01345).

    The three tokens of a step share a learned embedding of the timestep in the episode. There is no
    other position embedding. The memory holds the last `context_length` decisions. The
    return-to-go starts at `target_return` and decreases by each reward.
    """

    # entries of the memory that decrease by what the environment reports, and its name
    to_go: ClassVar[Mapping[str, str]] = {"returns": REWARDS}

    def __init__(
        self,
        observations: int,
        actions: int,
        *,
        target_return: float,
        return_scale: float = 1.0,
        context_length: int = 20,
        dim_model: int = 128,
        num_layers: int = 3,
        num_heads: int = 1,
        episode_steps: int = 1000,
        dropout_rate: float = 0.0,
        activation: Activation = "relu",
    ) -> None:
        """Create the head.

        target_return: raw return-to-go at the start of an episode.
        return_scale: the network input is the return-to-go divided by this.
        context_length: number of steps in the memory.
        episode_steps: number of timestep embeddings; later timesteps use the last one.
        dropout_rate: in training only.
        activation: activation in the blocks. Subclasses pass it; it is not an argument of bundles.
        """
        super().__init__()
        if dim_model % num_heads:
            raise ValueError(f"dim_model={dim_model} is not a multiple of num_heads={num_heads}")
        self.arguments = {
            "observations": observations,
            "actions": actions,
            "target_return": target_return,
            "return_scale": return_scale,
            "context_length": context_length,
            "dim_model": dim_model,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "episode_steps": episode_steps,
        }
        self.context_length, self.target_return, self.return_scale = (
            context_length,
            target_return,
            return_scale,
        )
        self.observations, self.actions, self.dropout_rate = observations, actions, dropout_rate
        self.embed_return = MLP(1, dim_model, ())
        self.embed_observation = MLP(observations, dim_model, ())
        self.embed_action = MLP(actions, dim_model, ())
        self.embed_place = nn.Parameter(
            torch.randn(episode_steps, dim_model)
        )  # timestep embeddings
        self.norm_in = LayerNorm(dim_model)
        self.norm_out: nn.Module = LayerNorm(dim_model)
        self.blocks = nn.ModuleList(
            Block(dim_model, num_heads, activation) for _ in range(num_layers)
        )
        self.head = MLP(dim_model, actions, ())

    def forward(
        self,
        observations: Tensor,
        actions: Tensor,
        returns: Tensor,
        timesteps: Tensor,
        real: Tensor,
        random: Random | None = None,
    ) -> Tensor:
        """Return the action of each step, [B, T, A].

        observations: [B, T, O].  actions: [B, T, A].  returns: [B, T], raw returns-to-go.
        timesteps: [B, T], int.  real: [B, T], False for padding. No other step attends to padding,
        and the returned actions of padding are meaningless.
        random: source of random numbers for dropout, in training only.
        """
        tokens = [*self.condition_tokens(returns, observations), self.embed_action(actions)]
        return self.head(self.transform(tokens, timesteps, real, random)[:, :, 1]).tanh()

    def condition_tokens(self, returns: Tensor, observations: Tensor) -> list[Tensor]:
        """Return the tokens of returns-to-go [...] and observations [..., O], [..., D] each."""
        scaled = returns[..., None] / self.return_scale
        return [self.embed_return(scaled), self.embed_observation(observations)]

    def transform(
        self,
        tokens: Sequence[Tensor],
        timesteps: Tensor,
        real: Tensor,
        random: Random | None = None,
    ) -> Tensor:
        """Return the outputs of the transformer for each token, [B, T, K, D].

        tokens: the K tokens of each step, [B, T, D] each. Other arguments: see `forward`.
        """
        drop = hidden_dropout(self.dropout_rate, random) or (lambda x: x)
        time_embedding = self.embed_time(timesteps)  # [B, T, D]
        x = (torch.stack(tuple(tokens), -2) + time_embedding[..., None, :]).flatten(1, 2)
        size, count = len(tokens), x.shape[1]
        real_tokens = real[..., None].expand(*real.shape, size).flatten(1)[:, None]  # [B, 1, T K]
        order = torch.arange(count, device=x.device)
        allowed = (order <= order[:, None]) & (real_tokens | (order == order[:, None]))
        x = drop(self.norm_in(x))
        for block in self.blocks:
            x = block(x, allowed, drop)
        normalized: Tensor = self.norm_out(x)
        return normalized.unflatten(1, (-1, size))

    def embed_time(self, timesteps: Tensor) -> Tensor:
        """Return the time embeddings [..., D] of timesteps [...]."""
        indices = torch.arange(len(self.embed_place), device=timesteps.device)
        one_hot = timesteps.clamp(0, len(self.embed_place) - 1)[..., None] == indices
        # a matrix multiplication instead of an index lookup, because the order in which threads sum
        # the gradient of a lookup varies
        return one_hot.float() @ self.embed_place

    def predict_last(self, context: Memory) -> Tensor:
        """Return the action of the last step of a context, [B, A]. context: see `forward`."""
        actions: Tensor = self(**context)[:, -1]
        return actions

    def initial_memory(self, batch: int) -> Memory:
        """See `Head.initial_memory`. All steps are padding."""
        shape = (batch, self.context_length)
        return {
            "observations": torch.zeros(*shape, self.observations),
            "actions": torch.zeros(*shape, self.actions),
            "returns": torch.full(shape, float(self.target_return)),
            "timesteps": torch.full(shape, -1, dtype=torch.int64),
            "real": torch.zeros(shape, dtype=torch.bool),
            REWARDS: torch.zeros(batch),
            EXECUTED: torch.zeros(batch),
        }

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`. Drops the oldest step of the memory and appends the present step."""
        reported = {name: memory[name] for name in (*self.to_go.values(), EXECUTED)}
        steps = {name: values for name, values in memory.items() if name not in reported}
        last_step = {name: values[:, -1] for name, values in steps.items()}
        step = last_step | {
            "observations": observations[:, -1],
            "actions": torch.zeros_like(last_step["actions"]),  # placeholder, not used
            "timesteps": last_step["timesteps"] + steps_since(memory).long(),
            "real": torch.ones_like(last_step["real"]),
        }
        step |= {name: last_step[name] - reported[kind] for name, kind in self.to_go.items()}
        context = {k: torch.cat([steps[k][:, 1:], v[:, None]], 1) for k, v in step.items()}
        actions = self.predict_last(context)
        context["actions"] = torch.cat([context["actions"][:, :-1], actions[:, None]], 1)
        return actions[:, None], context | reported


class Prediction(NamedTuple):
    """Outputs of a `ConstrainedTransformer` for each step."""

    mean: Tensor  # [B, T, A], of the normal distribution of the action; not clipped
    log_std: Tensor  # [B, T, A]
    cost_logits: Tensor  # [B, T, 2], of a step without and with a cost; they know the action


class ConstrainedTransformer(DecisionTransformer):
    """A policy conditioned on a return and a cost limit (Liu et al., arXiv:2302.07351).

    It is a Decision Transformer with a cost-to-go token, a normal distribution over actions, and a
    prediction of each step's cost. The cost-to-go starts at `target_cost` and decreases by each
    cost. The mean acts, clipped to [-1, 1].
    """

    to_go: ClassVar[Mapping[str, str]] = {"returns": REWARDS, "costs_to_go": COSTS}

    def __init__(
        self,
        observations: int,
        actions: int,
        *,
        target_cost: float,
        target_return: float | None = None,
        cost_limits: Sequence[float] = (),
        target_returns: Sequence[float] = (),
        cost_shift: float = 50.0,
        dim_model: int = 128,
        dropout_rate: float = 0.0,
        **options: float,
    ) -> None:
        """Create the head.

        target_cost: limit on the undiscounted cost of an episode.
        target_return: raw return to condition on. None: the value at `target_cost` of the table
        with the returns `target_returns` at the increasing costs `cost_limits`. It is interpolated
        linearly and constant outside of the table.
        cost_shift: the network input is this minus the cost-to-go.
        options: those of `DecisionTransformer`.
        """
        if target_return is None and not cost_limits:
            raise ValueError("target_return is None, and there is no table of target returns")
        aim = target_return
        if aim is None:
            aim = float(np.interp(target_cost, cost_limits, target_returns))
        sizes: dict[str, Any] = {"dim_model": dim_model, "dropout_rate": dropout_rate, **options}
        super().__init__(observations, actions, target_return=aim, activation="gelu", **sizes)
        self.arguments |= {
            "target_return": target_return,
            "target_cost": target_cost,
            "cost_limits": [*cost_limits],
            "target_returns": [*target_returns],
            "cost_shift": cost_shift,
        }
        self.target_cost, self.cost_shift = target_cost, cost_shift
        self.embed_cost = MLP(1, dim_model, ())
        self.head = MLP(dim_model, 2 * actions, ())
        self.cost_head = MLP(dim_model, 2, ())
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize weights and time step embeddings normally, as the authors do."""
        init = normal_init(0.02)
        nn.init.normal_(self.embed_place, std=0.02)
        for mlp in (module for module in self.modules() if isinstance(module, MLP)):
            for weight, bias in zip(mlp.weights, mlp.biases, strict=True):
                init(weight, bias, len(weight), False)
        for block in self.blocks:
            attention_in: Any = block.attention_in
            nn.init.xavier_uniform_(attention_in.weights[0])

    def forward(  # type: ignore[override]
        self,
        observations: Tensor,
        actions: Tensor,
        returns: Tensor,
        timesteps: Tensor,
        real: Tensor,
        random: Random | None = None,
        *,
        costs_to_go: Tensor,
    ) -> Prediction:
        """Return the predictions for each step.

        costs_to_go: [B, T], undiscounted.  Other arguments: see `DecisionTransformer.forward`.
        """
        tokens = [
            self.embed_return(returns[..., None] / self.return_scale),
            self.embed_cost(self.cost_shift - costs_to_go[..., None]),
            self.embed_observation(observations),
            self.embed_action(actions),
        ]
        features = self.transform(tokens, timesteps, real, random)
        mean, log_std = self.head(features[:, :, 2]).chunk(2, -1)
        return Prediction(mean, log_std, self.cost_head(features[:, :, 3]))

    def predict_last(self, context: Memory) -> Tensor:
        """See `DecisionTransformer.predict_last`."""
        prediction: Prediction = self(**context)
        return prediction.mean[:, -1].clamp(-1, 1)

    def initial_memory(self, batch: int) -> Memory:
        """See `Head.initial_memory`. All steps are padding."""
        memory, shape = super().initial_memory(batch), (batch, self.context_length)
        costs = torch.full(shape, float(self.target_cost))
        return memory | {"costs_to_go": costs, COSTS: torch.zeros(batch)}
