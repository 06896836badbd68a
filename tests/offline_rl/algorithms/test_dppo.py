"""DPPO: from a pretrained policy, through rollouts, to a better policy; refused options."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from on_a_line import CLONE, Line, registered, run_of
from safetensors.torch import load_file
from torch.distributions import Normal

import envs
import policies
from offline_rl import UserError, finetune, train
from offline_rl.algorithms.common.base import Interaction, State
from offline_rl.algorithms.common.schedule import ONLINE, OnPolicy
from offline_rl.algorithms.dppo import DPPO, Config
from offline_rl.engine.engine import COUNTS, Engine
from offline_rl.replay.rollouts import Decisions, Rollouts
from offline_rl.runs.folder import SeedFolder
from offline_rl.training.work import Work
from offline_rl.utils.random import Random
from policies import Spec

SMALL: dict[str, Any] = {"network": "mlp", "widths": (16,), "n_obs_steps": 2, "horizon": 4}
SMALL |= {
    "n_action_steps": 2,
    "sampler": "ddim",
    "num_inference_steps": 5,
    "tuned": 3,
    "value_hidden": (16,),
}
SMALL |= {"environments": 4, "decisions": 24, "batch_size": 24, "epochs": 2}


TUNE: dict[str, Any] = {"algorithm": "dppo", "num_env_steps": 96, "eval_every": 10_000}
TUNE |= {"algorithm.tuned": 3, "algorithm.environments": 4, "algorithm.decisions": 24}
TUNE |= {"algorithm.batch_size": 24, "algorithm.epochs": 2, "algorithm.value_hidden": [16]}
TUNE |= {"compile": "never", "eval_episodes": 1, "tracker": "none", "show": False}


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a task and return its name."""
    return registered(monkeypatch)


def engine(**changes: Any) -> tuple[Engine, Rollouts]:
    """Return an engine of one seed, with a rollout that its policy could have produced."""
    cfg, spec = Config(**(SMALL | changes)), Spec((3,), 2)
    how = Interaction(OnPolicy(), cfg)
    columns, carried = DPPO(spec, cfg, 1, how).columns()
    size = cfg.decisions // cfg.environments, cfg.environments
    store = Rollouts(1, size, columns, steps=cfg.tuned, carried=carried)
    e = Engine(
        lambda _: DPPO(spec, cfg, 1, how),
        [0],
        {"rollouts": store},
        batch_size=cfg.batch_size,
    )
    draw = np.random.default_rng(0)
    for _ in range(size[0]):
        seen = draw.normal(size=(1, size[1], cfg.n_obs_steps, 3)).astype(np.float32)
        noise = draw.normal(size=(1, size[1], *e.algorithm.noise_shape)).astype(np.float32)
        given = {"observations": torch.from_numpy(seen), "noise": torch.from_numpy(noise)}
        told = e.apply("decide", given, ONLINE)
        actions = told.pop("actions")
        assert actions.shape == (1, size[1], cfg.n_action_steps, 2)
        assert actions.abs().max() <= 1
        row = {name: value.numpy() for name, value in told.items()}
        row |= {"observations": seen, "next_observations": seen + 0.1}
        row |= {"rewards": draw.normal(size=(1, size[1], cfg.n_action_steps))}
        ended = draw.random((1, size[1])) < 0.2
        row |= {"executed": np.stack([ended | True, ~ended], -1)}  # an end cuts its decision
        row |= {"terminated": ended}
        row |= {"truncated": np.zeros((1, size[1]))}
        store.append(row)
    computed = e.apply("compute_advantages", store.tensors(), ONLINE)
    store.write(computed, e.state["counters"]["update"])
    return e, store


def eager(**changes: Any) -> State:
    """Return the state of one seed whose model has been trained."""
    torch.manual_seed(0)
    cfg = Config(**(SMALL | changes))
    algorithm = DPPO(Spec((3,), 2), cfg, 1, Interaction(OnPolicy(), cfg))
    params = algorithm.initial()["params"]
    model = {k: v + 0.1 * torch.randn_like(v) for k, v in params["model"].items()}
    random = Random(torch.tensor(0), torch.tensor(0))
    return algorithm.copy_to_policy(State(algorithm, {**params, "model": model}, {}, random))


