"""Speed harness: contenders in separate processes, the table, and invalid options."""

import json
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch.autograd import DeviceType
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import (
    baselines,
    d3rlpy_scores,
    environments,
    expressive_speed,
    figures,
    jax_corl_scores,
    latency,
    neorl2_simulators,
    parity,
    residual_speed,
)
from benchmarks.robot import __main__ as robot
from benchmarks.robot.processes import follower
from benchmarks.speed import bench, diffusion
from benchmarks.speed.bench import Contender, jobs, table_row
from benchmarks.speed.clock import ACT, OBS, arrays
from benchmarks.speed.contenders import engine, fault, shares
from benchmarks.speed.eager import TD3BC, plain_fault
from benchmarks.speed.expressive_eager import LEARNERS
from offline_rl.data import Dataset
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError

PEER = """
import wandb, d4rl, gym, pyrallis
from dataclasses import dataclass

@dataclass
class TrainConfig:
    device: str = "cuda"
    batch_size: int = 1
    checkpoints_path: str = "here"
    max_timesteps: int = 5
    eval_freq: int = 1
    buffer_size: int = 1

@pyrallis.wrap()
def train(config):
    assert (config.device, config.batch_size) == ("cpu", 256)
    data = d4rl.qlearning_dataset(gym.make("any"))
    assert data["observations"].shape == (100_000, 17)
    print("a peer may print")
    for t in range(config.max_timesteps):
        wandb.log({"loss": 0.0}, step=t)
"""


@pytest.mark.slow
def test_a_contender_does_the_requested_number_of_updates():
    contender = Contender({"kind": "eager", "algorithm": "td3_bc", "device": "cpu"})
    try:
        assert contender.facts["n"] == 1
        done, seconds = contender.run(3)
        assert done == 3
        assert seconds > 0
    finally:
        contender.stop()
    assert contender.process.poll() is not None


def test_a_checkouts_own_loop_is_held_at_its_log(tmp_path: Path):
    (tmp_path / "algorithms" / "offline").mkdir(parents=True)
    (tmp_path / "algorithms" / "offline" / "iql.py").write_text(PEER)
    job = {"kind": "corl", "algorithm": "iql", "checkout": str(tmp_path), "device": "cpu"}
    contender = Contender(job)
    try:
        assert [contender.run(n)[0] for n in (2, 5)] == [2, 5]
    finally:
        contender.stop()


def test_a_contender_that_stops_reports_the_reason(tmp_path: Path):
    job = {"kind": "corl", "algorithm": "iql", "checkout": str(tmp_path), "device": "cpu"}
    with pytest.raises(UserError, match="FileNotFoundError"):
        Contender(job)


def test_no_speed_is_reported_of_a_contender_that_computes_nan(tmp_path: Path):
    (tmp_path / "algorithms" / "offline").mkdir(parents=True)
    diverging = PEER.replace('{"loss": 0.0}', '{"loss": 0.0 if t < 2 else float("nan")}')
    (tmp_path / "algorithms" / "offline" / "iql.py").write_text(diverging)
    job = {"kind": "corl", "algorithm": "iql", "checkout": str(tmp_path), "device": "cpu"}
    contender = Contender(job)
    with pytest.raises(UserError, match=r"stopped: .*logged numbers are not finite: .*nan"):
        contender.run(2)
    contender.stop()


def test_contenders_are_checked_for_nan_and_for_replaced_programs():
    learner, plain = engine("bc", 1, "fp32", "cpu", False), TD3BC(OBS, ACT)
    assert (fault(learner), plain_fault(plain)) == (None, None)
    learner.fallbacks["update"] = "uncompiled"
    assert "wrong on this machine" in str(fault(learner))
    learner.fallbacks.clear()
    learner.state["params"]["policy"]["trunk.weights.0"][0, 0, 0] = float("nan")
    assert fault(learner) == "the parameters are not finite after 0 updates"
    next(plain.q2_t.parameters()).data[0, 0] = float("inf")
    assert plain_fault(plain) == "the parameters are not finite"


@pytest.mark.slow
def test_a_killed_contender_is_named_in_the_error():
    contender = Contender({"kind": "eager", "algorithm": "td3_bc", "device": "cpu"})
    contender.process.kill()
    contender.process.wait()
    with pytest.raises(UserError, match=r"td3_bc.*stopped: exit status -9: out of memory"):
        contender.run(1)
    contender.stop()


