"""The runtimes torch, ONNX and numpy: equal actions, and errors for missing parts."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

import policies
from policies import Bundle, BundleError, Normalizer, Player, Spec, bundle
from policies.golden import seal
from policies.heads.act import ActionChunkingTransformer
from policies.heads.best_of_n import BestOfN
from policies.heads.chunk import ChunkActor, OneStepActor
from policies.heads.decision_transformer import DecisionTransformer
from policies.heads.deterministic import DeterministicActor, SparseActor
from policies.heads.diffusion import DiffusionActor
from policies.heads.gaussian import GaussianActor, TanhGaussianActor
from policies.heads.recurrent import RecurrentActor
from policies.heads.residual import EditedActor, PerturbedActor, ResidualActor, SteeredActor
from policies.heads.schedules import (
    cosine_alphas,
    ddim,
    ddpm_clipping_x,
    euler,
    jumps,
    variance_preserving_alphas,
)
from policies.heads.sequences.history import HistoryActor
from policies.networks.mlp import Activation, Critic
from policies.runtimes import network
from policies.runtimes.with_numpy import find_head_problem

ROOT = Path(__file__).resolve().parents[2]
OBSERVATIONS = np.random.default_rng(3).normal(size=(50, 5)).astype(np.float32) * 4


def write(path: Path, head: torch.nn.Module, **spec: Any) -> Path:
    """Write a bundle of `head`, with five observation values and two actions."""
    draw = np.random.default_rng(0)
    normalizer = Normalizer.fit(draw.normal(1, 3, size=(20, 5)).astype(np.float32))
    weights = {k: v.numpy().copy() for k, v in head.state_dict().items()}
    kind = type(head).__name__
    policy = Bundle(Spec((5,), 2, **spec), kind, head.arguments, weights, normalizer)
    bundle.write(path, seal(policy))
    return path


def make_mlp_heads() -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    heads: dict[str, torch.nn.Module] = {
        f"deterministic {name}": DeterministicActor(5, 2, (16, 8), activation=name)
        for name in get_args(Activation)
    }
    heads["linear"] = DeterministicActor(5, 2, ())
    heads["gaussian"] = GaussianActor(5, 2, (16,))
    heads["clipped gaussian"] = GaussianActor(5, 2, (16,), tanh_mean=False)
    heads["tanh-gaussian"] = TanhGaussianActor(5, 2, (16,), affine=(1.0, -1.0))
    heads["normalized tanh-gaussian"] = TanhGaussianActor(5, 2, (16, 8), layer_norm=True)
    heads["polynomial"] = SparseActor(5, 2, degree=3)
    heads["powers"] = SparseActor(5, 2, degree=2, interactions=False, constant=False, tanh=True)
    for name in ("polynomial", "powers"):
        torch.nn.init.normal_(heads[name].coefficients, std=0.05)  # type: ignore[arg-type]
    for head in heads.values():
        for parameter in head.parameters():
            parameter.data.mul_(2).add_(
                0.1
            )  # so that squashing, clipping and biases have an effect
    return heads


@pytest.mark.parametrize("name", make_mlp_heads())
def test_numpy_gives_the_actions_of_torch(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "policy.bundle", make_mlp_heads()[name])
    ours, reference = (policies.load(path, runtime=each) for each in ("numpy", "torch"))
    assert (ours.network.name, reference.network.name) == ("numpy", "torch")
    expected = reference.act(OBSERVATIONS)[0]
    assert expected.std() > 0.1
    np.testing.assert_allclose(ours.act(OBSERVATIONS)[0], expected, atol=1e-5)


def test_numpy_gives_the_chunks_of_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    head = ChunkActor(5, 2, (16,), horizon=4, n_action_steps=2, n_obs_steps=3)
    path = write(tmp_path / "policy.bundle", head, n_obs_steps=3, chunk_size=4, n_action_steps=2)
    ours, reference = (Player(policies.load(path, runtime=each)) for each in ("numpy", "torch"))
    for player in (ours, reference):
        player.reset(range(10))
    for x in OBSERVATIONS.reshape(5, 10, 5):
        np.testing.assert_allclose(ours.step(x), reference.step(x), atol=1e-5)


def test_numpy_gives_the_chunks_of_torch_for_equal_noise(tmp_path: Path) -> None:
    torch.manual_seed(0)
    head = OneStepActor(5, 2, (16, 8), horizon=3)
    path = write(tmp_path / "policy.bundle", head, chunk_size=3, n_action_steps=3)
    ours, reference = (Player(policies.load(path, runtime=each)) for each in ("numpy", "torch"))
    for player in (ours, reference):
        player.reset(range(10))
    for x in OBSERVATIONS.reshape(5, 10, 5):
        np.testing.assert_allclose(ours.step(x), reference.step(x), atol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.1])
@pytest.mark.parametrize("network", ["mlp", "plain", "ln_resnet"])
def test_numpy_selects_the_samples_that_torch_selects(
    tmp_path: Path, network: Any, temperature: float
) -> None:
    """A diffusion policy or a flow, and critics with layer normalization after the activation."""
    torch.manual_seed(0)
    norm: Any = {"layer_norm": True, "norm_after_activation": True, "norm_eps": 1e-3}
    critic = Critic(10, 6, (16, 8), activation="silu", ensemble=3, **norm)
    policy: Any = make_sampler("flow")
    if network == "mlp":
        policy = make_sampler("ddim", eta=1.0)
    else:
        arguments = policy.arguments | {"network": network, "options": {"hidden": [16, 8]}}
        if network == "ln_resnet":
            arguments["options"] = {"width": 8, "blocks": 2, "time_size": 4}
            arguments["table"] = ddpm_clipping_x(variance_preserving_alphas(5))
        policy = DiffusionActor(**arguments)
    for parameter in [
        *critic.parameters(),
        *policy.parameters(),
    ]:  # gains other than 1, and samples of different values
        parameter.data += 0.3 * torch.randn(parameter.shape)
    head = compose(policy, critic, temperature)
    path = write(tmp_path / "policy.bundle", head, **PLANNED)
    ours, reference = (Player(policies.load(path, runtime=each)) for each in ("numpy", "torch"))
    for player in (ours, reference):
        player.reset(range(10))
    for x in OBSERVATIONS.reshape(5, 10, 5):
        np.testing.assert_allclose(ours.step(x), reference.step(x), atol=1e-4)


def test_the_golden_output_does_not_depend_on_rounding_errors_of_values(tmp_path: Path) -> None:
    """Values near 10,000 have rounding errors of 0.001, which change the choice in other rows."""
    torch.manual_seed(0)
    head = compose(make_sampler("flow"), Critic(10, 6, (16,)), 0.0, num_samples=50)
    weights = {name: x.clone() for name, x in head.critic.named_parameters()}
    with torch.no_grad():
        for name in ("net.weights.1", "net.biases.1"):
            head.critic.get_parameter(name).copy_(weights[name] * 0.01)
        head.critic.get_parameter("net.biases.1").add_(1e4)
    exact = policies.load(write(tmp_path / "a", head, **PLANNED))
    golden, draw = exact.bundle.golden, np.random.default_rng(0)
    assert golden is not None
    with torch.no_grad():
        for name in ("net.weights.1", "net.biases.1"):  # the same values, without rounding errors
            head.critic.get_parameter(name).copy_(weights[name])
    other = policies.load(write(tmp_path / "b", head, **PLANNED))

    def count_changes(observations: Any, noise: Any) -> int:
        a, b = (policy.decide(observations, {}, noise)[0] for policy in (exact, other))
        return int((np.abs(a - b).max((1, 2)) > 1e-4).sum())

    (name,) = golden.observations
    s, noise = draw.normal(size=(64, 2, 5)), draw.normal(size=(64, *head.noise_shape))
    assert count_changes({name: s.astype(np.float32)}, noise.astype(np.float32)) >= 8
    assert count_changes(golden.observations, golden.noise) == 0


def hide_packages(*hidden: str) -> str:
    """Return Python code that makes these packages impossible to import."""
    return (
        "import sys\n"
        "class Hidden:\n"
        f"    names = {hidden!r}\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in self.names: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "import importlib.util as u; found = u.find_spec\n"
        "u.find_spec = lambda n, p=None: None if n in Hidden.names else found(n, p)\n"
    )


def python(code: str) -> str:
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_torch_an_mlp_policy_runs_in_numpy(tmp_path: Path) -> None:
    path = write(tmp_path / "policy.bundle", GaussianActor(5, 2, (16,)))
    expected = policies.load(path).act(np.ones(5))[0]
    hidden = "torch", "onnxruntime", "offline_rl", "envs"
    output = python(
        f"{hide_packages(*hidden)}import numpy, policies\n"
        f"policy = policies.load({str(path)!r})\n"
        "print(policy.network.name, *policy.act(numpy.ones(5))[0][0])\n"
        "assert not set(Hidden.names) & set(sys.modules)"
    ).split()
    assert output[0] == "numpy"
    np.testing.assert_allclose([float(x) for x in output[1:]], expected[0], atol=1e-5)


def test_a_policy_that_cannot_run_in_a_runtime_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch
) -> None:
    path = write(tmp_path / "policy.bundle", make_transformer())
    with pytest.raises(BundleError, match=r"numpy runs DeterministicActor.* DecisionTransformer"):
        policies.load(path, runtime="numpy")
    with pytest.raises(BundleError, match=r"runtime=onnx needs .*offline-rl export"):
        policies.load(path, runtime="onnx")
    with pytest.raises(BundleError, match=r"runtime=jax is unknown\. Use auto, torch, onnx, numpy"):
        policies.load(path, runtime="jax")
    monkeypatch.setattr("policies.runtimes.with_torch.find_spec", lambda name: None)
    with pytest.raises(BundleError, match=r"torch needs .*pip install torch; .*export.*; .*numpy"):
        policies.load(path)


def test_numpy_refuses_composed_policies_whose_sampler_it_cannot_run() -> None:
    unet = {"network": "unet", "observations": 5, "until": None}
    edited = {"flow_arguments": unet}
    for kind, arguments in (
        ("EditedActor", edited),
        ("SteeredActor", {"sampler": "DiffusionActor", "sampler_arguments": unet}),
        ("BestOfN", {"policy": "DiffusionActor", "policy_arguments": unet}),
        ("BestOfN", {"policy": "EditedActor", "policy_arguments": edited}),
    ):
        assert "not unet" in (find_head_problem(kind, arguments) or "")


def make_sampler(
    kind: str, num_inference_steps: int = 3, prediction_type: Any = "epsilon", eta: float = 0.0
) -> Any:
    """Return a small diffusion policy whose actions do not all saturate."""
    torch.manual_seed(1)
    alphas = cosine_alphas(20)
    table = (
        ddim(alphas, num_inference_steps, prediction_type, eta)
        if kind != "flow"
        else euler(4, eta=0.7)
    )
    options = {"hidden": [16], "time_size": 8}
    size = {"horizon": 6, "n_obs_steps": 2, "n_action_steps": 3, "action_low": [-1.0, -0.5]}
    size |= {"action_high": [0.5, 0.5]}
    return DiffusionActor(5, 2, network="mlp", options=options, table=table, **size)


PLANNED = {"n_obs_steps": 2, "chunk_size": 5, "n_action_steps": 3}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Export an MLP policy and a flow policy once.

    The flow policy uses fresh noise in some denoising steps, and its result leaves the range of
    the data.
    """
    from policies.export import export_bundle

    folder, paths = tmp_path_factory.mktemp("exports"), dict[str, Path]()
    heads = {
        "mlp": (make_mlp_heads()["tanh-gaussian"], {}),
        "sampler": (make_sampler("flow"), PLANNED),
    }
    for name, (head, spec) in heads.items():
        paths[name] = write(folder / f"{name}.bundle", head, **spec)
        exported, difference = export_bundle(bundle.read(paths[name]))
        assert difference < 1e-5
        bundle.write(paths[name], exported)
    return paths


