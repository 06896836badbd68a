"""`offline-rl play`: episodes of a policy as a video."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from ctypes.util import find_library
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import envs
from envs import faults
from offline_rl.data.meaning import conversion
from offline_rl.evaluation.evaluate import bundles, load, task_of
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_atomically
from offline_rl.utils.modules import needed
from offline_rl.utils.options import Checked, Count, Number, build
from offline_rl.utils.seeds import EVALUATION_SEED
from policies import Player, channels
from policies.spec import Conversion

PACKAGES = {".mp4": "av", ".gif": "PIL"}  # what writes which kind of file
RATE_HZ = 30.0  # of pictures, where the environment does not say how fast it goes
MOST_HZ = 50.0  # that viewers of GIFs show


@dataclass(frozen=True, kw_only=True)
class PlayOptions(Checked):
    """What `offline-rl play` takes."""

    run: str  # a bundle, or a folder with one; of several seeds the first plays
    task: str | None = None  # default: the one the policy was trained on
    episodes: Count = 1  # one after the other; those that `evaluate` begins with
    out: str | None = None  # a file .mp4 or .gif; default: play.mp4, else play.gif, by the bundle
    target_return: Number | None = None  # for policies that aim at one; default: the bundle's
    base: str | None = None  # module:function, where a bundle corrects what it does not hold


def play(**keys: Any) -> list[str]:
    """Plays, and writes the file; a line on each episode, and the file's name. Raises UserError."""
    options = build(PlayOptions, keys)
    bundle = bundles(Path(options.run))[0]
    out = target(options.out, bundle)
    write = writer(out.suffix)
    if "DISPLAY" not in os.environ:  # before MuJoCo is loaded, which draws by what stands here
        for library, name in (("EGL", "egl"), ("OSMesa", "osmesa")):
            if find_library(library):
                os.environ.setdefault("MUJOCO_GL", name)
    try:
        task = task_of(options.task, [bundle])
        vector = envs.make_vector(task, 1)
        given = {} if options.target_return is None else {"target_return": options.target_return}
        policy = load(bundle, task, vector, given, options.base)
        convert = conversion(policy.spec, vector, str(bundle))
        rate_hz = min(vector.rate_hz or RATE_HZ, MOST_HZ)
        every = max(1, round((vector.rate_hz or RATE_HZ) / rate_hz))
        vector.close()
        env = envs.make(task, render_mode="rgb_array")
    except ValueError as error:
        raise UserError(str(error)) from None
    lines, player = list[str](), Player(policy)
    with ExitStack() as stack:
        stack.callback(env.close)

        def pictures() -> Iterator[np.ndarray]:
            for seed in range(EVALUATION_SEED, EVALUATION_SEED + options.episodes):
                yield from episode(env, player, seed, every, lines, convert)

        write_atomically(out, lambda temporary: write(temporary, pictures(), rate_hz))
    return [*lines, str(out)]


def target(out: str | None, bundle: Path) -> Path:
    """The file to write. Raises UserError where its kind is not known."""
    if out is None:
        try:
            needed("av", "video", "a video")
            return bundle.parent / "play.mp4"
        except UserError:
            return bundle.parent / "play.gif"
    path = Path(out)
    if path.suffix not in PACKAGES:
        raise UserError(f"out={out}: a file that ends with {' or '.join(PACKAGES)} is expected")
    return path


def episode(
    env: Any,
    player: Player,
    seed: int,
    every: int,
    lines: list[str],
    convert: Conversion | None = None,
) -> Iterator[np.ndarray]:
    """Pictures of each `every`-th step; what it came to is added to `lines`."""
    observation, _ = asked(env, "reset", seed=seed)
    player.reset(seed)
    total, steps, reward, over = 0.0, 0, None, False
    yield picture(env)
    while not over:
        action = player.step(channels.each(told, observation), reward)
        action = action if convert is None else convert(action)
        observation, reward, terminated, truncated, _ = asked(env, "step", action)
        total, steps, over = total + float(reward), steps + 1, terminated or truncated
        if over or steps % every == 0:
            yield picture(env)
    lines.append(f"seed {seed}: return {total:.1f}, {steps:,} steps")


def asked(env: Any, what: str, *arguments: Any, **keys: Any) -> Any:
    """The environment's answer. Raises UserError, naming its own line, for whatever it raises."""
    try:
        return getattr(env, what)(*arguments, **keys)
    except Exception as error:  # of somebody's own environment
        raise UserError(f"the environment broke in {what}: {faults.told(error)}") from error


def told(values: Any) -> np.ndarray:
    """What an environment tells of a channel, as policies take it."""
    array = np.asarray(values)
    return array if channels.is_picture(array.shape) else array.astype(np.float32)


def picture(env: Any) -> np.ndarray:
    """[H, W, 3] uint8. Raises UserError where nothing can be drawn."""
    try:
        found = np.asarray(env.render())
    except Exception as error:  # of OpenGL, of whatever draws; each has classes of its own
        fault = " ".join(str(error).split())
        raise UserError(
            f"nothing can be drawn here: {fault} (MuJoCo needs EGL or OSMesa where there is no "
            "screen)"
        ) from None
    if found.ndim != 3 or found.shape[-1] != 3 or found.dtype != np.uint8:
        raise UserError(f"the environment draws {found.dtype} {list(found.shape)}: no picture")
    return found


Write = Callable[[Path, Iterable[np.ndarray], float], None]


def writer(kind: str) -> Write:
    """Of files of that kind. Raises UserError where its package is missing."""
    if kind == ".gif":
        needed("PIL", "video", "a .gif")
        return write_gif
    needed("av", "video", "an .mp4, unlike a .gif,")
    return write_mp4


def write_gif(path: Path, pictures: Iterable[np.ndarray], rate_hz: float) -> None:
    """Endlessly repeated; a picture lasts whole hundredths of a second, as the format has it."""
    from PIL import Image

    first, *rest = [Image.fromarray(each) for each in pictures]
    period_ms = 10 * max(2, round(100 / rate_hz))
    first.save(path, "GIF", save_all=True, append_images=rest, duration=period_ms, loop=0)


def write_mp4(path: Path, pictures: Iterable[np.ndarray], rate_hz: float) -> None:
    """H.264, which every browser plays; sides are cut to even numbers."""
    import av

    with av.open(str(path), "w", format="mp4") as file:
        stream: Any = None
        for each in pictures:
            each = each[: each.shape[0] // 2 * 2, : each.shape[1] // 2 * 2]
            if stream is None:
                stream = file.add_stream("h264", rate=Fraction(rate_hz).limit_denominator(1000))
                stream.height, stream.width, stream.pix_fmt = *each.shape[:2], "yuv420p"
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(each), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
