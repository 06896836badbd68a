"""Rollouts of failing environments: which steps count, which are repeated, and when to stop."""

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import envs
from envs import tasks
from offline_rl.algorithms.common.base import Interaction
from offline_rl.algorithms.common.schedule import OnPolicy
from offline_rl.algorithms.dppo import DPPO, Config
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine
from offline_rl.online.collector import Collector, RepeatedFailure
from offline_rl.online.sinks import RolloutSink
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.rollouts import Rollouts
from offline_rl.utils.seeds import training_episode_seed
from policies import Normalizer, Spec

ENVIRONMENTS, EXECUTED = 3, 2
MEAN, SCALE = np.array([0.5, 0.0], np.float32), np.array([2.0, 1.0], np.float32)
TRANSFORM = Transform(Normalizer(MEAN, SCALE), reward_scale=4.0, reward_shift=-1.0)


class Walk(gymnasium.Env):
    """Environment of ten steps along a line. `faults` maps a seed and step to a fault."""

    faults: ClassVar[Callable[[int, int], str]]
    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.seed, self.x, self.t = seed, float(self.np_random.uniform(-1, 1)), 0
        fault = type(self).faults(self.seed, -1)
        if fault == "raise":
            raise OSError("the cable is out")
        return np.array([np.nan if fault == "nan" else self.x, 0], np.float32), {}

    def step(self, action: np.ndarray):
        fault, self.t = type(self).faults(self.seed, self.t), self.t + 1
        if fault == "raise":
            raise OSError("the cable is out")
        self.x = np.nan if fault == "nan" else self.x + 0.2 * float(action[0])
        told = {"is_success": self.x > 0 and self.t == 3}
        return np.array([self.x, self.t], np.float32), self.x, fault == "end", False, told


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Collector, list]]:
    """Function that returns a collector of one seed with three environments, and its messages."""
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    envs.register("walk", Walk, max_episode_steps=10)

    def make_collector(
        faults: Callable[[int, int], str], kept: ReplayBuffer | None = None, **changes: Any
    ) -> tuple[Collector, list]:
        monkeypatch.setattr(Walk, "faults", staticmethod(faults), raising=False)
        sizes: dict[str, Any] = {"network": "mlp", "widths": (8,), "n_obs_steps": 1, "horizon": 4}
        sizes |= {
            "n_action_steps": EXECUTED,
            "num_inference_steps": 2,
            "tuned": 2,
            "value_hidden": (8,),
        }
        sizes |= {"environments": ENVIRONMENTS, "decisions": 60, "batch_size": 60}
        sizes |= changes
        cfg, spec = Config(**sizes), Spec((2,), 1)
        how = Interaction(OnPolicy(), cfg)
        columns, carried = DPPO(spec, cfg, 1, how).columns()
        store = Rollouts(1, (20, ENVIRONMENTS), columns, steps=2, carried=carried)
        e = Engine(lambda _: DPPO(spec, cfg, 1, how), [0], {"rollouts": store}, batch_size=60)
        messages: list[str] = []
        world: Any = lambda count: envs.make_vector("walk", count)  # noqa: E731
        sink = RolloutSink(e, store, lambda _: {}, kept)
        return Collector(e, world, sink, TRANSFORM, messages.append), messages

    return make_collector


def no_fault(seed: int, step: int) -> str:
    return ""


def rows(collector: Collector, first: int, last: int) -> dict[str, torch.Tensor]:
    names = ("observations", "next_observations", "rewards", "executed", "terminated", "truncated")
    return {name: collector.buffer.data[name][0, first:last].clone() for name in names}


def by_hand(
    chunks: np.ndarray, kept_from: int
) -> tuple[list[list[dict[str, Any]]], list[dict[str, np.ndarray]], list[list[int]]]:
    """Return the results of decisions [T, E, n_action_steps, 1], computed with the environment.

    -> rows [T][E]; episodes that ended from decision `kept_from` on; each decision's seed.
    """
    worlds, new_collector = [Walk() for _ in range(ENVIRONMENTS)], 0
    n_obs_steps, episode, rows = [[] for _ in worlds], [[] for _ in worlds], []
    seeds, kept, asked = [0] * ENVIRONMENTS, [], []
    over = [True] * ENVIRONMENTS
    for t, actions in enumerate(chunks):
        for e, world in enumerate(worlds):
            if over[e]:
                seeds[e], new_collector = training_episode_seed(0, new_collector), new_collector + 1
                first = (world.reset(seed=seeds[e])[0] - MEAN) / SCALE
                n_obs_steps[e], episode[e] = [first, first], []
        asked.append([*seeds])
        before = [np.stack(h[-2:]) for h in n_obs_steps]
        told = [{"rewards": [], "terminated": 0.0, "truncated": 0.0} for _ in worlds]
        over = [False] * ENVIRONMENTS
        for j in range(chunks.shape[2]):
            for e, world in enumerate(worlds):
                if over[e]:
                    continue
                seen, reward, terminated, *_ = world.step(actions[e, j])
                n_obs_steps[e].append((seen - MEAN) / SCALE)
                truncated = world.t == 10 and not terminated
                over[e] = terminated or truncated
                told[e]["rewards"].append(4 * reward - 1)
                told[e] |= {"terminated": float(terminated), "truncated": float(truncated)}
                row = {"observations": n_obs_steps[e][-2], "next_observations": n_obs_steps[e][-1]}
                row |= {"actions": actions[e, j], "rewards": 4 * reward - 1}
                episode[e].append(row | {"terminated": terminated, "truncated": truncated})
                if over[e] and t >= kept_from:
                    kept.append({k: np.array([r[k] for r in episode[e]]) for k in episode[e][0]})
        after = [np.stack(h[-2:]) for h in n_obs_steps]
        own = {"observations": before, "next_observations": after}
        rows.append([told[e] | {k: v[e] for k, v in own.items()} for e in range(ENVIRONMENTS)])
    return rows, kept, asked


