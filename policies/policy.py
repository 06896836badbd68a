"""A policy as its users see it: observations in, actions out, nothing else to know."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from policies.bundle import Bundle, BundleError
from policies.normaliser import Normaliser
from policies.spec import Spec


class Policy(Protocol):
    """Carries its own normaliser and the description of what it sees and does."""

    spec: Spec
    normaliser: Normaliser

    def act(
        self, observation: np.ndarray, state: Any = None, reward: Any = None
    ) -> tuple[np.ndarray, Any]:
        """observation: [*obs] or [B, *obs], raw. state: what the last call returned, None at first.

        reward: raw, a number or [B], of the action before; policies with memory need it from the
        second call of an episode on.
        Returns a chunk of actions in [-1, 1], [horizon, A] or [B, horizon, A], and the next state.
        Raises ValueError for another shape or a NaN: a robot must not guess.
        """
        ...


class TorchPolicy:
    """A policy whose network is one of `policies/heads`."""

    def __init__(self, bundle: Bundle) -> None:
        """Raises BundleError where weights, network and specification do not fit one another."""
        import torch

        from policies.heads.head import kinds

        self.spec, self.normaliser, self.bundle = bundle.spec, bundle.normaliser, bundle
        known = kinds()
        if bundle.kind not in known:
            raise BundleError(
                f"unknown policy {bundle.kind!r}; known are {', '.join(sorted(known))}"
            )
        try:
            self.module: Any = known[bundle.kind](**bundle.arguments)
            weights = {k: torch.from_numpy(v) for k, v in bundle.weights.items()}
            self.module.load_state_dict(weights)
            self.module.eval()
            chunk, _ = self.act(np.zeros(self.spec.observation_shape))
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as e:
            fault = " ".join(str(e).split())
            raise BundleError(f"{bundle.kind}: the weights do not fit: {fault}") from None
        if chunk.shape != (self.spec.horizon, self.spec.action_dim):
            raise BundleError(
                f"{bundle.kind} answers {list(chunk.shape)}, the specification says "
                f"{[self.spec.horizon, self.spec.action_dim]}"
            )

    def act(
        self, observation: np.ndarray, state: Any = None, reward: Any = None
    ) -> tuple[np.ndarray, Any]:
        """See `Policy.act`; deterministic."""
        import torch

        observation = np.asarray(observation)
        single = observation.ndim == len(self.spec.observation_shape)
        batch = observation[None] if single else observation
        if batch.shape[1:] != self.spec.observation_shape:
            expected = self.spec.observation_shape
            raise ValueError(f"observation of shape {observation.shape}, expected [B, *{expected}]")
        if not np.isfinite(batch).all():
            raise ValueError("the observation holds NaN or infinite numbers")
        with torch.inference_mode():
            x = torch.from_numpy(self.normaliser(batch))
            if hasattr(self.module, "step"):
                rewards = torch.zeros(len(x)) if state is None else self._rewards(reward, len(x))
                start = self.module.reset(len(x)) if state is None else state
                if any(len(value) != len(x) for value in start.values()):
                    count = len(next(iter(start.values())))
                    raise ValueError(f"{len(x)} observations: the episodes' memory is for {count}")
                actions, state = self.module.step(x, rewards, start)
            elif hasattr(self.module, "plan"):
                noise = np.zeros((len(batch), *self.module.noise_shape), np.float32)
                history = np.repeat(batch[:, None], self.spec.history, 1)
                chunk = self.plan(history, noise)
                return (chunk[0] if single else chunk), state
            else:
                actions = self.module.act(x)
        chunk = actions.numpy()[:, None]
        return (chunk[0] if single else chunk), state

    def plan(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """[B, history, *obs], raw, and [B, *noise_shape] -> [B, horizon, A]."""
        import torch

        with torch.inference_mode():
            x = torch.from_numpy(self.normaliser(observations))
            answer: np.ndarray = self.module.plan(x, torch.from_numpy(noise)).numpy()
        return answer

    def _rewards(self, reward: Any, count: int) -> Any:
        """`reward` as a tensor [count], checked."""
        import torch

        kind = self.bundle.kind
        if reward is None:
            raise ValueError(
                f"a {kind} acts on the rewards of its episode: from the second call on, give "
                "act(observation, state, reward=…) that of the action before"
            )
        values = np.asarray(reward, np.float32).reshape(-1)
        if len(values) != count or not np.isfinite(values).all():
            raise ValueError(f"reward: expected {count} finite numbers, found {reward!r}")
        return torch.from_numpy(values)
