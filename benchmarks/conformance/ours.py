"""Our side, and everything of ours that the comparison imports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.conformance import inputs
from benchmarks.conformance.cases import Case
from benchmarks.conformance.inputs import Arrays, Tape
from offline_rl.algorithms.common.base import Algorithm, Interaction, State
from offline_rl.algorithms.common.chunk_cloning import ChunkCloning
from offline_rl.algorithms.common.on_policy.chains import DenoisingRL
from offline_rl.algorithms.common.on_policy.denoising import replay_log_prob
from offline_rl.algorithms.common.registry import algorithm_class, algorithm_names
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.replay.batch import Batch
from offline_rl.replay.rollouts import Decisions
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_atomically, write_text
from offline_rl.utils.options import build, parse
from offline_rl.utils.text import table
from policies.networks.mlp import MLP
from policies.networks.transformer import Attention
from policies.networks.unet import Conv, Upsample
from policies.spec import Spec

__all__ = ["UserError", "algorithm_names", "build", "parse", "table", "write_atomically"]
__all__ += ["write_text"]
BLOCKS: tuple[Any, ...] = (MLP, Conv, Upsample, Attention)  # that have products
NUM_UPDATES = 20  # the length that schedules are made for: part of a decay is seen
SIZES = {
    "num_samples": inputs.SAMPLES,
    "num_policy_samples": inputs.SAMPLES,
    "num_critics": inputs.CRITICS,
}


class Recorder:
    """Our `Random`: its numbers are the tape's, and put on it."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def normal(self, shape: Sequence[int]) -> Tensor:
        return torch.from_numpy(self.tape.record("normal", tuple(shape)))

    def uniform(self, shape: Sequence[int]) -> Tensor:
        return torch.from_numpy(self.tape.record("uniform", tuple(shape)))

    def integers(self, high: Tensor | int, shape: Sequence[int]) -> Tensor:
        """Whole parts of uniform numbers times `high`."""
        return (self.uniform(shape) * high).long()


@contextmanager
def doubles() -> Iterator[None]:
    """Float64 wherever our code says float32."""
    before = torch.float32, torch.Tensor.float, torch.get_default_dtype()
    torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
    for block in BLOCKS:
        block.compute_dtype = torch.float64
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.Tensor.float, default = before
        for block in BLOCKS:
            block.compute_dtype = torch.float32
        torch.set_default_dtype(default)


def make(case: Case) -> Algorithm:
    """The case's algorithm with small networks."""
    cls = algorithm_class(case.algorithm)
    sizes: dict[str, Any] = {}
    for f in fields(cls.Config):
        if f.name.endswith("hidden"):
            sizes[f.name] = (inputs.WIDTH,) * len(f.default)
        elif f.name in SIZES:
            sizes[f.name] = min(f.default, SIZES[f.name])
    cfg = cls.Config(**sizes | case.config)
    then = replace(cfg, **cls.Online.config_changes)
    interaction = Interaction(cls.Online(**case.online), then, NUM_UPDATES)
    algorithm = cls(Spec((inputs.OBS,), inputs.ACT), cfg, NUM_UPDATES, interaction)
    return algorithm.for_phase(case.phase)


def parameters(algorithm: Algorithm) -> Arrays:
    """The initial ones, `<network>/<parameter>`."""
    shapes = {
        f"{network}/{name}": tuple(p.shape)
        for network, module in algorithm.modules.items()
        for name, p in module.named_parameters()
    }
    return inputs.parameters(shapes)


