"""Decision Mamba: a Decision Transformer with selective scans in place of attention.

Shapes: B batch, T step of the context, D embedding size, L block, M scan of a block (over tokens,
over steps), I inner size, N state of a channel.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from policies.episodes import EXECUTED, REWARDS
from policies.heads.decision_transformer import DecisionTransformer
from policies.heads.head import Memory, steps_since
from policies.networks.dropout import Random
from policies.networks.mlp import MLP
from policies.networks.sequences.mamba import BlockMemory, Carry, MambaBlock, RMSNorm


class StepPrediction(NamedTuple):
    """Outputs of a `DecisionMamba` for each step."""

    actions: Tensor  # [B, T, A]
    next_observations: Tensor  # [B, T, O]; they depend on the action of the step
    next_returns: Tensor  # [B, T], returns-to-go of the next step divided by `return_scale`


class DecisionMamba(DecisionTransformer):
    """A return-conditioned policy with selective scans (Lv et al., arXiv:2406.05427).

    With running_state=True, the memory holds the recurrent states of the scans. The time and memory
    of a decision then do not depend on the number of past steps. Otherwise, the memory holds the
    last `context_length` steps, as in a `DecisionTransformer`.
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
        state_size: int = 16,
        episode_steps: int = 1000,
        fine: bool = True,
        running_state: bool = True,
        as_released: bool = False,
    ) -> None:
        """Create the head.

        state_size: state size of each channel of a scan.
        fine: scan the steps as well as the tokens.
        running_state: keep the states of the scans for the complete episode.
        as_released: see `MambaBlock`; needs running_state=False.
        Other arguments: see `DecisionTransformer`.
        """
        if running_state and as_released:
            raise ValueError("as_released needs the complete context: use running_state=False")
        super().__init__(
            observations,
            actions,
            target_return=target_return,
            return_scale=return_scale,
            context_length=context_length,
            dim_model=dim_model,
            num_layers=0,
            episode_steps=episode_steps,
        )
        del self.arguments["num_heads"]
        options = {"state_size": state_size, "fine": fine, "as_released": as_released}
        self.arguments |= options | {"num_layers": num_layers, "running_state": running_state}
        self.running_state, self.fine = running_state, fine
        self.blocks = nn.ModuleList(
            MambaBlock(dim_model, state_size, fine=fine, as_released=as_released)
            for _ in range(num_layers)
        )
        self.norm_out = RMSNorm(dim_model)
        self.observation_head = MLP(dim_model, observations, ())
        self.return_head = MLP(dim_model, 1, ())

    @property
    def mamba_blocks(self) -> list[MambaBlock]:
        return [block for block in self.blocks if isinstance(block, MambaBlock)]

    def embed(self, tokens: list[Tensor], timesteps: Tensor) -> Tensor:
        """Return tokens with their time embedding, [..., K, D].

        tokens: K of [..., D].  timesteps: [...].
        """
        normed: Tensor = self.norm_in(torch.stack(tokens, -2))
        return normed + self.embed_time(timesteps)[..., None, :]

    def forward(  # type: ignore[override]
        self,
        observations: Tensor,
        actions: Tensor,
        returns: Tensor,
        timesteps: Tensor,
        real: Tensor,
        random: Random | None = None,
    ) -> StepPrediction:
        """Return the predictions for each step. Arguments: see `DecisionTransformer.forward`."""
        tokens = [*self.condition_tokens(returns, observations), self.embed_action(actions)]
        x = self.embed(tokens, timesteps)  # [B, T, 3, D]
        for block in self.blocks:
            x = block(x, real[..., None].to(x.dtype))
        x = self.norm_out(x)
        after = x[:, :, 2]
        predicted = self.observation_head(after), self.return_head(after).squeeze(-1)
        return StepPrediction(self.head(x[:, :, 1]).tanh(), *predicted)

    def predict_last(self, context: Memory) -> Tensor:
        """See `DecisionTransformer.predict_last`."""
        prediction: StepPrediction = self(**context)
        return prediction.actions[:, -1]

    def initial_memory(self, batch: int) -> Memory:
        """See `Head.initial_memory`."""
        if not self.running_state:
            return super().initial_memory(batch)
        x = torch.zeros(batch, self.embed_place.shape[-1])
        return self.pack([block.start(x) for block in self.mamba_blocks]) | {
            "returns": torch.full((batch,), float(self.target_return)),
            "timesteps": torch.full((batch,), -1, dtype=torch.int64),
            REWARDS: torch.zeros(batch),
            EXECUTED: torch.zeros(batch),
        }

    def pack(self, memories: list[BlockMemory]) -> Memory:
        """Return the memories of all blocks as tensors [B, L, M, ...] and [B, L, D]."""
        scans = [[c for c in (m.coarse, m.fine) if c is not None] for m in memories]
        packed = {
            "tails": torch.stack([torch.stack([c.tail for c in row], 1) for row in scans], 1),
            "states": torch.stack([torch.stack([c.state for c in row], 1) for row in scans], 1),
        }
        features = [m.feature for m in memories if m.feature is not None]
        return packed | ({"features": torch.stack(features, 1)} if features else {})

    def unpack(self, memory: Memory) -> list[BlockMemory]:
        """Return the memory of each block: the inverse of `pack`."""
        memories = []
        for i in range(len(self.blocks)):
            tails, states = memory["tails"][:, i], memory["states"][:, i]
            scans = [Carry(tails[:, k], states[:, k]) for k in range(tails.shape[1])]
            feature = memory["features"][:, i] if self.fine else None
            memories.append(BlockMemory(scans[0], scans[1] if self.fine else None, feature))
        return memories

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`. Reads the three tokens of the present step."""
        if not self.running_state:
            return super().decide(observations, memory, noise)
        returns = memory["returns"] - memory[REWARDS]
        timesteps = memory["timesteps"] + steps_since(memory).long()
        tokens = self.condition_tokens(returns, observations[:, -1])
        x, memories, normed = self.embed(tokens, timesteps), self.unpack(memory), []
        for i, block in enumerate(self.mamba_blocks):
            x, tokens_in, memories[i] = block.read(x, memories[i])
            normed.append(tokens_in)
        actions = self.head(self.norm_out(x[:, 1])).tanh()
        x = self.embed([self.embed_action(actions)], timesteps)
        for i, block in enumerate(self.mamba_blocks):
            x, memories[i] = block.finish(x, normed[i], memories[i])
        reported = {name: memory[name] for name in (REWARDS, EXECUTED)}
        steps = {"returns": returns, "timesteps": timesteps}
        return actions[:, None], self.pack(memories) | steps | reported
