"""All commands and Python snippets of README and docs run, with sizes that take seconds.

A page's blocks are run in order, in one folder, since later ones use what earlier ones made. What
cannot be run here has a reason: by a pattern in `REASONS`, or by a comment in the line before the
block, `<!-- not run: reason -->`. A Python block that begins with a file's name, `# mine.py`, is
saved as that file.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from small_data import save_small

import offline_rl
from offline_rl import Dataset
from offline_rl.algorithms.common.registry import algorithm_class
from offline_rl.cli.main import main
from offline_rl.data.writers.d4rl import write as write_d4rl
from offline_rl.data.writers.lerobot import write_lerobot

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL, PYTHON = {"", "sh", "bash", "console"}, "python"
REASONS = {  # matching commands are not run
    r"[|…<]": "a synopsis, with placeholders",
    r"port=/dev/": "needs a robot",
    r"robot (run|record|replay) ": "needs an operator at a terminal",
    r"^(pip|make) ": "installs packages, which needs the network",
    r"data download": "needs the network",
    r"generate recipe=(hopper|walker2d|halfcheetah)\b": "trains for hours",
    r"generate recipe=(pointmaze|antmaze|pen|ant-hazards)\b": "trains for hours",
    r"^real_robot\.read|real_robot.read\(": "needs the recording of a robot's run",
}
TINY = {  # replaces the command's value; added if the verb has the option
    "num_updates": 20,
    "num_env_steps": 72,
    "eval_episodes": 1,
    "episodes": 1,
    "rows": 300,
    "compile": "never",
    "tracker": "none",
    "batch_size": 8,
}
ALWAYS = ("eval_episodes", "compile", "tracker", "batch_size")  # added if a command lacks them
LEARNS = ("train", "finetune", "distill", "search")


class Block(NamedTuple):
    """Fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None  # the reason stated in the page


def blocks(page: Path) -> Iterator[Block]:
    """Return the fenced blocks of a page, in order."""
    lines, start = page.read_text().splitlines(), None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        before = lines[start - 1] if start else ""
        marked = re.fullmatch(r"<!-- not run: (.+) -->", before)
        text = "\n".join(lines[start + 1 : number])
        yield Block(page, start + 1, lines[start][3:].strip(), text, marked and marked[1])
        start = None


def commands(block: Block) -> list[str]:
    """Return the commands of a shell block. A backslash continues a line."""
    lines = block.text.replace("\\\n", " ").splitlines()
    known = ("offline-rl ", "make ", "pip ", "python ")
    return [line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith(known)]


def reason_of(text: str) -> str | None:
    """Return the reason why a command or a snippet is not run."""
    return next((why for pattern, why in REASONS.items() if re.search(pattern, text)), None)


def sizes_of(algorithm: str, *, alone: bool) -> dict[str, Any]:
    """Return options for small networks and rollouts of an algorithm.

    alone: the algorithm does not continue a run, whose network sizes it would inherit.
    """
    cls = algorithm_class(algorithm)
    known, small = {field.name for field in fields(cls.Config)}, dict[str, Any]()
    if alone:
        small |= {key: [8, 8] for key in known if key.endswith("hidden")}
        small |= {key: 1 for key in known if key.endswith("layers")}
        small |= {"dim_model": 8, "num_heads": 2} if {"dim_model", "num_heads"} <= known else {}
        small |= {"widths": [8, 8]} if "widths" in known else {}
    if cls.dynamics_model is not None:
        small |= {k: list(v) if isinstance(v, tuple) else v for k, v in cls.Config.small().items()}
    if cls.mode.start == "run":
        small |= {"tuned": 2, "environments": 2, "decisions": 12, "batch_size": 12, "epochs": 2}
    return {f"algorithm.{key}": value for key, value in small.items()}


def shrunk(line: str) -> list[str]:
    """Return the words of an `offline-rl` command with sizes that take seconds."""
    verb, *words = shlex.split(line, comments=True)[1:]
    options = dict(word.partition("=")[::2] for word in words if "=" in word)
    rest = [word for word in words if "=" not in word]
    keys = {k: value if value == "0" else TINY.get(k, value) for k, value in options.items()}
    if verb in LEARNS and not rest:
        keys |= {key: TINY[key] for key in ALWAYS} | {"seeds": 1}
        name = options.get("algorithm", {"distill": "consistency"}.get(verb))
        if name is not None:
            sizes = sizes_of(name, alone="run" not in options)
            if "algorithm.batch_size" in sizes:
                keys.pop("batch_size")
            keys = sizes | {key: value for key, value in keys.items() if key not in sizes}
    if verb in ("evaluate", "play"):
        keys["episodes"] = TINY["episodes"]
    if verb == "generate":
        keys["rows"] = TINY["rows"]
    return [verb, *rest, *(f"{key}={value}" for key, value in keys.items())]


