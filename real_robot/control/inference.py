"""The inference process: `python -m real_robot.control.inference <session folder>`.

The process builds an observation from the newest row, calls the policy, and sends the chunk with
the observation's timestamp. It runs on the cores that control does not use. No other process waits
for a chunk.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from offline_rl.utils.errors import UserError
from policies import BundleError, Spec, channels, load
from policies.episodes import RunningEpisodes
from policies.policy import BundlePolicy, refuse_feedback
from policies.stl.backup import BackupEpisodes, BackupPolicy, Switch
from real_robot.control.observing import goals, observer, observes_channels
from real_robot.control.rings import Reader, Ring, SharedValues
from real_robot.control.session import (
    LACKS,
    Session,
    chunk_type,
    load_session,
    pin,
    report_errors,
)
from real_robot.robot import Code, RobotSpec
from real_robot.safety.states import State

WARM_UP = 20  # number of calls of the policy before the run
POLL_S = 0.0005
MAX_EXECUTED = 0.5  # fraction of a chunk after which the next one is computed at the latest
PLANNED = frozenset({State.RUNNING, State.SOFT_STOP})  # states that use a plan


class ActingPolicy(Protocol):
    """Interface that inference needs of a policy. A policy of `policies.load` has it."""

    spec: Spec

    def new_episodes(self) -> RunningEpisodes: ...


class Inference:
    """Inference of one policy on one robot. The process calls `step` in a loop.

    The policy observes one row per policy step. It predicts a new chunk after `n_action_steps`
    steps, or after half a chunk if that is shorter.
    """

    def __init__(
        self,
        policy: ActingPolicy,
        robot: RobotSpec,
        ticks: Ring,
        chunks: Ring,
        shared: SharedValues,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Match policy and robot. Raises UserError if they do not fit."""
        try:
            refuse_feedback(policy, "a robot")
        except BundleError as error:
            raise UserError(str(error)) from None
        spec = policy.spec
        self.policy, self._chunks, self._shared, self._now_ns = policy, chunks, shared, now_ns
        self._observe, self._goals = observer(spec, robot), goals(spec, robot)
        self._episodes = policy.new_episodes()
        self._observes_channels = observes_channels(spec, robot)
        self._rows = Reader(ticks)
        self._steps = max(1, min(spec.n_action_steps, int(spec.chunk_size * MAX_EXECUTED)))
        self._period_ns = round(1 / (spec.rate_hz or 1.0) * 1e9)
        self._next_ns, self._episode, self._num_observed = 0, -1, 0
        self.seq = 0
        # name of the first measurement that is missing in the newest observation; empty: none
        self.lacks = ""

    def warm_up(self) -> None:
        """Call the policy so that the runtime allocates memory and selects its kernels."""
        observed = self.policy.spec.channels
        blank = {channel.name: np.zeros((1, *channel.shape), channel.dtype) for channel in observed}
        single, episodes = self.policy.spec.single_vector, self.policy.new_episodes()
        episodes.reset(np.array([0]))
        for _ in range(WARM_UP):
            episodes.observe(blank if single is None else blank[single.name])
            episodes.predict_chunk()

    def step(self, now_ns: int) -> bool:
        """Call the policy if a chunk is due. Return True if it was called."""
        if not self._rows.newest():
            return False
        row = self._rows.record
        state = State(int(row["state"]))
        needed = state in PLANNED or (state is State.HOLD and self._shared["starting"])
        if not needed or now_ns < self._next_ns or int(row["code"]) != Code.OK:
            return False
        observation = self._observe(row)
        self.lacks = self._lacking(observation)
        if self.lacks:
            return False  # control reports the missing measurement once its plan has run out
        if int(row["episode"]) != self._episode:
            self._episode, self._num_observed = int(row["episode"]), 0
            self._episodes.reset(np.array([self._episode]))
        observed_ns = int(row["measured_ns"])
        if self._observes_channels:
            observed_ns = min(observed_ns, int(row["channels_ns"]))
        late = now_ns - self._next_ns > self._period_ns
        self._next_ns = (now_ns if late else self._next_ns) + self._period_ns
        is_due = self._num_observed % self._steps == 0
        self._num_observed += 1
        start_ns = self._now_ns()
        if is_due:
            self._shared["call_started_ns"] = start_ns
        # this calls the base policy if there is one
        self._episodes.observe(channels.map_channels(lambda x: x[None], observation))
        if not (is_due or self._episodes.interrupted):
            return False
        chunk = self._episodes.predict_chunk()[0]
        self._shared["call_started_ns"], self._shared["call_took_ns"] = 0, self._now_ns() - start_ns
        record = self._chunks.record
        record["seq"], record["observed_ns"] = self.seq, observed_ns
        record["actions"] = self._goals(chunk)
        record["is_backup"], record["margin"] = 0, np.nan
        if isinstance(self._episodes, BackupEpisodes):
            record["is_backup"] = self._episodes.active[0]
            record["margin"] = self._episodes.margins[0]
        record["completed_ns"] = self._now_ns()
        self._chunks.push()
        self.seq += 1
        return True

    def _lacking(self, observation: Any) -> str:
        """Return the name of the first measurement that is not finite; empty: all are finite."""
        spec = self.policy.spec
        for channel in spec.channels:
            part = observation if spec.single_vector is not None else observation[channel.name]
            missing = ~np.isfinite(part).reshape(-1)
            if missing.any():
                return channel.names[int(missing.argmax())] if channel.names else channel.name
        return ""

    def time_limit_ns(self, offset: float | None) -> int:
        """Return the maximum time from an observation to the arrival of its chunk, in ns.

        A later chunk would arrive after the end of the plan. offset: see `Timing`.
        """
        chunk_size = self.policy.spec.chunk_size
        steps = 1.0 if offset is None and chunk_size == 1 else offset or 0.0
        return round((chunk_size + steps - self._steps) * self._period_ns)


