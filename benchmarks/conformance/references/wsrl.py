"""Adapter to zhouzypaul/wsrl: WSRL, and the CQL, Cal-QL and IQL that it starts from.

The adapter changes the networks: temperatures are exponentials of their parameters, log standard
deviations are scaled and shifted, and critics share no layer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.conformance import jax_side
from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.jax_side import Store, set_norm_epsilon, to_float64
from benchmarks.conformance.job import Job, Learner, Link, swap_axes
from benchmarks.conformance.references.cql_options import OPTIONS

SIDE = "jax_side"
NETS = "wsrl/networks/actor_critic_nets.py"
SHARED = "value = nn.Dense(1, kernel_init=self.init_fn())(outputs)"
APART = """(*lead, _, size), zeros = outputs.shape, nn.initializers.zeros
            value = outputs @ self.param("last_kernel", zeros, (*lead, size, 1))
            value = value + self.param("last_bias", zeros, (*lead, 1, 1))"""
SCALED = """affine = self.param("affine", nn.initializers.zeros, (2,))
                log_stds = affine[0] * log_stds + affine[1]"""
Current = Any  # namespace whose `agent` is the latest agent


def load_module(job: Job) -> ModuleType:
    """Return the case's file as a module, with networks changed as described above."""
    sys.path.insert(0, str(job.checkout))
    sys.modules["overrides"] = SimpleNamespace(overrides=lambda method: method)  # type: ignore[assignment]
    set_norm_epsilon(1e-5)
    nets = job.load(NETS, {"# # mitsuhiko ablation": SCALED, SHARED: APART})
    sys.modules["wsrl.networks.actor_critic_nets"] = nets
    module = job.load()
    if hasattr(module, "GeqLagrangeMultiplier"):
        multiplier = partial(module.GeqLagrangeMultiplier, parameterization="exp")
        module.GeqLagrangeMultiplier = multiplier
    jax.random.randint = lambda key, shape, low, high: jnp.floor(
        high * jnp.asarray(jax_side.replay("uniform", shape))
    ).astype(int)
    return module


def network(hidden: Sequence[int], layer_norm: bool) -> dict[str, Any]:
    return {"hidden_dims": (WIDTH,) * len(hidden), "use_layer_norm": layer_norm}


def rate(value: float) -> dict[str, float]:
    return {"learning_rate": value}


def rows(b: Any, *more: str) -> dict[str, Any]:
    names = ("observations", "actions", "rewards", "next_observations", *more)
    return {name: getattr(b, name) for name in names} | {"masks": 1 - b.terminated}


def restore_networks(old: Any, new: Any, networks: Iterable[str]) -> Any:
    """Return the new state with the old parameters and moments of these networks."""
    params, moments = dict(new.params), dict(new.opt_states)
    for name in networks:
        params[f"modules_{name}"] = old.params[f"modules_{name}"]
        moments[name] = old.opt_states[name]
    return new.replace(params=params, opt_states=moments)


def store(current: Current, name: str, part: str = "params") -> Store:
    """Return access to the parameters, or the target parameters, of a network."""
    key = f"modules_{name}"

    def write(tree: Any) -> None:
        state = current.agent.state
        changed = {part: {**getattr(state, part), key: tree}}
        moments = to_float64(state.opt_states)
        current.agent = current.agent.replace(state=state.replace(opt_states=moments, **changed))

    def moments() -> Any:
        """Return Adam's means of this network, without those of other networks."""
        (mean,) = jax_side.first_moments(current.agent.state.opt_states[name].inner_state)
        return (SimpleNamespace(mu=mean[key]),)

    read = lambda: getattr(current.agent.state, part)[key]  # noqa: E731
    return Store(read, write, moments if part == "params" else tuple)


def policy_links(current: Current, hidden: int) -> list[Link]:
    actor = store(current, "actor")
    links = actor.mlp("policy/trunk", [f"network/Dense_{i}" for i in range(hidden)])
    links += actor.norms("policy/trunk", [f"network/LayerNorm_{i}" for i in range(hidden)])
    for k, head in enumerate(("Dense_0", "Dense_1")):
        columns = slice(k * ACT, (k + 1) * ACT)
        path, at = f"policy/trunk.weights.{hidden}", (slice(None), columns)
        links.append(actor.link(path, f"{head}/kernel", at))
        links.append(actor.link(f"policy/trunk.biases.{hidden}", f"{head}/bias", (columns,)))
    return [*links, actor.link("policy/affine", "affine")]


