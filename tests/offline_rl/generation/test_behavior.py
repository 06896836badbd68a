"""Data recorded again with published behavior networks."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import envs
import offline_rl
from offline_rl.data import load
from offline_rl.generation.behavior import read_network
from offline_rl.generation.recipes import generate, load_recipe
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum, read_json

FILE = "RandomFrictionHopper-train-regenerated.npz"


def save_network(path: Path, seed: int) -> nn.Sequential:
    """Write a policy as torch writes it, with the scale's layer after the mean's."""
    torch.manual_seed(seed)
    layers = [nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)]
    mean = nn.Sequential(*layers)
    with torch.no_grad():
        mean[-1].weight *= 6  # some actions are clipped
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(nn.ModuleList([mean, nn.Linear(16, 3)]), path)
    return mean


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[nn.Sequential]]:
    """Return a recipe with two small networks of its own, and the networks."""
    monkeypatch.setenv("OFFLINE_RL_DATA", str(tmp_path))
    folder = tmp_path / "neorl2" / "RandomFrictionHopper" / "networks"
    networks = [save_network(folder / f"{k}.pth", k) for k in range(2)]
    plan = {
        "task": "neorl2/RandomFrictionHopper",
        "file": FILE,
        "source": "https://example.org/high",
        "networks": {f"{k}.pth": checksum(folder / f"{k}.pth") for k in range(2)},
        "rows": 40,
    }
    path = tmp_path / "hopper.yaml"
    path.write_text(yaml.safe_dump(plan))
    return path, networks


def test_a_networks_file_is_read_without_its_pickle(tmp_path: Path):
    module = save_network(tmp_path / "a.pth", 0)
    x = torch.randn(5, 13, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        np.testing.assert_allclose(
            read_network(tmp_path / "a.pth")(x.numpy()), module(x), atol=1e-5
        )


def test_the_networks_take_turns_and_episode_n_has_the_seed_n(recipe):
    path, networks = recipe
    folder = Path(generate(recipe=str(path), show=False))
    assert folder == path.parent / "neorl2" / "RandomFrictionHopper"
    data = load(folder / FILE)
    starts = np.concatenate([[0], data.episode_ends[:-1] + 1])
    env = envs.make_vector("neorl2/RandomFrictionHopper", len(starts))
    np.testing.assert_array_equal(data.observations[starts], env.reset(range(len(starts))))
    episode = np.searchsorted(data.episode_ends, np.arange(data.num_rows))
    observations = torch.from_numpy(data.observations[: data.num_rows])
    for k, network in enumerate(networks):
        rows = episode % 2 == k
        with torch.no_grad():
            expected = network(observations[rows]).clamp(-1, 1)
        np.testing.assert_allclose(data.actions[rows], expected, atol=1e-5)
    # whole episodes: the last one begins before row 40
    assert data.terminated[-1]
    assert starts[-1] < 40 <= data.num_rows
    card = read_json(folder / FILE.replace(".npz", ".json"))
    assert card["rows"] == data.num_rows
    assert card["sha256"] == checksum(folder / FILE)
    assert set(np.load(folder / FILE)) == {
        "obs",
        "action",
        "next_obs",
        "reward",
        "done",
        "truncated",
    }


def test_a_missing_or_other_network_is_refused_with_its_address(recipe):
    path, _ = recipe
    network = path.parent / "neorl2" / "RandomFrictionHopper" / "networks" / "1.pth"
    network.write_bytes(b"other")
    with pytest.raises(UserError, match=r"not the published file.*https://example.org/high/1.pth"):
        generate(recipe=str(path))
    network.unlink()
    with pytest.raises(UserError, match=r"1.pth is missing.*Download it with: curl"):
        generate(recipe=str(path))


def test_an_option_of_other_recipes_is_refused(recipe):
    with pytest.raises(UserError, match="qualities= does not apply"):
        generate(recipe=str(recipe[0]), qualities=["medium"])


def test_the_published_recipe_writes_the_file_that_the_suites_read():
    plan = load_recipe("random-friction-hopper")
    assert plan.rows == 100_000
    assert len(plan.networks) == 3
    suite = Path(offline_rl.__file__).parents[1] / "configs" / "suite" / "neorl2.yaml"
    assert plan.file == FILE
    assert FILE in suite.read_text()
