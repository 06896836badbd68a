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
from offline_rl.data.specs import action_conversion
from offline_rl.engine.acting import NO_COSTS
from offline_rl.evaluation.evaluate import bundles, load, task_of
from offline_rl.evaluation.options import check_task, head_arguments
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_atomically
from offline_rl.utils.modules import import_extra
from offline_rl.utils.options import Checked, Count, NonNegative, Number, build
from offline_rl.utils.seeds import EVALUATION_SEED
from policies import Player, channels
from policies.spec import Conversion

PACKAGES = {".mp4": "av", ".gif": "PIL"}  # file extension -> the package that writes it
RATE_HZ = 30.0  # frame rate if the environment does not state its control rate
MAX_RATE_HZ = 50.0  # highest frame rate that GIF viewers show


@dataclass(frozen=True, kw_only=True)
class PlayOptions(Checked):
    """Options of `offline-rl play`."""

    run: str  # a policy bundle, or the folder of a seed or run; of a run, the first seed is played
    task: str | None = None  # task to play; default: the one the policy was trained on
    episodes: Count = 1  # number of episodes, from the same seeds as in `evaluate`
    out: str | None = None  # video file (.mp4, .gif); default: play.mp4 or .gif next to the bundle
    target_return: Number | None = None  # target of return-conditioned policies; default: bundle's
    target_cost: NonNegative | None = (
        None  # cost limit of policies that take one; default: bundle's
    )
    base: str | None = None  # module:function of a residual policy's base, if the bundle lacks it


def play(**keys: Any) -> list[str]:
    """Record episodes of a policy as a video. Return a line per episode, and the video's path.

    keys: options of the command. Raises UserError.
    """
    check_task(keys)
    options = build(PlayOptions, keys)
    bundle = bundles(Path(options.run))[0]
    out = output_file(options.out, bundle)
    write = writer(out.suffix)
    if "DISPLAY" not in os.environ:  # MuJoCo chooses its renderer by MUJOCO_GL when it is imported
        for library, name in (("EGL", "egl"), ("OSMesa", "osmesa")):
            if find_library(library):
                os.environ.setdefault("MUJOCO_GL", name)
    try:
        task = task_of(options.task, [bundle])
        vector = envs.make_vector(task, 1)
        arguments = head_arguments(options.target_return, options.target_cost)
        policy = load(bundle, task, vector, arguments, options.base)
        convert = action_conversion(policy.spec, vector, str(bundle))
        rate_hz = min(vector.rate_hz or RATE_HZ, MAX_RATE_HZ)
        every = max(1, round((vector.rate_hz or RATE_HZ) / rate_hz))
        vector.close()
        env = envs.make(task, render_mode="rgb_array")
    except ValueError as error:
        raise UserError(str(error)) from None
    lines, player = list[str](), Player(policy)
    with ExitStack() as stack:
        stack.callback(env.close)

        def frames() -> Iterator[np.ndarray]:
            for seed in range(EVALUATION_SEED, EVALUATION_SEED + options.episodes):
                yield from play_episode(env, player, seed, every, lines, convert)

        write_atomically(out, lambda temporary: write(temporary, frames(), rate_hz))
    return [*lines, str(out)]


def output_file(out: str | None, bundle: Path) -> Path:
    """Return the file to write. Raises UserError if its extension is not supported."""
    if out is None:
        try:
            import_extra("av", "video", "a video")
            return bundle.parent / "play.mp4"
        except UserError:
            return bundle.parent / "play.gif"
    path = Path(out)
    if path.suffix not in PACKAGES:
        raise UserError(f"out={out} is not a supported format. Use {' or '.join(PACKAGES)}.")
    return path


def play_episode(
    env: Any,
    player: Player,
    seed: int,
    every: int,
    lines: list[str],
    convert: Conversion | None = None,
) -> Iterator[np.ndarray]:
    """Play an episode, yield an image of every `every`-th step, and append a line to `lines`."""
    observation, _ = call(env, "reset", seed=seed)
    player.reset(seed)
    total, steps, reward, cost, costs, over = 0.0, 0, None, None, None, False
    yield render(env)
    while not over:
        action = player.step(channels.map_channels(policy_input, observation), reward, cost)
        action = action if convert is None else convert(action)
        observation, reward, terminated, truncated, infos = call(env, "step", action)
        if (cost := infos.get("cost")) is None and player.policy.needs_costs:
            raise UserError(NO_COSTS.format(kind=player.policy.bundle.kind))
        costs = costs if cost is None else float(cost) + (costs or 0.0)
        total, steps, over = total + float(reward), steps + 1, terminated or truncated
        if over or steps % every == 0:
            yield render(env)
    paid = "" if costs is None else f", cost {costs:.1f}"
    lines.append(f"seed {seed}: return {total:.1f}{paid}, {steps:,} steps")


def call(env: Any, method: str, *arguments: Any, **keys: Any) -> Any:
    """Call a method of the environment. Raises UserError that names the line that failed."""
    try:
        return getattr(env, method)(*arguments, **keys)
    except Exception as error:  # a user's environment can raise anything
        raise UserError(
            f"The environment failed in {method}: {faults.describe_error(error)}"
        ) from error


def policy_input(values: Any) -> np.ndarray:
    """Convert an observation channel for the policy: images stay uint8, vectors become float32."""
    array = np.asarray(values)
    return array if channels.is_image(array.shape) else array.astype(np.float32)


def render(env: Any) -> np.ndarray:
    """Return an image of the environment, [H, W, 3] uint8. Raises UserError if that fails."""
    try:
        image = np.asarray(env.render())
    except Exception as error:  # renderers have their own exception classes
        fault = " ".join(str(error).split()).rstrip(".")
        raise UserError(
            f"The environment cannot be rendered: {fault}. Without a display, MuJoCo needs EGL or "
            "OSMesa."
        ) from None
    if image.ndim != 3 or image.shape[-1] != 3 or image.dtype != np.uint8:
        raise UserError(
            f"render() returned {image.dtype} {list(image.shape)}. Expected uint8 [H, W, 3]."
        )
    return image


Write = Callable[[Path, Iterable[np.ndarray], float], None]


def writer(kind: str) -> Write:
    """Return the function that writes a video of this file type.

    Raises UserError if its package is not installed.
    """
    if kind == ".gif":
        import_extra("PIL", "video", "a .gif")
        return write_gif
    import_extra("av", "video", "an .mp4, unlike a .gif,")
    return write_mp4


def write_gif(path: Path, images: Iterable[np.ndarray], rate_hz: float) -> None:
    """Write a GIF that repeats endlessly."""
    from PIL import Image

    first, *rest = [Image.fromarray(image) for image in images]
    period_ms = 10 * max(2, round(100 / rate_hz))  # the format has steps of 10 ms
    first.save(path, "GIF", save_all=True, append_images=rest, duration=period_ms, loop=0)


def write_mp4(path: Path, images: Iterable[np.ndarray], rate_hz: float) -> None:
    """Write an H.264 video. Images are cropped to even width and height."""
    import av

    with av.open(str(path), "w", format="mp4") as file:
        stream: Any = None
        for image in images:
            image = image[: image.shape[0] // 2 * 2, : image.shape[1] // 2 * 2]
            if stream is None:
                stream = file.add_stream("h264", rate=Fraction(rate_hz).limit_denominator(1000))
                stream.height, stream.width, stream.pix_fmt = *image.shape[:2], "yuv420p"
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
