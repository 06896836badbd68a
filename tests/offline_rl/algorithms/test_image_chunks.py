"""Chunk policies with images: what is encoded, trained and kept fixed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import Recorded, start
from test_act import SMALL as ACT_SMALL
from test_consistency import OWN
from test_diffusion_policy import SMALL

from offline_rl.algorithms.act import ACT
from offline_rl.algorithms.common.base import Algorithm, State
from offline_rl.algorithms.consistency import Consistency
from offline_rl.algorithms.diffusion_policy import Config, DiffusionPolicy
from offline_rl.algorithms.flow_policy import FlowPolicy
from offline_rl.algorithms.one_step import OneStep
from offline_rl.data import Dataset
from offline_rl.engine.engine import Engine
from offline_rl.replay.batch import Batch
from offline_rl.training.sources import offline_source
from offline_rl.utils.trees import flatten
from policies.networks.encoders import ImageEncoder
from policies.spec import Spec

SPEC = Spec({"state": (3,), "image": (12, 12, 3)}, 2)
EYES = {"num_keypoints": 4, "crop": 0.75}
EDM = OWN | {"process": "edm", "num_inference_steps": 5}
KINDS: list[Any] = [
    (DiffusionPolicy, SMALL | {"levels": 3}),
    (DiffusionPolicy, EDM | {"levels": 2}),
    (FlowPolicy, OWN | {"levels": 2}),
    (ACT, ACT_SMALL),
    (Consistency, OWN | {"levels": 2}),
    (OneStep, OWN | {"num_train_timesteps": 10, "num_inference_steps": 2}),
]


def batch(seed: int, size: int = 8) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (size, 2, 12, 12, 3), generator=draw, dtype=torch.uint8)
    seen: Any = {"state": torch.randn(size, 2, 3, generator=draw), "image": images}
    actions, zeros = torch.rand(size, 4, 2, generator=draw) * 2 - 1, torch.zeros(size)
    valid = torch.ones(size, 4, dtype=torch.bool)
    return Batch(seen, actions, zeros, zeros, seen, zeros, valid=valid)


def start_with_images(cls: type[Algorithm], own: dict[str, Any]) -> State:
    how = {"lr": 1e-3, "num_warmup_updates": 0, "weight_decay": 0.5, "decay_lr": False}
    return start(cls, 20, SPEC, **(EYES | how | own))


@pytest.mark.parametrize(("cls", "own"), KINDS)
def test_an_update_encodes_each_image_once(cls: Any, own: Any, monkeypatch: Any) -> None:
    """This holds for any number of noise levels and of networks that use the features."""
    state, encoded, forward = start_with_images(cls, own), [], ImageEncoder.forward

    def record_forward(
        self: ImageEncoder, images: torch.Tensor, random: Any = None
    ) -> torch.Tensor:
        encoded.append((tuple(images.shape), random is not None))
        return forward(self, images, random)

    monkeypatch.setattr(ImageEncoder, "forward", record_forward)
    _, metrics = state.algorithm.update(state, batch(0), 0)
    assert encoded == [((8, 2, 12, 12, 3), True)]
    assert all(value.isfinite() for value in metrics.values())


@pytest.mark.parametrize(("cls", "own"), KINDS[:4])
def test_encoders_are_trained_and_the_policy_has_their_moving_average(cls: Any, own: Any) -> None:
    """A computation by hand: two plain copies, then 1 - n ** -0.75 of the old weights."""
    state = start_with_images(cls, own)
    first = dict(state.params["model"])
    slow = {k: v.clone() for k, v in first.items() if k.startswith("observation_encoder.")}
    assert slow
    for k in range(4):
        state = replace(state, done=torch.tensor(k), random=Recorded(k))
        state, _ = state.algorithm.update(state, batch(k), 0)
        decay = 0 if k < 2 or cls is ACT else 1 - k**-0.75
        for name, value in slow.items():
            value.mul_(decay).add_(state.params["model"][name], alpha=1 - decay)
    for name, value in slow.items():
        assert (state.params["policy"][name] - value).abs().max() < 1e-6
        assert (state.params["model"][name] - first[name]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("kind", "more"), [(Consistency, {}), (OneStep, {"process": "edm", "num_inference_steps": 2})]
)
def test_a_student_uses_its_teachers_encoder_without_changing_it(
    kind: Any, more: dict[str, Any]
) -> None:
    teacher = start_with_images(DiffusionPolicy, EDM)
    params = {k: v + 0.1 * torch.randn_like(v) for k, v in teacher.params["policy"].items()}
    given = flatten({"params": {"policy": params}}) | {"counters/update": torch.tensor(7)}
    state = start_with_images(kind, OWN | more)
    taken = state.algorithm.initialize_from(flatten(state.algorithm.initial()), given)
    networks = {
        network: {k: taken[f"params/{network}/{k}"] for k in state.params[network]}
        for network in ("model", "policy", "teacher")
    }
    state = replace(state, params=networks)
    for k in range(3):
        state = replace(state, done=torch.tensor(k), random=Recorded(k))
        state, _ = state.algorithm.update(state, batch(k), 0)
    for network in ("model", "policy", "teacher"):
        for name, value in params.items():
            same = torch.equal(state.params[network][name], value)
            if name.startswith("observation_encoder."):
                assert same, (network, name)
            elif value.shape == state.params[network][name].shape:
                assert same == (network == "teacher"), (network, name)


def test_stacked_seeds_with_image_histories_equal_their_single_runs() -> None:
    draw, rows = np.random.default_rng(0), 40
    ends = np.arange(rows) % 10 == 9
    seen = {
        "state": draw.normal(size=(rows, 3)).astype(np.float32),
        "image": draw.integers(0, 256, (rows, 12, 12, 3), np.uint8),
    }
    actions = draw.uniform(-1, 1, (rows, 2))
    data = Dataset.from_arrays(seen, actions, np.zeros(rows), ends & False, ends)
    cfg = Config(num_warmup_updates=1, **(SMALL | EYES))
    cfg = DiffusionPolicy(SPEC, cfg).prepare(data)[1]

    def trained(seeds: list[int]) -> Engine:
        source = offline_source(DiffusionPolicy(SPEC, cfg), data)
        engine = Engine(lambda _: DiffusionPolicy(SPEC, cfg, 99), seeds, source, batch_size=8)
        engine.run(3)
        return engine

    both, alone = trained([3, 5]), trained([5])
    for name, value in alone.seed_state(0).items():
        assert (value - both.seed_state(1)[name]).abs().max() < 2e-4