def test_products_of_an_update_are_counted():
    """Behavior cloning: one forward pass, and two of its size backward, without the input layer."""
    learner = engine("bc", 1, "fp32", "cpu", False)
    batch, width = learner.batch_size, learner.algorithm.cfg.hidden
    sizes = [OBS, *width, ACT]
    layers = [2 * batch * a * b for a, b in zip(sizes, sizes[1:], strict=False)]
    assert learner.update_cost().flops == 3 * sum(layers) - layers[0]


@pytest.mark.parametrize("algorithm", ["rebrac", "recoil", "decision_transformer"])
def test_algorithms_that_need_more_than_transitions_are_timed_too(algorithm: str):
    learner = engine(algorithm, 1, "fp32", "cpu", False)
    learner.run(learner.algorithm.period)
    assert learner.updates == learner.algorithm.period


def test_the_plain_u_net_is_as_large_as_ours_and_its_chunks_lie_within_episodes():
    learner = engine("diffusion_policy", 1, "fp32", "cpu", False)
    plain = diffusion.UNet(diffusion.SIZES["cpu"][0])
    head: torch.nn.Module = learner.algorithm.modules["model"]
    sizes = [sum(p.numel() for p in net.parameters()) for net in (head, plain)]
    assert sizes[0] == sizes[1]
    data = {k: torch.from_numpy(v) for k, v in arrays().items()}
    sampler = diffusion.ChunkSampler(data, 64)
    ends = (sampler.starts[:, None] + torch.arange(diffusion.HORIZON - 1)) % 1000 == 999
    assert not ends.any()
    assert len(sampler.starts) == 100 * (1000 - 15)
    diffusion.Learner(plain, "cpu").train(sampler.sample())


@pytest.mark.parametrize("algorithm", ["fql", pytest.param("diffusion_ql", marks=pytest.mark.slow)])
def test_plain_versions_compute_the_same_matrix_multiplications_as_ours(algorithm: str):
    learner, columns = LEARNERS[algorithm](28, 5), arrays(28, 5)
    names = ("observations", "actions", "rewards", "next_observations", "dones")
    batch = [torch.from_numpy(columns[name][:256]).float() for name in names]
    with FlopCounterMode(display=False) as counter:
        learner.train(batch)
    ours = engine(algorithm, 1, "fp32", "cpu", False, obs=28, act=5)
    assert counter.get_total_flops() == ours.update_cost().flops
    assert plain_fault(learner) is None


def test_speed_ratios_are_medians_of_the_ratios_within_turns():
    """5 turns on a machine that slows down; the ratio of the medians would be 2.5."""
    rows = [{"turns": [20.0, 40.0, 60.0, 80.0, 50.0]}, {"turns": [10.0, 20.0, 20.0, 16.0, 25.0]}]
    assert expressive_speed.ratio(rows[0], rows[1]) == "2.00"
    options = expressive_speed.Options(fql="f", diffusion_ql="d")
    pairs = [
        [(job["kind"].removeprefix("expressive_"), job["seeds"]) for job in each]
        for each in (expressive_speed.jobs(name, options) for name in options.algorithms)
    ]
    common = [("eager", 1), ("ours", 1), ("ours", 8)]
    assert pairs[0] == [*common, ("fql", 1), ("fql", 8)]
    assert pairs[1] == [*common, ("diffusion_ql", 1)]


def test_ratios_and_the_share_of_bare_products():
    def row(kind: str, rate: float, seeds: int = 1, **more: object) -> dict[str, object]:
        common = {"algorithm": "iql", "kind": kind, "precision": "bf16", "seeds": seeds}
        return common | {"updates_per_second": rate, "compile_seconds": 4.0} | more

    per_product = 2 * 2048 * 256 * 256
    rows = [
        row("eager", 100),
        row("d3rlpy", 50),
        row("jax_corl", 200),
        row("jax_corl", 400, seeds=8),
        row("products", 10, flops=float(per_product)),
        row("ours", 800, seeds=8, flops=per_product / 160),
    ]
    expected = ["iql", "ours", "bf16", "8", "800", "8.00", "16.00", "2.00", "1", "50 %", "4"]
    assert table_row(rows[-1], rows) == expected


