"""Torch, ONNX and numpy answer alike; which one runs a bundle, and what it needs."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

import policies
from policies import Bundle, BundleError, Normalizer, Player, Spec, bundle
from policies.heads.act import ActionChunkingTransformer
from policies.heads.chunk import ChunkActor
from policies.heads.decision_transformer import DecisionTransformer
from policies.heads.deterministic import DeterministicActor
from policies.heads.diffusion import DiffusionActor
from policies.heads.gaussian import GaussianActor, TanhGaussianActor
from policies.heads.schedules import cosine_alphas, ddim, euler, jumps
from policies.networks.mlp import Activation
from policies.runtimes import network

ROOT = Path(__file__).resolve().parents[2]
SEEN = np.random.default_rng(3).normal(size=(50, 5)).astype(np.float32) * 4


def write(path: Path, head: torch.nn.Module, **spec: Any) -> Path:
    """A bundle of the head as it is, of five numbers seen and two done."""
    draw = np.random.default_rng(0)
    normalizer = Normalizer.fit(draw.normal(1, 3, size=(20, 5)).astype(np.float32))
    weights = {k: v.numpy().copy() for k, v in head.state_dict().items()}
    made = Bundle(Spec((5,), 2, **spec), type(head).__name__, head.arguments, weights, normalizer)
    bundle.write(path, made)
    return path


def perceptrons() -> dict[str, torch.nn.Module]:
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
    for head in heads.values():
        for parameter in head.parameters():
            parameter.data.mul_(2).add_(0.1)  # so that squashing, clipping and shifts matter
    return heads


@pytest.mark.parametrize("name", perceptrons())
def test_numpy_answers_as_torch_does(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "policy.bundle", perceptrons()[name])
    ours, theirs = (policies.load(path, runtime=each) for each in ("numpy", "torch"))
    assert (ours.network.name, theirs.network.name) == ("numpy", "torch")
    expected = theirs.act(SEEN)[0]
    assert expected.std() > 0.1
    np.testing.assert_allclose(ours.act(SEEN)[0], expected, atol=1e-5)


def test_numpy_answers_whole_chunks_as_torch_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    head = ChunkActor(5, 2, (16,), horizon=4, n_action_steps=2, n_obs_steps=3)
    path = write(tmp_path / "policy.bundle", head, n_obs_steps=3, chunk_size=4, n_action_steps=2)
    ours, theirs = (Player(policies.load(path, runtime=each)) for each in ("numpy", "torch"))
    for player in (ours, theirs):
        player.reset(range(10))
    for seen in SEEN.reshape(5, 10, 5):
        np.testing.assert_allclose(ours.step(seen), theirs.step(seen), atol=1e-5)


def without(*hidden: str) -> str:
    """Python in which these packages cannot be imported."""
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


def test_where_torch_is_not_installed_a_perceptron_runs_by_numpy(tmp_path: Path) -> None:
    path = write(tmp_path / "policy.bundle", GaussianActor(5, 2, (16,)))
    expected = policies.load(path).act(np.ones(5))[0]
    hidden = "torch", "onnxruntime", "offline_rl", "envs"
    told = python(
        f"{without(*hidden)}import numpy, policies\n"
        f"policy = policies.load({str(path)!r})\n"
        "print(policy.network.name, *policy.act(numpy.ones(5))[0][0])\n"
        "assert not set(Hidden.names) & set(sys.modules)"
    ).split()
    assert told[0] == "numpy"
    np.testing.assert_allclose([float(x) for x in told[1:]], expected[0], atol=1e-5)


def test_what_numpy_cannot_run_says_what_it_needs(tmp_path: Path, monkeypatch) -> None:
    head = DecisionTransformer(5, 2, target_return=1.0, context_length=2, dim_model=8, num_layers=1)
    path = write(tmp_path / "policy.bundle", head)
    with pytest.raises(BundleError, match=r"numpy runs DeterministicActor.* DecisionTransformer"):
        policies.load(path, runtime="numpy")
    with pytest.raises(BundleError, match=r"runtime=onnx needs .*offline-rl export"):
        policies.load(path, runtime="onnx")
    with pytest.raises(BundleError, match="runtime=jax is unknown; auto, torch, onnx, numpy"):
        policies.load(path, runtime="jax")
    monkeypatch.setattr("policies.runtimes.with_torch.find_spec", lambda name: None)
    with pytest.raises(BundleError, match=r"torch needs .*pip install torch; .*export.*; .*numpy"):
        policies.load(path)


def sampler(
    kind: str, num_inference_steps: int = 3, prediction_type: Any = "epsilon", eta: float = 0.0
) -> Any:
    """A small diffusion policy whose chunks are of moderate size."""
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
    """A perceptron and a sampler, exported once.

    The sampler draws noise in some of its rounds, and its last one leaves the data's range.
    """
    from policies.export import export_bundle

    folder, found = tmp_path_factory.mktemp("exports"), dict[str, Path]()
    heads = {
        "perceptron": (perceptrons()["tanh-gaussian"], {}),
        "sampler": (sampler("flow"), PLANNED),
    }
    for name, (head, spec) in heads.items():
        found[name] = write(folder / f"{name}.bundle", head, **spec)
        made, apart = export_bundle(bundle.read(found[name]))
        assert apart < 1e-5
        bundle.write(found[name], made)
    return found


def test_an_exported_perceptron_answers_as_torch_does(exports: dict[str, Path]) -> None:
    """To one observation and to many."""
    ours, theirs = (policies.load(exports["perceptron"], runtime=r) for r in ("onnx", "torch"))
    for seen in (SEEN, SEEN[0], SEEN[:1]):
        np.testing.assert_allclose(ours.act(seen)[0], theirs.act(seen)[0], atol=1e-5)


def test_an_exported_sampler_takes_the_same_actions_of_the_same_episode(
    exports: dict[str, Path],
) -> None:
    """Its rounds are numpy's, and so is its noise; episodes of other seeds go elsewhere."""
    taken = []
    for runtime in ("onnx", "torch"):
        player = Player(policies.load(exports["sampler"], runtime=runtime))
        player.reset([4, 5, 6])
        taken.append(np.stack([player.step(SEEN[3 * k : 3 * k + 3]) for k in range(8)]))
    np.testing.assert_allclose(taken[0], taken[1], atol=1e-4)
    assert np.abs(taken[1][0, 0] - taken[1][0, 1]).max() > 1e-3
    assert taken[1][..., 1].min() >= -0.5 - 1e-6
    assert taken[1][..., 1].max() <= 0.5 + 1e-6


