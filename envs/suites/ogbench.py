"""OGBench's cube (extra `ogbench`): observations and rewards are its own."""

from functools import partial

from envs.adapters import imported

ENVS = {
    "ogbench/cube-single": partial(
        imported,
        module="ogbench",
        extra="ogbench",
        env_id="cube-single-singletask-v0",
        max_episode_steps=200,
    )
}
