"""OGBench's cube (extra `ogbench`): observations and rewards are its own."""

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
