"""Your own logged arrays to a trained policy, from Python; about half a minute on one core.

python examples/train_on_own_arrays.py

The log here is of a hand-written controller that swings a pendulum up, with noise on its actions.
"""

import numpy as np

import envs
import offline_rl
from offline_rl.data.write import write

TASK = "env:Pendulum-v1"  # any Gymnasium environment; "none" trains without evaluation


def controller(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Pump energy in, balance near the top; torque in [-1, 1] as shares of the largest."""
    cos, sin, speed = observation
    torque = -5 * sin - speed if cos > 0.9 else np.copysign(1, speed)
    return np.clip([torque + 0.5 * rng.normal()], -1, 1)


def log(episodes: int) -> dict[str, np.ndarray]:
    """What a robot or a simulator would have recorded, one row a step."""
    env, rng = envs.make(TASK), np.random.default_rng(0)
    rows = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        over = False
        while not over:
            action = controller(observation, rng)
            following, reward, terminated, truncated, _ = env.step(action)
            rows.append((observation, action, reward, terminated, truncated, following))
            observation, over = following, terminated or truncated
    words = "observations actions rewards terminated truncated next_observations".split()
    return {word: np.array(column) for word, column in zip(words, zip(*rows, strict=True), strict=True)}


data = offline_rl.Dataset.from_arrays(**log(episodes=50))  # refuses what cannot be right
file = write(data, "runs/pendulum.hdf5")
result = offline_rl.train(
    algorithm="iql",
    task=TASK,
    dataset=str(file),
    num_updates=3_000,
    eval_every=1_000,
    tracker="none",
    **{"algorithm.normalise_returns": True},
)
print(f"the log's mean return:    {data.episode_returns().mean():.0f}")
print(f"the policy's mean return: {result.results[0]['mean_return']:.0f}")
print(f"the policy to take away:  {result.path / 'seed_0' / 'policy.bundle'}")
