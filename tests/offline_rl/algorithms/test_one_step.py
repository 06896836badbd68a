"""One-step policy: the teacher's deterministic sampler by hand, valid teachers, and training."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from on_a_line import CLONE, registered, run_of

import policies
from offline_rl import UserError, finetune
from offline_rl.algorithms import rl100
from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.common.noising.deterministic import deterministic_table
from offline_rl.algorithms.one_step import Config, OneStep
from offline_rl.algorithms.rl100 import RL100
from offline_rl.replay.batch import Batch
from offline_rl.training.train import distill
from offline_rl.utils.random import Random
from policies import Spec
from policies.heads.schedules import sample

SMALL: dict[str, Any] = {"network": "mlp", "widths": (16,), "n_obs_steps": 2, "horizon": 4}
SMALL |= {
    "n_action_steps": 2,
    "num_inference_steps": 5,
    "action_low": (-1.0, -1.0),
    "action_high": (1.0, 1.0),
}
QUICK: dict[str, Any] = {"compile": "never", "eval_episodes": 1, "tracker": "none", "show": False}


def state_of(algorithm: OneStep) -> State:
    """Return an initial state whose two teacher networks differ where it was fine-tuned."""
    tree = algorithm.initial()
    params = {name: dict(tensors) for name, tensors in tree["params"].items()}
    for name, value in params["teacher"].items():
        params["teacher"][name] = value + 0.3 * torch.randn_like(value)
    return State(algorithm, params, tree["optimizer"], Random(torch.tensor(0), torch.tensor(0)))


def by_hand(state: State, seen: torch.Tensor, noise: torch.Tensor, cfg: Config) -> torch.Tensor:
    """Return the end of the teacher's sampler: by definition for flow and EDM, or diffusers' DDIM.

    EDM (arXiv:2206.00364, eq. 1 and 5; arXiv:2303.01469, appendix C), along (x - D(x, t)) / t, down
    to a
    standard deviation of 0.02 as in arXiv:2405.07503.
    """

    def predict(x: torch.Tensor, time: float, round_: int) -> torch.Tensor:
        late = cfg.tuned is None or round_ >= cfg.num_inference_steps - cfg.tuned
        network = state.teacher if late else None
        times = torch.full(x.shape[:1], time)
        return (
            network(seen, x, times) if network else state.teacher.predict_pretrained(seen, x, times)
        )

    x = noise
    if cfg.process == "flow":
        for k in range(cfg.num_inference_steps):
            x = x + predict(x, 1000.0 * k / cfg.num_inference_steps, k) / cfg.num_inference_steps
        return x.clip(-1, 1)
    if cfg.process == "edm":
        ends, x = (80 ** (1 / 7), 0.02 ** (1 / 7)), 80 * noise
        times = [
            (ends[0] + k / cfg.num_inference_steps * (ends[1] - ends[0])) ** 7
            for k in range(cfg.num_inference_steps + 1)
        ]
        for k, (t, following) in enumerate(pairwise(times)):
            root = math.sqrt(t**2 + 0.25)
            told = predict(x / root, 250 * math.log(t), k)
            skip, out = 0.25 / ((t - 0.02) ** 2 + 0.25), 0.5 * (t - 0.02) / root
            guess = (skip * x + out * told).clip(-1, 1)
            x = x + (following - t) * (x - guess) / t
        return x.clip(-1, 1)
    made = DDIMScheduler(
        num_train_timesteps=cfg.num_train_timesteps,
        beta_schedule="squaredcos_cap_v2",
        prediction_type=cfg.prediction_type,
        clip_sample=True,
        timestep_spacing="leading",
    )
    made.set_timesteps(cfg.num_inference_steps)
    for k, time in enumerate(made.timesteps):
        x = made.step(predict(x, float(time), k), int(time), x, eta=0.0).prev_sample
    return x.clip(-1, 1)


@pytest.mark.parametrize(
    "own",
    [
        {"process": "flow"},
        {"process": "edm"},
        {"process": "ddpm", "num_train_timesteps": 10},
        {"process": "ddpm", "num_train_timesteps": 20, "prediction_type": "sample", "tuned": 2},
    ],
    ids=["flow", "edm", "ddpm", "tuned"],
)
def test_the_loss_is_the_squared_distance_to_the_teachers_chunk(own: dict[str, Any]) -> None:
    torch.manual_seed(0)
    cfg = Config(**SMALL, **own)
    algorithm = OneStep(Spec((3,), 2), cfg, 10)
    state, draw = state_of(algorithm), torch.Generator().manual_seed(1)
    seen, actions = torch.randn(6, 2, 3, generator=draw), torch.rand(6, 4, 2, generator=draw)
    nothing = torch.zeros(6)
    batch = Batch(seen, actions, nothing, nothing, seen, nothing)
    noise = Random(torch.tensor(0), torch.tensor(0)).normal((6, 1, 4, 2))
    target = by_hand(state, seen, noise[:, 0], cfg)
    ddpm = cfg.num_train_timesteps // 5 * 4.0
    first = {"flow": 0.0, "edm": 250 * math.log(80), "ddpm": ddpm}[cfg.process]
    answer = state.model(seen, noise[:, 0], torch.full((6,), first))
    expected = (answer - target)[:, 1:].square().mean()  # the first lies beside the older one
    new, metrics = algorithm.update(state, batch, 0)
    torch.testing.assert_close(metrics["policy_loss"], expected, atol=1e-5, rtol=1e-4)
    new, _ = algorithm.update(new, batch, 0)  # the first step's rate is 0
    for name, value in state.params["teacher"].items():
        assert torch.equal(new.params["teacher"][name], value)
    moved = [not torch.equal(new.params["model"][k], x) for k, x in state.params["model"].items()]
    assert any(moved)


def test_the_loss_equals_that_of_rl100s_head() -> None:
    """See `benchmarks.conformance`, rl100 (one_step). Here all predicted actions are executed."""
    torch.manual_seed(0)
    shape = SMALL | {"n_action_steps": 3, "num_train_timesteps": 10}
    sizes = {"environments": 1, "decisions": 6, "batch_size": 6, "tuned": 5}
    made = RL100(Spec((3,), 2), rl100.Config(**shape, **sizes), 10).for_phase("distill")
    tree, random = made.initial(), Random(torch.tensor(0), torch.tensor(0))
    params = {name: dict(tensors) for name, tensors in tree["params"].items()}
    for name, value in params["policy"].items():
        params["policy"][name] = value + 0.3 * torch.randn_like(value)
    seen, actions, nothing = torch.randn(6, 2, 3), torch.rand(6, 4, 2), torch.zeros(6)
    batch = Batch(seen, actions, nothing, nothing, seen, nothing)
    _, expected = made.distill(State(made, params, tree["optimizer"], random), batch, 0)
    own = OneStep(Spec((3,), 2), Config(**shape), 10)
    tree = own.initial()
    given = {**tree["params"], "teacher": params["policy"], "model": params["student"]}
    random = Random(torch.tensor(0), torch.tensor(0))
    _, found = own.update(State(own, given, tree["optimizer"], random), batch, 0)
    torch.testing.assert_close(found["policy_loss"], expected["student_loss"])


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a task and return its name."""
    return registered(monkeypatch)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("flow_policy", "edm", "dppo")]


