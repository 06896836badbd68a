"""`export` adds ONNX graphs to bundles, and `play` records videos."""

from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import envs
import policies
from offline_rl.cli import verbs
from offline_rl.evaluation import play as playing
from offline_rl.runs import export as exporting
from offline_rl.utils.errors import UserError
from offline_rl.utils.seeds import EVALUATION_SEED
from policies import Bundle, Normalizer, Spec, bundle
from policies.golden import seal
from policies.heads.decision_transformer import DecisionTransformer
from policies.heads.deterministic import DeterministicActor
from policies.runtimes.guardian import fit


class Sweep(gymnasium.Env):
    """Environment of five steps with a bar that the action moves; images of 15 x 21 pixels."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    action_space = Box(-3, 3, (1,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.place = render_mode, 0.0

    def reset(self, *, seed=None, options=None):
        self.place = float(seed or 0) % 2
        return np.float32([self.place]), {}

    def step(self, action):
        self.place += float(action[0])
        return np.float32([self.place]), self.place, False, False, {}

    def render(self):
        canvas = np.zeros((15, 21, 3), np.uint8)
        canvas[:, int(np.clip(self.place, 0, 20))] = 255
        return canvas


@pytest.fixture
def sweep() -> str:
    if "sweep" not in envs.names():
        envs.register("sweep", Sweep, max_episode_steps=5)
    return "sweep"


def constant(path: Path, task: str, action: float = 0.5) -> Path:
    """Write a bundle of a policy with one observation that always takes `action`."""
    weights = {
        "trunk.weights.0": np.zeros((1, 1), np.float32),
        "trunk.biases.0": np.arctanh(np.float32([action])),
    }
    arguments = {"observations": 1, "actions": 1, "hidden": []}
    path.parent.mkdir(parents=True, exist_ok=True)
    spec, normalizer = Spec((1,), 1), Normalizer.identity((1,))
    policy = Bundle(spec, "DeterministicActor", arguments, weights, normalizer, {"task": task})
    bundle.write(path, seal(policy))
    return path


@pytest.mark.parametrize("kind", ["gif", "mp4"])
def test_a_video_has_an_image_of_every_step(tmp_path, sweep: str, kind: str, capsys) -> None:
    """The bar starts at 0 or 1 and moves by half of 3 per step: 6 images per episode."""
    pytest.importorskip("PIL" if kind == "gif" else "av")
    run = constant(tmp_path / "run" / "seed_0" / "policy.bundle", sweep).parents[1]
    verbs.play([f"run={run}", "episodes=2", f"out={tmp_path / f'x.{kind}'}"])
    printed = capsys.readouterr().out.splitlines()
    starts = [(EVALUATION_SEED + k) % 2 for k in range(2)]
    returns = [sum(start + 1.5 * (k + 1) for k in range(5)) for start in starts]
    expected = [f"{r:.1f}, 5 steps" for r in returns]
    assert [line.split("return ")[1] for line in printed[:2]] == expected
    assert printed[2] == str(tmp_path / f"x.{kind}")
    images = read_images(Path(printed[2]))
    assert len(images) == 12
    places = [start + 1.5 * k for start in starts for k in range(6)]
    assert [int(x[7].astype(int).sum(-1).argmax()) for x in images] == [int(p) for p in places]


def test_actions_of_a_policy_with_a_narrower_range_keep_their_units(tmp_path, sweep: str) -> None:
    """Half of [-2, 2] moves the bar by 1 per step, although the environment has [-3, 3]."""
    pytest.importorskip("PIL")
    path = constant(tmp_path / "policy.bundle", sweep)
    policy = bundle.read(path)
    narrow = replace(policy.spec, action_low=(-2.0,), action_high=(2.0,))
    bundle.write(path, replace(policy, spec=narrow))
    lines = playing.play(run=str(path), out=str(tmp_path / "x.gif"))
    start = EVALUATION_SEED % 2
    assert f"return {5 * start + 15:.1f}, 5 steps" in lines[0]  # 1 + 2 + 3 + 4 + 5


def read_images(path: Path) -> list[np.ndarray]:
    """Return the images of a video."""
    if path.suffix == ".gif":
        from PIL import Image, ImageSequence

        with Image.open(path) as file:
            return [np.asarray(f.convert("RGB")) for f in ImageSequence.Iterator(file)]
    import av

    with av.open(str(path)) as file:
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("x.avi", r"x\.avi is not a supported format. Use \.mp4 or \.gif"),
        ("x", "is not a supported format"),
        ("x.mp4", r"needs the package av"),
    ],
)
def test_files_that_cannot_be_written_are_refused_first(
    tmp_path, sweep, out, words, monkeypatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)  # not installed
    path = constant(tmp_path / "policy.bundle", sweep)
    with pytest.raises(UserError, match=words):
        playing.play(run=str(path), out=str(tmp_path / out))
    assert [f.name for f in tmp_path.iterdir()] == ["policy.bundle"]


def test_an_environments_error_names_the_line_that_failed(tmp_path, sweep, monkeypatch) -> None:
    pytest.importorskip("PIL")

    def broken(self, action):
        raise RuntimeError("no\nair")

    monkeypatch.setattr(Sweep, "step", broken)
    path = constant(tmp_path / "policy.bundle", sweep)
    words = rf"failed in step: {Path(__file__)}, line \d+: RuntimeError: no air$"
    with pytest.raises(UserError, match=words):
        playing.play(run=str(path), out=str(tmp_path / "x.gif"))
    assert [f.name for f in tmp_path.iterdir()] == ["policy.bundle"]


def test_a_failed_rendering_leaves_no_file(tmp_path, sweep, monkeypatch) -> None:
    def no_display(self):
        raise RuntimeError("no\ndisplay")

    monkeypatch.setattr(Sweep, "render", no_display)
    path = constant(tmp_path / "policy.bundle", sweep)
    with pytest.raises(UserError, match="cannot be rendered: no display") as error:
        playing.play(run=str(path), out=str(tmp_path / "x.gif"))
    assert "\n" not in str(error.value)
    assert [f.name for f in tmp_path.iterdir()] == ["policy.bundle"]


def test_every_bundle_of_a_run_is_exported(tmp_path, capsys) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    head = DeterministicActor(3, 2, (8,))
    weights = {k: v.numpy() for k, v in head.state_dict().items()}
    policy = Bundle(Spec((3,), 2), "DeterministicActor", head.arguments, weights, identity(3))
    path = tmp_path / "run" / "seed_0" / "policy.bundle"
    path.parent.mkdir(parents=True)
    bundle.write(path, seal(policy))
    verbs.export([f"run={tmp_path / 'run'}"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == str(tmp_path / "run")
    assert "ONNX of" in printed[0]
    observations = np.random.default_rng(0).normal(size=(7, 3))
    onnx, torch_ = (policies.load(path, runtime=each) for each in ("onnx", "torch"))
    actions, expected = onnx.act(observations)[0], torch_.act(observations)[0]
    np.testing.assert_allclose(actions, expected, atol=1e-5)


def test_a_guardian_of_the_data_is_added_to_a_bundle(tmp_path) -> None:
    """The guardian is that of the data set's rows. No exporter is needed without graphs."""
    rng = np.random.default_rng(0)
    s, a = np.float32(rng.normal(size=(200, 1))), np.float32(rng.uniform(-1, 1, (200, 1)))
    ends = np.arange(200) % 20 == 19
    np.savez(tmp_path / "data.npz", observations=s, actions=a, rewards=np.ones(200), terminals=ends)
    path = constant(tmp_path / "policy.bundle", "none")
    source = str(tmp_path / "data.npz")
    (line,) = exporting.export(
        run=str(path), format="none", guardian="kde", dataset=source, guardian_rows=50
    )
    assert "guardian kde of 50 rows" in line
    expected = fit(s, a, "kde", rows=50)
    inside, scores = policies.load(path).in_distribution(s, a)
    np.testing.assert_array_equal(scores, expected.score(s, a))
    assert 0.85 < inside.mean() < 1
    for keys, words in (
        ({"format": "none"}, "format=none needs a guardian"),
        ({"dataset": source}, r"needs a guardian\. Set guardian=kde"),
        ({"format": "none", "guardian": "kde"}, "does not name its data"),
    ):
        with pytest.raises(UserError, match=words):
            exporting.export(run=str(path), **keys)


def identity(size: int) -> Normalizer:
    return Normalizer.identity((size,))


def test_a_policy_with_a_memory_is_exported(tmp_path) -> None:
    pytest.importorskip("onnxscript")
    head = DecisionTransformer(3, 2, target_return=1.0, context_length=2, dim_model=8, num_layers=1)
    weights = {k: v.numpy() for k, v in head.state_dict().items()}
    path = tmp_path / "policy.bundle"
    policy = Bundle(Spec((3,), 2), "DecisionTransformer", head.arguments, weights, identity(3))
    bundle.write(path, seal(policy))
    (line,) = exporting.export(run=str(path))
    assert "within" in line
    assert policies.load(path, runtime="onnx").has_memory


def test_without_the_exporter_the_extra_to_install_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"onnxscript\. .*pip install .*\[export\]"):
        exporting.export(run=str(tmp_path))
    with pytest.raises(UserError, match="format"):
        exporting.export(run=str(tmp_path), format="tflite")
