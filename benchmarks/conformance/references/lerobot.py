"""Adapter to huggingface/lerobot; needs the package einops."""

from __future__ import annotations

import importlib
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.conformance.inputs import ACT, BATCH, OBS
from benchmarks.conformance.job import Draw, Job, Learner, Link, StandIn
from benchmarks.conformance.torch_side import link, link_copies, link_view, mlp

SIDE = "torch_side"


def policy_module(job: Job) -> ModuleType:
    """Return the case's file as a module, without its package's imports and base class."""
    sys.meta_path.append(StandIn("torchvision"))
    source = job.checkout / "src"
    file = Path(job.file).relative_to("src")
    for folder in (*file.parents[:-1], Path("lerobot/utils")):
        package = ModuleType(".".join(folder.parts))
        package.__path__ = [str(source / folder)]
        sys.modules[package.__name__] = package

    class PreTrainedPolicy(nn.Module):
        def __init__(self, config: Any) -> None:
            super().__init__()

    name = ".".join(file.with_suffix("").parts)
    stand_ins: dict[str, Any] = {
        "lerobot.policies.pretrained": SimpleNamespace(PreTrainedPolicy=PreTrainedPolicy),
        "lerobot.policies.utils": MagicMock(),
        "lerobot.utils.import_utils": SimpleNamespace(
            _diffusers_available=False, _transformers_available=False, require_package=None
        ),
        name.replace("modeling", "configuration"): MagicMock(),
    }
    sys.modules.update(stand_ins)
    return importlib.import_module(name)


def act(job: Job) -> Learner:
    """Return the learner. The robot state is the only observation.

    The environment state in the batch is read only for its length.
    """
    module, c = policy_module(job), job.config
    config = SimpleNamespace(
        validate_features=lambda: None,
        robot_state_feature=SimpleNamespace(shape=(OBS * c["n_obs_steps"],)),
        action_feature=SimpleNamespace(shape=(ACT,)),
        env_state_feature=None,
        image_features=None,
        chunk_size=c["horizon"],
        n_action_steps=c["n_action_steps"],
        pre_norm=False,
        dim_model=c["dim_model"],
        n_heads=c["num_heads"],
        dim_feedforward=c["dim_feedforward"],
        feedforward_activation="relu",
        n_encoder_layers=c["num_layers"],
        n_decoder_layers=c["num_decoder_layers"],
        use_vae=True,
        latent_dim=c["latent_dim"],
        n_vae_encoder_layers=c["num_vae_encoder_layers"],
        temporal_ensemble_coeff=None,
        dropout=c["dropout"],
        kl_weight=c["kl_weight"],
        optimizer_lr_backbone=c["lr"],
    )
    policy = module.ACTPolicy(config)
    policy.train()
    betas = (c["beta1"], c["beta2"])
    groups = [group for group in policy.get_optim_params() if group["params"]]
    adam = torch.optim.AdamW(groups, c["lr"], betas, 1e-8, c["weight_decay"])

    def update(b: Any) -> dict[str, float]:
        state = b.observations.flatten(1)
        batch = {module.OBS_STATE: state, module.OBS_ENV_STATE: state, module.ACTION: b.actions}
        loss, info = policy(batch | {"action_is_pad": ~b.valid})
        loss.backward()
        # as in LeRobot's training loop
        nn.utils.clip_grad_norm_(policy.parameters(), c["max_grad_norm"])
        adam.step()
        adam.zero_grad()
        return {"policy_loss": loss.item(), "l1_loss": info["l1_loss"], "kl": info["kld_loss"]}

    links = act_links("model", policy.model)
    order: list[Draw] = [*layer_draws("vae_encoder", 2), "z", *layer_draws("encoder", 2)]
    for k in range(c["num_decoder_layers"]):
        order += layer_draws("decoder", 3, 6 * k)
    return Learner(links + link_copies("policy", links), update, order)


def layer_draws(name: str, parts: int, start: int = 0) -> list[Draw]:
    """Return the dropout draws of a layer.

    Draws for attention weights have our layout. In draws for tokens, the token axis comes before
    the batch axis.
    """

    def swap_batch(x: np.ndarray) -> np.ndarray:
        return x.reshape(BATCH, -1, x.shape[-1]).swapaxes(0, 1)

    rows: list[Draw] = [(f"{name}_{start + k}", swap_batch) for k in range(2 * parts)]
    for k in range(parts - 1):
        rows[2 * k] = f"{name}_{start + 2 * k}"
    return rows


