"""Heads on another policy: they add to its actions, edit its chunks, or choose its noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from policies.channels import BASE_ACTION
from policies.heads.diffusion import DiffusionActor
from policies.heads.gaussian import TanhGaussianActor
from policies.heads.head import Actor, Head, Memory, load_kinds, take_last
from policies.networks.dropout import Random
from policies.networks.encoders import ObservationEncoder
from policies.networks.init import small_output_init
from policies.networks.mlp import MLP, Activation, Critic


class ResidualActor(Actor):
    """The action clip(base + scale * tanh(MLP), -1, 1).

    base is the action of the base policy, the last A values of the observation. The output layer is
    initialized to zero. Before training, the actions therefore equal the actions of the base policy
    bit for bit.
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        scale: float = 0.1,
        activation: Activation = "relu",
        layer_norm: bool = True,
        noise: float = 0.05,
    ) -> None:
        """Create the head.

        scale: maximum absolute residual action. It is a parameter, so that seeds that are trained
        together can have different values. It is not trained.
        noise: standard deviation of the exploration noise.
        """
        super().__init__()
        self.arguments = {"observations": observations, "actions": actions, "hidden": [*hidden]}
        self.arguments |= {"activation": activation, "layer_norm": layer_norm}
        init = small_output_init(0.0)
        options = {"activation": activation, "layer_norm": layer_norm}
        self.trunk = MLP(observations, actions, hidden, init=init, **options)  # type: ignore[arg-type]
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.actions, self.noise = actions, noise

    def residual_action(self, observations: Tensor, random: Random | None = None) -> Tensor:
        """Return the residual actions [..., A], in [-scale, scale], for observations [..., O]."""
        return self.scale.detach() * self.trunk(observations).tanh()

    def add_to_base(self, observations: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """Return base action + residual action + noise, [..., A], clipped to [-1, 1]."""
        base = observations[..., -self.actions :]
        return (base + (self.residual_action(observations) + noise)).clamp(-1, 1)

    def forward(
        self, observations: Tensor, random: Random | None = None, noise: Tensor | float = 0.0
    ) -> Tensor:
        """See `add_to_base`."""
        return self.add_to_base(observations, noise)

    def act(self, observations: Tensor) -> Tensor:
        """See `Actor.act`."""
        return self.add_to_base(observations)

    def explore_action(self, observations: Tensor, random: Random) -> Tensor:
        """Return an action with Gaussian noise. `scale` does not affect the noise."""
        shape = (*observations.shape[:-1], self.actions)
        return self.add_to_base(observations, self.noise * random.normal(shape))


class ExecutedActionCritic(nn.Module):
    """Critics Q(s, a) of the executed action a, which do not observe the base's action."""

    def __init__(
        self,
        observations: int | Mapping[str, Sequence[int]],
        actions: int,
        encoder: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Create the critics.

        observations: size of the observation vector, or the shapes of all channels by name. In
        both cases the base's action is the last part.
        encoder: options of `ImageEncoder`, with channels.  options: arguments of `Critic`.
        """
        super().__init__()
        self.observation_encoder: ObservationEncoder | None = None
        self.arguments: dict[str, Any] = {"actions": actions, **options}
        if isinstance(observations, Mapping):
            shapes = {name: [*shape] for name, shape in observations.items()}
            self.observation_encoder = ObservationEncoder(shapes, **(encoder or {}))
            self.arguments |= {"observations": shapes, "encoder": dict(encoder or {})}
            size = self.observation_encoder.features
        else:
            self.arguments["observations"] = size = observations
        self.actions, self.net = actions, Critic(size - actions, actions, **options)

    def forward(
        self, observations: Any, actions: Tensor, random: Any = None, members: Tensor | None = None
    ) -> Tensor:
        """Return Q, [E, ...], for observations [..., O] or channels, and actions [..., A].

        random: source of random numbers for image crops, in training only.
        members: indices of the critics to evaluate; default: all.
        """
        encoder = self.observation_encoder
        features = observations if encoder is None else encoder(observations, random)
        return self.net(features[..., : -self.actions], actions, members)


class GatedActor(Actor):
    """The action of a residual policy where critics prefer it, and elsewhere the base's action.

    Exploration is that of the residual policy.
    """

    def __init__(
        self,
        policy: str,
        policy_arguments: Mapping[str, Any],
        critic_arguments: Mapping[str, Any],
        *,
        gate: Literal["mean", "all"],
    ) -> None:
        """Create the policy and the critics.

        policy: class name in `policies.heads`.  policy_arguments: arguments of this class.
        critic_arguments: arguments of `ExecutedActionCritic`.
        gate: whether the mean of the critics or each of them must prefer the residual action.
        """
        super().__init__()
        self.arguments = {"policy": policy, "policy_arguments": dict(policy_arguments)}
        self.arguments |= {"critic_arguments": dict(critic_arguments), "gate": gate}
        self.policy: Any = load_kinds()[policy](**policy_arguments)
        self.critic, self.gate = ExecutedActionCritic(**critic_arguments), gate

    def act(self, observations: Any) -> Tensor:
        """See `Actor.act`."""
        vector = observations[BASE_ACTION] if isinstance(observations, Mapping) else observations
        base, action = vector[..., -self.critic.actions :], self.policy(observations)
        gain = self.critic(observations, action) - self.critic(observations, base)  # [E, ...]
        value = gain.mean(0) if self.gate == "mean" else gain.amin(0)
        return torch.where(value[..., None] > 0, action, base)

    def explore(
        self, observations: Any, memory: Memory, noise: Tensor, random: Random
    ) -> tuple[Tensor, Memory]:
        """See `Head.explore`."""
        chunk: tuple[Tensor, Memory] = self.policy.explore(observations, memory, noise, random)
        return chunk


class EditedActor(Head):
    """The chunk clip(flow + scale * edit, -1, 1) of a flow policy and a policy that edits it.

    The edit is a sample of a tanh-Gaussian, which observes the observation and the flow's chunk
    (EXPO: Dong et al., arXiv:2507.07986).
    """

    def __init__(
        self,
        flow_arguments: Mapping[str, Any],
        edit_arguments: Mapping[str, Any],
        *,
        edit_scale: float,
    ) -> None:
        """Create both policies. Raises ValueError if the flow's sampler draws fresh noise.

        flow_arguments: arguments of `DiffusionActor`. Complete chunks are executed.
        edit_arguments: arguments of `TanhGaussianActor`.
        edit_scale: largest change of an action.
        """
        super().__init__()
        self.arguments = {"flow_arguments": dict(flow_arguments)}
        self.arguments |= {"edit_arguments": dict(edit_arguments), "edit_scale": edit_scale}
        self.flow, self.edit = DiffusionActor(**flow_arguments), TanhGaussianActor(**edit_arguments)
        if (problem := steering_problem("DiffusionActor", self.flow.noise_shape)) is not None:
            raise ValueError(problem)
        self.edit_scale, self.n_obs_steps = edit_scale, self.flow.n_obs_steps
        self.chunk_size, self.n_action_steps = self.flow.chunk_size, self.flow.n_action_steps
        self.noise_shape = (2, *self.flow.noise_shape[1:])  # noise of the flow, noise of the edit

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""
        chunks = self.sample_flow(observations, noise[:, :1])
        mean, log_std = self.edit(self.edit_inputs(observations, chunks))
        edits = (mean + log_std.exp() * noise[:, 1].flatten(1)).tanh()
        return self.add_edits(chunks, edits), memory

    def sample_flow(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Return the chunks before the edit, [B, chunk_size, A], for noise [B, 1, horizon, A]."""
        return self.flow.decide(observations, {}, noise)[0]

    def sample_edited(
        self, observations: Tensor, chunks: Tensor, random: Random
    ) -> tuple[Tensor, Tensor]:
        """Return edited chunks [B, chunk_size, A], and the log densities of the edits, [B]."""
        edits, log_prob = self.edit.sample(self.edit_inputs(observations, chunks), random)
        return self.add_edits(chunks, edits), log_prob

    def edit_inputs(self, observations: Tensor, chunks: Tensor) -> Tensor:
        """Return the input of the edit policy, [B, n_obs_steps * O + chunk_size * A]."""
        return torch.cat([observations.flatten(1), chunks.flatten(1)], -1)

    def add_edits(self, chunks: Tensor, edits: Tensor) -> Tensor:
        """Return chunks plus scaled edits. edits: [B, chunk_size * A], in [-1, 1]."""
        return (chunks + self.edit_scale * edits.reshape(chunks.shape)).clip(-1, 1)


class SteeredActor(Head):
    """The chunk of `sampler` for an initial noise that `policy` chooses (latent-noise steering).

    The initial noise is `noise_scale` times the action of `policy`, which is in [-1, 1]. The
    sampler adds no fresh noise, so the chunk is a function of the observation.
    """

    def __init__(
        self,
        policy: str,
        policy_arguments: Mapping[str, Any],
        sampler: str,
        sampler_arguments: Mapping[str, Any],
        *,
        noise_scale: float,
    ) -> None:
        """Create policy and sampler. Raises ValueError for a sampler that cannot be steered.

        policy, sampler: class names in `policies.heads`.  policy_arguments, sampler_arguments: the
        arguments of these classes, which store them in `arguments`.
        noise_scale: noise for the action 1.
        """
        super().__init__()
        self.arguments = {"policy": policy, "policy_arguments": dict(policy_arguments)}
        self.arguments |= {"sampler": sampler, "sampler_arguments": dict(sampler_arguments)}
        self.arguments |= {"noise_scale": noise_scale}
        kinds = load_kinds()
        head, steered = kinds[policy](**policy_arguments), kinds[sampler](**sampler_arguments)
        if (problem := steering_problem(sampler, steered.noise_shape)) is not None:
            raise ValueError(problem)
        assert isinstance(head, Actor)
        self.policy, self.sampler, self.noise_scale = head, steered, noise_scale
        self.n_obs_steps, self.chunk_size = steered.n_obs_steps, steered.chunk_size
        self.n_action_steps = steered.n_action_steps

    def run_sampler(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the chunks [B, chunk_size, A] for the policy's actions [B, D]."""
        noise = (self.noise_scale * actions).reshape(-1, *self.sampler.noise_shape)
        return self.sampler.decide(observations, {}, noise)[0]

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""
        return self.run_sampler(observations, self.policy.act(observations.flatten(1))), memory

    def explore(
        self, observations: Tensor, memory: Memory, noise: Tensor, random: Random
    ) -> tuple[Tensor, Memory]:
        """See `Head.explore`. The policy explores, and the sampler adds nothing."""
        actions = self.policy.explore_action(observations.flatten(1), random)
        return self.run_sampler(observations, actions), memory


class PerturbedActor(Head):
    """The action of a `ResidualActor` whose base action is decoded by a VAE (BCQ).

    The noise is the latent variable of the VAE, clipped to +-0.5 so that the decoded action is
    likely under the data.
    """

    def __init__(
        self, policy_arguments: Mapping[str, Any], *, decoder_hidden: Sequence[int]
    ) -> None:
        """Create the policy and the decoder.

        policy_arguments: arguments of `ResidualActor`.
        decoder_hidden: units of each hidden layer of the decoder.
        """
        super().__init__()
        self.arguments = {"policy_arguments": dict(policy_arguments)}
        self.arguments |= {"decoder_hidden": [*decoder_hidden]}
        self.policy = ResidualActor(**policy_arguments)
        actions, latent = self.policy.actions, 2 * self.policy.actions
        inputs = policy_arguments["observations"] - actions + latent
        self.vae = nn.ModuleDict({"decoder": MLP(inputs, actions, decoder_hidden)})
        self.noise_shape = (latent,)

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""
        s, decoder = take_last(observations), self.vae["decoder"]
        proposed = decoder(torch.cat([s, noise.clamp(-0.5, 0.5)], -1)).tanh()
        return self.policy.act(torch.cat([s, proposed], -1))[:, None], memory


def steering_problem(kind: str, noise_shape: Sequence[int]) -> str | None:
    """Return why a policy cannot be steered by its initial noise, or None.

    kind: class name of its head.  noise_shape: shape of the noise for one decision.
    """
    if kind == "OneStepActor":
        return None
    if kind not in ("DiffusionActor", "TunedActor"):
        return f"a {kind} has no sampler with an initial noise"
    if noise_shape[0] > 1:
        return (
            "its sampler adds fresh noise in later denoising steps, so the initial noise does not "
            "determine the chunk"
        )
    return None