def test_an_exported_mlp_gives_the_actions_of_torch(exports: dict[str, Path]) -> None:
    ours, reference = (policies.load(exports["mlp"], runtime=r) for r in ("onnx", "torch"))
    for x in (OBSERVATIONS, OBSERVATIONS[0], OBSERVATIONS[:1]):
        np.testing.assert_allclose(ours.act(x)[0], reference.act(x)[0], atol=1e-5)


def test_an_exported_sampler_gives_the_actions_of_torch_in_an_episode(
    exports: dict[str, Path],
) -> None:
    """numpy runs the sampling loop and generates the noise. Other seeds give other actions."""
    runs = []
    for runtime in ("onnx", "torch"):
        player = Player(policies.load(exports["sampler"], runtime=runtime))
        player.reset([4, 5, 6])
        steps = [player.step(OBSERVATIONS[3 * k : 3 * k + 3]) for k in range(8)]
        runs.append(np.stack(steps))
    ours, reference = runs
    np.testing.assert_allclose(ours, reference, atol=1e-4)
    assert np.abs(reference[0, 0] - reference[0, 1]).max() > 1e-3
    assert reference[..., 1].min() >= -0.5 - 1e-6
    assert reference[..., 1].max() <= 0.5 + 1e-6


def test_onnx_loads_no_torch(exports: dict[str, Path]) -> None:
    output = python(
        f"{hide_packages('torch', 'diffusers')}import numpy, policies\n"
        f"for path in {[str(path) for path in exports.values()]!r}:\n"
        "    policy = policies.load(path, runtime='auto')\n"
        "    player = policies.Player(policy)\n"
        "    print(policy.network.name, player.step(numpy.ones(5)).shape)\n"
        "assert 'torch' not in sys.modules"
    )
    assert output.splitlines() == ["onnx (2,)", "onnx (2,)"]


