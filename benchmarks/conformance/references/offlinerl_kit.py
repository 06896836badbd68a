"""Adapter to yihaosun1124/OfflineRL-Kit: the dynamics model, and policies trained in it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.conformance.inputs import ACT, BATCH, OBS, ROWS, is_end
from benchmarks.conformance.job import Draw, Job, Learner, Link, swap_axes
from benchmarks.conformance.torch_side import Layer, linears, link, mlp, stacked_mlp, two_heads

SIDE = "torch_side"
MODES = {"aleatoric": "aleatoric", "disagreement": "pairwise-diff", "spread": "ensemble_std"}
Losses = dict[str, Any]


class Dynamics:
    """The reference's dynamics model, with our names for its parts."""

    def __init__(self, job: Job) -> None:
        c = self.config = job.config
        module = job.load(
            "offlinerlkit/dynamics/ensemble_dynamics.py", {"np.float32": "np.float64"}
        )
        from offlinerlkit.modules import EnsembleDynamicsModel
        from offlinerlkit.utils.scaler import StandardScaler

        members, elites = c["members"], c["elites"]
        hidden, decay = c["dynamics_hidden"], c["dynamics_decay"]
        self.model = EnsembleDynamicsModel(OBS, ACT, hidden, members, elites, weight_decays=decay)
        adam = torch.optim.Adam(self.model.parameters(), c["dynamics_lr"])
        inputs = OBS + ACT
        self.scaler = StandardScaler(np.zeros((1, inputs)), np.ones((1, inputs)))
        self.fitted = False  # True after `fit_completely`
        self.alive = np.arange(0)  # rows whose rollout has not ended
        options = c.get("penalty", 0.0), MODES[c.get("uncertainty", "aleatoric")]
        self.steps = module.EnsembleDynamics(self.model, adam, self.scaler, self.terminal, *options)
        self.error, self.by_output = torch.zeros(members), torch.zeros(members, OBS + 1)
        self.epochs, self.stale, self.finished = (torch.zeros(()) for _ in range(3))
        layers = [*self.model.backbones, self.model.output_layer]
        saved = [Layer(x.saved_weight, x.saved_bias) for x in layers]
        self.links = stacked_mlp("dynamics/net", layers) + stacked_mlp("best_dynamics/net", saved)
        bounds = {"most": self.model.max_logvar, "least": self.model.min_logvar}
        self.links += [link(f"dynamics/{name}", x) for name, x in bounds.items()]
        # the reference stores no bounds
        self.links += [link(f"best_dynamics/{name}", torch.zeros(OBS + 1)) for name in bounds]
        for network in ("dynamics", "best_dynamics"):
            self.links.append(self.link_scale(f"{network}/input_mean", "mu"))
            self.links.append(self.link_scale(f"{network}/input_std", "std"))
        for name in ("by_output", "epochs", "stale", "finished"):
            self.links.append(link(f"record/{name}", getattr(self, name)))
        self.links.append(Link("record/error", ..., self.error.numpy, self.set_errors))

    def link_scale(self, name: str, attribute: str) -> Link:
        """Return a link to the scaler. Before a fit, `best_dynamics` has separate numbers."""
        is_scaler, other = name.startswith("dynamics"), np.zeros(OBS + ACT)

        def read() -> np.ndarray:
            return np.array(
                getattr(self.scaler, attribute)[0] if is_scaler or self.fitted else other
            )

        def write(x: np.ndarray) -> None:
            if is_scaler:
                setattr(self.scaler, attribute, x[None].copy())
            else:
                other[:] = x

        return Link(name, ..., read, write)

    def set_errors(self, errors: np.ndarray) -> None:
        """Set the members' errors and the elites that follow from them."""
        self.error.copy_(torch.from_numpy(errors.copy()))
        self.model.set_elites(self.steps.select_elites(errors.tolist()))

    def terminal(self, s: np.ndarray, a: np.ndarray, s2: np.ndarray) -> np.ndarray:
        """Return a mask of the transitions that end a rollout, [B, 1]."""
        ends = is_end(s2)
        self.alive = self.alive[~ends]
        return ends[:, None]

    def fit_on_batch(self, b: Any) -> Losses:
        """Take one step on a batch of each member's rows."""
        x, y = self.steps.format_samples_for_training(data_of(b))
        rows = [z.reshape(self.config["members"], -1, z.shape[-1]) for z in (x, y)]
        rows[0] = self.scaler.transform(rows[0])
        loss = self.steps.learn(*rows, rows[0].shape[1], self.config["bounds_weight"])
        return {"dynamics_loss": loss}

    def fit_completely(self, b: Any) -> Losses:
        """Run the reference's loop, with the first rows as holdout."""
        c, record = self.config, Record(self)
        held = int(c["holdout_share"] * ROWS)
        parts = [SimpleNamespace(indices=x) for x in np.split(np.arange(ROWS), [held])]
        torch.utils.data.random_split = lambda rows, sizes: (parts[1], parts[0])
        silent = SimpleNamespace(model_dir="", set_timestep=lambda _: None)
        for name in ("log", "logkv", "dumpkvs"):
            setattr(silent, name, lambda *_, **__: None)
        self.steps.train(
            data_of(b),
            silent,
            max_epochs=c["dynamics_epochs"],
            max_epochs_since_update=c["patience"],
            batch_size=c["batch_size"],
            holdout_ratio=c["holdout_share"],
            logvar_loss_coef=c["bounds_weight"],
        )
        self.fitted = True
        elites = self.model.elites.numpy()
        return {"elites": elites, "holdout_error": record.best[elites].mean()}


