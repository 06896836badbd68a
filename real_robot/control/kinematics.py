"""Forward kinematics of the robot's workspace points, by MuJoCo."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offline_rl.utils.errors import UserError
from real_robot.robot import RobotSpec


def forward(spec: RobotSpec) -> Callable[[Sequence[float]], Sequence[float]] | None:
    """Return a function from joint positions, [J], to the bounds of the workspace's sites, [6N] m.

    Each site is a sphere with the size that the model states. Its bounds are the minimum x, y, z
    and the maximum x, y, z. The function returns the same list at each call. Return None if the
    robot has no workspace. Raises UserError if the model lacks a joint or a site.
    """
    if spec.workspace is None:
        return None
    import mujoco

    try:
        model = mujoco.MjModel.from_xml_path(str(spec.workspace.model))
    except ValueError as error:
        raise UserError(f"{spec.workspace.model} is not a model: {error}") from None
    data = mujoco.MjData(model)
    joints, sites = list[int](), list[int]()
    for names, kind, numbers in (
        (spec.joints, mujoco.mjtObj.mjOBJ_JOINT, joints),
        (spec.workspace.points, mujoco.mjtObj.mjOBJ_SITE, sites),
    ):
        for name in names:
            number = mujoco.mj_name2id(model, kind, name)
            if number < 0:
                what = "joint" if kind == mujoco.mjtObj.mjOBJ_JOINT else "site"
                raise UserError(
                    f"{spec.workspace.model} has no {what} {name!r}, which {spec.name} names. "
                    "Add it to the model, or correct the robot's file"
                )
            numbers.append(number)
    addresses = [int(model.jnt_qposadr[i]) for i in joints]
    sizes = [float(model.site_size[i][0]) for i in sites]
    points = [0.0] * (6 * len(sites))

    def points_at(q: Sequence[float]) -> Sequence[float]:
        for address, x in zip(addresses, q, strict=True):
            data.qpos[address] = x
        mujoco.mj_kinematics(model, data)
        for i, (site, size) in enumerate(zip(sites, sizes, strict=True)):
            x, y, z = data.site_xpos[site].tolist()
            points[6 * i : 6 * i + 3] = x - size, y - size, z - size
            points[6 * i + 3 : 6 * i + 6] = x + size, y + size, z + size
        return points

    return points_at
