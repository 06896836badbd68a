"""Adapter to real-stanford/diffusion_policy with state observations; needs the package einops."""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
from torch import nn

from benchmarks.conformance.inputs import ACT, OBS
from benchmarks.conformance.job import Job, Learner, Link
from benchmarks.conformance.torch_side import link, link_view, mlp

SIDE = "torch_side"


def diffusion_policy(job: Job) -> Learner:
    """Return the learner. Random integers are the integer parts of uniform numbers."""
    sys.path.insert(0, str(job.checkout))
    torch.randint = lambda low, high, shape, **_: (torch.rand(shape) * high).long()
    module, c = job.load(), job.config
    from diffusers.optimization import get_cosine_schedule_with_warmup
    from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
    from diffusion_policy.model.common.normalizer import (
        LinearNormalizer,
        SingleFieldLinearNormalizer,
    )
    from diffusion_policy.model.diffusion.ema_model import EMAModel

    scheduler = DDPMScheduler(c["num_train_timesteps"], beta_schedule="squaredcos_cap_v2")
    sizes = {"horizon": c["horizon"], "obs_dim": OBS, "action_dim": ACT}
    sizes |= {"n_action_steps": c["n_action_steps"], "n_obs_steps": c["n_obs_steps"]}
    if c["network"] == "unet":
        net = unet(c)
        policy = module.DiffusionUnetLowdimPolicy(net, scheduler, obs_as_global_cond=True, **sizes)
    else:
        net = transformer(c)
        policy = module.DiffusionTransformerLowdimPolicy(net, scheduler, obs_as_cond=True, **sizes)
    normalizer = LinearNormalizer()
    for name in ("obs", "action"):
        normalizer[name] = SingleFieldLinearNormalizer.create_identity()
    policy.set_normalizer(normalizer)
    betas, decay = (c["beta1"], c["beta2"]), c["weight_decay"]
    if c["network"] == "unet":
        adam: Any = torch.optim.AdamW(policy.parameters(), c["lr"], betas, 1e-8, decay)
    else:
        adam = policy.get_optimizer(decay, c["lr"], betas)
    total = c["num_updates"]
    schedule = get_cosine_schedule_with_warmup(adam, c["num_warmup_updates"], total)
    average = EMAModel(copy.deepcopy(net), power=c["ema_power"], max_value=c["ema_max"])

    def update(b: Any) -> dict[str, float]:
        obs = torch.zeros(*b.actions.shape[:2], OBS)
        obs[:, : c["n_obs_steps"]] = b.observations
        loss = policy.compute_loss({"obs": obs, "action": b.actions})
        loss.backward()
        adam.step()
        adam.zero_grad()
        schedule.step()
        average.step(net)
        return {"policy_loss": loss.item()}

    links = unet_links if c["network"] == "unet" else transformer_links
    both = links("model/network", net) + links("policy/network", average.averaged_model)
    return Learner(both, update, ["noise", "level"])


def unet(c: dict[str, Any]) -> nn.Module:
    from diffusion_policy.model.diffusion.conditional_unet1d import ConditionalUnet1D

    cond, widths = OBS * c["n_obs_steps"], list(c["widths"])
    return ConditionalUnet1D(ACT, None, cond, c["time_size"], widths, 5, 8, True)


def transformer(c: dict[str, Any]) -> nn.Module:
    from diffusion_policy.model.diffusion.transformer_for_diffusion import TransformerForDiffusion

    layers, size = len(c["widths"]), c["widths"][0]
    sizes = {"n_layer": layers, "n_head": c["num_heads"], "n_emb": size, "cond_dim": OBS}
    kind = {"p_drop_emb": 0.0, "p_drop_attn": c["dropout"], "causal_attn": True}
    kind |= {"time_as_cond": True, "obs_as_cond": True, "n_cond_layers": 0}
    return TransformerForDiffusion(ACT, ACT, c["horizon"], c["n_obs_steps"], **sizes, **kind)


def conv(name: str, layer: nn.Conv1d, ours: tuple[str, str] = ("weight", "bias")) -> list[Link]:
    """Return links of a convolution.

    Our weight stacks the inputs of neighbor steps, earliest first.
    """
    weight = link_view(f"{name}.{ours[0]}", layer.weight, lambda w: w.permute(2, 1, 0))
    return [weight, link(f"{name}.{ours[1]}", layer.bias)]


