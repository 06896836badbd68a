"""Time what a new user does in the first hour, with the commands of the README.

    python -m benchmarks.first_hour [first-hour]

Each task runs the commands that a user would type in an empty folder. Training is short: it shows
that the commands work, not what can be learned. README.md with one row per task is written into the
given folder; the default is the folder of the stored page. Earlier problems, and the text below the
table, come from the stored notes.md.
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
STORED = ROOT / "benchmarks/results/first-hour"
LAUNCH = "from offline_rl.cli.main import main; raise SystemExit(main())"
PENDULUM = "runs/env_Pendulum-v1"
SMALL = "algorithm.network=mlp algorithm.widths=[64,64]"
SHORT = "num_updates=200 eval_every=100 eval_episodes=2"

ALGORITHM = '''"""IQL with a larger inverse temperature."""
from dataclasses import dataclass
from offline_rl.algorithms import iql

@dataclass(frozen=True)
class Config(iql.Config):
    beta: float = 10.0

class Mine(iql.IQL):
    Config = Config
'''
ENVIRONMENT = """
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
MAKE_DATA = """
import h5py, numpy as np
rng, rows = np.random.default_rng(0), 3000
with h5py.File("my.hdf5", "w") as file:
    file["observations"] = rng.normal(size=(rows, 3)).astype("f4")
    file["actions"] = rng.uniform(-1, 1, (rows, 1)).astype("f4")
    file["rewards"] = rng.normal(size=rows).astype("f4")
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
demo run
    train experiment=demo num_updates=300 eval_every=300 eval_episodes=2
data file in D4RL's layout
    data check my.hdf5
    train algorithm=td3_bc task=none dataset=my.hdf5 {short}
data from arrays
    python examples/train_on_own_arrays.py
custom environment
    train algorithm=sac task=env:world.py:Line num_updates=0 num_env_steps=1000 eval_every=1000
custom algorithm
    train algorithm=mine.py task=env:Pendulum-v1 dataset=my.hdf5 {short}
hyperparameter sweep
    train algorithm=iql task=none dataset=my.hdf5 algorithm.expectile=[0.6,0.7,0.8] {short}
resume after a kill
    train algorithm=bc task=none dataset=my.hdf5 num_updates=4000 checkpoint_every=500
extend a finished run
    train algorithm=bc task=none dataset=my.hdf5 num_updates=4200 checkpoint_every=500
compare two algorithms
    train -m algorithm=td3_bc,iql task=env:Pendulum-v1 dataset=my.hdf5 name=compared {short}
    report runs/env_Pendulum-v1 out=compared
Q values in a notebook
    python notebook.py
evaluate a policy
    evaluate run={iql} episodes=2
deploy a policy without torch
    python deploy {iql}/seed_0/policy.bundle Pendulum-v1
export a policy to ONNX
    export run={iql}
online fine-tuning
    finetune run={compared} num_env_steps=400 eval_every=400 eval_episodes=2
diffusion policy
    train algorithm=diffusion_policy task=none dataset=my.hdf5 num_updates=50 {small}
record a video
    train algorithm=sac task=push/standard num_updates=0 num_env_steps=1000 eval_every=1000
    play run=runs/push_standard/sac/default out=push.gif
"""
KILLED = "resume after a kill"


@dataclass(frozen=True)
class Task:
    """A task and its commands."""

    name: str
    commands: tuple[str, ...]  # lines; those without `python` are arguments of offline-rl


def tasks() -> list[Task]:
    """Return the tasks of LINES."""
    text = LINES.format(
        short=SHORT, iql=f"{PENDULUM}/iql/default", compared=f"{PENDULUM}/iql/compared", small=SMALL
    )
    result = []
    for part in re.split(r"\n(?=\S)", text.strip()):
        name, *commands = map(str.strip, part.splitlines())
        result.append(Task(name, tuple(commands) * (2 if name == KILLED else 1)))
    return result


def notes() -> dict[str, str]:
    """Return the sections of notes.md by title."""
    parts = (STORED / "notes.md").read_text().split("\n## ")[1:]
    return {title: text.strip() for title, _, text in (part.partition("\n") for part in parts)}


def main(folder: Path) -> None:
    """Run all tasks in a temporary folder and write the table."""
    sections, rows = notes(), []
    problems = dict(re.findall(r"^- (.+?): (.+)$", sections["Earlier problems"], re.MULTILINE))
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "examples").symlink_to(ROOT / "examples")
        for name, text in (
            ("mine.py", ALGORITHM),
            ("world.py", ENVIRONMENT),
            ("notebook.py", NOTEBOOK),
        ):
            (work / name).write_text(text)
        subprocess.run([sys.executable, "-c", MAKE_DATA], cwd=work, check=True)
        for task in tasks():
            start, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            for number, line in enumerate(task.commands):
                run(line, work, kill=task.name == KILLED and not number)
            end, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - started
            busy = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
            commands = "<br>".join(f"`{line}`" for line in dict.fromkeys(task.commands))
            problem = problems.get(task.name, "")
            rows.append([task.name, commands, problem, f"{busy:.0f}", f"{wall:.0f}"])
            print(task.name, *rows[-1][3:], flush=True)
    facts = hardware.describe_machine()
    machine = ", ".join(f"{key} {facts[key]}" for key in ("commit", "python", "torch", "cores"))
    body = table(HEADER, rows, markdown=True, left=3)
    text = PAGE.format(table=body, machine=machine, rest=sections["Further tests"])
    write_text(folder / "README.md", text)


def run(line: str, work: Path, *, kill: bool) -> None:
    """Run a command in the folder `work`; exit with its output if it fails.

    kill: kill it after its first checkpoint.
    """
    words = line.split()
    if words[0] != "python":
        command = [sys.executable, "-c", LAUNCH, *words]
    elif words[1] == "deploy":
        command = [sys.executable, "-c", NO_TORCH, "examples/deploy_without_torch.py", *words[2:]]
    else:
        command = [sys.executable, *words[1:]]
    env = os.environ | {"PYTHONPATH": import_path(ROOT)}
    log = work / "log"
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=work, env=env, stdout=out, stderr=out)
        while (
            kill and process.poll() is None and not [*work.glob("runs/none_my/bc/**/*.safetensors")]
        ):
            time.sleep(0.05)
        if kill:
            process.send_signal(signal.SIGKILL)
    if process.wait() and not kill:
        sys.exit(f"{line}\n{log.read_text()}")


HEADER = ["task", "commands", "earlier problem", "processor, s", "wall, s"]
PAGE = """# First hour of a new user

The commands that a new user types first, from the README, run one after another in an empty folder.
Training is short: it shows that the commands work, not what can be learned.
`python -m benchmarks.first_hour` runs everything again and writes this page. Lines without `python`
are arguments of `offline-rl`. Processor seconds are summed over all processes. Wall time also
depends on what else ran on the machine. `earlier problem`: a problem of an earlier trial, which
took two hours; see [two trials by hand](notes.md).

{table}

{machine}.

{rest}
"""

if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else STORED)
