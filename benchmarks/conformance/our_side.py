"""Our side of the comparison, and every import from this project that the comparison needs."""

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
from offline_rl.algorithms.common.base import Algorithm, Interaction, Network, State
from offline_rl.algorithms.common.chunk_cloning import ChunkCloning
from offline_rl.algorithms.common.discretized.demonstrations import MARK, Discretized
from offline_rl.algorithms.common.models.facts import Facts
from offline_rl.algorithms.common.models.rollouts import ModelBased
from offline_rl.algorithms.common.noising.flow_critic import FlowCritic
from offline_rl.algorithms.common.on_policy.chains import DenoisingRL
from offline_rl.algorithms.common.on_policy.denoising import replay_log_prob
from offline_rl.algorithms.common.on_policy.rollouts import GaussianRollouts
from offline_rl.algorithms.common.registry import algorithm_class, algorithm_names
from offline_rl.algorithms.common.safety.augmentation import make_targets
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.algorithms.coptidice import COptiDICE
from offline_rl.algorithms.hnpg import HNPG
from offline_rl.replay.batch import Batch
from offline_rl.replay.rollouts import Decisions, Iteration
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_atomically, write_text
from offline_rl.utils.options import build, parse_options
from offline_rl.utils.text import table
from policies.networks.mlp import MLP
from policies.networks.sequences.mamba import Mixer
from policies.networks.transformer import Attention
from policies.networks.unet import Conv, Upsample
from policies.spec import Spec

__all__ = ["UserError", "algorithm_names", "build", "parse_options", "table", "write_atomically"]
__all__ += ["write_text"]
BLOCKS: tuple[Any, ...] = (MLP, Conv, Upsample, Attention, Mixer)  # modules with a compute dtype
NUM_UPDATES = 20  # length of schedules; a comparison has fewer updates and covers part of a decay
SIZES = {
    "num_samples": inputs.SAMPLES,
    "num_policy_samples": inputs.SAMPLES,
    "num_critics": inputs.CRITICS,
}


class Recorder:
    """Replacement of `Random` that records its numbers on the tape."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def normal(self, shape: Sequence[int]) -> Tensor:
        return torch.from_numpy(self.tape.record("normal", tuple(shape)))

    def uniform(self, shape: Sequence[int]) -> Tensor:
        return torch.from_numpy(self.tape.record("uniform", tuple(shape)))

    def integers(self, high: Tensor | int, shape: Sequence[int]) -> Tensor:
        """Return the integer parts of uniform numbers times `high`."""
        return (self.uniform(shape) * high).long()


@contextmanager
def float64_mode() -> Iterator[None]:
    """Use float64 wherever our code asks for float32."""
    saved = torch.float32, torch.Tensor.float, torch.get_default_dtype()
    torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
    for block in BLOCKS:
        block.compute_dtype = torch.float64
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.Tensor.float, default = saved
        for block in BLOCKS:
            block.compute_dtype = torch.float32
        torch.set_default_dtype(default)


def make(case: Case) -> Algorithm:
    """Return the case's algorithm with small networks."""
    cls = algorithm_class(case.algorithm)
    sizes: dict[str, Any] = {}
    for f in fields(cls.Config):
        if f.name.endswith("hidden"):
            sizes[f.name] = (inputs.WIDTH,) * len(f.default)
        elif f.name in SIZES:
            sizes[f.name] = min(f.default, SIZES[f.name])
    cfg = cls.Config(**sizes | case.config)
    online_cfg = replace(cfg, **cls.Online.config_changes)
    interaction = Interaction(cls.Online(**case.online), online_cfg, NUM_UPDATES)
    algorithm = cls(Spec((inputs.OBS,), inputs.ACT), cfg, NUM_UPDATES, interaction)
    if algorithm.uses_facts:
        algorithm.facts = Facts([0.0] * inputs.OBS, [1.0] * inputs.OBS, ends={"task": is_end})
    return algorithm.for_phase(case.phase)


def is_end(s: Tensor, a: Tensor, s2: Tensor) -> Tensor:
    """Return a mask of the transitions that end a predicted episode."""
    return inputs.is_end(s2)


