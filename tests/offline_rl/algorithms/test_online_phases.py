"""Online training of offline algorithms: learning rates, weights, sources, returns."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import SPEC, Recorded, completed, made_batch, start
from prepared import prepare
from torch import Tensor
from torch.utils._pytree import tree_map

from offline_rl import Dataset, UserError
from offline_rl.algorithms.cal_ql import CalQL
from offline_rl.algorithms.common.base import Interaction, State
from offline_rl.algorithms.common.registry import algorithm_class, algorithm_config, interaction
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.algorithms.iql import IQL
from offline_rl.algorithms.rebrac import ReBRAC
from offline_rl.algorithms.ro2o import RO2O
from offline_rl.algorithms.spot import SPOT
from offline_rl.engine.engine import Engine
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.mixtures import Mixture

SMALL = {"hidden": (16, 16)}


def online(state: State, **given: Any) -> State:
    """Return the state with its algorithm in the online phase, for 100 updates."""
    own = state.algorithm
    how = interaction(own_name(own), "a task", own.cfg, given)
    own.interaction = replace(how, num_updates=100)
    return replace(state, algorithm=own.for_phase(ONLINE))


def own_name(algorithm: object) -> str:
    return type(algorithm).__module__.rpartition(".")[2]


def at_update(state: State, done: int) -> State:
    return replace(state, random=Recorded(), done=torch.tensor(done))


def test_a_learning_rate_that_decayed_offline_is_restored_online() -> None:
    """IQL's policy after its 10 offline updates: constant offline, moving online."""
    state = start(IQL, num_updates=10, **SMALL)
    state.optimizer["policy"]["count"]["steps"] += 10
    batch = made_batch()

    def moves(now: State) -> float:
        after, _ = now.algorithm.update(at_update(now, 10), batch, 0)
        before = now.params["policy"]["trunk.weights.0"]
        return (after.params["policy"]["trunk.weights.0"] - before).abs().max().item()

    assert moves(state) == 0
    assert 1e-5 < moves(online(state)) < 1e-2


def policy_loss(state: State, done: int, batch: Any) -> Tensor:
    now = at_update(state, done)
    return now.algorithm.policy_loss(now.policy, now, batch)[0]


@pytest.mark.parametrize(("cls", "weight"), [(ReBRAC, "policy_bc"), (SPOT, "support_weight")])
def test_the_weight_of_the_data_decays_linearly_to_one_half(cls: Any, weight: str) -> None:
    """A loss is affine in its weight: w(t) = 1, 3/4, 1/2, 1/2 after 0, 25, 50, 90 of 100."""
    state = start(cls, **SMALL, **{weight: 2.0})
    free = start(cls, **SMALL, **{weight: 0.0})
    batch, losses = made_batch(), []
    base = policy_loss(free, 0, batch)
    for done in (0, 25, 50, 90):
        losses.append((policy_loss(online(state), done, batch) - base).item())
    whole = (policy_loss(state, 90, batch) - base).item()  # offline it never falls
    assert losses == pytest.approx([whole, 0.75 * whole, whole / 2, whole / 2], rel=1e-4)


def test_rebracs_critic_penalty_is_off_online() -> None:
    state = start(ReBRAC, **SMALL, critic_bc=1.0)
    batch = replace(made_batch(), next_actions=torch.rand(32, 2))
    far = replace(batch, next_actions=batch.next_actions - 5)

    def heeds(state: State) -> bool:
        near_y, far_y = (state.algorithm.target(at_update(state, 0), x) for x in (batch, far))
        return not torch.equal(near_y, far_y)

    assert heeds(state)
    assert not heeds(online(state))


def test_online_values_override_per_seed_values() -> None:
    state = start(ReBRAC, **SMALL, critic_bc=0.5)
    values = {"critic_bc": torch.tensor(3.0), "policy_bc": torch.tensor(7.0)}
    assert state.algorithm.with_values(values).cfg.critic_bc == 3
    then = online(state).algorithm.with_values(values).cfg
    assert (then.critic_bc, then.policy_bc) == (0, 7)
    assert online(state, critic_bc=0.25).algorithm.with_values(values).cfg.critic_bc == 0.25


