"""Contract tests over every algorithm file: what the engine and the trainer rely on.

Tracing takes a second or two. All tests of an algorithm therefore run in one process, one after the
other, and traced programs are kept for the next test.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch
from metric_page import documented_metrics
from torch.fx import Graph, GraphModule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from offline_rl.algorithms.common.base import Algorithm, Interaction, State
from offline_rl.algorithms.common.config import stackable_fields
from offline_rl.algorithms.common.models.facts import Facts
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.registry import algorithm_class, algorithm_names
from offline_rl.algorithms.common.schedule import OnPolicy
from offline_rl.data import Dataset
from offline_rl.engine import engine as engine_module
from offline_rl.engine.engine import MAX_UNROLLED, Engine
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.ring import Ring
from offline_rl.replay.rollouts import Rollouts
from offline_rl.training.sources import offline_source
from offline_rl.utils.options import Checked, Range, build, coerce, describe_options, field_ranges
from offline_rl.utils.random import Random
from offline_rl.utils.trees import flatten
from policies import Spec
from policies.networks.mlp import MLP

SPEC = Spec((5,), 2)
FACTS = Facts(
    [0.0] * 5,
    [1.0] * 5,
    low=[-3.0] * 5,
    high=[3.0] * 5,
    ends={"task": lambda s, a, s2: s2[..., 0] > 1},
)
SEEDS = [3, 1, 7]


def small_config(cls: type[Algorithm], **values: object) -> Any:
    names = cls.Config.__dataclass_fields__
    chosen = cls.Config.small() | values
    return build(cls.Config, {k: v for k, v in chosen.items() if k in names})


def is_on_policy(cls: type[Algorithm]) -> bool:
    return issubclass(cls.Online, OnPolicy)


def dataset(rows: int = 300, seed: int = 0) -> Dataset:
    draw = np.random.default_rng(seed)
    ends = np.arange(rows) % 30 == 29
    return Dataset.from_arrays(
        draw.normal(size=(rows, 5)),
        draw.uniform(-1, 1, (rows, 2)),
        draw.normal(size=rows),
        ends & (np.arange(rows) % 60 == 29),
        ends & (np.arange(rows) % 60 != 29),
        draw.normal(size=(rows, 5)),
        extras={"costs": (np.arange(rows) % 3 == 0).astype(np.float32)},
    )


def source(cls: type[Algorithm], cfg: object, device: str = "cpu") -> Source:
    if is_on_policy(cls):
        return toy_rollouts(cls(SPEC, cfg), device)
    expert = dataset(100, seed=1) if "expert" in cls.extra_columns else None
    return offline_source(cls(SPEC, cfg), dataset(), expert, device=device)


def toy_rollouts(algorithm: Any, device: str) -> Rollouts:
    """Return rollouts whose chains hardly change, like an untrained network's."""
    cfg, (shapes, carried) = algorithm.cfg, algorithm.columns()
    size = cfg.decisions // cfg.environments, cfg.environments
    made = Rollouts(1, size, shapes, steps=cfg.tuned, carried=carried, device=device)
    draw = np.random.default_rng(0)
    columns = ("observations", "next_observations", "advantages", "returns", "chain", "samples")
    for name in (name for name in columns if name in made.data):
        scale = 0.05 if name == "chain" else 1.0
        shape = made.data[name].shape
        made.data[name].copy_(torch.from_numpy(scale * draw.normal(size=shape)))
    made.data["executed"].fill_(1)
    made.data["log_probs"].fill_(1)
    return made


def toy_ring(device: str) -> Ring:
    """Return a ring that all seeds share, with the rows of a data set."""
    data, ring = dataset(seed=2), Ring((5,), 2, 300, device=device)
    rows = {"observations": data.observations[:300], "actions": data.actions}
    rows |= {"rewards": data.rewards, "terminated": data.terminated, "truncated": data.truncated}
    rows["next_observations"] = data.observations[data.next_index]
    tensors = {k: torch.from_numpy(v)[None].to(device) for k, v in rows.items()}
    ring.write(tensors, torch.zeros(1))
    return ring


def sources(cls: type[Algorithm], cfg: object, device: str = "cpu") -> Sources:
    made = source(cls, cfg, device)
    if not is_on_policy(cls):
        rings = {name: toy_ring(device) for name in cls(SPEC, cfg).rings()}
        return {"offline": made, **rings}
    if "data" not in cls.mode.learns:
        return {"rollouts": made}
    return {"offline": offline_source(cls(SPEC, cfg), dataset(), device=device), "rollouts": made}


