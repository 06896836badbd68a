"""Adapter to a copy of the authors' code of ARSQ for D4RL, and its CQN baseline."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from torch import nn

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import Job, Learner, Link
from benchmarks.conformance.torch_side import linears, link, mlp, narrow

SIDE = "torch_side"
FOLDER = "ARSQ-main/d4rl"


class Options(SimpleNamespace):
    """Options that are read as attributes and as items."""

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def arsq(job: Job) -> Learner:
    """Return the learner. The margin loss is a mean over demonstrations, as in our code."""
    sys.path.insert(0, str(job.checkout / FOLDER))
    narrow(512)
    mean = ".sum(dim=1).sum(dim=1).mean(dim=1{})"  # [B] times [B, 1] is [B, B]
    swaps = {'"cuda"': '"cpu"', mean.format(""): mean.format(", keepdim=True")}
    module, c = job.load(swaps=swaps), job.config
    options = Options(
        levels=c["levels"],
        bins=c["bins"],
        soft_alpha=c["alpha"],
        act_alpha=c["alpha"],
        use_nbias=False,
        abl_skip=-1,
        qchunk_size=-1,
        optimizer_type="adam",
        qf_lr=c["lr"],
        vf_lr=c["lr"],
        soft_target_update_rate=c["tau"],
        bellman_loss_coef=1.0,
        discount=c["discount"],
        cql_type=c["imitation"],
        cql_temp=c["imitation_temperature"],
        cql_min_q_weight=c["imitation_weight"],
        cql_clip_diff_min=c["min_gap"],
        cql_clip_diff_max=1e7,
        act_network="default",
    )
    t = module.SQAR(options, OBS, ACT)

    def update(b: Any) -> dict[str, float]:
        metrics = t.update(rows(b) | {"mc_returns": b.mc_returns}, False)
        names = {"critic_loss": "qf{}_bellman_loss", "imitation_loss": "cql/cql_qf{}_diff"}
        return {k: sum(metrics[v.format(i)] for i in (1, 2)) for k, v in names.items()}

    links: list[Link] = []
    for k, (net, target) in enumerate(((t.qf1, t.target_qf1), (t.qf2, t.target_qf2))):
        *trunk, output = linears(net.q_networks)
        links += mlp("policy/trunk", trunk, k) + mlp("policy/head", [output], k)
        links += members("value", linears(net.v_network), k)
        links += members("value_target", linears(target.v_network), k)
    return Learner(links, then_act(update, t.act) if job.phase == "act" else update)


def cqn(job: Job) -> Learner:
    """Return the learner. Layers before a layer normalization have biases, as in our code."""
    sys.path.insert(0, str(job.checkout / FOLDER))
    add_biases()
    swaps, c = {'"cuda"': '"cpu"'}, job.config
    if not c["as_released"]:
        swaps[".to(self.device) + self.discount"] = ".to(self.device) + (1 - dones) * self.discount"
    module = job.load(swaps=swaps)
    options = Options(
        discount=c["discount"],
        lr=c["lr"],
        feature_dim=c["features"],
        hidden_dim=WIDTH,
        levels=c["levels"],
        bins=c["bins"],
        atoms=c["atoms"],
        v_min=c["v_min"],
        v_max=c["v_max"],
        critic_target_tau=c["tau"],
        num_expl_steps=0,
        stddev_schedule=c["exploration_noise"],
        bc_lambda=c["margin_weight"],
        bc_fosd=math.sqrt(c["dominance_weight"]),
        bc_margin=c["margin"],
        critic_lambda=c["critic_weight"],
        weight_decay=0.0,
    )
    t = module.CQN(options, OBS, ACT)

    def update(b: Any) -> dict[str, float]:
        m = t.update(rows(b), 0)
        imitation = options.bc_fosd * m["bc_fosd_loss"] + options.bc_lambda * m["bc_margin_loss"]
        return {"critic_loss": m["q_critic_loss"], "imitation_loss": imitation}

    links = coarse_to_fine("policy", t.critic) + coarse_to_fine("policy_target", t.critic_target)
    return Learner(links, then_act(update, t.act) if job.phase == "act" else update)


def rows(b: Any) -> dict[str, Any]:
    """Return the columns of a batch by the reference's names."""
    names = ("observations", "actions", "rewards", "next_observations")
    columns = {name: getattr(b, name) for name in names}
    return columns | {"dones": b.terminated, "demos": b.demonstrations}


def then_act(update: Callable[[Any], Any], act: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a function that updates and then returns the greedy actions."""

    def update_and_act(b: Any) -> dict[str, Any]:
        update(b)
        return {"actions": act(b.observations, deterministic=True)}

    return update_and_act


def members(name: str, layers: Sequence[Any], k: int) -> list[Link]:
    """Return links to member k of an ensemble that is a network itself."""
    links = []
    for i, layer in enumerate(layers):
        links.append(link(f"{name}/weights.{i}", layer.weight, (k,), transposed=True))
        links.append(link(f"{name}/biases.{i}", layer.bias, (k, 0)))
    return links


def add_biases() -> None:
    """Replace nn.Linear, so that every layer has biases."""

    class Biased(nn.Linear):
        def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
            super().__init__(inputs, outputs)

    vars(nn)["Linear"] = Biased


def coarse_to_fine(name: str, critic: Any) -> list[Link]:
    """Return the links of a coarse-to-fine critic."""
    links, net = [], critic.network
    for ours, theirs in (("value", "value"), ("advantage", "adv")):
        trunk, inner, output = (getattr(net, f"{theirs}_{x}") for x in ("trunk", "net", "head"))
        links += mlp(f"{name}/{ours}.encoder", trunk)
        links += mlp(f"{name}/{ours}.trunk", [*linears(inner), output])
        norms = [(f"{ours}.norm", trunk[1])]
        norms += [(f"{ours}.trunk.norms.{k}", inner[1 + 3 * k]) for k in (0, 1)]
        for where, norm in norms:
            links.append(link(f"{name}/{where}.weight", norm.weight))
            links.append(link(f"{name}/{where}.bias", norm.bias))
    return links
