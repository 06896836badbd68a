"""A trained policy at work: load its bundle and step an environment.

python examples/act_with_a_policy.py <policy.bundle> [<task>]

Without the training stack: `policies` needs numpy and safetensors, and torch for this policy.
"""

import sys

import envs
import policies

policy = policies.load(sys.argv[1])  # verifies the file and executes nothing from it
task = sys.argv[2] if len(sys.argv) > 2 else policy.bundle.provenance["task"]
env = envs.make(task)

observation, _ = env.reset(seed=0)
state, total, over = None, 0.0, False
while not over:
    chunk, state = policy.act(observation, state)  # [horizon, actions], in [-1, 1]
    for action in chunk:
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        over = terminated or truncated
        if over:
            break
print(f"{task}: return {total:.1f}")
