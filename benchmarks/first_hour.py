"""What a stranger does in the first hour, as the README says it, against the clock.

    python -m benchmarks.first_hour [first-hour]

Each task is what would be typed, in an empty folder, with lengths that show that it works and not
what it can learn. Writes README.md with a row each into the folder, by default where it is kept.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from offline_rl.utils import hardware
from offline_rl.utils.files import write_text
from offline_rl.utils.text import table

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = "from offline_rl.cli.main import main; raise SystemExit(main())"
PENDULUM = "runs/env_Pendulum-v1"
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
NO_TORCH = (
    "import sys, runpy; sys.modules['torch'] = None; runpy.run_path(sys.argv[1], None, '__main__')"
)


@dataclass(frozen=True)
class Task:
    """What is wanted, how it is typed, and what was in the way before."""

    name: str
    typed: tuple[str, ...]  # lines; those that begin with python are not the command's
    before: str = ""
    killed: bool = False  # the first line is killed once there is a checkpoint


TASKS = (
    Task("demo", ("train experiment=demo num_updates=500 eval_every=250 eval_episodes=2",),
         "three minutes without a word while it was compiled"),
    Task("a D4RL-like file", ("data check my.hdf5", f"train algorithm=td3_bc task=none dataset=my.hdf5 {SHORT}"),
         "`train` was silent about what `check` finds"),
    Task("arrays of one's own", ("python examples/train_on_own_arrays.py",), "a file had to be written first"),
    Task("an environment of one's own",
         ("train algorithm=sac task=env:world.py:Line num_updates=0 num_env_steps=1000 eval_every=1000",),
         "a file of one's own needed PYTHONPATH"),
    Task("an algorithm of one's own",
         (f"train algorithm=mine.py task=env:Pendulum-v1 dataset=my.hdf5 {SHORT}",)),
    Task("a sweep",
         (f"train algorithm=iql task=none dataset=my.hdf5 algorithm.expectile=[0.6,0.7,0.8] {SHORT}",),
         "an unquoted list, and only of numbers"),
    Task("killed, and the same command again",
         ("train algorithm=bc task=none dataset=my.hdf5 num_updates=20000 checkpoint_every=1000",) * 2,
         "Ctrl-C lost up to 10,000 updates", killed=True),
    Task("longer than planned", ("train algorithm=bc task=none dataset=my.hdf5 num_updates=22000",),
         "refused: another run"),
    Task("two methods compared",
         (f"train -m algorithm=td3_bc,awac task=env:Pendulum-v1 dataset=my.hdf5 {SHORT}",
          "report runs/env_Pendulum-v1 out=compared"), "axes of 40 pixels in a picture with 12 labels"),
    Task("values in a notebook", ("python notebook.py",), "there was no way but the checkpoint's tensors"),
    Task("evaluate a bundle", (f"evaluate run={PENDULUM}/iql/default episodes=2",)),
    Task("deploy without torch", (f"python deploy {PENDULUM}/iql/default/seed_0/policy.bundle Pendulum-v1",),
         "torch was needed, and actions were rescaled by hand"),
    Task("as ONNX", (f"export run={PENDULUM}/iql/default",)),
    Task("fine-tune online", (f"finetune run={PENDULUM}/iql/default num_env_steps=400 eval_every=400 eval_episodes=2",)),
    Task("a diffusion clone",
         ("train algorithm=diffusion_policy task=none dataset=my.hdf5 num_updates=50 "
          "algorithm.network=mlp algorithm.widths=[64,64]",)),
    Task("a video", (f"play run={PENDULUM}/iql/default out=pendulum.gif",)),
)  # fmt: skip


def main(folder: Path) -> None:
    """Does all tasks in a folder of their own, and writes the table."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        (here / "examples").symlink_to(ROOT / "examples")
        for name, text in (("mine.py", MINE), ("world.py", WORLD), ("notebook.py", NOTEBOOK)):
            (here / name).write_text(text)
        subprocess.run([sys.executable, "-c", LOG], cwd=here, check=True)
        for task in TASKS:
            before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            for number, line in enumerate(task.typed):
                run(line, here, kill=task.killed and not number)
            after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - started
            busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            typed = "<br>".join(f"`{line}`" for line in dict.fromkeys(task.typed))
            rows.append([task.name, typed, f"{busy:.0f}", f"{wall:.0f}", task.before])
            print(*rows[-1][:1], *rows[-1][2:4], flush=True)
    page = PAGE.format(table=table(HEADER, rows, markdown=True), machine=machine())
    write_text(folder / "README.md", page)


def run(line: str, here: Path, *, kill: bool) -> None:
    """Raises CalledProcessError with what was printed, where a task fails."""
    words = line.split()
    if words[0] != "python":
        command = [sys.executable, "-c", LAUNCH, *words]
    elif words[1] == "deploy":
        command = [sys.executable, "-c", NO_TORCH, "examples/deploy_without_torch.py", *words[2:]]
    else:
        command = [sys.executable, *words[1:]]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    log = here / "log"
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=here, env=env, stdout=out, stderr=out)
        while kill and process.poll() is None and not [*here.glob("runs/none/bc/**/*.safetensors")]:
            time.sleep(0.05)
        if kill:
            process.send_signal(signal.SIGKILL)
    if process.wait() and not kill:
        sys.exit(f"{line}\n{log.read_text()}")


def machine() -> str:
    return f"{hardware.cores()} cores"


HEADER = ["task", "typed", "processor s", "wall s", "in the way before"]
PAGE = """# A stranger's first hour

{table}
"""

if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "benchmarks/results/first-hour")