class Record:
    """Progress of the reference's fitting loop, which stores it only in local variables."""

    def __init__(self, dynamics: Dynamics) -> None:
        steps, model = dynamics.steps, dynamics.model
        validate, save, select = (
            type(steps).validate,
            type(model).update_save,
            type(steps).select_elites,
        )
        patience = dynamics.config["patience"]
        self.best = np.zeros(0)
        dynamics.stale.zero_()
        dynamics.epochs.zero_()

        def count_and_validate(x: np.ndarray, y: np.ndarray) -> list[float]:
            dynamics.epochs.add_(1)
            dynamics.stale.add_(1)
            self.by_output = (model(x)[0].detach() - torch.from_numpy(y)).square().mean(1)
            return validate(steps, x, y)

        def reset_and_save(indexes: list[int]) -> None:
            dynamics.stale.zero_()
            dynamics.by_output[indexes] = self.by_output[indexes]
            save(model, indexes)

        def note_and_select(errors: list[float]) -> list[int]:
            self.best = np.array(errors)
            dynamics.error.copy_(torch.tensor(errors))
            dynamics.finished.fill_(float(dynamics.stale >= patience))
            return select(steps, errors)

        steps.validate, model.update_save = count_and_validate, reset_and_save
        steps.select_elites, steps.save = note_and_select, lambda _: None


def data_of(b: Any) -> dict[str, np.ndarray]:
    rows = {name: getattr(b, name) for name in ("observations", "actions", "next_observations")}
    rows |= {"rewards": b.column.rewards, "terminals": b.column.terminated}
    return {name: x.numpy() for name, x in rows.items()}


def patch_numpy() -> None:
    """Read NumPy's random numbers from the tape."""
    np.random.normal = lambda size: torch.randn(size).numpy()
    np.random.uniform = lambda size: torch.rand(size).numpy()
    np.random.randint = lambda high, size: (torch.rand(size) * high).long().numpy()
    np.random.choice = lambda x, size: x[(torch.rand(size) * len(x)).long().numpy()]


class Agent:
    """The reference's policy, critics and their optimizers."""

    def __init__(self, job: Job) -> None:
        c = job.config
        from offlinerlkit.modules import ActorProb, Critic
        from offlinerlkit.nets import MLP

        density = job.load("offlinerlkit/modules/dist_module.py", {"eps = 1e-6": "eps = 0.0"})
        head = density.TanhDiagGaussian(
            c["hidden"][-1], ACT, unbounded=True, conditioned_sigma=True, max_mu=1.0
        )
        self.actor = ActorProb(MLP(OBS, c["hidden"]), head)
        count = c.get("num_critics", 2)
        self.critics = [Critic(MLP(OBS + ACT, c["hidden"])) for _ in range(count)]
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), c["actor_lr"])
        log_alpha = torch.zeros(1, requires_grad=True)
        alpha_adam = torch.optim.Adam([log_alpha], c["alpha_lr"])
        self.alpha = -float(ACT), log_alpha, alpha_adam
        self.rate = torch.optim.lr_scheduler.CosineAnnealingLR(self.actor_adam, c["num_updates"])
        self.options = {"tau": c["tau"], "gamma": c["discount"], "alpha": self.alpha}
        links = two_heads("policy/trunk", linears(self.actor.backbone), head.mu, head.sigma)
        self.links = [*links, link("log_alpha/value", log_alpha)]

    def critic_links(self, name: str, critics: Any) -> list[Link]:
        """Return links to our critics `name`."""
        links = []
        for k, critic in enumerate(critics):
            links += mlp(f"{name}/net", [*linears(critic.backbone), critic.last], k)
        return links