def test_a_rollout_contains_the_environments_results_and_complete_episodes_become_data(
    collector: Any,
):
    """A decision has three actions. The limit of ten steps cuts the fourth; some end earlier."""
    short = {training_episode_seed(0, number): 1 + 2 * number for number in (1, 4)}

    def ends(seed: int, t: int) -> str:
        return "end" if short.get(seed) == t else ""

    data = ReplayBuffer((2,), 1, 100, columns={"held_out": ()})
    one, messages = collector(ends, data, n_action_steps=3, n_obs_steps=2, horizon=6)
    for t in range(9):
        one.step(adds=t >= 4)
    chain = one.buffer.data["chain"][0, :9].numpy()  # [T, E, K' + 1, horizon, A]
    expected, kept, asked = by_hand(chain[:, :, -1, 1:4].clip(-1, 1), 4)
    found = {name: x.numpy() for name, x in rows(one, 0, 9).items()}
    decided = np.zeros(ENVIRONMENTS, int)
    for t, told in enumerate(expected):
        for e, row in enumerate(told):
            count = len(row["rewards"])
            paid = row["rewards"] + [0] * (3 - count)
            np.testing.assert_allclose(found["rewards"][t, e], paid, atol=1e-6)
            assert found["executed"][t, e].tolist() == [1] * count + [0] * (3 - count)
            for name in ("observations", "next_observations", "terminated", "truncated"):
                np.testing.assert_allclose(found[name][t, e], row[name], atol=1e-6)
            decided[e] = 0 if t and asked[t][e] != asked[t - 1][e] else decided[e]
            source = np.random.Generator(np.random.Philox(key=[asked[t][e], decided[e]]))
            drawn = source.standard_normal((3, 6, 1), np.float32)
            np.testing.assert_allclose(chain[t, e, 0], drawn[0])
            decided[e] += 1
    sizes = [len(row["rewards"]) for told in expected for row in told]
    assert {1, 3} <= set(sizes)
    flags = found["terminated"].sum(), found["truncated"].sum()
    assert min(flags) > 0
    assert messages == []
    stored = data.all_rows(0)
    assert 0 < len(kept) < flags[0] + flags[1]
    for name in kept[0]:
        whole_ones = np.concatenate([episode[name] for episode in kept])
        own = getattr(stored, name)[: len(whole_ones)]
        np.testing.assert_allclose(own, whole_ones, atol=1e-6)
    assert data.sizes[0] == stored.num_rows == sum(len(episode["rewards"]) for episode in kept)


@pytest.mark.parametrize("kind", ["raise", "nan"])
def test_a_decision_in_which_an_environment_fails_does_not_count_and_the_others_continue(
    kind: str, collector: Any
):
    """The second environment fails in its first episode, third decision, second action."""
    sound, _ = collector(no_fault)
    for _ in range(3):
        sound.step()
    expected = rows(sound, 0, 3)
    second = training_episode_seed(0, 1)
    broken, messages = collector(lambda seed, t: kind if (seed, t) == (second, 5) else "")
    for _ in range(3):
        broken.step()
    found = rows(broken, 0, 3)
    others = [0, 2]
    for name, values in expected.items():
        assert torch.equal(found[name][:2], values[:2])
        assert torch.equal(found[name][2, others], values[2, others])
    assert found["executed"][2, 1].tolist() == [0, 0]
    assert found["rewards"][2, 1].tolist() == [0, 0]
    assert (found["truncated"][2, 1], found["terminated"][2, 1]) == (1, 0)
    assert torch.equal(found["next_observations"][2, 1], found["observations"][2, 1])
    assert len(messages) == 1
    assert "seed 0: the environment failed in step 5 of an episode" in messages[0]
    broken.step()  # the next one's first
    after = rows(broken, 3, 4)["observations"][0, :, 0, 1]
    assert after.tolist() == [6, 0, 6]