def loud(state: State, rows: int = 6) -> dict[str, torch.Tensor]:
    """Return the inputs of a decision."""
    draw = torch.Generator().manual_seed(1)
    seen = torch.randn(rows, state.algorithm.cfg.n_obs_steps, 3, generator=draw)
    shape = (rows, *state.algorithm.noise_shape)  # type: ignore[attr-defined]
    return {"observations": seen, "noise": torch.randn(shape, generator=draw)}


def test_without_sampling_noise_a_decision_equals_the_policys_action():
    """Early denoising steps use the pretrained weights, later ones the fine-tuned ones."""
    state = eager(eta=1e-6, sampling_floor=1e-7)
    given = loud(state)
    told = state.algorithm.decide(state, given)
    acts = state.policy.decide(given["observations"], {}, given["noise"][:, :1])[0]
    assert told["actions"].shape == (6, 2, 2)
    torch.testing.assert_close(told["actions"], acts[:, :2], atol=1e-5, rtol=0)
    unlearned = {name: state.params["policy"][f"base.{name[8:]}"] for name in state.params["model"]}
    other = state.algorithm.copy_to_policy(
        replace(state, params={**state.params, "model": unlearned})
    )
    before = other.policy.decide(given["observations"], {}, given["noise"][:, :1])[0]
    assert (before - acts).abs().max() > 1e-3


def test_sampling_and_density_of_the_last_step_have_separate_floors():
    """The last step has no noise of its own: x - mean is 0.3 z, with the density of N(0, 0.4)."""
    state = eager(sampling_floor=0.3, density_floor=0.4)
    given, executed = loud(state), torch.tensor([[1.0, 1.0]] * 3 + [[1.0, 0.0]] * 3)
    chain = state.algorithm.decide(state, given)["chain"]
    other = {**given, "noise": given["noise"].clone()}
    other["noise"][:, -1] = 0
    mean = state.algorithm.decide(state, other)["chain"][:, -1]
    z = given["noise"][:, -1].clamp(-3, 3)
    torch.testing.assert_close(chain[:, -1] - mean, 0.3 * z, atol=1e-6, rtol=0)
    found = state.algorithm.chain_log_probs(state.model, given["observations"], chain, executed)
    density = Normal(0.0, 0.4).log_prob(0.3 * z)[:, 1:3].mean(-1)  # the window's second is now's
    expected = torch.cat([density[:3].mean(1), density[3:, 0]])
    torch.testing.assert_close(found[:, -1], expected, atol=1e-5, rtol=0)


def test_advantages_equal_a_plain_loop_over_two_rollouts():
    """Decisions cut by an end are discounted by their executed steps; a time-out bootstraps."""
    gamma, trace, draw = 0.9, 0.8, np.random.default_rng(3)
    state = eager(n_action_steps=3, discount=gamma, trace=trace)
    shape, seen = (5, 2), (5, 2, 2, 3)
    carried = {"moments": torch.zeros(3), "so_far": torch.zeros(2)}
    sums, running = [], np.zeros(2)
    for _ in range(2):
        n = np.where(draw.random(shape) < 0.4, 3, draw.integers(1, 3, shape))
        ended = (n < 3) | (draw.random(shape) < 0.1)
        terminated = ended & (draw.random(shape) < 0.5)
        assert terminated.any()
        assert (ended & ~terminated)[:-1].any()
        executed = np.arange(3) < n[..., None]
        rewards = 5 * draw.normal(size=(*shape, 3)) * executed
        data = {"rewards": rewards, "executed": executed, "terminated": terminated}
        data |= {"truncated": ended & ~terminated, "observations": draw.normal(size=seen)}
        data |= {"next_observations": draw.normal(size=seen)}
        data |= {"chain": draw.normal(size=(*shape, 4, 4, 2))}
        tensors = {k: torch.from_numpy(v.astype(np.float32)) for k, v in data.items()}
        made = state.algorithm.compute_advantages(state, tensors | carried)
        paid = (rewards * gamma ** np.arange(3)).sum(-1)
        for t in range(5):
            running = paid[t] + gamma ** n[t] * running
            sums.append(running)
            running = running * ~ended[t]
        # one prior number in ten thousand, of mean 0 and deviation 1
        every, count = np.concatenate(sums), 2 * len(sums) + 1e-4
        mean = every.sum() / count
        deviation = np.sqrt((np.square(every).sum() + 1e-4) / count - mean**2)
        scaled = np.clip(paid / deviation, -10, 10)
        v, v2 = (
            state.value(tensors[k].flatten(2)).detach().numpy()
            for k in ("observations", "next_observations")
        )
        expected, later = np.zeros(shape), np.zeros(2)
        for t in reversed(range(5)):
            own = gamma ** n[t]
            later = later * trace * own * ~ended[t]
            later = later + scaled[t] + own * v2[t] * ~terminated[t] - v[t]
            expected[t] = later
        np.testing.assert_allclose(made["advantages"], expected, atol=1e-4)
        np.testing.assert_allclose(made["returns"], expected + v, atol=1e-4)
        carried = {name: made[name] for name in carried}