@pytest.mark.parametrize("teacher", ["diffusion_policy", *SLOW])
def test_each_denoising_policy_can_be_distilled(teacher: str, line: str, tmp_path: Path) -> None:
    """The student ends nearer to its teacher than it started."""
    more = {"algorithm.process": "edm"} if teacher == "edm" else {}
    clone = "flow_policy" if teacher == "flow_policy" else "diffusion_policy"
    run = run_of(clone, line, tmp_path, **CLONE, **more)
    if teacher == "dppo":
        keys = {"algorithm.tuned": 3, "algorithm.environments": 4, "algorithm.decisions": 24}
        keys |= {"algorithm.batch_size": 24, "algorithm.epochs": 2, "algorithm.policy_lr": 1e-2}
        run = finetune(run=run, algorithm="dppo", num_env_steps=48, **keys, **QUICK).path
    keys = {"algorithm.num_warmup_updates": 5, "algorithm.lr": 1e-2, "eval_every": 1000}
    keys |= {"algorithm": "one_step", "run": run, **QUICK}
    seen = np.random.default_rng(0).uniform(-0.9, 0.9, (64, 2, 2)).astype(np.float32)
    noise = np.random.default_rng(1).normal(size=(64, 1, 4, 1)).astype(np.float32)
    head: Any = policies.load(run / "seed_1" / "policy.bundle").module
    cfg = Config(**read_hyper(distill(num_updates=1, name="begun", **keys).path))
    given = torch.from_numpy(seen), torch.from_numpy(noise)
    normalized = head_input(policies.load(run / "seed_1" / "policy.bundle"), given[0])
    with torch.no_grad():
        num_inference_steps = sample(
            deterministic_table(cfg), lambda x, t: head.predict_at(normalized, x, t), given[1]
        )
        target = head.finish(num_inference_steps).numpy()
    errors = []
    for name, updates in (("begun", 1), ("learned", 150)):
        made = distill(num_updates=updates, name=name, **keys)
        policy = policies.load(made.path / "seed_1" / "policy.bundle")
        assert policy.noise_shape == (1, 4, 1)
        errors.append(np.square(policy.decide(seen, {}, noise)[0] - target).mean())
    assert made.path.parent.name == "one_step"
    assert errors[1] < 0.5 * errors[0]


def read_hyper(path: Path) -> dict[str, Any]:
    """Return the hyper-parameters of a run's first seed, as a config takes them."""
    found = json.loads((path / "seed_0" / "config.json").read_text())["hyper"]
    return {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}


def head_input(policy: Any, seen: torch.Tensor) -> torch.Tensor:
    """Return the network input for raw observations."""
    (name,) = policy.bundle.normalizers
    normal = policy.bundle.normalizers[name]
    return policy.module.encode(
        (seen - torch.from_numpy(normal.mean)) / torch.from_numpy(normal.scale)
    )


def test_other_teachers_and_other_sizes_are_refused(line: str, tmp_path: Path) -> None:
    run = run_of("diffusion_policy", line, tmp_path, **CLONE)
    with pytest.raises(UserError, match=r"algorithm\.num_inference_steps must be 5, as in"):
        distill(
            run=run,
            algorithm="one_step",
            num_updates=3,
            **{"algorithm.num_inference_steps": 7},
            **QUICK,
        )
    other = run_of("bc", line, tmp_path, seeds=1)
    with pytest.raises(UserError, match=r"\(bc\) cannot be the teacher: one_step needs a run of"):
        distill(run=other, algorithm="one_step", num_updates=3, **QUICK)
    with pytest.raises(ValueError, match="mask_ends has no effect"):
        Config(mask_ends=True)
