"""Forward kinematics of the robot's workspace points, by MuJoCo."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offline_rl.utils.errors import UserError
from real_robot.robot import RobotSpec


def forward(spec: RobotSpec) -> Callable[[Sequence[float]], Sequence[float]] | None:
    """Return a function from joint positions, [J], to the bounds of the workspace's sites, [6N] m.

    Each site is a sphere of its size in the model. Its bounds are the minimum and maximum of x, y
    and z. The returned list is reused by the next call. None: the robot has no workspace. Raises
    UserError if the model lacks a joint or a site.
    """
    if spec.workspace is None:
        return None
    import mujoco

    try:
        model = mujoco.MjModel.from_xml_path(str(spec.workspace.model))
    except ValueError as error:
        raise UserError(f"{spec.workspace.model} is not a model: {error}") from None
    data = mujoco.MjData(model)
    places, sites = list[int](), list[int]()
    for names, kind, numbers in (
        (spec.joints, mujoco.mjtObj.mjOBJ_JOINT, places),
        (spec.workspace.points, mujoco.mjtObj.mjOBJ_SITE, sites),
    ):
        for name in names:
            number = mujoco.mj_name2id(model, kind, name)
            if number < 0:
                what = "joint" if kind == mujoco.mjtObj.mjOBJ_JOINT else "site"
                raise UserError(
                    f"{spec.workspace.model} has no {what} {name!r}, but {spec.name} has"
                )
            numbers.append(number)
    places = [int(model.jnt_qposadr[i]) for i in places]
    sizes = [float(model.site_size[i][0]) for i in sites]
    points = [0.0] * (6 * len(sites))

    def points_at(q: Sequence[float]) -> Sequence[float]:
        for place, x in zip(places, q, strict=True):
            data.qpos[place] = x
        mujoco.mj_kinematics(model, data)
        for i, (site, size) in enumerate(zip(sites, sizes, strict=True)):
            x, y, z = data.site_xpos[site].tolist()
            points[6 * i : 6 * i + 3] = x - size, y - size, z - size
            points[6 * i + 3 : 6 * i + 6] = x + size, y + size, z + size
        return points

    return points_at
