"""Train in your own environment, here the Gymnasium class in this file. Takes half a minute.

python examples/own_environment.py [environment steps, default 3,000]

From the command line:  offline-rl train algorithm=sac task=env:examples/own_environment.py:Line …
"""

import sys

import gymnasium
import numpy as np

import offline_rl


class Line(gymnasium.Env):
    """Move to the middle of a line. The action is the motion in one step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Box(-0.2, 0.2, (1,))  # finite bounds are needed
    max_episode_steps = 20  # a time limit truncates an episode and does not terminate it

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.x, {}

    def step(self, action):
        self.x = np.clip(self.x + action, -1, 1).astype(np.float32)
        distance = abs(float(self.x[0]))
        return self.x, -distance, False, False, {"success": distance < 0.05}


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 3_000
    result = offline_rl.train(
        algorithm="sac",
        task=f"env:{__file__}:Line",
        num_env_steps=steps,
        eval_every=steps,
        eval_episodes=20,
        algorithm__hidden=[32, 32],
        online__warmup_steps=min(500, steps // 3),
    )
    print(f"mean return      {result.results[0]['mean_return']:.2f}")
    print(f"policy bundle    {result.path / 'seed_0' / 'policy.bundle'}")
