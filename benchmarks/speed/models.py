"""Contenders for dynamics models: our engine, and unmodified files of OfflineRL-Kit.

`fit` counts training steps of the ensemble: 256 rows for each of 7 members. `rollout` counts sets
of 10,000 rollouts of 5 steps, with MOPO's penalty, stored in a buffer. Observations have 17
numbers, actions 6; no rollout ends early.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from benchmarks.speed.clock import ACT, BATCH, OBS, Clock, arrays

STARTS, HORIZON = 10_000, 5
FIT_STEPS = 10  # training steps between two readings of the clock
DECAY = [2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4]


def run_ours(clock: Clock, work: str, seeds: int) -> None:
    """Run the engine, compiled, with stacked seeds. work: fit or rollout."""
    import torch

    from offline_rl.algorithms.common.models.facts import Facts
    from offline_rl.algorithms.mopo import MOPO, Config
    from offline_rl.data import Dataset
    from offline_rl.engine.engine import Engine
    from offline_rl.replay.ring import Ring
    from offline_rl.training.sources import offline_source
    from offline_rl.utils import hardware
    from policies import Spec

    data, spec = arrays(), Spec((OBS,), ACT)
    names = ("observations", "actions", "rewards", "dones", "timeouts", "next_observations")
    dataset = Dataset.from_arrays(*(data[name] for name in names))
    settings = {"starts": STARTS, "horizon": HORIZON, "ends": "never", "actor_anneals": False}
    dataset, cfg = MOPO(spec, Config(**settings)).prepare(dataset)

    def make(_: int) -> MOPO:
        algorithm = MOPO(spec, cfg, 1_000_000)
        algorithm.facts = Facts([0.0] * OBS, [1.0] * OBS)
        return algorithm

    learner = make(0)
    sources = {"offline": offline_source(learner, dataset)}
    for name, rows in learner.rings().items():
        sources[name] = Ring((OBS,), ACT, rows, streams=seeds)
    engine = Engine(make, range(seeds), sources, batch_size=BATCH, compile=True)
    torch.set_num_threads(hardware.num_cores())

    def fault() -> str | None:
        return None if engine.finite_seeds().all() else "the parameters are not finite"

    clock.fault = fault
    while True:
        if work == "fit":
            engine.run(FIT_STEPS, "fit_dynamics")
            clock.tick(FIT_STEPS)
        else:
            engine.fill("update", STARTS, "starts", "imagined")
            clock.tick(1)


def run_kit(clock: Clock, work: str, checkout: str) -> None:
    """Run OfflineRL-Kit's ensemble and MOPO's rollouts. work: fit or rollout."""
    import torch

    sys.path.insert(0, checkout)
    for name in ("gym", "gym.envs", "gym.envs.mujoco"):  # imported, but not used here
        sys.modules[name] = MagicMock()
    from offlinerlkit.buffer import ReplayBuffer
    from offlinerlkit.dynamics import EnsembleDynamics
    from offlinerlkit.modules import ActorProb, Critic, EnsembleDynamicsModel, TanhDiagGaussian
    from offlinerlkit.nets import MLP
    from offlinerlkit.policy import MOPOPolicy
    from offlinerlkit.utils.scaler import StandardScaler

    data = arrays()
    model = EnsembleDynamicsModel(
        OBS, ACT, [200, 200, 200, 200], 7, 5, weight_decays=DECAY, device="cpu"
    )
    scaler = StandardScaler()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def never(obs: Any, act: Any, next_obs: Any) -> Any:
        return np.zeros((len(obs), 1), bool)

    dynamics = EnsembleDynamics(model, optimizer, scaler, never, 1.0)
    columns = data | {"rewards": data["rewards"][:, None]}
    inputs, targets = dynamics.format_samples_for_training(columns)
    scaler.fit(inputs)
    inputs = scaler.transform(inputs)

    def actor() -> Any:
        backbone = MLP(OBS, [256, 256])
        dist = TanhDiagGaussian(backbone.output_dim, ACT, unbounded=True, conditioned_sigma=True)
        return ActorProb(backbone, dist, "cpu")

    critics = [Critic(MLP(OBS + ACT, [256, 256]), "cpu") for _ in range(2)]
    policy_net = actor()
    optimizers = [torch.optim.Adam(net.parameters()) for net in (policy_net, *critics)]
    policy = MOPOPolicy(dynamics, policy_net, *critics, *optimizers)
    capacity = STARTS * HORIZON * 5
    buffer = ReplayBuffer(capacity, (OBS,), np.float32, ACT, np.float32, "cpu")
    rng = np.random.default_rng(0)
    clock.fault = lambda: (
        None
        if all(p.isfinite().all() for p in model.parameters())
        else "the parameters are not finite"
    )
    while True:
        if work == "fit":
            rows = rng.integers(len(inputs), size=(7, FIT_STEPS * BATCH))
            dynamics.learn(inputs[rows], targets[rows], BATCH, 0.01)
            clock.tick(FIT_STEPS)
        else:
            starts = data["observations"][rng.integers(len(inputs), size=STARTS)]
            transitions, _ = policy.rollout(starts, HORIZON)
            buffer.add_batch(**transitions)
            clock.tick(1)
