"""Contenders of on-policy training: DPPO's iterations, simulator included."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import envs
from benchmarks.speed.clock import Clock
from benchmarks.speed.contenders import fault
from benchmarks.speed.eager import DPPO, plain_fault
from benchmarks.speed.online import Shares, add_time, data
from offline_rl.data import Dataset
from offline_rl.engine.engine import Engine
from offline_rl.online.collector import Collector
from offline_rl.training.train import finetune, train
from offline_rl.training.work import Work
from offline_rl.utils import hardware

# sizes of the pretrained policy in configs/suite/denoising-rl.yaml, and of a short DPPO iteration
ENVIRONMENTS, DECISIONS, N_ACTION_STEPS, HORIZON, BATCH = 50, 5_000, 2, 4, 2_500
NUM_INFERENCE_STEPS, TUNED, EPOCHS, DISCOUNT, TRACE = 20, 5, 5, 0.99, 0.95


def run_ours(clock: Clock, task: str, device: str, seeds: int, compile: str) -> None:
    """Run `finetune` from an almost untrained diffusion policy; one tick per iteration."""
    env = envs.make_vector(task, 1)
    rows = data(env)
    env.close()
    shares = Shares(clock, "simulator", "acting", "learner")
    common: dict[str, Any] = {"device": device, "tracker": "none", "show": False, "seeds": seeds}
    size, original_step = DECISIONS * N_ACTION_STEPS, Collector.step
    add_time(Collector, "_execute", shares.seconds, "simulator")
    add_time(Engine, "apply", shares.seconds, "acting")
    add_time(Work, "_learn", shares.seconds, "learner")

    def step(collector: Collector, **options: bool) -> None:
        if collector.steps == size:  # everything is built and compiled
            clock.fault = partial(fault, collector.engine)
            shares.begin()
        if collector.steps > size and collector.steps % size == 0:
            shares.tick(seeds * size)
        original_step(collector, **options)

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
            **common,
            **{
                "algorithm.network": "mlp",
                "algorithm.widths": [256, 256, 256],
                "algorithm.prediction_type": "sample",
                "algorithm.n_obs_steps": 1,
                "algorithm.horizon": HORIZON,
                "algorithm.n_action_steps": N_ACTION_STEPS,
            },
        )
        Collector.step = step  # type: ignore[method-assign,assignment]
        finetune(
            run=Path(out) / task.replace("/", "_") / "diffusion_policy" / "clone",
            algorithm="dppo",
            num_env_steps=10_000 * size,
            eval_every=10_000 * size,
            checkpoint_every=10_000 * size,
            compile=compile,
            out=f"{out}/tuned",
            **common,
            **{
                "algorithm.environments": ENVIRONMENTS,
                "algorithm.decisions": DECISIONS,
                "algorithm.batch_size": BATCH,
                "algorithm.epochs": EPOCHS,
            },
        )


def run_eager(clock: Clock, task: str, device: str) -> None:
    """Run the authors' iteration in plain PyTorch."""
    torch.set_num_threads(hardware.num_cores())
    env = envs.make_vector(task, ENVIRONMENTS)
    (size,) = env.observation_shape
    learner = DPPO(
        size, env.action_dim, HORIZON, N_ACTION_STEPS, NUM_INFERENCE_STEPS, TUNED, device
    )
    shape, each = (DECISIONS // ENVIRONMENTS, ENVIRONMENTS), np.arange(ENVIRONMENTS)
    observations, next_seed = env.reset(list(range(ENVIRONMENTS))), ENVIRONMENTS
    clock.fault = partial(plain_fault, learner)
    while True:
        tensors: dict[str, list[Any]] = {"observations": [], "chain": []}
        rewards, alive = np.zeros(shape), np.ones(shape)
        following = np.zeros((*shape, size), np.float32)
        ended = np.zeros(shape)
        for t in range(shape[0]):
            s = torch.from_numpy(observations).float().to(device)
            chain = learner.sample(s)
            actions = chain[:, -1, :N_ACTION_STEPS].clamp(-1, 1).cpu().numpy()
            tensors["observations"].append(s)
            tensors["chain"].append(chain)
            running, observations = each, observations.copy()
            for j in range(N_ACTION_STEPS):
                step = env.step(actions[running, j], running)
                rewards[t, running] += DISCOUNT**j * step.rewards
                observations[running] = step.observations
                alive[t, running] = 1 - step.terminated
                ended[t, running] = step.terminated | step.truncated
                running = running[~(step.terminated | step.truncated)]
                if not len(running):
                    break
            following[t] = observations
            if len(over := np.flatnonzero(ended[t])):
                seeds = list(range(next_seed, next_seed + len(over)))
                observations[over] = env.reset(seeds, over)
                next_seed += len(over)
        arrays = {"rewards": rewards, "alive": alive, "ended": ended, "following": following}
        rows = {k: torch.from_numpy(v).float().to(device) for k, v in arrays.items()}
        rows |= {k: torch.stack(v) for k, v in tensors.items()}
        learner.train(rows, DISCOUNT**N_ACTION_STEPS, TRACE, EPOCHS, BATCH)
        clock.tick(DECISIONS * N_ACTION_STEPS)
