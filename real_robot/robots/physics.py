"""MuJoCo simulation of an arm with position servos, used by the simulators."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class Physics:
    """Simulation of an arm.

    Time is in integer nanoseconds and starts at the first `advance`. A servo without torque moves
    freely, except for the friction of its gears.

    Args:
        joints: hinges of the MJCF `model`. Each has a position actuator of the same name.
        stand: True: a stand carries the arm while no servo has torque.
    """

    def __init__(
        self,
        model: Path,
        joints: Sequence[str],
        *,
        period_ns: int = 1_000_000,
        stand: bool = False,
    ) -> None:
        import mujoco

        self._mujoco = mujoco
        self.model = mujoco.MjModel.from_xml_path(str(model))
        self.model.opt.timestep = period_ns * 1e-9
        self.data = mujoco.MjData(self.model)
        if self.model.nkey:
            mujoco.mj_resetDataKeyframe(self.model, self.data, 0)
        self.period_ns = period_ns
        self.now_ns: int | None = None
        self._objects: dict[int, tuple[float, float, float]] = {}
        self.before_step: Callable[[int], Any] | None = None  # called with the time, ns
        hinges = [self.model.joint(name) for name in joints]
        self._q = np.array([hinge.qposadr[0] for hinge in hinges])
        self._dq = np.array([hinge.dofadr[0] for hinge in hinges])
        self._servo = np.array([self.model.actuator(name).id for name in joints])
        # These are views: MuJoCo does not move these arrays.
        self._qpos, self._qvel, self._force = (
            self.data.qpos,
            self.data.qvel,
            self.data.actuator_force,
        )
        self._gain = self.model.actuator_gainprm[self._servo, 0].copy()
        self._bias = self.model.actuator_biasprm[self._servo, :3].copy()
        self.max_torque = self.model.actuator_forcerange[self._servo, 1].copy()  # [J] N m
        self._stand, self._on = stand, np.zeros(len(joints), bool)
        for index in range(len(joints)):
            self.set_torque(index, False)
        mujoco.mj_forward(self.model, self.data)

    @property
    def q(self) -> np.ndarray:
        """Joint positions, [J] rad."""
        return self._qpos[self._q]

    @property
    def dq(self) -> np.ndarray:
        """Joint velocities, [J] rad/s."""
        return self._qvel[self._dq]

    @property
    def torque(self) -> np.ndarray:
        """Torques of the servos, [J] N m."""
        return self._force[self._servo]

    def set_goal(self, index: int, angle_rad: float) -> None:
        self.data.ctrl[self._servo[index]] = angle_rad

    def set_torque(self, index: int, on: bool) -> None:
        self._on[index] = on
        self.model.actuator_gainprm[self._servo[index], 0] = self._gain[index] * on
        self.model.actuator_biasprm[self._servo[index], :3] = self._bias[index] * on

    def push(self, index: int, torque: float) -> None:
        """Apply an external torque, in N m, to joint `index` until the next call changes it."""
        self.data.qfrc_applied[self._dq[index]] = torque

    def grasp(self, index: int, at_rad: float, closes: int, stiffness: float = 30.0) -> None:
        """Place an elastic object that joint `index` touches from `at_rad` on while it closes.

        closes: direction in which the joint closes, 1 or -1. stiffness: N m/rad.
        """
        self._objects[index] = at_rad, closes, stiffness

    def _squeeze(self) -> None:
        for index, (at_rad, closes, stiffness) in self._objects.items():
            q, dq = self._qpos[self._q[index]], self._qvel[self._dq[index]]
            deep = max(0.0, (q - at_rad) * closes)
            # The object is damped, like foam. It pushes and never pulls.
            force = max(0.0, stiffness * (deep + 0.02 * dq * closes)) if deep else 0.0
            self.data.qfrc_applied[self._dq[index]] = -closes * force

    def pose(self, q: np.ndarray) -> None:
        """Set the joint positions to `q`, [J] rad, and the velocities to 0."""
        self._qpos[self._q] = q
        self._qvel[self._dq] = 0
        self._mujoco.mj_forward(self.model, self.data)

    def place(self, body: str, at_m: Sequence[float]) -> None:
        """Move a mocap body, or a body with slide joints, to x, y (and z). Raises KeyError."""
        body_model = self.model.body(body)
        if body_model.mocapid[0] >= 0:
            self.data.mocap_pos[body_model.mocapid[0], : len(at_m)] = at_m
        else:
            joint = body_model.jntadr[0]
            start, speed = self.model.jnt_qposadr[joint], self.model.jnt_dofadr[joint]
            self._qpos[start : start + 2] = at_m[:2]
            self._qvel[speed : speed + 2] = 0
        self._mujoco.mj_forward(self.model, self.data)

    def position_of(self, name: str) -> np.ndarray:
        """Return a live view of the position of a site or body, [3] m. Raises KeyError."""
        try:
            return self.data.site(name).xpos
        except KeyError:
            return self.data.body(name).xpos

    def advance(self, to_ns: int) -> None:
        """Simulate complete time steps until the time `to_ns`."""
        if self.now_ns is None:
            self.now_ns = to_ns
        while self.now_ns + self.period_ns <= to_ns:
            self.now_ns += self.period_ns
            if self._stand and not self._on.any():
                continue
            if self.before_step is not None:
                self.before_step(self.now_ns)
            self._squeeze()
            self._mujoco.mj_step(self.model, self.data)
