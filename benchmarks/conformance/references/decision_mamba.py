"""Adapter to aopolin-lv/DecisionMamba: its trainer, its model, and its scans without GPU kernels.

Its copy of the package transformers is not imported, except the file of the scans. What this file
imports from the package is defined here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import nn

from benchmarks.conformance.inputs import ACT, OBS
from benchmarks.conformance.job import Job, Learner, Link
from benchmarks.conformance.torch_side import link, link_view, mlp

SIDE = "torch_side"
HERE = "from benchmarks.conformance.references.decision_mamba import"
SWAPS = {
    "from ...activations import": HERE,
    "from ...modeling_utils import": HERE,
    "from ...utils import": HERE,
    "from ...utils.import_utils import": HERE,
    "from .configuration_mamba import": HERE,
    "from einops import rearrange": "",
    "in_channels=768, out_channels=768": "config.hidden_size, config.hidden_size",
    "cache_params.ssm_states[self.layer_idx].copy_(ssm_state)": "pass",
}
ABSENT = """transformers transformers.models transformers.models.gpt2 peft
decision_transformer.models.trajectory_gpt2 decision_transformer.models.trajectory_gpt2_LoRA"""
ACT2FN = {"silu": nn.functional.silu}
MambaConfig = SimpleNamespace
logging = MagicMock()


class PreTrainedModel(nn.Module):
    """Base class of models, without loading and initialization."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def post_init(self) -> None:
        """Keep PyTorch's initialization."""


class ModelOutput:
    """Base class of outputs, with access to fields by name."""

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def keep(*_: Any, **__: Any) -> Callable[[Any], Any]:
    """Return a decorator that changes nothing."""
    return lambda decorated: decorated


add_code_sample_docstrings = add_start_docstrings = add_start_docstrings_to_model_forward = keep


def is_causal_conv1d_available() -> bool:
    return False


is_mamba_ssm_available = is_causal_conv1d_available


def decision_mamba(job: Job) -> Learner:
    """Return the learner. The weight of the policy in its targets is 0, whatever is passed."""
    sys.path.insert(0, str(job.checkout / "experiment-d4rl"))
    sys.modules.update({name: MagicMock() for name in ABSENT.split()})
    c, size = job.config, job.config["dim_model"]
    config = SimpleNamespace(
        hidden_size=size,
        intermediate_size=2 * size,
        state_size=c["state_size"],
        conv_kernel=4,
        time_step_rank=-(-size // 16),
        num_hidden_layers=c["num_layers"],
        hidden_act="silu",
        use_bias=False,
        use_conv_bias=True,
        layer_norm_epsilon=1e-5,
        residual_in_fp32=True,
        vocab_size=1,
        output_hidden_states=False,
        use_return_dict=True,
    )
    scans = job.load("transformers/src/transformers/models/mamba/modeling_mamba.py", SWAPS)
    package: Any = sys.modules["transformers"]
    package.MambaForCausalLM = scans.MambaForCausalLM
    package.MambaConfig.from_pretrained = lambda _: config
    module = job.load()
    models = job.load("experiment-d4rl/decision_transformer/models/decision_transformer.py")
    options = dict.fromkeys(("lora", "extend_positions", "mlp_embedding"), False)
    options |= {"share_input_output_proj": False, "from_scratch": True, "dropout": 0.0}
    net = models.DecisionTransformer(
        options | {"pretrained_lm": "mamba-130m"},
        OBS,
        ACT,
        size,
        max_length=c["context_length"],
        max_ep_len=c["episode_steps"],
        predict_sr=True,
        pskd=True,
        alpha_T=c["evolution"],
    )
    optimizer = torch.optim.AdamW(groups(net, c["weight_decay"]), lr=c["lr"], eps=1e-6)
    total = c["num_warmup_updates"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min((done + 1) / total, 1))
    current = SimpleNamespace(rows=None)
    t = module.SequenceTrainer(
        c["max_evolution"],
        args=None,
        model=net,
        optimizer=optimizer,
        batch_size=0,
        get_batch=lambda _: current.rows,
        loss_fn=None,
    )

    def update(b: Any) -> dict[str, float]:
        returns = b.mc_returns[..., None] / c["return_scale"]
        returns = torch.cat([returns, returns[:, :1]], 1)  # the reference drops the last
        rows = b.observations, b.actions, None, None, returns
        current.rows = *rows, b.timesteps, b.valid.double()
        loss = t.train_step(c["evolution"])
        schedule.step()
        return {"policy_loss": loss, "action_loss": t.diagnostics["training/action_error"]}

    return Learner(links_of(net), update)


def groups(net: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameters with and without weight decay, those of biases and LayerNorm."""
    norms = [x for m in net.modules() if isinstance(m, nn.LayerNorm) for x in m.parameters()]
    undecayed = [x for name, x in net.named_parameters() if "bias" in name]
    plain = {id(x) for x in (*norms, *undecayed)}
    parts: Any = [[x for x in net.parameters() if (id(x) in plain) == k] for k in (False, True)]
    decay, none = ({"params": x} for x in parts)
    return [decay | {"weight_decay": weight_decay}, none | {"weight_decay": 0.0}]


def links_of(net: Any) -> list[Link]:
    """Return links of the complete model."""
    links = [link("policy/embed_place", net.embed_timestep.weight)]
    layers = {"embed_return": net.embed_return, "embed_observation": net.embed_state}
    layers |= {"embed_action": net.embed_action, "head": net.predict_action[0]}
    layers |= {"observation_head": net.predict_state, "return_head": net.predict_rtg}
    backbone = net.transformer_model.backbone
    norms: dict[str, Any] = {"norm_in": net.embed_ln, "norm_out": backbone.norm_f}
    for i, block in enumerate(backbone.layers):
        name = f"blocks.{i}"
        norms |= {f"{name}.norm": block.norm, f"{name}.norm_fine": block.ln_norm}
        merge = f"policy/{name}.merge"
        view = link_view(f"{merge}.weights.0", block.conv1d.weight, lambda w: w.permute(2, 1, 0))
        links += [view, link(f"{merge}.biases.0", block.conv1d.bias)]
        links += mixer_links(f"policy/{name}.coarse", block.mixer)
        links += mixer_links(f"policy/{name}.fine", block.mixer_group)
    for ours, layer in layers.items():
        links += mlp(f"policy/{ours}", [layer])
    for ours, norm in norms.items():
        links += [link(f"policy/{ours}.{part}", x) for part, x in norm.named_parameters()]
    return links


def mixer_links(name: str, mixer: Any) -> list[Link]:
    """Return links from a scan to ours."""
    weights = {"weight_in": mixer.in_proj, "weight_select": mixer.x_proj}
    weights["weight_out"] = mixer.out_proj
    links = [link(f"{name}.{k}", v.weight, transposed=True) for k, v in weights.items()]
    links.append(link_view(f"{name}.weight_conv", mixer.conv1d.weight, lambda w: w[:, 0].T))
    vectors = {"bias_conv": mixer.conv1d.bias, "log_decay": mixer.A_log, "skip": mixer.D}
    links += [link(f"{name}.{k}", v) for k, v in vectors.items()]
    return links + mlp(f"{name}.delta", [mixer.dt_proj])
