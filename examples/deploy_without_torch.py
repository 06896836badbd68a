"""Run a policy without torch and without the training code.

pip install numpy safetensors gymnasium    # and copy the folder policies/ of this repository
python examples/deploy_without_torch.py policy.bundle Pendulum-v1

MLP policies run in numpy. For other policies, first add an ONNX graph with `offline-rl export
run=…`; they then run in onnxruntime.
"""

import sys

import gymnasium

import policies

path, env_id = sys.argv[1:]
policy = policies.load(path, units=True)  # actions in the environment's units
print(f"runtime {policy.network.name}, {policy.spec.rate_hz or '?'} actions per second")

env, player = gymnasium.make(env_id), policies.Player(policy)
observation, _ = env.reset(seed=0)
player.reset(seed=0)
total, done = 0.0, False
while not done:
    observation, reward, terminated, truncated, _ = env.step(player.step(observation))
    total, done = total + float(reward), terminated or truncated
print(f"{env_id}: return {total:.1f}")
