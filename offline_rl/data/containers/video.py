"""Images of video files, decoded when they are read, and encoding of images as videos, with PyAV.

`VideoFrames` is used like an array of images. Reading an image decodes the frames from the last key
frame before it on. Images that are read together are decoded in the order of the video, each group
of frames once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum
from offline_rl.utils.modules import import_extra

AGAIN = "Copy or download it again."
MAX_OPEN = 8  # files that stay open for the next reading
MAX_THREADS = 8  # threads that decode at the same time
ROWS_PER_THREAD = 16  # minimum number of images for another thread
BLOCK = 64  # images that `VideoFrames.check` decodes at once


class Video:
    """The frames of a video file and their times. Nothing is decoded.

    A frame's number is its time in the video in seconds times `fps`, rounded.
    """

    def __init__(self, path: Path, fps: float) -> None:
        """List the frames of the file. Raises UserError if it is missing or damaged."""
        self.path, self.fps = path, fps
        with self.explain_errors(), self.open() as container:
            stream = container.streams.video[0]
            self.shape = stream.codec_context.height, stream.codec_context.width, 3
            self.rate = stream.average_rate
            packets = [
                (p.pts, p.is_keyframe)
                for p in container.demux(stream)
                if p.size and not p.is_discard
            ]
            if not any(is_key for _, is_key in packets):
                raise ValueError("it has no key frame")
            packets.sort()  # a TypeError if a frame has no time
            times, is_key = (np.array(x) for x in zip(*packets, strict=True))
            numbers = np.rint(times * float(stream.time_base) * fps).astype(np.int64)
        last = np.append(np.diff(numbers) != 0, True)  # of frames with the same number
        self.numbers, self.times = numbers[last], times[last]
        self.key_times = times[is_key]
        self.key_places = np.searchsorted(self.times, self.key_times)

    def open(self) -> Any:
        """Return the open container."""
        if not self.path.is_file():
            raise UserError(f"{self.path}: the video is missing. {AGAIN}")
        return import_module("av").open(str(self.path))

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Raise UserError for whatever PyAV raises for a damaged file."""
        av = import_extra("av", "lerobot", f"{self.path}: decoding a video")
        try:
            yield
        except (av.FFmpegError, IndexError, OSError, TypeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error  # without the file's name again
            raise UserError(
                f"{self.path}: the video cannot be decoded ({reason}). {AGAIN}"
            ) from None

    def places(self, frames: np.ndarray) -> np.ndarray:
        """Return the places of frames, given by number, in the order of presentation, [N].

        Raises UserError if a frame is not in the video.
        """
        places = np.searchsorted(self.numbers, frames).clip(max=len(self.numbers) - 1)
        missing = self.numbers[places] != frames
        if not missing.any():
            return places
        if self.rate and abs(float(self.rate) - self.fps) > 0.01 * self.fps:
            raise UserError(
                f"{self.path}: the video has {float(self.rate):g} frames per second, but the data "
                f"set says {self.fps:g}. Correct fps in the data set, or use the video that "
                "belongs to it."
            )
        raise UserError(
            f"{self.path}: {missing.sum():,} of {len(frames):,} frames are not in the video, the "
            f"first at {frames[missing.argmax()] / self.fps:.3f} s. {AGAIN}"
        )

    def groups(self, places: np.ndarray) -> np.ndarray:
        """Return the group of each frame, the index of the key frame that its decoding needs."""
        return (np.searchsorted(self.key_places, places, side="right") - 1).clip(min=0)


class Decoder:
    """An open video file, from which one thread reads."""

    def __init__(self, video: Video) -> None:
        self.video = video
        with video.explain_errors():
            self.container = video.open()
            self.stream = self.container.streams.video[0]
            self.codec = self.stream.codec_context
            self.stream.thread_type, self.codec.thread_count = "NONE", 1  # see `VideoFrames.read`
        from av.video.reformatter import VideoReformatter

        self.convert = VideoReformatter().reformat

    def read(self, places: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (place, image [H, W, 3] uint8) of the frames at `places`, which increase.

        Raises UserError if a frame cannot be decoded.
        """
        video = self.video
        groups = video.groups(places)
        for group in np.unique(groups):  # frames from a key frame up to the next one
            here = places[groups == group]
            wanted = dict(zip(video.times[here].tolist(), here.tolist(), strict=True))
            frames = self._decode(int(video.key_times[group]), set(wanted))
            while wanted:
                with video.explain_errors():
                    frame = next(frames, None)
                    if frame is None or (frame.is_corrupt and frame.pts in wanted):
                        seconds = float(min(wanted) * self.stream.time_base)
                        raise ValueError(f"the frame at {seconds:.3f} s is damaged")
                    if frame.pts not in wanted:
                        continue
                    image = pixels(self.convert(frame, format="rgb24"))
                yield wanted.pop(frame.pts), image

    def _decode(self, start: int, times: set[int]) -> Iterator[Any]:
        """Yield the frames from the key frame at `start` up to the last one of `times`.

        Packets after it are not decoded, although the decoder would return the frame only then.
        """
        self.codec.flush_buffers()
        self.container.seek(start, stream=self.stream)
        missing, earliest = set(times), int(self.video.key_times[0])
        for k, packet in enumerate(self.container.demux(self.stream)):
            if not packet.size:  # the end of the file
                break
            if k == 0 and packet.pts > start > earliest:  # the position was not exact
                yield from self._decode(earliest, times)
                return
            yield from self.codec.decode(packet)
            missing.discard(packet.pts)
            if not missing:
                break
        yield from self.codec.decode(None)

    def close(self) -> None:
        """Close the file."""
        self.container.close()


def pixels(frame: Any) -> np.ndarray:
    """Return the pixels of an RGB frame, [H, W, 3] uint8, without copying them."""
    (plane,) = frame.planes
    shape, strides = (frame.height, frame.width, 3), (plane.line_size, 3, 1)
    return np.ndarray(shape, np.uint8, plane, 0, strides)


class Decoders:
    """Open video files. A file may be open several times, once for each thread that reads it."""

    def __init__(self) -> None:
        self._lock, self._idle = Lock(), list[Decoder]()

    @contextmanager
    def use(self, video: Video) -> Iterator[Decoder]:
        """Yield a decoder that no other thread uses. It remains open unless there is an error."""
        with self._lock:
            idle = [decoder for decoder in self._idle if decoder.video is video]
            if idle:
                self._idle.remove(idle[-1])
        decoder = idle[-1] if idle else Decoder(video)
        try:
            yield decoder
        except BaseException:
            decoder.close()
            raise
        with self._lock:
            self._idle.append(decoder)
            count = max(len(self._idle) - MAX_OPEN, 0)
            surplus, self._idle = self._idle[:count], self._idle[count:]
        for decoder in surplus:
            decoder.close()


def rows_by_video(video: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the index of each video, and the rows of its images. video: [N], of each image."""
    order = np.argsort(video, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(video[order])) + 1):
        if len(rows):
            yield int(video[rows[0]]), rows


class VideoFrames:
    """Images of videos as an array [N, H, W, 3] uint8, whose images are decoded when they are read.

    A slice, and `select`, return another array of this kind. Other indices, and `np.asarray`,
    return decoded images. Raises UserError if a frame cannot be decoded.
    """

    dtype, ndim = np.dtype(np.uint8), 4

    def __init__(
        self,
        videos: Sequence[Video],
        video: np.ndarray,
        place: np.ndarray,
        decoders: Decoders | None = None,
    ) -> None:
        """Use images of `videos`, whose frames have one shape.

        video, place: [N], index of the video, and the frame's place in it, of each image.
        """
        self.videos, self._video, self._place = videos, video, place
        self._decoders = decoders or Decoders()
        self.shape = (len(video), *videos[0].shape)

    def __len__(self) -> int:
        return len(self._video)

    def __repr__(self) -> str:
        return f"<VideoFrames {self.shape} of {len(self.videos)} videos>"

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of all decoded images."""
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.select(index)
        rows = np.arange(len(self))[index]  # raises IndexError, as an array does
        images = np.empty((rows.size, *self.shape[1:]), np.uint8)
        self.read(rows.reshape(-1), images)
        return images.reshape(*rows.shape, *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("the images of videos are decoded, which makes a copy")
        return np.asarray(self[np.arange(len(self))], dtype)

    def select(self, rows: Any) -> VideoFrames:
        """Return the images at `rows`, an index of any kind, without decoding them."""
        return VideoFrames(self.videos, self._video[rows], self._place[rows], self._decoders)

    def read(self, rows: np.ndarray, images: np.ndarray) -> None:
        """Decode the images at `rows` [n] to `images` [n, H, W, 3]."""
        video, place = self._video[rows], self._place[rows]
        order = np.lexsort((place, video))
        threads = min(hardware.num_cores(), MAX_THREADS, -(-len(rows) // ROWS_PER_THREAD))

        def decode(part: np.ndarray) -> None:
            for number, rows_of_video in rows_by_video(video[part]):
                here, opened = part[rows_of_video], self.videos[number]
                with self._decoders.use(opened) as decoder:
                    for found, image in decoder.read(np.unique(place[here])):
                        if image.shape != self.shape[1:]:
                            raise UserError(
                                f"{opened.path}: the video holds images of shape "
                                f"{[*image.shape]} and {[*self.shape[1:]]}. {AGAIN}"
                            )
                        images[here[place[here] == found]] = image

        if threads < 2:
            decode(order)
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(decode, np.array_split(order, threads)))

    def check(self) -> None:
        """Decode all images. Raises UserError at the first one that cannot be decoded."""
        for start in range(0, len(self), BLOCK):
            np.asarray(self[start : start + BLOCK])

    def frames_per_image(self) -> float:
        """Return the mean number of frames that are decoded to read an image at random."""
        decoded = 0
        for number, rows in rows_by_video(self._video):
            places, video = self._place[rows], self.videos[number]
            decoded += int((places - video.key_places[video.groups(places)] + 1).sum())
        return decoded / max(len(self), 1)

    def fingerprint(self) -> bytes:
        """Return a SHA-256 of the files and of the choice of images, without decoding them."""
        sums = [checksum(self.videos[number].path) for number in np.unique(self._video)]
        digest = hashlib.sha256("".join(sums).encode())
        for index in (self._video, self._place):
            digest.update(np.ascontiguousarray(index, np.int64).data)
        return digest.digest()


def encode_video(path: Path, images: np.ndarray, fps: int) -> None:
    """Write images as an H.264 video.

    images: [N, H, W, 3] uint8, with even H and W. Raises UserError for other shapes.
    """
    av = import_extra("av", "lerobot", f"{path}: making a video")
    height, width = images.shape[1:3]
    if height % 2 or width % 2 or images.shape[3] != 3:
        raise UserError(
            f"{path}: images of shape {list(images.shape[1:])} cannot be written as a video. A "
            f"video needs an even height and width and three colors. Write them as images."
        )
    # every other frame is a key frame, so that seeking is fast, and the order of frames is kept
    options = {"crf": "18", "g": "2", "bf": "0"}
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=fps, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
