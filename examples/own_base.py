"""A policy of your own, corrected where it stands: ResFiT round a plain PyTorch module.

python examples/own_base.py [environment steps, by default 3,000]

All that is asked of a policy is the adapter, `Base` below. From a shell:

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
WORDS = ("observations", "actions", "rewards", "terminated", "truncated", "next_observations")


class Swing(nn.Module):
    """Your policy, from wherever it comes: this one pumps energy in and balances near the top."""

    def __init__(self) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.tensor([5.0, 1.0]))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """[B, 3] -> torques in [-1, 1], [B, 1]."""
        cos, sin, speed = observations.unbind(-1)
        balance = (-self.gains[0] * sin - self.gains[1] * speed).clamp(-1, 1)
        return torch.where(cos > 0.9, balance, speed.sign())[:, None]


class Base:
    """The adapter, made once. What it holds is never changed.

    One that answers with chunks, [B, chunk_size, A], says in `n_action_steps` how many it acts on; one that
    looks at several steps, in `n_obs_steps`; one that draws noise has a method `plan`.
    """

    def __init__(self) -> None:
        self.policy = Swing()  # .load_state_dict(torch.load("mine.pt", weights_only=True))

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """[B, O] -> [B, A] in [-1, 1]."""
        with torch.inference_mode():
            return self.policy(torch.from_numpy(observations)).numpy()


class LeRobotAct:
    """The same round LeRobot's ACT, of a folder that LeRobot wrote; it has to be installed."""

    folder, largest = "act", 2.0  # the action, in LeRobot's units, that is 1 in the environment

    def __init__(self) -> None:
        from lerobot.policies.act.modeling_act import ACTPolicy
        from lerobot.policies.factory import make_pre_post_processors

        self.policy = ACTPolicy.from_pretrained(self.folder).eval()
        self.before, self.after = make_pre_post_processors(self.policy.config, self.folder)
        self.n_action_steps = self.policy.config.n_action_steps

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """[B, O], in LeRobot's units -> chunks [B, chunk_size, A] in [-1, 1]."""
        seen = torch.from_numpy(observations)
        batch = self.before({"observation.state": seen, "observation.environment_state": seen})
        chunk = self.after(self.policy.predict_action_chunk(batch))
        return (chunk / self.largest).clamp(-1, 1).numpy()


def demonstrations(episodes: int) -> dict[str, np.ndarray]:
    """What the policy itself did, with some noise; one row a step."""
    env, rng, base, rows = envs.make(TASK), np.random.default_rng(0), Base(), []
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        terminated = truncated = False
        while not (terminated or truncated):
            noise = 0.2 * rng.normal(size=1).astype(np.float32)
            action = np.clip(base(observation[None])[0] + noise, -1, 1)
            following, reward, terminated, truncated, _ = env.step(action)
            rows.append((observation, action, reward, terminated, truncated, following))
            observation = following
    columns = map(np.array, zip(*rows, strict=True))
    return dict(zip(WORDS, columns, strict=True))


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
        online__warm_up=steps // 3,
        online__critic_updates=steps // 3,
    )
    lines = (result.path / "seed_0" / "evaluations.jsonl").read_text().splitlines()
    alone, corrected = (json.loads(line)["eval/return"] for line in (lines[0], lines[-1]))
    print(f"mean return of the base      {alone:.0f}")
    print(f"mean return, corrected       {corrected:.0f}")
    print(f"the correction alone         {result.path / 'seed_0' / 'policy.bundle'}")
    print(f"to play both                 evaluate run={result.path} base={__file__}:Base")
