"""Diffusion Policy: an update by hand, its moving average, and multimodal demonstrations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import Recorded, close, completed, start
from diffusers import DDPMScheduler

import policies
from offline_rl.algorithms.common import chunk_cloning
from offline_rl.algorithms.diffusion_policy import Config, DiffusionPolicy
from offline_rl.data import Dataset
from offline_rl.engine.engine import Engine
from offline_rl.replay.batch import Batch
from offline_rl.training.sources import offline_source
from offline_rl.training.train import train
from offline_rl.utils.errors import UserError
from policies.episodes import RunningEpisodes
from policies.spec import Spec

SMALL = {"network": "mlp", "widths": (16,), "time_size": 8, "n_obs_steps": 2, "horizon": 4}
SMALL |= {
    "n_action_steps": 2,
    "num_train_timesteps": 20,
    "num_inference_steps": 5,
    "sampler": "ddim",
}


def chunks(seed: int = 1, size: int = 8) -> Batch:
    torch.manual_seed(seed)
    zeros = torch.zeros(size)
    seen = torch.randn(size, 2, 3)
    actions, valid = torch.rand(size, 4, 2) * 2 - 1, torch.rand(size, 4) < 0.7
    return Batch(seen, actions, zeros, zeros, seen, zeros, valid=valid)


@pytest.mark.parametrize(
    "change", [{}, {"mask_ends": True}, {"prediction_type": "sample"}, {"levels": 3}]
)
def test_updates_equal_plain_pytorch_with_diffusers_noise(change):
    first = start(DiffusionPolicy, 20, lr=1e-3, num_warmup_updates=2, **(SMALL | change))
    model, policy = first.algorithm.head(), first.algorithm.head()
    model.load_state_dict(first.params["model"])
    policy.load_state_dict(first.params["policy"])
    betas = {"lr": 1e-3, "betas": (0.95, 0.999), "weight_decay": 1e-6}
    adam = torch.optim.AdamW(model.parameters(), **betas)
    scheduler = DDPMScheduler(20, beta_schedule="squaredcos_cap_v2")
    batches = [chunks(k) for k in range(5)]
    state = first
    for k, batch in enumerate(batches):
        state = replace(state, done=torch.tensor(k), random=Recorded(k))
        state, metrics = state.algorithm.update(state, batch, 0)
        random, levels = Recorded(k), change.get("levels", 1)
        noise = random.normal((levels, *batch.actions.shape))
        level = random.integers(20, (levels, 8))
        loss = 0
        for own, at in zip(noise, level, strict=True):
            noised = scheduler.add_noise(batch.actions, own, at)
            answer = batch.actions if "prediction_type" in change else own
            error = (model(batch.observations, noised, at.float()) - answer) ** 2
            weight = batch.valid[..., None] if "mask_ends" in change else torch.ones(8, 4, 1)
            loss = loss + (error * weight).sum() / (weight.sum() * 2) / levels
        rate = min(k / 2, 1) * 0.5 * (1 + np.cos(np.pi * max(k - 2, 0) / 18))
        adam.param_groups[0]["lr"] = 1e-3 * rate
        adam.zero_grad()
        loss.backward()
        adam.step()
        decay = 0 if k < 2 else 1 - k**-0.75
        for slow, fast in zip(policy.parameters(), model.parameters(), strict=True):
            slow.data.mul_(decay).add_(fast.data, alpha=1 - decay)
    close(metrics["policy_loss"], loss)
    for net, name in ((model, "model"), (policy, "policy")):
        for key, value in net.state_dict().items():
            assert (state.params[name][key] - value).abs().max() < 2e-6


@pytest.mark.parametrize("mask_ends", [False, True])
def test_the_edm_loss_equals_that_of_the_paper(mask_ends: bool):
    """arXiv:2206.00364, eq. 7 and 8 and table 1, with the c_skip and c_out of Consistency Policy.

    With these the denoiser is the identity at the lowest noise, 0.02. The data has standard
    deviation 0.5.
    """
    small = {k: v for k, v in SMALL.items() if k not in ("num_train_timesteps", "sampler")}
    own = {"process": "edm", "distance": "norm", "levels": 3, "mask_ends": mask_ends}
    state, batch = start(DiffusionPolicy, 20, **(small | own)), chunks()
    _, metrics = state.algorithm.update(state, batch, 0)
    random, a, c, parts = Recorded(), batch.actions, 0.00054 * 8**0.5, []
    deviations = (1.2 * random.normal((3, 8)) - 1.2).exp()
    for deviation, noise in zip(deviations, random.normal((3, *a.shape)), strict=True):
        at = deviation[:, None, None]
        x = a + at * noise
        told = state.model(batch.observations, x / (at**2 + 0.25).sqrt(), 250 * deviation.log())
        kept = 0.25 / ((at - 0.02) ** 2 + 0.25)
        guess = kept * x + 0.5 * (at - 0.02) / (at**2 + 0.25).sqrt() * told
        far = ((guess - a).square().sum((1, 2)) + c**2).sqrt() - c
        parts.append(far * (deviation**2 + 0.25) / (0.5 * deviation) ** 2)  # [B]
    weight = batch.valid.float() if mask_ends else torch.ones(8, 4)
    loss = torch.stack(parts).mean(0)[:, None] * weight
    close(metrics["policy_loss"], loss.sum() / weight.sum())


def forks(episodes: int = 20, length: int = 8, actions: int = 1, **spec) -> Dataset:
    """Return episodes from one start, half of which always go left and half right."""
    side = np.repeat(np.where(np.arange(episodes) % 2, 0.6, -0.6), length)[:, None]
    zeros, ends = np.zeros((episodes * length, 1)), np.arange(episodes * length) % length
    columns = zeros, side.repeat(actions, 1), zeros[:, 0], ends < 0, ends == length - 1, zeros
    return Dataset.from_arrays(*columns, spec=Spec((1,), actions, **spec))


def test_each_chunk_follows_one_mode_of_the_demonstrations():
    """The mean, which regression predicts, does not occur in the data."""
    own = {
        "widths": (64, 64),
        "num_warmup_updates": 10,
        "num_inference_steps": 10,
        "levels": 4,
        "batch_size": 64,
    }
    cfg = completed(DiffusionPolicy, forks(), Config(lr=3e-3, **(SMALL | own)))
    assert cfg.action_low + cfg.action_high == pytest.approx((-0.6, 0.6))
    source = offline_source(DiffusionPolicy(Spec((1,), 1), cfg), forks())
    engine = Engine(lambda _: DiffusionPolicy(Spec((1,), 1), cfg, 600), [0], source, batch_size=64)
    engine.run(600)
    policy = engine.stacked_policy(200)
    chunks = []
    for _ in range(2):  # both executed actions of a chunk
        chunks.append(policy(torch.zeros(1, 200, 1))[0, :, 0])
    answered = torch.stack(chunks, 1)
    assert ((answered.abs() - 0.6).abs() < 0.2).float().mean() > 0.8
    assert (answered.sign().sum(1).abs() == 2).float().mean() > 0.9
    assert 0.25 < (answered[:, 0] > 0).float().mean() < 0.75


@pytest.mark.parametrize(
    "own", [{"network": "unet", "widths": (16, 16)}, {"network": "transformer"}]
)
def test_stacked_seeds_of_convolutions_and_attention_equal_their_single_runs(own):
    """The contract test covers perceptrons."""
    heads = {"widths": (8, 8), "num_heads": 2, "time_size": None} if len(own) == 1 else {}
    cfg = Config(num_warmup_updates=1, **(SMALL | {"n_action_steps": 3} | heads | own))
    cfg, spec = completed(DiffusionPolicy, forks(), cfg), Spec((1,), 1)

    def trained(seeds: list[int]) -> Engine:
        source = offline_source(DiffusionPolicy(spec, cfg), forks())
        engine = Engine(lambda _: DiffusionPolicy(spec, cfg, 99), seeds, source, batch_size=16)
        engine.run(8)
        return engine

    both, alone = trained([3, 5]), trained([5])
    for name, value in alone.seed_state(0).items():
        assert (value - both.seed_state(1)[name]).abs().max() < 2e-4


def test_stacked_policies_act_like_each_seeds_head():
    """Two seeds with three episodes each; one episode restarts between two decisions."""
    cfg = Config(**(SMALL | {"sampler": "ddpm"}))
    source = offline_source(DiffusionPolicy(Spec((1,), 1), cfg), forks())
    engine = Engine(lambda _: DiffusionPolicy(Spec((1,), 1), cfg), [0, 1], source, batch_size=8)
    stacked, seeds = engine.stacked_policy(3), np.array([5, 6, 7])
    stacked.reset(np.tile(seeds, 2))
    head = engine.algorithm.head()
    queues = []
    for s in range(2):
        own = {k: v[s] for k, v in engine.state["params"]["policy"].items()}

        def decide(seen, memory, noise, rows, own=own):
            head.load_state_dict(own)
            with torch.no_grad():
                chunk, _ = head.decide(torch.from_numpy(seen), {}, torch.from_numpy(noise))
            return chunk.numpy(), {}

        made = RunningEpisodes(
            decide, n_obs_steps=2, n_action_steps=2, noise_shape=head.noise_shape
        )
        made.reset(seeds)
        queues.append(made)
    for step in range(5):
        if step == 3:
            stacked.reset(np.array([9]), np.array([4]))
            queues[1].reset(np.array([9]), np.array([1]))
        observations = torch.randn(2, 3, 1)
        expected = [q.step(o.numpy()) for q, o in zip(queues, observations, strict=True)]
        assert np.abs(stacked(observations).numpy() - np.stack(expected)).max() < 1e-5


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ({"action_low": (-0.5, 0.0)}, r"action_low=\[-0.5, 0.0\] has 2 numbers, but .* 1 actions"),
        ({"action_high": ()}, r"action_high=\[\] has 0 numbers"),
        ({"action_low": (0.9,)}, r"action_low=\[0.9\] is not below algorithm.action_high=\[0.6"),
    ],
)
def test_invalid_action_ranges_are_refused(ends, words):
    with pytest.raises(UserError, match=words):
        completed(DiffusionPolicy, forks(), Config(**(SMALL | ends)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"num_inference_steps": 200},
            "num_inference_steps=200 exceeds num_train_timesteps=100",
        ),
        ({"eta": 0.5}, "eta is not used with sampler=ddpm"),
        ({"num_heads": 2}, "num_heads is not used with network=unet"),
        ({"network": "transformer", "widths": (8, 16)}, "need one width"),
        ({"network": "transformer", "time_size": 8}, "it equals the token size"),
        ({"network": "transformer", "widths": (10, 10)}, "a multiple of num_heads=4"),
        ({"horizon": 10}, "halves it 2 times. Use a multiple of 4"),
        ({"widths": (12, 16)}, "multiples of 8"),
        ({"widths": ()}, "Give at least one width"),
        ({"time_size": 7}, "time_size=7 is odd"),
        (
            {"n_action_steps": 16},
            "n_action_steps=16 exceeds the 15 actions from the current step on that horizon=16",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Config(**options)


def test_edm_may_have_more_denoising_steps_than_noise_levels():
    assert (
        len(DiffusionPolicy(Spec((1,), 1), Config(process="edm", num_inference_steps=200)).table())
        == 200
    )


def test_large_networks_train_one_seed_after_another():
    spec = Spec((3,), 2)
    assert DiffusionPolicy(spec, Config(**SMALL)).prefers_stacked_seeds("cuda")
    large = SMALL | {"widths": (1024, 1024, 1024)}
    assert not DiffusionPolicy(spec, Config(**large)).prefers_stacked_seeds("cuda")


def test_a_transformers_biases_norms_and_positions_have_no_weight_decay():
    cfg = Config(network="transformer", widths=(8,), num_heads=2, weight_decay=0.5)
    adam = DiffusionPolicy(Spec((3,), 2), cfg).optimizers()["model"]
    names = [name for name, _ in DiffusionPolicy(Spec((3,), 2), cfg).head().named_parameters()]
    decayed = {n for n in names if not any(part in n for part in adam.undecayed)}
    assert all(".weights." in name for name in decayed)
    assert {n for n in names if ".weights." in n} == decayed


def test_seeds_of_a_large_network_train_one_after_another(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(chunk_cloning, "LARGE", 100)
    hyper = {f"algorithm.{k}": [*v] if isinstance(v, tuple) else v for k, v in SMALL.items()}
    options = {"task": "none", "dataset": forks(), "seeds": 2, "num_updates": 3}
    result = train(
        algorithm="diffusion_policy", out=str(tmp_path), tracker="none", **options, **hyper
    )
    assert [one["seeds_stacked"] for one in result.results] == [1, 1]
    assert "Seeds train one after another" in capsys.readouterr().out
    policy = policies.load(result.path / "seed_1" / "policy.bundle")
    assert (policy.spec.n_obs_steps, policy.spec.chunk_size, policy.spec.n_action_steps) == (
        2,
        3,
        2,
    )
    assert policy.act(np.zeros(1))[0].shape == (3, 1)