# modules renamed since the recordings were made, new name -> name in the recording
RENAMED = {
    "act": {
        "self_attention": "own",
        "cross_attention": "recall",
        "norm_self": "norm_own",
        "norm_cross": "norm_recall",
    }
}


def recorded_name(algorithm: str, name: str) -> str:
    """Return the name of a parameter or quantity at the time of the recording."""
    renamed = RENAMED.get(algorithm, {})
    return ".".join(renamed.get(part, part) for part in name.split("."))


def parameters(algorithm: Algorithm, name: str = "") -> Arrays:
    """Return the initial parameters; keys are `<network>/<parameter>`.

    name: the algorithm's name. Values are drawn in the order of the recorded names.
    """
    shapes = {
        f"{network}/{name}": tuple(p.shape)
        for network, module in algorithm.modules.items()
        for name, p in module.named_parameters()
    }
    return inputs.parameters(shapes, key=partial(recorded_name, name))


def batch(case: Case, algorithm: Algorithm, update: int) -> Arrays:
    """Return the columns of one update's batch; `expert/<column>` belong to the expert batch."""
    if case.algorithm == "rl100":
        return (
            rollout(algorithm, update)
            if case.phase == ONLINE
            else critic_columns(algorithm, update)
        )
    if isinstance(algorithm, DenoisingRL):
        return decisions(algorithm, update)
    if isinstance(algorithm, HNPG):
        return episodes_and_data(algorithm, update)
    if isinstance(algorithm, GaussianRollouts):
        return gaussian_decisions(algorithm, update)
    if isinstance(algorithm, ModelBased):
        return model_columns(case, algorithm, update)
    if isinstance(algorithm, ChunkCloning):
        return inputs.chunks(update, algorithm.cfg.n_obs_steps, algorithm.cfg.horizon)
    if isinstance(algorithm, FlowCritic):
        cfg = algorithm.cfg
        full = cfg.partial == "bootstrap"
        return inputs.chunk_transitions(update, cfg.discount, cfg.horizon, full=full)
    if case.phase == "augment":
        return inputs.episodes(update)
    if "timesteps" in algorithm.extra_columns and not isinstance(algorithm, COptiDICE):
        full = bool(case.draws) or case.algorithm == "decision_mamba"
        windows = inputs.windows(update, full=full)
        return windows | (inputs.window_costs(update) if "costs" in algorithm.extra_columns else {})
    columns = inputs.batch(update, algorithm.cfg.discount)
    if "costs" in algorithm.extra_columns:
        columns["costs"] = inputs.costs(update)
    if "previous_actions" in algorithm.extra_columns:
        columns["previous_actions"] = inputs.batch(update + inputs.EXPERT, 1.0)["actions"]
    if isinstance(algorithm, Discretized):
        columns[MARK] = (np.arange(inputs.BATCH) % 2 == 0).astype(np.float64)
    if isinstance(algorithm, COptiDICE):
        columns["timesteps"] = inputs.timesteps(update)
    if "expert" in algorithm.extra_columns:
        expert = inputs.batch(update + inputs.EXPERT, algorithm.cfg.discount)
        columns |= {f"expert/{name}": x for name, x in expert.items()}
    return columns


