"""Tests of images that are decoded when they are read: the same bits in any order, and errors."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_videos import CAMERAS, SIDE, TOP, with_videos

from offline_rl.data import Dataset
from offline_rl.data.containers import video
from offline_rl.data.containers.video import Decoder, Video, VideoFrames
from offline_rl.data.convert import convert
from offline_rl.data.read import read
from offline_rl.data.validation import validate
from offline_rl.utils.errors import UserError

av = pytest.importorskip("av", reason="videos need the extra lerobot")

COUNT, FPS = 30, 10
CODECS = {  # options of an encoder: key frames that are rare, open groups, reordered frames
    "rare key frames": ("libx264", {"g": "12"}),
    "reordered": ("libx264", {"bf": "3", "g": "10", "x264-params": "open-gop=1"}),
    "MPEG-4": ("mpeg4", {"g": "6"}),
}


def moving() -> np.ndarray:
    """Return images of a square that moves, [COUNT, 32, 48, 3]."""
    images = np.zeros((COUNT, 32, 48, 3), np.uint8)
    for k in range(COUNT):
        images[k, k % 24 : k % 24 + 8, k : k + 16] = (255, 8 * k, 40)
    return images


def write(path: Path, codec: str, options: dict[str, str]) -> np.ndarray:
    """Write a video; return its images, decoded from the first to the last without seeking."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        for image in moving():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


def open_frames(path: Path) -> VideoFrames:
    opened = Video(path, FPS)
    return VideoFrames([opened], np.zeros(COUNT, int), opened.places(np.arange(COUNT)))


@pytest.mark.parametrize("case", CODECS)
def test_images_are_the_same_in_any_order(tmp_path: Path, case: str):
    expected = write(tmp_path / "a.mp4", *CODECS[case])
    images, order = open_frames(tmp_path / "a.mp4"), np.random.default_rng(0).permutation(COUNT)
    np.testing.assert_array_equal(np.asarray(images), expected)
    for rows in (order[:5], np.array([7, 7, 3]), order[:6].reshape(2, 3), expected.any((1, 2, 3))):
        np.testing.assert_array_equal(images[rows], expected[rows])
    for row in (29, 0, 15, -1):
        np.testing.assert_array_equal(images[row], expected[row])
    part = images[3:20:2]
    assert isinstance(part, VideoFrames)
    np.testing.assert_array_equal(part.select(np.array([4, 1]))[:], expected[[11, 5]])
    assert (len(part), part.shape, part.nbytes) == (9, (9, 32, 48, 3), 9 * 32 * 48 * 3)
    with pytest.raises(IndexError):
        images[COUNT]


def test_several_threads_read_the_same_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    expected = write(tmp_path / "a.mp4", *CODECS["rare key frames"])
    monkeypatch.setattr(video, "ROWS_PER_THREAD", 4)
    monkeypatch.setattr(video.hardware, "num_cores", lambda: 3)
    images, used = open_frames(tmp_path / "a.mp4"), set[int]()
    read_one = Decoder.read

    def record(self: Decoder, places: np.ndarray) -> Any:
        used.add(threading.get_ident())
        return read_one(self, places)

    monkeypatch.setattr(Decoder, "read", record)
    np.testing.assert_array_equal(np.asarray(images), expected)
    assert threading.get_ident() not in used


def test_images_of_a_group_are_decoded_together_and_no_frame_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Every 12th frame is a key frame: frames 25 to 27 need frame 24, and frames 1 to 3 frame 0."""
    options = {"g": "12", "keyint_min": "12", "sc_threshold": "0"}
    expected = write(tmp_path / "a.mp4", "libx264", options)
    images, groups = open_frames(tmp_path / "a.mp4"), list[set[int]]()
    decode = Decoder._decode

    def record(self: Decoder, start: int, times: set[int]) -> Any:
        groups.append(times)
        return decode(self, start, times)

    monkeypatch.setattr(Decoder, "_decode", record)
    images[np.array([27, 3, 25, 26, 1, 2])]
    assert [len(times) for times in groups] == [3, 3]
    assert images.frames_per_image() == pytest.approx((2 * 78 + 21) / 30)  # 1 + … + 12, twice
    damaged(tmp_path / "a.mp4", 12)
    after = open_frames(tmp_path / "a.mp4")
    np.testing.assert_array_equal(after[np.arange(12)], expected[:12])


def damaged(path: Path, first: int) -> None:
    """Overwrite the content of the video from a frame on; the list of frames remains."""
    with av.open(str(path)) as container:
        packets = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    content = bytearray(path.read_bytes())
    for start, size in packets[first:]:
        content[start : start + size] = bytes(size)
    path.write_bytes(content)


def test_a_damaged_frame_is_refused_when_it_is_read_and_by_the_check(tmp_path: Path):
    path = with_videos(tmp_path / "a")
    file = path / "videos" / TOP / "chunk-000" / "file-000.mp4"
    damaged(file, 4)
    data = read_streamed(path)
    assert data.observations["top"][:4].shape == (4, 16, 20, 3)
    np.asarray(data.observations["top"][:4])
    for rows in (np.array([1, 6]), 9):
        with pytest.raises(UserError, match=r"file-000\.mp4: the video cannot be decoded .*again"):
            data.observations["top"][rows]
    (problem,) = (p for p in validate(data) if p.severity == "error")
    assert "file-000.mp4: the video cannot be decoded" in problem.sentence
    file.unlink()
    with pytest.raises(UserError, match=r"file-000\.mp4: the video is missing"):
        read_streamed(path)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_a_data_set_is_selected_and_converted_without_decoded_images(tmp_path: Path, version: str):
    path = with_videos(tmp_path / "a", version)
    decoded = read(path, observation_keys=CAMERAS)
    streamed = read_streamed(path)
    for change in (lambda d: d.select([0, 2]), lambda d: d.span(3, 8), lambda d: d.top_episodes(1)):
        a, b = change(decoded), change(streamed)
        assert isinstance(b.observations["side"], VideoFrames)
        for name in CAMERAS:
            key = name.split(".")[-1]
            np.testing.assert_array_equal(a.observations[key], np.asarray(b.observations[key]))
    assert decoded.sha256 == streamed.sha256
    assert streamed.checksum() == read_streamed(path).checksum()
    assert streamed.checksum() != streamed.select([0, 2]).checksum()
    note = convert(path, tmp_path / "b.hdf5", observation_keys=CAMERAS, stream="always")
    assert "images of videos are decoded when they are used" in note
    back = Dataset.load(tmp_path / "b.hdf5")
    np.testing.assert_array_equal(back.observations["top"], decoded.observations["top"])


def test_rare_key_frames_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = with_videos(tmp_path / "a")
    assert not any("key frames are rare" in note for note in read_streamed(path).notes)
    monkeypatch.setattr("offline_rl.data.formats.lerobot.SLOW", 0.9)  # at least 1 frame is decoded
    noted = [note for note in read_streamed(path).notes if "key frames are rare" in note]
    assert [note.partition(":")[0] for note in noted] == [TOP, SIDE]


def read_streamed(path: Path) -> Dataset:
    return read(path, observation_keys=CAMERAS, stream="always")