def load_policy(
    bundle: str, runtime: str, backup: str | None, switch: Mapping[str, Any]
) -> BundlePolicy:
    """Load a policy, with its backup policy if there is one. Raises UserError.

    switch: fields of `Switch`, which states when the backup acts.
    """
    try:
        policy = load(bundle, runtime=runtime)
        if backup is None:
            return policy
        other = load(backup, runtime=runtime)
        mine, theirs = other.spec.chunk_size, policy.spec.chunk_size
        if mine != theirs:
            raise BundleError(
                f"the backup predicts chunks of {mine} actions, the policy of {theirs}. On a robot "
                "both need the same chunk size"
            )
        return BackupPolicy(policy, other, Switch(**switch))
    except ValueError as error:  # BundleError or FormulaError
        raise UserError(str(error)) from None


def infer(session: Session) -> None:
    """Run the inference process until the run ends. Raises UserError."""
    pin(last_core=False)
    assert session.bundle is not None
    shared = SharedValues(session.path / "shared_values")
    policy = load_policy(session.bundle, session.runtime, session.backup, session.switch)
    spec = session.make_robot().spec
    chunks = Ring.create(
        session.path / "chunks", chunk_type(policy.spec.chunk_size, len(spec.joints)), 16
    )
    while not shared["control_beat"]:
        if session.ended(shared):
            return
        time.sleep(0.005)
    inference = Inference(policy, spec, Ring.open(session.path / "ticks"), chunks, shared)
    inference.warm_up()
    shared["time_limit_ns"], lacks = inference.time_limit_ns(session.offset), ""
    while not session.ended(shared):
        shared["inference_beat"] += 1
        if inference.lacks != lacks:
            lacks = inference.lacks
            (session.path / LACKS).write_text(lacks)
        if not inference.step(time.monotonic_ns()):
            time.sleep(POLL_S)


def main(arguments: list[str]) -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    session = load_session(arguments)
    with report_errors(session, "inference"):
        infer(session)


if __name__ == "__main__":
    main(sys.argv)
