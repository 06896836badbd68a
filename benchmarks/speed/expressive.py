"""Contenders for FQL and Diffusion-QL: plain PyTorch, and unmodified files of the authors.

Observations have 28 numbers, actions 5, batches 256 rows. FQL has four hidden layers of 512 units
and 10 integration steps, Diffusion-QL three of 256 units and 5 denoising steps.
"""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.speed.clock import BATCH, Clock, arrays

OBS, ACT = 28, 5
DENOISING_STEPS = 5


def run_eager(clock: Clock, algorithm: str, device: str) -> None:
    """Run the plain PyTorch version, for one seed."""
    import torch

    from benchmarks.speed.eager import Buffer, plain_fault
    from benchmarks.speed.expressive_eager import LEARNERS

    data = {k: torch.from_numpy(v).to(device) for k, v in arrays(OBS, ACT).items()}
    data["dones"] = data["dones"].float()
    buffer, learner = Buffer(data), LEARNERS[algorithm](OBS, ACT, device)
    clock.fault = partial(plain_fault, learner)
    while True:
        learner.train(buffer.sample())
        clock.tick(1)


def run_diffusion_ql(clock: Clock, checkout: str, device: str) -> None:
    """Run the authors' training loop, which reads the losses after every update."""
    import torch

    sys.path.insert(0, checkout)
    sys.modules["utils.logger"] = SimpleNamespace(logger=None)  # type: ignore[assignment]
    from agents.ql_diffusion import Diffusion_QL
    from utils.data_sampler import Data_Sampler

    data = arrays(OBS, ACT)
    data["terminals"] = data["dones"].astype(np.float32)
    sampler = Data_Sampler(data, device)
    agent = Diffusion_QL(OBS, ACT, 1.0, device, 0.99, 0.005, False, 1.0, "vp", DENOISING_STEPS)
    networks = (agent.actor, agent.critic)
    clock.fault = lambda: (
        None
        if all(p.isfinite().all() for net in networks for p in net.parameters())
        else "the parameters are not finite"
    )
    torch.manual_seed(0)
    while True:
        agent.train(sampler, iterations=1, batch_size=BATCH)
        clock.tick(1)


def run_fql(clock: Clock, checkout: str, seeds: int, device: str) -> None:
    """Run the authors' agent on batches of their data set; several seeds use `jax.vmap`."""
    sys.path.insert(0, checkout)
    import jax
    from agents.fql import FQLAgent, get_config
    from utils.datasets import Dataset

    data = arrays(OBS, ACT)
    columns = {k: data[k] for k in ("observations", "actions", "rewards", "next_observations")}
    ends = data["timeouts"].astype(np.float32)
    dataset = Dataset.create(**columns, masks=1 - data["dones"].astype(np.float32), terminals=ends)
    example = columns["observations"][:1], columns["actions"][:1]
    agents = [FQLAgent.create(seed, *example, get_config()) for seed in range(seeds)]

    def stack(*leaves: Any) -> Any:
        return jax.numpy.stack(leaves)

    if seeds == 1:
        agent, update = agents[0], FQLAgent.update
    else:
        leaves = zip(*(jax.tree_util.tree_leaves(each) for each in agents), strict=True)
        form = jax.tree_util.tree_structure(agents[0])
        agent = jax.tree_util.tree_unflatten(form, [stack(*each) for each in leaves])
        update = jax.jit(jax.vmap(FQLAgent.update))

    def fault() -> str | None:
        finite = (np.isfinite(x).all() for x in jax.tree_util.tree_leaves(agent.network.params))
        return None if all(finite) else "the parameters are not finite"

    clock.fault = fault
    while True:
        batch = dataset.sample(seeds * BATCH)
        if seeds > 1:
            batch = {k: v.reshape(seeds, BATCH, *v.shape[1:]) for k, v in batch.items()}
        agent, info = update(agent, batch)
        clock.tick(1, partial(jax.block_until_ready, (agent, info)))
