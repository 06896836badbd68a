"""Export of a bundle's network to ONNX, so that it runs without torch.

The ONNX graph maps observations, memory and noise to a chunk and the next memory. A denoising
policy is exported as two graphs: the observation encoder, and one denoising step. The loop over
denoising steps runs in numpy (`policies.heads.schedules`). The noise also comes from numpy.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies.bundle import Bundle, BundleError
from policies.golden import ROWS, TOLERANCE, open_bundle, predict_chunks, run_golden, verify_golden
from policies.networks.defaults import torch_defaults
from policies.policy import BundlePolicy
from policies.runtimes import with_onnx as onnx


@torch_defaults()
def export_bundle(bundle: Bundle) -> tuple[Bundle, float]:
    """Return `bundle` with ONNX graphs, and the largest difference between ONNX and torch outputs.

    The outputs are compared on the golden input, as one batch and row by row. The base policy is
    exported too. Raises BundleError.
    """
    reference, golden = verify_golden(bundle, "torch")
    base = None if bundle.base is None else export_bundle(bundle.base)[0]
    graphs = {**bundle.graphs, **make_graphs(reference)}
    exported = replace(bundle, graphs=graphs, golden=golden, base=base)
    policy, result = run_golden(exported, "onnx")
    differences = [np.abs(result.chunks - golden.chunks).max()]
    for k in range(ROWS):
        row = {name: value[[k]] for name, value in golden.observations.items()}
        noise = None if golden.noise is None else golden.noise[[k]]
        chunks = predict_chunks(policy, row, noise)
        differences.append(np.abs(chunks - golden.chunks[:, [k]]).max())
    if not max(differences) <= TOLERANCE:
        raise BundleError(
            f"the exported graph differs from torch by {max(differences):.2g}, the limit is "
            f"{TOLERANCE:g}. The bundle was not changed"
        )
    if base is not None:
        open_bundle(exported, "onnx", {}, units=False)  # compares the policy together with its base
    return exported, float(max(differences))


def make_graphs(policy: BundlePolicy) -> dict[str, bytes]:
    """Return the ONNX graphs, under the names that `policies.runtimes.with_onnx` expects."""
    module, spec = policy.module, policy.spec
    example = {
        channel.name: torch.zeros(
            ROWS,
            spec.n_obs_steps,
            *channel.shape,
            dtype=getattr(torch, np.dtype(channel.dtype).name),
        )
        for channel in spec.channels
    }
    observed = example if spec.single_vector is None else example[spec.single_vector.name]
    observations = {onnx.OBSERVATIONS: observed}
    noise = torch.zeros(ROWS, *policy.noise_shape)
    if module.table is None:
        memory = module.initial_memory(ROWS)
        inputs = observations | ({onnx.MEMORY: memory} if memory else {})
        inputs |= {onnx.NOISE: noise} if policy.noise_shape else {}
        outputs = [onnx.CHUNK, *(f"{onnx.NEXT_MEMORY}/{name}" for name in memory)]
        return {onnx.POLICY: trace(Decide(module), inputs, outputs)}
    with torch.no_grad():
        features = module.encode(observed)
    step = {onnx.FEATURES: features, onnx.X: noise[:, 0], onnx.TIME: torch.ones(ROWS)}
    return {
        onnx.ENCODER: trace(Encode(module), observations, [onnx.FEATURES]),
        onnx.POLICY: trace(Step(module), step, [onnx.STEP_OUTPUT]),
    }


class Part(nn.Module):
    """Base class of modules that export one part of a head."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head = head


class Decide(Part):
    """A complete head: from observations, memory and noise to a chunk and the next memory."""

    def forward(
        self, observations: Any, memory: Mapping[str, Tensor] | None = None, noise: Any = None
    ) -> tuple[Tensor, ...]:
        memory = memory or {}
        chunk, following = self.head.decide(observations, memory, noise)
        return chunk, *(following[name] for name in memory)


class Encode(Part):
    """The observation encoder of a diffusion policy, which runs once per chunk."""

    def forward(self, observations: Any) -> Tensor:
        features: Tensor = self.head.encode(observations)
        return features


class Step(Part):
    """The network of a diffusion policy, which runs in each denoising step."""

    def forward(self, features: Tensor, x: Tensor, time: Tensor) -> Tensor:
        output: Tensor = self.head.predict(features, x, time)
        return output


def trace(module: nn.Module, inputs: Mapping[str, Any], outputs: list[str]) -> bytes:
    """Return `module` as an ONNX graph for any batch size.

    inputs: example arguments by name. A mapping of channels becomes one input for each channel.
    outputs: names of the outputs.
    """
    rows = torch.export.Dim("rows")

    def free_batch_size(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: free_batch_size(inner) for name, inner in value.items()}
        return {0: rows}

    names = list[str]()
    for name, value in inputs.items():
        several = isinstance(value, Mapping)
        names += [f"{name}/{inner}" for inner in value] if several else [name]
    with silenced():
        program = torch.onnx.export(
            module.eval(),
            kwargs=dict(inputs),  # torch unpacks a mapping that is the last positional argument
            input_names=names,
            output_names=outputs,
            dynamic_shapes=free_batch_size(inputs),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    return content


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Suppress the warnings and messages of the ONNX exporter."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stdout(nowhere),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