def decisions(algorithm: DenoisingRL, update: int) -> Arrays:
    """Return pairs of a decision and a denoising step, sampled with the initial weights.

    densities: [B, K', H, A], log densities of the chains plus small noise, as if a slightly
    different policy had sampled them. log_probs: [B, K'], means of the densities over the executed
    actions.
    """
    cfg, rng = algorithm.cfg, np.random.RandomState([inputs.SEED, update, 3])
    params: dict[str, dict[str, Tensor]] = {}
    for name, x in parameters(algorithm).items():
        network, _, parameter = name.partition("/")
        params.setdefault(network, {})[parameter] = torch.from_numpy(x)
    no_random: Any = None
    state, count = State(algorithm, dict(params), {}, no_random), inputs.BATCH
    observations = torch.from_numpy(rng.standard_normal((count, cfg.n_obs_steps, inputs.OBS)))
    noise = torch.from_numpy(rng.standard_normal((count, *algorithm.noise_shape)))
    chain = algorithm.chain(state, state.model, observations, noise)

    def model(x: Tensor, times: Tensor) -> Tensor:
        prediction: Tensor = state.model(observations, x, times)
        return prediction

    table, bounds = algorithm.table(cfg.eta), (cfg.density_floor, algorithm.max_std)
    densities = replay_log_prob(table, model, chain, *bounds)
    densities = densities + torch.from_numpy(0.02 * rng.standard_normal(tuple(densities.shape)))
    executed = torch.ones(count, cfg.n_action_steps)
    log_probs = [algorithm.executed_log_prob(each, executed) for each in densities.unbind(1)]
    tensors = {"observations": observations, "chain": chain, "densities": densities}
    tensors |= {"log_probs": torch.stack(log_probs, 1), "executed": executed}
    columns = {name: x.numpy() for name, x in tensors.items()}
    columns |= {name: rng.standard_normal(count) for name in ("advantages", "returns")}
    return columns | {"step": rng.randint(0, cfg.tuned, count)}


def gaussian_decisions(algorithm: GaussianRollouts, update: int) -> Arrays:
    """Return decisions whose log densities are those of a slightly different policy."""
    rng, count = np.random.RandomState([inputs.SEED, update, 3]), inputs.BATCH
    columns = {"observations": rng.standard_normal((count, 1, inputs.OBS))}
    columns["samples"] = rng.standard_normal((count, inputs.ACT))
    params = inputs.subtree(parameters(algorithm), "policy/")
    policy = Network(
        algorithm.modules["policy"], {k: torch.from_numpy(x) for k, x in params.items()}
    )
    tensors = (torch.from_numpy(columns[name]) for name in ("observations", "samples"))
    log_probs = policy.log_prob(next(tensors)[:, 0], next(tensors)).numpy()
    columns["log_probs"] = (log_probs + 0.2 * rng.standard_normal(count))[:, None]
    columns |= {name: rng.standard_normal(count) for name in ("advantages", "returns")}
    return columns | {"step": np.zeros(count, int)}


def episodes_and_data(algorithm: HNPG, update: int) -> Arrays:
    """Return three episodes, and three rows of data for each step; rewards at all steps."""
    rng, steps, count = np.random.RandomState([inputs.SEED, update, 3]), algorithm.cfg.num_steps, 3
    rows = {"observations": (inputs.OBS,), "samples": (inputs.ACT,), "rewards": ()}
    columns = {name: rng.standard_normal((count * steps, *x)) for name, x in rows.items()}
    columns["timesteps"] = np.tile(np.arange(float(steps)), count)
    columns["terminated"] = (columns["timesteps"] == steps - 1).astype(np.float64)
    later = columns["rewards"].reshape(count, steps)[:, ::-1].cumsum(1)
    columns["returns"] = later[:, ::-1].flatten()
    data = inputs.batch(update, 1.0, (steps, count))
    names = ("observations", "actions", "rewards", "next_observations")
    columns |= {f"off_{name}": data[name] for name in names}
    return columns | {"noise": rng.standard_normal((steps, count, inputs.ACT))}


def one_iteration(
    algorithm: Any, state: State, batch: Iteration, i: int
) -> tuple[State, dict[str, Tensor]]:
    """Run all updates on a rollout."""
    metrics: dict[str, Tensor] = {}
    batch = batch if algorithm.hybrid else replace(batch, offline=None)
    for k in range(algorithm.period):
        state, metrics = algorithm.update(replace(state, done=torch.tensor(k)), batch, k)
    return state, {"policy_loss": metrics["policy_loss"]}


def as_iteration(columns: Arrays) -> Iteration:
    """Return a rollout in one environment, and data of which only the last steps terminate."""
    tensors = {name: torch.from_numpy(x.copy()) for name, x in columns.items()}
    off = {k.removeprefix("off_"): tensors.pop(k) for k in [*tensors] if k.startswith("off_")}
    noise, mask = tensors.pop("noise"), torch.ones_like(off["rewards"])
    mask[-1] = 0
    data = {name: x[:, None] for name, x in tensors.items()}
    data |= {
        "rewards": data["rewards"][..., None],
        "observations": data["observations"][:, :, None],
    }
    data |= {"next_observations": data["observations"]}  # only used where rollouts are cut off
    data["truncated"] = torch.zeros_like(data["terminated"])
    return Iteration(data, Batch(**off, discount=mask, bootstrap_mask=mask), noise)


