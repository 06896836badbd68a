"""Where the robot's points are: forward kinematics of its model, by MuJoCo."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offline_rl.utils.errors import UserError
from real_robot.robot import RobotSpec


def forward(spec: RobotSpec) -> Callable[[Sequence[float]], Sequence[float]] | None:
    """[J] -> [6N] m, of every site that the workspace names; None where there is no workspace.

    A site is a sphere of its size in the model: told are its least and its greatest x, y and z. The
    answer is a memory of the model's: it holds until the next call. Raises UserError where the
    model lacks a joint or a site.
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
    for names, kind, found in (
        (spec.joints, mujoco.mjtObj.mjOBJ_JOINT, places),
        (spec.workspace.points, mujoco.mjtObj.mjOBJ_SITE, sites),
    ):
        for name in names:
            number = mujoco.mj_name2id(model, kind, name)
            if number < 0:
                what = "joint" if kind == mujoco.mjtObj.mjOBJ_JOINT else "site"
                raise UserError(f"{spec.workspace.model} has no {what} {name!r}, {spec.name} has")
            found.append(number)
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