@pytest.mark.parametrize("kind", ["raise", "nan"])
def test_an_episode_whose_reset_fails_is_skipped(kind: str, collector: Any):
    """Each episode lasts one decision. The fifth fails, so the seventh follows."""
    wrong = training_episode_seed(0, 4)

    def faults(seed: int, t: int) -> str:
        return kind if (seed, t) == (wrong, -1) else "end" if t == 1 else ""

    one, messages = collector(faults)
    for _ in range(3):
        one.step()
    found = rows(one, 0, 3)["observations"][:, :, 0, 0].numpy()
    numbers = [[0, 1, 2], [3, 6, 5], [7, 8, 9]]
    draws = [
        [np.random.default_rng(training_episode_seed(0, n)).uniform(-1, 1) for n in row]
        for row in numbers
    ]
    np.testing.assert_allclose(found, (np.array(draws) - MEAN[0]) / SCALE[0], atol=1e-6)
    assert len(messages) == 1
    assert "seed 0: the environment failed in step 0 of an episode" in messages[0]


def test_collection_resumed_within_episodes_equals_an_uninterrupted_one(collector: Any):
    sizes: dict[str, Any] = {"n_action_steps": 3, "n_obs_steps": 2, "horizon": 6}

    def new_collector() -> tuple[Collector, ReplayBuffer]:
        data = ReplayBuffer((2,), 1, 100, columns={"held_out": ()})
        return collector(no_fault, data, **sizes)[0], data

    one, data = new_collector()
    for _ in range(6):  # ten steps are four decisions
        one.step(adds=True)
    again, other = new_collector()
    again.restore([one.state(0)], [one.tensors(0)])
    for each in (one, again):
        for _ in range(4):
            each.step(adds=True)
    for name, values in rows(one, 0, 10).items():
        assert torch.equal(rows(again, 0, 10)[name], values), name
    assert data.sizes[0] == 2 * 3 * 10
    assert other.sizes[0] == data.sizes[0]
    for name, column in data.data.items():
        assert torch.equal(other.data[name], column), name


def test_rollouts_store_the_number_of_updates_before_them(collector: Any):
    """The number of updates identifies the iteration and determines its permutations."""
    one, _ = collector(no_fault)
    engine = one.engine
    engine.load_seed_state(0, engine.seed_state(0) | {"counters/update": torch.tensor(7)})
    for _ in range(20):
        assert one.buffer.data["rollout"].tolist() == [0]
        one.step()
    assert one.buffer.data["rollout"].tolist() == [7]
    engine.load_seed_state(0, engine.seed_state(0) | {"counters/update": torch.tensor(9)})
    for _ in range(20):
        one.step()
    assert one.buffer.data["rollout"].tolist() == [9]


def test_a_fault_that_does_not_repeat_has_no_effect(collector: Any):
    """A step that raises once is repeated in a new environment after the earlier steps."""
    sound, _ = collector(no_fault)
    left = [1]

    def once(seed: int, t: int) -> str:
        return "raise" if t == 3 and left and left.pop() else ""

    for _ in range(4):
        sound.step()
    shaky, messages = collector(once)
    for _ in range(4):
        shaky.step()
    assert not left
    assert messages == []
    for name, values in rows(sound, 0, 4).items():
        assert torch.equal(rows(shaky, 0, 4)[name], values)


def test_an_environment_that_fails_five_times_in_a_row_stops_the_run(collector: Any):
    """A complete episode between the failures resets the count."""
    broken, messages = collector(lambda seed, t: "raise" if t == 2 else "")
    with pytest.raises(RepeatedFailure, match=r"the cable is out.*for the 5th time in a row"):
        _ = [broken.step() for _ in range(20)]
    assert len(messages) == 4 * ENVIRONMENTS
    assert broken.steps == 5 * 2 * ENVIRONMENTS * EXECUTED  # the fifth episode's decision counts
    repaired, _ = collector(no_fault)
    repaired.restore([broken.state(0)], [broken.tensors(0)])
    repaired.step()
    assert repaired.episodes.lengths.tolist() == [EXECUTED] * ENVIRONMENTS
    odd = {training_episode_seed(0, number) for number in range(1, 60, 2)}
    patient, messages = collector(lambda seed, t: "raise" if t == 2 and seed in odd else "")
    for _ in range(19):
        patient.step()
    assert messages


def test_returns_and_successes_are_recorded_for_each_finished_episode(collector: Any):
    """The reward is the position, and an episode succeeds if its third position is above 0."""
    c, _ = collector(lambda seed, step: "end" if step == 4 and seed % 2 else "", n_action_steps=1)
    for _ in range(20):
        c.step()
    found = c.buffer.data
    paid = found["next_observations"][0, ..., -1, 0] * SCALE[0] + MEAN[0]  # [T, E]
    over = (found["terminated"] + found["truncated"])[0] > 0
    returns, ends, running = list[float](), list[bool](), torch.zeros(ENVIRONMENTS)
    third = found["next_observations"][0, ..., -1, 1] == 3
    ever = torch.zeros(ENVIRONMENTS) > 0
    for t in range(20):
        running, ever = running + paid[t], ever | (third[t] & (paid[t] > 0))
        for e in np.flatnonzero(over[t]):
            returns, ends = [*returns, float(running[e])], [*ends, bool(ever[e])]
            running[e] = ever[e] = 0
    assert len(returns) > ENVIRONMENTS
    assert c.finished[0] == pytest.approx(returns, abs=1e-4)
    assert c.success[0] == ends
    assert len(set(ends)) == 2