@pytest.mark.parametrize(("given", "depth"), [({}, 0.5), ({"pessimism": 1.5}, 1.5)])
def test_ro2o_uses_its_final_pessimism_online(given: dict[str, float], depth: float) -> None:
    """The loss is the square of pessimism x std; offline it has just started, at 2."""
    state = start(RO2O, **SMALL, pessimism=2.0, min_pessimism=0.5, num_samples=3, num_critics=3)

    def paid(state: State) -> float:
        now, batch = at_update(state, 0), made_batch()
        own = now.algorithm.with_values({"pessimism": torch.tensor(2.0)})  # stacked, offline's
        return own.critic_loss(now.critic, now, batch, batch.rewards)[1]["uncertainty"].item()

    assert paid(online(state, **given)) == pytest.approx(paid(state) * (depth / 2) ** 2, rel=1e-4)


@pytest.mark.parametrize(
    ("task", "discount"),
    [("antmaze-large-play-v2", 0.995), ("antmaze-medium-play-v2", 0.99)],
)
def test_spot_has_a_higher_online_discount_in_large_mazes_only(task: str, discount: float) -> None:
    """thuml/SPOT:configs/online_finetune."""
    then = interaction("spot", task, algorithm_config("spot", task, {})[0], {}).cfg
    assert (then.discount, then.support_end) == (discount, 0.2)


@pytest.mark.parametrize(("task", "share"), [("kitchen-mixed-v0", 0.25), ("pen-binary-v0", 0.5)])
def test_cal_ql_uses_less_offline_data_in_kitchen(task: str, share: float) -> None:
    """nakamotoo/Cal-QL:scripts/run_kitchen.sh and run_adroit.sh."""
    cfg = algorithm_config("cal_ql", task, {})[0]
    assert interaction("cal_ql", task, cfg, {}).online.offline_fraction == share


def cal_ql(**config: Any) -> Any:
    return CalQL.Config(tail="failures", reward_scale=10.0, reward_shift=5.0, **config)


def episode(rewards: list[float], *, terminated: bool) -> Dataset:
    """Return an episode of the buffer: training rewards, the last row terminated or truncated."""
    count = len(rewards)
    rows, flags = np.zeros((count, 2)), np.arange(count) == count - 1
    ends = (flags, flags & False) if terminated else (flags & False, flags)
    return Dataset.from_arrays(rows, rows[:, :1], np.array(rewards), *ends, rows)


def test_cal_ql_takes_the_failure_reward_from_the_data() -> None:
    """Rewards of -1 and 0 become -5 and 5. A time-out in failure fails forever."""
    ends = np.arange(6) == 5
    rows, raw = np.zeros((6, 2)), np.array([-1.0, -1, -1, 0, 0, 0])
    data = Dataset.from_arrays(rows, rows[:, :1], raw, ends & False, ends, rows)
    cfg = completed(CalQL, data, cal_ql())
    assert cfg.failure_reward == -5
    learner = CalQL(SPEC, cfg)
    failed = learner.mc_returns(episode([-5.0, -5, -5], terminated=False))
    assert failed == pytest.approx(np.full(3, -500.0), rel=1e-5)
    held = learner.mc_returns(episode([5.0, 5], terminated=False))  # its least, yet no failure
    assert held == pytest.approx([5 + 0.99 * 5, 5])
    ended = learner.mc_returns(episode([-5.0, 5], terminated=True))
    assert ended == pytest.approx([-5 + 0.99 * 5, 5])


def test_an_unused_failure_reward_is_refused() -> None:
    with pytest.raises(ValueError, match="failure_reward is not used with tail=zero"):
        CalQL.Config(failure_reward=-1.0)


@pytest.mark.parametrize(
    ("name", "option", "match"),
    [
        ("iql", "decay_actor_lr", "used offline only"),
        ("iql", "squashed", "networks and data have one value"),
        ("cql", "bc_updates", "used offline only"),
        ("cql", "num_critics", "networks and data have one value"),
        ("cql", "policy_hidden", "networks and data have one value"),
        ("spot", "vae_updates", "used offline only"),
        ("rebrac", "exploration_noise", "networks and data have one value"),
    ],
)
def test_options_that_online_training_cannot_change_are_refused(
    name: str, option: str, match: str
) -> None:
    cfg = algorithm_config(name, "a task", {})[0]
    with pytest.raises(UserError, match=f"online.{option}.*{match}"):
        interaction(name, "a task", cfg, {option: getattr(cfg, option)})


