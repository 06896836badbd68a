"""One trained seed of a run in Python: compute actions and Q values, and evaluate the policy.

run = offline_rl.load("runs/neorl2_DMSD/iql/default")
run.q_values(observations, run.act(observations)).mean(0)
"""

from __future__ import annotations

import os
from contextlib import closing
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import envs
from envs import VectorEnv
from offline_rl.algorithms.common.base import Network
from offline_rl.algorithms.common.registry import rebuild_algorithm
from offline_rl.data.transform import Transform
from offline_rl.evaluation.bundles import bundled
from offline_rl.evaluation.evaluate import adapted, play
from offline_rl.evaluation.options import check_task
from offline_rl.evaluation.rollout import Episodes
from offline_rl.online.composed import attach_base, steerable_base
from offline_rl.runs.folder import SeedFolder, common_checkpoint, seed_numbers
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json_object
from offline_rl.utils.hardware import num_cores
from offline_rl.utils.options import to_python
from offline_rl.utils.seeds import EVALUATION_SEED
from policies import Spec
from policies.arrays import as_array
from policies.networks.defaults import torch_defaults
from policies.policy import BundlePolicy
from policies.runtimes.network import make_network


@torch_defaults()
def load(run: str | os.PathLike[str], seed: int | None = None) -> Trained:
    """Load one training seed of a run, finished or not.

    run: the run's folder, a seed's folder, or the result of `train`. seed: by default the lowest.
    Raises UserError if the run has no such seed, or the seed has no checkpoint.
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
    seeds = seed_numbers(path)
    if not seeds or (seed is not None and seed not in seeds):
        problem = f"has no seed {seed}, only {seeds}" if seeds else "holds no seeds"
        names = ", ".join(sorted(p.parent.name for p in path.glob("*/seed_0")))
        remedy = "Give the folder that contains seed_0, or one of its seeds."
        if names and not seeds:
            remedy = f"It holds several runs. Give one of {names}."
        raise UserError(f"{os.fspath(run)} {problem}. {remedy}")
    return Trained(SeedFolder(path, seeds[0] if seed is None else seed))


class Trained:
    """A training seed of a run, loaded from its newest complete checkpoint."""

    def __init__(self, folder: SeedFolder) -> None:
        """Load the seed's checkpoint. Raises UserError if there is none."""
        self.path, self.config = folder.path, read_json_object(folder.config)
        self.config["algorithm"] = folder.algorithm(self.config)
        checkpoint = common_checkpoint([folder])
        if checkpoint is None:
            raise UserError(f"{folder.path} holds no checkpoint yet. Train longer, then try again.")
        tensors, progress = folder.load(checkpoint)
        self.updates = checkpoint.updates  # in all phases
        self.parameters: dict[str, dict[str, Tensor]] = {}  # network -> name -> parameter
        for key, value in tensors.items():
            kind, network, name = (*key.split("/", 2), "")[:3]
            if kind == "params":
                self.parameters.setdefault(network, {})[name] = value
        self.transform = Transform.from_json(progress["transform"])
        spec = Spec.from_json(progress["spec"])
        self.algorithm = rebuild_algorithm(self.config["algorithm"], self.config["hyper"], spec)
        if self.algorithm.mode.takes_base and self.config.get("base") is not None:
            self.algorithm.base = steerable_base(self.config["base"], spec).bundle

    def __repr__(self) -> str:
        algorithm, task = self.config["algorithm"], self.config["task"]
        return f"<{algorithm} on {task} after {self.updates:,} updates: {self.path}>"

    @cached_property
    def policy(self) -> BundlePolicy:
        """The policy, as loaded from a bundle: raw observations in, actions in [-1, 1] out."""
        params = self.algorithm.acting_params(self.parameters)
        weights = {k: v.numpy() for k, v in params.items()}
        bundle = bundled(self.algorithm, weights, self.transform, {})
        policy = BundlePolicy(bundle, make_network(bundle, "torch"))
        if self.algorithm.mode.start != "base":
            return policy
        env = self._make_env(1, None)
        composed = attach_base(policy, self.config["base"], env)
        env.close()
        return composed

    def _make_env(self, count: int, task: str | None) -> VectorEnv:
        """Make `count` environments of `task`, by default the run's task. Raises UserError."""
        check_task({"task": task})
        try:
            env_task = adapted(task or self.config["task"], self.config)
            return envs.make_vector(env_task, count, num_threads=min(num_cores(), 8), fewer=True)
        except ValueError as error:
            raise UserError(str(error)) from None

    @torch_defaults()
    def act(self, observations: np.ndarray) -> np.ndarray:
        """Return deterministic actions in [-1, 1], [A] or [B, A].

        observations: raw, [*obs] or [B, *obs]. A policy with memory acts as at the start of an
        episode. Raises ValueError for another shape or a NaN.
        """
        chunk, _ = self.policy.act(observations)
        return chunk[..., 0, :]

    @torch_defaults()
    def q_values(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the Q value of each critic, [E, B], or [E] for one observation and one action.

        observations: raw, [B, *obs]. actions: in [-1, 1], [B, A]. The values are returns of the
        preprocessed rewards (after `transform`). Raises UserError if the algorithm has no critic
        of single steps and vectors, and ValueError for other shapes.
        """
        if "critic" not in self.parameters:
            raise UserError(f"{self.config['algorithm']} learns no Q function.")
        if self.algorithm.spec.single_vector is None:
            names = ", ".join(channel.name for channel in self.algorithm.spec.channels)
            raise UserError(
                f"Q values are only available for observations that are one vector. {self.path} "
                f"was trained on {names}."
            )
        head = self.algorithm.acting_head()
        if head.n_obs_steps * head.n_action_steps > 1:
            raise UserError(
                f"The Q function of {self.path} takes observation histories and action chunks, not "
                "single steps."
            )
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
        """Play complete episodes with the policy. Raises UserError.

        episodes: number of episodes. task: task to play, by default the run's task.
        """
        episodes = to_python(episodes)
        if not isinstance(episodes, int) or episodes < 1:
            hint = " offline-rl evaluate has episodes=all." * (episodes == "all")
            raise UserError(f"episodes={episodes} is not an integer of at least 1.{hint}")
        with closing(self._make_env(episodes, task)) as env:
            try:
                return play(self.policy, env, EVALUATION_SEED + np.arange(episodes))
            except ValueError as error:
                raise UserError(str(error)) from None
