"""A policy where it works, without torch and without the training code: numpy and safetensors.

pip install numpy safetensors gymnasium    and the folder policies/, from a clone or an install
python examples/deploy_without_torch.py policy.bundle Pendulum-v1

Perceptrons run by numpy; others, once exported with `offline-rl export run=…`, by onnxruntime.
"""

import sys

import gymnasium

import policies

path, env_id = sys.argv[1:]
policy = policies.load(path, units=True)  # acts in the environment's units; checked by its answer
print(f"runs by {policy.network.name}, {policy.spec.rate_hz or '?'} actions a second")

env, player = gymnasium.make(env_id), policies.Player(policy)
observation, _ = env.reset(seed=0)
player.reset(seed=0)
total, over = 0.0, False
while not over:
    observation, reward, terminated, truncated, _ = env.step(player.step(observation))
    total, over = total + float(reward), terminated or truncated
print(f"{env_id}: return {total:.1f}")
