"""An actor: a process that collects episodes for a learner with `actors=`.

A learner starts its own actors. On another machine, start one with

    python -m offline_rl.online.actors address=<host>:<port> token_file=<file> task=<task>

An actor acts with the learner's exploring policy, which it receives between episodes. It keeps
complete episodes until the learner has saved them in a checkpoint. If the connection is lost, an
actor on another machine tries to reconnect for up to `reconnect_s` seconds, and sends the episodes
again.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.numpy import load as load_tensors

import envs
from envs import Task, VectorEnv
from offline_rl.algorithms.common.registry import algorithm_names, rebuild_algorithm
from offline_rl.data.transform import Transform
from offline_rl.engine.acting import StackedPolicy
from offline_rl.online.actors.frames import Frame, FrameError, Kind, encode
from offline_rl.online.actors.learner import task_fields
from offline_rl.online.actors.wire import Connection, parse_address, proof_of, read_token
from offline_rl.online.collector import Collector
from offline_rl.online.episodes import Episodes
from offline_rl.online.sinks import ReplaySink
from offline_rl.utils.errors import UserError, close_quietly
from offline_rl.utils.options import (
    Checked,
    Count,
    NonNegative,
    build,
    describe_options,
    format_value,
    parse_options,
)
from offline_rl.version import __version__
from policies import Spec, channels
from policies.bundle import FORMAT as POLICY_FORMAT
from policies.networks.defaults import torch_defaults

T = TypeVar("T")
ALWAYS = 1 << 62  # number of environment steps of an endless warm-up
MAX_STEP = 1 << 31  # upper bound of the step that random numbers depend on
RETRY_S = 0.5  # time between two attempts to connect


@dataclass(frozen=True, kw_only=True)
class ActorCommand(Checked):
    """Options of `python -m offline_rl.online.actors`."""

    address: str  # the learner's actor_address, <host>:<port>
    task: str  # the learner's task
    token_file: str | None = None  # file with the learner's token
    max_episode_steps: Count | None = None  # time limit of env:…, as in the learner's command
    observation_keys: list[str] | None = None  # as in the learner's command
    success_timing: str | None = None  # as in the learner's command
    reconnect_s: NonNegative = 600.0  # how long to try to reconnect after a lost connection
    slot: int | None = None  # for internal use: set by the learner that starts the actor


class Stopped(Exception):
    """The learner has ended its run."""


class Link:
    """An actor's side of the connection. It keeps episodes until the learner has saved them."""

    def __init__(self, command: ActorCommand, task: Task) -> None:
        self.command, self.task = command, task
        self.held = dict[int, bytes]()  # frames of episodes by identity
        self.run: str | None = None
        self._token = read_token(command.token_file)
        self._connection: Connection | None = None
        self._alive_s, self._last_s = 1.0, 0.0
        self._welcome: Frame | None = None  # newest settings of the learner

    def start(self) -> Frame:
        """Connect, and return the learner's settings. Raises UserError if it refuses the actor."""
        self._with_reconnects(lambda _: None)
        assert self._welcome is not None
        return self._welcome

    def _connect(self) -> Connection:
        """Return a new connection, after sending the kept episodes again."""
        host, port = parse_address(self.command.address)
        connection = Connection(socket.create_connection((host, port), timeout=20))
        try:
            challenge = connection.expect(Kind.CHALLENGE).fields
            if challenge.get("needs_token") and not self._token:
                raise UserError("the learner needs a token. Set token_file=.")
            hello = {
                "version": __version__,
                "policy_format": POLICY_FORMAT,
                "task": task_fields(self.task),
                "proof": proof_of(self._token, str(challenge.get("nonce"))),
                "run": self.run,
                "slot": self.command.slot,
                "name": f"{socket.gethostname()}:{os.getpid()}",
            }
            connection.send(Kind.HELLO, hello)
            connection.open()
            try:
                welcome = connection.expect(Kind.WELCOME)
            except FrameError:
                raise
            except UserError as error:
                raise UserError(f"the learner refused this actor: {error}") from None
        except BaseException:
            connection.close()
            raise
        self._welcome, self.run = welcome, welcome.fields["run"]
        self._alive_s = float(welcome.fields["alive_s"])
        for frame in self.held.values():
            connection.send_bytes(frame)
        return connection

    def request(self) -> Frame:
        """Return the learner's permission to start an episode (GRANT)."""

        def ask(connection: Connection) -> Frame:
            connection.send(Kind.REQUEST)
            while (frame := connection.receive()).kind != Kind.GRANT:
                self._handle_frame(frame)
            return frame

        return self._with_reconnects(ask)

    def deliver(self, episode: int, frame: bytes) -> None:
        """Send an episode, and keep it until the learner has saved it."""
        self.held[episode] = frame
        if self._connection is None:
            return
        try:
            self._connection.send_bytes(frame)
        except OSError:  # it is sent again on the next connection
            self._drop_connection()

    def alive(self, note: str = "") -> None:
        """Report the environment's progress to the learner, at most once per `alive_s`.

        Also reads the learner's frames. Raises Stopped if the run has ended.
        """
        now = time.monotonic()
        if self._connection is None:
            return
        try:
            while self._connection.has_frame():
                self._handle_frame(self._connection.receive())
            if note or now - self._last_s >= self._alive_s:
                self._last_s = now
                self._connection.send(Kind.ALIVE, {"note": note})
        except (OSError, FrameError):
            self._drop_connection()

    def fail(self, error: Exception) -> None:
        """Report to the learner why the actor ends."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.send(Kind.ERROR, {"error": str(error)})

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def _handle_frame(self, frame: Frame) -> None:
        """Handle a frame that the learner may send at any time."""
        if frame.kind == Kind.STORED:
            for episode in frame.fields["episodes"]:
                self.held.pop(episode, None)
        elif frame.kind == Kind.STOP:
            raise Stopped
        elif frame.kind == Kind.ERROR:
            raise UserError(frame.fields.get("error", "unknown error"))

    def _drop_connection(self) -> None:
        """Close a lost connection. Raises Stopped if this actor must end with its learner."""
        self.close()
        self._connection = None
        if not self.command.reconnect_s:
            raise Stopped

    def _with_reconnects(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`. Reconnects and repeats it if the connection is lost."""
        deadline: float | None = None
        while True:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                return work(self._connection)
            except (OSError, FrameError):
                self._drop_connection()
                deadline = deadline or time.monotonic() + self.command.reconnect_s
                if time.monotonic() > deadline:
                    raise UserError(
                        f"address={self.command.address}: no learner answered for "
                        f"{self.command.reconnect_s:g} s. Start the actor when it runs."
                    ) from None
                time.sleep(RETRY_S)