def batch(case: Case, algorithm: Algorithm, update: int) -> Arrays:
    """The columns of one update's batch; `expert/<column>` are an expert's."""
    if case.algorithm == "rl100":
        return rollout(algorithm, update) if case.phase == ONLINE else judged(algorithm, update)
    if isinstance(algorithm, DenoisingRL):
        return decisions(algorithm, update)
    if isinstance(algorithm, ChunkCloning):
        return inputs.chunks(update, algorithm.cfg.n_obs_steps, algorithm.cfg.horizon)
    if "timesteps" in algorithm.extra_columns:
        return inputs.windows(update, whole=bool(case.draws))
    columns = inputs.batch(update, algorithm.cfg.discount)
    if "expert" in algorithm.extra_columns:
        expert = inputs.batch(update + inputs.EXPERT, algorithm.cfg.discount)
        columns |= {f"expert/{name}": x for name, x in expert.items()}
    return columns


def decisions(algorithm: DenoisingRL, update: int) -> Arrays:
    """Pairs of a decision and a step of its chain, sampled by the first weights.

    densities: [B, K', T, A], of chains by a policy not far away; log_probs: [B, K'], their means.
    """
    cfg, draw = algorithm.cfg, np.random.RandomState([inputs.SEED, update, 3])
    params: dict[str, dict[str, Tensor]] = {}
    for name, x in parameters(algorithm).items():
        network, _, parameter = name.partition("/")
        params.setdefault(network, {})[parameter] = torch.from_numpy(x)
    nothing: Any = None
    state, count = State(algorithm, dict(params), {}, nothing), inputs.BATCH
    seen = torch.from_numpy(draw.standard_normal((count, cfg.n_obs_steps, inputs.OBS)))
    noise = torch.from_numpy(draw.standard_normal((count, *algorithm.noise_shape)))
    chain = algorithm.chain(state, state.model, seen, noise)

    def model(x: Tensor, times: Tensor) -> Tensor:
        told: Tensor = state.model(seen, x, times)
        return told

    table, bounds = algorithm.table(cfg.eta), (cfg.density_floor, algorithm.max_std)
    found = replay_log_prob(table, model, chain, *bounds)
    found = found + torch.from_numpy(0.02 * draw.standard_normal(tuple(found.shape)))
    executed = torch.ones(count, cfg.n_action_steps)
    means = torch.stack([algorithm.executed_log_prob(each, executed) for each in found.unbind(1)], 1)
    made = {"observations": seen, "chain": chain, "densities": found, "log_probs": means}
    columns = {name: x.numpy() for name, x in made.items()} | {"executed": executed.numpy()}
    columns |= {name: draw.standard_normal(count) for name in ("advantages", "returns")}
    return columns | {"step": draw.randint(0, cfg.tuned, count)}


def rollout(algorithm: Any, update: int) -> Arrays:
    """Decisions one after another in one environment, all with the same step of their chains."""
    columns, own = decisions(algorithm, update), inputs.batch(update, 1.0)
    draw = np.random.RandomState([inputs.SEED, update, 4])
    columns["terminated"] = own["terminated"]
    columns["rewards"] = draw.standard_normal(columns["executed"].shape)
    columns["truncated"] = (1 - own["terminated"]) * (draw.uniform(size=inputs.BATCH) < 1 / 3)
    columns["next_observations"] = draw.standard_normal(columns["observations"].shape)
    return columns | {"step": np.full(inputs.BATCH, update % algorithm.cfg.tuned)}


def judged(algorithm: Any, update: int) -> Arrays:
    """Chunks, what they were paid, and what was seen behind them."""
    cfg, chunks = algorithm.cfg, inputs.windows(update, whole=True)
    columns = inputs.batch(update, cfg.discount**cfg.n_action_steps)
    columns |= {"actions": chunks["actions"][:, : cfg.horizon], "held_out": np.zeros(inputs.BATCH)}
    for name in ("observations", "next_observations"):
        columns[name] = chunks[name][:, : cfg.n_obs_steps]
    return columns


def visited(algorithm: Any, state: State, batch: Any, i: int) -> tuple[State, dict[str, Tensor]]:
    """New chains of `behavior` on a batch's states, and an update on each of their steps."""
    made = {k: column.flatten(0, 1) for k, column in algorithm.fill(state, batch).items()}
    losses = []
    for k in range(algorithm.cfg.tuned):
        pairs = Decisions(made, torch.full((inputs.BATCH,), k), torch.tensor(0))
        state, metrics = algorithm.improve(state, pairs, i)
        losses.append(metrics["policy_loss"])
    return state, {"policy_loss": torch.stack(losses).mean()}