def test_jobs_contain_all_contenders():
    options = bench.BenchOptions(d3rlpy=True, corl="c", jax_corl="j", unifloral="u", seeds=[1, 8])
    kinds = [job["kind"] for job in jobs("iql", options, "cpu")]
    assert kinds == ["eager", *["ours"] * 4, "d3rlpy", "corl", "jax_corl", "jax_corl", "unifloral"]
    assert "unifloral" not in [job["kind"] for job in jobs("cql", options, "cpu")]


def test_a_contender_finds_the_packages_that_this_process_finds(monkeypatch: pytest.MonkeyPatch):
    root = str(Path(bench.__file__).resolve().parents[2])
    monkeypatch.setenv("PYTHONPATH", "/wheels:/more")
    assert bench.environment_variables({}, "cpu")["PYTHONPATH"] == f"{root}:/wheels:/more"
    monkeypatch.delenv("PYTHONPATH")
    assert bench.environment_variables({}, "cpu")["PYTHONPATH"] == root


def test_jax_contenders_do_not_reserve_the_gpu_that_they_share():
    assert bench.environment_variables({}, "cuda")["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


class Starting:
    """A contender that is ready only once all three are starting."""

    all_are_starting, stopped = threading.Barrier(3, timeout=10), list[str]()

    def __init__(self, job: dict[str, str], *_: str) -> None:
        self.kind, self.facts = job["kind"], {"seconds": 0.0}
        self.all_are_starting.wait()
        if self.kind == "eager":
            raise UserError("eager stopped")

    def stop(self) -> None:
        self.stopped.append(self.kind)


def test_contenders_start_in_parallel_on_a_gpu_and_all_stop_if_one_fails(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(hardware, "num_cores", lambda: 3)
    monkeypatch.setattr(bench, "Contender", Starting)
    with pytest.raises(UserError, match="eager stopped"):
        bench.start([{"kind": kind} for kind in ("ours", "eager", "corl")], "python", "cuda")
    assert Starting.stopped == ["ours", "corl"]


def test_a_profile_on_a_gpu_counts_the_time_of_kernels_once():
    """Operations carry the time of the kernels that they launch; kernels have rows too."""

    def event(key: str, device_us: float, kind: DeviceType = DeviceType.CPU) -> SimpleNamespace:
        times = {"self_cpu_time_total": 100.0, "self_device_time_total": device_us}
        return SimpleNamespace(key=key, device_type=kind, **times)

    events = [event("aten::bmm", 60), event("triton_poi_fused_add_0", 30), event("aten::copy_", 10)]
    kernels = [event("sm90_xmma_gemm", 60, DeviceType.CUDA)]
    expected = {"products": 0.6, "fused kernels": 0.3, "rest": 0.1}
    assert shares(events + kernels, "cuda") == expected
    on_cpu = {"products": 0.333, "fused kernels": 0.333, "rest": 0.333}
    assert shares(events, "cpu") == on_cpu


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(UserError, match="td3_bd"):
        bench.bench(algorithms=["td3_bd"], device="cpu")


def test_rows_of_another_machine_are_not_mixed_in(tmp_path: Path):
    before = {"machine": hardware.describe_machine() | {"cores": 999}, "rows": []}
    (tmp_path / "speed-cpu.json").write_text(json.dumps(before))
    with pytest.raises(UserError, match="cores 999"):
        bench.bench(algorithms=["bc"], device="cpu", out=str(tmp_path / "speed"))


@pytest.mark.slow
def test_bench_keeps_earlier_rows_of_other_algorithms(tmp_path: Path):
    other = {"algorithm": "iql", "kind": "eager", "precision": "fp32", "seeds": 1, "blocks": [1]}
    other |= {"updates_per_second": 123.0, "compile_seconds": 1.0}
    other |= {"block_seconds": 9.5, "commit": "0123456789"}
    stored = {"machine": hardware.describe_machine(), "rows": [other], "profiles": []}
    (tmp_path / "speed-cpu.json").write_text(json.dumps(stored))
    text = bench.bench(
        algorithms=["td3_bc"],
        seeds=[1],
        precisions=["fp32"],
        device="cpu",
        blocks=2,
        seconds=0.1,
        out=str(tmp_path / "speed"),
    )
    assert "ours" in text
    assert "1 of 9.5 s at 0123456: iql; 2 of 0.1 s at " in text
    rows = json.loads((tmp_path / "speed-cpu.json").read_text())["rows"]
    assert [row["kind"] for row in rows] == ["eager", "eager", "ours", "products"]
    assert rows[0] == other
    assert (tmp_path / "speed-cpu.png").stat().st_size > 1000
    assert "/" not in "".join(str(row.get("checkout")) for row in rows)
    assert torch.get_num_threads() >= 1
    assert sys.executable not in (tmp_path / "speed-cpu.json").read_text()


def test_decisions_are_timed_for_each_supported_runtime(tmp_path: Path, capsys):
    """A bundle without an ONNX graph is not timed with onnxruntime."""
    bundle, file = follower(tmp_path / "a.bundle"), tmp_path / "latency.json"
    arguments = [str(file), f"arm={bundle}", "seconds=0.01", "runtimes=[torch,numpy,onnx]"]
    assert latency.main(arguments) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [(row["policy"], row["runtime"]) for row in rows] == [("arm", "torch"), ("arm", "numpy")]
    for row in rows:
        assert row["decisions"] >= latency.MIN_DECISIONS
        assert 0 < row["ms"][0] <= row["ms"][1] <= row["ms"][2]
    assert "| arm    | numpy   |" in file.with_suffix(".md").read_text()
    assert latency.main([str(file), f"arm={tmp_path}/none.bundle"]) == 2
    assert "none.bundle" in capsys.readouterr().err


def test_a_decision_of_the_best_of_n_takes_longer_than_one_of_the_one_step_policy(tmp_path: Path):
    file = tmp_path / "latency.json"
    assert latency.main([str(file), "samples=[2]", "seconds=0.01", "runtimes=[numpy]"]) == 0
    one_step, best = json.loads(file.read_text())["rows"]
    assert (one_step["policy"], best["policy"]) == ("one step", "best of 2")
    assert best["ms"][0] > 2 * one_step["ms"][0]


@pytest.mark.parametrize(
    ("script", "argument", "message"),
    [
        (parity, "task=neorl2/DMSD", "did you mean tasks"),
        (parity, "algorithms=td3_bd", "did you mean td3_bc"),
        (parity, "algorithms=bc,iql", "a list is key=[a,b]"),
        (d3rlpy_scores, "tasks=neorl2/DMSD", "did you mean task"),
        (baselines, "task_name=neorl2/DMSD", "task_name"),
        (baselines, "starts=4", "task=… is missing"),
        (environments, "environment=Hopper-v4", "did you mean environments"),
        (environments, "environments=[Hopper-v4,Hoper-v4]", "did you mean Hopper-v4"),
        (neorl2_simulators, "task=DMSD", "did you mean tasks"),
        (neorl2_simulators, "speed=yes", "expected true or false"),
        (robot, "tsk", "did you mean task"),
    ],
)
def test_a_mistyped_option_of_a_script_is_one_sentence(
    script: ModuleType, argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert figures.run_command(script.main, [argument]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("algorithms=[fq]", "did you mean fql"),
        ("python=nowhere", "is not a program. Pass the path of a Python interpreter"),
        ("fql=.", "is not a checkout of seohongpark/fql at 719d044. Run `git clone"),
    ],
)
def test_wrong_options_of_a_speed_comparison_are_refused(argument: str, message: str, capsys):
    assert expressive_speed.main([argument]) == 2
    assert message in capsys.readouterr().err


def test_residual_speed_needs_a_base(capsys):
    assert residual_speed.main(["steps=3"]) == 2
    assert "first argument must be the base" in capsys.readouterr().err


def test_jax_corl_uses_the_transitions_of_d4rls_rule():
    """The first of two episodes is truncated, so its last row is not a transition."""
    ends = np.arange(8) % 4 == 3
    states = np.arange(8, dtype=np.float32)[:, None]
    truncated, terminated = ends & (np.arange(8) < 4), ends & (np.arange(8) > 4)
    data = Dataset.from_arrays(states, states / 8, states[:, 0], terminated, truncated, states + 1)
    columns = jax_corl_scores.columns(data)
    assert columns["observations"][:, 0].tolist() == [0, 1, 2, 4, 5, 6, 7]
    assert columns["next_observations"][:, 0].tolist() == [1, 2, 3, 5, 6, 7, 8]
    assert columns["terminals"].tolist() == [0] * 6 + [1]
    assert {column.dtype for column in columns.values()} == {np.dtype(np.float32)}


class Counting:
    """Stub of JAX-CORL: five numbers that grow by 1 per update, and by the block's number."""

    updates = 2

    def __init__(self, *_: object, **settings: object) -> None:
        assert settings == {"max_steps": 8, "env_name": "gym/hopper-medium-replay"}
        self.state = np.zeros(5)

    def learn(self, updates: int, block: int) -> None:
        self.state = self.state + updates + block

    def arrays(self) -> list[np.ndarray]:
        return [self.state]

    def load(self, arrays: list[np.ndarray]) -> None:
        (self.state,) = arrays


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return arguments of the command with a stub checkout; results go to the test's folder."""
    (tmp_path / "peer" / "algos").mkdir(parents=True)
    monkeypatch.setattr(jax_corl_scores, "JaxCorl", Counting)
    monkeypatch.setattr(jax_corl_scores, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(jax_corl_scores, "evaluate", lambda peer, *_: peer.state.tolist())
    keys = {"checkout": tmp_path / "peer", "out": tmp_path / "out", "algorithms": "[iql]"}
    return [*(f"{k}={v}" for k, v in keys.items()), "updates=8", "every=2", "episodes=1"]


def test_jax_corls_runs_resume_after_a_kill(
    counting: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    save, saved = jax_corl_scores.save, []

    def save_twice(path: Path, **values: object) -> None:
        if len(saved) == 2:
            raise KeyboardInterrupt
        saved.append(values)
        save(path, **values)

    monkeypatch.setattr(jax_corl_scores, "save", save_twice)
    with pytest.raises(KeyboardInterrupt):
        jax_corl_scores.main(counting)
    assert not list((tmp_path / "results").glob("*.json"))
    other = [x for x in counting if not x.startswith("episodes")] + ["episodes=2"]
    with pytest.raises(UserError, match="saved with other options"):
        jax_corl_scores.main(other)
    monkeypatch.setattr(jax_corl_scores, "save", save)
    jax_corl_scores.main(counting)
    (file,) = (tmp_path / "results").glob("*.json")
    assert json.loads(file.read_text())["scores"] == [[n] * 5 for n in (2.0, 5.0, 9.0, 14.0)]
    assert "9.5 ±" not in (page := (tmp_path / "results" / "README.md").read_text())
    assert "| 14.0 ± 0.0 | 7.5 ± 0.0 |" in page  # the mean of all four
    monkeypatch.setattr(jax_corl_scores, "JaxCorl", None)
    jax_corl_scores.main(counting)  # nothing is left to do


@pytest.mark.parametrize("wrong", ["every=3", "updates=9"])
def test_numbers_of_updates_must_be_multiples_of_jax_corls(wrong: str, counting: list[str]):
    key = wrong.split("=")[0]
    arguments = [*(x for x in counting if not x.startswith(key)), wrong]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Counting, "__init__", lambda self, *_, **__: None)
        with pytest.raises(UserError, match=r"2 updates per call\. Use every= a multiple of 2"):
            jax_corl_scores.main(arguments)


def test_jax_corls_scores_are_compared_with_ours_after_equal_updates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Our scores come from a stored study."""
    result = {"task": "neorl2/DMSD", "algorithm": "bc", "updates": 100_000, "commit": "abc"}
    result["scores"] = [[0.0, 0.0], [10.0, 20.0]]
    (tmp_path / "a.json").write_text(json.dumps(result))
    monkeypatch.setattr(jax_corl_scores, "FOLDER", tmp_path)
    page = jax_corl_scores.page()
    assert "| 15.0 ± 5.0 | 7.5 ± 2.5 | 61.8 ± 1.0 | 61.9 ± 0.2 |" in page
    (tmp_path / "a.json").write_text(json.dumps(result | {"updates": 900}))
    assert "61.8" not in jax_corl_scores.page()


def test_a_folder_that_is_not_a_checkout_of_jax_corl_is_refused(capsys: pytest.CaptureFixture[str]):
    assert figures.run_command(jax_corl_scores.main, ["checkout=/none"]) == 2
    assert "checkout=/none is not a checkout of JAX-CORL" in capsys.readouterr().err
