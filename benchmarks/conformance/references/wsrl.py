"""zhouzypaul/wsrl: the method, and those that it goes on from, with the options that it gives them.

Temperatures are exponentials, deviations are scaled, critics share no layer.
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
from benchmarks.conformance.jax_side import Store, doubles, norm_epsilon
from benchmarks.conformance.job import Job, Learner, Link, swapped
from benchmarks.conformance.references.cql_options import OPTIONS

SIDE = "jax_side"
NETS = "wsrl/networks/actor_critic_nets.py"
SHARED = "value = nn.Dense(1, kernel_init=self.init_fn())(outputs)"
APART = """(*lead, _, size), zeros = outputs.shape, nn.initializers.zeros
            value = outputs @ self.param("last_kernel", zeros, (*lead, size, 1))
            value = value + self.param("last_bias", zeros, (*lead, 1, 1))"""
SCALED = """affine = self.param("affine", nn.initializers.zeros, (2,))
                log_stds = affine[0] * log_stds + affine[1]"""
Now = Any  # whose `agent` is the latest


def prepared(job: Job) -> ModuleType:
    """The case's file, with its networks as they are said to be above."""
    sys.path.insert(0, str(job.checkout))
    sys.modules["overrides"] = SimpleNamespace(overrides=lambda method: method)  # type: ignore[assignment]
    norm_epsilon(1e-5)
    nets = job.load(NETS, {"# # mitsuhiko ablation": SCALED, SHARED: APART})
    sys.modules["wsrl.networks.actor_critic_nets"] = nets
    module = job.load()
    if hasattr(module, "GeqLagrangeMultiplier"):
        made = partial(module.GeqLagrangeMultiplier, parameterization="exp")
        module.GeqLagrangeMultiplier = made
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


def stays(old: Any, new: Any, networks: Iterable[str]) -> Any:
    """Their new state with these networks, moments included, as they were."""
    params, moments = dict(new.params), dict(new.opt_states)
    for name in networks:
        params[f"modules_{name}"] = old.params[f"modules_{name}"]
        moments[name] = old.opt_states[name]
    return new.replace(params=params, opt_states=moments)


def store(now: Now, name: str, part: str = "params") -> Store:
    """Of a network: its parameters or its target's."""
    own = f"modules_{name}"

    def write(tree: Any) -> None:
        state = now.agent.state
        changed = {part: {**getattr(state, part), own: tree}}
        moments = doubles(state.opt_states)
        now.agent = now.agent.replace(state=state.replace(opt_states=moments, **changed))

    def moments() -> Any:
        """Without the networks that this one's optimizer leaves alone."""
        (mean,) = jax_side.means(now.agent.state.opt_states[name].inner_state)
        return (SimpleNamespace(mu=mean[own]),)

    read = lambda: getattr(now.agent.state, part)[own]  # noqa: E731
    return Store(read, write, moments if part == "params" else tuple)


def policy_links(now: Now, hidden: int) -> list[Link]:
    actor = store(now, "actor")
    links = actor.mlp("policy/trunk", [f"network/Dense_{i}" for i in range(hidden)])
    links += actor.norms("policy/trunk", [f"network/LayerNorm_{i}" for i in range(hidden)])
    for k, head in enumerate(("Dense_0", "Dense_1")):
        columns = slice(k * ACT, (k + 1) * ACT)
        own, at = f"policy/trunk.weights.{hidden}", (slice(None), columns)
        links.append(actor.link(own, f"{head}/kernel", at))
        links.append(actor.link(f"policy/trunk.biases.{hidden}", f"{head}/bias", (columns,)))
    return [*links, actor.link("policy/affine", "affine")]


def value_links(own: Store, name: str, hidden: int, *, stacked: bool) -> list[Link]:
    """Of critics, or of a value, which is no ensemble."""
    links = own.mlp(name, [f"network/Dense_{i}" for i in range(hidden)], stacked=stacked)
    links.append(own.link(f"{name}.weights.{hidden}", "last_kernel"))
    links.append(own.link(f"{name}.biases.{hidden}", "last_bias"))
    norms = [f"network/LayerNorm_{i}" for i in range(hidden)]
    return links + own.norms(name, norms, stacked=stacked)


