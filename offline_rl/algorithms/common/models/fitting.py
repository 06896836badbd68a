"""Phase that fits a dynamics model to data, with early stopping and a choice of elites.

The model predicts the change of the observation and the reward. After each epoch (one pass over the
training rows), the squared error of each member's mean prediction on the holdout rows is measured.
If it has decreased by more than `min_improvement` (relative), the member's weights are stored.
Fitting stops after `patience` epochs in a row without an improvement of any member. Then the stored
weights are restored, and the members with the lowest errors become the elites.

Chua et al., NeurIPS 2018, arXiv:1805.12114 (PETS); the settings and rules are those of Janner et
al., NeurIPS 2019, arXiv:1906.08253 (MBPO), as in yihaosun1124/OfflineRL-Kit
(offlinerlkit/dynamics/ensemble_dynamics.py).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import (
    Metrics,
    Network,
    Params,
    Reusable,
    State,
    keep_where,
    minimize,
)
from offline_rl.algorithms.common.config import BUILT, Ensemble, Rate, Sizes
from offline_rl.algorithms.common.entropy import SoftActorCritic, SoftConfig
from offline_rl.algorithms.common.models import dynamics, sparse
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.schedule import Learn, Piece
from offline_rl.data import Dataset
from offline_rl.replay.batch import Batch, Source, Sources, require
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.split import By, Part, Split
from offline_rl.replay.streaming import Rotation
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Count, NonNegative, Positive, Range, frozen
from policies.networks.init import half_lecun_init

PARTS: dict[str, Part] = {  # phase of the fit -> part of the rows that it uses
    "start_dynamics": "all_training",
    "fit_dynamics": "training",
    "validate_dynamics": "holdout",
    "select_dynamics": "holdout",
}

UNKNOWN = 1e10  # error of a member before it is measured
DECAY = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)


@frozen
class FittingConfig(SoftConfig):
    """Options of the dynamics model. Defaults: OfflineRL-Kit's."""

    model: Annotated[Literal["ensemble", "sparse"], BUILT] = (
        "ensemble"  # ensemble: neural networks; sparse: sums of few polynomial terms (SINDy)
    )
    members: Ensemble = 7  # ensemble members of the dynamics model
    elites: Annotated[int, Range(1), BUILT] = 5  # members used for predictions (lowest errors)
    dynamics_hidden: Sizes = (200, 200, 200, 200)  # units of each hidden layer of a member
    dynamics_lr: Rate = 1e-3  # learning rate of the dynamics model
    dynamics_decay: Annotated[tuple[float, ...], Range(0), BUILT] = (
        DECAY  # L2 penalty of each layer, the input layer first; one number: for all layers
    )
    bounds_weight: NonNegative = 0.01  # loss weight of the width of the log variance bounds
    scale_inputs: Annotated[bool, BUILT] = True  # standardize the inputs of the dynamics model
    holdout: Annotated[By, BUILT] = "rows"  # hold out random rows, or complete episodes
    holdout_share: Annotated[float, Range(above=0, below=1), BUILT] = 0.2  # share of holdout rows
    holdout_max: Annotated[int, Range(1), BUILT] = 1000  # limit on holdout rows, with holdout=rows
    dynamics_epochs: Count = 100  # maximum number of passes over the training rows
    epoch_updates: Count | None = None  # updates per pass; null: training rows / batch_size
    patience: Count = 5  # epochs without improvement after which fitting stops
    min_improvement: NonNegative = 0.01  # smallest relative decrease that counts as an improvement
    degree: Annotated[int, Range(1), BUILT] = (
        2  # sparse: highest degree of polynomials of the state
    )
    interactions: Annotated[bool, BUILT] = True  # sparse: include products of different states
    products: Annotated[bool, BUILT] = True  # sparse: include products of states and actions
    constant: Annotated[bool, BUILT] = False  # sparse: include a constant term
    ridge: Positive = 1e-8  # sparse: weight of the L2 penalty during thresholding
    threshold: NonNegative = 7e-3  # sparse: smaller coefficients of scaled terms become 0
    normalize_terms: Annotated[bool, BUILT] = (
        True  # sparse: ridge and threshold apply to terms and targets that are scaled to length 1
    )
    drop_terms: Annotated[int, Range(0), BUILT] = 1  # sparse: random terms left out per member

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elites > self.members:
            raise ValueError(
                f"elites={self.elites} exceeds members={self.members}. Use fewer elites or more "
                "members."
            )
        if self.model == "ensemble":
            self.refuse_unread("model", "degree", "interactions", "products", "constant")
            self.refuse_unread("model", "ridge", "threshold", "normalize_terms", "drop_terms")
        layers = len(self.dynamics_hidden) + 1
        if len(self.dynamics_decay) not in (1, layers):
            raise ValueError(
                f"dynamics_decay has {len(self.dynamics_decay)} factors, but the dynamics model "
                f"has {layers} layers. Use one factor for all layers, dynamics_decay="
                f"[{self.dynamics_decay[0] if self.dynamics_decay else 5e-5:g}], or {layers} "
                "factors."
            )

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {
            "members": 3,
            "elites": 2,
            "dynamics_hidden": (16,),
            "dynamics_decay": (1e-5,),
            "dynamics_epochs": 3,
            "epoch_updates": 2,
        }


