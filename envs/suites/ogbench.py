"""OGBench's cube task (extra `ogbench`) with OGBench's observations and rewards."""

from functools import partial

from envs.adapters import make_registered

ENVS = {
    "ogbench/cube-single": partial(
        make_registered,
        module="ogbench",
        extra="ogbench",
        env_id="cube-single-singletask-v0",
        max_episode_steps=200,
    )
}
