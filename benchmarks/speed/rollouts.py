"""Contenders that learn from their own rollouts: DPPO's iterations, simulator included."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import envs
from benchmarks.speed.clock import Clock
from benchmarks.speed.eager import DPPO, plain_fault
from benchmarks.speed.online import Shares, data, timed
from benchmarks.speed.ours import fault
from offline_rl.data import Dataset
from offline_rl.engine.engine import Engine
from offline_rl.online.rollouts import RolloutCollector
from offline_rl.training.finetune import finetune
from offline_rl.training.train import train
from offline_rl.training.trainer import Trainer
from offline_rl.utils import hardware

# a clone of the push as configs/suite/denoising-rl.yaml has it, and a short iteration of dppo
ENVIRONMENTS, DECISIONS, EXECUTED, WINDOW, BATCH = 50, 5_000, 2, 4, 2_500
ROUNDS, TUNED, EPOCHS, DISCOUNT, TRACE = 20, 5, 5, 0.99, 0.95


def ours(clock: Clock, task: str, device: str, seeds: int, compile: str) -> None:
    """`finetune` itself, of a clone that has learned nothing; one tick an iteration."""
    env = envs.make_vector(task, 1)
    rows = data(env)
    env.close()
    shares = Shares(clock, "simulator", "acting", "learner")
    own: dict[str, Any] = {"device": device, "tracker": "none", "show": False, "seeds": seeds}
    size, whole = DECISIONS * EXECUTED, RolloutCollector.step
    timed(RolloutCollector, "_step_envs", shares.seconds, "simulator")
    timed(Engine, "apply", shares.seconds, "acting")
    timed(Trainer, "_learn", shares.seconds, "learner")

    def step(collector: RolloutCollector, **options: bool) -> None:
        if collector.steps == size:  # all is built
            clock.fault = partial(fault, collector.engine)
            shares.begin()
        if collector.steps > size and collector.steps % size == 0:
            shares.tick(seeds * size)
        whole(collector, **options)

    with tempfile.TemporaryDirectory() as out:
        train(
            algorithm="diffusion_policy",
            task=task,
            dataset=Dataset.from_arrays(**rows),
            num_updates=10,
            compile="never",
            eval_episodes=1,
            out=out,
            name="clone",
            **own,
            **{
                "algorithm.network": "mlp",
                "algorithm.widths": [256, 256, 256],
                "algorithm.prediction_type": "sample",
                "algorithm.n_obs_steps": 1,
                "algorithm.horizon": WINDOW,
                "algorithm.n_action_steps": EXECUTED,
            },
        )
        RolloutCollector.step = step  # type: ignore[method-assign,assignment]
        finetune(
            run=Path(out) / task.replace("/", "_") / "diffusion_policy" / "clone",
            algorithm="dppo",
            num_env_steps=10_000 * size,
            eval_every=10_000 * size,
            checkpoint_every=10_000 * size,
            compile=compile,
            out=f"{out}/tuned",
            **own,
            **{
                "algorithm.environments": ENVIRONMENTS,
                "algorithm.decisions": DECISIONS,
                "algorithm.batch_size": BATCH,
                "algorithm.epochs": EPOCHS,
            },
        )


def eager(clock: Clock, task: str, device: str) -> None:
    """The same by hand: the authors' iteration in plain PyTorch."""
    torch.set_num_threads(hardware.num_cores())
    env = envs.make_vector(task, ENVIRONMENTS)
    (size,) = env.observation_shape
    learner = DPPO(size, env.action_dim, WINDOW, EXECUTED, ROUNDS, TUNED, device)
    shape, each = (DECISIONS // ENVIRONMENTS, ENVIRONMENTS), np.arange(ENVIRONMENTS)
    seen, begun = env.reset(list(range(ENVIRONMENTS))), ENVIRONMENTS
    clock.fault = partial(plain_fault, learner)
    while True:
        kept: dict[str, list[Any]] = {"seen": [], "chain": []}
        rewards, alive = np.zeros(shape), np.ones(shape)
        following = np.zeros((*shape, size), np.float32)
        ended = np.zeros(shape)
        for t in range(shape[0]):
            now = torch.from_numpy(seen).float().to(device)
            chain = learner.sample(now)
            actions = chain[:, -1, :EXECUTED].clamp(-1, 1).cpu().numpy()
            kept["seen"].append(now)
            kept["chain"].append(chain)
            running, seen = each, seen.copy()
            for j in range(EXECUTED):
                step = env.step(actions[running, j], running)
                rewards[t, running] += DISCOUNT**j * step.rewards
                seen[running] = step.observations
                alive[t, running] = 1 - step.terminated
                ended[t, running] = step.terminated | step.truncated
                running = running[~(step.terminated | step.truncated)]
                if not len(running):
                    break
            following[t] = seen
            if len(over := np.flatnonzero(ended[t])):
                seen[over] = env.reset(list(range(begun, begun + len(over))), over)
                begun += len(over)
        told = {"rewards": rewards, "alive": alive, "ended": ended, "following": following}
        rows = {k: torch.from_numpy(v).float().to(device) for k, v in told.items()}
        rows |= {k: torch.stack(v) for k, v in kept.items()}
        learner.train(rows, DISCOUNT**EXECUTED, TRACE, EPOCHS, BATCH)
        clock.tick(DECISIONS * EXECUTED)
