"""Cells as Slurm jobs: an array script is written and submitted with sbatch.

    <out>/queue/slurm/<cell>.json       the request that the job of a cell reads
    <out>/queue/slurm/<first cell>.sh   the array script
    <out>/queue/slurm/<job>_<k>.log     output of the jobs
    <out>/queue/slurm/jobs.json         cell -> job of the last submission

The machines share the folders of data and results. Before its time limit, a job writes a
checkpoint. The command does not wait for the jobs. Repeat it to submit cells without an active job.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from offline_rl.suite.claims import STALE_S
from offline_rl.suite.plan import Cell
from offline_rl.suite.queue import request_of
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import make_folder, read_json_object, write_json, write_text

REQUEUE_S = (
    STALE_S + 30
)  # a job that Slurm restarts waits until the claim of its earlier machine is void
GRACE_S = 120  # time before the limit at which Slurm signals a job to write a checkpoint


class SlurmLauncher:
    """Submits cells as arrays of Slurm jobs."""

    places: int | None = None

    def __init__(
        self, workers: int | None, cores: int | None, gpus: float, options: str | None
    ) -> None:
        """Check that sbatch is installed. Raises UserError.

        workers: maximum number of jobs of an array at a time. cores, gpus: of each cell.
        options: more options of sbatch.
        """
        if shutil.which("sbatch") is None:
            raise UserError(
                "launcher=slurm: sbatch is not installed on this machine. Run the command on a "
                "login node of the cluster, or use another launcher."
            )
        if not float(gpus).is_integer():
            raise UserError(f"gpus={gpus:g}: a Slurm job has whole GPUs. Use a whole number.")
        try:
            self.options = shlex.split(options or "")
        except ValueError as error:
            raise UserError(f"sbatch={options!r}: {error}. Close the quotation.") from None
        self.places, self.cores, self.gpus = workers, cores or 1, int(gpus)
        self.where = f"{workers} at a time as Slurm jobs" if workers else "as Slurm jobs"

    def run(self, plan: Sequence[Cell], out: Path, *, show: bool) -> dict[str, str]:
        """Submit the unfinished cells that have no job; return an empty dictionary.

        A cell that builds on another cell starts after its job. Raises UserError if sbatch fails.
        """
        folder = out / "queue" / "slurm"
        make_folder(folder)
        jobs = active_jobs(folder)
        waiting = [cell for cell in plan if not cell.finished and cell.id not in jobs]
        ids, groups = {cell.run: cell.id for cell in plan}, dict[tuple[str, ...], list[Cell]]()
        while waiting:
            for cell in waiting:
                needed = None if cell.can_start else ids.get(cell.previous_run or "")
                if needed is None:
                    groups.setdefault((), []).append(cell)
                elif needed in jobs:
                    groups.setdefault((jobs[needed],), []).append(cell)
            if not groups:
                break
            for after, group in groups.items():
                jobs |= self.submit(group, out, after)
                write_json(folder / "jobs.json", jobs)
                waiting = [cell for cell in waiting if cell not in group]
            groups.clear()
        return {}

    def submit(self, group: Sequence[Cell], out: Path, after: Sequence[str]) -> dict[str, str]:
        """Submit cells as one array; return cell -> job. after: jobs that must end before.

        Raises UserError if sbatch refuses.
        """
        folder = out / "queue" / "slurm"
        for cell in group:
            request = replace(request_of(cell, out), wait_s=REQUEUE_S)
            write_text(folder / f"{cell.id}.json", request.to_json() + "\n")
        script = folder / f"{group[0].id}.sh"
        write_text(script, self.script([cell.id for cell in group], folder, after))
        command = ["sbatch", "--parsable", *self.options, str(script)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise UserError(f"sbatch could not be started: {error.strerror}") from None
        job = done.stdout.strip().partition(";")[0]
        if done.returncode or not job.isdecimal():
            why = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise UserError(f"sbatch refused {script} ({why}). Correct the options in sbatch=.")
        return {cell.id: f"{job}_{index}" for index, cell in enumerate(group)}

    def script(self, cells: Sequence[str], folder: Path, after: Sequence[str]) -> str:
        """Return the array script. cells: their ids. after: jobs that must end before."""
        limit = f"%{self.places}" if self.places else ""
        options = {
            "job-name": folder.parents[1].name or "offline-rl",
            "array": f"0-{len(cells) - 1}{limit}",
            "chdir": str(Path.cwd()),
            "output": f"{folder.absolute()}/%A_%a.log",
            "open-mode": "append",
            "nodes": "1",
            "ntasks": "1",
            "cpus-per-task": str(self.cores),
            "signal": f"B:TERM@{GRACE_S}",
        }
        options |= {"gres": f"gpu:{self.gpus}"} if self.gpus else {}
        options |= {"dependency": f"afterany:{':'.join(after)}"} if after else {}
        lines = [f"#SBATCH --{name}={shlex.quote(value)}" for name, value in options.items()]
        python, where = shlex.quote(sys.executable), shlex.quote(str(folder.absolute()))
        return "\n".join(
            [
                "#!/bin/bash",
                *lines,
                "#SBATCH --requeue",
                f"cells=({' '.join(cells)})",
                'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"',
                "# Slurm's signals reach Python, because it replaces the shell",
                f"exec {python} -m offline_rl.suite.worker "
                f'< {where}/"${{cells[$SLURM_ARRAY_TASK_ID]}}".json',
                "",
            ]
        )


def active_jobs(folder: Path) -> dict[str, str]:
    """Return cell -> job of the submitted jobs that wait or run."""
    path = folder / "jobs.json"
    jobs: Mapping[str, str] = read_json_object(path) if path.is_file() else {}
    if not jobs:
        return {}
    arrays = ",".join(dict.fromkeys(job.partition("_")[0] for job in jobs.values()))
    command = ["squeue", "--noheader", "--array", "--format=%i", f"--jobs={arrays}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return {}
    active = {*done.stdout.split()}  # squeue fails if it no longer knows any of them
    return {cell: job for cell, job in jobs.items() if job in active}
