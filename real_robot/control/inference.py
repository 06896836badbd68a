"""The inference process: `python -m real_robot.control.inference <session folder>`.

Observes the newest row, asks the policy, sends the chunk with the observation's stamp. It has the
cores that control does not use, and nobody waits for it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from offline_rl.utils.errors import UserError
from policies import BundleError, Spec, channels, load
from policies.player import queue
from policies.policy import refuse_rewards
from real_robot.control.observing import goals, observer, sees_channels
from real_robot.control.rings import Reader, Ring, Words
from real_robot.control.session import (
    LACKS,
    Session,
    chunk_type,
    main_folder,
    pin,
    told_as_error,
)
from real_robot.robot import Code, RobotSpec
from real_robot.safety.states import State

WARM_UP = 20  # calls before the first that counts
POLL_S = 0.0005
ASK_AGAIN = 0.5  # of a chunk, after which the next is asked for
USED = frozenset({State.RUNNING, State.SOFT_STOP})


class Acts(Protocol):
    """What a policy must have: `policies.Policy`."""

    spec: Spec

    def act(self, observation: Any, state: Any = None) -> Any: ...


class Inference:
    """One policy on one robot; `look` is called over and over.

    It sees an observation of every period of the policy's, and asks for a chunk when as many
    actions as it was trained to execute are taken, or half of those that it answers with.
    """

    def __init__(
        self,
        policy: Acts,
        robot: RobotSpec,
        ticks: Ring,
        chunks: Ring,
        words: Words,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Raises UserError where policy and robot do not fit."""
        try:
            refuse_rewards(policy, "a robot")
        except BundleError as error:
            raise UserError(str(error)) from None
        spec = policy.spec
        self.policy, self._chunks, self._words, self._now_ns = policy, chunks, words, now_ns
        self._observe, self._goals = observer(spec, robot), goals(spec, robot)
        draws = getattr(policy, "noise_shape", ())
        made: Any = policy
        kept = spec.n_obs_steps > 1 or draws or spec.temporal_ensemble_coeff is not None
        self._queue = queue(made) if kept else None
        self._sees_channels = sees_channels(spec, robot)
        self._rows = Reader(ticks)
        self._steps = max(1, min(spec.n_action_steps, int(spec.chunk_size * ASK_AGAIN)))
        self._period_ns = round(1 / (spec.rate_hz or 1.0) * 1e9)
        self._next_ns, self._episode, self._seen = 0, -1, 0
        self._state: Any = None
        self.seq = 0
        self.lacks = ""  # the first measurement that the newest observation had no number for

    def warmup_steps(self) -> None:
        """Lets the runtime allocate and choose; what it answers is not used."""
        seen = self.policy.spec.channels
        blank = {channel.name: np.zeros(channel.shape, channel.dtype) for channel in seen}
        lone = self.policy.spec.lone
        for _ in range(WARM_UP):
            self.policy.act(blank if lone is None else blank[lone.name])

    def look(self, now_ns: int) -> bool:
        """Asks the policy where it is time; whether it did."""
        if not self._rows.newest():
            return False
        row = self._rows.record
        state = State(int(row["state"]))
        wanted = state in USED or (state is State.HOLD and self._words["starting"])
        if not wanted or now_ns < self._next_ns or int(row["code"]) != Code.OK:
            return False
        observation = self._observe(row)
        self.lacks = self._lacking(observation)
        if self.lacks:
            return False  # control says so once its plan has run out
        if int(row["episode"]) != self._episode:
            self._episode, self._state, self._seen = int(row["episode"]), None, 0
            if self._queue is not None:
                self._queue.reset(np.array([self._episode]))
        observed_ns = int(row["measured_ns"])
        if self._sees_channels:
            observed_ns = min(observed_ns, int(row["channels_ns"]))
        late = now_ns - self._next_ns > self._period_ns
        self._next_ns = (now_ns if late else self._next_ns) + self._period_ns
        if self._queue is not None:
            self._queue.see(channels.each(lambda x: x[None], observation))
        self._seen += 1
        if (self._seen - 1) % self._steps:
            return False
        begun_ns = self._words["asked_ns"] = self._now_ns()
        if self._queue is not None:
            chunk = self._queue.decide(np.array([0]))[0]
        else:
            chunk, self._state = self.policy.act(observation, self._state)
        self._words["asked_ns"], self._words["took_ns"] = 0, self._now_ns() - begun_ns
        record = self._chunks.record
        record["seq"], record["observed_ns"] = self.seq, observed_ns
        record["actions"] = self._goals(np.asarray(chunk))
        record["answered_ns"] = self._now_ns()
        self._chunks.push()
        self.seq += 1
        return True

    def _lacking(self, observation: Any) -> str:
        """The name of the first measurement that is no number; empty if there is none."""
        spec = self.policy.spec
        for channel in spec.channels:
            part = observation if spec.lone is not None else observation[channel.name]
            missing = ~np.isfinite(part).reshape(-1)
            if missing.any():
                return channel.names[int(missing.argmax())] if channel.names else channel.name
        return ""

    def leaves_ns(self, offset: float | None) -> int:
        """Time that a plan leaves the next answer, from its observation on. offset: of `Timing`."""
        chunk_size = self.policy.spec.chunk_size
        steps = 1.0 if offset is None and chunk_size == 1 else offset or 0.0
        return round((chunk_size + steps - self._steps) * self._period_ns)


def infer(session: Session) -> None:
    """Until everyone is told to end. Raises UserError."""
    pin(last_core=False)
    assert session.bundle is not None
    words = Words(session.path / "words")
    try:
        policy = load(session.bundle, runtime=session.runtime)
    except BundleError as error:
        raise UserError(str(error)) from None
    spec = session.make_robot().spec
    chunks = Ring.create(
        session.path / "chunks", chunk_type(policy.spec.chunk_size, len(spec.joints)), 16
    )
    while not words["control_beat"]:
        if session.ended(words):
            return
        time.sleep(0.005)
    inference = Inference(policy, spec, Ring.open(session.path / "ticks"), chunks, words)
    inference.warmup_steps()
    words["leaves_ns"], lacks = inference.leaves_ns(session.offset), ""
    while not session.ended(words):
        words["inference_beat"] += 1
        if inference.lacks != lacks:
            lacks = inference.lacks
            (session.path / LACKS).write_text(lacks)
        if not inference.look(time.monotonic_ns()):
            time.sleep(POLL_S)


def main(arguments: list[str]) -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    session = main_folder(arguments)
    with told_as_error(session, "inference"):
        infer(session)


if __name__ == "__main__":
    main(sys.argv)
