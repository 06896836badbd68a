"""Adapter to the Gym part of kzl/decision-transformer; needs the package transformers."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.conformance.inputs import ACT, OBS
from benchmarks.conformance.job import Job, Learner
from benchmarks.conformance.torch_side import link, mlp

SIDE = "torch_side"
PARTS = {"attention_in": "attn.c_attn", "attention_out": "attn.c_proj"}
MLPS = {"embed_return": "embed_return", "embed_observation": "embed_state"}
MLPS |= {"embed_action": "embed_action", "head": "predict_action.0"}


def decision_transformer(job: Job) -> Learner:
    """Return the learner.

    Short windows are padded at their start in the reference, and at their end in our code.
    """
    import transformers.file_utils

    transformers.file_utils.add_code_sample_docstrings = lambda **_: lambda function: function
    sys.path.insert(0, str(job.checkout / "gym"))
    module, c = job.load(), job.config
    models = job.load("gym/decision_transformer/models/decision_transformer.py")
    names = {
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "max_length": "context_length",
        "hidden_size": "dim_model",
    }
    names |= {"max_ep_len": "episode_steps"}
    options = {name: c[ours] for name, ours in names.items()}
    options |= dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), c["dropout"])
    net = models.DecisionTransformer(
        OBS, ACT, n_inner=4 * c["dim_model"], activation_function="relu", n_ctx=1024, **options
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=c["lr"], weight_decay=c["weight_decay"])
    total = c["num_warmup_updates"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min((done + 1) / total, 1))
    current = SimpleNamespace(rows=None)
    t = module.SequenceTrainer(
        net,
        optimizer,
        0,
        lambda batch_size: current.rows,
        loss_fn=lambda _s, a, _r, _s2, target, _r2: ((a - target) ** 2).mean(),
    )

    def update(b: Any) -> dict[str, float]:
        returns = align_right(b.mc_returns[..., None] / c["return_scale"], b.valid)
        returns = torch.cat([returns, returns[:, :1]], 1)  # the reference drops the last
        s, a, mask = (
            align_right(x, b.valid) for x in (b.observations, b.actions, b.valid.double())
        )
        current.rows = s, a, None, None, returns, align_right(b.timesteps, b.valid), mask
        loss = t.train_step()
        schedule.step()
        return {"policy_loss": float(loss)}

    links = [link("policy/embed_place", net.embed_timestep.weight)]
    for ours, theirs in MLPS.items():
        links += mlp(f"policy/{ours}", [net.get_submodule(theirs)])
    normed = {"norm_in": net.embed_ln, "norm_out": net.transformer.ln_f}
    for i, block in enumerate(net.transformer.h):
        inside = f"blocks.{i}"
        normed |= {f"{inside}.norm_attention": block.ln_1, f"{inside}.norm_mlp": block.ln_2}
        parts = {ours: [block.get_submodule(theirs)] for ours, theirs in PARTS.items()}
        parts["mlp"] = [block.mlp.c_fc, block.mlp.c_proj]
        for ours, layers in parts.items():
            links += mlp(f"policy/{inside}.{ours}", layers, transposed=False)
    for ours, norm in normed.items():
        links += [link(f"policy/{ours}.{part}", getattr(norm, part)) for part in ("weight", "bias")]
    return Learner(links, update, [f"dropout_{i}" for i in range(1 + 3 * c["num_layers"])])


def align_right(x: Tensor, valid: Tensor) -> Tensor:
    """Return windows [B, T, …] with the padding moved from the end to the start, as zeros.

    valid: mask of the steps without padding.
    """
    aligned = torch.zeros_like(x)
    for row, count in enumerate(valid.sum(1).tolist()):
        aligned[row, len(x[row]) - count :] = x[row, :count]
    return aligned