def test_a_required_preliminary_phase_is_refused_without_data() -> None:
    keys = {"algorithm": "spot", "task": "gym/hopper-medium-replay", "num_env_steps": 10}
    with pytest.raises(UserError, match="fine-tune one of its runs"):
        prepare({**keys, "num_updates": 0, "online.offline_fraction": 0.0})


@pytest.mark.parametrize(
    ("name", "offline_fraction"),
    [
        *((name, "rows") for name in ("iql", "awac", "cql", "spot")),
        *((name, 0.5) for name in ("cal_ql", "rebrac", "rlpd")),
        *((name, 0.0) for name in ("ro2o", "wsrl", "sac", "td3")),
    ],
)
def test_online_batches_have_the_papers_share_of_data(name: str, offline_fraction: Any) -> None:
    cls = algorithm_class(name)
    assert cls.mode.online
    assert cls.Online().offline_fraction == offline_fraction
    sources = {name: ReplayBuffer((3,), 2, 5) for name in ("offline", "online")}
    found = cls(SPEC, cls.Config()).source(ONLINE, sources)
    if offline_fraction == 0:
        assert found is sources["online"]
    else:
        assert isinstance(found, Mixture)
        assert (found.first, found.second) == (sources["offline"], sources["online"])
        assert found.ratio == (None if offline_fraction == "rows" else offline_fraction)


@pytest.mark.parametrize("offline_fraction", [0.0, 0.5, "rows"])
def test_online_targets_bootstrap_after_n_steps(
    offline_fraction: Any,
) -> None:
    """Rewards 1 and 10, three steps: (1 + g + g^2) times each and ten; g^3 at the third step."""
    buffers, gamma = [], 0.5
    for paid in (1.0, 10.0):
        rows = np.zeros((8, 3))
        told = {"observations": rows, "actions": rows[:, :2], "rewards": np.full(8, paid)}
        flags = {"terminated": np.zeros(8), "truncated": np.arange(8) == 7}
        buffers.append(ReplayBuffer((3,), 2, 8))
        buffers[-1].append(0, told | flags | {"next_observations": rows})
    cls = algorithm_class("sac")
    cfg = cls.Config()
    learner = cls(
        SPEC, cfg, 1, Interaction(cls.Online(offline_fraction=offline_fraction, n_step=3), cfg)
    )

    def sampled_rows(phase: str) -> set[tuple[float, float]]:
        source = learner.source(phase, dict(zip(("offline", "online"), buffers, strict=True)))
        data = tree_map(lambda x: x[0], source.tensors())
        batch = source.sample(data, Recorded(), 400, gamma)
        return set(zip(batch.rewards.tolist(), batch.discount.tolist(), strict=True))

    over = {(1.75, 0.125), (1.5, 0.25), (1.0, 0.5)}  # the last two rows have fewer steps left
    kinds = (10,) if offline_fraction == 0 else (1, 10)
    assert sampled_rows(ONLINE) == {(k * r, g) for r, g in over for k in kinds}
    assert sampled_rows("update") == {(1.0, 0.5)}


def test_wsrl_trains_on_online_experience_after_its_warm_up() -> None:
    """Offline rewards are 1e6: a single one in a batch would show in the target."""
    cls = algorithm_class("wsrl")
    rows, ends = np.zeros((20, 3)), np.arange(20) % 10 == 9
    data = Dataset.from_arrays(rows, rows[:, :2], np.full(20, 1e6), ends & False, ends, rows)
    own = ReplayBuffer((3,), 2, 30)
    some = {"observations": rows, "actions": rows[:, :2], "rewards": np.ones(20)}
    flags = {"terminated": np.ones(20), "truncated": np.zeros(20), "next_observations": rows}
    own.append(0, some | flags)
    cfg = cls.Config(policy_hidden=(8,), critic_hidden=(8,), num_critics=2)
    sources = {"offline": ReplayBuffer.from_dataset(data), "online": own}
    engine = Engine(
        lambda _: cls(SPEC, cfg, 1, Interaction(cls.Online(utd=2.0), cfg)), [0], sources
    )
    engine.run(4, ONLINE)
    assert engine.metrics(ONLINE)["target"].tolist() == [1.0]
    assert cls.Online().updates_due(5_000, 256, 4) == 0
    assert cls.Online().updates_due(5_002, 256, 4) == 8