def sources_and_experience(
    cls: type[Algorithm], cfg: Any, device: str = "cpu"
) -> tuple[Sources, Any]:
    """Return the sources with those of online training, and its config.

    On-policy methods have no buffer of experience.
    """
    both, then = sources(cls, cfg, device), replace(cfg, **cls.Online.config_changes)
    if not cls.mode.online or "rollouts" in both:
        return both, then
    experience = offline_source(cls(SPEC, then), dataset(seed=2), device=device)
    return {**both, "online": experience}, then


def new_engine(name: str, seeds: list[int], **options: object) -> Engine:
    cls = algorithm_class(name)
    cfg = small_config(cls)
    made = sources(cls, cfg, str(options.get("device", "cpu")))
    how = Interaction(cls.Online.small(), cfg)

    return Engine(lambda _: new_algorithm(cls, cfg, how), seeds, made, batch_size=32, **options)


def new_algorithm(cls: type[Algorithm], cfg: object, how: Interaction | None = None) -> Algorithm:
    """Return an algorithm, with facts of its task if it uses them."""
    algorithm = cls(SPEC, cfg, 100, how)
    algorithm.facts = FACTS if cls.uses_facts else None
    return algorithm


@lru_cache(8)  # the kinds that one algorithm's tests ask for
def traced(name: str, count: int, options: tuple[tuple[str, object], ...]) -> Engine:
    return new_engine(name, [*range(count)], **dict(options))


def engine(name: str, seeds: list[int], **options: object) -> Engine:
    """Return an engine in its initial state."""
    e, new = traced(name, len(seeds), tuple(options.items())), new_engine(name, seeds)
    restore(e, [new.seed_state(s) for s in range(len(seeds))])
    e.metrics()
    return e


def restore(e: Engine, states: list[dict[str, torch.Tensor]]) -> None:
    for s, state in enumerate(states):
        e.load_seed_state(s, state)


def states(e: Engine) -> list[dict[str, torch.Tensor]]:
    return list(e.seed_states())


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Return the largest difference over all tensors, relative to numbers above 1."""
    assert a.keys() == b.keys()
    pairs = [(a[k].double(), b[k].double()) for k in a]
    return max(((x - y).abs().max() / y.abs().max().clamp(min=1)).item() for x, y in pairs)


def leaves(batch: Batch) -> dict[str, torch.Tensor]:
    """Return a batch's columns, and those of a batch within it."""
    nested = {k: leaves(v) if isinstance(v, Batch) else v for k, v in vars(batch).items()}
    return flatten({k: v for k, v in nested.items() if v is not None})


# algorithms whose networks are of different kinds; the rest run in bf16 in the slow tier
IN_BF16 = ("act", "cql", "decision_transformer", "diffusion_policy", "fisor", "mopo", "td3_bc")


def together(name: str) -> pytest.MarkDecorator:
    return pytest.mark.xdist_group(f"contract of {name}")


every_algorithm = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=together(n)) for n in algorithm_names()], scope="module"
)