class ActorEngine:
    """The parts of an `Engine` that a sink needs: seed, device and the exploring policy."""

    def __init__(self, settings: Mapping[str, Any], policy: np.ndarray) -> None:
        """Build the networks of the learner's algorithm, with the parameters in `policy`."""
        self.seeds, self.device = [int(settings["seed"])], torch.device("cpu")
        spec = Spec.from_json(settings["spec"])
        self.algorithm = rebuild_algorithm(settings["algorithm"], settings["hyper"], spec)
        self.online = build(type(self.algorithm).Online, settings["online"], "online.")
        stored = load_tensors(policy.tobytes())
        self._params = {name: torch.from_numpy(x.copy())[None] for name, x in stored.items()}

    def stacked_policy(self, batch: int, *, explore: bool) -> StackedPolicy:
        """Return the policy. `load` changes its parameters in place."""
        return StackedPolicy(
            self.algorithm.exploring_head(),
            self._params,
            torch.tensor(self.seeds),
            self.algorithm.spec.observation_shapes,
            batch,
            explore=explore,
            device=self.device,
        )

    def load(self, policy: np.ndarray) -> None:
        """Replace the parameters with those in `policy`, the bytes of a safetensors file."""
        for name, values in load_tensors(policy.tobytes()).items():
            self._params[name][0].copy_(torch.from_numpy(values))


class Outbox:
    """Substitute for a replay buffer that has only the columns of the learner's buffer."""

    waits_for_episode_end = False  # the learner computes the columns of complete episodes

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = dict.fromkeys(columns, ())