def snippet(text: str, namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a Python snippet; trainings in it are as short as a command's."""
    true_train = offline_rl.train

    def train(**keys: Any) -> Any:
        options = {k: TINY.get(k, v) for k, v in keys.items()} | {k: TINY[k] for k in ALWAYS}
        return true_train(**sizes_of(keys["algorithm"], alone=True), **options)

    with monkeypatch.context() as patch:
        patch.setattr(offline_rl, "train", train, raising=False)
        exec(compile(text, "snippet", "exec"), namespace)


def files(folder: Path) -> dict[str, Any]:
    """Write the files that pages assume the reader has, and return the arrays that they assume."""
    save_small(folder / "my.hdf5.npz", obs=3, act=1)
    data = offline_rl.Dataset.load(folder / "my.hdf5.npz")
    write_d4rl(data, folder / "my.hdf5")
    save_small(folder / "data.npz", obs=5, act=5)
    arm = offline_rl.Dataset.load(folder / "data.npz")
    arrays = {"observations": arm.observations[: len(arm)], "actions": arm.actions}
    arrays |= {key: getattr(arm, key) for key in ("rewards", "terminated", "truncated")}
    rng = np.random.default_rng(0)
    seen = {"state": rng.normal(size=(220, 3)).astype(np.float32)}
    seen["top"] = rng.integers(0, 256, (220, 24, 24, 3), np.uint8)
    ends = np.arange(220) % 110 == 109
    actions = rng.uniform(-1, 1, (220, 2)).astype(np.float32)
    pictures = Dataset.from_arrays(seen, actions, np.zeros(220), ends & False, ends)
    write_lerobot(pictures, folder / "my_lerobot_folder", fps=10.0, task="reach")
    return {**arrays, "low": (-1.0,) * 5, "high": (1.0,) * 5}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_docs_run(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFLINE_RL_DATA", str(tmp_path / "data"))
    namespace = files(tmp_path)
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        if block.reason is not None:
            continue
        if block.language == PYTHON and (file := re.match(r"# (\w+\.py)\n", block.text)):
            (tmp_path / file[1]).write_text(block.text)
        elif block.language == PYTHON and reason_of(block.text) is None:
            snippet(block.text, dict(namespace), monkeypatch)
        if block.language not in SHELL:
            continue
        for line in commands(block):
            if reason_of(line) is None:
                assert line.startswith("offline-rl "), f"{where}: {line}: give a reason, or run it"
                words = shrunk(line)
                code, errors = main(words), capsys.readouterr().err
                assert code == 0, f"{where}: {line}, run as {' '.join(words)}: {errors}"


def test_every_block_of_a_page_is_run_or_has_a_reason() -> None:
    """Blocks in other languages are diagrams and files."""
    page_blocks = [block for page in PAGES for block in blocks(page)]
    assert {b.language for b in page_blocks} <= {*SHELL, PYTHON, "yaml", "mermaid", "text"}
    assert sum(len(commands(b)) for b in page_blocks if b.language in SHELL) > 20


def test_a_command_is_shortened_and_otherwise_unchanged() -> None:
    line = "offline-rl train algorithm=td3_bc task=none dataset=my.hdf5 num_updates=100000 # long"
    verb, *words = shrunk(line)
    assert verb == "train"
    assert {"task=none", "dataset=my.hdf5", "num_updates=20", "compile=never"} <= set(words)
    assert shrunk("offline-rl report runs") == ["report", "runs"]


def test_a_block_may_say_why_it_is_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run: needs a robot -->\n```\noffline-rl a \\\n  b\n```\n```\nx\n```\n"
    )
    first, second = blocks(page)
    assert (first.reason, second.reason) == ("needs a robot", None)
    assert commands(first) == ["offline-rl a    b"]
    assert commands(second) == []
