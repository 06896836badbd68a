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

    def act(self, observation: np.ndarray, state: Any = None) -> tuple[np.ndarray, Any]:
        """observation: [*obs] or [B, *obs], raw. state: what the last call returned, None at first.

        Returns a chunk of actions in [-1, 1], [horizon, A] or [B, horizon, A], and the next state.
        Raises ValueError for another shape or a NaN: a robot must not guess.
        """
        ...


class TorchPolicy:
    """A policy whose network is one of `policies.actors`."""

    def __init__(self, bundle: Bundle) -> None:
        """Raises BundleError where the weights do not fit the network that the bundle names."""
        import torch

        from policies import actors

        self.spec, self.normaliser, self.bundle = bundle.spec, bundle.normaliser, bundle
        kind = getattr(actors, bundle.kind, None) if bundle.kind in actors.KINDS else None
        if kind is None:
            raise BundleError(
                f"unknown policy {bundle.kind!r}; known are {', '.join(actors.KINDS)}"
            )
        try:
            self.module = kind(**bundle.arguments)
            weights = {k: torch.from_numpy(v) for k, v in bundle.weights.items()}
            self.module.load_state_dict(weights)
        except (TypeError, RuntimeError) as error:
            raise BundleError(f"{bundle.kind}: the weights do not fit: {error}") from None
        self.module.eval()

    def act(self, observation: np.ndarray, state: Any = None) -> tuple[np.ndarray, Any]:
        """See `Policy.act`; deterministic, without memory."""
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
            actions = self.module.act(torch.from_numpy(self.normaliser(batch))).numpy()
        chunk = actions[:, None]
        return (chunk[0] if single else chunk), state