def test_the_ratio_is_one_only_in_the_first_epoch():
    """No update changes anything with learning rates of 0, in any epoch."""
    for rate, same in ((0.0, True), (1e-2, False)):
        e, _ = engine(policy_lr=rate, target_kl=1e9, sampling_floor=0.3, density_floor=0.4)
        e.run(1, ONLINE)
        assert abs(e.metrics(ONLINE)["divergence"][0]) < 1e-9
        e.run(5, ONLINE)
        assert (e.metrics(ONLINE)["divergence"][0] < 1e-9) == same


@pytest.mark.parametrize("tuned", [3, 1])
def test_a_sampled_denoising_step_has_its_stored_log_density(tuned: int):
    e, store = engine(tuned=tuned, batch_size=24, sampling_floor=0.3, density_floor=0.4)
    state = e.algorithm.copy_to_policy(eager(tuned=tuned, sampling_floor=0.3, density_floor=0.4))
    own = {name: value[0] for name, value in store.tensors().items()}
    digested = state.algorithm.compute_advantages(state, own)["log_probs"].flatten(
        0, 1
    )  # [T E, K']
    assert digested.shape == (24, tuned)
    columns = {name: own[name].flatten(0, 1) for name in ("observations", "chain", "executed")}
    for k in range(tuned):
        batch = Decisions(columns, torch.full((24,), k), own["rollout"])
        numbers = state.algorithm.sampler_rows(batch)
        found = state.algorithm.density(state.model, batch, numbers)
        assert found.std() > 1e-3
        torch.testing.assert_close(found, digested[:, k], atol=1e-6, rtol=0)


def test_a_single_denoising_step_can_be_fine_tuned():
    e, _ = engine(tuned=1, batch_size=12)
    before = e.seed_state(0)
    e.run(4, ONLINE)
    after = e.seed_state(0)
    assert all(v.isfinite().all() for v in after.values())
    moved = {k.split("/")[1] for k, v in after.items() if (v != before[k]).any()}
    assert {"model", "policy", "value"} <= moved


def test_a_pretrained_policy_acts_unchanged_and_its_first_ratios_are_one(line: str, tmp_path: Path):
    """It acts with its averaged weights and normalizer, and without dropout."""
    more = {"algorithm.dropout": 0.3, "algorithm.normalize_observations": True, "seeds": 1}
    more |= {"algorithm.sampler": "ddim"}
    run = run_of("diffusion_policy", line, tmp_path, **CLONE | more)
    keys = TUNE | {"algorithm.policy_lr": 0.0, "num_env_steps": 48}
    path = finetune(run=run, **keys).path / "seed_0"
    before = load_file(max(SeedFolder(run, 0).checkpoints().items())[1])
    clone = {k: v for k, v in before.items() if k.startswith("params/policy/network.")}
    raw = {k: before.get(k.replace("/policy/", "/model/")) for k in clone}
    assert any(v is None or not torch.equal(v, clone[k]) for k, v in raw.items())
    told = [json.loads(row) for row in (path / "metrics.jsonl").read_text().splitlines()]
    found = [row["train/divergence"] for row in told if "train/divergence" in row]
    assert found
    assert max(map(abs, found)) < 1e-9
    returns = [
        json.loads((folder / "evaluations.jsonl").read_text().splitlines()[-1])["returns"]
        for folder in (run / "seed_0", path)
    ]
    assert returns[0] == returns[1]


def test_updates_stop_above_the_target_kl():
    e, store = engine(policy_lr=1e-1, target_kl=1e-6)
    e.run(2, ONLINE)  # the first moves by any means, the second finds out
    before = {k: v for k, v in e.seed_state(0).items() if "counters" not in k}
    e.run(2, ONLINE)
    after = e.seed_state(0)
    assert all(torch.equal(after[k], v) for k, v in before.items())
    store.write({}, e.state["counters"]["update"])  # another rollout
    e.run(1, ONLINE)
    after = e.seed_state(0)
    assert not all(torch.equal(after[k], v) for k, v in before.items())


