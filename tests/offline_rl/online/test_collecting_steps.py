"""Collection of environment steps: actions, rows of the buffer, and failed episodes."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn

import envs
from envs import tasks
from offline_rl import Dataset
from offline_rl.algorithms.td3 import TD3, Config, Online
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine
from offline_rl.online.collector import Collector, RepeatedFailure
from offline_rl.online.sinks import ReplaySink
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.columns import columns
from offline_rl.utils.errors import UserError
from offline_rl.utils.seeds import training_episode_seed
from policies import Normalizer, Spec
from policies.heads.head import Head

SEEDS, LIMIT, WARM_UP, GAMMA = [3, 8], 6, 5, 0.5
MEAN, SCALE = np.array([0.5, 2.0], np.float32), np.array([2.0, 4.0], np.float32)
TRANSFORM = Transform(Normalizer(MEAN, SCALE), reward_scale=2.0, reward_shift=-1.0)
NEEDS = {"mc_returns": (), "next_actions": (1,)}


class Walk(gymnasium.Env):
    """Environment along a line that ends at -0.9 and 0.9. `faults` maps seed, step to a fault."""

    faults: ClassVar[Callable[[int, int], str]]
    info: ClassVar[Callable[[float], dict[str, Any]]] = staticmethod(lambda x: {})
    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.seed, self.x, self.t = seed, float(self.np_random.uniform(-0.8, 0.8)), 0
        fault = type(self).faults(self.seed, -1)
        if fault == "raise":
            raise OSError("the cable is out")
        return np.array([np.nan if fault == "nan" else self.x, 0], np.float32), {}

    def step(self, action: np.ndarray):
        fault = type(self).faults(self.seed, self.t)
        if fault == "raise":
            raise OSError("the cable is out")
        self.x, self.t = self.x + 0.3 * float(action[0]), self.t + 1
        seen = np.array([np.nan if fault == "nan" else self.x, self.t], np.float32)
        return seen, self.x, abs(self.x) > 0.9, False, type(self).info(self.x)


def no_fault(seed: int, step: int) -> str:
    return ""


@pytest.fixture
def make_collector(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Collector, list[str]]]:
    """Function that returns a collector of two seeds and its list of messages."""
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    envs.register("walk", Walk, max_episode_steps=LIMIT)

    def collector(
        faults: Callable[[int, int], str] = no_fault,
        needs: Mapping[str, Any] = NEEDS,
        kind: type[TD3] = TD3,
        online: Online = Online(warmup_steps=WARM_UP),  # noqa: B008 (frozen)
        envs_per_seed: int = 1,
    ) -> tuple[Collector, list[str]]:
        monkeypatch.setattr(Walk, "faults", staticmethod(faults), raising=False)
        buffer = ReplayBuffer((2,), 1, 40 * envs_per_seed, streams=2, columns=needs)
        cfg, spec = Config(hidden=(8,), exploration_noise=0.0), Spec((2,), 1)
        engine = Engine(lambda _: kind(spec, cfg), SEEDS, buffer)
        messages, walk = list[str](), partial(envs.make_vector, "walk")
        sink = ReplaySink(engine, buffer, online, partial(made_of, needs), envs_per_seed)
        return Collector(engine, walk, sink, TRANSFORM, messages.append), messages

    return collector


def made_of(needs: Mapping[str, Any], episode: Dataset) -> dict[str, np.ndarray]:
    return columns(needs, episode, lambda data: data.monte_carlo_returns(GAMMA))


def walked(
    actions: np.ndarray, seed: int, without: int | None = None, first: int = 0
) -> list[dict[str, np.ndarray]]:
    """Return the episodes of a seed's actions, computed with the environment alone.

    The first has the number `first`. The number `without` is skipped.
    """
    env, done, episodes = Walk(), 0, list[dict[str, np.ndarray]]()
    numbers = (number for number in range(first, first + len(actions) + 1) if number != without)
    while done < len(actions):
        seen, _ = env.reset(seed=training_episode_seed(seed, next(numbers)))
        rows = list[dict[str, Any]]()
        over = False
        while not over and done < len(actions):
            after, reward, terminated, *_ = env.step(actions[done])
            over, truncated = terminated or env.t == LIMIT, env.t == LIMIT and not terminated
            rows.append({"observations": (seen - MEAN) / SCALE, "rewards": 2 * reward - 1})
            truncated |= done + 1 == len(actions) and not terminated  # as a dataset states it
            rows[-1] |= {"terminated": terminated, "truncated": truncated}
            rows[-1] |= {"next_observations": (after - MEAN) / SCALE, "actions": actions[done]}
            seen, done = after, done + 1
        episodes.append({name: np.array([row[name] for row in rows]) for name in rows[0]})
    return episodes


def test_rows_are_the_scaled_results_of_each_environment_and_episodes_count_at_their_end(
    make_collector: Any,
):
    """Two seeds have episodes of different lengths. Some terminate, others reach the time limit."""
    collector, _ = make_collector()
    for _ in range(21):
        collector.step()
    buffer, kinds = collector.buffer, set[str]()
    for s, seed in enumerate(SEEDS):
        found = buffer.all_rows(s)
        episodes = walked(found.actions, seed)
        for name in ("observations", "next_observations", "rewards", "terminated", "truncated"):
            expected = np.concatenate([episode[name] for episode in episodes])
            told = getattr(found, name)[: len(expected)]
            np.testing.assert_allclose(told, expected, atol=1e-6)
        ended = [e for e in episodes if e["terminated"][-1] or len(e["rewards"]) == LIMIT]
        kinds |= {"terminated" if e["terminated"][-1] else "truncated" for e in ended}
        count = sum(len(e["rewards"]) for e in ended)
        assert (buffer.sizes[s], buffer.hidden[s]) == (count, 21 - count)
        raw = [((e["rewards"] + 1) / 2).sum() for e in ended]
        np.testing.assert_allclose(collector.finished[s], raw, atol=1e-5)
        returns, following = list[float](), list[float]()
        for episode in ended:
            running = list[float]()
            for reward in episode["rewards"][::-1]:
                running.insert(0, reward + GAMMA * (running[0] if running else 0))
            returns += running
            own = episode["actions"][:, 0]
            following += [*own[1:], own[-1]]
        kept = {name: buffer.data[name][s, :count].numpy() for name in NEEDS}
        np.testing.assert_allclose(kept["mc_returns"], returns, rtol=1e-5)
        np.testing.assert_allclose(kept["next_actions"][:, 0], following)
    assert kinds == {"terminated", "truncated"}
    assert buffer.sizes[0] != buffer.sizes[1]


def test_warmup_actions_are_random_for_each_seed_and_then_the_policy_acts(
    make_collector: Any,
):
    """The policy gets normalized observations; its first step is the one after the warm-up."""
    collector, _ = make_collector()
    for _ in range(12):
        collector.step()
    collected = [collector.buffer.all_rows(s) for s in range(2)]
    for s, found in enumerate(collected):
        params = {k: v[s] for k, v in collector.engine.state["params"]["policy"].items()}
        hidden = torch.from_numpy(found.observations[:12]) @ params["trunk.weights.0"]
        hidden = (hidden + params["trunk.biases.0"]).relu()
        own = (hidden @ params["trunk.weights.1"] + params["trunk.biases.1"]).tanh().numpy()
        apart = np.abs(found.actions - own)[:, 0]
        assert apart[:WARM_UP].min() > 1e-3
        assert apart[WARM_UP:].max() < 1e-6
    drawn = np.concatenate([found.actions[:WARM_UP] for found in collected])
    assert len(np.unique(drawn)) == 2 * WARM_UP
    assert np.abs(drawn).max() <= 1


@pytest.mark.parametrize(
    ("number", "step", "kind"),
    [(1, 2, "raise"), (1, 2, "nan"), (1, -1, "raise"), (1, -1, "nan"), (0, -1, "nan")],
)
def test_a_failed_episode_is_removed_and_does_not_affect_the_other_seed(
    number: int, step: int, kind: str, make_collector: Any, monkeypatch: pytest.MonkeyPatch
):
    """It fails in the third step of its second episode, or in the reset of the first or second.

    The observation is NaN, the reward is finite. The failed environment cannot even be closed.
    """

    def stuck(self):
        raise OSError("the port is gone")

    monkeypatch.setattr(Walk, "close", stuck)
    sound, _ = make_collector()
    for _ in range(21):
        sound.step()
    broken = training_episode_seed(SEEDS[0], number)
    shaky, messages = make_collector(lambda seed, t: kind if (seed, t) == (broken, step) else "")
    for _ in range(21):
        shaky.step()
    one, two = (collector.buffer.all_rows(1) for collector in (sound, shaky))
    for name in ("observations", "actions", "rewards", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    found = shaky.buffer.all_rows(0)
    assert found.num_rows == 21 - (step + 1)  # the earlier ones and itself
    episodes = walked(found.actions, SEEDS[0], without=number)
    for name in ("observations", "rewards"):
        expected = np.concatenate([episode[name] for episode in episodes])
        np.testing.assert_allclose(getattr(found, name)[: len(expected)], expected, atol=1e-6)
    assert len(messages) == 1
    assert f"seed 3: the environment failed in step {max(step, 0)} of an episode" in messages[0]


def test_a_complete_episode_resets_the_count_of_failures(make_collector: Any):
    odd = {training_episode_seed(seed, number) for seed in SEEDS for number in range(1, 60, 2)}
    collector, messages = make_collector(lambda seed, t: "raise" if t == 0 and seed in odd else "")
    for _ in range(39):
        collector.step()
    assert len(messages) >= 2 * 5


def test_an_episode_that_fails_in_the_replay_is_dropped_and_others_are_not(
    make_collector: Any,
):
    collector, _ = make_collector()
    for _ in range(10):
        collector.step()
    lengths, running = collector.episodes.lengths, int(collector.episodes.seeds[0])
    again, messages = make_collector(lambda seed, t: "raise" if (seed, t) == (running, 0) else "")
    restore(again, collector)
    assert lengths[0] > 0
    assert again.episodes.lengths.tolist() == [0, lengths[1]]
    assert again.started.tolist() == [collector.started[0] + 1, collector.started[1]]
    assert again.buffer.all_rows(0).num_rows == 10 - lengths[0]
    assert len(messages) == 1
    assert "seed 3: the environment failed" in messages[0]


def test_a_run_resumed_within_episodes_equals_an_uninterrupted_one(make_collector: Any):
    """The buffer's unfinished episodes of different lengths are restored and released."""
    collector, _ = make_collector()
    lengths = collector.episodes.lengths
    while collector.steps < 10 or lengths[0] == lengths[1]:
        collector.step()
    assert (collector.buffer.hidden > 0).any()
    again, _ = make_collector()
    restore(again, collector)
    for _ in range(21 - collector.steps):
        collector.step()
        again.step()
    for name, values in collector.buffer.tensors().items():
        assert torch.equal(again.buffer.tensors()[name], values), name


