"""Tests of data sets that the clients of LeRobot and Minari download."""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from foreign_layouts import episodes, minari
from lerobot_videos import CAMERAS, ROWS, with_videos
from model_hub import COMMIT, serve

from offline_rl.cli.main import main
from offline_rl.data.download import download
from offline_rl.data.load import load
from offline_rl.utils.errors import UserError


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """Serve the data sets lab/pick and lab/notes in the layout of the model hub; yield lab/pick."""
    pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    folder = with_videos(tmp_path / "published")
    files = {
        f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()
    }
    sets = {"lab/pick": files, "lab/notes": {"README.md": b"nothing else"}}

    def answer(requested: str) -> bytes | None:
        path = unquote(urlsplit(requested).path).strip("/")
        for name, stored in sets.items():
            facts = {"id": name, "sha": COMMIT}
            tree = [
                {"type": "file", "path": f, "size": len(c), "oid": hashlib.sha1(c).hexdigest()}
                for f, c in stored.items()
            ]
            if path.startswith(f"api/datasets/{name}/tree/"):
                return json.dumps(tree).encode()
            if path.startswith(f"api/datasets/{name}"):
                siblings = [{"rfilename": f} for f in stored]
                return json.dumps(facts | {"siblings": siblings}).encode()
            for file, content in stored.items():
                if path.startswith(f"datasets/{name}/resolve/") and path.endswith(f"/{file}"):
                    return content
        return None

    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    with serve(answer, monkeypatch):
        yield files


def test_a_lerobot_repository_is_downloaded_and_read(
    hub: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["data", "download", "lerobot:lab/pick"]) == 0
    folder = tmp_path / "home" / "lab" / "pick"
    assert capsys.readouterr().out.splitlines()[-1] == str(folder)
    for name, content in hub.items():
        assert (folder / name).read_bytes() == content
    data = load("lerobot:lab/pick", observation_keys=CAMERAS)
    assert data.observations["top"].shape == (ROWS, 16, 20, 3)
    with pytest.raises(UserError, match=r"lerobot:lab/other could not be downloaded \(.*Check"):
        download(["lerobot:lab/other"])
    with pytest.raises(UserError, match=r"has no meta/info\.json, so it is not a LeRobotDataset"):
        download(["lerobot:lab/notes"])


def test_a_minari_data_set_is_downloaded_by_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module with minari's function stands for the package, which stores the same layout."""

    def download_dataset(dataset_id: str, force_download: bool = False) -> None:
        if dataset_id != "D4RL/door/human-v2":
            raise ValueError(f"Couldn't find any version for dataset {dataset_id}")
        minari(tmp_path / dataset_id, episodes([3, 2]))

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    package = ModuleType("minari")
    package.download_dataset = download_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "minari", package)
    assert download(["minari:D4RL/door/human-v2"]) == [tmp_path / "D4RL" / "door" / "human-v2"]
    np.testing.assert_array_equal(load("minari:D4RL/door/human-v2").episode_lengths(), [3, 2])
    with pytest.raises(UserError, match=r"minari:x-v0 could not be downloaded .Couldn't find"):
        download(["minari:x-v0"])
    with pytest.raises(
        UserError, match=r"data_dir=a has no effect on minari:x-v0.*MINARI_DATASETS"
    ):
        download(["minari:x-v0"], "a")


@pytest.mark.parametrize(
    ("source", "package"), [("lerobot:lab/pick", "huggingface_hub"), ("minari:x-v0", "minari")]
)
def test_a_missing_client_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, source: str, package: str
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"{source} needs the package {package}. Run: pip install"):
        download([source])