class ActorSink(ReplaySink):
    """Sink that sends complete episodes to the learner. The policy is fixed during an episode."""

    engine: Any  # an `ActorEngine`

    def __init__(self, engine: Any, outbox: Any, link: Link) -> None:
        """Create a sink. engine: an `ActorEngine`. outbox: an `Outbox`."""
        super().__init__(engine, outbox, engine.online, lambda _: {})
        self.appends_steps, self.link = False, link
        self.diverged = False  # True once the policy returned NaN or infinity
        self._grant: Mapping[str, Any] = {}

    def next_number(self, started: int) -> int:
        """Return the number of the next episode, and load the learner's newest policy."""
        grant = self.link.request()
        if "policy" in grant.arrays:
            self.engine.load(grant.arrays["policy"])
        self._grant = grant.fields
        self.online = replace(self.online, warmup_steps=ALWAYS if self._grant["warmup"] else 0)
        return int(self._grant["number"])

    def decide(self, episodes: Episodes, env_steps: int) -> np.ndarray:
        """Return the actions. Exploration depends on the seed, the episode and the step in it."""
        longest = episodes.rewards.shape[1]
        step = int(episodes.numbers[0]) * longest + int(episodes.lengths[0])
        return super().decide(episodes, step % MAX_STEP)

    def end_episode(self, episodes: Episodes, row: int) -> None:
        """Send a complete episode."""
        rows = channels.flatten(episodes.transitions(row, np.arange(episodes.lengths[row])))
        about = {
            "episode": self._grant["episode"],
            "version": self._grant["version"],
            "return": float(episodes.returns[row]),
            "success": bool(episodes.succeeded[row]) if episodes.succeeded[row] >= 0 else None,
            "cost": float(episodes.costs[row]) if episodes.reports_costs else None,
            "broken": self.diverged,
        }
        self.link.deliver(about["episode"], encode(Kind.EPISODE, about, **rows))


def collector_of(link: Link, task: Task) -> Collector:
    """Return the collector of an actor. It has one environment. Raises UserError."""
    welcome = link.start()
    name = str(welcome.fields["algorithm"])
    if link.command.slot is None and name not in algorithm_names():
        raise UserError(
            f"the learner trains {name}, code of its user. An actor on another machine runs "
            f"built-in algorithms only: {', '.join(algorithm_names())}."
        )
    engine: Any = ActorEngine(welcome.fields, welcome.arrays["policy"])
    sink = ActorSink(engine, Outbox(welcome.fields["columns"]), link)
    transform = Transform.from_json(welcome.fields["transform"])

    def make(count: int) -> VectorEnv:
        return envs.make_vector(task, count)

    return Collector(engine, make, sink, transform, say=link.alive)


def collect(command: ActorCommand) -> None:
    """Collect episodes until the learner ends its run. Raises UserError."""
    try:
        task = envs.task(command.task).with_options(
            command.max_episode_steps, command.observation_keys, command.success_timing
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    link, collector = Link(command, task), None
    try:
        collector = collector_of(link, task)
        while True:
            collector.step()
            collector.sink.diverged = bool(collector.broken)  # type: ignore[attr-defined]
            link.alive()
    except Stopped:
        return
    except Exception as error:
        link.fail(error)
        raise
    finally:
        close_quietly(collector)
        link.close()


def end_with_learner() -> None:
    """Kill this process and its child processes when its standard input closes."""
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)


def usage() -> str:
    """Return the text of `--help`."""
    options = [option for option in describe_options(ActorCommand) if option.name != "slot"]
    keys = (f"{option.name}={format_value(option.default)}" for option in options)
    lines = [f"  {key:20s}{option.meaning}" for key, option in zip(keys, options, strict=True)]
    return "\n".join([(__doc__ or "").strip(), "", *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an actor, and return its exit code: 0, or 2 for a user error."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    is_child = arguments == ["--child"]
    if any(a in ("-h", "--help") for a in arguments):
        print(usage())
        return 0
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        if is_child:
            options = json.loads(sys.stdin.buffer.readline())
            threading.Thread(target=end_with_learner, daemon=True).start()
            command = build(ActorCommand, options | {"reconnect_s": 0.0})
        else:
            command = build(ActorCommand, parse_options(arguments))
        with torch_defaults():
            collect(command)
    except UserError as error:
        if not is_child:  # the learner prints the errors of its own actors
            print(f"actor: {error}", file=sys.stderr)
        return 2
    return 0
