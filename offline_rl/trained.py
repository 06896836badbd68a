"""A seed of a run, to be asked: what it would do, what its critics think of it, how it plays.

run = offline_rl.load("runs/neorl2_DMSD/iql/default")
run.q_values(observations, run.act(observations)).mean(0)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import envs
from envs import VectorEnv
from offline_rl.algorithms.common.base import Algorithm, Network
from offline_rl.algorithms.common.registry import rebuild_algorithm
from offline_rl.data.transform import Transform
from offline_rl.evaluation.evaluate import adapted, play
from offline_rl.evaluation.options import check_task
from offline_rl.evaluation.rollout import Episodes
from offline_rl.online.with_base import attach_base
from offline_rl.training.run_folder import SeedFolder, common_checkpoint
from offline_rl.training.trainer import bundled
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json_object
from offline_rl.utils.hardware import num_cores
from offline_rl.utils.options import to_python
from offline_rl.utils.seeds import EVALUATION_SEED
from policies import BundleError, Spec
from policies.arrays import as_array
from policies.bundle import read
from policies.networks.defaults import torch_defaults
from policies.policy import BundlePolicy
from policies.runtimes.network import make_network


@torch_defaults()
def load(run: str | os.PathLike[str], seed: int | None = None) -> Trained:
    """Load one training seed of a run, finished or not.

    run: its folder, a seed's folder, or the result of `train`; seed: default, its first.
    Raises UserError if there is no such seed, or no checkpoint.
    """
    path = Path(run)
    if path.is_file():
        if path.suffix == ".bundle":
            raise UserError(f"{path} is a policy bundle. Load it with policies.load")
        raise UserError(
            f"{path} is a file, not the folder of a run. Load data with offline_rl.Dataset.load"
        )
    if seed is None and path.name.startswith("seed_"):
        path, seed = path.parent, int(path.name.removeprefix("seed_"))
    found = sorted(int(p.name[5:]) for p in path.glob("seed_*") if p.name[5:].isdigit())
    if not found or (seed is not None and seed not in found):
        what = f"has no seed {seed}, only {found}" if found else "holds no seeds"
        names = ", ".join(sorted(p.parent.name for p in path.glob("*/seed_0")))
        each = f". It holds several runs; give one of {names}" if names and not found else ""
        remedy = each or ": give the folder above seed_0, or one of its seeds"
        raise UserError(f"{os.fspath(run)} {what}{remedy}")
    return Trained(SeedFolder(path, found[0] if seed is None else seed))


class Trained:
    """What a seed's newest whole checkpoint holds, finished or not."""

    def __init__(self, folder: SeedFolder) -> None:
        """Raises UserError where there is no checkpoint."""
        self.path, self.config = folder.path, read_json_object(folder.config)
        self.config["algorithm"] = folder.algorithm(self.config)
        done = common_checkpoint([folder])
        if done is None:
            raise UserError(f"{folder.path} holds no checkpoint yet")
        tensors, progress = folder.load(done)
        self.updates = done.updates  # of all phases
        self.parameters: dict[str, dict[str, Tensor]] = {}  # network -> its parameters
        for key, value in tensors.items():
            kind, network, name = (*key.split("/", 2), "")[:3]
            if kind == "params":
                self.parameters.setdefault(network, {})[name] = value
        self.transform = Transform.from_json(progress["transform"])
        self.algorithm = self._algorithm(progress.get("spec"))

    def _algorithm(self, spec: Mapping[str, Any] | None) -> Algorithm:
        """As it was when it learned. spec: None where an earlier version left it to the bundle."""
        try:
            seen = Spec.from_json(spec) if spec else read(self.path / "policy.bundle").spec
        except BundleError as error:
            raise UserError(f"{self.path}: what the policy sees is not known: {error}") from None
        return rebuild_algorithm(self.config["algorithm"], self.config["hyper"], seen)

    def __repr__(self) -> str:
        algorithm, task = self.config["algorithm"], self.config["task"]
        return f"<{algorithm} on {task} after {self.updates:,} updates: {self.path}>"

    @cached_property
    def policy(self) -> BundlePolicy:
        """As that of a bundle: raw observations in, actions in [-1, 1] out."""
        weights = {k: v.numpy() for k, v in self.parameters[self.algorithm.policy].items()}
        made = bundled(self.algorithm, weights, self.transform, {})
        policy = BundlePolicy(made, make_network(made, "torch"))
        if not self.algorithm.is_residual:
            return policy
        env = self._world(1, None)
        whole = attach_base(policy, self.config["base"], env)
        env.close()
        return whole

    def _world(self, count: int, task: str | None) -> VectorEnv:
        """So many environments, of the run's own task by default. Raises UserError."""
        check_task({"task": task})
        try:
            found = adapted(task or self.config["task"], self.config)
            return envs.make_vector(found, count, num_threads=min(num_cores(), 8), fewer=True)
        except ValueError as error:
            raise UserError(str(error)) from None

    @torch_defaults()
    def act(self, observations: np.ndarray) -> np.ndarray:
        """[*obs] or [B, *obs], raw -> [A] or [B, A] in [-1, 1], deterministic.

        A policy that remembers acts as at an episode's beginning. Raises ValueError for another
        shape or a NaN.
        """
        chunk, _ = self.policy.act(observations)
        return chunk[..., 0, :]

    @torch_defaults()
    def q_values(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """[B, *obs] raw and [B, A] in [-1, 1] -> [E, B]: what each critic expects to follow.

        Of one observation and one action, [E]. In rewards as they are learned from: `transform` says
        how raw ones were scaled. Raises UserError where nothing of the kind is learned, ValueError
        for other shapes.
        """
        if "critic" not in self.parameters:
            raise UserError(f"{self.config['algorithm']} learns no values of actions")
        if self.algorithm.spec.single_vector is None:
            seen = ", ".join(channel.name for channel in self.algorithm.spec.channels)
            raise UserError(f"values are asked of one vector, and {self.path} learned from {seen}")
        hyper = self.config["hyper"]
        if hyper.get("n_obs_steps", 1) * hyper.get("n_action_steps", 1) > 1:
            raise UserError(f"{self.path} learned values of histories and chunks, not of one step")
        s, a = as_array(observations), as_array(actions, np.float32)
        spec = self.algorithm.spec
        single = s.shape == spec.observation_shape and a.ndim == 1
        s, a = (s[None], a[None]) if single else (s, a)
        if s.shape != (len(s), *spec.observation_shape) or a.shape != (len(s), spec.action_dim):
            raise ValueError(
                f"observations {list(s.shape)} and actions {list(a.shape)}: expected "
                f"[B, {', '.join(map(str, spec.observation_shape))}] and [B, {spec.action_dim}]"
            )
        critic = Network(self.algorithm.modules["critic"], self.parameters["critic"])
        with torch.inference_mode():
            values: Tensor = critic(
                torch.from_numpy(self.transform.normalizer(s)), torch.from_numpy(a)
            )
        return values[:, 0].numpy() if single else values.numpy()

    @torch_defaults()
    def evaluate(self, episodes: int = 10, task: str | None = None) -> Episodes:
        """Whole episodes in an environment, the run's own by default. Raises UserError."""
        episodes = to_python(episodes)
        if not isinstance(episodes, int) or episodes < 1:
            every = "; offline-rl evaluate episodes=all plays each start" * (episodes == "all")
            raise UserError(f"episodes={episodes}: a whole number from 1 on is needed{every}")
        with closing(self._world(episodes, task)) as env:
            try:
                return play(self.policy, env, EVALUATION_SEED + np.arange(episodes))
            except ValueError as error:
                raise UserError(str(error)) from None
