"""Adapter to si0wang/COPlanner: the planned actions of its code for MuJoCo."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import UNUSED, Draw, Job, Learner, Link
from benchmarks.conformance.references.offlinerl_kit import patch_numpy
from benchmarks.conformance.torch_side import Layer, link, mlp, stacked_mlp, two_heads

SIDE = "torch_side"
FOLDER = "MuJoCo-MBPO-COPlanner"
CPU = {"torch.set_default_tensor_type(torch.cuda.FloatTensor)": "", "'cuda'": "'cpu'"}
REWARD_FIRST = np.roll(np.arange(OBS + 1), 1)  # our outputs, in the reference's order


def coplanner(job: Job) -> Learner:
    patch_numpy()
    sys.path.insert(0, str(job.checkout / FOLDER))
    c, agent = job.config, job.load(f"{FOLDER}/sac/sac.py", {'"cuda"': '"cpu"'})
    space = SimpleNamespace(shape=(ACT,), high=np.ones(ACT), low=-np.ones(ACT))
    args = {"gamma": c["discount"], "tau": c["tau"], "alpha": 0.2, "lr": c["critic_lr"]}
    args |= {"policy": "Gaussian", "target_update_interval": 1, "hidden_size": WIDTH}
    t = agent.SAC(OBS, space, SimpleNamespace(**args, automatic_entropy_tuning=True))
    model = job.load(f"{FOLDER}/model.py", CPU).EnsembleDynamicsModel(
        c["members"], c["elites"], OBS, ACT, hidden_size=WIDTH
    )
    env = job.load(f"{FOLDER}/predict_env.py").PredictEnv(model, "HalfCheetah-v2", "pytorch")
    plan = {"ntraj": c["plans"], "planning_horizon": c["ahead"]}
    plan |= {"reward_gamma": c["plan_discount"], "uncertainty_gamma": c["plan_discount"]}
    plan |= {"conservative_rate": c["caution"], "optimistic_rate": c["curiosity"]}
    options, cautious = SimpleNamespace(**plan), job.phase == "plan_in_the_model"

    def act(b: Any) -> dict[str, Any]:
        s = b.observations.numpy()
        return {"actions": t.MPC_select_action(s, env, options, is_rollout=cautious)[0]}

    order: list[Draw] = []
    for k in range(c["ahead"]):
        noise = f"noise_{k}", lambda x: x[..., REWARD_FIRST]
        order += [f"action_{k}", noise, f"member_{k}"]
    p, links = t.policy, model_links(model)
    links += two_heads("policy/trunk", (p.linear1, p.linear2), p.mean_linear, p.log_std_linear)
    links.append(link("log_alpha/value", t.log_alpha))
    for name, q in (("critic", t.critic), ("critic_target", t.critic_target)):
        links += mlp(f"{name}/net", (q.linear1, q.linear2, q.linear3), 0)
        links += mlp(f"{name}/net", (q.linear4, q.linear5, q.linear6), 1)
    return Learner(links, act, [*order, UNUSED])  # the action after the last step is not used


def model_links(model: Any) -> list[Link]:
    """Return the links of a dynamics model whose first output is the reward."""
    net, scaler, members = model.ensemble_model, model.scaler, model.network_size
    layers = [net.nn1, net.nn2, net.nn3, net.nn4, net.nn5]
    copies = [Layer(*(torch.zeros_like(x) for x in (y.weight, y.bias))) for y in layers]
    both = np.concatenate([REWARD_FIRST, OBS + 1 + REWARD_FIRST])  # means and log variances
    links = stacked_mlp("dynamics/net", layers[:-1]) + stacked_mlp("best_dynamics/net", copies)
    for kind, x in (("weights", net.nn5.weight), ("biases", net.nn5.bias)):
        links.append(reordered(f"dynamics/net.{kind}.4", x, both))
    bounds = {"most": net.max_logvar, "least": net.min_logvar}
    links += [reordered(f"dynamics/{name}", x, REWARD_FIRST) for name, x in bounds.items()]
    errors: dict[str, Any] = {"error": np.zeros(members)}

    def set_errors(values: np.ndarray) -> None:
        errors["error"] = values
        model.elite_model_idxes = np.argsort(values)[: model.elite_size]

    links.append(Link("record/error", ..., lambda: errors["error"], set_errors))
    for ours, theirs in (("input_mean", "mu"), ("input_std", "std")):
        read, write = (
            (lambda name=theirs: getattr(scaler, name)),
            (lambda x, name=theirs: setattr(scaler, name, x.copy())),
        )
        links.append(Link(f"dynamics/{ours}", ..., read, write))
    # the reference has no such numbers, and ours do not change
    shapes = {"most": (OBS + 1,), "least": (OBS + 1,)}
    shapes |= dict.fromkeys(("input_mean", "input_std"), (OBS + ACT,))
    return links + [link(f"best_dynamics/{k}", torch.zeros(shape)) for k, shape in shapes.items()]


def reordered(name: str, tensor: torch.Tensor, order: np.ndarray) -> Link:
    """Return a link to a tensor whose last axis has our entries in another order."""

    def write(values: np.ndarray) -> None:
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(values[..., order].copy()).reshape(tensor.shape))

    back = np.argsort(order)
    return Link(name, ..., lambda: tensor.detach().numpy()[..., back].copy(), write)
