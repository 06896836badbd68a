"""What a stranger does in the first hour, as the README says it, against the clock.

    python -m benchmarks.first_hour [first-hour]

Each task is what would be typed, in an empty folder, with lengths that show that it works and not
what it can learn. Writes README.md with a row each into the folder, by default where it is kept;
what was in the way before, and what stands below the table, is read from the notes.md kept there.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import import_path
from offline_rl.utils import hardware
from offline_rl.utils.files import write_text
from offline_rl.utils.text import table

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks/results/first-hour"
LAUNCH = "from offline_rl.cli.main import main; raise SystemExit(main())"
PENDULUM = "runs/env_Pendulum-v1"
SMALL = "algorithm.network=mlp algorithm.widths=[64,64]"
SHORT = "num_updates=200 eval_every=100 eval_episodes=2"

MINE = '''"""IQL with a heavier hand."""
from dataclasses import dataclass
from offline_rl.algorithms import iql

@dataclass(frozen=True)
class Config(iql.Config):
    beta: float = 10.0

class Mine(iql.IQL):
    Config = Config
'''
WORLD = """
import gymnasium, numpy as np

class Line(gymnasium.Env):  # move to the middle
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Box(-0.2, 0.2, (1,))
    max_episode_steps = 20

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.x, {}

    def step(self, action):
        self.x = np.clip(self.x + action, -1, 1).astype(np.float32)
        return self.x, -abs(float(self.x[0])), False, False, {}
"""
LOG = """
import h5py, numpy as np
draw, rows = np.random.default_rng(0), 3000
with h5py.File("my.hdf5", "w") as file:
    file["observations"] = draw.normal(size=(rows, 3)).astype("f4")
    file["actions"] = draw.uniform(-1, 1, (rows, 1)).astype("f4")
    file["rewards"] = draw.normal(size=rows).astype("f4")
    file["terminals"] = np.zeros(rows, bool)
    file["timeouts"] = np.arange(rows) % 200 == 199
"""
NOTEBOOK = f"""
import numpy as np, offline_rl
run = offline_rl.load("{PENDULUM}/iql/default")
observations = np.random.default_rng(0).normal(size=(5, 3))
print(run, run.q_values(observations, run.act(observations)).mean(0))
"""
NO_TORCH = """
import runpy, sys
sys.modules["torch"] = None
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LINES = """
a first look
    train experiment=demo num_updates=300 eval_every=300 eval_episodes=2
a file like D4RL's
    data check my.hdf5
    train algorithm=td3_bc task=none dataset=my.hdf5 {short}
arrays of one's own
    python examples/train_on_own_arrays.py
an environment of one's own
    train algorithm=sac task=env:world.py:Line num_updates=0 num_env_steps=1000 eval_every=1000
an algorithm of one's own
    train algorithm=mine.py task=env:Pendulum-v1 dataset=my.hdf5 {short}
a sweep
    train algorithm=iql task=none dataset=my.hdf5 algorithm.expectile=[0.6,0.7,0.8] {short}
killed, and the same command again
    train algorithm=bc task=none dataset=my.hdf5 num_updates=4000 checkpoint_every=500
longer than planned
    train algorithm=bc task=none dataset=my.hdf5 num_updates=4200 checkpoint_every=500
two methods compared
    train -m algorithm=td3_bc,iql task=env:Pendulum-v1 dataset=my.hdf5 name=compared {short}
    report runs/env_Pendulum-v1 out=compared
values in a notebook
    python notebook.py
a policy's score
    evaluate run={iql} episodes=2
a policy without torch
    python deploy {iql}/seed_0/policy.bundle Pendulum-v1
a policy as ONNX
    export run={iql}
on from there, online
    finetune run={compared} num_env_steps=400 eval_every=400 eval_episodes=2
a clone by diffusion
    train algorithm=diffusion_policy task=none dataset=my.hdf5 num_updates=50 {small}
a video
    train algorithm=sac task=push/standard num_updates=0 num_env_steps=1000 eval_every=1000
    play run=runs/push_standard/sac/default out=push.gif
"""
KILLED = "killed, and the same command again"