def real_and_predicted(b: Any) -> dict[str, dict[str, Tensor]]:
    """Return the batch in the reference's form."""
    rows = {name: getattr(b, name) for name in ("observations", "actions", "next_observations")}
    rows |= {"rewards": b.column.rewards, "terminals": b.column.terminated}
    kinds = {"real": b.imagined == 0, "fake": b.imagined == 1}
    return {kind: {name: x[mask] for name, x in rows.items()} for kind, mask in kinds.items()}


def prepare(job: Job) -> tuple[Dynamics, Agent]:
    """Import the reference and return its dynamics model and agent."""
    sys.path.insert(0, str(job.checkout))
    patch_numpy()
    return Dynamics(job), Agent(job)


def learning(
    t: Any, agent: Agent, bound: float, names: Mapping[str, Sequence[str]] = {}
) -> Callable[[Any], Losses]:
    """Return a function that runs the trainer's update, and then the actor's schedule.

    bound: upper bound of the temperature.  names: our loss -> the reference's losses, whose sum it
    is.
    """
    names = {"policy_loss": ["loss/actor"], **names}

    def update(b: Any) -> Losses:
        alpha = t._alpha = t._log_alpha.detach().exp().clamp(max=bound)
        log = t.learn(real_and_predicted(b))
        agent.rate.step()
        losses = {ours: sum(log[name] for name in theirs) for ours, theirs in names.items()}
        return losses | {"alpha": alpha.item()}

    return update


def rambo(job: Job) -> Learner:
    """Return the learner. The adapter carries the states of the walk from one step to the next."""
    dynamics, agent = prepare(job)
    swaps = {
        "torch.optim.Adam(self.actor.parameters(), lr=lr)": "self.actor_optim",
        "sum_loss/i_batch": "sum_loss",
        "torch.save(self.state_dict()": "(lambda *_: None)(0",
    }
    c, module = job.config, job.load("offlinerlkit/policy/model_based/rambo.py", swaps)
    agent.rate = SimpleNamespace(step=lambda: None)
    adams = [torch.optim.Adam(q.parameters(), c["critic_lr"]) for q in agent.critics]
    adams.append(torch.optim.Adam(dynamics.model.parameters(), c["adversary_lr"]))
    options = agent.options | {"adv_weight": c["adversary"]}
    t = module.RAMBOPolicy(
        dynamics.steps, agent.actor, *agent.critics, agent.actor_adam, *adams, **options
    )
    walk, steps = torch.zeros(c["batch_size"], OBS), itertools.count()
    links = [*agent.links, *dynamics.links, link("walk/states", walk)]
    links += agent.critic_links("critic", agent.critics)
    links += agent.critic_links("critic_target", [t.critic1_old, t.critic2_old])

    def clone(b: Any) -> None:
        logger = SimpleNamespace(log=lambda _: None, model_dir="")
        rows = {name: getattr(b, name).numpy() for name in ("observations", "actions")}
        t.pretrain(rows, 1, len(rows["actions"]), c["actor_lr"], logger)

    def update_adversary(b: Any) -> Losses:
        dynamics.alive = np.arange(len(walk))
        s = (walk if next(steps) % c["walk"] else b.observations).numpy().copy()
        rows = b.observations, b.actions, b.next_observations, b.column.rewards
        s2, _, log = t.dynamics_step_and_forward(s, t.select_action(s), *rows)
        walk.copy_(torch.from_numpy(s2))
        names = {"adversarial_loss": "adv_loss", "dynamics_loss": "sl_loss"}
        names |= {"log_prob": "adv_log_prob"}
        return {ours: log[f"adv_dynamics_update/{theirs}"] for ours, theirs in names.items()}

    updates = {
        "update": learning(t, agent, 1.0, {"critic_loss": ["loss/critic1", "loss/critic2"]}),
        "clone": clone,
        "update_adversary": update_adversary,
    }

    def all_members(x: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, (c["members"], *x.shape))

    order: list[Draw] = ["next", "policy", "action", ("noise", all_members), "member"]
    losses = ["policy_loss"] if job.phase == "clone" else []
    return Learner(links, updates[job.phase], order, losses)