def act_links(name: str, net: Any) -> list[Link]:
    links = [
        link(f"{name}/style_start", net.vae_encoder_cls_embed.weight),
        link(f"{name}/place", net.encoder_1d_feature_pos_embed.weight),
        link(f"{name}/queries", net.decoder_pos_embed.weight),
    ]
    for ours, theirs in {
        "style_observation": net.vae_encoder_robot_state_input_proj,
        "style_action": net.vae_encoder_action_input_proj,
        "style_answer": net.vae_encoder_latent_output_proj,
        "embed_style": net.encoder_latent_input_proj,
        "embed_observation": net.encoder_robot_state_input_proj,
        "answer": net.action_head,
    }.items():
        links += mlp(f"{name}/{ours}", [theirs])
    stacks = {"style_blocks": net.vae_encoder, "encoder": net.encoder, "decoder": net.decoder}
    for ours, theirs in stacks.items():
        for k, layer in enumerate(theirs.layers):
            links += layer_links(f"{name}/{ours}.{k}", layer)
    return links + norm(f"{name}/norm", net.decoder.norm)


def layer_links(name: str, layer: Any) -> list[Link]:
    attentions, norms = {"self_attention": layer.self_attn}, {"norm_self": layer.norm1}
    if hasattr(layer, "norm3"):
        attentions |= {"cross_attention": layer.multihead_attn}
        norms |= {"norm_cross": layer.norm2, "norm_mlp": layer.norm3}
    else:
        norms |= {"norm_mlp": layer.norm2}
    links = mlp(f"{name}.mlp", [layer.linear1, layer.linear2])
    for ours, theirs in attentions.items():
        size = theirs.embed_dim
        for k, part in enumerate(("query", "key", "value")):
            path, rows = f"{name}.{ours}.{part}", slice(k * size, (k + 1) * size)

            def unpack(packed: Tensor, rows: slice = rows) -> Tensor:
                return packed[rows].T if packed.dim() == 2 else packed[rows]

            links.append(link_view(f"{path}.weights.0", theirs.in_proj_weight, unpack))
            links.append(link_view(f"{path}.biases.0", theirs.in_proj_bias, unpack))
        links += mlp(f"{name}.{ours}.out", [theirs.out_proj])
    return links + [x for ours, theirs in norms.items() for x in norm(f"{name}.{ours}", theirs)]


def norm(name: str, layer: Any) -> list[Link]:
    return [link(f"{name}.{part}", getattr(layer, part)) for part in ("weight", "bias")]


def flow_policy(job: Job) -> Learner:
    """Return the learner: the reference's objective with an MLP of torch layers.

    The MLP receives times multiplied by 1,000.
    """
    module, c = policy_module(job), job.config

    class Beta:
        """Beta distribution with a second parameter of 1, sampled by the inverse CDF."""

        def __init__(self, alpha: float, beta: float) -> None:
            assert beta == 1
            self.alpha = alpha

        def sample(self, shape: tuple[int, ...]) -> Tensor:
            return torch.rand(shape) ** (1 / self.alpha)

    torch.distributions.Beta = Beta

    class Perceptron(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            size, chunk = c["time_size"], c["horizon"] * ACT
            units = [chunk + size + c["n_obs_steps"] * OBS, *c["widths"], chunk]
            embedded = (
                nn.Linear(size, 4 * size),
                nn.Mish(),
                nn.Linear(4 * size, size),
            )
            self.time = nn.Sequential(module.SinusoidalPosEmb(size), *embedded)
            layers = [x for pair in pairwise(units) for x in (nn.Linear(*pair), nn.Mish())]
            self.trunk = nn.Sequential(*layers[:-1])

        def forward(self, x: Tensor, times: Tensor, conditioning_vec: Tensor) -> Tensor:
            parts = [x.flatten(1), self.time(1000 * times), conditioning_vec]
            return self.trunk(torch.cat(parts, -1)).reshape(x.shape)

    config = SimpleNamespace(
        sigma_min=0.0,
        timestep_sampling_strategy="beta",
        timestep_sampling_alpha=c["time_power"],
        timestep_sampling_beta=1.0,
        timestep_sampling_s=c["time_max"],
    )
    objective = module.FlowMatchingObjective(config, ACT, c["horizon"], c["mask_ends"])
    network, betas = Perceptron(), (c["beta1"], c["beta2"])
    adam = torch.optim.AdamW(network.parameters(), c["lr"], betas, 1e-8, c["weight_decay"])

    def update(b: Any) -> dict[str, float]:
        batch = {module.ACTION: b.actions, "action_is_pad": ~b.valid}
        loss = objective.compute_loss(network, batch, b.observations.flatten(1))
        loss.backward()
        adam.step()
        adam.zero_grad()
        return {"policy_loss": loss.item()}

    links = mlp("model/network.embed_time.perceptron", network.time)
    links += mlp("model/network.trunk", network.trunk)
    return Learner(links + link_copies("policy", links), update, ["noise", "time"])