def test_stacked_seeds_that_stop_at_different_updates_have_step_counts_of_their_own():
    """Counts of other names are passed to the update of all seeds without a seed axis."""
    state = eager()
    for name, adam in state.algorithm.optimizers().items():
        assert not adam.init(state.params[name])["count"].keys() & {*COUNTS}


def test_only_the_critic_is_trained_in_the_warm_up():
    e, _ = engine(value_warmup=1)
    before = e.seed_state(0)
    e.run(6, ONLINE)
    after = e.seed_state(0)
    moved = {k.split("/")[1] for k, v in after.items() if (v != before[k]).any()}
    assert moved == {"value", "update"}


def test_the_warm_up_starts_after_pretraining():
    e, store = engine(value_warmup=1)
    e.load_seed_state(0, e.seed_state(0) | {"counters/update": torch.tensor(3000)})
    store.write({}, e.state["counters"]["update"])
    before = e.seed_state(0)
    e.run(6, ONLINE)
    after = e.seed_state(0)
    moved = {k.split("/")[1] for k, v in after.items() if (v != before[k]).any()}
    assert moved == {"value", "update"}


def test_killed_within_an_iteration_and_resumed_equals_undisturbed(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Killed during collection, with running episodes, and between two minibatches."""
    run = run_of("diffusion_policy", line, tmp_path, **CLONE, **{"algorithm.sampler": "ddim"})
    whole = finetune(run=run, **TUNE, name="whole").path
    again = finetune(run=run, **TUNE, name="again", checkpoint_every=3).path
    for seed in range(2):
        folder = SeedFolder(again, seed)
        ends = [max(load.items())[1] for load in (SeedFolder(whole, seed).checkpoints(),)]
        files = folder.checkpoints()
        assert len(files) > 1
        last = load_file(files[max(files)])
        undisturbed = load_file(ends[0])
        assert all(torch.equal(last[k], v) for k, v in undisturbed.items())
    # It resumes during collection, and after four updates.
    original = Work.advance
    for stop, every in (((24, 0), (24, 8)), ((48, 4), (8, 2))):
        name, moments = f"from-{stop[1]}", list[tuple[int, int]]()

        def advance(work: Work, stop: Any = stop, moments: list[Any] = moments) -> bool:
            counts = work.progress.counts("online")
            moments.append((counts.env_steps, counts.updates))
            if moments.count(stop) == 1 and moments[-1] == stop:
                raise RuntimeError("the cable is out")
            return original(work)

        monkeypatch.setattr(Work, "advance", advance)
        keys = {**TUNE, "name": name, "eval_every": every[0], "checkpoint_every": every[1]}
        with pytest.raises(RuntimeError, match="cable"):
            finetune(run=run, **keys)
        assert SeedFolder(whole.parent / name, 0).checkpoints()
        path = finetune(run=run, **keys).path
        assert (moments.count((0, 0)), moments.count(stop)) == (1, 2)  # not from the beginning
        for seed in range(2):
            one, two = (SeedFolder(p, seed).checkpoints() for p in (whole, path))
            first, second = load_file(one[max(one)]), load_file(two[max(two)])
            assert all(torch.equal(first[k], second[k]) for k in first)
    rows = (whole / "seed_0" / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["env_steps"] == 96


def test_evaluations_due_within_a_phase_run_at_its_end(line: str, tmp_path: Path):
    """48 steps, 8 at a time, and 6 updates, twice: the steps pass 44 at 48, and reach 88.

    Updates do not count, even if an evaluation is due every 8 steps and there are 12 updates.
    """
    run = run_of("diffusion_policy", line, tmp_path, **CLONE, **{"algorithm.sampler": "ddim"})
    for every, expected in ((44, [0, 48, 88, 96]), (8, [*range(0, 97, 8), 96])):
        path = finetune(run=run, **TUNE | {"name": f"due-{every}", "eval_every": every}).path
        rows = (path / "seed_0" / "evaluations.jsonl").read_text().splitlines()
        told = [json.loads(row) for row in rows]
        begun = told[0]["updates"]
        moments = [(row["env_steps"], row["updates"] - begun) for row in told]
        updates = [6 * ((steps - 1) // 48) for steps in expected]
        assert moments == list(zip(expected, [0, *updates[1:-1], 12], strict=True))


def test_a_flow_is_fine_tuned_and_acts_from_its_bundle(line: str, tmp_path: Path):
    clone = {k: v for k, v in CLONE.items() if k != "seeds"}
    run = run_of("flow_policy", line, tmp_path, **clone)
    result = finetune(run=run, **{**TUNE, "num_env_steps": 48})
    hyper = json.loads((result.path / "seed_0" / "config.json").read_text())["hyper"]
    assert (hyper["process"], hyper["num_inference_steps"], hyper["horizon"]) == ("flow", 5, 4)
    before = load_file(max(SeedFolder(run, 0).checkpoints().items())[1])
    after = load_file(max(SeedFolder(result.path, 0).checkpoints().items())[1])
    names = [k for k in before if k.startswith("params/policy/network.")]
    for name in names:
        base = name.replace("/network.", "/base.")
        assert torch.equal(before[name], after[base])
        assert torch.equal(after[name.replace("/policy/", "/model/")], after[name])
    assert any((after[name] != before[name]).any() for name in names)
    bundle = policies.load(result.path / "seed_0" / "policy.bundle")
    assert torch.equal(
        torch.from_numpy(bundle.bundle.weights["network.trunk.weights.0"]),
        after["params/policy/network.trunk.weights.0"],
    )
    player = policies.Player(bundle)
    once, again = [], []
    for actions in (once, again):
        player.reset(seed=3)
        actions += [player.step(np.array([0.1, 0.0], np.float32)) for _ in range(5)]
    assert np.abs(once).max() <= 1
    assert np.array_equal(once, again)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm.tuned": 6}, "tuned=6 exceeds num_inference_steps=5"),
        ({"algorithm.environments": 5}, "decisions=24 is not a multiple of environments=5"),
        (
            {"num_env_steps": 100},
            r"one iteration takes 48 steps \(24 decisions × 2 actions\)\. Set",
        ),
        (
            {"algorithm.batch_size": 100},
            "batch_size=100 does not divide decisions x tuned = 72. Use 72",
        ),
        (
            {"algorithm.batch_size": 25},
            "batch_size=25 does not divide decisions x tuned = 72. Use 24",
        ),
        ({"keep_data": True}, "keep_data=true does not work with dppo"),
        (  # 96 steps are two iterations of 2 x 72 / 24 updates each
            {"algorithm.value_warmup": 2},
            r"would not change: all 12 online updates fall within algorithm.value_warmup "
            r"\(12 updates\)\. Raise num_env_steps or lower algorithm.value_warmup",
        ),
        ({"utd": 2.0}, "utd is not used: this method is trained on its own rollouts"),
    ],
)
def test_invalid_options_are_refused(line: str, tmp_path: Path, changes: dict, words: str):
    run = run_of("diffusion_policy", line, tmp_path, **CLONE)
    with pytest.raises(UserError, match=words):
        finetune(run=run, **(TUNE | changes))
    assert not (run.parents[1] / "dppo").exists()


@pytest.mark.parametrize(
    ("algorithm", "more", "words"),
    [
        (
            "bc",
            {"algorithm.hidden": [8]},
            "dppo cannot continue from bc: it is no diffusion or flow policy",
        ),
        (
            "diffusion_policy",
            {**CLONE, "algorithm.process": "edm"},
            "its denoising steps are deterministic and have no density. Use a run of",
        ),
    ],
)
def test_a_run_without_densities_is_refused(
    line: str, tmp_path: Path, algorithm: str, more: dict, words: str
):
    run = run_of(algorithm, line, tmp_path, **more)
    with pytest.raises(UserError, match=words):
        finetune(run=run, **TUNE)


def test_it_needs_a_run_and_episodes_as_long_as_a_decision(line: str, tmp_path: Path):
    with pytest.raises(
        UserError, match=r"dppo fine-tunes a trained policy. Use offline-rl finetune"
    ):
        train(algorithm="dppo", task=line, num_updates=0, num_env_steps=48, show=False)
    envs.register("short", Line, max_episode_steps=1)
    one_step = CLONE | {"algorithm.n_obs_steps": 1}
    run = run_of("diffusion_policy", line, tmp_path, **one_step)
    with pytest.raises(UserError, match="an episode of short has 1 steps, a chunk has 4"):
        finetune(run=run, **TUNE, task="short")