def digested(algorithm: Any, state: State, batch: Any, i: int) -> tuple[State, dict[str, Tensor]]:
    """An update on a rollout whose advantages V tells before it."""
    data = {name: column[:, None] for name, column in batch.columns.items()}
    data |= {"moments": torch.zeros(3), "so_far": torch.zeros(1)}
    made = algorithm.compute_advantages(state, data)
    own = {name: made[name].flatten() for name in ("advantages", "returns")}
    return algorithm.update(state, replace(batch, columns={**batch.columns, **own}), i)


WHOLE = {"improve": visited, ONLINE: digested}  # what rl100's cases run in a method's place


def config(case: Case) -> dict[str, Any]:
    """All hyper-parameters, for the other side."""
    algorithm = make(case)
    own = {"discount": algorithm.cfg.discount, "period": algorithm.period}
    own["online"] = asdict(algorithm.interaction.online)
    return asdict(algorithm.cfg) | own | {"num_updates": NUM_UPDATES}


def run(case: Case, fault: float = 0.0) -> tuple[Arrays, Arrays]:
    """Inputs for the other side, and every quantity of ours after each update, [updates, …].

    fault: a share by which the case's `aims` are made too large for our side alone.
    """
    with doubles():
        algorithm = make(case)
        start = parameters(algorithm)
        given: Arrays = {f"params/{name}": x for name, x in start.items()}
        params: dict[str, dict[str, Tensor]] = {}
        for name, x in start.items():
            network, _, parameter = name.partition("/")
            params.setdefault(network, {})[parameter] = torch.from_numpy(x.copy())
        adams = algorithm.optimizers().items()
        optimizer = {name: adam.init(params[name]) for name, adam in adams if name in params}
        outputs = []
        for update in range(case.updates):
            columns = batch(case, algorithm, update)
            given |= {f"batch/{update}/{name}": x for name, x in columns.items()}
            tape = Tape(update, case.draws)
            done = torch.tensor(update)
            state = State(algorithm, params, optimizer, Recorder(tape), done)
            now = as_batch(columns | {k: (1 + fault) * columns[k] for k in case.aims})
            method: Any = getattr(algorithm, "update" if case.phase == ONLINE else case.phase)
            if case.algorithm == "rl100" and case.phase in WHOLE:
                method = partial(WHOLE[case.phase], algorithm)
            state, metrics = method(state, now, update % algorithm.period)
            given |= {f"tape/{update}/{name}": x for name, x in tape.drawn.items()}
            params, optimizer = dict(state.params), dict(state.optimizer)
            outputs.append(quantities(state, metrics))
    return given, inputs.stacked(outputs)


def as_batch(columns: Arrays) -> Batch | Decisions:
    if "chain" in columns:
        made = {name: torch.from_numpy(x.copy()) for name, x in columns.items()}
        return Decisions(made, made.pop("step"), torch.tensor(0))
    expert = inputs.part(columns, "expert/")
    own = {k: torch.from_numpy(v.copy()) for k, v in columns.items() if "/" not in k}
    own.pop("terminated")
    return Batch(**own, expert=as_batch(expert) if expert else None)


def quantities(state: State, metrics: dict[str, Tensor]) -> Arrays:
    """params/…, moment/… and loss/…"""
    found: Arrays = {}
    for network, tree in state.params.items():
        found |= {f"params/{network}/{k}": v.detach().numpy().copy() for k, v in tree.items()}
    for network, moments in state.optimizer.items():
        first = moments["first"].items()
        found |= {f"moment/{network}/{k}": v.detach().numpy().copy() for k, v in first}
    return found | {f"loss/{k}": np.asarray(v.item()) for k, v in metrics.items()}
