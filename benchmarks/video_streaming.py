"""Measure memory and speed of training on videos that are decoded during training.

    python -m benchmarks.video_streaming <file.json> [frames=10000] [decoded=500] [batch_size=64]
        [sampler_updates=20] [train_batch_size=64] [blocks=5]

The data is a LeRobotDataset with videos of 480 x 640 pixels. Their images would need 0.9 MB each.
Two commands of their own measure:

    sampler    the peak memory of a process that samples batches of action chunks, and its speed
    trainer    updates of diffusion_policy on streamed images, and on images that were decoded
               before training; both take turns in one process

Images that are decoded before training come from the first `decoded` frames, to save memory. The
cost of an update does not depend on their number. Writes the results and a page next to them.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.figures import run_measurement
from offline_rl.data import Dataset
from offline_rl.data.containers.video import encode_video
from offline_rl.data.formats.lerobot import VIDEO_2
from offline_rl.data.read import read
from offline_rl.data.writers.lerobot import write_lerobot
from offline_rl.replay.chunks import Chunks
from offline_rl.replay.paging import PagedBuffer
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json_object, write_json
from offline_rl.utils.options import Checked, Count, build, parse_options
from offline_rl.utils.random import Random
from offline_rl.utils.text import table, wrap_text

if TYPE_CHECKING:
    from offline_rl.engine.engine import Engine

HEIGHT, WIDTH, LENGTH, FPS, STATE, ACTIONS = 480, 640, 250, 30, 8, 4
KEYS = ["observation.state", "observation.images.top"]


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command."""

    frames: Count = 10_000  # frames of the data set, a multiple of 250
    decoded: Count = 500  # frames that are decoded before training, a multiple of 250
    batch_size: Count = 64  # action chunks in a batch of the sampler
    train_batch_size: Count = 64  # action chunks in a batch of the trainer
    sampler_updates: Count = 20  # batches of the sampler
    blocks: Count = 5  # turns


