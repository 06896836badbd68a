"""Train a policy on your own logged arrays. Takes less than a minute on one core.

python examples/train_on_own_arrays.py

The example data are from a mediocre hand-written controller that swings up a pendulum.
"""

import numpy as np

import envs
import offline_rl

TASK = "env:Pendulum-v1"  # any Gymnasium environment; "none" trains without evaluation
COLUMNS = ("observations", "actions", "rewards", "terminated", "truncated", "next_observations")


def controller(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a noisy torque [1] in [-1, 1] that swings the pendulum up and balances it."""
    cos, sin, speed = observation
    torque = -5 * sin - speed if cos > 0.9 else np.copysign(1, speed)
    return np.clip([torque + 0.5 * rng.normal()], -1, 1)


def record_log(episodes: int) -> dict[str, np.ndarray]:
    """Record episodes of the controller. Return columns with one row per step."""
    env, rng, rows = envs.make(TASK), np.random.default_rng(0), []
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        terminated = truncated = False
        while not (terminated or truncated):
            action = controller(observation, rng)
            next_observation, reward, terminated, truncated, _ = env.step(action)
            rows.append((observation, action, reward, terminated, truncated, next_observation))
            observation = next_observation
    columns = map(np.array, zip(*rows, strict=True))
    return dict(zip(COLUMNS, columns, strict=True))


data = offline_rl.Dataset.from_arrays(
    **record_log(episodes=50)
)  # raises an error if the arrays are inconsistent
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
print(f"policy bundle               {result.path / 'seed_0' / 'policy.bundle'}")
