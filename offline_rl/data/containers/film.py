"""Videos as pictures and back, by PyAV."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.modules import needed

AGAIN = "Copy or download it again."


def pictures(path: Path, frames: np.ndarray, fps: float) -> np.ndarray:
    """[N, H, W, 3] of uint8: what the video shows at the frames [N], counted by its clock at `fps`.

    Raises UserError where the file or a frame is not there, or cannot be decoded.
    """
    av = needed("av", "lerobot", f"{path}: decoding a video")
    if not path.is_file():
        raise UserError(f"{path}: there is no such video. {AGAIN}")
    rows: Mapping[int, int] = {int(frame): row for row, frame in enumerate(frames)}
    found: np.ndarray | None = None
    seen, last, rate = np.zeros(len(frames), bool), int(max(frames)), None
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            rate = stream.average_rate
            for frame in container.decode(stream):
                number = round(float(frame.pts * stream.time_base) * fps)
                if (row := rows.get(number)) is not None:
                    picture = frame.to_ndarray(format="rgb24")
                    if found is None:
                        found = np.empty((len(frames), *picture.shape), np.uint8)
                    found[row], seen[row] = picture, True
                if number >= last:
                    break
    except (av.FFmpegError, IndexError, TypeError, ValueError, OSError) as error:
        why = getattr(error, "strerror", None) or error  # without the file's name once more
        raise UserError(f"{path}: a video that cannot be decoded ({why}). {AGAIN}") from None
    if found is None or not seen.all():
        missing = int(frames[int((~seen).argmax())])
        if rate and abs(float(rate) - fps) > 0.01 * fps:
            raise UserError(
                f"{path}: the video has {float(rate):g} pictures a second, and {fps:g} are said to "
                "go with its rows: correct fps where that is told, or bring the video made for it"
            )
        raise UserError(
            f"{path}: {(~seen).sum():,} of {len(frames):,} frames are not in the video, the first "
            f"at {missing / fps:.3f} s. {AGAIN}"
        )
    return found


def write(path: Path, shown: np.ndarray, fps: int) -> None:
    """[N, H, W, 3] of uint8 as H.264, with sides of even length. Raises UserError."""
    av = needed("av", "lerobot", f"{path}: making a video")
    height, width = shown.shape[1:3]
    if height % 2 or width % 2 or shown.shape[3] != 3:
        raise UserError(
            f"{path}: pictures of {list(shown.shape[1:])} make no video, which has even sides and "
            f"three colors: keep them as images."
        )
    options = {"crf": "18", "g": "2"}  # every other frame stands by itself: quick to seek
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=fps, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for picture in shown:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
