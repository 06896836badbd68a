"""The learner's side of `actors=`: receives the episodes of actor processes.

An episode is in one of three states:

    received  complete, in memory, not yet in the replay buffer
    stored    in the replay buffer
    saved     in a checkpoint, with its identity; the actor then deletes its copy

An actor keeps its episodes until they are saved, and sends them again after a lost connection. The
learner ignores an episode whose identity it knows. No episode is therefore lost once its actor has
deleted it, and none counts twice, whichever process is killed.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors.numpy import save as save_tensors
from torch import Tensor

from envs import Task
from offline_rl.data.transform import Transform
from offline_rl.online.actors.frames import Frame, FrameError, Kind
from offline_rl.online.actors.processes import start_process
from offline_rl.online.actors.wire import (
    Connection,
    close_socket,
    listen,
    parse_address,
    proof_of,
    read_token,
)
from offline_rl.online.collector import MAX_FAILURES, Collector, RepeatedFailure
from offline_rl.online.sinks import ReplaySink, strip_prefix
from offline_rl.replay.columns import reported
from offline_rl.utils.errors import UserError
from offline_rl.utils.trees import to_json_values
from offline_rl.version import __version__
from policies import channels
from policies.bundle import FORMAT as POLICY_FORMAT

START_S = 180.0  # time limit for the connection of a new actor process
GOODBYE_S = 2.0  # time that actors on other machines have to end with the run
CHECK_S = 0.1  # time between two checks of the actors
IDS = "buffer/actors/"  # prefix of the names of the episodes' arrays in a checkpoint
NUMBERS = 1 << 20  # identity = random number of the learner process * NUMBERS + number


@dataclass(frozen=True)
class ActorOptions:
    """Settings of the actor processes of a run."""

    count: int  # processes that this learner starts
    address: str = "127.0.0.1:0"  # where actors connect; port 0: a free one
    token_file: str | None = None  # file with the secret token of learner and actors
    env_timeout_s: float = 60.0  # an environment that makes no progress for this time is restarted


class Episode(NamedTuple):
    """A complete episode, as received."""

    id: int
    version: int  # number of updates of the policy that collected it
    fields: Mapping[str, Any]
    rows: dict[str, np.ndarray]  # columns of the replay buffer, [T, …], flat


@dataclass(eq=False)
class Peer:
    """A connected actor."""

    connection: Connection
    name: str  # for messages
    slot: int | None  # index of its process; None if this learner did not start it
    version: int  # version of its policy
    busy_since: float | None = None  # time of the last frame; None between episodes


@dataclass
class Slot:
    """An actor process that this learner keeps running."""

    process: Any = None  # subprocess.Popen, or an object with pid, poll and kill
    started_s: float = 0.0
    state: Literal["starting", "ready", "lost"] = "starting"
    failures: int = 0  # number of failures since its last complete episode
    reason: str = ""  # reason of the last failure, if the actor reported one


@dataclass
class Ledger:
    """Identities of episodes, by state."""

    versions: dict[int, int] = field(default_factory=dict)  # stored: id -> policy version
    received: set[int] = field(default_factory=set)
    saved: set[int] = field(default_factory=set)
    owners: dict[int, Peer] = field(default_factory=dict)  # not saved: id -> last sender

    def knows(self, episode: int) -> bool:
        """Return True if the episode has arrived before."""
        return episode in self.versions or episode in self.received


class RemoteCollector(Collector):
    """A collector whose environments run in actor processes. It trains one seed.

    The trainer requests one environment step at a time, as from a `Collector`. A complete episode
    is stored and then counted step by step, so the schedule of updates and evaluations is the same.
    The last episode is cut at the number of environment steps of the run.
    """

    sink: ReplaySink

    def __init__(
        self,
        sink: ReplaySink,
        task: Task,
        transform: Transform,
        method: tuple[str, Mapping[str, Any]],
        options: ActorOptions,
        *,
        longest: int,
        say: Callable[[str], None] = print,
        start: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        """Listen for actors. The processes start with the first environment step.

        method: name and hyper-parameters of the algorithm. longest: time limit of an episode in
        steps. start: function that starts an actor with given options; default: a process. Raises
        UserError if the address is not available or the token cannot be used.
        """
        engine = sink.engine
        if len(engine.seeds) != 1:
            raise ValueError(f"actors collect for one seed, not for {len(engine.seeds)}.")
        sink.check(longest)
        self.engine, self.sink, self.say, self.options = engine, sink, say, options
        self.steps, self._credit = 0, 0  # counted steps; steps that are stored but not counted yet
        self.should_stop = lambda: False
        self.broken = set[int]()
        self.finished, self.success, self.costs = [[]], [[]], [[]]
        self._task, self._transform, self._longest = task, transform, longest
        self._method, self._start_actor = method, start or start_process
        self._run = secrets.token_hex(8)  # identity of the run
        self._generation = secrets.randbits(40)
        self._granted = 0  # number of the next episode
        self._ages, self._arrivals = list[int](), list[tuple[float, int]]()
        self._token = read_token(options.token_file)
        self._state = threading.Condition()  # guards everything below
        self._ledger, self._queue = Ledger(), deque[Episode]()
        self._peers = list[Peer]()
        self._slots = [Slot() for _ in range(options.count)]
        self._policy: tuple[int, bytes] | None = None  # version and parameters
        self._failure: RepeatedFailure | None = None
        self._closed = self._started = False
        self._server = listen(options.address)
        self.port: int = self._server.getsockname()[1]
        self._threads = [
            threading.Thread(target=f, daemon=True) for f in (self._listen, self._watch)
        ]
        self._threads[0].start()

    @property
    def steps_per_decision(self) -> int:
        """Environment steps that `end` counts."""
        return 1

    def begin(self) -> None:
        """Publish the policy before the steps of an episode; start the actors at the first call."""
        if not self._credit or self._policy is None:
            self._publish()
        if not self._started:
            self._started = True
            self._threads[1].start()

    def end(self, *, adds: bool = True) -> None:
        """Count a stored environment step. If all are counted, store the next episode first.

        Counts nothing if a stop is requested during the wait. Raises RepeatedFailure.
        """
        if not self._credit:
            episode = self._next_episode()
            if episode is None:
                return
            self._store(episode)
        self._credit -= 1
        self.steps += 1

    def can_sample(self, batch_size: int) -> bool:
        """Return True if updates can start: after `batch_size` steps."""
        return self.steps >= batch_size and min(self.buffer.sizes) > 0

    def metrics(self) -> dict[str, float]:
        """Return the mean policy age and the environment steps per second since the last call."""
        values = dict[str, float]()
        if self._ages:
            values["data/policy_age"] = float(np.mean(self._ages))
            self._ages = []
        with self._state:
            arrivals = self._arrivals
            self._arrivals = arrivals[-1:]
        if len(arrivals) > 1:
            seconds, rows = arrivals[-1][0] - arrivals[0][0], sum(n for _, n in arrivals[1:])
            values["data/env_steps_per_second"] = rows / max(seconds, 1e-9)
        return values

    def saved(self) -> None:
        """Tell the actors which of their episodes are in the checkpoint that was just written."""
        with self._state:
            new = self._ledger.versions.keys() - self._ledger.saved
            self._ledger.saved |= new
            for episode in sorted(new):
                if (peer := self._ledger.owners.pop(episode, None)) is not None:
                    self._send(peer, Kind.STORED, {"episodes": [episode]})

    def state(self, s: int) -> dict[str, Any]:
        """Return the counts for a checkpoint."""
        with self._state:
            counts = {"steps": self.steps, "episodes": self._granted, "credit": self._credit}
        return counts | {"run": self._run, "port": self.port}

    def tensors(self, s: int) -> dict[str, Tensor]:
        """Return the replay buffer, and the identities of its episodes, for a checkpoint."""
        versions = self._ledger.versions
        arrays = {"ids": [*versions], "versions": [*versions.values()]}
        stored = {f"{IDS}{k}": torch.tensor(v, dtype=torch.int64) for k, v in arrays.items()}
        return self.sink.tensors(s) | stored

    def restore(
        self, states: Sequence[Mapping[str, Any]], tensors: Sequence[Mapping[str, Tensor]]
    ) -> None:
        """Restore counts, replay buffer and identities.

        Raises UserError if the run was started without actors.
        """
        state, stored = states[0], strip_prefix(IDS, tensors[0])
        if "credit" not in state:
            raise UserError(
                "the run was started with actors=0, and its current episode cannot continue in "
                "another process. Continue with actors=0, or give the new run another name=…"
            )
        self.steps, self._credit, self._run = state["steps"], state["credit"], state["run"]
        self._granted = state["episodes"]
        ids, versions = stored["ids"].tolist(), stored["versions"].tolist()
        self._ledger.versions = dict(zip(ids, versions, strict=True))
        self._ledger.saved = set(ids)
        self.sink.load(0, {k: v for k, v in tensors[0].items() if not k.startswith(IDS)})

    def close(self) -> None:
        """Stop the actors and close the socket.

        Actors on other machines end if the run is complete; otherwise they wait for the learner.
        """
        is_complete = self.steps >= self.buffer.capacity
        with self._state:
            self._closed = True
            for peer in self._peers if is_complete else ():
                self._send(peer, Kind.STOP)
            self._state.notify_all()
        close_socket(self._server)
        self._disconnect(GOODBYE_S if is_complete else 0.0)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for slot in self._slots:
            if slot.process is not None:
                slot.process.kill()
                slot.process.wait()

    def _disconnect(self, grace_s: float) -> None:
        """Wait until actors on other machines have read the stop message, then disconnect all."""
        deadline = time.monotonic() + grace_s
        with self._state:
            while any(peer.slot is None for peer in self._peers) and time.monotonic() < deadline:
                self._state.wait(CHECK_S)
            for peer in self._peers:
                peer.connection.close()

    # called by the training thread

    def _publish(self) -> None:
        """Set the current parameters as the policy of all episodes that start later."""
        version = self.engine.updates
        if self._policy is not None and self._policy[0] == version:
            return
        params = self.engine.algorithm.exploring_params(self.engine.state["params"])
        arrays = {k: np.ascontiguousarray(v[0].detach().cpu().numpy()) for k, v in params.items()}
        with self._state:
            self._policy = version, save_tensors(arrays)
            self._state.notify_all()

    def _next_episode(self) -> Episode | None:
        """Return the next received episode; None if a stop is requested first."""
        with self._state:
            while not self._queue:
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
                if self.should_stop():
                    return None
                self._state.wait(CHECK_S)
            episode = self._queue.popleft()
            self._ledger.received.discard(episode.id)
            self._ledger.versions[episode.id] = episode.version
            self._state.notify_all()  # an actor may start its next episode
        return episode

    def _store(self, episode: Episode) -> None:
        """Append an episode to the replay buffer."""
        buffer, rows, fields = self.buffer, dict(episode.rows), episode.fields
        length, room = len(rows["rewards"]), buffer.capacity - self.steps
        if length > room:  # the run ends within this episode, so its return is not recorded
            rows = {name: values[:room] for name, values in rows.items()}
            rows["truncated"][-1] = not rows["terminated"][-1]
        else:
            self.finished[0].append(fields["return"])
            self.success[0] += [] if fields["success"] is None else [fields["success"]]
            self.costs[0] += [] if fields["cost"] is None else [fields["cost"]]
        self.broken |= {0} if fields["broken"] else set()
        count = min(length, room)
        buffer.append(0, rows)
        if buffer.waits_for_episode_end:
            buffer.release(0, self.sink.columns(buffer.newest(0, count)))
        self._credit = count
        self._ages.append(self.engine.updates - episode.version)

    # threads of the connections

    def _listen(self) -> None:
        """Accept connections, each in a thread of its own."""
        while not self._closed:
            try:
                channel, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(Connection(channel),), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        """Answer the frames of one actor until the connection ends."""
        peer = None
        try:
            peer = self._welcome(connection)
            while True:
                frame = connection.receive()
                if not self._closed:  # else the learner is about to end
                    self._handle_frame(peer, frame)
        except UserError as error:  # raised by the actor, or about its frames
            is_frame = isinstance(error, FrameError)
            text = f"a frame was refused, because {error}" if is_frame else str(error)
            self._report(peer, text)
            with suppress(OSError):
                connection.send(Kind.ERROR, {"error": text})
        except OSError:  # the actor has ended, or was killed
            pass
        finally:
            connection.close()
            with self._state:
                if peer in self._peers:
                    self._peers.remove(peer)
                    self._state.notify_all()
                    if peer is not None and peer.slot is not None:
                        self._slots[peer.slot].state = "lost"

    def _welcome(self, connection: Connection) -> Peer:
        """Check a new actor and send it the settings. Raises UserError if it is refused."""
        nonce = secrets.token_hex(16)
        connection.send(Kind.CHALLENGE, {"nonce": nonce, "needs_token": bool(self._token)})
        hello = connection.expect(Kind.HELLO).fields
        if problem := self._refusal_reason(hello, nonce):
            raise UserError(problem)
        slot = hello["slot"] if isinstance(hello.get("slot"), int) else None
        slot = slot if slot is not None and 0 <= slot < len(self._slots) else None
        name = f"actor {slot}" if slot is not None else f"actor {hello.get('name', '')}".strip()
        with self._state:
            while self._policy is None and not self._closed:
                self._state.wait()
            if self._closed or self._policy is None:
                raise ConnectionError("the run has ended")
            version, policy = self._policy
            peer = Peer(connection, name, slot, version)
            self._peers.append(peer)
        connection.open()
        connection.send(Kind.WELCOME, self._settings(), policy=to_array(policy))
        return peer

    def _refusal_reason(self, hello: Mapping[str, Any], nonce: str) -> str | None:
        """Return the reason to refuse an actor; None if it is accepted."""
        if self._token and not secrets.compare_digest(
            str(hello.get("proof")), proof_of(self._token, nonce)
        ):
            return "its token differs from the learner's. Use the same token_file= for both."
        if hello.get("version") != __version__:
            return (
                f"it runs offline_rl {hello.get('version')}, but the learner runs {__version__}. "
                "Install the same version."
            )
        if hello.get("policy_format") != POLICY_FORMAT:
            return (
                f"it reads policies of format {hello.get('policy_format')}, but the learner writes "
                f"format {POLICY_FORMAT}. Install the same version."
            )
        expected = task_fields(self._task)
        if hello.get("task") != expected:
            return (
                f"it runs the task {describe(hello.get('task'))}, but the learner trains on "
                f"{describe(expected)}. Start it with the learner's task."
            )
        if hello.get("run") not in (None, self._run):
            return "it holds episodes of another run. Restart it."
        return None

    def _settings(self) -> dict[str, Any]:
        """Return the settings from which an actor builds the learner's exploring policy."""
        name, hyper = self._method
        algorithm, online = self.engine.algorithm, self.sink.online
        values = {
            "algorithm": name,
            "hyper": dict(hyper),
            "online": asdict(online),
            "spec": algorithm.spec.to_json(),
            "transform": self._transform.to_json(),
            "columns": [*reported(self.buffer.columns)],
            "seed": self.engine.seeds[0],
            "run": self._run,
            "alive_s": min(1.0, self.options.env_timeout_s / 4),
        }
        converted: dict[str, Any] = to_json_values(values)
        return converted

    def _handle_frame(self, peer: Peer, frame: Frame) -> None:
        """Handle a frame of an actor. Raises FrameError if the frame is invalid."""
        if frame.kind == Kind.REQUEST:
            self._grant(peer)
        elif frame.kind == Kind.EPISODE:
            self._queue_episode(peer, self._episode(frame))
        elif frame.kind == Kind.ALIVE:
            if note := frame.fields.get("note"):
                self.say(f"{peer.name}: {note}")
            self._record_progress(peer)
        elif frame.kind == Kind.ERROR:
            self._report(peer, str(frame.fields.get("error")))
            raise ConnectionError
        else:
            raise FrameError(f"actors do not send frames of kind {frame.kind.name}")

    def _record_progress(self, peer: Peer) -> None:
        with self._state:
            if peer.busy_since is not None:
                peer.busy_since = time.monotonic()

    def _grant(self, peer: Peer) -> None:
        """Let an actor start an episode. Waits while the queue has more episodes than actors."""
        with self._state:
            peer.busy_since = None
            if peer.slot is not None:
                self._slots[peer.slot].state = "ready"
            while len(self._queue) > len(self._peers) and not self._closed:
                self._state.wait()
            if self._closed:
                return
            assert self._policy is not None
            version, policy = self._policy
            ahead = self.steps + self._credit + sum(len(e.rows["rewards"]) for e in self._queue)
            fields = {
                "episode": self._generation * NUMBERS + self._granted,
                "number": self._granted,
                "version": version,
                "warmup": ahead < self.sink.online.warmup_steps,
            }
            self._granted += 1
            is_new, peer.version = peer.version != version, version
            peer.busy_since = time.monotonic()
        arrays = {"policy": to_array(policy)} if is_new else {}
        peer.connection.send(Kind.GRANT, fields, **arrays)

    def _queue_episode(self, peer: Peer, episode: Episode) -> None:
        """Queue an episode, unless it is known already."""
        self._record_progress(peer)
        with self._state:
            if peer.slot is not None:
                self._slots[peer.slot].failures = 0
            if episode.id in self._ledger.saved:
                self._send(peer, Kind.STORED, {"episodes": [episode.id]})
                return
            self._ledger.owners[episode.id] = peer
            if self._ledger.knows(episode.id):
                return
            self._granted = max(self._granted, episode.id % NUMBERS + 1)  # of an earlier process
            self._ledger.received.add(episode.id)
            self._queue.append(episode)
            self._arrivals.append((time.monotonic(), len(episode.rows["rewards"])))
            self._state.notify_all()

    def _episode(self, frame: Frame) -> Episode:
        """Return the episode in a frame. Raises FrameError if it does not fit the buffer."""
        fields, rows = frame.fields, dict(frame.arrays)
        expected, found = self._schema(), {k: (v.dtype.name, v.shape[1:]) for k, v in rows.items()}
        if found != expected:
            names = sorted(k for k in expected | found if expected.get(k) != found.get(k))
            raise FrameError(f"its episode has another layout than the task's ({names[0]})")
        lengths = {len(values) for values in rows.values()}
        if len(lengths) > 1 or not 1 <= min(lengths) <= self._longest:
            raise FrameError(f"its episode has {sorted(lengths)} steps")
        if not all(np.isfinite(values).all() for values in rows.values()):
            raise FrameError("its episode contains NaN or infinite numbers")
        ends = rows["terminated"] | rows["truncated"]
        if not ends[-1] or ends[:-1].any() or (rows["terminated"] & rows["truncated"]).any():
            raise FrameError("its episode does not end at its last step")
        types = {"episode": int, "version": int, "return": float, "broken": bool}
        if any(type(fields.get(name)) is not kind for name, kind in types.items()) or not {
            "success",
            "cost",
        } <= {*fields}:
            raise FrameError("its episode has no identity, version or return")
        return Episode(fields["episode"], fields["version"], fields, rows)

    def _schema(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the dtype and the shape of a row of each column of an episode."""
        spec, columns = self.engine.algorithm.spec, self.buffer.columns
        shapes = channels.flatten({"observations": spec.observation_shapes})
        schema = {
            f"{prefix}{name}": (np.dtype(channels.dtype(shape)).name, tuple(shape))
            for prefix in ("", "next_")
            for name, shape in shapes.items()
        }
        schema |= {"actions": ("float32", (spec.action_dim,)), "rewards": ("float32", ())}
        schema |= dict.fromkeys(("terminated", "truncated"), ("bool", ()))
        return schema | {name: ("float32", tuple(columns[name])) for name in reported(columns)}

    def _send(self, peer: Peer, kind: Kind, fields: Mapping[str, Any] | None = None) -> None:
        """Send a short frame. Errors are ignored, because the actor has then ended."""
        with suppress(OSError):
            peer.connection.send(kind, fields)

    def _report(self, peer: Peer | None, text: str) -> None:
        """Print why a connection ends. If this learner restarts the actor, `_restart` prints it."""
        if peer is None or peer.slot is None:
            self.say(f"an actor was refused: {text}" if peer is None else f"{peer.name}: {text}")
            return
        with self._state:
            self._slots[peer.slot].reason = text

    # thread that monitors the processes

    def _watch(self) -> None:
        """Start the actors. Restart an actor if its process has ended or its environment hangs."""
        while not self._closed:
            try:
                for k, slot in enumerate(self._slots):
                    if (problem := self._restart_reason(k, slot)) is not None:
                        self._restart(k, slot, problem)
            except OSError as error:  # no process can be started
                with self._state:
                    self._failure = RepeatedFailure(f"an actor cannot be started: {error}")
                return
            self._drop_silent_peers()
            time.sleep(CHECK_S)

    def _restart_reason(self, k: int, slot: Slot) -> str | None:
        """Return the reason to start an actor: "" for the first start; None if it runs."""
        if slot.process is None:
            return "" if self._failure is None else None
        if (code := slot.process.poll()) is not None:
            return slot.reason or f"its process ended with exit code {code}"
        with self._state:
            waits = slot.state == "starting" and time.monotonic() - slot.started_s > START_S
            hangs = any(self._is_silent(peer) for peer in self._peers if peer.slot == k)
        if hangs:
            return f"its environment made no progress for {self.options.env_timeout_s:g} s"
        if slot.state == "lost":
            return slot.reason or "its connection was lost"
        return f"it was not ready within {START_S:g} s" if waits else None

    def _is_silent(self, peer: Peer) -> bool:
        since = peer.busy_since
        return since is not None and time.monotonic() - since > self.options.env_timeout_s

    def _restart(self, k: int, slot: Slot, problem: str) -> None:
        """Kill an actor that has a problem. Start a new one unless it has failed too often."""
        if slot.process is not None:
            slot.process.kill()
            slot.process.wait()
            slot.process = None
            with self._state:
                for peer in [peer for peer in self._peers if peer.slot == k]:
                    peer.connection.close()
                    self._peers.remove(peer)
                slot.failures, slot.state, slot.reason = slot.failures + 1, "starting", ""
                if self._closed:
                    return
                if slot.failures >= MAX_FAILURES:
                    self._failure = RepeatedFailure(
                        f"actor {k} failed for the {MAX_FAILURES}th time in a row ({problem}). "
                        "Correct the environment, then repeat the command."
                    )
                    self._state.notify_all()
                    return
            self.say(f"actor {k}: {problem}; dropped its episode and restarted it")
        host, _ = parse_address(self.options.address)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        options: dict[str, Any] = {
            "address": f"{host}:{self.port}",
            "token_file": self.options.token_file,
        }
        options |= {"slot": k, "task": self._task.name, **task_options(self._task)}
        slot.process, slot.started_s = self._start_actor(options), time.monotonic()

    def _drop_silent_peers(self) -> None:
        """Close the connections to actors on other machines whose environment hangs."""
        with self._state:
            silent = [p for p in self._peers if p.slot is None and self._is_silent(p)]
        for peer in silent:
            self.say(
                f"{peer.name}: no progress for {self.options.env_timeout_s:g} s; disconnected it"
            )
            peer.connection.close()


def task_options(task: Task) -> dict[str, Any]:
    """Return the options that define a task, without its name."""
    return {
        "max_episode_steps": task.max_episode_steps,
        "observation_keys": list(task.observation_keys),
        "success_timing": task.success_timing,
    }


def task_fields(task: Task) -> dict[str, Any]:
    """Return name and options of a task, which must be equal in actor and learner."""
    return {"name": task.name, **task_options(task)}


def describe(task: Any) -> str:
    """Return name and options of a task as text."""
    if not isinstance(task, dict):
        return repr(task)
    others = [f"{k}={v}" for k, v in task.items() if k != "name" and v]
    return " ".join([str(task.get("name")), *others])


def to_array(content: bytes) -> np.ndarray:
    """Return bytes as an array for a frame."""
    return np.frombuffer(content, np.uint8)