def test_the_golden_output_detects_a_graph_of_another_policy(
    exports: dict[str, Path], tmp_path: Path
) -> None:
    original = bundle.read(exports["mlp"])
    torch.manual_seed(7)
    path = write(tmp_path / "other.bundle", TanhGaussianActor(5, 2, (16,), affine=(1.0, -1.0)))
    bundle.write(path, replace(bundle.read(path), graphs=original.graphs))
    policies.load(path, runtime="torch")
    with pytest.raises(BundleError, match="does not reproduce its golden output"):
        policies.load(path, runtime="onnx")
    bundle.write(path, replace(original, graphs={"policy": b"nothing"}))
    with pytest.raises(BundleError, match="graph cannot be run"):
        policies.load(path, runtime="onnx")


def test_an_inaccurate_graph_is_not_exported(
    exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from policies import export

    original = replace(bundle.read(exports["mlp"]), golden=None)
    weights = {name: 1.001 * value for name, value in original.weights.items()}
    monkeypatch.setattr(export, "make_graphs", lambda policy: original.graphs)
    with pytest.raises(BundleError, match="exported graph differs from torch by"):
        export.export_bundle(replace(original, graphs={}, weights=weights))


def test_a_bundle_that_does_not_reproduce_its_golden_output_is_not_exported(
    tmp_path: Path,
) -> None:
    """The export would record a new golden output and hide the defect."""
    from policies.export import export_bundle

    original = bundle.read(write(tmp_path / "p", DeterministicActor(5, 2, (8,))))
    weights = {name: value + 0.1 for name, value in original.weights.items()}
    with pytest.raises(BundleError, match="does not reproduce its golden output"):
        export_bundle(replace(original, weights=weights))


def make_transformer(**options: Any) -> DecisionTransformer:
    torch.manual_seed(0)
    small: Any = {"target_return": 9.0, "context_length": 3, "dim_model": 8, "num_layers": 1}
    return DecisionTransformer(5, 2, **(small | options))


def test_an_exported_policy_with_a_memory_gives_the_actions_of_torch(tmp_path: Path) -> None:
    """The golden output holds two decisions. The second one depends on the memory."""
    from policies.export import export_bundle

    path = write(tmp_path / "policy.bundle", make_transformer())
    exported, difference = export_bundle(bundle.read(path))
    assert difference < 1e-5
    assert exported.golden is not None
    first, second = exported.golden.chunks
    assert np.abs(first - second).max() > 1e-3
    bundle.write(path, exported)
    players = [Player(policies.load(path, runtime=runtime)) for runtime in ("onnx", "torch")]
    for player in players:
        player.reset([1, 2])
    for k, x in enumerate(OBSERVATIONS.reshape(-1, 2, 5)[:8]):
        ours, reference = (player.step(x, [0.5, k]) for player in players)
        np.testing.assert_allclose(ours, reference, atol=1e-5)
    with pytest.raises(BundleError, match="an exported DecisionTransformer has fixed arguments"):
        policies.load(path, runtime="onnx", target_return=3.0)
    fewer = replace(exported.golden, chunks=exported.golden.chunks[:1])
    bundle.write(path, replace(exported, golden=fewer))
    with pytest.raises(BundleError, match="has 1 decisions instead of 2"):
        policies.load(path)


def make_best_of_n(temperature: float = 0.0) -> BestOfN:
    return compose(make_sampler("flow"), Critic(10, 6, (16,), ensemble=3), temperature)


def compose(policy: Any, critic: Critic, temperature: float, num_samples: int = 4) -> BestOfN:
    options: Any = {"num_samples": num_samples, "temperature": temperature}
    head = BestOfN("DiffusionActor", policy.arguments, critic.arguments, **options)
    weights = {"policy": policy.state_dict(), "critic": critic.state_dict()}
    head.load_state_dict({f"{k}.{name}": x for k, v in weights.items() for name, x in v.items()})
    return head


@pytest.mark.parametrize("kind", ["best of n", "softmax of n", "recurrent"])
def test_composed_heads_are_exported(tmp_path: Path, kind: str) -> None:
    """A policy with a critic, and a recurrent one, whose memory and noise are inputs."""
    from policies.export import export_bundle

    torch.manual_seed(0)
    head: Any = RecurrentActor(5, 2, (16,), embedding=8, recurrent=8, latent=4)
    sizes: Any = {}
    if kind != "recurrent":
        head, sizes = make_best_of_n(0.1 if kind == "softmax of n" else 0.0), PLANNED
    path = write(tmp_path / "policy.bundle", head, **sizes)
    exported, difference = export_bundle(bundle.read(path))
    assert difference < 1e-5
    bundle.write(path, exported)
    players = [Player(policies.load(path, runtime=runtime)) for runtime in ("onnx", "torch")]
    for player in players:
        player.reset([1, 2])
    for x in OBSERVATIONS.reshape(-1, 2, 5)[:8]:
        ours, reference = (player.step(x) for player in players)
        np.testing.assert_allclose(ours, reference, atol=1e-5)
        assert np.abs(ours[0] - ours[1]).max() > 1e-3


def make_chunk_head(kind: Any) -> Any:
    """Return a small head that predicts chunks of seven actions from two observations."""
    torch.manual_seed(2)
    if kind == "act":
        small = {
            "dim_model": 16,
            "num_heads": 2,
            "hidden": 16,
            "num_layers": 1,
            "num_vae_encoder_layers": 1,
            "latent_dim": 4,
        }
        return ActionChunkingTransformer(5, 2, n_obs_steps=2, horizon=7, n_action_steps=3, **small)
    options: dict[str, Any] = {"widths": [8, 16], "groups": 4, "time_size": 8}
    if kind == "transformer":
        options = {"size": 16, "layers": 2, "heads": 2}
    table = ddim(cosine_alphas(20), 4, "epsilon")
    arguments: dict[str, Any] = {"table": table, "horizon": 8, "n_action_steps": 3}
    if kind == "consistency":
        arguments |= {"table": jumps(3, 80, True), "until": 0.1}
        kind, options = "mlp", {"hidden": [16], "time_size": 8}
    return DiffusionActor(5, 2, network=kind, options=options, **arguments)


def players_of(path: Path, runtime: str) -> tuple[Player, Player]:
    """Return players of the bundle in `runtime` and in torch. onnx: export its graph first."""
    if runtime == "onnx":
        from policies.export import export_bundle

        exported, difference = export_bundle(bundle.read(path))
        assert difference < 1e-5
        bundle.write(path, exported)
    ours, reference = (Player(policies.load(path, runtime=each)) for each in (runtime, "torch"))
    for player in (ours, reference):
        player.reset(range(10))
    return ours, reference


@pytest.mark.parametrize("runtime", ["numpy", pytest.param("onnx", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_a_head_on_encoded_histories_gives_the_actions_of_torch(
    tmp_path: Path, kind: str, runtime: str
) -> None:
    torch.manual_seed(0)
    encoder = {"observations": 5, "n_obs_steps": 3, "features": 8, "kind": kind}
    policy = DeterministicActor(8, 2, (16,))
    head = HistoryActor(encoder, "DeterministicActor", policy.arguments)
    for parameter in head.parameters():
        parameter.data.mul_(2).add_(0.1)
    path = write(tmp_path / "policy.bundle", head, n_obs_steps=3)
    ours, reference = players_of(path, runtime)
    steps = []
    for x in OBSERVATIONS.reshape(5, 10, 5) / 4:
        steps.append(reference.step(x))
        np.testing.assert_allclose(ours.step(x), steps[-1], atol=1e-5)
    assert np.std(steps) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unet", "transformer", "consistency", "act"])
def test_every_chunk_head_is_exported(tmp_path: Path, kind: str) -> None:
    """The heads use convolutions, attention, two time inputs (consistency), and no noise (ACT)."""
    from policies.export import export_bundle

    head, path = make_chunk_head(kind), tmp_path / "policy.bundle"
    write(path, head, n_obs_steps=2, chunk_size=7, n_action_steps=3)
    exported, difference = export_bundle(bundle.read(path))
    assert difference < 1e-4
    bundle.write(path, exported)
    ours, reference = (policies.load(path, runtime=each) for each in ("onnx", "torch"))
    np.testing.assert_allclose(ours.act(OBSERVATIONS)[0], reference.act(OBSERVATIONS)[0], atol=1e-4)
    assert ours.act(OBSERVATIONS[0])[0].shape == (7, 2)


def make_vision_head(kind: str) -> torch.nn.Module:
    """Return a small head that predicts chunks of seven actions from two images and vectors."""
    torch.manual_seed(2)
    shapes: Any = {"state": [3], "image": [12, 10, 3]}
    common: Any = {"encoder": {"num_keypoints": 4}, "n_obs_steps": 2, "n_action_steps": 3}
    if kind == "act":
        small: Any = {
            "dim_model": 16,
            "num_heads": 2,
            "hidden": 16,
            "num_layers": 1,
            "num_vae_encoder_layers": 1,
        }
        return ActionChunkingTransformer(shapes, 2, horizon=7, **small, **common)
    options, table = {"hidden": [16], "time_size": 8}, ddim(cosine_alphas(20), 4, "epsilon")
    common |= {"network": "mlp", "options": options, "table": table, "horizon": 8}
    return DiffusionActor(shapes, 2, **common)


@pytest.mark.parametrize("kind", ["sampler", pytest.param("act", marks=pytest.mark.slow)])
def test_a_policy_with_images_is_exported_with_one_input_per_channel(
    tmp_path: Path, kind: str
) -> None:
    """The encoder of a diffusion policy is a separate graph with uint8 images as input."""
    from policies.export import export_bundle
    from policies.runtimes.with_onnx import Graph

    head, path = make_vision_head(kind), tmp_path / "policy.bundle"
    weights = {k: v.numpy().copy() for k, v in head.state_dict().items()}
    sizes = {"n_obs_steps": 2, "chunk_size": 7, "n_action_steps": 3}
    spec = Spec({"state": (3,), "image": (12, 10, 3)}, 2, **sizes)
    normalizers = {"state": Normalizer.fit(OBSERVATIONS[:, :3])}
    sealed = seal(Bundle(spec, type(head).__name__, head.arguments, weights, normalizers))
    bundle.write(path, sealed)
    exported, difference = export_bundle(bundle.read(path))
    assert difference < 1e-4
    bundle.write(path, exported)
    encoder = Graph(exported.graphs["encoder" if kind == "sampler" else "policy"])
    assert encoder.inputs["observations/image"][1:] == [2, 12, 10, 3]
    draw = np.random.default_rng(0)
    runs = []
    states = OBSERVATIONS[:15, :3].reshape(5, 3, 3)
    images = draw.integers(0, 256, (5, 3, 12, 10, 3), np.uint8)
    for runtime in ("onnx", "torch"):
        player = Player(policies.load(path, runtime=runtime))
        player.reset([4, 5, 6])
        pairs = zip(states, images, strict=True)
        runs.append(np.stack([player.step({"state": s, "image": i}) for s, i in pairs]))
    np.testing.assert_allclose(runs[0], runs[1], atol=1e-4)


# the player


def test_a_player_executes_n_action_steps_of_a_chunk_before_it_predicts_the_next(
    tmp_path: Path,
) -> None:
    """A chunk depends on the last two observations, the seed, and the number of earlier chunks."""
    from policies.noise import normal

    policy = policies.load(write(tmp_path / "p", make_sampler("ddim", eta=1.0), **PLANNED))
    player = Player(policy)
    player.reset(seed=9)
    actions = np.stack([player.step(x) for x in OBSERVATIONS[:6]])
    for decision, step in enumerate((0, 3)):
        history = OBSERVATIONS[[max(step - 1, 0), step]][None]
        noise = normal(np.array([9]), np.array([decision]), policy.noise_shape)
        chunk = policy.decide(history, {}, noise)[0][0]
        np.testing.assert_array_equal(actions[step : step + 3], chunk[:3])
    player.reset(seed=9)
    np.testing.assert_array_equal(player.step(OBSERVATIONS[0]), actions[0])
    with pytest.raises(ValueError, match="2 observations, but reset started one episode"):
        player.step(OBSERVATIONS[:2])


def test_a_player_passes_rewards_to_a_policy_that_needs_them(tmp_path: Path) -> None:
    policy = policies.load(write(tmp_path / "p", make_transformer()))
    player, state = Player(policy), None
    for x, reward in zip(OBSERVATIONS[:4], (None, 1.0, 2.0, 0.0), strict=True):
        chunk, state = policy.act(x, state, reward)
        np.testing.assert_array_equal(player.step(x, reward), chunk[0])


def test_every_runtime_has_a_module() -> None:
    for name in network.RUNTIMES:
        assert (ROOT / "policies" / "runtimes" / f"with_{name}.py").is_file()


def make_steered(sampler: Any) -> SteeredActor:
    """Return a policy that chooses the initial noise of this sampler."""
    inputs, size = 5 * sampler.n_obs_steps, math.prod(sampler.noise_shape)
    policy = TanhGaussianActor(inputs, size, (16,), activation="gelu_tanh")
    parts: Any = [x for part in (policy, sampler) for x in (type(part).__name__, part.arguments)]
    return SteeredActor(*parts, noise_scale=1.5)


def make_edited(aggregate: Any = "mean") -> BestOfN:
    """Return the best of three edited chunks of a flow policy."""
    sizes = {"n_obs_steps": 1, "horizon": 3, "n_action_steps": 3}
    shape: Any = sizes | {"table": euler(4), "options": {"hidden": [16]}}
    flow = DiffusionActor(5, 2, network="plain", **shape)
    edit, critic = TanhGaussianActor(11, 6, (16,)), Critic(5, 6, (16,), ensemble=3)
    arguments: Any = EditedActor(flow.arguments, edit.arguments, edit_scale=0.7).arguments
    options: Any = {"num_samples": 3, "aggregate": aggregate}
    head: Any = BestOfN("EditedActor", arguments, critic.arguments, **options)
    head.policy.edit.trunk.biases[-1].data[..., 6] = 9.0  # a log standard deviation out of bounds
    return head


def make_perturbed() -> PerturbedActor:
    """Return a policy that perturbs the actions that a VAE decodes."""
    policy = ResidualActor(7, 2, (16,), scale=0.5, activation="tanh", layer_norm=False)
    head = PerturbedActor(policy.arguments, decoder_hidden=(16, 16))
    head.policy.scale.data.fill_(0.5)
    for p in head.parameters():
        p.data += 0.5 * torch.randn_like(p) * (p.dim() > 0)
    return head


STEPPED = {"chunk_size": 3, "n_action_steps": 3}
ON_OTHERS: dict[str, tuple[Callable[[], Any], dict[str, int]]] = {
    "steered diffusion": (lambda: make_steered(make_sampler("ddim")), PLANNED),
    "steered one-step": (lambda: make_steered(OneStepActor(5, 2, (16,), horizon=3)), STEPPED),
    "edited": (make_edited, STEPPED),
    "perturbed": (make_perturbed, {}),
    "edited, least cost": (lambda: make_edited("least_max"), STEPPED),
}


@pytest.mark.parametrize("runtime", ["numpy", pytest.param("onnx", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ON_OTHERS)
def test_heads_on_other_policies_act_as_in_torch(tmp_path: Path, name: str, runtime: str) -> None:
    torch.manual_seed(0)
    make, sizes = ON_OTHERS[name]
    path = write(tmp_path / "policy.bundle", make(), **sizes)
    ours, reference = players_of(path, runtime)
    for x in OBSERVATIONS.reshape(5, 10, 5):
        expected = reference.step(x)
        np.testing.assert_allclose(ours.step(x), expected, atol=1e-5)
        assert expected.std() > 0.05