def rollout(algorithm: Any, update: int) -> Arrays:
    """Return consecutive decisions in one environment, all with the same denoising step."""
    columns, transitions = decisions(algorithm, update), inputs.batch(update, 1.0)
    rng = np.random.RandomState([inputs.SEED, update, 4])
    terminated = columns["terminated"] = transitions["terminated"]
    columns["rewards"] = rng.standard_normal(columns["executed"].shape)
    columns["truncated"] = (1 - terminated) * (rng.uniform(size=inputs.BATCH) < 1 / 3)
    columns["next_observations"] = rng.standard_normal(columns["observations"].shape)
    return columns | {"step": np.full(inputs.BATCH, update % algorithm.cfg.tuned)}


def critic_columns(algorithm: Any, update: int) -> Arrays:
    """Return chunks with their rewards and next observations, for critics and dynamics."""
    cfg, chunks = algorithm.cfg, inputs.windows(update, full=True)
    columns = inputs.batch(update, cfg.discount**cfg.n_action_steps)
    columns |= {"actions": chunks["actions"][:, : cfg.horizon], "held_out": np.zeros(inputs.BATCH)}
    for name in ("observations", "next_observations"):
        columns[name] = chunks[name][:, : cfg.n_obs_steps]
    return columns


def model_columns(case: Case, algorithm: Any, update: int) -> Arrays:
    """Return the batch of a model-based method; in the main phase, real transitions come first."""
    cfg, rows = algorithm.cfg, {"fit_completely": inputs.ROWS}
    rows["fit_dynamics"] = algorithm.cfg.members * inputs.BATCH
    columns = inputs.batch(update, cfg.discount, (rows.get(case.phase, inputs.BATCH),))
    if case.phase == "update":
        real = int(cfg.real_share * inputs.BATCH)
        columns["imagined"] = (np.arange(inputs.BATCH) >= real).astype(np.float64)
    return columns


def fit_completely(
    algorithm: Any, state: State, batch: Batch, i: int
) -> tuple[State, dict[str, Tensor]]:
    """Fit a dynamics model for all epochs; those after early stopping change nothing.

    The first rows are the holdout. Each member's training rows are shuffled after each epoch.
    """
    cfg, size = algorithm.cfg, algorithm.cfg.batch_size
    held = int(cfg.holdout_share * inputs.ROWS)

    def rows(index: Tensor) -> Batch:
        columns = {f.name: getattr(batch, f.name) for f in fields(batch)}
        taken = {name: x[index] for name, x in columns.items() if x is not None}
        return Batch(**taken | {"weights": torch.ones(len(index))})

    training = torch.arange(held, inputs.ROWS)
    order = training[state.random.integers(len(training), (cfg.members, len(training)))]
    state, _ = algorithm.start_dynamics(state, rows(training), 0)
    for _ in range(cfg.dynamics_epochs):
        for part in order.split(size, 1):
            state, _ = algorithm.fit_dynamics(state, rows(part.flatten()), 0)
        if not algorithm.has_converged("", state.params):
            places = state.random.uniform(order.shape).argsort(1)
            order = order.gather(1, places)
        state, _ = algorithm.validate_dynamics(state, rows(torch.arange(held)), 0)
    state, metrics = algorithm.select_dynamics(state, rows(torch.arange(held)), 0)
    return state, metrics | {"elites": algorithm.elite_members(state).double()}


def roll_out(algorithm: Any, state: State, batch: Batch, i: int) -> tuple[State, dict[str, Tensor]]:
    """Return the valid transitions of rollouts as metrics, padded with zeros."""
    columns = algorithm.fill(state, batch)
    valid = columns.pop("valid")
    names = ("observations", "actions", "rewards", "next_observations", "terminated")
    padding = inputs.BATCH * algorithm.cfg.horizon - int(valid.sum())
    rows = {name: columns[name][valid] for name in names}
    return state, {k: torch.cat([x, x.new_zeros(padding, *x.shape[1:])]) for k, x in rows.items()}


