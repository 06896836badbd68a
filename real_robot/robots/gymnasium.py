"""A Gymnasium environment as a robot: each command is a step. Time is the environment's own.

Where an episode ends the robot does not start another by itself: it holds, and its readings say
REFUSED until a person re-arms it, which resets the environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from offline_rl.utils.errors import UserError
from real_robot.robot import Code, Command, Reading, RobotSpec, Sent


class GymnasiumRobot:
    """env: of actions that are bounded vectors, one number a joint.

    joints(observation) -> q, dq, [J] each: where the observation says how the joints stand.
    action(q) -> the action that asks for these joint goals; default: affine, the spec's position
    limits to the action's bounds. now_ns: the clock. Raises UserError where spec and env disagree.
    """

    def __init__(
        self,
        env: Any,
        spec: RobotSpec,
        joints: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
        action: Callable[[np.ndarray], np.ndarray] | None = None,
        channels: Callable[[np.ndarray], dict[str, np.ndarray]] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> None:
        space = env.action_space
        bounded = getattr(space, "shape", None) and space.is_bounded()
        if not bounded or (action is None and space.shape != (len(spec.joints),)):
            raise UserError(
                f"{spec.name} has {len(spec.joints)} joints, the environment's actions are {space}:"
                " give action=, which makes one from joint goals"
            )
        self.env, self._spec, self._joints, self._now_ns = env, spec, joints, now_ns
        self._action = action or self._affine
        self._channels = channels or (lambda _observation: {})
        self._seeds = iter(seeds or ())
        self._observation: np.ndarray | None = None
        self._seq, self._time_ns = 0, 0
        self.over = False  # the episode has ended
        self.reward, self.info = 0.0, dict[str, Any]()  # of the last step

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    def connect(self) -> None:
        if self._observation is None:
            self._reset()

    def _reset(self) -> None:
        self._observation, self.info = self.env.reset(seed=next(self._seeds, None))
        self.reward, self.over = 0.0, False
        self._measured()

    def _measured(self) -> None:
        self._seq, self._time_ns = self._seq + 1, self._now_ns()

    def arm(self) -> Reading:
        if self._observation is None:
            raise UserError(f"{self._spec.name} is not connected")
        if self.over:
            self._reset()
        return self.read()

    def read(self) -> Reading:
        begin, count = self._now_ns(), len(self._spec.joints)
        nothing, status = np.full(count, np.nan), np.zeros(count, np.int64)
        if self._observation is None:
            return Reading(
                Code.LOST, self._seq, begin, begin, begin, nothing, nothing, nothing, status
            )
        q, dq = self._joints(self._observation)
        code = Code.REFUSED if self.over else Code.OK
        at, channels = self._time_ns, self._channels(self._observation)
        end = self._now_ns()
        return Reading(code, self._seq, begin, at, end, q, dq, nothing, status, channels)

    def command(self, command: Command) -> Sent:
        now = self._now_ns()
        if self._observation is None or self.over or not np.isfinite(command.q).all():
            code = Code.LOST if self._observation is None else Code.REFUSED
            return Sent(code, now, np.full(len(command.q), np.nan))
        space = self.env.action_space
        action = np.asarray(self._action(command.q), space.dtype).clip(space.low, space.high)
        self._observation, reward, terminated, truncated, self.info = self.env.step(action)
        self.reward, self.over = float(reward), bool(terminated or truncated)
        self._measured()
        return Sent(Code.OK, now, command.q.copy())

    def _affine(self, q: np.ndarray) -> np.ndarray:
        low, high = self._spec.limits.position_low, self._spec.limits.position_high
        space = self.env.action_space
        return space.low + (q - low) / (high - low) * (space.high - space.low)

    def hold(self, reason: str) -> Sequence[str]:
        """Nothing moves between steps."""
        return ()

    def disarm(self) -> None: ...

    def close(self) -> None:
        if self._observation is not None:
            self._observation = None
            self.env.close()
