"""tinkoff-ai/ReBRAC."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.jax_side import Store, doubles, norm_epsilon
from benchmarks.conformance.job import UNUSED, Job, Learner

SIDE = "jax_side"


def rebrac(job: Job) -> Learner:
    return learner(job)


def learner(job: Job, weight: Callable[[int], float] = lambda done: 1.0, **options: Any) -> Learner:
    """The policy's target follows the new policy; the second of two updates is the actor's.

    weight: of policy_bc after so many updates. options: of both of their update functions.
    """
    sys.path.insert(0, str(job.checkout))
    norm_epsilon(1e-5)
    module, c = job.load(swaps={"(actor.params, actor.t": "(new_actor.params, actor.t"}), job.config
    s, a, key = np.zeros((1, OBS)), np.zeros((1, ACT)), jax.random.PRNGKey(0)
    actor = module.DetActor(action_dim=ACT, hidden_dim=WIDTH, layernorm=False)
    critic = module.EnsembleCritic(hidden_dim=WIDTH, num_critics=2)
    made = {}
    for name, net, inputs in (("actor", actor, (s,)), ("critic", critic, (s, a))):
        params, state = net.init(key, *inputs), getattr(module, f"{name.title()}TrainState")
        adam = optax.adam(c[f"{name}_lr"])
        made[name] = state.create(apply_fn=net.apply, params=params, target_params=params, tx=adam)
    shared = {"gamma": c["discount"], "tau": c["tau"]} | options
    shared |= {"critic_bc_coef": c["critic_bc"], "policy_noise": c["policy_noise"]}
    shared |= {"noise_clip": c["noise_clip"]}
    done = 0

    def update(b: Any) -> dict[str, float]:
        nonlocal done
        batch = {"states": b.observations, "actions": b.actions, "rewards": b.rewards}
        batch |= {"next_states": b.next_observations, "dones": b.terminated}
        batch |= {"next_actions": b.next_actions, "mc_returns": b.mc_returns}
        metrics = module.Metrics.create(
            ["critic_loss", "q_min", "actor_loss", "bc_mse_policy", "bc_mse_random", "action_mse"]
        )
        step = module.update_td3_no_targets
        if done % c["policy_delay"] == c["policy_delay"] - 1:
            step = partial(module.update_td3, normalize_q=True)
        own = shared | {"actor_bc_coef": weight(done) * c["policy_bc"]}
        found = step(key=key, batch=batch, metrics=metrics, **made, **own)
        _, made["actor"], made["critic"], told = found
        done += 1
        names = {"critic_loss": "critic_loss"}
        names |= {"policy_loss": "actor_loss"} if done % c["policy_delay"] == 0 else {}
        return {ours: float(told.accumulators[theirs][0][0]) for ours, theirs in names.items()}

    links = []
    for ours, theirs in (("policy", "actor"), ("critic", "critic")):
        for name, part in ((ours, "params"), (f"{ours}_target", "target_params")):
            store = kept(made, theirs, part)
            if ours == "policy":
                links += store.mlp(f"{name}/trunk", layers("params/Dense", 4))
                continue
            inside = "params/VmapCritic_0"
            links += store.mlp(f"{name}/net", layers(f"{inside}/Dense", 4), stacked=True)
            links += store.norms(f"{name}/net", layers(f"{inside}/LayerNorm", 3), stacked=True)
    return Learner(links, update, ["noise", UNUSED])


def layers(kind: str, count: int) -> list[str]:
    return [f"{kind}_{i}" for i in range(count)]


def kept(made: dict[str, Any], name: str, part: str) -> Store:
    """A train state in a dict: its parameters or its target's."""

    def write(tree: Any) -> None:
        state = made[name]
        made[name] = state.replace(**{part: tree}, opt_state=doubles(state.opt_state))

    moments = (lambda: made[name].opt_state) if part == "params" else tuple
    return Store(lambda: getattr(made[name], part), write, moments)
