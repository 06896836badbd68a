"""Tests of downloading, from a web server in this process with prescribed responses."""

import hashlib
import itertools
import os
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from d4rl_files import save, steps, two_episodes, with_next

from envs.cards import Card, File, cards
from offline_rl.cli.main import main
from offline_rl.data import download as module
from offline_rl.data.download import Patience, download
from offline_rl.data.load import find_file, load
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import open_exclusively

Answer = Callable[[BaseHTTPRequestHandler], None]
QUICK = Patience(silence_s=20, tries=3, pause_s=0.01, longest_pause_s=0.02)


class Host:
    """A web server; `answers` holds the responses of each path in order, the last one repeated."""

    def __init__(self) -> None:
        self.answers: dict[str, Iterator[Answer]] = {}
        self.requests: list[tuple[str, str | None, str | None]] = []  # path, Range, If-Range
        self.over = threading.Event()  # the test is
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers.get("Range"), self.headers.get("If-Range")
                host.requests.append((self.path, *asked))
                next(host.answers[self.path])(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def says(self, path: str, *answers: Answer) -> str:
        """Return the URL of these responses."""
        self.answers[path] = itertools.chain(answers, itertools.repeat(answers[-1]))
        return path if path.startswith("http") else self.url + path

    def ranges(self) -> list[str | None]:
        return [asked for _, asked, _ in self.requests]


def send(
    body: bytes,
    *,
    tag: str | None = '"1"',
    date: str | None = None,
    ranges: bool = True,
    heeds_if_range: bool = True,
    stop: int | None = None,
    length: int | None = None,
    then: Callable[[], object] = lambda: None,
) -> Answer:
    """Send a response (RFC 9110), optionally without `ranges` or with a `stop` after some bytes."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        start, asked = 0, handler.headers.get("Range")
        same = handler.headers.get("If-Range") in (tag, date) or not heeds_if_range
        if asked and ranges and same:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        handler.send_header("Content-Length", str(len(body) - start if length is None else length))
        for name, value in (("ETag", tag), ("Last-Modified", date)):
            if value:
                handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body[start:stop])
        handler.wfile.flush()
        then()

    return answer


def status(code: int, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()

    return answer


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    host = Host()
    yield host
    host.over.set()
    host.server.shutdown()
    host.server.server_close()


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a data set of about 50 kB."""
    path = tmp_path_factory.mktemp("made") / "a.npz"
    return save(path, with_next(two_episodes())).read_bytes()


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return another data set of a different length."""
    path = tmp_path_factory.mktemp("made") / "a.npz"
    return save(path, with_next(steps(1500, seed=1))).read_bytes()


def a_card(*urls: str, **facts: object) -> Card:
    file = File("a.npz", "suite/a.npz", urls, **facts)
    return Card("suite/name", "suite", "d4rl", {"train": file}, "here", "none")


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def get(card: Card, folder: Path, patience: Patience = QUICK) -> bytes:
    """Download and return the content; check that no part remains and `find_file` finds it."""
    (path,) = download([card], folder, patience=patience)
    assert [p.name for p in (folder / "suite").iterdir()] == ["a.npz"]
    assert path == find_file(card, folder)
    return path.read_bytes()


def refused(card: Card, folder: Path, patience: Patience = QUICK) -> str:
    with pytest.raises(UserError) as caught:
        download([card], folder, patience=patience)
    assert not (folder / "suite" / "a.npz").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def read_part(folder: Path) -> bytes:
    return (folder / "suite" / "a.npz.part").read_bytes()


def until(true: Callable[[], object]) -> None:
    """Wait until another thread fulfills a condition."""
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("kind", ["sha256", "md5", "size_bytes", None])
def test_a_file_is_downloaded_completely_and_found(host: Host, body: bytes, tmp_path: Path, kind):
    facts = {"md5": hashlib.md5(body).hexdigest(), "sha256": sha256(body), "size_bytes": len(body)}
    card = a_card(host.says("/a", send(body)), **{k: v for k, v in facts.items() if k == kind})
    assert get(card, tmp_path) == body
    assert host.requests == [("/a", None, None)]


def test_a_file_on_this_machine_needs_no_request(
    host: Host, body: bytes, tmp_path: Path, monkeypatch
):
    card = a_card(host.says("/a", send(body)), sha256=sha256(body))
    get(card, tmp_path)
    host.requests.clear()
    assert get(card, tmp_path) == body
    shipped = tmp_path / "share" / "embedded"
    shipped.mkdir(parents=True)
    (tmp_path / "suite" / "a.npz").rename(shipped / "a.npz")
    module = sys.modules["offline_rl.data.load"]  # the package has a function of this name
    monkeypatch.setattr(module, "share", lambda name: tmp_path / "share")
    assert download([card], tmp_path) == [shipped / "a.npz"]
    assert host.requests == []


def test_a_damaged_or_different_file_at_the_target_is_named_and_kept(
    host: Host, body: bytes, tmp_path: Path
):
    url = host.says("/a", send(body))
    path = tmp_path / "suite" / "a.npz"
    path.parent.mkdir()
    path.write_bytes(body[:-100])
    with pytest.raises(UserError, match=r"a\.npz.*incomplete or damaged.*Delete the file"):
        download([a_card(url)], tmp_path)
    with pytest.raises(UserError, match=r"not the published file.*Delete it"):
        download([a_card(url, sha256=sha256(body))], tmp_path)
    assert path.read_bytes() == body[:-100]
    assert host.requests == []


def test_a_slow_server_is_waited_for(host: Host, body: bytes, tmp_path: Path):
    def slowly(handler: BaseHTTPRequestHandler) -> None:
        status(200, Content_Length=str(len(body)))(handler)
        for start in range(0, len(body), 4000):
            time.sleep(0.01)
            handler.wfile.write(body[start : start + 4000])

    assert get(a_card(host.says("/a", slowly)), tmp_path) == body
    assert len(host.requests) == 1


def test_after_silence_the_next_url_is_tried(
    host: Host, body: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    silent = host.says("/silent", send(body, stop=20_000, then=host.over.wait))
    mute = host.says("/mute", lambda handler: host.over.wait())
    card = a_card(silent, mute, host.says("/a", send(body)))
    assert get(card, tmp_path, Patience(silence_s=0.1, tries=1)) == body
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "no data for" in line] == [
        f"{silent}: no data for 0.1 s, after 20,000 bytes",
        f"{mute}: no data for 0.1 s",
    ]


def test_an_interrupted_transfer_is_resumed(host: Host, body: bytes, tmp_path: Path):
    card = a_card(host.says("/a", send(body, stop=20_000), send(body)), sha256=sha256(body))
    assert get(card, tmp_path) == body
    assert host.requests == [("/a", None, None), ("/a", "bytes=20000-", '"1"')]


def test_a_later_call_resumes_at_the_same_url(host: Host, body: bytes, tmp_path: Path):
    gone = host.says("/gone", status(404))
    card = a_card(gone, host.says("/a", send(body, stop=20_000)))
    assert "ended after 20,000 of" in refused(card, tmp_path, Patience(tries=1))
    assert read_part(tmp_path) == body[:20_000]
    host.says("/a", send(body))
    host.requests.clear()
    assert get(card, tmp_path) == body
    assert host.requests == [("/a", "bytes=20000-", '"1"')]


@pytest.mark.parametrize("tag", [None, 'W/"1"'])
def test_without_a_strong_tag_the_date_names_the_version(host: Host, body: bytes, tmp_path, tag):
    date = "Mon, 01 Nov 2021 10:00:00 GMT"
    answers = [send(body, tag=tag, date=date, stop=9000), send(body, tag=tag, date=date)]
    assert get(a_card(host.says("/a", *answers)), tmp_path) == body
    assert host.requests[1] == ("/a", "bytes=9000-", date)


def test_a_version_without_etag_and_date_is_not_resumed(host: Host, body: bytes, tmp_path: Path):
    url = host.says("/a", send(body, tag=None, stop=9000), send(body, tag=None))
    assert get(a_card(url), tmp_path) == body
    assert host.ranges() == [None, None]


def test_a_server_without_range_support_sends_everything_again(
    host: Host, body: bytes, tmp_path: Path
):
    url = host.says("/a", send(body, stop=20_000), send(body, ranges=False))
    assert get(a_card(url), tmp_path) == body
    assert host.ranges() == [None, "bytes=20000-"]


@pytest.mark.parametrize("heeds_if_range", [True, False])
def test_parts_of_different_versions_are_never_combined(
    host: Host, body: bytes, newer: bytes, tmp_path: Path, heeds_if_range: bool
):
    now = send(newer, tag='"2"', heeds_if_range=heeds_if_range)
    assert get(a_card(host.says("/a", send(body, stop=20_000), now)), tmp_path) == newer
    again = [] if heeds_if_range else [None]
    assert host.ranges() == [None, "bytes=20000-", *again]


def test_a_file_that_has_become_shorter_is_downloaded_from_the_start(
    host: Host, body: bytes, newer: bytes, tmp_path: Path
):
    url = host.says("/a", send(newer, stop=len(body) + 1), status(416), send(body))
    assert get(a_card(url), tmp_path) == body
    assert host.ranges() == [None, f"bytes={len(body) + 1}-", None]


def test_a_part_damaged_on_disk_is_detected_and_downloaded_again(
    host: Host, body: bytes, tmp_path: Path
):
    card = a_card(host.says("/a", send(body, stop=20_000)), sha256=sha256(body))
    refused(card, tmp_path, Patience(tries=1))
    (tmp_path / "suite" / "a.npz.part").write_bytes(bytes(20_000))
    host.says("/a", send(body))
    host.requests.clear()
    assert get(card, tmp_path) == body
    assert host.ranges() == ["bytes=20000-", None]


@pytest.mark.parametrize("note", ["", '{"url": "htt', '{"other": 1}'])
def test_a_part_of_unknown_origin_is_downloaded_again(
    host: Host, body: bytes, tmp_path: Path, note: str
):
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "a.npz.part").write_bytes(bytes(20_000))
    (tmp_path / "suite" / "a.npz.part.json").write_text(note)
    assert get(a_card(host.says("/a", send(body))), tmp_path) == body
    assert host.ranges() == [None]


def test_a_complete_part_needs_no_request(host: Host, body: bytes, tmp_path: Path):
    card = a_card(host.says("/a", send(body, stop=20_000)), sha256=sha256(body))
    refused(card, tmp_path, Patience(tries=1))
    (tmp_path / "suite" / "a.npz.part").write_bytes(body)
    host.requests.clear()
    assert get(card, tmp_path) == body
    assert host.requests == []


def test_attempts_that_receive_data_do_not_count_as_failed(
    host: Host, body: bytes, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "BLOCK", 1000)
    stops = [send(body, stop=stop) for stop in range(5000, len(body), 5000)]
    card = a_card(host.says("/a", *stops, send(body)))
    assert get(card, tmp_path, Patience(tries=2, pause_s=0)) == body
    assert len(host.requests) == len(stops) + 1


def test_attempts_that_lose_their_data_count_as_failed(
    host: Host, body: bytes, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "BLOCK", 1000)
    stops = [send(body, ranges=False, stop=stop) for stop in (30_000, 5000, 30_000, 5000) * 9]
    refused(a_card(host.says("/a", *stops)), tmp_path)
    assert len(host.requests) == QUICK.tries


def test_a_temporary_server_error_is_retried(
    host: Host, body: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    url = host.says("/a", status(503, Retry_After="7"), status(500), send(body))
    assert get(a_card(url), tmp_path) == body
    assert capsys.readouterr().err.splitlines() == [
        f"a.npz: from {url}",
        f"{url}: 503 Service Unavailable; again in 0.02 s",  # as long as its patience lasts
        f"{url}: 500 Internal Server Error; again in 0.02 s",
    ]


@pytest.mark.parametrize("code", [403, 404, 410])
def test_a_missing_file_is_not_requested_twice(host: Host, body: bytes, tmp_path: Path, code):
    card = a_card(host.says("/gone", status(code)), host.says("/a", send(body)))
    assert get(card, tmp_path) == body
    assert [path for path, *_ in host.requests] == ["/gone", "/a"]


@pytest.mark.parametrize("code", [301, 302, 307])
def test_a_redirect_is_followed(host: Host, body: bytes, tmp_path: Path, code: int):
    there = host.says("/there", send(body, stop=20_000), send(body))
    assert get(a_card(host.says("/a", status(code, Location=there))), tmp_path) == body
    assert host.requests[2:] == [(path, "bytes=20000-", '"1"') for path in ("/a", "/there")]


@pytest.mark.parametrize("scheme", ["file", "ftp", "data"])
def test_a_redirect_to_another_protocol_is_refused(
    host: Host, body: bytes, tmp_path: Path, scheme: str
):
    secret = save(tmp_path / "secret.npz", two_episodes())
    url = host.says("/a", status(302, Location=f"{scheme}://{secret}"))
    assert f"{scheme}://" in refused(a_card(url), tmp_path)
    assert f"unknown url type: {scheme}" in refused(a_card(f"{scheme}://{secret}"), tmp_path)
    assert len(host.requests) == 1


def test_a_redirect_loop_ends(host: Host, tmp_path: Path):
    url = host.says("/a", status(302, Location=f"{host.url}/a"))
    assert "302" in refused(a_card(url), tmp_path)


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_with_another_checksum_is_refused(
    host: Host, body: bytes, newer: bytes, tmp_path: Path, kind
):
    facts = {kind: getattr(hashlib, kind)(body).hexdigest()}
    bad = host.says("/bad", send(newer))
    assert get(a_card(bad, host.says("/a", send(body)), **facts), tmp_path) == body
    (tmp_path / "suite" / "a.npz").unlink()
    sentence = refused(a_card(bad, **facts), tmp_path)
    assert getattr(hashlib, kind)(newer).hexdigest() in sentence
    assert facts[kind] in sentence
    assert list((tmp_path / "suite").iterdir()) == []
    assert [path for path, *_ in host.requests] == ["/bad", "/a", "/bad"]


def test_a_file_of_another_length_is_refused_before_the_transfer(
    host: Host, body: bytes, tmp_path: Path
):
    url = host.says("/a", send(body))
    sentence = refused(a_card(url, size_bytes=len(body) + 1), tmp_path)
    assert f"{len(body):,} bytes, but the card states {len(body) + 1:,}" in sentence
    assert list((tmp_path / "suite").iterdir()) == []


def test_fewer_bytes_than_announced_are_an_error(host: Host, body: bytes, tmp_path: Path):
    url = host.says("/a", send(body, ranges=False, length=len(body) + 5))
    assert f"ended after {len(body):,} of {len(body) + 5:,}" in refused(a_card(url), tmp_path)


def test_without_a_length_the_content_is_checked(host: Host, body: bytes, tmp_path: Path):
    def unmeasured(stop: int | None) -> Answer:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            status(200)(handler)
            handler.wfile.write(body[:stop])

        return answer

    cut = host.says("/cut", unmeasured(20_000))
    assert get(a_card(cut, host.says("/a", unmeasured(None))), tmp_path) == body
    assert len(host.requests) == 2


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"<!DOCTYPE html><title>Log in first</title>", "unlike an HDF5 or NPZ file"),
        (b"", "empty"),
    ],
)
def test_a_web_page_is_not_accepted_as_a_data_set(
    host: Host, tmp_path: Path, content: bytes, complaint: str
):
    assert complaint in refused(a_card(host.says("/a", send(content))), tmp_path)


def test_a_data_set_lacking_an_array_is_refused(host: Host, tmp_path: Path):
    arrays = two_episodes()
    del arrays["rewards"]
    content = save(tmp_path / "b.npz", arrays).read_bytes()
    assert "rewards" in refused(a_card(host.says("/a", send(content))), tmp_path)


def test_a_compressed_response_is_refused(host: Host, body: bytes, tmp_path: Path):
    url = host.says("/a", status(200, Content_Encoding="gzip"))
    assert "gzip" in refused(a_card(url), tmp_path)


def test_if_all_urls_fail_the_error_names_each_and_the_target_path(
    host: Host, body: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    gone, down = host.says("/gone", status(410)), host.says("/down", status(502))
    nobody = "http://127.0.0.1:9/a"  # the port for data to be thrown away
    sentence = refused(a_card(gone, down, nobody), tmp_path)
    for part in (f"{gone}: 410 Gone", f"{down}: 502 Bad Gateway", f"{nobody}: Connection refused"):
        assert part in sentence
    assert str(tmp_path / "suite" / "a.npz") in sentence
    assert [path for path, *_ in host.requests] == ["/gone", *["/down"] * QUICK.tries]
    assert list((tmp_path / "suite").iterdir()) == []
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.endswith(("410 Gone", "502 Bad Gateway"))] == [
        f"{gone}: 410 Gone",
        f"{down}: 502 Bad Gateway",
    ]


def test_the_other_files_are_downloaded_if_one_fails(host: Host, body: bytes, tmp_path: Path):
    lost, there = a_card(host.says("/gone", status(404))), host.says("/a", send(body))
    other = Card("b", "s", "d4rl", {"val": File("b.npz", "s/b.npz", (there,))}, "here", "none")
    with pytest.raises(UserError, match=r"suite/name: a\.npz could not be downloaded"):
        download([lost, other], tmp_path)
    assert (tmp_path / "s" / "b.npz").read_bytes() == body


def test_unpublished_data_refers_to_generate(tmp_path: Path):
    assert "offline-rl generate" in refused(a_card(), tmp_path)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_folder_that_cannot_be_written_to_is_named(host: Host, tmp_path: Path, read_only: bool):
    if read_only and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o500) if read_only else folder.touch()
    with pytest.raises(UserError, match=rf"{folder}.* cannot be written: .*data_dir="):
        download([a_card(host.url)], folder)


def test_too_little_disk_space_is_reported_before_the_transfer(
    host: Host, body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = host.says("/other", send(body))
    card = a_card(host.says("/a", send(body)), other)
    few = shutil.disk_usage(tmp_path)._replace(free=1234)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: few)
        sentence = refused(card, tmp_path)
    assert f"{len(body):,} more bytes are needed and 1,234 are free" in sentence
    assert len(host.requests) == 1  # no other address makes room
    assert list((tmp_path / "suite").iterdir()) == []


def test_a_full_disk_keeps_the_received_part(host: Host, body: bytes, tmp_path: Path):
    card = a_card(host.says("/a", send(body)), sha256=sha256(body))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # the kernel then refuses to write
    try:
        assert "cannot be written: File too large" in refused(card, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_part(tmp_path) == body[:20_000]
    assert get(card, tmp_path) == body
    assert host.ranges() == [None, "bytes=20000-"]


@pytest.fixture
def listed(host: Host, body: bytes, monkeypatch: pytest.MonkeyPatch) -> Card:
    """Register a card for the command line."""
    card = a_card(f"{host.url}/a", sha256=sha256(body))
    monkeypatch.setattr(sys.modules["envs.cards"], "cards", lambda: {"suite/name": card})
    return card


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_leaves_a_part_that_the_next_call_resumes(
    host: Host, body: bytes, listed: Card, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def interrupt() -> None:
        until(lambda: len(read_part(tmp_path)) == 20_000)
        os.kill(os.getpid(), signal.SIGINT)
        host.over.wait()

    host.says("/a", send(body, stop=20_000, then=interrupt), send(body))
    command = ["data", "download", "suite/name", f"data_dir={tmp_path}"]
    assert main(command) == 130
    assert "Traceback" not in capsys.readouterr().err
    assert read_part(tmp_path) == body[:20_000]
    assert main(command) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'suite' / 'a.npz'}\n"
    assert get(listed, tmp_path) == body
    assert host.ranges() == [None, "bytes=20000-"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["suite/nam"], ["suite/nam", "suite/name"]),
        ([], ["data download", "--help"]),
        (["suite/name", "dir=x"], ["data download", "--help"]),
    ],
)
def test_a_mistyped_command_is_one_sentence(
    listed: Card, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
):
    assert main(["data", "download", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert all(word in err for word in words)


def test_two_processes_download_one_file_once(host: Host, body: bytes, tmp_path: Path):
    paths: list[Path] = []
    both = threading.Barrier(2)

    def one() -> None:
        both.wait()
        paths.extend(download([card], tmp_path, patience=QUICK))

    card = a_card(host.says("/a", send(body, stop=20_000), send(body)), sha256=sha256(body))
    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [tmp_path / "suite" / "a.npz"] * 2
    assert get(card, tmp_path) == body
    assert len(host.requests) == 2


def test_a_waiting_process_uses_the_file_of_the_other(
    host: Host, body: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    card, output = a_card(host.says("/a", send(body)), sha256=sha256(body)), []
    (tmp_path / "suite").mkdir()
    note = tmp_path / "suite" / "a.npz.part.json"
    thread = threading.Thread(target=download, args=([card], tmp_path))
    with open_exclusively(note, lambda: None):
        thread.start()
        until(
            lambda: output.append(capsys.readouterr().err) or "another process" in "".join(output)
        )
        (tmp_path / "suite" / "a.npz").write_bytes(body)
        note.unlink()
    thread.join()
    assert get(card, tmp_path) == body
    assert host.requests == []


def test_the_proxy_of_the_environment_is_used(
    host: Host, body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("http_proxy", host.url)
    assert get(a_card(host.says("http://data.example/a", send(body))), tmp_path) == body


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_an_untrusted_certificate_is_refused(
    host: Host, body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    about = ["-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make.split(), *about, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    host.server.socket = context.wrap_socket(host.server.socket, server_side=True)
    host.says("/a", send(body))
    card = a_card(host.url.replace("http:", "https:") + "/a")
    monkeypatch.setattr(host.server, "handle_error", lambda *_: None)  # it complains otherwise
    assert "certificate" in refused(card, tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert get(card, tmp_path) == body


def test_every_shard_is_downloaded_and_those_that_are_there_are_not(
    host: Host, tmp_path: Path
) -> None:
    """The files have OGBench's layout: no rewards, and the simulator's states."""
    arrays = {
        "observations": np.zeros((3, 4), np.float32),
        "actions": np.zeros((3, 2), np.float32),
        "terminals": np.array([False, False, True]),
        "qpos": np.zeros((3, 5)),
        "qvel": np.zeros((3, 5)),
    }
    bodies = []
    for number in range(3):
        path = save(tmp_path / "a.npz", arrays | {"qpos": np.full((3, 5), float(number))})
        bodies.append(path.read_bytes())
        host.says(f"/set/a-{number:03d}.npz", send(bodies[-1]))
    url = f"{host.url}/set/a-{{shard}}.npz"
    file = File("a-{shard}.npz", "suite/a-{shard}.npz", (url,), num_shards=3)
    card = Card("suite/name", "suite", "ogbench", {"train": file}, "here", "none")
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "a-001.npz").write_bytes(bodies[1])
    paths = download([card], tmp_path, patience=QUICK)
    assert [path.name for path in paths] == ["a-000.npz", "a-001.npz", "a-002.npz"]
    assert [path.read_bytes() for path in paths] == bodies
    assert [path for path, *_ in host.requests] == ["/set/a-000.npz", "/set/a-002.npz"]


def test_every_published_card_says_where_its_files_are() -> None:
    for card in cards().values():
        for file in card.files.values():
            converted = card.note is not None and "Convert it once" in card.note
            assert bool(file.urls) != (card.source.startswith("own data") or converted)
            assert len(set(file.urls)) == len(file.urls)
            assert all(url.startswith(("http://", "https://")) for url in file.urls)
            if card.suite == "d4rl":
                hosts = {url.split("/")[2] for url in file.urls}
                assert "rail.eecs.berkeley.edu" in hosts
                locomotion = card.name.split("-")[0] in ("ant", "halfcheetah", "hopper", "walker2d")
                assert len(hosts) == 2 or not (locomotion and card.name.endswith("-v2"))


def test_a_set_of_dsrl_is_downloaded_from_its_second_host_and_read_with_costs(
    host: Host, tmp_path: Path
) -> None:
    card = cards()["dsrl_data:BallRun"]
    file = card.files["train"]
    assert [url.rsplit("/", 1)[0] for url in file.urls] == [
        "https://huggingface.co/datasets/YYY-45/DSRL/resolve/main",
        "http://data.offline-saferl.org/download",
    ]
    arrays = with_next(two_episodes()) | {"costs": np.arange(1003) % 2}
    body = save(tmp_path / "sent.hdf5", arrays).read_bytes()
    answers = status(404), send(body)
    paths = [f"/{number}/{file.name}" for number in range(2)]
    urls = tuple(host.says(path, answer) for path, answer in zip(paths, answers, strict=True))
    local = replace(card, files={"train": replace(file, urls=urls)})
    (path,) = download([local], tmp_path, patience=QUICK)
    assert path == tmp_path / "dsrl" / "SafetyBallRun-v0-80-940.hdf5"
    assert [path for path, *_ in host.requests] == paths
    np.testing.assert_array_equal(load(local, tmp_path).extras["costs"], arrays["costs"])