def mopo(job: Job) -> Learner:
    dynamics, agent = prepare(job)
    c, module = job.config, job.load("offlinerlkit/policy/model_based/mopo.py")
    adams = [torch.optim.Adam(q.parameters(), c["critic_lr"]) for q in agent.critics]
    t = module.MOPOPolicy(
        dynamics.steps, agent.actor, *agent.critics, agent.actor_adam, *adams, **agent.options
    )
    links = agent.links + dynamics.links + agent.critic_links("critic", agent.critics)
    links += agent.critic_links("critic_target", [t.critic1_old, t.critic2_old])

    def roll_out(b: Any) -> Losses:
        dynamics.alive = np.arange(len(b.observations))
        rows, _ = t.rollout(b.observations.numpy(), c["horizon"])
        names = {"observations": "obss", "next_observations": "next_obss", "actions": "actions"}
        columns = {ours: rows[theirs] for ours, theirs in names.items()}
        columns |= {"rewards": rows["rewards"][:, 0], "terminated": rows["terminals"][:, 0]}
        missing = len(b.observations) * c["horizon"] - len(columns["rewards"])
        padding = {k: np.zeros((missing, *x.shape[1:])) for k, x in columns.items()}
        return {k: np.concatenate([x, padding[k]]) for k, x in columns.items()}

    updates = {
        "update": learning(t, agent, 1.0, {"critic_loss": ["loss/critic1", "loss/critic2"]}),
        "fit_dynamics": dynamics.fit_on_batch,
        "fit_completely": dynamics.fit_completely,
        "roll_out": roll_out,
    }
    order: list[Draw] = ["next", "policy", "bootstrap"]
    order += [f"shuffle_{k}" for k in range(c["dynamics_epochs"])]

    def alive(x: np.ndarray) -> np.ndarray:
        return x[dynamics.alive]

    def all_members(x: np.ndarray) -> np.ndarray:
        return np.broadcast_to(alive(x), (c["members"], *alive(x).shape))

    for k in range(c["horizon"]):
        order += [(f"action_{k}", alive), (f"noise_{k}", all_members), (f"member_{k}", alive)]
    return Learner(links, updates[job.phase], order)


def combo(job: Job) -> Learner:
    dynamics, agent = prepare(job)
    c, module = job.config, job.load("offlinerlkit/policy/model_based/combo.py")
    adams = [torch.optim.Adam(q.parameters(), c["critic_lr"]) for q in agent.critics]
    t = module.COMBOPolicy(
        dynamics.steps,
        agent.actor,
        *agent.critics,
        agent.actor_adam,
        *adams,
        SimpleNamespace(low=[-1], high=[1]),
        **agent.options,
        cql_weight=c["conservatism"],
        deterministic_backup=not c["entropy_in_target"],
        with_lagrange=False,
        num_repeart_actions=c["num_samples"],
        rho_s=c["states"],
    )
    links = agent.links + dynamics.links + agent.critic_links("critic", agent.critics)
    links += agent.critic_links("critic_target", [t.critic1_old, t.critic2_old])
    samples = ("uniform", "current_samples", "next_samples")
    order: list[Draw] = ["policy", "next", *((name, swap_axes) for name in samples)]
    return Learner(links, learning(t, agent, inf), order)


def mobile(job: Job) -> Learner:
    """Return the learner. Its loss is changed to a sum over critics; ours penalizes fewer rows."""
    dynamics, agent = prepare(job)
    c = job.config
    mean, total = "((qs - target_q) ** 2).mean()", "((qs - target_q) ** 2).mean((1, 2)).sum()"
    swaps = {mean: total, "repeat(1, 10, 1)": f"repeat(1, {c['num_samples']}, 1)"}
    swaps |= {"batch_size * 10": f"batch_size * {c['num_samples']}"}
    swaps |= {"view(batch_size, 10,": f"view(batch_size, {c['num_samples']},"}
    module = job.load("offlinerlkit/policy/model_based/mobile.py", swaps)
    critics = torch.nn.ModuleList(agent.critics)
    t = module.MOBILEPolicy(
        dynamics.steps,
        agent.actor,
        critics,
        agent.actor_adam,
        torch.optim.Adam(critics.parameters(), c["critic_lr"]),
        **agent.options,
        penalty_coef=c["penalty"],
        num_samples=c["num_samples"],
        deterministic_backup=not c["entropy_in_target"],
        max_q_backup=c["max_q_backup"],
    )
    links = agent.links + dynamics.links + agent.critic_links("critic", critics)
    links += agent.critic_links("critic_target", t.critics_old)
    real = int(BATCH * c["real_share"])

    def padded(x: np.ndarray, columns: int = 0) -> np.ndarray:
        """Return [..., P, k] with rows of zeros for the real transitions, and further columns."""
        return np.pad(x, [(0, 0)] * (x.ndim - 2) + [(real, 0), (0, columns)])

    order: list[Draw] = [
        ("prediction", lambda x, k=k: padded(x[k], 1)) for k in range(c["num_samples"])
    ]
    order += [("predicted", padded), ("next", swap_axes if c["max_q_backup"] else np.asarray)]
    losses = {"critic_loss": ["loss/critic"]}
    return Learner(links, learning(t, agent, 1.0, losses), [*order, "policy"])
