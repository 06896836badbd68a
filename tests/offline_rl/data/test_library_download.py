"""Tests of data sets that the clients of LeRobot and Minari download."""

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from foreign_layouts import episodes, minari
from lerobot_videos import CAMERAS, ROWS, with_videos

from offline_rl.cli.main import main
from offline_rl.data.download import download
from offline_rl.data.load import load
from offline_rl.utils.errors import UserError

COMMIT = "c" * 40


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """Serve the data sets lab/pick and lab/notes in the layout of the model hub; yield lab/pick."""
    pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    folder = with_videos(tmp_path / "published")
    files = {
        f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()
    }
    sets = {"lab/pick": files, "lab/notes": {"README.md": b"nothing else"}}

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = unquote(urlsplit(self.path).path).strip("/")
            for name, stored in sets.items():
                facts = {"id": name, "sha": COMMIT}
                tree = [
                    {"type": "file", "path": f, "size": len(c), "oid": hashlib.sha1(c).hexdigest()}
                    for f, c in stored.items()
                ]
                if path.startswith(f"api/datasets/{name}/tree/"):
                    return self.send(json.dumps(tree).encode())
                if path.startswith(f"api/datasets/{name}"):
                    siblings = [{"rfilename": f} for f in stored]
                    return self.send(json.dumps(facts | {"siblings": siblings}).encode())
                for file, content in stored.items():
                    if path.startswith(f"datasets/{name}/resolve/") and path.endswith(f"/{file}"):
                        return self.send(content)
            return self.send(None)

        def send(self, content: bytes | None) -> None:
            self.send_response(404 if content is None else 200)
            if content is None:
                self.send_header("X-Error-Code", "RepoNotFound")
            else:
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if content and self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
        yield files
        server.shutdown()
        thread.join()


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
