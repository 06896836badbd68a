"""Sparse policy (SINDy-RL): distillation of a policy into polynomials of the observation.

Each action becomes a short sum of polynomial terms, fitted in closed form to the teacher's actions
in noisy copies of the data's states. Every update is a complete fit to one batch, so one update is
enough: `offline-rl distill algorithm=sparse_policy run=<run> num_updates=1`. An ensemble is fitted
by thresholded least squares (`common/models/sparse.py`) for every pair of a ridge and a threshold.
The pair is chosen by the error on held-out episodes. The policy has the median coefficients of its
ensemble. The teacher must map one observation to one action, and be deterministic in evaluation.

Paper:   Zolman et al., arXiv:2403.09110 (nzolman/sindy-rl:sindy_rl/sparse_policy).
Differs: states come from the data instead of rollouts in learned dynamics, and noise is added to
         normalized observations. There is a constant term. The pairs are compared on held-out
         episodes; the authors' code compares mean coefficients on the states without noise. If the
         teacher's last operation is a tanh, the sums are fitted to the values before it, and the
         student applies a tanh too; the authors' teachers and students clip.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import Algorithm, Metrics, Mode, State
from offline_rl.algorithms.common.config import BUILT, BaseConfig
from offline_rl.algorithms.common.models.sparse import (
    check_size,
    draw_terms,
    gram_matrices,
    median,
    threshold_least_squares,
)
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.registry import algorithm_class, rebuild_algorithm
from offline_rl.algorithms.common.scan import scan
from offline_rl.data.dataset import Dataset
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, Range, frozen
from policies.heads.deterministic import DeterministicActor, SparseActor
from policies.heads.gaussian import GaussianActor, TanhGaussianActor
from policies.heads.head import Actor
from policies.networks.polynomial import Library
from policies.spec import VECTOR, Channel, Spec

TEACHERS: dict[str, type[Actor]] = {
    kind.__name__: kind for kind in (DeterministicActor, GaussianActor, TanhGaussianActor)
}
LIMIT = 5.0  # largest absolute value of a label, which is an action before clipping or tanh
Settings = Annotated[tuple[float, ...], Range(above=0), BUILT]


@frozen
class Config(BaseConfig):
    """Defaults: those of the authors' cart-pole policy, with fewer pairs of ridge and threshold."""

    teacher_kind: Annotated[str, BUILT] = "DeterministicActor"  # class of the teacher's policy
    teacher_arguments: Annotated[str, BUILT] = '{"hidden": [256, 256]}'  # its arguments, as JSON
    degree: Annotated[int, Range(1), BUILT] = 3  # highest degree of the polynomials
    interactions: Annotated[bool, BUILT] = True  # include products of different observations
    constant: Annotated[bool, BUILT] = True  # include the constant term
    members: Annotated[int, Range(1), BUILT] = 20  # number of fits in the ensemble
    drop_terms: Annotated[int, Range(0), BUILT] = 1  # random terms that each member leaves out
    ridges: Settings = (1e-6, 1e-2)  # L2 penalties to compare
    thresholds: Settings = (1e-4, 1e-3, 1e-2)  # values to compare; smaller coefficients become 0
    # Among the pairs whose error is at most (1 + tolerance) times the smallest error, the pair with
    # the fewest terms is chosen. The authors choose the pair with the smallest error.
    tolerance: NonNegative = 0.0  # accepted relative increase of the held-out error for fewer terms
    max_iter: Count = 20  # iterations of ridge regression and thresholding
    noise: NonNegative = 0.1  # standard deviation of the noise on normalized observations
    copies: Count = 2  # noisy copies of each state
    batch_size: Count = 10_000  # states per fit
    discount: ClassVar[float] = 1.0  # batches need it; imitation does not use it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.teacher_kind not in TEACHERS:
            raise ValueError(f"teacher_kind={self.teacher_kind}: use {', '.join(TEACHERS)}.")
        if not self.ridges or not self.thresholds:
            raise ValueError("ridges and thresholds must not be empty. Give at least one value.")

    @classmethod
    def small(cls) -> dict[str, Any]:
        sizes = {"teacher_arguments": '{"hidden": [16, 16]}', "degree": 1, "members": 3}
        return super().small() | sizes | {"drop_terms": 0, "thresholds": (1e-3,), "max_iter": 2}


