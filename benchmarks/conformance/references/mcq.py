"""Adapter to dmksjfl/MCQ."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from benchmarks.conformance.inputs import ACT, BATCH, OBS, SAMPLES, WIDTH
from benchmarks.conformance.job import UNUSED, Draw, Job, Learner
from benchmarks.conformance.torch_side import linears, link, mlp, two_heads

SIDE = "torch_side"


def mcq(job: Job) -> Learner:
    """Return the learner. Pseudo targets are not clamped; both critics use the same samples."""
    sys.path.insert(0, str(job.checkout))
    module, c = job.load(swaps={"preds.clamp(min=0)": "preds"}), job.config
    density = sys.modules["offlinerl.utils.net.tanhpolicy"].TanhNormal
    density.__init__.__defaults__ = (0.0,)
    density.mode = None  # newer versions of torch have a property with this name
    module.to_torch = lambda batch, *_, **__: batch
    module.to_torch_as = sys.modules["offlinerl.utils.net.continuous"].to_torch_as = lambda x, _: x
    module.os = MagicMock()
    environment = sys.modules["offlinerl.utils.env"]
    environment.get_env_shape = lambda _: (OBS, ACT)
    environment.get_env_action_range = lambda _: (1.0, -1.0)
    args = {"seed": 0, "obs_shape": None, "action_shape": None, "task": "d4rl-none"}
    args |= {"device": "cpu"}
    args |= {"layer_num": 1, "hidden_layer_size": WIDTH, "vae_features": WIDTH, "vae_layers": 2}
    args |= {name: c[name] for name in ("actor_lr", "critic_lr", "vae_lr", "discount")}
    args |= {"use_automatic_entropy_tuning": True, "target_entropy": None, "reward_scale": 1}
    args |= {"soft_target_tau": c["tau"], "lam": c["bellman_share"], "num": SAMPLES}
    args |= {"normalize": False, "log_dir": "", "batch_size": BATCH}
    t = module.AlgoTrainer(module.algo_init(args), args)
    t.mean, t.std = 0.0, 1.0 - 1e-6

    def update(b: Any) -> None:
        c = b.column
        rows = {"obs": b.observations, "act": b.actions, "obs_next": b.next_observations}
        t._train(SimpleNamespace(**rows, rew=c.rewards, done=c.terminated), MagicMock())

    links = two_heads("policy/trunk", linears(t.actor.preprocess), t.actor.mu, t.actor.sigma)
    links += mlp("vae/encoder", t.vae.encoder) + mlp("vae/decoder", t.vae.decoder)
    links.append(link("log_alpha/value", t.log_alpha))
    pairs = [(t.critic1, t.critic1_target), (t.critic2, t.critic2_target)]
    for k, (q, target) in enumerate(pairs):
        links += mlp("critic/net", q, k) + mlp("critic_target/net", target, k)
    halves: list[Draw] = [
        ("policy_samples", current_half),
        ("policy_samples", next_half),
        ("pseudo", current_half),
        ("pseudo", next_half),
    ]
    order = ["vae", "policy", "next", UNUSED, *halves, *halves]
    return Learner(links, update, order, ["vae_loss"])


def current_half(x: np.ndarray) -> np.ndarray:
    """Return the part of [N, 2 B, …] that belongs to the states."""
    return x[:, :BATCH]


def next_half(x: np.ndarray) -> np.ndarray:
    """Return the part of [N, 2 B, …] that belongs to the next states."""
    return x[:, BATCH:]