@together("td3_bc")
def test_all_tests_of_an_algorithm_run_in_one_process(request: pytest.FixtureRequest):
    """xdist appends the group to a test's id if it supports this pytest."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("these tests run in one process, or are not told to stay together")
    assert request.node.nodeid.endswith("@contract of td3_bc")


@every_algorithm
def test_only_the_initial_state_builds_networks(name: str):
    cls = algorithm_class(name)
    algorithm = cls(SPEC, small_config(cls), 100)
    _, algorithm.cfg = algorithm.prepare(dataset())
    assert algorithm.make_columns(dataset()).keys() == {*cls.extra_columns} - {"expert"}
    made = sources(cls, algorithm.cfg)
    for phase in [*algorithm.phases, "update"]:
        assert algorithm.for_phase(phase).period >= 1
        assert algorithm.for_phase(phase).source(phase, made)
    assert {type(x) for x in algorithm.for_phase("online").optimizers().values()} <= {Adam}
    assert "modules" not in vars(algorithm)
    assert algorithm.initial()["params"].keys() == algorithm.modules.keys() >= {*algorithm.acts}


@every_algorithm
def test_an_update_does_not_modify_its_inputs_and_returns_finite_detached_scalars(name: str):
    cls = algorithm_class(name)
    algorithm = cls(SPEC, small_config(cls), 100)
    tree = algorithm.initial()
    random = Random(torch.tensor(0), torch.tensor(0))
    _, made = engine(name, [0]).for_phase("update")
    batch = made.sample(tree_map(lambda x: x[0], made.tensors()), random, 32, 0.99)
    columns = {k: v.clone() for k, v in leaves(batch).items()}
    before = {k: v.clone() for k, v in flatten(tree).items()}
    for i in range(algorithm.period):
        state = State(algorithm, tree["params"], tree["optimizer"], random, torch.tensor(0))
        new, metrics = algorithm.update(state, batch, i)
        assert metrics
        for value in metrics.values():
            assert value.dim() == 0
            assert value.isfinite()
            assert not value.requires_grad
    assert largest_difference(columns, leaves(batch)) == 0
    assert largest_difference(before, flatten(tree)) == 0
    assert new.params.keys() == tree["params"].keys()


@every_algorithm
def test_imitation_phases_are_those_that_never_read_next_observations(name: str):
    """Only updates of these phases stay finite with NaN in every next observation."""
    cls = algorithm_class(name)
    algorithm, e = new_algorithm(cls, small_config(cls)), engine(name, [0])
    tree, random = algorithm.initial(), Random(torch.tensor(0), torch.tensor(0))
    state = State(algorithm, tree["params"], tree["optimizer"], random, torch.tensor(0))
    for phase in [*algorithm.phases, "update"]:
        _, made = e.for_phase(phase)
        batch = made.sample(tree_map(lambda x: x[0], made.tensors()), random, 32, 0.99)
        if not isinstance(batch, Batch):  # decisions of the policy itself
            continue
        if phase in ("start_dynamics", "validate_dynamics", "select_dynamics"):
            continue  # these train nothing
        unknown = replace(batch, next_observations=torch.full_like(batch.next_observations, np.nan))
        new, _ = getattr(algorithm, phase)(state, unknown, algorithm.period - 1)
        finite = all(x.isfinite().all() for x in flatten(new.params).values())
        assert finite == (phase in cls.imitation_phases), phase


@pytest.mark.parametrize("name", ["bc", "diffusion_policy", "iql", "rl100", "spot"])
def test_only_imitation_phases_use_every_row(name: str):
    cls = algorithm_class(name)
    cfg = small_config(cls)
    made, every = (offline_source(cls(SPEC, cfg), dataset(seed=seed)) for seed in range(2))
    both = {"offline": made, "every_row": every}
    for phase in [*cls(SPEC, cfg, 100).phases, "update"]:
        if is_on_policy(cls) and phase in ("improve", "update"):
            continue  # these are trained on rollouts
        learned = cls(SPEC, cfg, 100).source(phase, both).tensors()
        used = {x.data_ptr() for x in tree_leaves(learned)}
        owner = every if phase in cls.imitation_phases else made
        assert owner.tensors()["actions"].data_ptr() in used, phase
        assert {*map(torch.Tensor.data_ptr, owner.tensors().values())} >= used, phase


@every_algorithm
def test_every_trained_network_moves_and_targets_follow(name: str):
    e = engine(name, [0])
    before = {k: v.clone() for k, v in flatten(e.state["params"]).items()}
    for phase in [*e.algorithm.phases, "update"]:
        e.run(4 * e.algorithm.period, phase)
    moved = {
        k.split("/")[0] for k, v in flatten(e.state["params"]).items() if (v != before[k]).any()
    }
    assert moved == set(e.state["params"]) - set(e.algorithm.frozen_networks)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@every_algorithm
def test_compiled_updates_of_256_units_compute_what_the_traced_graph_does(
    name: str, precision: str
):
    """Uses the engine's own check on this processor, with layer normalization if there is any."""
    cls = algorithm_class(name)
    kinds = ("hidden", "policy_hidden", "critic_hidden", "vae_hidden", "value_hidden")
    size: dict[str, Any] = {key: [256, 256] for key in (*kinds, "dynamics_hidden")}
    size |= {"dim_feedforward": 256, "batch_size": 128, "decisions": 128, "layer_norm": True}
    cfg = small_config(cls, **size)
    made, how = sources(cls, cfg), Interaction(cls.Online.small(), cfg)
    options = {"batch_size": 128, "precision": precision, "compile": True}
    e = Engine(lambda _: new_algorithm(cls, cfg, how), [0, 1], made, **options)
    for phase in [*e.algorithm.phases, "update"]:
        e.programs(phase)
    assert e.fallbacks == {}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=together(n))
        for n in algorithm_names()
        if algorithm_class(n).mode.online
    ],
)
def test_an_online_period_changes_the_trained_networks_and_stays_finite(name: str):
    """Batches mix data and experience as the method does."""
    cls = algorithm_class(name)
    cfg = small_config(cls)
    both, then = sources_and_experience(cls, cfg)
    how = Interaction(cls.Online.small(), then, 10)
    e = Engine(lambda _: cls(SPEC, cfg, 100, how), [0], both, batch_size=32)
    before = {k: v.clone() for k, v in flatten(e.state["params"]).items()}
    e.run(2 * e.period("online"), "online")
    after = flatten(e.state["params"])
    moved = {k.split("/")[0] for k, v in after.items() if (v != before[k]).any()}
    idle = {*cls.frozen_networks, *cls.offline_networks}
    assert moved == set(e.state["params"]) - idle
    assert e.finite_seeds().all()
    assert all(np.isfinite(v).all() for v in e.metrics("online").values())


