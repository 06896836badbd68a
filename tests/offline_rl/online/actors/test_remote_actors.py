"""Episodes of actors: each counts once, whatever is killed; wrong actors and frames are refused."""

import ast
import hashlib
import itertools
import queue
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import envs
from envs import tasks
from offline_rl.algorithms.td3 import TD3, Config, Online
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine
from offline_rl.online.actors import learner as learner_module
from offline_rl.online.actors.actor import ActorCommand, collect, main
from offline_rl.online.actors.frames import Frame, FrameError, Kind, encode
from offline_rl.online.actors.learner import ActorOptions, RemoteCollector
from offline_rl.online.actors.wire import (
    Connection,
    close_socket,
    is_loopback,
    parse_address,
    proof_of,
    read_token,
)
from offline_rl.online.collector import RepeatedFailure
from offline_rl.online.sinks import ReplaySink
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.runs import refusals
from offline_rl.utils.errors import UserError
from offline_rl.utils.seeds import training_episode_seed
from offline_rl.version import __version__
from policies import Normalizer, Spec
from policies.bundle import FORMAT

ROOT = Path(__file__).resolve().parents[4]
NOTES = itertools.count()
LIMIT, SEED, TOKEN = 6, 3, b"a secret of many characters"
MEAN, SCALE = np.array([0.5, 2.0], np.float32), np.array([2.0, 4.0], np.float32)
TRANSFORM = Transform(Normalizer(MEAN, SCALE), reward_scale=2.0, reward_shift=-1.0)
TASK = {"name": "walk", "max_episode_steps": LIMIT, "observation_keys": [], "success_timing": None}
HYPER = {"hidden": [8], "exploration_noise": 0.3}


class Walk(gymnasium.Env):
    """Point on a line. An episode terminates outside of [-0.9, 0.9]."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.uniform(-0.8, 0.8)), 0
        return np.array([self.x, 0], np.float32), {}

    def step(self, action: np.ndarray):
        self.x, self.t = self.x + 0.3 * float(action[0]), self.t + 1
        return np.array([self.x, self.t], np.float32), self.x, abs(self.x) > 0.9, False, {}


@pytest.fixture(scope="module")
def engine() -> Engine:
    cfg, buffer = Config(hidden=(8,), exploration_noise=0.3), ReplayBuffer((2,), 1, 4)
    return Engine(lambda _: TD3(Spec((2,), 1), cfg), [SEED], buffer)


@pytest.fixture
def make(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Function that returns a learner with an empty replay buffer, and its messages."""
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    envs.register("walk", Walk, max_episode_steps=LIMIT)
    monkeypatch.setattr(learner_module, "GOODBYE_S", 0.3)
    learners = list[RemoteCollector]()

    def learner(
        capacity: int = 1000, warmup: int = 0, start: Any = None, **options: Any
    ) -> tuple[RemoteCollector, list[str]]:
        messages, buffer = list[str](), ReplayBuffer((2,), 1, capacity)
        sink = ReplaySink(engine, buffer, Online(warmup_steps=warmup), lambda _: {})
        settings = ActorOptions(**{"count": 0, **options})
        more: Any = {"longest": LIMIT, "say": messages.append, "start": start}
        made = RemoteCollector(sink, envs.task("walk"), TRANSFORM, ("td3", HYPER), settings, **more)
        made.should_stop = fails_after(time.monotonic() + 100)
        learners.append(made)
        made.begin()  # publishes the policy
        return made, messages

    yield learner
    for each in learners:
        each.close()


