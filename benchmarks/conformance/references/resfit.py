"""Adapter to amazon-science/residual-offpolicy-rl; needs the package einops."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import UNUSED, Job, Learner, Link, StandIn
from benchmarks.conformance.torch_side import link, link_view

SIDE = "torch_side"
CAMERA, FEATURE, NORM = "camera", 2, ("weight", "bias")


def resfit(job: Job) -> Learner:
    """Return the learner. Image features are 0 and stay 0, because a ReLU at 0 has no gradient."""
    sys.path.insert(0, str(job.checkout))
    sys.meta_path.append(StandIn("hydra psutil tabulate torchvision yaml"))
    torch.randperm = lambda size, **_: torch.rand(size).argsort(descending=True)
    module, c = job.load(), job.config
    from resfit.rl_finetuning.config import rlpd

    class Blind(nn.Module):
        """Replacement of the image encoder."""

        repr_dim = patch_repr_dim = FEATURE

        def __init__(self, *_: Any) -> None:
            super().__init__()
            self.zero = nn.Parameter(torch.zeros(1))

        def forward(self, image: Tensor, flatten: bool = True) -> Tensor:
            return self.zero.expand(len(image), 1, FEATURE)

    module.VitEncoder = Blind
    sizes: dict[str, Any] = {"hidden_dim": WIDTH, "num_layers": len(c["hidden"])}
    sizes |= {"use_layer_norm": c["layer_norm"]}
    residual = {"action_scale": c["scale"], "action_l2_reg_weight": c["correction_weight"]}
    actor = rlpd.ActorConfig(feature_dim=FEATURE, **residual, **sizes)
    heads = {"num_q": c["num_critics"], "min_q_heads": c["num_min_critics"], "spatial_emb": FEATURE}
    config = rlpd.QAgentConfig(
        device="cpu",
        actor_lr=c["actor_lr"],
        critic_lr=c["critic_lr"],
        critic_target_tau=c["tau"],
        stddev_clip=c["noise_clip"],
        critic=rlpd.CriticConfig(**sizes, **heads),
        actor=actor,
        critic_grad_clip_norm=c["max_grad_norm"],
        actor_grad_clip_norm=c["max_grad_norm"],
        clip_q_target_to_reward_range=c["clip_target"],
        target_action_noise=c["target_noise"],
    )
    t = module.QAgent((3, 8, 8), (OBS - ACT,), ACT, [CAMERA], config, residual_actor=True)
    t.aug = lambda images: images
    actors, critics = [t.actor, t.actor_target], [t.critic, t.critic_target]
    with torch.no_grad():
        for net in actors:
            zero_image_features(net.compress, net.policy[0].weight)
        for net in critics:
            zero_image_features(net.q_ensemble.input_proj, net.q_ensemble._vmap_param_net_0_weight)
    counter = SimpleNamespace(done=0)

    def update(b: Any) -> dict[str, float]:
        """Train only the critics at first, without noise, as in the reference's training loop."""

        def split(observations: Tensor) -> dict[str, Tensor]:
            state, base = observations.split((OBS - ACT, ACT), -1)
            parts = {"observation.state": state, "observation.base_action": base}
            return {CAMERA: torch.zeros(len(state), 3, 8, 8), **parts}

        batch = {"obs": split(b.observations), "action": b.actions, ("next", "reward"): b.rewards}
        batch |= {"gamma": torch.full_like(b.rewards, c["discount"])}
        batch |= {"nonterminal": 1 - b.terminated, ("next", "obs"): split(b.next_observations)}
        both = counter.done >= c["online"]["critic_updates"]
        counter.done += 1
        last = counter.done % c["period"] == 0
        info = t.update(batch, c["noise"] if both else 0.0, both and last)
        names = {"critic_loss": "critic_loss", "target": "critic_qt"}
        names |= {"policy_loss": "actor_loss_total"} if both and last else {}
        return {ours: info[f"train/{theirs}"] for ours, theirs in names.items()}

    links = []
    for name, net in (("policy", t.actor), ("policy_target", t.actor_target)):
        links += [*actor_links(f"{name}/trunk", net), scale(f"{name}/scale", net)]
    for name, net in (("critic", t.critic), ("critic_target", t.critic_target)):
        links += critic_links(f"{name}/net.net", net.q_ensemble, len(c["hidden"]))
    return Learner(links, update, ["noise", "subset", UNUSED])


def zero_image_features(compress: nn.Sequential, weight: Tensor) -> None:
    """Set the compressed image features, and their weights in the next layer, to 0."""
    for parameter in (*compress[0].parameters(), compress[1].bias):
        parameter.zero_()
    weight[..., :FEATURE] = 0


def actor_links(name: str, actor: Any) -> list[Link]:
    first, *rest = [m for m in actor.policy if isinstance(m, nn.Linear)]
    links = [link_view(f"{name}.weights.0", first.weight, lambda w: w[:, FEATURE:].T)]
    links.append(link(f"{name}.biases.0", first.bias))
    for i, layer in enumerate(rest, 1):
        links.append(link(f"{name}.weights.{i}", layer.weight, transposed=True))
        links.append(link(f"{name}.biases.{i}", layer.bias))
    for i, norm in enumerate(m for m in actor.policy if isinstance(m, nn.LayerNorm)):
        links += [link(f"{name}.norms.{i}.{part}", getattr(norm, part)) for part in NORM]
    return links


def critic_links(name: str, ensemble: Any, hidden: int) -> list[Link]:
    """Return links of the critics.

    The reference stacks critics too. Its hidden layers are three modules: linear, norm and ReLU.
    """

    def tensor(module: int, part: str) -> Tensor:
        return getattr(ensemble, f"_vmap_param_net_{module}_{part}")

    def transpose(i: int) -> Callable[[Tensor], Tensor]:
        return lambda w: (w if i else w[..., FEATURE:]).mT

    links = []
    for i in range(hidden + 1):
        links.append(link_view(f"{name}.weights.{i}", tensor(3 * i, "weight"), transpose(i)))
        links.append(link(f"{name}.biases.{i}", tensor(3 * i, "bias"), (slice(None), 0)))
    for i in range(hidden):
        for part in NORM:
            path = f"{name}.norms.{i}.{part}"
            links.append(link(path, tensor(3 * i + 1, part), (slice(None), 0)))
    return links


def scale(name: str, actor: Any) -> Link:
    """Return a link of the scale of actions, which is a config field in the reference."""

    def write(value: np.ndarray) -> None:
        actor.cfg.action_scale = float(value)

    return Link(name, ..., lambda: np.asarray(actor.cfg.action_scale), write)