def plan_in_the_model(
    algorithm: Any, state: State, batch: Batch, i: int
) -> tuple[State, dict[str, Tensor]]:
    """Return planned actions in rollouts."""
    return state, {"actions": algorithm.choose_action(state, batch.observations)}


def plan_in_the_environment(
    algorithm: Any, state: State, batch: Batch, i: int
) -> tuple[State, dict[str, Tensor]]:
    """Return planned actions in the environment."""
    head = Network(algorithm.exploring_head(), algorithm.exploring_params(state.params))
    return state, {"actions": head.explore_action(batch.observations, state.random)}


def act_in_an_episode(
    algorithm: Any, state: State, batch: Batch, i: int
) -> tuple[State, dict[str, Tensor]]:
    """Return the actions of an episode whose observations, rewards and costs are the batch's.

    Of windows, only the first steps are used.
    """
    head = Network(algorithm.acting_head(), algorithm.acting_params(state.params))
    memory, actions = algorithm.acting_head().initial_memory(1), []
    columns = (batch.observations, batch.rewards, batch.costs)
    steps = [x[:, 0] if batch.valid is not None else x for x in columns if x is not None]
    for observation, reward, cost in zip(*steps, strict=True):
        chunk, memory = head.decide(observation[None, None], memory, observation.new_zeros(1, 0))
        reported = {"rewards": reward[None], "costs": cost[None]}
        memory = {name: reported.get(name, x) for name, x in memory.items()}
        actions.append(chunk[0, 0])
    return state, {"actions": torch.stack(actions)}


def update_and_act(
    algorithm: Any, state: State, batch: Batch, i: int
) -> tuple[State, dict[str, Tensor]]:
    """Update, then return the greedy actions."""
    state, _ = algorithm.update(state, batch, i)
    head = Network(algorithm.acting_head(), algorithm.acting_params(state.params))
    return state, {"actions": head.act(batch.observations)}


def make_new_episodes(
    algorithm: Any, state: State, batch: Batch, i: int
) -> tuple[State, dict[str, Tensor]]:
    """Return the new episodes of CDT for episodes of one step."""
    cfg = algorithm.cfg
    names = ("degree", "max_return", "min_gain", "max_decrease", "as_released")
    options = {name: getattr(cfg, name) for name in names}
    assert batch.mc_costs is not None
    assert batch.mc_returns is not None
    columns = batch.mc_costs.numpy(), batch.mc_returns.numpy()
    new = make_targets(*columns, share=cfg.augmentation, **options)
    return state, {name: torch.from_numpy(x).double() for name, x in new._asdict().items()}


def improve_all_steps(
    algorithm: Any, state: State, batch: Any, i: int
) -> tuple[State, dict[str, Tensor]]:
    """Sample chains of `behavior` for a batch's states, then update on each denoising step."""
    columns = {k: column.flatten(0, 1) for k, column in algorithm.fill(state, batch).items()}
    losses = []
    for k in range(algorithm.cfg.tuned):
        pairs = Decisions(columns, torch.full((inputs.BATCH,), k), torch.tensor(0))
        state, metrics = algorithm.improve(state, pairs, i)
        losses.append(metrics["policy_loss"])
    return state, {"policy_loss": torch.stack(losses).mean()}


def update_on_rollout(
    algorithm: Any, state: State, batch: Any, i: int
) -> tuple[State, dict[str, Tensor]]:
    """Compute a rollout's advantages with the current V, then update on the rollout."""
    data = {name: column[:, None] for name, column in batch.columns.items()}
    data |= {"moments": torch.zeros(3), "so_far": torch.zeros(1)}
    values = algorithm.compute_advantages(state, data)
    advantages = {name: values[name].flatten() for name in ("advantages", "returns")}
    return algorithm.update(state, replace(batch, columns={**batch.columns, **advantages}), i)


