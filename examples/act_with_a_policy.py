"""Run a trained policy for one episode, without the training code.

python examples/act_with_a_policy.py runs/env_Pendulum-v1/iql/default/seed_0/policy.bundle
"""

import sys

import envs
import policies

policy = policies.load(sys.argv[1])  # verifies the file, and executes no code from it
task = sys.argv[2] if len(sys.argv) > 2 else policy.bundle.provenance["task"]
env = envs.make(task)

player = policies.Player(policy)  # stores the state of the running episode
observation, _ = env.reset(seed=0)
player.reset(seed=0)
reward, total, done = None, 0.0, False
while not done:
    # an action in [-1, 1]; only return-conditioned policies need the reward
    action = player.step(observation, reward)
    observation, reward, terminated, truncated, _ = env.step(action)
    total, done = total + float(reward), terminated or truncated
print(f"{task}: return {total:.1f}")
