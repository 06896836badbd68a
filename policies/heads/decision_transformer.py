"""The Decision Transformer, a causal transformer over return-to-go, observation and action tokens.

    tokens   R0 o0 a0 | R1 o1 a1 | …      a token attends to itself and the tokens to its left
    output      a0    |    a1    | …      the observation token of a step predicts its action

Shapes: B batch, T step of the context, L token (3 T), D embedding size, H attention head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from policies.episodes import REWARDS
from policies.heads.head import Head, Memory
from policies.networks.dropout import Random, hidden_dropout
from policies.networks.mlp import MLP, LayerNorm
from policies.networks.transformer import Block


class DecisionTransformer(Head):
    """A return-conditioned policy (Chen et al., arXiv:2106.01345).

    The three tokens of a step share a learned embedding of the timestep in the episode. There is no
    other position embedding. The memory holds the last `context_length` steps. The return-to-go
    starts at `target_return` and decreases by each reward.
    """

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
    ) -> None:
        """Create the head.

        target_return: raw return-to-go at the start of an episode.
        return_scale: the network input is the return-to-go divided by this.
        context_length: number of steps in the memory.
        episode_steps: number of timestep embeddings; later timesteps use the last one.
        dropout_rate: in training only.
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
        self.norm_in, self.norm_out = LayerNorm(dim_model), LayerNorm(dim_model)
        self.blocks = nn.ModuleList(Block(dim_model, num_heads) for _ in range(num_layers))
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
        drop = hidden_dropout(self.dropout_rate, random) or (lambda x: x)
        indices = torch.arange(len(self.embed_place), device=timesteps.device)
        one_hot = timesteps.clamp(0, len(self.embed_place) - 1)[..., None] == indices
        # a matrix multiplication instead of an index lookup, because the order in which threads sum
        # the gradient of a lookup varies
        time_embedding = one_hot.float() @ self.embed_place  # [B, T, D]
        tokens = torch.stack(
            [
                self.embed_return(returns[..., None] / self.return_scale),
                self.embed_observation(observations),
                self.embed_action(actions),
            ],
            -2,
        )
        x = (tokens + time_embedding[..., None, :]).flatten(1, 2)  # [B, L, D]
        count = x.shape[1]
        real_tokens = real[..., None].expand(*real.shape, 3).flatten(1)[:, None]  # [B, 1, L]
        order = torch.arange(count, device=x.device)
        allowed = (order <= order[:, None]) & (real_tokens | (order == order[:, None]))
        x = drop(self.norm_in(x))
        for block in self.blocks:
            x = block(x, allowed, drop)
        return self.head(self.norm_out(x)[:, 1::3]).tanh()

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
        }

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`. Drops the oldest step of the memory and appends the present step."""
        steps = {name: values for name, values in memory.items() if name != REWARDS}
        last_step = {name: values[:, -1] for name, values in steps.items()}
        step = {
            "observations": observations[:, -1],
            "actions": torch.zeros_like(last_step["actions"]),  # placeholder, not used
            "returns": last_step["returns"] - memory[REWARDS],
            "timesteps": last_step["timesteps"] + 1,
            "real": torch.ones_like(last_step["real"]),
        }
        context = {k: torch.cat([steps[k][:, 1:], v[:, None]], 1) for k, v in step.items()}
        actions = self(**context)[:, -1]
        context["actions"] = torch.cat([context["actions"][:, :-1], actions[:, None]], 1)
        return actions[:, None], context | {REWARDS: memory[REWARDS]}
