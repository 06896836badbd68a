"""Adapter to yassineCh/CAPS. Its cost critics learn negative costs, ours learn costs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import Job, Learner, Link
from benchmarks.conformance.references.osrl import Log
from benchmarks.conformance.torch_side import linears, link, mlp

SIDE = "torch_side"
LOSSES = {"reward_value_loss": "value_loss", "cost_value_loss": "cost_value_loss"}
LOSSES |= {"reward_q_loss": "critic_loss", "cost_q_loss": "cost_critic_loss"}


def caps(job: Job) -> Learner:
    """Return the learner.

    The reference's policy loss differs from ours by a term that no parameter changes, so it is not
    compared. Its gradients are.
    """
    sys.path.insert(0, str(job.checkout))
    module, c = job.load(), job.config
    model = module.CapsIQL(
        OBS,
        ACT,
        1.0,
        num_heads=c["num_heads"],
        hidden_dim=WIDTH,
        iql_tau=c["expectile"],
        iql_tau_cost=c["cost_expectile"],
        beta=c["beta"],
        beta_cost=c["cost_beta"],
        tau=c["tau"],
        gamma=c["discount"],
    )
    log, model.episode_len = Log(), c["episode_steps"]
    rates = {"actor_lr": c["actor_lr"], "q_lr": c["critic_lr"], "value_lr": c["value_lr"]}
    t = module.CapsIQLTrainer(model, SimpleNamespace(), log, max_steps=c["decay_updates"], **rates)

    def update(b: Any) -> dict[str, float]:
        rows = b.observations, b.next_observations, b.actions, b.rewards, b.costs, b.terminated
        t.train_one_step(*rows, 0)
        return {ours: log[f"loss/{name}"] for name, ours in LOSSES.items()}

    def act(b: Any) -> dict[str, Any]:
        """Return the actions of an episode whose observations and costs are the batch's."""
        episode = Episode(b.observations.numpy(), b.costs.numpy())
        t.env = episode
        t.rollout_switch(c["target_cost"])
        return {"actions": np.stack(episode.actions)}

    actor = model.actor
    links = mlp("policy/trunk", linears(actor.net))
    for k in range(c["num_heads"]):
        layer, columns = actor.tasks[f"a_{k}"], slice(k * ACT, (k + 1) * ACT)
        at = slice(None), columns
        links.append(link("policy/trunk.weights.2", layer.weight, at, transposed=True))
        links.append(link("policy/trunk.biases.2", layer.bias, (columns,)))
    for name, q in (("critic", model.reward_q), ("cost_critic", model.cost_q)):
        for suffix, nets in (("", q), ("_target", getattr(model, f"{prefix(name)}_q_target"))):
            both = [mlp(f"{name}{suffix}/net", net, k) for k, net in enumerate((nets.q1, nets.q2))]
            links += [x for each in both for x in signed(each, name)]
    for name, v in (("value", model.reward_v), ("cost_value", model.cost_v)):
        links += signed(mlp(f"{name}/net", v), name)
    return Learner(links, act if job.phase == "act" else update)


class Episode:
    """Environment with given observations [T, O] and costs [T], which records the actions."""

    def __init__(self, observations: np.ndarray, costs: np.ndarray) -> None:
        self.observations, self.costs = observations, costs
        self.actions = list[np.ndarray]()

    def reset(self) -> tuple[np.ndarray, dict[str, float]]:
        return self.observations[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, float]]:
        self.actions.append(action)
        count = len(self.actions)
        cost, is_last = {"cost": self.costs[count - 1]}, count == len(self.costs)
        return self.observations[count % len(self.costs)], 0.0, False, is_last, cost


def prefix(name: str) -> str:
    """Return the reference's prefix of a critic: reward or cost."""
    return "cost" if name.startswith("cost") else "reward"


def signed(links: Sequence[Link], name: str) -> list[Link]:
    """Return the links of an MLP; of a network of costs, the sign of its last layer changes."""
    if not name.startswith("cost"):
        return list(links)
    return [*links[:-2], *map(negated, links[-2:])]


def negated(x: Link) -> Link:
    """Return a link to the negative of a reference's parameter."""

    def moment() -> np.ndarray | None:
        values = x.moment()
        return None if values is None else -values

    return replace(x, read=lambda: -x.read(), write=lambda v: x.write(-v), moment=moment)