def test_onnx_loads_no_torch(exports: dict[str, Path]) -> None:
    told = python(
        f"{without('torch', 'diffusers')}import numpy, policies\n"
        f"for path in {[str(path) for path in exports.values()]!r}:\n"
        "    policy = policies.load(path, runtime='auto')\n"
        "    player = policies.Player(policy)\n"
        "    print(policy.network.name, player.step(numpy.ones(5)).shape)\n"
        "assert 'torch' not in sys.modules"
    )
    assert told.splitlines() == ["onnx (2,)", "onnx (2,)"]


def test_a_graph_of_another_policy_is_told_by_the_golden_answer(
    exports: dict[str, Path], tmp_path: Path
) -> None:
    whole = bundle.read(exports["perceptron"])
    torch.manual_seed(7)
    path = write(tmp_path / "other.bundle", TanhGaussianActor(5, 2, (16,), affine=(1.0, -1.0)))
    bundle.write(path, replace(bundle.read(path), graphs=whole.graphs))
    policies.load(path, runtime="torch")
    with pytest.raises(BundleError, match="golden answer does not come out"):
        policies.load(path, runtime="onnx")
    bundle.write(path, replace(whole, graphs={"policy": b"nothing"}))
    with pytest.raises(BundleError, match="graph cannot be run"):
        policies.load(path, runtime="onnx")