class SparsePolicy(Algorithm):
    Config: type = Config
    mode = Mode(
        start="teacher",
        runs="a run whose policy maps one observation to one action, such as td3_bc or iql",
    )
    acts = ("sparse",)
    frozen_networks = ("teacher",)
    extra_columns = ("held_out",)
    follows_card = False  # the preprocessing of dataset cards is for methods that learn values
    imitation_phases = ("update",)
    needs_fp32 = True  # normal equations

    @classmethod
    def uses_rewards(cls, cfg: Any) -> bool:
        return False

    @classmethod
    def config_from_teacher(cls, algorithm: str, hyper: Mapping[str, Any]) -> dict[str, Any] | None:
        kind = algorithm_class(algorithm)
        if kind.mode.start == "base" or kind.acts != ("policy",) or "action_low" in hyper:
            return None
        head = rebuild_algorithm(algorithm, hyper, Spec((Channel(VECTOR, (1,)),), 1)).acting_head()
        if type(head).__name__ not in TEACHERS:
            return None
        own = {k: v for k, v in head.arguments.items() if k not in ("observations", "actions")}
        scaling = ("normalize_observations", "min_std")
        shared = {k: hyper[k] for k in scaling if hyper.get(k) is not None}
        return shared | {"teacher_kind": type(head).__name__, "teacher_arguments": json.dumps(own)}

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Check the size of the library."""
        cfg, inputs = self.cfg, self.spec.observation_dim
        library = Library(inputs, 0, cfg.degree, cfg.interactions, constant=cfg.constant)
        check_size(library, cfg.members)
        return dataset, cfg

    def networks(self) -> dict[str, nn.Module]:
        cfg, sizes = self.cfg, (self.spec.observation_dim, self.spec.action_dim)
        kind, arguments = TEACHERS[cfg.teacher_kind], json.loads(cfg.teacher_arguments)
        options = {name: getattr(cfg, name) for name in ("degree", "interactions", "constant")}
        options["tanh"] = kind is not GaussianActor or arguments.get("tanh_mean", True)
        return {"sparse": SparseActor(*sizes, **options), "teacher": kind(*sizes, **arguments)}

    def optimizers(self) -> dict[str, Adam]:
        return {}

    def initialize_from(
        self, initial: Mapping[str, Tensor], other: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Initialize the teacher from the policy of another run."""
        result = {**initial, "counters/update": other["counters/update"]}
        for name, value in initial.items():
            if name.startswith("params/teacher/"):
                result[name] = other[name.replace("/teacher/", "/policy/")]
                if result[name].shape != value.shape:
                    raise ValueError(f"{name} is {[*value.shape]}, not {[*result[name].shape]}")
        return result

    def label(self, state: State, observations: Tensor) -> Tensor:
        """Return the teacher's actions before clipping or tanh, [B, A], clipped to +-LIMIT."""
        policy: Any = self.modules["sparse"]
        if not policy.tanh:
            return state.teacher(observations).float().clamp(-LIMIT, LIMIT)
        edge = math.tanh(LIMIT)
        return state.teacher.act(observations).float().clamp(-edge, edge).atanh()

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Fit the policy to the batch with every pair of ridge and threshold, and choose a pair."""
        cfg, random, held_out = self.cfg, state.random, batch.held_out
        assert held_out is not None
        policy: Any = self.modules["sparse"]
        s = batch.observations.float()  # [B, O]
        noised = s.repeat(cfg.copies, 1)
        noised = noised + cfg.noise * random.normal(noised.shape)  # [copies B, O]

        # bootstrap samples of the training rows, which come first in `order`
        shape = cfg.members, len(noised)
        order, count = held_out.argsort(stable=True), (held_out == 0).sum()
        bags = order[random.integers(count, shape)] + len(s) * random.integers(cfg.copies, shape)
        gram = gram_matrices(policy.library, noised, self.label(state, noised), bags)
        keep = draw_terms(random, cfg.members, len(policy.library.terms), cfg.drop_terms)

        theta, target = policy.library(s.double()), policy.squash(self.label(state, s))
        weight = held_out / held_out.sum().clamp(min=1) / target.shape[1]  # [B]

        def fit(carry: Tensor, setting: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            members = threshold_least_squares(
                gram, keep, setting[0], setting[1], normalize=False, max_iter=cfg.max_iter
            )
            coefficients = median(members)  # [T, A]
            error = (policy.squash(theta @ coefficients) - target).square().sum(-1)
            return carry, (coefficients, (error * weight).sum())

        pairs = [[ridge, threshold] for ridge in cfg.ridges for threshold in cfg.thresholds]
        settings = theta.new_tensor(pairs)  # [M, 2]
        _, (coefficients, errors) = scan(fit, settings[0, 0], settings)  # [M, T, A], [M]
        terms = (coefficients != 0).sum((-2, -1))
        eligible = errors <= (1 + cfg.tolerance) * errors.min()
        best = torch.where(eligible, terms, terms.max() + 1).argmin(0, keepdim=True)
        chosen, error, size = (
            x.index_select(0, best)[0].float() for x in (coefficients, errors, terms)
        )
        state = replace(state, params={**state.params, "sparse": {"coefficients": chosen}})
        return state, {"policy_loss": error, "num_terms": size}
