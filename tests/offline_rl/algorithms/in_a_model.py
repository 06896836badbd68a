"""States of model-based methods, and rollouts from chosen states."""

from dataclasses import replace
from typing import Any

import torch
from by_hand import SPEC, Recorded, made_batch, start
from torch import Tensor

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.common.models.facts import Facts
from offline_rl.algorithms.common.models.rollouts import ModelBased
from policies.spec import Spec

TINY: dict[str, Any] = {
    "hidden": (8, 8),
    "dynamics_hidden": (7,),
    "dynamics_decay": (0.0,),
    "members": 4,
    "elites": 2,
}


def plain_facts(size: int, **changes: Any) -> Facts:
    return Facts(**{"center": [0.0] * size, "width": [1.0] * size} | changes)


def started(cls: type[ModelBased] = ModelBased, spec: Spec = SPEC, **config: Any) -> State:
    """Return a state of a method, with a model whose best members are 2 and 0."""
    state = start(cls, spec=spec, **TINY | {"ends": "never"} | config)
    state.algorithm.facts = plain_facts(spec.observation_dim)
    record = {**state.params["record"], "error": torch.tensor([0.2, 0.9, 0.1, 0.3])}
    return replace(state, params={**state.params, "record": record})


def filled(state: State, s: Tensor, update: int = 0) -> dict[str, Tensor]:
    """Return the rows that start in the states `s` [B, O]."""
    batch = replace(made_batch(0, len(s)), observations=s)
    state = replace(state, random=Recorded(update))
    rows: dict[str, Tensor] = state.algorithm.fill(state, batch)
    return rows