def rows_of(place: int, count: int) -> dict[str, np.ndarray]:
    """Return steps that only the stream at this index receives."""
    draw = np.random.default_rng(place)
    rows = {k: draw.normal(size=(count, 5)) for k in ("observations", "next_observations")}
    rows |= {"actions": draw.uniform(-1, 1, (count, 2)), "truncated": np.zeros(count)}
    rows |= {"rewards": draw.normal(5 * place, size=count)}
    return rows | {"terminated": np.arange(count) % 20 == 19}


def beginning(
    name: str, offline_fraction: float, *places: int, **options: Any
) -> tuple[Engine, ReplayBuffer]:
    """Return an engine in its initial online state, and a replay buffer with a stream per seed."""
    cls = algorithm_class(name)
    cfg, own = small_config(cls), ReplayBuffer((5,), 2, 120, streams=len(places))
    how = Interaction(cls.Online(offline_fraction=offline_fraction), cfg)
    for stream, place in enumerate(places):
        own.append(stream, rows_of(place, 60 + 30 * place))
    both = {"offline": ReplayBuffer.from_dataset(dataset()), "online": own}
    options = {"batch_size": 32} | options
    seeds = [SEEDS[place] for place in places]
    return Engine(lambda _: cls(SPEC, cfg, 100, how), seeds, both, **options), own


@pytest.mark.parametrize(("name", "offline_fraction"), [("sac", 0.0), ("rlpd", 0.5)])
def test_each_stacked_seed_trains_online_on_its_own_stream(name: str, offline_fraction: float):
    """Streams have different rows and lengths, without and with data that all seeds share."""
    stacked, _ = beginning(name, offline_fraction, 0, 1, 2)
    stacked.run(20, "online")
    alone, experience = beginning(name, offline_fraction, 0)
    for place in range(3):
        new, own = beginning(name, offline_fraction, place)
        alone.load_seed_state(0, new.seed_state(0))
        experience.load(0, own.stream_state(0))
        alone.run(20, "online")
        assert largest_difference(alone.seed_state(0), stacked.seed_state(place)) < 2e-4


@every_algorithm
def test_actions_are_in_range_and_deterministic_without_exploration(name: str):
    e = engine(name, SEEDS)
    far = 0.1 if e.algorithm.mode.start == "base" else 100  # it observes actions, in [-1, 1]
    near = torch.randn(len(SEEDS), 8, 5, generator=torch.Generator().manual_seed(0))
    observations = far * near
    actions = e.stacked_policy(8)(observations)
    assert actions.shape == (len(SEEDS), 8, 2)
    assert actions.abs().max() <= 1
    assert torch.equal(actions, e.stacked_policy(8)(observations, 5))
    head = e.algorithm.acting_head()
    if e.algorithm.mode.online and head.chunk_size == 1 and not head.noise_shape:
        explore = e.stacked_policy(8, explore=True)
        assert explore(observations, 1).abs().max() <= 1
        near = min(far, 1) * near  # where not every action is at the edge of the box
        explore.reset()  # the noise of a head depends on the number of decisions in an episode
        first = explore(near, 1)
        explore.reset()
        assert torch.equal(explore(near, 1), first)
        assert not torch.equal(explore(near, 2), first)


@every_algorithm
def test_resuming_after_ten_updates_is_bitwise_exact(name: str):
    e = engine(name, SEEDS)
    e.run(20)
    whole = states(e)
    e = engine(name, SEEDS)
    e.run(10)
    saved = states(e)
    e = engine(name, [8, 9, 10])  # other seeds, so that whatever is not restored shows
    e.run(4)
    restore(e, saved)
    e.done = {"update": 10}
    e.run(10)
    assert e.updates == 20
    for first, second in zip(whole, states(e), strict=True):
        assert largest_difference(first, second) == 0


@every_algorithm
def test_stacked_seeds_equal_their_single_runs(name: str):
    """Only the order of sums in matrix products differs after 40 float32 updates."""
    e = engine(name, SEEDS)
    e.run(40)
    stacked = states(e)
    for s, seed in enumerate(SEEDS):
        single = engine(name, [seed])
        single.run(40)
        assert largest_difference(single.seed_state(0), stacked[s]) < 2e-4


@every_algorithm
def test_metrics_are_one_finite_number_per_seed_and_documented(name: str):
    e = engine(name, SEEDS)
    e.run(4 * e.algorithm.period)
    metrics = e.metrics()
    assert metrics
    assert all(v.shape == (3,) and np.isfinite(v).all() for v in metrics.values())
    assert {f"train/{key}" for key in metrics} <= documented_metrics()
    assert e.metrics() == {}