class Client:
    """An actor without an environment, whose frames a test chooses."""

    def __init__(self, learner: RemoteCollector, **hello: Any) -> None:
        self.connection = Connection(socket.create_connection(("127.0.0.1", learner.port), 20))
        self.connection.expect(Kind.CHALLENGE)
        fields = {"version": __version__, "policy_format": FORMAT, "task": TASK, "slot": None}
        self.connection.send(Kind.HELLO, fields | {"name": "client"} | hello)
        self.connection.open()
        self.welcome = self.connection.expect(Kind.WELCOME)
        self.messages: list[str] = learner.say.__self__  # type: ignore[attr-defined]
        self.stored, self.frames = set[int](), queue.Queue[Frame | None]()
        in_thread(self.read)

    def read(self) -> None:
        """Read all frames; note which episodes are stored."""
        try:
            while True:
                frame = self.connection.receive()
                if frame.kind == Kind.STORED:
                    self.stored |= {*frame.fields["episodes"]}
                else:
                    self.frames.put(frame)
        finally:
            self.frames.put(None)

    def receive(self, kind: Kind) -> Frame:
        """Return the next frame, which has this kind."""
        frame = self.frames.get(timeout=20)
        if frame is None:
            raise ConnectionError
        if frame.kind == Kind.ERROR:
            raise UserError(frame.fields["error"])
        assert frame.kind == kind
        return frame

    def grant(self) -> Frame:
        self.connection.send(Kind.REQUEST)
        return self.receive(Kind.GRANT)

    def send(self, episode: int, rows: dict[str, np.ndarray], **fields: Any) -> None:
        about = {"episode": episode, "version": 0, "return": 1.0, "success": None, "cost": None}
        self.connection.send(Kind.EPISODE, about | {"broken": False} | fields, **rows)

    def synchronize(self) -> None:
        """Wait until the learner has read all earlier frames."""
        note = f"note {next(NOTES)}"
        self.connection.send(Kind.ALIVE, {"note": note})
        wait_for(lambda: any(text.endswith(note) for text in self.messages))


def steps(number: int, length: int = 4, **changes: Any) -> dict[str, np.ndarray]:
    """Return the rows of an episode, which contain its number."""
    rows: dict[str, np.ndarray] = {
        "observations": np.full((length, 2), number, np.float32),
        "next_observations": np.full((length, 2), number + 0.5, np.float32),
        "actions": np.zeros((length, 1), np.float32),
        "rewards": np.arange(length, dtype=np.float32),
        "terminated": np.zeros(length, bool),
        "truncated": np.arange(length) == length - 1,
    }
    return rows | changes


def fails_after(deadline: float) -> Callable[[], bool]:
    """Return a function that requests no stop, and fails after the deadline."""

    def is_late() -> bool:
        assert time.monotonic() < deadline, "no episode arrives"
        return False

    return is_late


def take(learner: RemoteCollector, count: int) -> None:
    """Count `count` environment steps."""
    for _ in range(count):
        learner.begin()
        learner.end()


