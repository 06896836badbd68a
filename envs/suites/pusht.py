"""Push-T with state observations (extra `pusht`): push a T-shaped block onto its outline."""

from functools import partial

from envs.adapters import make_registered

ENVS = {
    "pusht": partial(
        make_registered,
        module="gym_pusht",
        extra="pusht",
        env_id="gym_pusht/PushT-v0",
        obs_type="state",
        render_mode="rgb_array",
        max_episode_steps=300,
    )
}
