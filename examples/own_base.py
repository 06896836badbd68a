"""Train a residual policy on top of your own policy with ResFiT. Here, it is a PyTorch module.

python examples/own_base.py [environment steps, default 3,000]

Your policy needs an adapter such as `Base` below. The same training from the command line:

offline-rl finetune base=examples/own_base.py:Base task=env:Pendulum-v1 num_env_steps=3000 …
"""

import json
import sys

import numpy as np
import torch
from torch import nn

import envs
import offline_rl

TASK = "env:Pendulum-v1"
COLUMNS = ("observations", "actions", "rewards", "terminated", "truncated", "next_observations")


class Swing(nn.Module):
    """Your policy. This one swings up the pendulum by hand-written rules."""

    def __init__(self) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.tensor([5.0, 1.0]))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return torques [B, 1] in [-1, 1] for observations [B, 3]."""
        cos, sin, speed = observations.unbind(-1)
        balance = (-self.gains[0] * sin - self.gains[1] * speed).clamp(-1, 1)
        return torch.where(cos > 0.9, balance, speed.sign())[:, None]


class Base:
    """Adapter of your policy. It is created once. Training does not change your policy.

    If your policy predicts chunks [B, chunk_size, A], set the attribute `n_action_steps` to the
    number of executed actions. If it uses an observation history, set `n_obs_steps`. If it is
    stochastic, define a method `plan(observations, noise)` that returns chunks, and `noise_shape`.
    """

    def __init__(self) -> None:
        self.policy = Swing()  # load your weights here: self.policy.load_state_dict(...)

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """Return actions [B, A] in [-1, 1] for observations [B, O]."""
        with torch.inference_mode():
            return self.policy(torch.from_numpy(observations)).numpy()


class LeRobotAct:
    """An adapter for an ACT policy of LeRobot, which must be installed."""

    folder = "act"  # folder that LeRobot's `save_pretrained` has written
    max_action = 2.0  # action of the LeRobot policy that corresponds to 1 in the environment

    def __init__(self) -> None:
        from lerobot.policies.act.modeling_act import ACTPolicy
        from lerobot.policies.factory import make_pre_post_processors

        self.policy = ACTPolicy.from_pretrained(self.folder).eval()
        processors = make_pre_post_processors(self.policy.config, self.folder)
        self.preprocess, self.postprocess = processors
        self.n_action_steps = self.policy.config.n_action_steps

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """Return chunks [B, chunk_size, A] in [-1, 1] for observations [B, O]."""
        state = torch.from_numpy(observations)
        batch = self.preprocess(
            {"observation.state": state, "observation.environment_state": state}
        )
        chunk = self.postprocess(self.policy.predict_action_chunk(batch))
        return (chunk / self.max_action).clamp(-1, 1).numpy()


def demonstrations(episodes: int) -> dict[str, np.ndarray]:
    """Record episodes of the policy with added noise. Return columns with one row per step."""
    env, rng, base, rows = envs.make(TASK), np.random.default_rng(0), Base(), []
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        terminated = truncated = False
        while not (terminated or truncated):
            noise = 0.2 * rng.normal(size=1).astype(np.float32)
            action = np.clip(base(observation[None])[0] + noise, -1, 1)
            next_observation, reward, terminated, truncated, _ = env.step(action)
            rows.append((observation, action, reward, terminated, truncated, next_observation))
            observation = next_observation
    columns = map(np.array, zip(*rows, strict=True))
    return dict(zip(COLUMNS, columns, strict=True))


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 3_000
    result = offline_rl.finetune(
        base=f"{__file__}:Base",
        task=TASK,
        dataset=offline_rl.Dataset.from_arrays(**demonstrations(episodes=20)),
        num_env_steps=steps,
        eval_every=steps,
        eval_episodes=20,
        algorithm__hidden=[64, 64],
        algorithm__scale=0.3,
        algorithm__actor_lr=3e-4,
        algorithm__critic_lr=3e-4,
        algorithm__reward_scale=0.1,
        online__warmup_steps=steps // 3,
        online__critic_updates=steps // 3,
    )
    lines = (result.path / "seed_0" / "evaluations.jsonl").read_text().splitlines()
    before, after = (json.loads(line)["eval/return"] for line in (lines[0], lines[-1]))
    print(f"mean return of the base policy   {before:.0f}")
    print(f"mean return with the residual    {after:.0f}")
    print(f"bundle of the residual policy    {result.path / 'seed_0' / 'policy.bundle'}")
    print(f"to evaluate it    offline-rl evaluate run={result.path} base={__file__}:Base")