# algorithm, phase -> function that replaces the algorithm's method for this phase
REPLACEMENTS: dict[tuple[str, str], Any] = {
    ("rl100", "improve"): improve_all_steps,
    ("rl100", ONLINE): update_on_rollout,
    ("hnpg", "update"): one_iteration,
    ("trpo", "update"): one_iteration,
    ("mopo", "fit_completely"): fit_completely,
    ("mopo", "roll_out"): roll_out,
    ("coplanner", "plan_in_the_model"): plan_in_the_model,
    ("coplanner", "plan_in_the_environment"): plan_in_the_environment,
    ("caps", "act"): act_in_an_episode,
    ("cdt", "act"): act_in_an_episode,
    ("cdt", "augment"): make_new_episodes,
    ("arsq", "act"): update_and_act,
    ("cqn", "act"): update_and_act,
}


def config(case: Case) -> dict[str, Any]:
    """Return all hyperparameters, for the reference."""
    algorithm = make(case)
    derived = {"discount": algorithm.cfg.discount, "period": algorithm.period}
    derived["online"] = asdict(algorithm.interaction.online)
    return asdict(algorithm.cfg) | derived | {"num_updates": NUM_UPDATES}


def run(case: Case, fault: float = 0.0) -> tuple[Arrays, Arrays]:
    """Run our side; return the reference's inputs and our results after each update, [updates, …].

    fault: relative error added to the columns `case.aims`, on our side only.
    """
    with float64_mode():
        algorithm = make(case)
        start = parameters(algorithm, case.algorithm)
        start |= {name: start[name] + shift for name, shift in case.shifts.items()}
        arrays: Arrays = {f"params/{name}": x for name, x in start.items()}
        params: dict[str, dict[str, Tensor]] = {}
        for name, x in start.items():
            network, _, parameter = name.partition("/")
            params.setdefault(network, {})[parameter] = torch.from_numpy(x.copy())
        adams = algorithm.optimizers().items()
        optimizer = {name: adam.init(params[name]) for name, adam in adams if name in params}
        outputs = []
        for update in range(case.updates):
            columns = batch(case, algorithm, update)
            arrays |= {f"batch/{update}/{name}": x for name, x in columns.items()}
            tape = Tape(update, case.draws)
            done = torch.tensor(update)
            state = State(algorithm, params, optimizer, Recorder(tape), done)
            rows = as_batch(columns | {k: (1 + fault) * columns[k] for k in case.aims})
            replacement = REPLACEMENTS.get((case.algorithm, case.phase))
            method: Any = getattr(algorithm, "update" if case.phase == ONLINE else case.phase, None)
            method = method if replacement is None else partial(replacement, algorithm)
            state, metrics = method(state, rows, update % algorithm.period)
            arrays |= {f"tape/{update}/{name}": x for name, x in tape.arrays.items()}
            params, optimizer = dict(state.params), dict(state.optimizer)
            outputs.append(quantities(state, metrics))
    return arrays, inputs.stack_updates(outputs)


def as_batch(columns: Arrays) -> Batch | Decisions | Iteration:
    if "noise" in columns:
        return as_iteration(columns)
    if "step" in columns:
        tensors = {name: torch.from_numpy(x.copy()) for name, x in columns.items()}
        return Decisions(tensors, tensors.pop("step"), torch.tensor(0))
    expert = inputs.subtree(columns, "expert/")
    fields = {k: torch.from_numpy(v.copy()) for k, v in columns.items() if "/" not in k}
    fields["bootstrap_mask"] = 1 - fields.pop("terminated").float()
    of_expert: Any = as_batch(expert) if expert else None
    return Batch(**fields, expert=of_expert)


def quantities(state: State, metrics: dict[str, Tensor]) -> Arrays:
    """Return the results after an update; names are params/…, moment/… and loss/…"""
    arrays: Arrays = {}
    for network, tree in state.params.items():
        arrays |= {f"params/{network}/{k}": v.detach().numpy().copy() for k, v in tree.items()}
    for network, moments in state.optimizer.items():
        first = moments["first"].items()
        arrays |= {f"moment/{network}/{k}": v.detach().numpy().copy() for k, v in first}
    return arrays | {f"loss/{k}": v.detach().numpy().copy() for k, v in metrics.items()}
