"""A causal transformer over (return to go, observation, action), and the policy made of it.

    token    R0 o0 a0 | R1 o1 a1 | …      each sees itself and what stands left of it;
    answer      a0    |    a1    | …      an action is read off its observation's token.

Shapes: B batch, T step of the window, L token (3 T), D size, H head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from policies.heads.head import Context
from policies.networks.dropout import Random, hidden_dropout
from policies.networks.mlp import MLP, LayerNorm
from policies.networks.transformer import Block


class DecisionTransformer(nn.Module):
    """Acts as the data did where such a return followed (Chen et al., arXiv:2106.01345).

    A step's three tokens share a learned embedding of its place in the episode; there is no other
    position. Memory (see `heads.head.Recurrent`): the last `context_length` steps; the return to go
    starts at `target_return` and falls by each reward.
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
        """target_return: raw, aimed at from an episode's start.  return_scale: divides returns.

        episode_steps: embedded places; later steps count as the last.  dropout_rate: in training.
        """
        super().__init__()
        if dim_model % num_heads:
            raise ValueError(
                f"DecisionTransformer: {num_heads} heads do not divide a size of {dim_model}"
            )
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
        self.embed_place = nn.Parameter(torch.randn(episode_steps, dim_model))
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
        """[B, T, O], [B, T, A], raw returns to go [B, T], places [B, T] int, real [B, T] bool.

        Returns each step's action [B, T, A]. Steps that are not real are seen by no other; what is
        answered there means nothing. With `random`, under dropout, as in training.
        """
        drop = hidden_dropout(self.dropout_rate, random) or (lambda x: x)
        places = torch.arange(len(self.embed_place), device=timesteps.device)
        place = timesteps.clamp(0, len(self.embed_place) - 1)[..., None] == places
        # a product, not a look-up, whose gradient would add up in an order that threads decide
        place_embedding = place.float() @ self.embed_place  # [B, T, D]
        tokens = torch.stack(
            [
                self.embed_return(returns[..., None] / self.return_scale),
                self.embed_observation(observations),
                self.embed_action(actions),
            ],
            -2,
        )
        x = (tokens + place_embedding[..., None, :]).flatten(1, 2)  # [B, L, D]
        count = x.shape[1]
        seen = real[..., None].expand(*real.shape, 3).flatten(1)[:, None]  # [B, 1, L]
        order = torch.arange(count, device=x.device)
        allowed = (order <= order[:, None]) & (seen | (order == order[:, None]))
        x = drop(self.norm_in(x))
        for block in self.blocks:
            x = block(x, allowed, drop)
        return self.head(self.norm_out(x)[:, 1::3]).tanh()

    def reset(self, batch: int) -> Context:
        """See `Recurrent`: no step is real yet."""
        shape = (batch, self.context_length)
        return {
            "observations": torch.zeros(*shape, self.observations),
            "actions": torch.zeros(*shape, self.actions),
            "returns": torch.full(shape, float(self.target_return)),
            "timesteps": torch.full(shape, -1, dtype=torch.int64),
            "real": torch.zeros(shape, dtype=torch.bool),
        }

    def step(
        self, observations: Tensor, rewards: Tensor, context: Context
    ) -> tuple[Tensor, Context]:
        """See `Recurrent`. The window slides by one step; its last place is the present."""
        last = {name: values[:, -1] for name, values in context.items()}
        present = {
            "observations": observations,
            "actions": torch.zeros_like(last["actions"]),  # not chosen yet, and not seen
            "returns": last["returns"] - rewards,
            "timesteps": last["timesteps"] + 1,
            "real": torch.ones_like(last["real"]),
        }
        context = {k: torch.cat([context[k][:, 1:], v[:, None]], 1) for k, v in present.items()}
        actions = self(**context)[:, -1]
        context["actions"] = torch.cat([context["actions"][:, :-1], actions[:, None]], 1)
        return actions, context