@together("td3_bc")
def test_compiled_equals_eager():
    check_compiled("td3_bc")


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in algorithm_names() if n != "td3_bc"])
def test_compiled_equals_eager_for_the_rest(name: str):
    check_compiled(name)


@pytest.mark.slow
def test_a_compiled_program_samples_rows_added_later():
    """Online, with data: the buffer's length is not a constant of the program."""
    found = []
    for compiled in (False, True):
        made, own = beginning("sac", 0.5, 0, 1, compile=compiled)
        for count in (0, 9, 70):  # the last go round
            for stream in (0, 1):
                own.append(stream, rows_of(3 + stream, count))
            made.run(8, "online")
        found.append(states(made))
    for a, b in zip(*found, strict=True):
        assert largest_difference(a, b) < 1e-3


def check_compiled(name: str) -> None:
    """Compare after 20 float32 updates; fused kernels sum in another order."""
    eager, compiled = engine(name, SEEDS), engine(name, SEEDS, compile=True)
    eager.run(20)
    compiled.run(20)
    for a, b in zip(states(eager), states(compiled), strict=True):
        assert largest_difference(a, b) < 2e-4  # as for stacked seeds; cqn: 1.1e-4


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=together(n) if n in IN_BF16 else pytest.mark.slow)
        for n in algorithm_names()
    ],
)
def test_bf16_keeps_weights_in_float32_and_results_close(name: str):
    exact, rough = engine(name, [2]), engine(name, [2], precision="bf16")
    exact.run(10)
    rough.run(10)
    for leaf in flatten(rough.state["params"]).values():
        assert leaf.dtype == torch.float32
    a, b = flatten(exact.state["params"]), flatten(rough.state["params"])
    assert 0 < largest_difference(a, b) < 10 * 2 * 1e-3  # ten Adam steps apart at the very most