def scene(count: int) -> np.ndarray:
    """Return images of a textured table with moving objects, [count, H, W, 3] uint8."""
    draw = np.random.default_rng(0)
    coarse = draw.uniform(40, 215, (HEIGHT // 32 + 2, WIDTH // 32 + 2, 3))
    rows, columns = np.arange(HEIGHT) / 32, np.arange(WIDTH) / 32
    r, c = rows.astype(int), columns.astype(int)
    u, v = (rows - r)[:, None, None], (columns - c)[None, :, None]
    upper = coarse[r][:, c] * (1 - v) + coarse[r][:, c + 1] * v
    lower = coarse[r + 1][:, c] * (1 - v) + coarse[r + 1][:, c + 1] * v
    table_top = (upper * (1 - u) + lower * u + draw.normal(0, 2, (HEIGHT, WIDTH, 3))).clip(0, 255)
    images = np.repeat(table_top.astype(np.uint8)[None], count, 0)
    for k, size in enumerate((160, 90, 50)):
        for t in range(count):
            top = int((HEIGHT - size) * (0.5 + 0.5 * np.sin(t / 40 + k)))
            left = int((WIDTH - size) * (0.5 + 0.5 * np.cos(t / 55 + 2 * k)))
            images[t, top : top + size, left : left + size] = (60 * k, 200 - 50 * k, 90)
    return images


def write_data(path: Path, count: int) -> None:
    """Write a LeRobotDataset of version 2, with a video for each episode; all show one clip."""
    draw = np.random.default_rng(0)
    states = draw.normal(size=(count, STATE)).astype(np.float32)
    actions = draw.uniform(-1, 1, (count, ACTIONS)).astype(np.float32)
    ends, rewards = np.arange(1, count + 1) % LENGTH == 0, np.zeros(count, np.float32)
    data = Dataset.from_arrays(states, actions, rewards, ends & False, ends)
    write_lerobot(data, path, fps=FPS, task="benchmark")
    info = read_json_object(path / "meta" / "info.json")
    info |= {"codebase_version": "v2.1", "video_path": VIDEO_2}
    info["features"][KEYS[1]] = {"dtype": "video", "shape": [HEIGHT, WIDTH, 3]}
    write_json(path / "meta" / "info.json", info)
    fields = {"video_key": KEYS[1], "episode_chunk": 0}
    files = [path / VIDEO_2.format(episode_index=n, **fields) for n in range(count // LENGTH)]
    files[0].parent.mkdir(parents=True)
    encode_video(files[0], scene(LENGTH), FPS)
    for file in files[1:]:
        shutil.copyfile(files[0], file)


def peak_memory() -> int:
    """Return the largest resident memory of this process so far, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def processor_seconds() -> float:
    """Return the processor time of all threads of this process."""
    usage = getrusage(RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure_sampler(path: Path, options: Options) -> dict[str, Any]:
    """Sample batches; return the peak memory and the number of images per second."""
    import torch

    started = perf_counter()
    data = read(path, observation_keys=KEYS, stream="always")
    buffer = PagedBuffer(data, [0], options.batch_size, columns={}, reads_next=False)
    chunks = Chunks(buffer, n_obs_steps=2, horizon=16, n_action_steps=8)
    buffer.allocate([chunks])
    before, opened_s, images = peak_memory(), perf_counter() - started, 0
    started, processor = perf_counter(), processor_seconds()
    for update in range(options.sampler_updates):
        chunks.prefetch(update)
        tensors = {name: x[0] for name, x in chunks.tensors().items()}
        random = Random(torch.tensor(0), torch.tensor(update))
        batch = chunks.sample(tensors, random, options.batch_size, 0.99)
        images += batch.observations["top"][..., 0, 0, 0].numel()
        del batch
    seconds, processor = perf_counter() - started, processor_seconds() - processor
    buffer.close()
    return {
        "peak_bytes": peak_memory(),
        "bytes_before_sampling": before,
        "opened_s": opened_s,
        "images_per_second": images / seconds,
        "processor_seconds_per_image": processor / images,
        "decoded_bytes": data.observations["top"].nbytes,
    }


def engine_of(path: Path, options: Options, **keys: Any) -> Engine:
    """Return the engine of a run of diffusion_policy on the data."""
    from offline_rl.runs.run import runs_of  # imports that the sampler does not need
    from offline_rl.training.assemble import build_engine
    from offline_rl.training.prepare import prepare

    keys |= {"algorithm": "diffusion_policy", "task": "none", "dataset": str(path), "seeds": 1}
    keys |= {"batch_size": options.train_batch_size, "observation_keys": KEYS, "tracker": "none"}
    prepared = prepare(runs_of(keys | {"num_updates": 1000}))
    return build_engine(prepared, prepared.runs)[0]


def measure_trainer(path: Path, options: Options) -> dict[str, Any]:
    """Train on decoded and on streamed images in turns; return the times of all turns."""
    engines = {
        "decoded": engine_of(path, options, stream="never", episodes=options.decoded // LENGTH),
        "streamed": engine_of(path, options, stream="always"),
    }
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    streamed = engines["streamed"].sources["offline"]
    assert isinstance(streamed, PagedBuffer)
    updates = streamed.ahead  # in each turn, one block of images is decoded
    for block in range(options.blocks + 1):  # the first one traces
        for name, engine in engines.items():
            started, processor = perf_counter(), processor_seconds()
            engine.run(updates if block else 1)
            if engine.sources["offline"] is streamed and streamed.pending is not None:
                streamed.pending.decoded.result()
            if block:
                times = perf_counter() - started, processor_seconds() - processor
                turns[name].append(times)
    for engine in engines.values():
        engine.sources["offline"].close()
    return {"turns": turns, "updates": updates}


MEASUREMENTS = {"sampler": measure_sampler, "trainer": measure_trainer}


def in_own_process(name: str, path: Path, options: Options) -> dict[str, Any]:
    """Return the result of a measurement in a process of its own. Raises UserError if it fails."""
    command = [sys.executable, "-m", "benchmarks.video_streaming", name, str(path)]
    done = subprocess.run(
        [*command, json.dumps(asdict(options))], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UserError(f"{name} failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(arguments: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """Return the output file and the results. Raises UserError."""
    if not arguments or "=" in arguments[0]:
        raise UserError(f"The first argument must be the file for the results.\n{__doc__}")
    options = build(Options, parse_options(arguments[1:]))
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / "data"
        write_data(path, options.frames)
        video = next(path.glob("videos/**/*.mp4"))
        results: dict[str, Any] = {"bytes_per_frame": video.stat().st_size / LENGTH}
        results |= {name: in_own_process(name, path, options) for name in MEASUREMENTS}
    return Path(arguments[0]), results | {"options": asdict(options)}


def page(results: Mapping[str, Any]) -> str:
    """Return the page with the tables of results."""
    options, sampler, trainer = (results[name] for name in ("options", "sampler", "trainer"))
    turns, updates = trainer["turns"], trainer["updates"]
    memory = [
        ["images, decoded", f"{sampler['decoded_bytes'] / 1e9:.2f}"],
        ["peak of the sampler's process", f"{sampler['peak_bytes'] / 1e9:.2f}"],
        ["of it, before the first batch", f"{sampler['bytes_before_sampling'] / 1e9:.2f}"],
    ]
    rates = {
        name: [updates / statistics.median(x) for x in zip(*times, strict=True)]
        for name, times in turns.items()
    }
    ratios = [
        statistics.median(d[k] / s[k] for d, s in zip(*turns.values(), strict=True))
        for k in range(2)
    ]
    speed = [
        ["images decoded before training", *(f"{x:.3f}" for x in rates["decoded"]), ""],
        ["images decoded during training", *(f"{x:.3f}" for x in rates["streamed"])],
    ]
    speed[1].append(f"{ratios[0]:.3f}")
    note = f"""
    {options["frames"]:,} frames of {HEIGHT} x {WIDTH} pixels, a key frame every 2 frames,
    {results["bytes_per_frame"]:,.0f} bytes per frame in the video. The sampler draws batches of
    {options["batch_size"]} action chunks with two observations each. It opens the data in
    {sampler["opened_s"]:.1f} s and then decodes {sampler["images_per_second"]:.0f} images per
    second, with {1000 * sampler["processor_seconds_per_image"]:.1f} ms of processor time per image.
    The trainer trains `diffusion_policy` with its default networks and batches of
    {options["train_batch_size"]}. The ratio is the median over {options["blocks"]} turns of
    {updates} updates. In processor time, it is {ratios[1]:.3f}.
    {results["machine"]["cores"]} cores.
    """
    head = "# Videos that are decoded during training\n\n*Made by "
    head += "`python -m benchmarks.video_streaming`, not by hand.*"
    tables = [
        table(["memory", "GB"], memory, markdown=True),
        table(
            ["diffusion_policy", "updates/s", "updates per processor second", "ratio of updates/s"],
            speed,
            markdown=True,
        ),
    ]
    return "\n\n".join([head, *tables, wrap_text(" ".join(note.split()))])


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status: 0, or 2 for a user error."""
    if arguments and arguments[0] in MEASUREMENTS:
        options = build(Options, json.loads(arguments[2]))
        print(json.dumps(MEASUREMENTS[arguments[0]](Path(arguments[1]), options)))
        return 0
    return run_measurement(lambda: measure(arguments), page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
