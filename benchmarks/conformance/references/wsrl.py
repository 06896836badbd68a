"""zhouzypaul/wsrl."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.conformance import jax_side
from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.jax_side import Store, doubles, norm_epsilon
from benchmarks.conformance.job import Job, Learner

SIDE = "jax_side"
NETS = "wsrl/networks/actor_critic_nets.py"
SHARED = "value = nn.Dense(1, kernel_init=self.init_fn())(outputs)"
APART = """size, zeros = outputs.shape, nn.initializers.zeros
            value = outputs @ self.param("last_kernel", zeros, (size[0], size[-1], 1))
            value = value + self.param("last_bias", zeros, (size[0], 1, 1))"""
SCALED = """affine = self.param("affine", nn.initializers.zeros, (2,))
                log_stds = affine[0] * log_stds + affine[1]"""


def wsrl(job: Job) -> Learner:
    """Temperatures are exponentials, deviations are scaled, critics share no layer.

    What a step leaves out stays as it was.
    """
    sys.path.insert(0, str(job.checkout))
    norm_epsilon(1e-5)
    nets = job.load(NETS, {"# # mitsuhiko ablation": SCALED, SHARED: APART})
    sys.modules["wsrl.networks.actor_critic_nets"] = nets
    module, c = job.load(), job.config
    module.GeqLagrangeMultiplier = partial(module.GeqLagrangeMultiplier, parameterization="exp")
    jax.random.randint = lambda key, shape, low, high: jnp.floor(
        high * jnp.asarray(jax_side.replay("uniform", shape))
    ).astype(int)
    sizes = {"hidden_dims": (WIDTH, WIDTH), "use_layer_norm": True}
    agent = module.SACAgent.create(
        jax.random.PRNGKey(0),
        np.zeros((1, OBS)),
        np.zeros((1, ACT)),
        encoder_def=None,
        shared_encoder=False,
        critic_network_kwargs=sizes,
        policy_network_kwargs=sizes,
        critic_ensemble_size=c["critics"],
        critic_subsample_size=c["subset"],
        actor_optimizer_kwargs={"learning_rate": c["actor_lr"]},
        critic_optimizer_kwargs={"learning_rate": c["critic_lr"]},
        temperature_optimizer_kwargs={"learning_rate": c["alpha_lr"]},
        discount=c["discount"],
        soft_target_update_rate=c["tau"],
        target_entropy=-c["entropy_scale"] * ACT,
        backup_entropy=c["backup_entropy"],
        max_target_backup=c["max_target_backup"],
        n_actions=c["samples"],
    )
    now = SimpleNamespace(agent=agent, done=0)

    def step(batch: Any, *networks: str) -> Any:
        """Their update of these networks; the others, moments included, as they were."""
        old = now.agent.state
        agent, info = now.agent.update(batch, networks_to_update=frozenset(networks))
        params, moments = dict(agent.state.params), dict(agent.state.opt_states)
        for name in {"actor", "critic", "temperature"} - set(networks):
            params[f"modules_{name}"] = old.params[f"modules_{name}"]
            moments[name] = old.opt_states[name]
        state = agent.state.replace(params=params, opt_states=moments)
        now.agent = agent.replace(state=state)
        return info

    def update(b: Any) -> dict[str, float]:
        batch = {name: getattr(b, name) for name in ("observations", "actions", "rewards")}
        batch |= {"next_observations": b.next_observations, "masks": 1 - b.terminated}
        now.done += 1
        found = {"critic_loss": float(step(batch, "critic")["critic"]["critic_loss"])}
        if now.done % c["period"]:
            return found
        info = step(batch, "actor", "temperature")["actor"]
        names = {"policy_loss": "actor_loss", "entropy": "entropy", "alpha": "temperature"}
        return found | {ours: float(info[theirs]) for ours, theirs in names.items()}

    def store(name: str, part: str = "params") -> Store:
        """Of a network: its parameters or its target's."""
        own = f"modules_{name}"

        def write(tree: Any) -> None:
            state = now.agent.state
            changed = {part: {**getattr(state, part), own: tree}}
            moments = doubles(state.opt_states)
            now.agent = now.agent.replace(state=state.replace(opt_states=moments, **changed))

        def moments() -> Any:
            """Without the networks that this one's optimiser leaves alone."""
            (mean,) = jax_side.means(now.agent.state.opt_states[name].inner_state)
            return (SimpleNamespace(mu=mean[own]),)

        read = lambda: getattr(now.agent.state, part)[own]  # noqa: E731
        return Store(read, write, moments if part == "params" else tuple)

    layers, norms = (["Dense_0", "Dense_1"], ["LayerNorm_0", "LayerNorm_1"])
    actor = store("actor")
    links = actor.mlp("policy/trunk", [f"network/{layer}" for layer in layers])
    links += actor.norms("policy/trunk", [f"network/{norm}" for norm in norms])
    for k, head in enumerate(("Dense_0", "Dense_1")):
        columns = slice(k * ACT, (k + 1) * ACT)
        links.append(actor.link("policy/trunk.weights.2", f"{head}/kernel", (slice(None), columns)))
        links.append(actor.link("policy/trunk.biases.2", f"{head}/bias", (columns,)))
    links.append(actor.link("policy/affine", "affine"))
    links.append(store("temperature").link("log_alpha/value", "lagrange"))
    for name, part in (("critic", "params"), ("critic_target", "target_params")):
        own = store("critic", part)
        inside = [f"network/{layer}" for layer in layers]
        links += own.mlp(f"{name}/net", inside, stacked=True)
        links.append(own.link(f"{name}/net.weights.2", "last_kernel"))
        links.append(own.link(f"{name}/net.biases.2", "last_bias"))
        links += own.norms(f"{name}/net", [f"network/{norm}" for norm in norms], stacked=True)
    return Learner(links, update, ["next", "subset", "policy", "entropy"])