def value_links(source: Store, name: str, hidden: int, *, stacked: bool) -> list[Link]:
    """Return links of the critics, which are stacked, or of V, which is not."""
    links = source.mlp(name, [f"network/Dense_{i}" for i in range(hidden)], stacked=stacked)
    links.append(source.link(f"{name}.weights.{hidden}", "last_kernel"))
    links.append(source.link(f"{name}.biases.{hidden}", "last_bias"))
    norms = [f"network/LayerNorm_{i}" for i in range(hidden)]
    return links + source.norms(name, norms, stacked=stacked)


def critic_links(current: Current, hidden: int) -> list[Link]:
    critics = store(current, "critic"), store(current, "critic", "target_params")
    pairs = zip(("critic", "critic_target"), critics, strict=True)
    return [x for k, s in pairs for x in value_links(s, f"{k}/net", hidden, stacked=True)]


def soft_links(current: Current, c: dict[str, Any]) -> list[Link]:
    """Return links of a soft actor-critic: temperature, policy and critics."""
    links = [store(current, "temperature").link("log_alpha/value", "lagrange")]
    links += policy_links(current, len(c["policy_hidden"]))
    return links + critic_links(current, len(c["critic_hidden"]))


def wsrl(job: Job) -> Learner:
    """Return the learner. Networks that a step does not train stay unchanged in this step."""
    module, c = load_module(job), job.config
    agent = module.SACAgent.create(
        jax.random.PRNGKey(0),
        np.zeros((1, OBS)),
        np.zeros((1, ACT)),
        encoder_def=None,
        shared_encoder=False,
        critic_network_kwargs=network(c["critic_hidden"], True),
        policy_network_kwargs=network(c["policy_hidden"], True),
        critic_ensemble_size=c["num_critics"],
        critic_subsample_size=c["num_min_critics"],
        actor_optimizer_kwargs=rate(c["actor_lr"]),
        critic_optimizer_kwargs=rate(c["critic_lr"]),
        temperature_optimizer_kwargs=rate(c["alpha_lr"]),
        discount=c["discount"],
        soft_target_update_rate=c["tau"],
        target_entropy=-c["entropy_scale"] * ACT,
        backup_entropy=c["backup_entropy"],
        max_target_backup=c["max_target_backup"],
        n_actions=c["num_samples"],
    )
    current = SimpleNamespace(agent=agent, done=0)

    def step(batch: Any, *networks: str) -> Any:
        """Update these networks by the reference's agent."""
        old = current.agent.state
        agent, info = current.agent.update(batch, networks_to_update=frozenset(networks))
        rest = {"actor", "critic", "temperature"} - set(networks)
        current.agent = agent.replace(state=restore_networks(old, agent.state, rest))
        return info

    def update(b: Any) -> dict[str, float]:
        batch = rows(b)
        current.done += 1
        losses = {"critic_loss": float(step(batch, "critic")["critic"]["critic_loss"])}
        if current.done % c["period"]:
            return losses
        info = step(batch, "actor", "temperature")["actor"]
        names = {"policy_loss": "actor_loss", "entropy": "entropy", "alpha": "temperature"}
        return losses | {ours: float(info[theirs]) for ours, theirs in names.items()}

    return Learner(soft_links(current, c), update, ["next", "subset", "policy", "entropy"])


