"""A trained policy at work in an environment, without the training code.

python examples/act_with_a_policy.py runs/env_Pendulum-v1/iql/default/seed_0/policy.bundle
"""

import sys

import envs
import policies

policy = policies.load(sys.argv[1])  # checks the whole file and runs nothing that is in it
task = sys.argv[2] if len(sys.argv) > 2 else policy.bundle.provenance["task"]
env = envs.make(task)

player = policies.Player(policy)  # keeps what an episode needs
observation, _ = env.reset(seed=0)
player.reset(seed=0)
reward, total, over = None, 0.0, False
while not over:
    # an action in [-1, 1]; the reward is for policies that aim at a return
    action = player.step(observation, reward)
    observation, reward, terminated, truncated, _ = env.step(action)
    total, over = total + float(reward), terminated or truncated
print(f"{task}: return {total:.1f}")