def critic_links(now: Now, hidden: int) -> list[Link]:
    critics = store(now, "critic"), store(now, "critic", "target_params")
    pairs = zip(("critic", "critic_target"), critics, strict=True)
    return [x for k, s in pairs for x in value_links(s, f"{k}/net", hidden, stacked=True)]


def soft_links(now: Now, c: dict[str, Any]) -> list[Link]:
    """Of a soft actor-critic: temperature, policy and critics."""
    links = [store(now, "temperature").link("log_alpha/value", "lagrange")]
    links += policy_links(now, len(c["policy_hidden"]))
    return links + critic_links(now, len(c["critic_hidden"]))


def wsrl(job: Job) -> Learner:
    """What a step leaves out stays as it was."""
    module, c = prepared(job), job.config
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
    now = SimpleNamespace(agent=agent, done=0)

    def step(batch: Any, *networks: str) -> Any:
        """Their update of these networks."""
        old = now.agent.state
        agent, info = now.agent.update(batch, networks_to_update=frozenset(networks))
        rest = {"actor", "critic", "temperature"} - set(networks)
        now.agent = agent.replace(state=stays(old, agent.state, rest))
        return info

    def update(b: Any) -> dict[str, float]:
        batch = rows(b)
        now.done += 1
        found = {"critic_loss": float(step(batch, "critic")["critic"]["critic_loss"])}
        if now.done % c["period"]:
            return found
        info = step(batch, "actor", "temperature")["actor"]
        names = {"policy_loss": "actor_loss", "entropy": "entropy", "alpha": "temperature"}
        return found | {ours: float(info[theirs]) for ours, theirs in names.items()}

    return Learner(soft_links(now, c), update, ["next", "subset", "policy", "entropy"])


def cql(job: Job) -> Learner:
    """Critics' losses are summed; the temperature follows the policy's own sample."""
    module, c = prepared(job), job.config
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
    now = SimpleNamespace(agent=agent)

    def update(b: Any) -> dict[str, float]:
        now.agent, info = now.agent.update(rows(b, "mc_returns"))
        found = {"critic_loss": critics * info["critic"]["td_loss"]}
        found |= {"penalty": info["critic"]["cql_loss"], "policy_loss": info["actor"]["actor_loss"]}
        return {name: float(value) for name, value in found.items()}

    drawn = ["policy", "next", "next_subset", ("uniform", swapped), "here", "there", "subset"]
    return Learner(soft_links(now, c), update, [*drawn, "policy"])


cal_ql = cql


def iql(job: Job) -> Learner:
    """V's step comes first, and one subset of critics is drawn; critics' losses are summed."""
    module, c = prepared(job), job.config
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
    now = SimpleNamespace(agent=agent)

    def step(batch: Any, *networks: str) -> Any:
        """Their losses of these networks, at what is new by now."""
        losses = {"actor": now.agent.policy_loss_fn, "value": now.agent.value_loss_fn}
        losses["critic"] = critic_loss
        called = {
            name: partial(loss, batch) if name in networks else lambda params, rng: (0.0, {})
            for name, loss in losses.items()
        }
        old = now.agent.state
        state, info = old.apply_loss_fns(called, has_aux=True)
        now.agent = now.agent.replace(state=stays(old, state, losses.keys() - set(networks)))
        return info

    def critic_loss(batch: Any, params: Any, rng: Any) -> Any:
        loss, info = now.agent.critic_loss_fn(batch, params, rng)
        return c["num_critics"] * loss, info

    def update(b: Any) -> dict[str, float]:
        batch = rows(b)
        found = {"value_loss": step(batch, "value")["value"]["value_loss"]}
        info = step(batch, "actor", "critic")
        state = now.agent.state.target_update(c["tau"])
        now.agent = now.agent.replace(state=state)
        found |= {"policy_loss": info["actor"]["actor_loss"]}
        found |= {"critic_loss": c["num_critics"] * info["critic"]["td_loss"]}
        return {name: float(value) for name, value in found.items()}

    hidden = len(c["hidden"])
    links = policy_links(now, hidden) + critic_links(now, hidden)
    links += value_links(store(now, "value"), "value/net", hidden, stacked=False)
    return Learner(links, update, ["subset", "subset"])
