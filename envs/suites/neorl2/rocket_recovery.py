"""NeoRL-2's RocketRecovery: `polixir/NeoRL2:neorl2/envs/rocketrecovery.py`, arXiv:2503.19267.

Gymnasium's continuous lunar lander (`Farama-Foundation/Gymnasium:gymnasium/envs/box2d/
lunar_lander.py`) over flat ground with wind, and with a different reward and termination. It needs
Box2D, the extra `box2d`. A seed gives the same start and engine noise as upstream's `reset(seed)`.
Upstream's constructor draws the wind's phase without a seed; here a separate random stream does.
"""

import importlib
import math
from typing import Any

import numpy as np

from envs.outcomes import Outcomes, library
from envs.vector import Step, VectorEnv

SCALE = 30.0  # drawing units of the shapes per meter
WIDTH, HEIGHT = 20.0, 400 / SCALE  # size of the view, m
GROUND = HEIGHT / 4  # height of the ground, m
LEG_DOWN = 18 / SCALE  # height of the landed body above the ground, m
DT = 1 / 50  # s
LANDER = [(-14, 17), (-17, 0), (-17, -10), (17, -10), (17, 0), (14, 17)]  # corners, drawing units
LIMITS = {-1: (0.4, 0.9), 1: (-0.9, -0.4)}  # limits of the leg angles, rad


class RocketRecovery(VectorEnv):
    """Rocket with a main engine and two side engines; it must land gently and upright.

    Observation [7]: x from the center and y above the landed height (in units of half the view),
    velocities of x and y, angle, angular velocity (all scaled), wind force of the previous step.
    Actions: main engine, off below 0, else from half to full thrust; side engines, off between
    -0.5 and 0.5.
    """

    observation_shape = (7,)
    action_dim = 2
    max_episode_steps = 500

    START_FORCE = 500.0  # half-width of the uniform distribution, N
    WIND_FORCE = 10.0  # N
    MAIN_POWER, SIDE_POWER = 13.0, 0.6

    def __init__(self, num_envs: int, *, num_threads: int = 1) -> None:
        super().__init__(num_envs)
        try:
            self._box2d: Any = importlib.import_module("Box2D")
        except ModuleNotFoundError as error:
            remedy = "Install box2d, or this package's extra [box2d]."
            raise ValueError(f"neorl2/RocketRecovery needs Box2D. {remedy}") from error
        self._worlds: dict[int, tuple[Any, Any]] = {}  # Box2D world and lander
        self._rngs: dict[int, np.random.Generator] = {}
        self._wind_index = np.zeros(num_envs, np.int64)
        self._observation = np.zeros((num_envs, *self.observation_shape), np.float32)

    def first_wind(self, seed: int) -> int:
        """Return the index in the wind's time series at which an episode begins."""
        return int(np.random.Generator(np.random.PCG64([seed, 1])).integers(-9999, 9999))

    def _reset(self, seeds: list[int], indices: np.ndarray) -> np.ndarray:
        for seed, index in zip(seeds, indices, strict=True):
            rng = self._rngs[index] = np.random.Generator(np.random.PCG64(seed))
            rng.uniform(size=12)  # upstream draws a terrain here and then flattens it
            self._worlds[index] = self._build()
            force = rng.uniform(-self.START_FORCE, self.START_FORCE, 2)
            self._worlds[index][1].ApplyForceToCenter(force.tolist(), True)
            self._wind_index[index] = self.first_wind(seed)
            self._observation[index] = self._simulate(index, 0.0, 0.0)
        return self._observation[indices]

    def _step(self, actions: np.ndarray, indices: np.ndarray) -> Step:
        actions = actions.astype(np.float64)
        main, side = thrusts(actions)
        previous = self._observation[indices]
        rows = [self._simulate(*row) for row in zip(indices, main, side, strict=True)]
        current = self._observation[indices] = np.array(rows, np.float32)
        terminated, gently = lands(previous, actions, current), is_gentle(current)
        change = shaping(previous.astype(np.float64), actions, current.astype(np.float64))
        rewards = np.where(terminated, 200.0 * gently - 100, change)
        not_over = np.zeros(len(indices), bool)
        return Step(current, rewards, terminated, not_over, {"success": terminated & gently})

    def _build(self) -> tuple[Any, Any]:
        """Build a Box2D world with ground and lander; return the world and the lander."""
        b2 = self._box2d
        world = b2.b2World(gravity=(0, -10))
        ground = world.CreateStaticBody(shapes=b2.b2EdgeShape(vertices=[(0, 0), (WIDTH, 0)]))
        for left in range(0, 20, 2):
            ends = [(left, GROUND), (left + 2, GROUND)]
            ground.CreateEdgeFixture(vertices=ends, density=0, friction=0.1)

        def body(x: float, angle: float, shape: Any, category: int, **material: float) -> Any:
            """Create a body that collides with the ground only."""
            fixture = b2.b2FixtureDef(
                shape=shape, categoryBits=category, maskBits=1, restitution=0, **material
            )
            return world.CreateDynamicBody(position=(x, HEIGHT), angle=angle, fixtures=fixture)

        hull = b2.b2PolygonShape(vertices=[(x / SCALE, y / SCALE) for x, y in LANDER])
        lander = body(WIDTH / 2, 0, hull, 0x10, density=5, friction=0.1)
        for sign, (lower, upper) in LIMITS.items():
            away = sign * 20 / SCALE
            shape = b2.b2PolygonShape(box=(2 / SCALE, 8 / SCALE))
            leg = body(WIDTH / 2 - away, sign * 0.05, shape, 0x20, density=1)
            world.CreateJoint(
                b2.b2RevoluteJointDef(
                    bodyA=lander,
                    bodyB=leg,
                    localAnchorA=(0, 0),
                    localAnchorB=(away, LEG_DOWN),
                    enableMotor=True,
                    enableLimit=True,
                    maxMotorTorque=40,
                    motorSpeed=0.3 * sign,
                    lowerAngle=lower,
                    upperAngle=upper,
                )
            )
        return world, lander

    def _simulate(self, index: int, main: float, side: float) -> list[float]:
        """Simulate one step of one world (wind, engines, physics); return the observation [7]."""
        world, lander = self._worlds[index]
        time = int(self._wind_index[index])
        wind = self.WIND_FORCE * math.tanh(math.sin(0.02 * time) + math.sin(0.01 * math.pi * time))
        self._wind_index[index] += 1
        lander.ApplyForceToCenter((wind, 0.0), True)

        # As upstream, the height of the side engines depends on the angle.
        up_x, up_y = math.sin(lander.angle), math.cos(lander.angle)
        x, y = lander.position
        noise = self._rngs[index].uniform(-1, 1, 2) / SCALE
        if main:
            away = 4 / SCALE + 2 * noise[0]
            dx, dy = up_x * away - up_y * noise[1], -up_y * away - up_x * noise[1]
            impulse = -self.MAIN_POWER * main
            lander.ApplyLinearImpulse((impulse * dx, impulse * dy), (x + dx, y + dy), True)
        if side:
            away = 3 * noise[1] + math.copysign(12 / SCALE, side)
            dx, dy = up_x * noise[0] - up_y * away, -up_y * noise[0] - up_x * away
            impulse = -self.SIDE_POWER * abs(side)
            point = (x + dx - up_x * 17 / SCALE, y + dy + up_y * 14 / SCALE)
            lander.ApplyLinearImpulse((impulse * dx, impulse * dy), point, True)
        world.Step(DT, 6 * 30, 2 * 30)

        x, y = lander.position
        vx, vy = lander.linearVelocity
        return [
            (x - WIDTH / 2) / (WIDTH / 2),
            (y - GROUND - LEG_DOWN) / (HEIGHT / 2),
            vx * DT * WIDTH / 2,
            vy * DT * HEIGHT / 2,
            lander.angle,
            20 * DT * lander.angularVelocity,
            wind,
        ]