def test_an_episode_is_stored_as_a_whole_and_counted_step_by_step(make: Any) -> None:
    learner, _ = make(capacity=7)
    client = Client(learner)
    for number in (1, 2):
        client.send(number, steps(number), **{"return": 10.0 * number})
    take(learner, 1)
    assert (learner.steps, learner.buffer.sizes[0]) == (1, 4)
    take(learner, 6)
    rows = learner.buffer.all_rows(0)
    assert (learner.steps, rows.num_rows) == (7, 7)  # the second episode is cut
    np.testing.assert_array_equal(rows.observations[:7, 0], [1, 1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(rows.truncated, [0, 0, 0, 1, 0, 0, 1])
    assert learner.finished == [[10.0]]  # the return of a cut episode is unknown


def test_updates_of_the_policy_are_sent_between_episodes_and_its_age_is_reported(
    make: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, _ = make(warmup=4)
    client = Client(learner)
    first = client.grant()
    assert first.fields["version"] == 0
    assert first.fields["warmup"]
    assert "policy" not in first.arrays  # the settings contained it
    client.send(first.fields["episode"], steps(0))
    take(learner, 4)
    monkeypatch.setattr(engine, "_updates", 30)
    learner.begin()
    second = client.grant()
    assert second.fields["version"] == 30
    assert not second.fields["warmup"]
    assert "policy" in second.arrays
    client.send(second.fields["episode"], steps(1), version=30)
    client.send(12345, steps(2), version=10)
    take(learner, 8)
    assert learner.metrics()["data/policy_age"] == pytest.approx((0 + 0 + 20) / 3)


def test_an_actor_is_told_only_after_the_checkpoint(make: Any) -> None:
    learner, _ = make()
    client = Client(learner)
    client.send(1, steps(1))
    client.send(2, steps(2))
    take(learner, 1)  # stores the first
    client.synchronize()
    assert client.stored == set()
    learner.saved()
    wait_for(lambda: client.stored == {1})
    client.send(1, steps(1))  # as after a lost frame: it is told again, and not stored again
    client.synchronize()
    take(learner, 7)
    assert learner.buffer.added[0] == 8


@pytest.mark.parametrize("seed", range(2))
def test_each_acknowledged_episode_counts_once_whoever_is_killed(make: Any, seed: int) -> None:
    """Actors and learners are killed at random. A killed learner resumes its last checkpoint."""
    chance = random.Random(seed)
    learner, _ = make()
    saved = [learner.state(0)], [learner.tensors(0)]
    clients = [Client(learner, run=None) for _ in range(3)]
    held = [dict[int, dict[str, np.ndarray]]() for _ in clients]  # by actor: not acknowledged
    acknowledged, lengths, number = set[int](), dict[int, int](), 0
    run = learner.state(0)["run"]

    def reconnect(k: int) -> None:
        clients[k] = Client(learner, run=run)
        for episode, rows in held[k].items():
            clients[k].send(episode, rows)

    def drain() -> None:
        take(learner, sum(len(e.rows["rewards"]) for e in learner._queue) + learner._credit)

    def forget(k: int) -> None:
        clients[k].synchronize()
        stored = clients[k].stored.copy()
        acknowledged.update(stored)
        for episode in stored:
            held[k].pop(episode, None)

    for _ in range(45):
        k, event = chance.randrange(3), chance.random()
        if event < 0.45:  # an episode arrives
            number += 1
            lengths[number] = chance.randint(1, LIMIT)
            held[k][number] = steps(number, lengths[number])
            clients[k].send(number, held[k][number])
        elif event < 0.6:  # the same episode arrives again
            for episode, rows in held[k].items():
                clients[k].send(episode, rows)
        elif event < 0.7:  # the connection is lost, and the actor connects again
            clients[k].connection.close()
            reconnect(k)
        elif event < 0.75:  # the actor is killed: what it held may be lost, unless acknowledged
            clients[k].connection.close()
            held[k] = {}
            reconnect(k)
        elif event < 0.85:
            drain()
        elif event < 0.93:  # a checkpoint
            saved = [learner.state(0)], [learner.tensors(0)]
            learner.saved()
            for j in range(3):
                forget(j)
        else:  # the learner is killed, and resumes
            kill(learner)
            learner, _ = make()
            learner.restore(*saved)
            for j in range(3):
                reconnect(j)
    for j in range(3):
        forget(j)
    drain()
    learner.saved()

    def all_are_acknowledged() -> bool:
        for j in range(3):
            forget(j)
        return not any(held)

    wait_for(all_are_acknowledged)  # every episode of a living actor has arrived
    rows = learner.buffer.all_rows(0).observations[: learner.steps, 0]
    counts = {int(n): int((rows == n).sum()) for n in np.unique(rows)}
    assert counts == {n: lengths[n] for n in counts}  # complete, and once
    assert acknowledged <= counts.keys()
    assert len(counts) > 5


def test_a_resumed_learner_gives_no_identity_twice(make: Any) -> None:
    """The first learner's checkpoint is older than its last grant."""
    learner, _ = make()
    saved = [learner.state(0)], [learner.tensors(0)]
    first = Client(learner).grant().fields
    learner.close()
    resumed, _ = make()
    resumed.restore(*saved)
    second = Client(resumed, run=saved[0][0]["run"]).grant().fields
    assert first["number"] == second["number"] == 0
    assert first["episode"] != second["episode"]


def test_a_checkpoint_of_a_run_without_actors_is_not_continued_with_them(make: Any) -> None:
    learner, _ = make()
    with pytest.raises(UserError, match="Continue with actors=0"):
        learner.restore([{"steps": 3, "episodes": 1}], [{}])


@pytest.mark.parametrize(
    ("hello", "text"),
    [
        ({"version": "0.0.1"}, "it runs offline_rl 0.0.1, but the learner runs"),
        ({"policy_format": FORMAT + 1}, "it reads policies of format"),
        ({"task": TASK | {"name": "hopper"}}, "it runs the task hopper .* trains on walk"),
        ({"task": TASK | {"max_episode_steps": 9}}, "max_episode_steps=9"),
        ({"task": None}, "it runs the task None"),
        ({"run": "another"}, "episodes of another run"),
    ],
)
def test_an_actor_that_does_not_fit_is_refused(make: Any, hello: Any, text: str) -> None:
    learner, messages = make()
    with pytest.raises(UserError, match=text):
        Client(learner, **hello)
    wait_for(lambda: len(messages) == 1)
    assert messages[0].startswith("an actor was refused: it")
    Client(learner).grant()  # others are not affected


def test_an_actor_of_another_task_learns_why_it_is_refused(make: Any) -> None:
    learner, _ = make()
    envs.register("strolls", Walk, max_episode_steps=LIMIT)
    with pytest.raises(UserError, match="the learner refused this actor: it runs the task strolls"):
        collect(command(learner, task="strolls"))


def test_help_lists_the_options_of_an_actor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "address=" in text
    assert "reconnect_s=600.0" in text


def test_an_actor_needs_the_token(make: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(TOKEN + b"\n")
    file.chmod(0o600)
    learner, _ = make(capacity=1, token_file=str(file))
    with pytest.raises(UserError, match="its token differs from the learner's"):
        Client(learner, proof="0" * 64)
    with pytest.raises(UserError, match=r"the learner needs a token. Set token_file="):
        collect(command(learner))
    thread = in_thread(lambda: collect(command(learner, token_file=str(file))))
    take(learner, 1)
    learner.close()
    thread.join(20)
    assert not thread.is_alive()


WRONG = {
    "another layout": steps(1, actions=np.zeros((4, 2), np.float32)),
    r"has another layout than the task's \(costs\)": steps(1, costs=np.zeros(4, np.float32)),
    "NaN or infinite": steps(1, rewards=np.array([0, 1, np.nan, 3], np.float32)),
    "does not end at its last step": steps(1, truncated=np.zeros(4, bool)),
    r"has \[7\] steps": steps(1, 7),
    r"has \[3, 4\] steps": steps(1, actions=np.zeros((3, 1), np.float32)),
    "no identity": steps(1),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_episode_is_refused_and_nothing_of_it_is_stored(make: Any, text: str) -> None:
    learner, messages = make()
    client = Client(learner)
    client.send("x" if text == "no identity" else 1, WRONG[text])  # type: ignore[arg-type]
    with pytest.raises(UserError, match=text):
        client.receive(Kind.GRANT)
    wait_for(lambda: len(messages) == 1)
    assert "actor client: a frame was refused" in messages[0]
    assert not learner._queue


def test_a_damaged_frame_ends_the_connection_with_a_sentence(make: Any) -> None:
    learner, messages = make()
    client, other = Client(learner), Client(learner, name="other")
    frame = bytearray(encode(Kind.ALIVE, {"note": "a long text"}))
    frame[-3] ^= 1
    client.connection.send_bytes(bytes(frame))
    with pytest.raises(UserError, match="content does not match its checksum"):
        client.receive(Kind.GRANT)
    other.grant()
    wait_for(lambda: bool(messages))
    assert messages[0].startswith("actor client: a frame was refused, because its content")


def test_two_learners_cannot_have_one_address(make: Any) -> None:
    learner, _ = make()
    address = f"127.0.0.1:{learner.port}"
    text = rf"actor_address={address} is not available .*Stop the learner"
    with pytest.raises(UserError, match=text):
        make(address=address)


class Fake:
    """A process whose actor is a `Client` in a thread."""

    started: list["Fake"]

    def __init__(self, learner: RemoteCollector, options: Any, behave: Any) -> None:
        self.killed, self.code, self.pid = False, None, 0
        self.started.append(self)
        self.thread = in_thread(lambda: behave(self, learner, options["slot"]))

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.killed = True

    def wait(self) -> None:
        pass


def with_processes(make: Any, behave: Any, **options: Any) -> tuple[RemoteCollector, list[str]]:
    """Return a learner whose processes do what `behave(process, learner, slot)` does."""
    Fake.started, holder = [], dict[str, Any]()

    def start(arguments: dict[str, Any]) -> Fake:
        while "learner" not in holder:
            time.sleep(0.01)
        return Fake(holder["learner"], arguments, behave)

    learner, messages = make(start=start, **options)
    holder["learner"] = learner
    return learner, messages


def test_an_environment_that_hangs_is_restarted(make: Any) -> None:
    """The first process stops after a grant. The second one works, but waits long for a grant."""

    def behave(process: Fake, learner: RemoteCollector, slot: int) -> None:
        client = Client(learner, slot=slot)
        granted = client.grant().fields["episode"]
        if process is not Fake.started[0]:
            for _ in range(4):
                client.connection.send(Kind.ALIVE)
                time.sleep(0.15)  # longer in total than the limit, but never without progress
            client.send(granted, steps(granted % 1000))
            client.grant()

    learner, messages = with_processes(make, behave, count=1, env_timeout_s=0.4)
    take(learner, 4)
    assert len(Fake.started) == 2
    assert Fake.started[0].killed
    what = "actor 0: its environment made no progress for 0.4 s"
    assert messages == [f"{what}; dropped its episode and restarted it"]


def test_a_process_that_ends_is_restarted_and_too_many_in_a_row_end_the_run(make: Any) -> None:
    def behave(process: Fake, learner: RemoteCollector, slot: int) -> None:
        client = Client(learner, slot=slot)
        granted = client.grant().fields["episode"]
        if len(Fake.started) == 4:
            client.send(granted, steps(granted % 1000))  # three failures, then a success
            client.grant()
        client.connection.close()
        process.code = -9

    learner, messages = with_processes(make, behave, count=1)
    take(learner, 4)
    with pytest.raises(RepeatedFailure, match="actor 0 failed for the 5th time in a row"):
        take(learner, 4)
    assert len(Fake.started) == 3 + 5
    assert len(messages) == 7
    assert learner.steps == 4
    assert learner.state(0)["steps"] == 4  # a checkpoint can be written


def test_a_requested_stop_ends_the_wait_for_an_episode(make: Any) -> None:
    learner, _ = make()
    learner.should_stop = lambda: True
    take(learner, 1)
    assert learner.steps == 0


def test_an_actor_sends_what_its_environment_did(make: Any) -> None:
    """The actions are those of the exploring policy. Episodes have the seeds of their numbers."""
    learner, _ = make(capacity=40)
    thread = in_thread(lambda: collect(command(learner)))
    take(learner, 40)
    learner.close()
    thread.join(20)
    assert not thread.is_alive()
    rows, env, t = learner.buffer.all_rows(0), Walk(), 0
    returns = list[float]()
    for number in range(40):
        observed, total = env.reset(seed=training_episode_seed(SEED, number))[0], 0.0
        over = False
        while not over and t < 40:
            np.testing.assert_allclose(rows.observations[t], (observed - MEAN) / SCALE, atol=1e-6)
            observed, reward, terminated, *_ = env.step(rows.actions[t])
            over = terminated or env.t == LIMIT
            assert rows.rewards[t] == pytest.approx(2 * reward - 1, abs=1e-5)
            assert rows.terminated[t] == terminated
            total, t = total + reward, t + 1
        returns += [total] if over else []
    np.testing.assert_allclose(learner.finished[0], returns[: len(learner.finished[0])], atol=1e-5)
    engine = learner.engine
    params = engine.algorithm.acting_params(engine.state["params"])
    head = engine.algorithm.acting_head()
    single = {k: v[0] for k, v in params.items()}
    with torch.no_grad():
        observed_rows = torch.from_numpy(rows.observations[:40])
        mean = torch.func.functional_call(head, single, (observed_rows,)).numpy()
    noise = (rows.actions - mean)[np.abs(rows.actions) < 1]
    assert noise.std() == pytest.approx(HYPER["exploration_noise"], rel=0.5)
    assert len(np.unique(noise)) == len(noise)  # no two episodes have the same noise


def test_an_actor_elsewhere_waits_for_its_learner_and_sends_its_episodes_again(make: Any) -> None:
    """The learner is killed after it has stored episodes, before a checkpoint."""
    learner, _ = make(capacity=60)
    saved, port = ([learner.state(0)], [learner.tensors(0)]), learner.port
    thread = in_thread(lambda: collect(command(learner)))
    take(learner, 1)
    first = learner.buffer.all_rows(0).observations[0].copy()
    kill(learner)
    resumed, _ = make(capacity=60, address=f"127.0.0.1:{port}")
    resumed.restore(*saved)
    take(resumed, 60)
    rows = resumed.buffer.all_rows(0).observations[:60]
    assert any(np.array_equal(row, first) for row in rows)
    resumed.close()
    thread.join(20)
    assert not thread.is_alive()


def test_addresses_and_tokens_are_checked(tmp_path: Path) -> None:
    assert parse_address("127.0.0.1:7000") == ("127.0.0.1", 7000)
    assert parse_address("[::1]:0") == ("::1", 0)
    for address in ("7000", "host:", "host:x", "host:70000"):
        with pytest.raises(UserError, match="is not <host>:<port>"):
            parse_address(address)
    assert [h for h in ("127.3.2.1", "::1", "localhost", "0.0.0.0", "gpu1") if is_loopback(h)] == [
        "127.3.2.1",
        "::1",
        "localhost",
    ]
    file = tmp_path / "token"
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_token(str(file))
    file.write_text("short")
    with pytest.raises(UserError, match="fewer than 16 characters"):
        read_token(str(file))
    file.write_bytes(TOKEN)
    file.chmod(0o644)
    with pytest.raises(UserError, match=f"chmod 600 {file}"):
        read_token(str(file))


def test_options_of_actors_that_cannot_work_are_refused() -> None:
    from offline_rl.runs.run import runs_of

    base = {"algorithm": "sac", "task": "Hopper-v4", "num_env_steps": 100, "actors": 2}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"actors": 0, "env_timeout_s": 5}, "env_timeout_s= has no effect without actors="),
        ({"actors": 0, "token_file": "t"}, "token_file= has no effect without actors="),
        ({"num_env_steps": 0, "num_updates": 5}, "no effect without num_env_steps="),
        ({"algorithm": "ppo"}, "on-policy"),
        ({"algorithm": "coplanner"}, "explores with networks that actors do not have"),
        ({"algorithm": "resfit", "base": "x.bundle"}, "does not work with base="),
        ({"overlap": True}, "overlap=true has no effect with actors=2"),
        ({"actor_address": "0.0.0.0:7000"}, "Set token_file="),
        ({"actor_address": "nowhere"}, "is not <host>:<port>"),
    ]
    for changes, text in cases:
        with pytest.raises(UserError, match=text):
            runs_of(base | changes)
    runs = runs_of(base | {"actor_address": "0.0.0.0:7000", "token_file": "t"})
    assert not [*refusals.wrong_actors(runs[0])]


def test_nothing_of_this_is_imported_without_actors() -> None:
    """All imports from other packages are inside the functions that need actors."""
    for file in (ROOT / "offline_rl").rglob("*.py"):
        text = file.read_text()
        if file.parent.name == "actors" or "online.actors" not in text:
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert "online.actors" not in ast.unparse(node), file


def test_the_learner_keeps_an_actor_waiting_if_it_does_not_keep_up(make: Any) -> None:
    learner, _ = make()
    client, granted = Client(learner), list[int]()

    def work() -> None:
        for _ in range(6):
            granted.append(client.grant().fields["episode"])
            client.send(granted[-1], steps(len(granted)))

    thread = in_thread(work)
    wait_for(lambda: len(learner._queue) == 2)
    time.sleep(0.05)
    assert len(granted) == 2  # one queued episode for each actor, and one more
    take(learner, 4 * 6)
    thread.join(20)
    assert len(granted) == 6


def test_an_actor_acts_with_the_newest_policy_after_its_warm_up(
    make: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The actions of the warm-up are random. Later policies always go to the right.

    A policy that returns NaN is reported.
    """
    last = engine.state["params"]["policy"]["trunk.biases.1"]
    kept = last.clone()
    learner, _ = make(capacity=100, warmup=20)
    thread = in_thread(lambda: collect(command(learner)))
    take(learner, 20)
    last.fill_(50.0)
    monkeypatch.setattr(engine, "_updates", 1)
    take(learner, 40)  # at most four episodes of at most six steps have an earlier policy
    assert learner.broken == set()
    last.fill_(float("nan"))
    monkeypatch.setattr(engine, "_updates", 2)
    take(learner, 40)
    last.copy_(kept)
    learner.close()
    thread.join(20)
    actions = learner.buffer.all_rows(0).actions[:100, 0]
    assert actions[:20].min() < -0.5
    assert actions[:20].max() > 0.5
    assert actions[50:60].min() > 0
    assert learner.broken == {0}


def test_a_warm_up_counts_all_received_steps(make: Any) -> None:
    """Neither of them is counted or stored."""
    learner, _ = make(warmup=8)
    client = Client(learner)
    for expected in (True, True, False):
        granted = client.grant().fields
        assert granted["warmup"] == expected
        client.send(granted["episode"], steps(granted["number"]))
        client.synchronize()
        if len(learner._queue) == 2:
            take(learner, 1)  # one is stored, the other one waits


def test_a_policy_that_fails_is_noted(make: Any) -> None:
    learner, _ = make()
    client = Client(learner)
    client.send(1, steps(1))
    take(learner, 4)
    assert learner.broken == set()
    client.send(2, steps(2), broken=True)
    take(learner, 1)
    assert learner.broken == {0}


def test_an_episode_in_a_checkpoint_is_confirmed_to_whoever_sends_it(make: Any) -> None:
    """Also by a learner that has resumed, and before its next checkpoint."""
    learner, _ = make()
    Client(learner).send(1, steps(1))
    take(learner, 1)
    saved = [learner.state(0)], [learner.tensors(0)]
    learner.saved()
    other = Client(learner)
    other.send(1, steps(1))
    wait_for(lambda: other.stored == {1})
    kill(learner)
    resumed, _ = make()
    resumed.restore(*saved)
    again = Client(resumed, run=saved[0][0]["run"])
    again.send(1, steps(1))
    wait_for(lambda: again.stored == {1})
    assert not resumed._queue


def test_the_rest_of_a_stored_episode_is_counted_after_a_checkpoint(make: Any) -> None:
    learner, _ = make()
    Client(learner).send(1, steps(1))
    take(learner, 1)
    saved = [learner.state(0)], [learner.tensors(0)]
    resumed, _ = make()
    resumed.restore(*saved)
    resumed.should_stop = lambda: True  # it does not wait for another episode
    take(resumed, 3)
    assert (resumed.steps, resumed.buffer.sizes[0]) == (4, 4)


def test_a_resumed_learner_repeats_no_number_of_an_episode_that_it_receives(make: Any) -> None:
    """The environment seed of an episode follows from its number."""
    learner, _ = make()
    saved = [learner.state(0)], [learner.tensors(0)]
    client = Client(learner)
    granted = [client.grant().fields for _ in range(3)]
    assert [fields["number"] for fields in granted] == [0, 1, 2]
    resumed, _ = make()
    resumed.restore(*saved)
    client = Client(resumed, run=saved[0][0]["run"])
    client.send(granted[-1]["episode"], steps(2))
    assert client.grant().fields["number"] == 3


def test_an_actor_elsewhere_without_progress_is_dropped(make: Any) -> None:
    learner, messages = make(env_timeout_s=0.2)
    client, idle = Client(learner), Client(learner, name="idle")
    client.grant()
    wait_for(lambda: bool(messages))
    assert messages == ["actor client: no progress for 0.2 s; disconnected it"]
    with pytest.raises(ConnectionError):
        client.receive(Kind.GRANT)
    idle.grant()  # it had no episode, so it was not silent


@pytest.mark.parametrize("capacity", [4, 5])
def test_actors_end_with_a_complete_run_and_wait_for_the_rest_of_another(
    make: Any, capacity: int
) -> None:
    learner, _ = make(capacity=capacity)
    client = Client(learner)
    client.send(1, steps(1))
    take(learner, 4)
    learner.close()
    if capacity == 4:
        assert client.receive(Kind.STOP)
    else:
        with pytest.raises(ConnectionError):
            client.receive(Kind.STOP)


def test_an_actor_elsewhere_runs_no_code_of_a_user(make: Any) -> None:
    learner, _ = make()
    learner._method = "mine.py", HYPER
    with pytest.raises(UserError, match=r"the learner trains mine\.py, code of its user"):
        collect(command(learner))


def test_the_proof_of_a_token_is_its_hmac_of_the_challenge() -> None:
    """HMAC-SHA-256 by its definition, RFC 2104. A proof cannot be used for another challenge."""
    key, blocks = TOKEN.ljust(64, b"\0"), list[bytes]()
    for pad in (0x36, 0x5C):
        blocks.append(bytes(byte ^ pad for byte in key))
    inner = hashlib.sha256(blocks[0] + b"a number").digest()
    assert proof_of(TOKEN, "a number") == hashlib.sha256(blocks[1] + inner).hexdigest()
    assert proof_of(TOKEN, "a number") != proof_of(TOKEN, "another")


def test_a_frame_before_the_handshake_cannot_be_large() -> None:
    frame = encode(Kind.HELLO, bytes=np.zeros((1 << 16) + 1, np.uint8))
    for is_open in (False, True):
        ends = socket.socketpair()
        receiver, sender = map(Connection, ends)
        if is_open:
            receiver.open()
        thread = in_thread(lambda sender=sender: sender.send_bytes(frame))
        if is_open:
            assert receiver.receive().kind == Kind.HELLO
        else:
            with pytest.raises(FrameError, match="more than"):
                receiver.receive()
        receiver.close()
        thread.join(20)
        sender.close()


def command(learner: RemoteCollector, **changes: Any) -> ActorCommand:
    """Return the options of an actor on another machine, which waits 20 s for its learner."""
    address = f"127.0.0.1:{learner.port}"
    return ActorCommand(**{"address": address, "task": "walk", "reconnect_s": 20.0} | changes)


def kill(learner: RemoteCollector) -> None:
    """Close the sockets of a learner as the end of its process does, without a word."""
    close_socket(learner._server)
    for peer in learner._peers.copy():
        peer.connection.close()


def in_thread(work: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        with suppress(OSError, UserError):  # the learner has closed the connection
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