def test_a_graph_that_is_off_is_not_exported(
    exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from policies import export

    other = replace(bundle.read(exports["perceptron"]), golden=None)
    weights = {name: 1.001 * value for name, value in other.weights.items()}
    monkeypatch.setattr(export, "make_graphs", lambda policy: other.graphs)
    with pytest.raises(BundleError, match="off what torch answers: not exported"):
        export.export_bundle(replace(other, graphs={}, weights=weights))


def test_a_bundle_whose_golden_answer_does_not_come_out_is_not_exported(tmp_path: Path) -> None:
    """Else it would be given a new one, and what is wrong with it would be lost."""
    from policies.export import export_bundle

    whole = bundle.read(write(tmp_path / "p", DeterministicActor(5, 2, (8,))))
    wrong = {name: value + 0.1 for name, value in whole.weights.items()}
    with pytest.raises(BundleError, match="golden answer does not come out"):
        export_bundle(replace(whole, weights=wrong))


def test_what_remembers_its_episode_is_not_exported(tmp_path: Path) -> None:
    from policies.export import export_bundle

    head = DecisionTransformer(5, 2, target_return=1.0, context_length=2, dim_model=8, num_layers=1)
    path = write(tmp_path / "policy.bundle", head)
    with pytest.raises(BundleError, match="a DecisionTransformer remembers its episode"):
        export_bundle(bundle.read(path))


def chunked(kind: Any) -> Any:
    """A small head of chunks of seven actions, from two observations."""
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
    jump = {"table": jumps(3, 80, True), "until": 0.1} if kind == "consistency" else {}
    how = {"table": ddim(cosine_alphas(20), 4, "epsilon"), "horizon": 8, "n_action_steps": 3} | jump
    if kind == "consistency":
        kind, options = "mlp", {"hidden": [16], "time_size": 8}
    return DiffusionActor(5, 2, network=kind, options=options, **how)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unet", "transformer", "consistency", "act"])
def test_every_head_of_chunks_is_exported(tmp_path: Path, kind: str) -> None:
    """Convolutions, attention, a model of jumps, which is told two times, and one without noise."""
    from policies.export import export_bundle

    path = write(
        tmp_path / "policy.bundle", chunked(kind), n_obs_steps=2, chunk_size=7, n_action_steps=3
    )
    made, apart = export_bundle(bundle.read(path))
    assert apart < 1e-4
    bundle.write(path, made)
    ours, theirs = (policies.load(path, runtime=each) for each in ("onnx", "torch"))
    np.testing.assert_allclose(ours.act(SEEN)[0], theirs.act(SEEN)[0], atol=1e-4)
    assert ours.act(SEEN[0])[0].shape == (7, 2)


def seeing(kind: str) -> torch.nn.Module:
    """A small head of chunks of seven actions, from two pictures and vectors."""
    torch.manual_seed(2)
    shapes: Any = {"state": [3], "picture": [12, 10, 3]}
    own: Any = {"encoder": {"num_keypoints": 4}, "n_obs_steps": 2, "n_action_steps": 3}
    if kind == "act":
        small: Any = {
            "dim_model": 16,
            "num_heads": 2,
            "hidden": 16,
            "num_layers": 1,
            "num_vae_encoder_layers": 1,
        }
        return ActionChunkingTransformer(shapes, 2, horizon=7, **small, **own)
    options, table = {"hidden": [16], "time_size": 8}, ddim(cosine_alphas(20), 4, "epsilon")
    return DiffusionActor(shapes, 2, network="mlp", options=options, table=table, horizon=8, **own)


@pytest.mark.parametrize("kind", ["sampler", pytest.param("act", marks=pytest.mark.slow)])
def test_what_sees_pictures_is_exported_with_every_channel_by_name(
    tmp_path: Path, kind: str
) -> None:
    """Of a sampler its encoder is a graph of its own, which takes pictures as they are kept."""
    from policies.export import export_bundle
    from policies.runtimes.with_onnx import Graph

    head, path = seeing(kind), tmp_path / "policy.bundle"
    weights = {k: v.numpy().copy() for k, v in head.state_dict().items()}
    spec = Spec(
        {"state": (3,), "picture": (12, 10, 3)}, 2, n_obs_steps=2, chunk_size=7, n_action_steps=3
    )
    same = {"state": Normalizer.fit(SEEN[:, :3])}
    made = Bundle(spec, type(head).__name__, head.arguments, weights, same)
    bundle.write(path, made)
    whole, apart = export_bundle(bundle.read(path))
    assert apart < 1e-4
    bundle.write(path, whole)
    looks = Graph(whole.graphs["encoder" if kind == "sampler" else "policy"])
    assert looks.inputs["observations/picture"][1:] == [2, 12, 10, 3]
    draw = np.random.default_rng(0)
    taken = []
    pictures = draw.integers(0, 256, (5, 3, 12, 10, 3), np.uint8)
    for runtime in ("onnx", "torch"):
        player = Player(policies.load(path, runtime=runtime))
        player.reset([4, 5, 6])
        given = zip(SEEN[:15, :3].reshape(5, 3, 3), pictures, strict=True)
        taken.append(np.stack([player.step({"state": s, "picture": p}) for s, p in given]))
    np.testing.assert_allclose(taken[0], taken[1], atol=1e-4)


# the player


def test_a_player_takes_the_executed_actions_of_a_chunk_and_then_asks_again(tmp_path: Path) -> None:
    """By hand: the history is the last two observations, the noise that of seed and decision."""
    from policies.noise import normal

    policy = policies.load(write(tmp_path / "p", sampler("ddim", eta=1.0), **PLANNED))
    player = Player(policy)
    player.reset(seed=9)
    taken = np.stack([player.step(seen) for seen in SEEN[:6]])
    for decision, at in enumerate((0, 3)):
        seen = SEEN[[max(at - 1, 0), at]][None]
        noise = normal(np.array([9]), np.array([decision]), policy.noise_shape)
        chunk = policy.plan(seen, noise)[0]
        np.testing.assert_array_equal(taken[at : at + 3], chunk[:3])
    player.reset(seed=9)
    np.testing.assert_array_equal(player.step(SEEN[0]), taken[0])
    with pytest.raises(ValueError, match="2 observations, but reset was for one episode"):
        player.step(SEEN[:2])


def test_a_player_tells_a_policy_with_memory_its_rewards(tmp_path: Path) -> None:
    head = DecisionTransformer(5, 2, target_return=9.0, context_length=3, dim_model=8, num_layers=1)
    policy = policies.load(write(tmp_path / "p", head))
    player, state = Player(policy), None
    for seen, reward in zip(SEEN[:4], (None, 1.0, 2.0, 0.0), strict=True):
        chunk, state = policy.act(seen, state, reward)
        np.testing.assert_array_equal(player.step(seen, reward), chunk[0])


def test_known_runtimes_are_modules() -> None:
    for name in network.RUNTIMES:
        assert (ROOT / "policies" / "runtimes" / f"with_{name}.py").is_file()