def cql(job: Job) -> Learner:
    """Return the learner. Critic losses are summed; the temperature uses the policy's sample."""
    module, c = load_module(job), job.config
    (critics, lr) = (c["num_critics"], c["policy_lr"])

    class Agent(module.CQLAgent):  # type: ignore[name-defined]
        def critic_loss_fn(self, batch: Any, params: Any, rng: Any) -> Any:
            loss, info = super().critic_loss_fn(batch, params, rng)
            return critics * loss, info

        def temperature_loss_fn(self, batch: Any, params: Any, rng: Any) -> Any:
            log_pi = self.forward_policy_and_sample(batch["observations"], rng)[1].mean()
            return -params["modules_temperature"]["lagrange"] * (log_pi - ACT), {}

    names = {"cql_n_actions", "cql_temp", "cql_max_target_backup", "backup_entropy"}
    names |= {"cql_clip_diff_min", "cql_clip_diff_max"}
    agent = Agent.create(
        jax.random.PRNGKey(0),
        np.zeros((1, OBS)),
        np.zeros((1, ACT)),
        encoder_def=None,
        critic_network_kwargs=network(c["critic_hidden"], c["layer_norm"]),
        policy_network_kwargs=network(c["policy_hidden"], c["layer_norm"]),
        critic_ensemble_size=critics,
        critic_subsample_size=c["num_min_critics"],
        actor_optimizer_kwargs=rate(lr),
        critic_optimizer_kwargs=rate(c["critic_lr"]),
        temperature_optimizer_kwargs=rate(lr),
        temperature_init=1.0,
        autotune_entropy=True,
        discount=c["discount"],
        soft_target_update_rate=c["tau"],
        target_entropy=-float(ACT),
        cql_action_sample_method="uniform",
        cql_importance_sample=True,
        cql_autotune_alpha=False,
        cql_alpha=c["weight"],
        cql_target_action_gap=0.0,
        use_td_loss=True,
        use_cql_loss=True,
        use_calql=job.algorithm == "cal_ql",
        calql_bound_random_actions=False,
        **{name: c[ours] for name, ours in OPTIONS.items() if name in names},
    )
    current = SimpleNamespace(agent=agent)

    def update(b: Any) -> dict[str, float]:
        current.agent, info = current.agent.update(rows(b, "mc_returns"))
        losses = {"critic_loss": critics * info["critic"]["td_loss"]}
        losses |= {"penalty": info["critic"]["cql_loss"]}
        losses |= {"policy_loss": info["actor"]["actor_loss"]}
        return {name: float(value) for name, value in losses.items()}

    order = [
        "policy",
        "next",
        "next_subset",
        ("uniform", swap_axes),
        "current_samples",
        "next_samples",
        "subset",
    ]
    return Learner(soft_links(current, c), update, [*order, "policy"])


cal_ql = cql


def iql(job: Job) -> Learner:
    """Return the learner.

    V is trained first, one subset of critics is drawn per update, and critic losses are summed.
    """
    module, c = load_module(job), job.config
    sizes, agents = network(c["hidden"], True), module.IQLAgent
    agent = agents.create(
        jax.random.PRNGKey(0),
        np.zeros((1, OBS)),
        np.zeros((1, ACT)),
        encoder_def=None,
        shared_encoder=False,
        critic_ensemble_size=c["num_critics"],
        critic_subsample_size=c["num_min_critics"],
        policy_network_kwargs=sizes,
        critic_network_kwargs=sizes,
        policy_kwargs={"tanh_squash_distribution": True, "std_parameterization": "exp"},
        actor_optimizer_kwargs=rate(c["actor_lr"]),
        value_critic_optimizer_kwargs=rate(c["critic_lr"]),
        discount=c["discount"],
        expectile=c["expectile"],
        temperature=c["beta"],
        target_update_rate=c["tau"],
    )
    current = SimpleNamespace(agent=agent)

    def step(batch: Any, *networks: str) -> Any:
        """Update these networks by the reference's losses at the latest parameters."""
        losses = {"actor": current.agent.policy_loss_fn, "value": current.agent.value_loss_fn}
        losses["critic"] = critic_loss
        called = {
            name: partial(loss, batch) if name in networks else lambda params, rng: (0.0, {})
            for name, loss in losses.items()
        }
        old = current.agent.state
        state, info = old.apply_loss_fns(called, has_aux=True)
        current.agent = current.agent.replace(
            state=restore_networks(old, state, losses.keys() - set(networks))
        )
        return info

    def critic_loss(batch: Any, params: Any, rng: Any) -> Any:
        loss, info = current.agent.critic_loss_fn(batch, params, rng)
        return c["num_critics"] * loss, info

    def update(b: Any) -> dict[str, float]:
        batch = rows(b)
        losses = {"value_loss": step(batch, "value")["value"]["value_loss"]}
        info = step(batch, "actor", "critic")
        state = current.agent.state.target_update(c["tau"])
        current.agent = current.agent.replace(state=state)
        losses |= {"policy_loss": info["actor"]["actor_loss"]}
        losses |= {"critic_loss": c["num_critics"] * info["critic"]["td_loss"]}
        return {name: float(value) for name, value in losses.items()}

    hidden = len(c["hidden"])
    links = policy_links(current, hidden) + critic_links(current, hidden)
    links += value_links(store(current, "value"), "value/net", hidden, stacked=False)
    return Learner(links, update, ["subset", "subset"])