class DeviceFaults(TorchDispatchMode):
    """Records operations that a CUDA graph cannot capture or that are not deterministic.

    It observes functions of tensors on `meta`, which stands in for the GPU.
    """

    WAITS = frozenset({"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal"})
    ATOMIC_SUMS = frozenset(
        {"index_add", "scatter_add", "scatter_reduce", "embedding_dense_backward", "histc"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.faults = Counter[str]()

    def trace(self, function: Callable[..., Any], *arguments: Any) -> GraphModule:
        """Run `function` as `engine.trace.trace` does. Return an empty graph."""
        with self:
            function(*arguments)
        return GraphModule(torch.nn.Module(), Graph())

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        hosts = [x for x in inputs if x.device.type == "cpu"]
        if torch.Tag.pointwise in function.tags:
            hosts = [x for x in hosts if x.dim()]  # a number is passed as a kernel argument
        name = function.overloadpacket.__name__.removesuffix("_")
        self.faults[f"{name} waits for the device"] += name in self.WAITS
        self.faults[f"{name} sums in any order"] += name in self.ATOMIC_SUMS
        if name == "index_put":
            self.faults[f"{name} sums in any order"] += bool([*args[3:], False][0])
        result = function(*args, **kwargs)
        if hosts:  # else nothing can be copied
            outputs = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
            mixed = any(x.device.type != "cpu" for x in inputs + outputs)
            self.faults[f"{name} copies from the host"] += mixed
        return result


def device_faults(
    name: str,
    only: str | None = None,
    *,
    offline_fraction: float | str | None = None,
    **values: object,
) -> dict[str, dict[str, int]]:
    """Return the faults of each program of one phase or of all, for two stacked seeds."""
    cls = algorithm_class(name)
    cfg, how = small_config(cls, **values), cls.Online()
    if offline_fraction is not None:
        how = replace(how, offline_fraction=offline_fraction)
    both, then = sources_and_experience(cls, cfg, "meta")
    interaction = Interaction(how, then, 10)
    e = Engine(
        lambda _: new_algorithm(cls, cfg, interaction), [0, 1], both, batch_size=32, device="meta"
    )
    found: dict[str, dict[str, int]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "new_tensor", new_tensor)
        phases = [*e.algorithm.phases, "update"] + ["online"] * ("online" in both)
        for phase in [only] if only else phases:
            algorithm, period = e.for_phase(phase)[0], e.period(phase)
            kinds = tuple(sorted({algorithm.equivalent_step(i) for i in range(period)}))
            for places in [(i,) for i in kinds] if period > MAX_UNROLLED else [kinds]:
                recorder = DeviceFaults()
                patch.setattr(engine_module, "trace", recorder.trace)
                e._trace(phase, places)
                if faults := dict(+recorder.faults):
                    found[f"{phase} {places}"] = faults
    return found


def test_rows_that_a_program_computes_are_stored_without_the_host():
    """Chains of the policy as rollouts, and rows that a mask selects in a ring."""
    e, recorder = new_engine("rl100", [0], device="meta"), DeviceFaults()
    request: Any = ("improve", e.algorithm.cfg.decisions, "imitate", "rollouts")
    ring = Ring((5,), 2, 50, device="meta")
    shapes = dict.fromkeys(("rewards", "terminated", "truncated", "valid"), (1, 9))
    shapes |= dict.fromkeys(("observations", "next_observations"), (1, 9, 5))
    shapes |= {"actions": (1, 9, 2)}
    rows = {name: torch.zeros(shape, device="meta") for name, shape in shapes.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "new_tensor", new_tensor)
        e.fill(*request)  # traces the program
        with recorder:
            e.fill(*request)
            ring.write(rows, e.state["counters"]["update"])
    assert dict(+recorder.faults) == {}


def new_tensor(like: torch.Tensor, data: Any, *, dtype: Any = None) -> torch.Tensor:
    """Tensor.new_tensor, which torch.vmap does not support on `meta`; they have no values."""
    return torch.empty(np.shape(data), dtype=dtype or like.dtype, device=like.device)


@pytest.mark.parametrize(
    ("name", "values"),
    [(name, {}) for name in algorithm_names()]
    + [("mcq", {"alpha": 0.2}), ("cql", {"gap": 1.0, "max_target_backup": True})]
    + [("cql", {"variant": "rho", "bc_updates": 5}), ("recoil", {"objective": "mixture"})]
    + [("f_dvl", {"divergence": d}) for d in ("total_variation", "reverse_kl")]
    + [
        ("cal_ql", {"num_critics": 3, "num_min_critics": 2, "layer_norm": True}),
        ("iql", {"squashed": True}),
    ]
    + [("wsrl", {"max_target_backup": True})]
    + [("xql", {"noise": True, "random_actions": 2}), ("ro2o", {"bound": "lcb", "cloning": 1.0})]
    + [("diffusion_policy", {"network": "unet", "levels": 2, "mask_ends": True})]
    + [("diffusion_policy", {"network": "transformer", "widths": [8, 8], "num_heads": 2})],
)
def test_an_update_can_be_captured_on_a_gpu(name: str, values: dict[str, object]):
    """It copies nothing from the host, does not wait for the device and sums in a fixed order.

    All phases with the defaults, the updates on data with other values.
    """
    assert device_faults(name, "update" if values else None, **values) == {}


@pytest.mark.parametrize("offline_fraction", [0.0, 0.1, 0.5, 0.9, 1.0, "rows"])
def test_an_online_update_can_be_captured_with_every_offline_fraction(
    offline_fraction: float | str,
):
    assert device_faults("sac", "online", offline_fraction=offline_fraction) == {}


def test_what_a_gpu_cannot_capture_is_recorded():
    rows = torch.zeros(4, device="meta")
    place, numbers = torch.arange(4), [0, 1, 2, 3]

    def faults(function: Callable[[], object]) -> set[str]:
        recorder = DeviceFaults()
        recorder.trace(function)
        return {fault for fault, count in recorder.faults.items() if count}

    copies = {"_to_copy copies from the host"}
    assert faults(lambda: place.to("meta")) == copies
    assert faults(lambda: torch.tensor(np.arange(4), device="meta")) == copies
    assert faults(lambda: torch.tensor(2.0).to("meta")) == copies
    assert faults(lambda: rows[place]) == {"index copies from the host"}
    order = torch.tensor(numbers, device="meta")
    assert faults(lambda: rows.index_add(0, order, rows)) == {"index_add sums in any order"}
    added = faults(lambda: rows.index_put_((order,), rows, accumulate=True))
    assert added == {"index_put sums in any order"}
    assert faults(lambda: torch.tensor(numbers, device="meta")) == set()  # a constant
    assert faults(lambda: rows[numbers]) == set()
    assert faults(lambda: rows[order] * torch.tensor(2.0)) == set()


@pytest.mark.parametrize("name", ["bc", "dppo", "rl100"])
def test_the_test_data_is_on_the_engines_device(name: str):
    both = new_engine(name, [0], device="meta").sources
    assert both
    for tensor in tree_leaves([source.tensors() for source in both.values()]):
        assert tensor.device.type == "meta"


# Phases whose float32 results depend on the last bit: on a CPU, weights that differ by 1e-7 give
# parameters that differ by 0.3 after four updates.
ILL_CONDITIONED = {("rambo", "update_adversary")}


def trained(name: str, phase: str, device: str, *, capture: bool = True) -> Engine:
    """Return an engine after some updates of a phase, on data and, if it learns online, on more."""
    cls = algorithm_class(name)
    cfg = small_config(cls)
    both, then = sources_and_experience(cls, cfg, device)
    how = Interaction(cls.Online.small(), then if phase == "online" else cfg, 10)
    options: dict[str, Any] = {"batch_size": 32, "device": device}
    e = Engine(lambda _: new_algorithm(cls, cfg, how), SEEDS, both, **options)
    e.capture &= capture
    period = e.period(phase)
    e.run((2 if period > 4 else 4) * period, phase)
    return e


def phases_on_gpu(name: str) -> list[str]:
    """Return the phases of an algorithm whose results `device_differences` compares."""
    cls = algorithm_class(name)
    phases = [*cls(SPEC, small_config(cls), 100).phases, "update"]
    return phases + ["online"] * (cls.mode.online and not is_on_policy(cls))


def device_differences(name: str, phase: str, device: str = "cuda") -> dict[str, float]:
    """Return how far a device's results are from others: the largest difference of each kind.

    repeated: of the same program. uncaptured: of the same operations, started one by one. cpu: of
    a CPU. actions: of the trained policies on a CPU. `python -m benchmarks.gpu` uses this, too.
    """
    gpu = trained(name, phase, device)
    observations = torch.zeros(len(SEEDS), 4, 5)
    acting = [gpu.stacked_policy(4, device=torch.device(d)) for d in (device, "cpu")]
    on_gpu, on_cpu = acting[0](observations.to(device)).cpu(), acting[1](observations)
    others = {
        "repeated": trained(name, phase, device),
        "uncaptured": trained(name, phase, device, capture=False),
        "cpu": trained(name, phase, "cpu"),
    }
    return {"actions": (on_gpu - on_cpu).abs().max().item()} | {
        kind: max(map(largest_difference, states(gpu), states(other)))
        for kind, other in others.items()
    }


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@every_algorithm
def test_gpu_results_equal_cpu_results_in_every_phase(name: str):
    """The captured program gives the same bits again, and those of the same program uncaptured."""
    for phase in phases_on_gpu(name):
        found = device_differences(name, phase)
        assert found["repeated"] == found["uncaptured"] == 0, phase
        assert found["actions"] < 1e-5
        assert found["cpu"] < 1e-3 or (name, phase) in ILL_CONDITIONED, phase


@pytest.mark.parametrize(("name", "phase"), [("mopo", "fit_dynamics"), ("rlpd", "online")])
def test_the_program_of_the_gpu_test_runs(name: str, phase: str):
    """It would otherwise break unnoticed where there is no GPU."""
    assert phase in phases_on_gpu(name)
    assert trained(name, phase, "cpu").finite_seeds().all()


@every_algorithm
def test_config_floats_may_be_stacked_values(name: str):
    """Two stacked learning rates, one of them changed, equal the two single runs.

    A method without learning rates has another field.
    """
    cls = algorithm_class(name)
    rates = [f for f in cls.Config.__dataclass_fields__ if f.endswith("lr")]
    rate = (
        "policy_lr" if "policy_lr" in rates else [*rates, *sorted(stackable_fields(cls.Config))][0]
    )
    made, own = sources(cls, small_config(cls)), getattr(small_config(cls), rate)
    values = [3 * own, own]

    def make(s: int) -> Algorithm:
        cfg = small_config(cls, **{rate: values[s]})
        return cls(SPEC, cfg, 100, Interaction(cls.Online.small(), cfg))

    both = Engine(make, [5, 5], made, batch_size=32, values={rate: values})
    both.run(10)
    alone = engine(name, [5])
    alone.run(10)
    assert largest_difference(alone.seed_state(0), both.seed_state(1)) < 2e-5
    names = ("params", "optimizer")
    a, b = ({k: v for k, v in both.seed_state(s).items() if k.startswith(names)} for s in (0, 1))
    assert largest_difference(a, b) > 1e-4


@together("td3_bc")
def test_numbers_that_all_seeds_share_are_computed_once():
    """Otherwise an optimizer's results have different axes and are written in separate passes."""
    graph, _, _ = engine("td3_bc", SEEDS)._trace("update", (0, 1))
    corrections = [n for n in graph.graph.nodes if n.target is torch.ops.aten.expm1.default]
    assert len(corrections) >= 4
    assert all(n.meta["val"].dim() == 0 for n in corrections)


def test_seeds_at_different_updates_are_refused():
    e = new_engine("td3_bc", SEEDS)
    state = e.seed_state(1)
    state["counters/update"] += 2
    e.load_seed_state(1, state)
    with pytest.raises(ValueError, match=r"\[0, 2.* updates"):
        _ = e.updates


@every_algorithm
def test_every_number_has_a_range_that_stacked_values_pass(name: str):
    config = algorithm_class(name).Config
    hints = get_type_hints(config)
    numbers = {f.name for f in fields(config) if {int, float} & set(parts(hints[f.name]))}
    assert set(field_ranges(config)) == numbers
    for field in sorted(numbers):
        with pytest.raises(ValueError, match=f"{field}=nan is not"):
            config(**{field: math.nan})
    for field in stackable_fields(config):
        stacked = config()
        object.__setattr__(stacked, field, torch.tensor([math.nan, -1e300]))
        Checked.__post_init__(stacked)


@every_algorithm
def test_the_activation_option_applies_to_all_networks(name: str):
    """The bundle's policy has it too. A VAE's activation is part of the method (CQL, MCQ)."""
    cls = algorithm_class(name)
    if not hasattr(cls.Config, "activation"):
        chunks = (
            "diffusion_policy",
            "diffusion_ql",
            "flow_policy",
            "consistency",
            "one_step",
            "act",
            "dppo",
            "rl100",
            "idql",
            "fisor",
        )  # Mish …
        others = ("cql", "cal_ql", "mcq", "decision_transformer", "resfit", "sparse_policy", "cdt")
        others += ("bcq_lag", "decision_mamba", "hnpg", "ppo", "trpo")  # their policies have tanh
        others += ("cqn",)  # SiLU
        assert name in (*others, *chunks)
        return
    modules = cls(SPEC, small_config(cls, activation="tanh"), 100).modules
    inside = {k: [m for m in net.modules() if isinstance(m, MLP)] for k, net in modules.items()}
    found = {k: {block.activation for block in blocks} for k, blocks in inside.items() if blocks}
    assert found.pop("vae", {"relu"}) == {"relu"}
    for model in ("dynamics", "best_dynamics"):
        assert found.pop(model, {"silu"}) == {"silu"}
    assert set.union(*found.values()) == {"tanh"}
    arguments: Any = modules["policy"].arguments  # those of a flow's network are its options
    arguments = arguments.get("edit_arguments", arguments.get("options", arguments))
    assert arguments["activation"] == "tanh"


@every_algorithm
def test_help_describes_every_option(name: str):
    options = describe_options(algorithm_class(name).Config)
    assert [option.name for option in options if not option.meaning] == []
    assert {option.name for option in options} == {
        f.name for f in fields(algorithm_class(name).Config)
    }


def parts(hint: object) -> list[object]:
    """Return the types that a type consists of."""
    return [p for arg in get_args(hint) for p in parts(arg)] or [hint]


@pytest.mark.parametrize(
    ("given", "inside", "outside", "words"),
    [
        (Range(0, 1), (0, 0.5, 1), (-1e-9, 2, math.inf), "between 0 and 1"),
        (Range(0, below=1), (0, 0.999), (1, -1), "at least 0 and below 1"),
        (Range(above=0, high=1), (1e-9, 1), (0, 1.1), "above 0 and at most 1"),
        (Range(1), (1, 10**30), (0, math.inf), "at least 1"),
        (Range(), (-1e300, 1e300), (math.inf, -math.inf), "finite"),
        (Range(-math.inf, math.inf), (-math.inf, math.inf), (math.nan,), "a number"),
    ],
)
def test_a_range_contains_its_numbers_and_prints_them(given, inside, outside, words):
    assert all(x in given for x in inside)
    assert not any(x in given for x in (*outside, math.nan))
    assert str(given) == words


@pytest.mark.parametrize("field", ["dropout", "deterministic", "reward_scale", "nonsense"])
def test_fields_that_cannot_be_stacked_are_refused(field: str):
    cls = algorithm_class("iql")
    with pytest.raises(ValueError, match=f"{field} cannot differ between stacked seeds"):
        Engine(
            lambda _: cls(SPEC, small_config(cls)),
            [0, 1],
            ReplayBuffer.from_dataset(dataset()),
            values={field: [0.1, 0.2]},
        )


@together("td3_bc")
def test_counting_operations_does_not_change_the_state():
    e = engine("td3_bc", SEEDS)
    before = states(e)
    assert e.update_cost().flops > 0
    for a, b in zip(before, states(e), strict=True):
        assert largest_difference(a, b) == 0


def test_option_types_are_supported():
    assert coerce(3, float, "x") == 3.0
    assert coerce([8, 8], tuple[int, ...], "hidden") == (8, 8)
    for value, hint in ((1.5, int), ("false", bool), (True, float), ([1.5], tuple[int, ...])):
        with pytest.raises(Exception, match="expected"):
            coerce(value, hint, "x")
