"""Adapter to tinkoff-ai/ReBRAC."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.jax_side import Store, set_norm_epsilon, to_float64
from benchmarks.conformance.job import UNUSED, Job, Learner

SIDE = "jax_side"


def rebrac(job: Job) -> Learner:
    return learner(job)


def learner(job: Job, weight: Callable[[int], float] = lambda done: 1.0, **options: Any) -> Learner:
    """Return the learner.

    The target policy follows the updated policy, and every second update trains the actor.
    weight: factor on policy_bc as a function of the number of updates. options: of both update
    functions of the reference.
    """
    sys.path.insert(0, str(job.checkout))
    set_norm_epsilon(1e-5)
    module, c = job.load(swaps={"(actor.params, actor.t": "(new_actor.params, actor.t"}), job.config
    s, a, key = np.zeros((1, OBS)), np.zeros((1, ACT)), jax.random.PRNGKey(0)
    actor = module.DetActor(action_dim=ACT, hidden_dim=WIDTH, layernorm=False)
    critic = module.EnsembleCritic(hidden_dim=WIDTH, num_critics=2)
    states = {}
    for name, net, inputs in (("actor", actor, (s,)), ("critic", critic, (s, a))):
        params, state = net.init(key, *inputs), getattr(module, f"{name.title()}TrainState")
        adam = optax.adam(c[f"{name}_lr"])
        states[name] = state.create(
            apply_fn=net.apply, params=params, target_params=params, tx=adam
        )
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
        coefficients = shared | {"actor_bc_coef": weight(done) * c["policy_bc"]}
        results = step(key=key, batch=batch, metrics=metrics, **states, **coefficients)
        _, states["actor"], states["critic"], metrics = results
        done += 1
        names = {"critic_loss": "critic_loss"}
        names |= {"policy_loss": "actor_loss"} if done % c["policy_delay"] == 0 else {}
        return {ours: float(metrics.accumulators[theirs][0][0]) for ours, theirs in names.items()}

    links = []
    for ours, theirs in (("policy", "actor"), ("critic", "critic")):
        for name, part in ((ours, "params"), (f"{ours}_target", "target_params")):
            store = make_store(states, theirs, part)
            if ours == "policy":
                links += store.mlp(f"{name}/trunk", layers("params/Dense", 4))
                continue
            inside = "params/VmapCritic_0"
            links += store.mlp(f"{name}/net", layers(f"{inside}/Dense", 4), stacked=True)
            links += store.norms(f"{name}/net", layers(f"{inside}/LayerNorm", 3), stacked=True)
    return Learner(links, update, ["noise", UNUSED])


def layers(kind: str, count: int) -> list[str]:
    return [f"{kind}_{i}" for i in range(count)]


def make_store(states: dict[str, Any], name: str, part: str) -> Store:
    """Return access to the parameters, or the target parameters, of a train state in a dict."""

    def write(tree: Any) -> None:
        state = states[name]
        states[name] = state.replace(**{part: tree}, opt_state=to_float64(state.opt_state))

    moments = (lambda: states[name].opt_state) if part == "params" else tuple
    return Store(lambda: getattr(states[name], part), write, moments)