def test_a_seed_that_fails_repeatedly_leaves_the_step_of_the_other_seed_complete(
    make_collector: Any,
):
    """The first seed cannot start another episode. A resumed run equals an uninterrupted one."""
    sound, _ = make_collector()
    for _ in range(21):
        sound.step()
    gone = {training_episode_seed(SEEDS[0], number) for number in range(1, 9)}
    shaky, _ = make_collector(lambda seed, t: "raise" if t == -1 and seed in gone else "")
    with pytest.raises(RepeatedFailure, match=r"seed 3: .*for the 5th time"):
        walk(shaky, 21)
    added = [shaky.buffer.all_rows(s).num_rows for s in range(2)]
    assert added == [shaky.steps] * 2
    assert shaky.episodes.lengths[0] == 0 < shaky.episodes.lengths[1]
    again, _ = make_collector()
    restore(again, shaky)
    while again.steps < 21:
        again.step()
    one, two = (collector.buffer.all_rows(1) for collector in (sound, again))
    for name in ("observations", "actions", "rewards", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize("more", [{}, {"mc_costs": ()}])
def test_costs_of_each_step_are_stored_online(
    make_collector: Any, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """The cost is the distance from 0. With costs to go, it is added at the end of the episode."""
    monkeypatch.setattr(Walk, "info", staticmethod(lambda x: {"cost": abs(x)}))
    collector, _ = make_collector(needs={"costs": (), **more})
    walk(collector, 21)
    for s, seed in enumerate(SEEDS):
        found = collector.buffer.all_rows(s)
        after = np.concatenate([e["next_observations"] for e in walked(found.actions, seed)])
        place = after[:, 0] * SCALE[0] + MEAN[0]
        np.testing.assert_allclose(found.extras["costs"], np.abs(place), atol=1e-5)
        lengths = [e["truncated"].size for e in walked(found.actions, seed)]
        sums = [x.sum() for x in np.split(np.abs(place), np.cumsum(lengths)[:-1])]
        ended = len(collector.finished[s])
        np.testing.assert_allclose(collector.costs[s], sums[:ended], atol=1e-5)
        assert ended > 1
    assert (collector.buffer.hidden > 0).any() == bool(more)
    assert (collector.buffer.sizes == 21).all() == (not more)


def test_an_environment_without_the_needed_costs_is_refused(
    make_collector: Any,
) -> None:
    collector, _ = make_collector(needs={"costs": ()})
    with pytest.raises(UserError, match="the environment returns no info 'cost'"):
        collector.step()


def test_a_negative_cost_is_refused(make_collector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "info", staticmethod(lambda x: {"cost": -0.5}))
    collector, _ = make_collector(needs={"costs": ()})
    with pytest.raises(UserError, match=r"a cost of -0\.5\. A cost is at least 0"):
        collector.step()


def test_costs_survive_a_resume_within_episodes(
    make_collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs to go are computed after the resume from the costs of steps before it."""
    monkeypatch.setattr(Walk, "info", staticmethod(lambda x: {"cost": abs(x)}))
    needs = {"costs": (), "mc_costs": ()}
    collector, _ = make_collector(needs=needs)
    while collector.steps < 10 or not (collector.episodes.lengths > 0).all():
        collector.step()
    again, _ = make_collector(needs=needs)
    restore(again, collector)
    for each in (collector, again):
        each.costs = [[], []]
        walk(each, 21)
    for name, values in collector.buffer.tensors().items():
        assert torch.equal(again.buffer.tensors()[name], values), name
    assert again.costs == collector.costs
    assert all(again.costs)


def test_a_cost_of_nan_drops_only_its_episode(
    make_collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN in the second step of seed 8 drops the two steps of its episode, and none of seed 3."""
    calls = iter(range(1000))
    cost = staticmethod(lambda x: {"cost": np.nan if next(calls) == 3 else 1.0})
    monkeypatch.setattr(Walk, "info", cost)
    collector, messages = make_collector(needs={"costs": ()})
    walk(collector, 5)
    assert [collector.buffer.all_rows(s).num_rows for s in range(2)] == [5, 3]
    (sentence,) = messages
    assert "seed 8: the environment failed in step 1 of an episode" in sentence
    assert "a cost that is NaN or infinite" in sentence


class Remembers(Head):
    """Recurrent policy: 0.1 for each observed step minus 0.1 times the sum of rewards."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.1))

    def initial_memory(self, batch: int) -> dict[str, torch.Tensor]:
        return {name: torch.zeros(batch) for name in ("seen", "paid", "rewards")}

    def decide(self, observations: Any, memory: Any, noise: Any) -> Any:
        seen, paid = memory["seen"] + 1, memory["paid"] + memory["rewards"]
        return (self.scale * (seen - paid))[:, None, None], memory | {"seen": seen, "paid": paid}


class Saves(Remembers):
    """Recurrent policy: 0.1 for each observed step minus 0.1 times the sum of costs."""

    def initial_memory(self, batch: int) -> dict[str, torch.Tensor]:
        return {name: torch.zeros(batch) for name in ("seen", "paid", "costs")}

    def decide(self, observations: Any, memory: Any, noise: Any) -> Any:
        chunk, after = super().decide(observations, memory | {"rewards": memory["costs"]}, noise)
        return chunk, {name: after[name] for name in memory}


class Plans(Head):
    """Chunk policy: 0.1, 0.2 and 0.3, added to half of the earlier position."""

    n_obs_steps, chunk_size, n_action_steps = 2, 3, 3

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.1))

    def decide(self, observations: Any, memory: Any, noise: Any) -> Any:
        before = SCALE[0] * observations[:, 0, :1] + MEAN[0]  # [B, 1]
        return (0.5 * before + self.scale * torch.tensor([1.0, 2.0, 3.0]))[..., None], memory


def by_hand(head: type[nn.Module], places: np.ndarray) -> list[float]:
    """Return the actions of an episode with these positions. Rewards follow the first.

    The costs are the squares of the positions.
    """
    if head is Saves:
        places = places**2
    if issubclass(head, Remembers):
        return [0.1 * (t + 1 - places[1 : t + 1].sum()) for t in range(len(places) - 1)]
    decided = [places[max(3 * (t // 3) - 1, 0)] for t in range(len(places) - 1)]
    return [0.5 * place + 0.1 * (t % 3 + 1) for t, place in enumerate(decided)]


class Acts(TD3):
    """TD3 that acts with the policy `head`."""

    targets: ClassVar = {"critic_target": "critic"}
    head: ClassVar[type[nn.Module]]

    def networks(self) -> dict[str, nn.Module]:
        return super().networks() | {"policy": self.head()}


class Remembering(Acts):
    head = Remembers


class Saving(Acts):
    head = Saves


class Planning(Acts):
    head = Plans


@pytest.mark.parametrize("kind", [Remembering, Saving, Planning])
@pytest.mark.parametrize("envs_per_seed", [1, 3])
def test_a_policy_with_memory_acts_by_each_episode_also_when_resumed(
    make_collector: Any, kind: type[Acts], envs_per_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes end at different steps. Parameters change within episodes that have a memory.

    One environment fails in an episode, whose memory is dropped too.
    """
    monkeypatch.setattr(Walk, "info", staticmethod(lambda x: {"cost": x * x}))
    broken, head = training_episode_seed(SEEDS[1], envs_per_seed), kind.head
    options = {"kind": kind, "online": Online(warmup_steps=0), "needs": {}}
    options |= {"faults": lambda seed, t: "raise" if seed == broken and t == 1 else ""}
    options |= {"envs_per_seed": envs_per_seed}
    one, messages = make_collector(**options)
    walk(one, 16)
    assert len(messages) == 1
    for s in range(2):
        found = one.buffer.all_rows(s)
        starts = found.episode_starts
        stops = np.append(starts[1:], found.num_rows)
        if envs_per_seed == 3:
            assert found.episode_ends[-1] == found.num_rows - 1
        numbers = list[int]()
        for start, stop in zip(starts, stops, strict=True):
            actions, first = found.actions[start:stop], found.observations[start]
            place = MEAN[0] + SCALE[0] * first[0]
            numbers.append(episode_number(SEEDS[s], place))
            (episode,) = walked(actions, SEEDS[s], first=numbers[-1])
            pairs = [episode["observations"][:1, 0], episode["next_observations"][:, 0]]
            expected = by_hand(head, SCALE[0] * np.concatenate(pairs) + MEAN[0])
            np.testing.assert_allclose(actions[:, 0], expected, atol=1e-5)
        assert len(numbers) == len({*numbers}) > 2
        assert (envs_per_seed in numbers) == (s == 0)  # the one that failed
        if envs_per_seed == 1:
            assert numbers == sorted(numbers)
    assert (one.episodes.lengths % 3 > 0).any()  # in the middle of a chunk
    again, _ = make_collector(**options)
    for each in (one, again):
        each.engine.state["params"]["policy"]["scale"].fill_(-0.05)
    restore(again, one)
    for each in (one, again):
        walk(each, 9)
    for s in range(2):
        pair = [each.buffer.all_rows(s) for each in (one, again)]
        np.testing.assert_array_equal(pair[0].actions, pair[1].actions)
        np.testing.assert_array_equal(pair[0].observations, pair[1].observations)
    for name, values in one.tensors(1).items():
        assert torch.equal(again.tensors(1)[name], values), name


def test_several_environments_of_a_seed_act_and_count_like_one(make_collector: Any) -> None:
    """Warm-up actions differ in all environments. Every complete episode is stored in one piece."""
    one, _ = make_collector(envs_per_seed=3)
    assert not one.can_sample(1)
    while not (one.episodes.terminated | one.episodes.truncated).any():
        one.step()
    walk(one, 12)
    assert one.can_sample(3)
    assert one.buffer.hidden.tolist() == [0, 0]
    drawn = one.buffer.all_rows(0).actions[: 2 * WARM_UP]
    assert len(np.unique(drawn)) > WARM_UP  # some are from the policy, without noise
    for s in range(2):
        found = one.buffer.all_rows(s)
        assert found.num_rows < one.steps == 3 * (one.steps // 3)
        starts = found.episode_starts
        for start, stop in zip(starts, [*starts[1:], found.num_rows], strict=True):
            place = MEAN[0] + SCALE[0] * found.observations[start, 0]
            number = episode_number(SEEDS[s], place)
            (episode,) = walked(found.actions[start:stop], SEEDS[s], first=number)
            for name in ("observations", "next_observations", "rewards", "terminated", "truncated"):
                own = getattr(found, name)[start:stop]
                np.testing.assert_allclose(own, episode[name], atol=1e-6)
        lengths = np.diff([*starts, found.num_rows])
        assert len(one.finished[s]) == len(lengths)


def test_the_first_of_several_environments_that_fails_repeatedly_stops_the_run(
    make_collector: Any,
) -> None:
    """One of three cannot start another episode. The decision of the others is complete."""
    gone = set[int]()

    def fault(seed: int, t: int) -> str:
        if t == -1 and seed - training_episode_seed(SEEDS[0], 0) in range(3, 100):
            gone.add(seed)
            return "raise"
        return ""

    shaky, messages = make_collector(fault, envs_per_seed=3)
    with pytest.raises(RepeatedFailure, match=r"seed 3: .*cable is out.*for the 5th time"):
        walk(shaky, 100)
    failed = shaky.episodes.mishaps == 5  # several episodes may have ended at the same time
    assert len(gone) == 5 * failed.sum() == len(messages) + failed.sum()
    assert (shaky.episodes.lengths[failed] == 0).all()
    assert (shaky.episodes.lengths[~failed] == shaky.steps // 3).any()
    again, _ = make_collector(envs_per_seed=3)
    restore(again, shaky)
    walk(again, 12)
    assert again.episodes.mishaps.tolist() == [0] * 6


def test_a_policy_with_memory_continues_if_every_environment_fails_in_one_step(
    make_collector: Any,
) -> None:
    broken = [training_episode_seed(seed, 0) for seed in SEEDS]
    options = {"kind": Remembering, "online": Online(warmup_steps=0), "needs": {}}
    collector, messages = make_collector(
        **options, faults=lambda seed, t: "raise" * (seed in broken and t == 1)
    )
    walk(collector, 5)
    assert len(messages) == len(SEEDS)
    for s, seed in enumerate(SEEDS):
        actions = collector.buffer.all_rows(s).actions
        (episode,) = walked(actions, seed, without=0)
        places = np.append(episode["observations"][:1, 0], episode["next_observations"][:, 0])
        expected = by_hand(Remembers, SCALE[0] * places + MEAN[0])
        np.testing.assert_allclose(actions[:, 0], expected, atol=1e-5)


def test_a_policy_with_memory_refuses_random_warmup_actions(make_collector: Any) -> None:
    with pytest.raises(UserError, match="with a Remembers, whose memory"):
        make_collector(kind=Remembering)


def walk(collector: Collector, steps: int) -> None:
    for _ in range(steps):
        collector.step()


def restore(collector: Collector, other: Collector) -> None:
    """Restore a new collector from the checkpoint of another."""
    stored = [{k: v.clone() for k, v in other.tensors(s).items()} for s in range(2)]
    collector.restore([other.state(s) for s in range(2)], stored)


def episode_number(seed: int, place: float) -> int:
    """Return the number of the episode of a training seed that starts at this place."""
    starts = [Walk().reset(seed=training_episode_seed(seed, k))[0][0] for k in range(60)]
    return int(np.abs(np.array(starts) - place).argmin())


def test_a_policy_that_reads_costs_is_refused_by_an_environment_without_costs(
    make_collector: Any,
) -> None:
    collector, _ = make_collector(kind=Saving, online=Online(warmup_steps=0), needs={})
    with pytest.raises(UserError, match="no info 'cost', but a Saves reads the costs"):
        collector.step()
