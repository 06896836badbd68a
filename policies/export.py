"""A bundle's network as ONNX, so that it runs where torch is not installed.

One decision is exported: observations to chunk. Of a sampler it is one round of its network, with
what encodes the observations apart; the rounds themselves are a few lines of numpy
(`policies.heads.schedules`), and noise is drawn there too.
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
from policies.golden import TOLERANCE, answered, compared
from policies.networks.defaults import torch_defaults
from policies.policy import BundlePolicy
from policies.runtimes import with_onnx as onnx

ROWS = 2  # of the example that is traced


@torch_defaults()
def exported(bundle: Bundle) -> tuple[Bundle, float]:
    """`bundle` with graphs, and how far they are from torch, at most. Raises BundleError.

    Compared on the golden answer's rows, together and one by one. Of a residual the base as well.
    """
    plain, golden = compared(bundle, "torch")
    if plain.network.remembers:
        raise BundleError(
            f"a {bundle.kind} remembers its episode, and what is exported is a network of one "
            "decision: run it with torch"
        )
    base = None if bundle.base is None else exported(bundle.base)[0]
    made = replace(bundle, graphs={**bundle.graphs, **graphs(plain)}, golden=golden, base=base)
    policy, again = answered(made, "onnx")
    apart = [np.abs(again.chunk - golden.chunk).max()]
    for k in range(len(golden.chunk)):
        one = {name: value[k : k + 1] for name, value in golden.observations.items()}
        noise = None if golden.noise is None else golden.noise[k : k + 1]
        apart.append(np.abs(policy.chunk(one, noise) - golden.chunk[k]).max())
    if not max(apart) <= TOLERANCE:
        raise BundleError(f"its graph is {max(apart):.2g} off what torch answers: not exported")
    return made, float(max(apart))


def graphs(policy: BundlePolicy) -> dict[str, bytes]:
    """By name, as `policies.runtimes.with_onnx` runs them."""
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
    seen = example if spec.lone is None else example[spec.lone.name]
    if not hasattr(module, "plan"):
        return {onnx.POLICY: graph(Act(module), {onnx.OBSERVATIONS: seen}, onnx.CHUNK)}
    noise = torch.zeros(ROWS, *policy.noise_shape)
    if "table" not in module.arguments:
        given = {onnx.OBSERVATIONS: seen} | ({onnx.NOISE: noise} if policy.noise_shape else {})
        return {onnx.POLICY: graph(Plan(module), given, onnx.CHUNK)}
    with torch.no_grad():
        features = module.encode(seen)
    step = {onnx.FEATURES: features, onnx.X: noise[:, 0], onnx.TIME: torch.ones(ROWS)}
    return {
        onnx.ENCODER: graph(Encode(module), {onnx.OBSERVATIONS: seen}, onnx.FEATURES),
        onnx.POLICY: graph(Step(module), step, onnx.ANSWER),
    }


class Head(nn.Module):
    """A part of a head, as a network of its own."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head = head


class Act(Head):
    """The present observation alone, a chunk of one."""

    def forward(self, observations: Any) -> Tensor:
        several = isinstance(observations, Mapping)
        present = (
            {name: value[:, -1] for name, value in observations.items()}
            if several
            else observations[:, -1]
        )
        chunk: Tensor = self.head.act(present)[:, None]
        return chunk


class Plan(Head):
    """A whole decision."""

    def forward(self, observations: Any, noise: Tensor | None = None) -> Tensor:
        chunk: Tensor = self.head.plan(observations, noise)
        return chunk


class Encode(Head):
    """What a sampler does once a decision."""

    def forward(self, observations: Any) -> Tensor:
        features: Tensor = self.head.encode(observations)
        return features


class Step(Head):
    """What a sampler does in each round."""

    def forward(self, features: Tensor, x: Tensor, time: Tensor) -> Tensor:
        answer: Tensor = self.head.predict(features, x, time)
        return answer


def graph(module: nn.Module, given: Mapping[str, Any], answer: str) -> bytes:
    """ONNX of any number of rows; several channels become inputs of their own names."""
    rows = torch.export.Dim("rows")

    def free(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: free(inner) for name, inner in value.items()}
        return {0: rows}

    names = list[str]()
    for name, value in given.items():
        several = isinstance(value, Mapping)
        names += [f"{name}/{inner}" for inner in value] if several else [name]
    with quiet():
        program = torch.onnx.export(
            module.eval(),
            kwargs=dict(given),  # of arguments by place it takes a last mapping for these
            input_names=names,
            output_names=[answer],
            dynamic_shapes=free(given),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    found: bytes = program.model_proto.SerializeToString()
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What the exporter tells of its own workings is nobody's business here."""
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