def norm(name: str, layer: Any) -> list[Link]:
    return [link(f"{name}.{part}", getattr(layer, part)) for part in ("weight", "bias")]


def block(name: str, theirs: Any) -> list[Link]:
    """Return links of a convolution and its normalization."""
    return conv(f"{name}.conv", theirs.block[0]) + norm(f"{name}.norm", theirs.block[1])


def level(name: str, pair: Any) -> list[Link]:
    """Return links of two residual blocks with FiLM."""
    links = []
    for part, theirs in zip(("first", "second"), pair, strict=True):
        path = f"{name}.{part}"
        links += block(f"{path}.first", theirs.blocks[0])
        links += block(f"{path}.second", theirs.blocks[1])
        links += mlp(f"{path}.film", [theirs.cond_encoder[1]])
        if isinstance(theirs.residual_conv, nn.Conv1d):
            links += conv(f"{path}.skip", theirs.residual_conv, ("weights.0", "biases.0"))
    return links


def unet_links(name: str, net: Any) -> list[Link]:
    encoder = net.diffusion_step_encoder
    links = mlp(f"{name}.embed_time.perceptron", [encoder[1], encoder[3]])
    for k, (first, second, down) in enumerate(net.down_modules):
        links += level(f"{name}.down.{k}", (first, second))
        links += conv(f"{name}.narrow.{k}", down.conv) if hasattr(down, "conv") else []
    links += level(f"{name}.middle", net.mid_modules)
    for k, (first, second, up) in enumerate(net.up_modules):
        links += level(f"{name}.up.{k}", (first, second))
        size = up.conv.bias.shape[0]
        for part, taps in (("even", (3, 1)), ("odd", (2, 0))):
            for at, tap in enumerate(taps):
                rows = (slice(at * size, (at + 1) * size),)
                path = f"{name}.widen.{k}.{part}"
                links.append(link_view(path, up.conv.weight, lambda w, t=tap: w[:, :, t], rows))
        links.append(link(f"{name}.widen.{k}.bias", up.conv.bias))
    links += block(f"{name}.last", net.final_conv[0])
    return links + conv(f"{name}.answer", net.final_conv[1], ("weights.0", "biases.0"))


def transformer_links(name: str, net: Any) -> list[Link]:
    links = [link_view(f"{name}.place", net.pos_emb, lambda p: p[0])]
    links.append(link_view(f"{name}.memory_place", net.cond_pos_emb, lambda p: p[0]))
    links += mlp(f"{name}.embed_action", [net.input_emb])
    links += mlp(f"{name}.embed_observation", [net.cond_obs_emb])
    links += mlp(f"{name}.memory", [net.encoder[0], net.encoder[2]])
    for k, theirs in enumerate(net.decoder.layers):
        path, size = f"{name}.blocks.{k}", theirs.linear2.bias.shape[0]
        all_rows, head, rest = slice(None), slice(0, size), slice(size, 3 * size)
        for part, attention, rows in (
            ("self_in", theirs.self_attn, all_rows),
            ("cross_query", theirs.multihead_attn, head),
            ("cross_in", theirs.multihead_attn, rest),
        ):
            weight, bias = attention.in_proj_weight, attention.in_proj_bias
            links.append(link_view(f"{path}.{part}.weights.0", weight, lambda w, r=rows: w[r].T))
            links.append(link_view(f"{path}.{part}.biases.0", bias, lambda b, r=rows: b[r]))
        links += mlp(f"{path}.self_out", [theirs.self_attn.out_proj])
        links += mlp(f"{path}.cross_out", [theirs.multihead_attn.out_proj])
        links += mlp(f"{path}.mlp", [theirs.linear1, theirs.linear2])
        norms = {"norm_self": theirs.norm1, "norm_cross": theirs.norm2, "norm_mlp": theirs.norm3}
        for part, layer in norms.items():
            links += norm(f"{path}.{part}", layer)
    return links + norm(f"{name}.norm", net.ln_f) + mlp(f"{name}.answer", [net.head])
