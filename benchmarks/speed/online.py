"""Contenders of online training: environment steps per second, end to end."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import envs
from benchmarks.speed.clock import Clock
from benchmarks.speed.contenders import fault
from benchmarks.speed.eager import RLPD, plain_fault
from offline_rl.data import Dataset
from offline_rl.online.collector import Collector
from offline_rl.online.sinks import ReplaySink
from offline_rl.training.train import train
from offline_rl.training.work import Work
from offline_rl.utils import hardware

ROWS, WARM_UP = 100_000, 300


def data(env: envs.VectorEnv) -> dict[str, np.ndarray]:
    """Return random transitions of the environment's shapes; their values do not affect speed."""
    rng, (size,) = np.random.default_rng(0), env.observation_shape
    states = rng.normal(size=(ROWS + 1, size)).astype(np.float32)
    return {
        "observations": states[:-1],
        "actions": rng.uniform(-1, 1, (ROWS, env.action_dim)).astype(np.float32),
        "rewards": rng.normal(size=ROWS).astype(np.float32),
        "terminated": np.zeros(ROWS, bool),
        "truncated": np.arange(ROWS) % 1000 == 999,
        "next_observations": states[1:],
    }


def add_time(owner: Any, name: str, seconds: dict[str, float], key: str) -> None:
    """Patch a method so that the duration of its calls is added to `seconds[key]`."""
    call: Callable[..., Any] = getattr(owner, name)

    def measured(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return call(*arguments, **options)
        finally:
            seconds[key] += time.perf_counter() - started

    setattr(owner, name, measured)


class Shares:
    """Fractions of a loop's time by part, not counting the turns of other contenders."""

    def __init__(self, clock: Clock, *names: str) -> None:
        self.clock, self.seconds, self.since = clock, dict.fromkeys(names, 0.0), 0.0

    def begin(self) -> None:
        """Start measuring."""
        self.seconds.update(dict.fromkeys(self.seconds, 0.0))
        self.since = time.perf_counter()

    def tick(self, steps: int) -> None:
        """Report finished environment steps and the shares of time."""
        total = time.perf_counter() - self.since
        self.clock.facts["shares"] = {k: round(v / total, 4) for k, v in self.seconds.items()}
        paused = time.perf_counter()
        self.clock.tick(steps)
        self.since += time.perf_counter() - paused


def run_ours(clock: Clock, task: str, device: str, overlap: bool, precision: str = "auto") -> None:
    """Run `train` with rlpd and its authors' settings; one tick per environment step."""
    env = envs.make_vector(task, 1)
    rows = data(env)
    env.close()
    shares = Shares(clock, "simulator", "acting", "learner", "waiting")
    begin = Collector.begin

    def begin_and_tick(collector: Collector) -> None:
        if collector.steps == WARM_UP + 20:
            clock.fault = partial(fault, collector.engine)
            shares.begin()
        if collector.steps > WARM_UP + 20:
            shares.tick(1)
        begin(collector)

    add_time(Collector, "_execute", shares.seconds, "simulator")
    add_time(ReplaySink, "decide", shares.seconds, "acting")
    add_time(Work, "_learn", shares.seconds, "learner")
    add_time(Collector, "end", shares.seconds, "waiting")
    Collector.begin = begin_and_tick  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as out:
        train(
            algorithm="rlpd",
            task=task,
            dataset=Dataset.from_arrays(**rows),
            num_updates=0,
            num_env_steps=1_000_000,
            eval_every=1_000_000,
            eval_episodes=1,
            checkpoint_every=1_000_000,
            overlap=overlap,
            precision=precision,
            compile="always",
            device=device,
            tracker="none",
            out=out,
            show=False,
            **{"online.warmup_steps": WARM_UP},
        )


def run_eager(clock: Clock, task: str, device: str) -> None:
    """Run the authors' update in plain PyTorch; half of each batch is offline data."""
    torch.set_num_threads(hardware.num_cores())
    env = envs.make_vector(task, 1)
    (size,) = env.observation_shape
    offline = {k: torch.from_numpy(v).float().to(device) for k, v in data(env).items()}
    online = {k: torch.zeros_like(v) for k, v in offline.items()}
    learner = RLPD(size, env.action_dim, device)
    rng, stored, observation = np.random.default_rng(0), 0, env.reset([0])

    def batch() -> list[torch.Tensor]:
        halves = [
            (source, torch.randint(0, count, (128,), device=device))
            for source, count in ((offline, ROWS), (online, stored))
        ]
        names = ("observations", "actions", "rewards", "next_observations", "terminated")
        return [torch.cat([source[n][rows] for source, rows in halves]) for n in names]

    clock.fault = partial(plain_fault, learner)
    while True:
        if stored < WARM_UP:
            action = rng.uniform(-1, 1, (1, env.action_dim))
        else:
            with torch.no_grad():
                s = torch.from_numpy(observation).float().to(device)
                action = learner.actor(s)[0].cpu().numpy()
        step, row = env.step(action), stored % ROWS
        new = (observation, action, step.rewards, step.observations, step.terminated)
        names = ("observations", "actions", "rewards", "next_observations", "terminated")
        for name, value in zip(names, new, strict=True):
            online[name][row] = torch.as_tensor(value[0], dtype=torch.float32)
        stored, observation = stored + 1, step.observations
        if step.terminated[0] or step.truncated[0]:
            observation = env.reset([stored])
        if stored > WARM_UP:
            learner.train([batch() for _ in range(20)])
            clock.tick(1)
