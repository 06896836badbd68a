"""From your own logged arrays to a trained policy, in Python; under a minute on one core.

python examples/train_on_own_arrays.py

The log here is that of a hand-written controller which swings a pendulum up, none too well.
"""

import numpy as np

import envs
import offline_rl

TASK = "env:Pendulum-v1"  # any Gymnasium environment; "none" trains without evaluation
WORDS = ("observations", "actions", "rewards", "terminated", "truncated", "next_observations")


def controller(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Pumps energy in, balances near the top: noisy torque, [1], a share of the largest."""
    cos, sin, speed = observation
    torque = -5 * sin - speed if cos > 0.9 else np.copysign(1, speed)
    return np.clip([torque + 0.5 * rng.normal()], -1, 1)


def log(episodes: int) -> dict[str, np.ndarray]:
    """What a simulator or a robot would have recorded, one row a step."""
    env, rng, rows = envs.make(TASK), np.random.default_rng(0), []
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        terminated = truncated = False
        while not (terminated or truncated):
            action = controller(observation, rng)
            following, reward, terminated, truncated, _ = env.step(action)
            rows.append((observation, action, reward, terminated, truncated, following))
            observation = following
    columns = map(np.array, zip(*rows, strict=True))
    return dict(zip(WORDS, columns, strict=True))


data = offline_rl.Dataset.from_arrays(**log(episodes=50))  # refuses what cannot be right
result = offline_rl.train(
    algorithm="iql",
    task=TASK,
    dataset=data,
    num_updates=4_000,
    eval_every=1_000,
    algorithm__hidden=[64, 64],
    algorithm__normalize_returns=True,
)
print(f"mean return of the log      {data.episode_returns().mean():.0f}")
print(f"mean return of the policy   {result.results[0]['mean_return']:.0f}")
print(f"the policy to take with you {result.path / 'seed_0' / 'policy.bundle'}")