def thrusts(actions: Any) -> tuple[Any, Any]:
    """Return the thrusts of the main and the side engines as fractions of their full thrusts."""
    main, side = actions[..., 0], actions[..., 1]
    where = library(actions).where
    return where(main > 0, (main + 1) / 2, 0.0), where(abs(side) > 0.5, side, 0.0)


def potential(observations: Any) -> Any:
    """Return the potential of observations [..., 7].

    It decreases with distance, speed and tilt.
    """
    x, y, vx, vy, angle = (observations[..., i] for i in range(5))
    hypot = library(observations).hypot
    return -100 * (hypot(x, y) + hypot(vx, vy) + abs(angle))


def shaping(s: Any, a: Any, s2: Any) -> Any:
    """Return the reward of a step that does not land."""
    main, side = thrusts(a)
    return potential(s2) - potential(s) - 0.3 * main - 0.03 * abs(side)


def lands(s: Any, a: Any, s2: Any) -> Any:
    """True where the height is between -0.05 and 0.05."""
    return abs(s2[..., 1]) <= 0.05


def is_gentle(observations: Any) -> Any:
    """True for observations [..., 7] whose angle and velocities allow a gentle landing."""
    vx, vy, angle = (observations[..., i] for i in range(2, 5))
    return (abs(angle) < 0.3) & (abs(vx) < 0.5) & (abs(vy) < 2)


def reward(s: Any, a: Any, s2: Any) -> Any:
    """Return the reward: 100 for a gentle landing, -100 for another one, else the shaping."""
    return library(s2).where(lands(s, a, s2), 200.0 * is_gentle(s2) - 100, shaping(s, a, s2))


ENVS = {"neorl2/RocketRecovery": RocketRecovery}
OUTCOMES = {"neorl2/RocketRecovery": Outcomes({"task": lands}, reward)}