@dataclass(frozen=True)
class Task:
    """What is wanted, and how it is typed."""

    name: str
    typed: tuple[str, ...]  # lines; those that begin with python are not the command's


def tasks() -> list[Task]:
    """Those of LINES."""
    text = LINES.format(
        short=SHORT, iql=f"{PENDULUM}/iql/default", compared=f"{PENDULUM}/iql/compared", small=SMALL
    )
    made = []
    for part in re.split(r"\n(?=\S)", text.strip()):
        name, *typed = map(str.strip, part.splitlines())
        made.append(Task(name, tuple(typed) * (2 if name == KILLED else 1)))
    return made


def notes() -> dict[str, str]:
    """Sections of notes.md by title."""
    parts = (KEPT / "notes.md").read_text().split("\n## ")[1:]
    return {title: text.strip() for title, _, text in (part.partition("\n") for part in parts)}


def main(folder: Path) -> None:
    """Does all tasks in a folder of their own, and writes the table."""
    found, rows = notes(), []
    before = dict(re.findall(r"^- (.+?): (.+)$", found["In the way before"], re.MULTILINE))
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        (here / "examples").symlink_to(ROOT / "examples")
        for name, text in (("mine.py", MINE), ("world.py", WORLD), ("notebook.py", NOTEBOOK)):
            (here / name).write_text(text)
        subprocess.run([sys.executable, "-c", LOG], cwd=here, check=True)
        for task in tasks():
            start, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            for number, line in enumerate(task.typed):
                run(line, here, kill=task.name == KILLED and not number)
            end, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - started
            busy = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
            typed = "<br>".join(f"`{line}`" for line in dict.fromkeys(task.typed))
            told = before.get(task.name, "")
            rows.append([task.name, typed, told, f"{busy:.0f}", f"{wall:.0f}"])
            print(task.name, *rows[-1][3:], flush=True)
    facts = hardware.describe_machine()
    machine = ", ".join(f"{key} {facts[key]}" for key in ("commit", "python", "torch", "cores"))
    body = table(HEADER, rows, markdown=True, left=3)
    text = PAGE.format(table=body, machine=machine, beside=found["Beside it"])
    write_text(folder / "README.md", text)


def run(line: str, here: Path, *, kill: bool) -> None:
    """Raises CalledProcessError with what was printed, where a task fails."""
    words = line.split()
    if words[0] != "python":
        command = [sys.executable, "-c", LAUNCH, *words]
    elif words[1] == "deploy":
        command = [sys.executable, "-c", NO_TORCH, "examples/deploy_without_torch.py", *words[2:]]
    else:
        command = [sys.executable, *words[1:]]
    env = os.environ | {"PYTHONPATH": import_path(ROOT)}
    log = here / "log"
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=here, env=env, stdout=out, stderr=out)
        while (
            kill and process.poll() is None and not [*here.glob("runs/none_my/bc/**/*.safetensors")]
        ):
            time.sleep(0.05)
        if kill:
            process.send_signal(signal.SIGKILL)
    if process.wait() and not kill:
        sys.exit(f"{line}\n{log.read_text()}")


HEADER = ["task", "typed", "in the way before", "processor, s", "wall, s"]
PAGE = """# A stranger's first hour

What a new user does first, typed as the README has it into an empty folder, one task after another;
lengths show that it works, not what can be learned. `python -m benchmarks.first_hour` does all of it
again and writes this page. Lines without `python` begin with `offline-rl`. Processor seconds are of
all processes; wall time is what else ran on the machine, too. In the way before: what an earlier
trial of two hours stumbled over; [two trials by hand](notes.md), before and after.

{table}

{machine}.

{beside}
"""

if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else KEPT)