class Record(nn.Module):
    """Progress of fitting: each member's best holdout error, and when fitting stops."""

    def __init__(self, members: int, outputs: int) -> None:
        super().__init__()
        # lowest holdout error of each member, and the errors of its outputs at that time
        self.error = nn.Parameter(torch.full((members,), UNKNOWN))
        self.by_output = nn.Parameter(torch.full((members, outputs), UNKNOWN))
        self.variance = nn.Parameter(torch.zeros(outputs))  # of the targets in the holdout rows
        self.training_rows = nn.Parameter(torch.zeros(()))
        self.holdout_rows = nn.Parameter(torch.zeros(()))
        self.epochs = nn.Parameter(torch.zeros(()))
        self.stale = nn.Parameter(torch.zeros(()))  # epochs since any member improved
        self.finished = nn.Parameter(torch.zeros(()))  # 1: fitting has stopped

    def forward(self) -> Tensor:
        """Return the lowest holdout error of each member, [E]."""
        return self.error


class FittedDynamics(SoftActorCritic):
    """Method with a dynamics model that is fitted before the main phase.

    Networks: `dynamics`, `best_dynamics` (each member's stored weights) and `record`.
    """

    needed_phases = ("start_dynamics", "validate_dynamics", "select_dynamics")
    needs_fp32 = True  # a sparse model is fitted by normal equations
    dynamics_model: ClassVar[Reusable | None] = Reusable(
        networks=("dynamics", "best_dynamics", "record"),
        phases=tuple(PARTS),
        settings=(
            *("model", "members", "elites", "dynamics_hidden", "scale_inputs"),
            *("degree", "interactions", "products", "constant"),
        ),
        numbers=("dynamics_lr", "bounds_weight", "min_improvement", "ridge", "threshold"),
    )

    @property
    def outputs(self) -> int:
        """Number of predictions of the model: the change of each observation, and the reward."""
        return self.spec.observation_dim + 1

    def networks(self) -> dict[str, nn.Module]:
        model, record = self.model(), Record(self.cfg.members, self.outputs)
        networks = {"dynamics": model, "best_dynamics": copy.deepcopy(model), "record": record}
        return super().networks() | networks

    def model(self) -> nn.Module:
        """Build the dynamics model."""
        cfg, sizes = self.cfg, (self.spec.observation_dim, self.spec.action_dim)
        if cfg.model == "sparse":
            return sparse.SparseDynamics(*sizes, self.sparse_options())
        return dynamics.Ensemble(
            sum(sizes),
            self.outputs,
            cfg.dynamics_hidden,
            cfg.members,
            scale_inputs=cfg.scale_inputs,
            init=half_lecun_init,
        )

    def sparse_options(self) -> sparse.SparseOptions:
        """Return the options of a sparse model."""
        names = {f.name for f in fields(sparse.SparseOptions)} & {f.name for f in fields(self.cfg)}
        return sparse.SparseOptions(**{name: getattr(self.cfg, name) for name in names})

    def optimizers(self) -> dict[str, Adam]:
        if self.cfg.model == "sparse":
            return super().optimizers()
        adam = Adam(self.cfg.dynamics_lr, rates={"input_": 0.0}, seeds_stop=True)
        return super().optimizers() | {"dynamics": adam}

    @property
    def phases(self) -> Mapping[str, int]:
        if self.cfg.model == "sparse":
            return dict.fromkeys(self.needed_phases, 1)
        updates = self.cfg.dynamics_epochs * (self.cfg.epoch_updates or 1)
        return dict.fromkeys(PARTS, 1) | {"fit_dynamics": updates}

    def fitting_pieces(self, epoch_updates: int) -> list[Piece]:
        """Return the pieces of the schedule that fit the model once."""
        if self.cfg.model == "sparse":
            return [Learn(phase, 1, evaluate=False) for phase in self.needed_phases]
        pieces: list[Piece] = [Learn("start_dynamics", 1, evaluate=False)]
        for epoch in range(epochs := self.cfg.dynamics_epochs):
            skips = 2 * (epochs - 1 - epoch)
            pieces.append(Learn("fit_dynamics", epoch_updates, evaluate=False))
            pieces.append(Learn("validate_dynamics", 1, evaluate=False, skips=skips))
        return [*pieces, Learn("select_dynamics", 1, evaluate=False)]

    def has_converged(self, phase: str, params: Any) -> Tensor:
        finished: Tensor = params["record"]["finished"]
        return finished > 0

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Set `epoch_updates` to one pass over the training rows if it is null.

        Raises UserError if the holdout would be empty.
        """
        dataset, cfg = super().prepare(dataset)
        rows = int((dataset.usable & ~dataset.lacks_next).sum())
        held = min(int(cfg.holdout_share * rows), cfg.holdout_max)
        if cfg.holdout == "episodes":
            held = int(cfg.holdout_share * rows)
            if int(cfg.holdout_share * dataset.num_episodes) == 0:
                held = 0
        if held == 0:
            unit = (
                f"{dataset.num_episodes} episodes" if cfg.holdout == "episodes" else f"{rows} rows"
            )
            raise UserError(
                f"{dataset.path or dataset.name}: algorithm.holdout_share={cfg.holdout_share:g} of "
                f"{unit} is less than one, so no data is left to measure the fit of the dynamics "
                "model. Use more data or a higher algorithm.holdout_share."
            )
        if cfg.epoch_updates is None:
            cfg = replace(cfg, epoch_updates=math.ceil((rows - held) / cfg.batch_size))
        return dataset, cfg

    def dynamics_source(self, phase: str, buffer: Source) -> Source:
        """Return the source of a fitting phase: one part of the buffer's rows."""
        cfg = self.cfg
        if isinstance(buffer, Rotation) or not isinstance(buffer, ReplayBuffer):
            raise UserError(
                "The dynamics model is fitted to data in memory, and this data is streamed. Use "
                "stream=never or fewer episodes=."
            )
        return Split(
            buffer,
            PARTS[phase],
            members=cfg.members,
            share=cfg.holdout_share,
            most=cfg.holdout_max,
            by=cfg.holdout,
        )

    def source(self, phase: str, sources: Sources) -> Source:
        if phase in PARTS:
            return self.dynamics_source(phase, require(sources, "offline"))
        return super().source(phase, sources)

    def start_dynamics(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Reset the record. Set the scale of the model's inputs, or fit a sparse model.

        The batch contains all training rows.
        """
        x, y = inputs_and_targets(batch)
        weights = require_weights(batch)[:, None]
        record = {
            name: torch.full_like(old, UNKNOWN if name in ("error", "by_output") else 0.0)
            for name, old in state.params["record"].items()
        }
        record["training_rows"] = weights.sum()
        params = {**state.params, "record": record}
        if self.cfg.model == "sparse":
            rows = weights.sum().long()
            params["dynamics"] = sparse.solve(x, y, state.random, self.sparse_options(), rows)
        elif self.cfg.scale_inputs:
            count = weights.sum()
            mean = (x * weights).sum(0) / count
            mean = mean + ((x - mean) * weights).sum(0) / count  # exact if x is constant
            std = (((x - mean).square() * weights).sum(0) / count).sqrt()
            scale = {"input_mean": mean, "input_std": torch.where(std < 1e-12, 1.0, std)}
            for name in ("dynamics", "best_dynamics"):
                params[name] = {**params[name], **scale}
        return replace(state, params=params), {"training_rows": weights.sum()}

    def fit_dynamics(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update each member on its own rows; see `model_loss`."""
        cfg = self.cfg
        x, y = (z.unflatten(0, (cfg.members, -1)) for z in inputs_and_targets(batch))

        def loss(model: Network) -> Tensor:
            return model_loss(model, x, y, cfg.dynamics_decay, cfg.bounds_weight)

        learned, value = minimize(state, "dynamics", loss)
        finished = state.params["record"]["finished"] > 0
        return keep_where(state, learned, finished), {"dynamics_loss": value}

    def validate_dynamics(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Store the weights of the members that have improved, and decide whether to stop."""
        cfg, old = self.cfg, state.params["record"]
        x, y = inputs_and_targets(batch)
        weights = require_weights(batch)[:, None]
        mean, _ = state.dynamics(x)  # [E, B, O + 1]
        rows = weights.sum()
        by_output = ((mean - y).square() * weights).sum(1) / rows
        error = by_output.mean(-1)
        finished = old["finished"] > 0
        better = ((old["error"] - error) / old["error"] > cfg.min_improvement) & ~finished
        stale = torch.where(better.any(), 0.0, old["stale"] + 1)
        center = (y * weights).sum(0) / rows
        record = {
            **old,
            "variance": ((y - center).square() * weights).sum(0) / rows,
            "holdout_rows": rows,
            "epochs": torch.where(finished, old["epochs"], old["epochs"] + 1),
            "error": torch.where(better, error, old["error"]),
            "by_output": torch.where(better[:, None], by_output, old["by_output"]),
            "stale": torch.where(finished, old["stale"], stale),
            "finished": (finished | (stale >= cfg.patience)).float(),
        }
        best = select_members(better, state.params["dynamics"], state.params["best_dynamics"])
        params = {**state.params, "record": record, "best_dynamics": best}
        metrics = {"holdout_error": error.sort().values[: cfg.elites].mean()}
        return replace(state, params=params), metrics

    def select_dynamics(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Restore each member's stored weights."""
        all_members = torch.ones_like(state.record()) > 0
        best = select_members(all_members, state.params["best_dynamics"], state.params["dynamics"])
        error = state.record().sort().values[: self.cfg.elites].mean()
        return replace(state, params={**state.params, "dynamics": best}), {"holdout_error": error}

    def elite_members(self, state: State) -> Tensor:
        """Return the indices of the members with the lowest holdout errors, [elites]."""
        return state.record().argsort()[: self.cfg.elites]

    def elite_mask(self, state: State) -> Tensor:
        """Return a mask of the elites, [E]."""
        elites = self.elite_members(state)
        return (elites[:, None] == torch.arange(self.cfg.members, device=elites.device)).any(0)

    def summary(self, params: Mapping[str, Params], seconds: Mapping[str, float]) -> dict[str, Any]:
        """Return the entry `dynamics`. Its errors are squared holdout errors, mean over elites."""
        record = params["record"]
        elites = record["error"].argsort()[: self.cfg.elites]
        names = self.spec.observation_names
        if not names or len({*names, "reward"}) <= len(names):
            names = tuple(f"observation[{k}]" for k in range(self.spec.observation_dim))
        errors = record["by_output"][elites].mean(0)
        fitted_in = sum(seconds.get(name, 0.0) for name in PARTS if name != "select_dynamics")
        fit = {
            "holdout_error": dict(zip((*names, "reward"), errors.tolist(), strict=True)),
            "variance": dict(zip((*names, "reward"), record["variance"].tolist(), strict=True)),
            "elites": elites.tolist(),
            "seconds": fitted_in or None,  # None: the model was loaded
        }
        counts = ("epochs", "training_rows", "holdout_rows")
        fit |= {name: int(record[name]) for name in counts}
        if self.cfg.model == "sparse":
            model: Any = self.modules["dynamics"]
            terms = sparse.median(params["dynamics"]["coefficients"])
            actions = [f"action[{k}]" for k in range(self.spec.action_dim)]
            actions = [*self.spec.action_names] or actions
            fit["equations"] = sparse.equations(terms, model.library, names, actions)
        return {"dynamics": fit}


def rows_with_successor(batch: Batch) -> Tensor:
    """Return the indices [B] of the rows whose next observation is known, repeated if necessary.

    Terminated rows of data without next observations have their own observation instead.
    """
    stays = (batch.next_observations == batch.observations).all(-1) & (batch.discount == 0)
    order = stays.byte().argsort(stable=True)
    place = torch.arange(len(order), device=order.device)
    return order[place % (~stays).sum().clamp(min=1)]


def inputs_and_targets(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the model's inputs [B, O + A] and targets [B, O + 1]: changes, then the reward."""
    x = torch.cat([batch.observations, batch.actions], -1)
    change = batch.next_observations - batch.observations
    return x, torch.cat([change, batch.rewards[:, None]], -1)


def known_targets(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return inputs and targets [B, ...] of the rows whose next observation is known."""
    rows = rows_with_successor(batch)
    x, y = inputs_and_targets(batch)
    return x[rows], y[rows]


def model_loss(
    model: Network, x: Tensor, y: Tensor, decay: Sequence[float], bounds_weight: float | Tensor
) -> Tensor:
    """Return the loss of the ensemble, 0-d.

    It is the sum of the Gaussian negative log-likelihood (without the factor 1/2 and the constant;
    mean over rows and outputs, sum over members), the weight penalty, and the weighted width of the
    log variance bounds.
    x, y: rows of each member, [E, B, ...].
    """
    mean, log_variance = model(x, per_member=True)
    error = (mean - y).square() * (-log_variance).exp() + log_variance
    penalty = model.weight_penalty(decay) + bounds_weight * model.width()
    loss: Tensor = error.mean((1, 2)).sum() + penalty
    return loss


def select_members(
    chosen: Tensor, new: Mapping[str, Tensor], old: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return `old` with the weights of the chosen members [E] of `new`.

    Parameters that all members share are always those of `old`.
    """

    def select(name: str) -> Tensor:
        if not name.startswith(("net.", "coefficients")):
            return old[name]
        mask = chosen.reshape(-1, *[1] * (new[name].dim() - 1))
        return torch.where(mask, new[name], old[name])

    return {name: select(name) for name in old}


def require_weights(batch: Batch) -> Tensor:
    """Return the weights of a padded batch."""
    assert batch.weights is not None
    return batch.weights
