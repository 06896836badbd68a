"""Decoding videos to images and encoding images as videos, with PyAV."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.modules import import_extra

AGAIN = "Copy or download it again."


def decode_frames(path: Path, frames: np.ndarray, fps: float) -> np.ndarray:
    """Return images of a video, [N, H, W, 3] uint8.

    frames: [N], frame numbers. A frame's number is its time in the video in seconds times `fps`.
    Raises UserError if the file or a frame is missing or cannot be decoded.
    """
    av = import_extra("av", "lerobot", f"{path}: decoding a video")
    if not path.is_file():
        raise UserError(f"{path}: the video is missing. {AGAIN}")
    rows: Mapping[int, int] = {int(frame): row for row, frame in enumerate(frames)}
    images: np.ndarray | None = None
    decoded, last, rate = np.zeros(len(frames), bool), int(max(frames)), None
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            rate = stream.average_rate
            for frame in container.decode(stream):
                number = round(float(frame.pts * stream.time_base) * fps)
                if (row := rows.get(number)) is not None:
                    image = frame.to_ndarray(format="rgb24")
                    if images is None:
                        images = np.empty((len(frames), *image.shape), np.uint8)
                    images[row], decoded[row] = image, True
                if number >= last:
                    break
    except (av.FFmpegError, IndexError, TypeError, ValueError, OSError) as error:
        reason = getattr(error, "strerror", None) or error  # without the file's name again
        raise UserError(f"{path}: the video cannot be decoded ({reason}). {AGAIN}") from None
    if images is None or not decoded.all():
        missing = int(frames[int((~decoded).argmax())])
        if rate and abs(float(rate) - fps) > 0.01 * fps:
            raise UserError(
                f"{path}: the video has {float(rate):g} frames per second, but the data set says "
                f"{fps:g}. Correct fps in the data set, or use the video that belongs to it."
            )
        raise UserError(
            f"{path}: {(~decoded).sum():,} of {len(frames):,} frames are not in the video, the "
            f"first at {missing / fps:.3f} s. {AGAIN}"
        )
    return images


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
    options = {"crf": "18", "g": "2"}  # every other frame is a key frame, so that seeking is fast
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=fps, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
