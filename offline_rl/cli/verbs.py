"""Verbs of the command line. A verb's docstring and its options form its --help page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import parse_options, takes_options, unknown

PYTHON = ("show", "watch")  # parameters of `train` in Python that are not options


def _hide_warnings() -> None:
    """Hide the warnings of libraries."""
    import warnings

    warnings.filterwarnings("ignore")


def _check_keys(keys: dict[str, Any]) -> dict[str, Any]:
    """Return `keys`. Raises UserError for parameters that only the Python function has."""
    for name in PYTHON:
        if name in keys:
            raise UserError(unknown("option", name, ()))
    return keys


@takes_options(
    "offline_rl.runs.options:TrainOptions",
    flags=("-m", "--multirun", "-c", "--cfg"),
    wandb="offline_rl.runs.options:WandbOptions",
)
def train(arguments: Sequence[str]) -> None:
    """Train policies on a dataset or online, evaluate them and write policy bundles.

    usage: offline-rl train algorithm=<name> task=<task> [key=value …]
           offline-rl train experiment=<name or file> [key=value …]    a file in configs/experiment
           offline-rl train … -m    sweep over values: algorithm=iql,cql 'seeds=range(0,3)'
           offline-rl train … --cfg job    print the complete configuration as YAML, train nothing
           offline-rl train algorithm=<name> [task=<task>] --help    list its hyper-parameters too

    Set hyper-parameters with algorithm.<name>=…, for example algorithm.alpha=1.0. A list such as
    algorithm.alpha=[0.5,2.5] makes one run per value; all of them train in parallel.
    Repeat the command to continue an interrupted run. The last line printed is the run's folder.

    To train one chunk policy (act, diffusion_policy, flow_policy) on several GPUs or machines:
    torchrun --standalone --nproc-per-node=<GPUs> --no-python offline-rl train …
    """
    _hide_warnings()
    from offline_rl.cli.compose import compose, runs_to_yaml
    from offline_rl.reporting.report import report as table
    from offline_rl.runs.run import stack
    from offline_rl.training.train import launch, runs_of_jobs

    command = compose(arguments)
    jobs = [_check_keys(job) for job in command.jobs]
    if command.print_only:
        print("---\n".join(map(runs_to_yaml, stack(runs_of_jobs(jobs)))), end="")
        return
    paths = launch(jobs)
    if hardware.rank() > 0:
        return
    folder = os.path.commonpath(paths)
    print(table(paths, out=folder))
    print(folder)


@takes_options("offline_rl.search.options:SearchOptions")
def search(arguments: Sequence[str]) -> None:
    """Search hyper-parameters: train many settings, in parallel where possible, and rank them.

    usage: offline-rl search algorithm=<name> task=<task> algorithm.<name>=<sweep> [key=value …]

    A sweep is choice(a,b), a,b, range(start,stop,step), interval(low,high) or
    tag(log,interval(low,high)); quote it in the shell. algorithm.<field>, online.<field>,
    batch_size and utd can be searched. Settings that differ only in real-valued hyper-parameters
    train in one program, other settings one after another.
    Training seeds and evaluation episodes differ from those of `train`. Train the best setting with
    offline-rl train experiment=<folder>/best.yaml.
    Repeat the command to continue an interrupted search; a larger trials= extends it. The last line
    printed is the folder of the search.
    """
    _hide_warnings()
    from offline_rl.cli.compose import split_sweeps
    from offline_rl.search.search import search as run

    keys, space = split_sweeps(arguments)
    print(run(_check_keys(keys), space))


@takes_options("offline_rl.runs.options:FinetuneOptions")
def finetune(arguments: Sequence[str]) -> None:
    """Continue a run with online training, each seed from its newest checkpoint.

    usage: offline-rl finetune run=<run folder> num_env_steps=<steps> [key=value …]
           offline-rl finetune base=<bundle or module:function> task=<task>
                               dataset=<demonstrations> num_env_steps=<steps> [key=value …]

    The second form trains on a frozen base policy. By default it trains a residual policy, which
    adds small actions to those of the base (algorithm=resfit). With algorithm=dsrl it trains a
    policy that chooses the initial noise of a flow or diffusion policy; dataset= is optional.

    All options of `train` are allowed. Data, hyper-parameters and seeds default to those of the
    run, the other options to the defaults of `train`. The run itself is not changed. With another
    algorithm=, each network is loaded from the run's network of the same name.
    Options of online training are online.warmup_steps, online.warmup_policy,
    online.offline_fraction and online.n_step; online.<hyper-parameter>= sets a hyper-parameter for
    online training only.
    Repeat the command to continue an interrupted run. The last line printed is the run's folder.
    """
    _hide_warnings()
    from offline_rl.reporting.report import report as table
    from offline_rl.training.train import finetune as run

    result = run(**_check_keys(parse_options(arguments)))
    print(table(result.path))
    print(result.path)


@takes_options("offline_rl.runs.options:DistillOptions")
def distill(arguments: Sequence[str]) -> None:
    """Distill a diffusion or flow policy into a one-step policy.

    usage: offline-rl distill run=<run folder> num_updates=<updates> [key=value …]

    All options of `train` are allowed. The teacher of each seed is its newest checkpoint in the
    run. Data, seeds and network settings are those of the run. The run itself is not changed.
    Repeat the command to continue an interrupted run. The last line printed is the run's folder.
    """
    _hide_warnings()
    from offline_rl.reporting.report import report as table
    from offline_rl.training.train import distill as run

    options = _check_keys(parse_options(arguments))
    if "run" not in options:
        raise UserError("distill needs a teacher. Set run=<folder>.")
    result = run(**options)
    print(table(result.path))
    print(result.path)


@takes_options("offline_rl.evaluation.options:EvaluateOptions")
def evaluate(arguments: Sequence[str]) -> None:
    """Evaluate policy bundles in a task's environment, or compare several runs.

    usage: offline-rl evaluate run=<bundle, seed folder or run folder> [key=value …]
           offline-rl evaluate 'run=[<first>,<second>]' [key=value …]    compare runs

    The episodes are saved in a JSON file next to each bundle; `report` shows them. Several runs are
    evaluated on the same episodes, and their paired differences from the first run are printed with
    95 % confidence intervals.
    """
    _hide_warnings()
    from offline_rl.evaluation.evaluate import evaluate as run

    print(run(**parse_options(arguments)))


@takes_options("offline_rl.runs.export:ExportOptions")
def export(arguments: Sequence[str]) -> None:
    """Add ONNX graphs to policy bundles, so that the policies run without torch.

    usage: offline-rl export run=<bundle, seed folder or run folder> [format=onnx]
           offline-rl export run=<bundle or seed folder> format=hub license=<identifier>

    The graphs are added to the bundle files after their outputs are compared with torch. MLPs need
    no graph: NumPy runs them. The last line printed is the value of run=. With format=hub, a folder
    with a model card, the bundle, its settings and its evaluation is written; upload it to a model
    hub. The last line printed is the folder.
    """
    _hide_warnings()
    from offline_rl.runs.export import export as run

    options = parse_options(arguments)
    lines = run(**options)
    print(*lines, *([] if options.get("format") == "hub" else [options["run"]]), sep="\n")


@takes_options("offline_rl.evaluation.play:PlayOptions")
def play(arguments: Sequence[str]) -> None:
    """Record episodes of a policy as a video.

    usage: offline-rl play run=<bundle or folder> [episodes=<count>] [out=<file .mp4 or .gif>]

    The last line printed is the file's name.
    """
    _hide_warnings()
    from offline_rl.evaluation.play import play as run

    print(*run(**parse_options(arguments)), sep="\n")


@takes_options("offline_rl.generation.options:GenerateOptions")
def generate(arguments: Sequence[str]) -> None:
    """Generate datasets by a recipe in configs/recipe: train an agent, roll it out, write the data.

    usage: offline-rl generate recipe=<name or file> [key=value …]

    A dataset card and a learning curve are written too. Repeat the command to continue an
    interrupted recipe.
    """
    _hide_warnings()
    from offline_rl.generation.recipes import generate as run

    print(run(**parse_options(arguments)))


@takes_options("offline_rl.reporting.options:ReportOptions")
def report(arguments: Sequence[str]) -> None:
    """Write learning curves and a table of finished and running runs.

    usage: offline-rl report <run folder> [<run folder> …] [key=value …]

    Writes report.md and curves.png, and prints the table with as many columns as fit the terminal.
    format=csv or format=latex prints the table in that format instead.
    """
    from offline_rl.reporting.report import report as run

    folders = [a for a in arguments if "=" not in a]
    print(run(folders, **parse_options([a for a in arguments if "=" in a])))


@takes_options("offline_rl.suite.options:BenchmarkOptions")
def benchmark(arguments: Sequence[str]) -> None:
    """Run a suite of algorithms, tasks and seeds in several low-priority processes.

    usage: offline-rl benchmark suite=<name or file> [key=value …]
           offline-rl benchmark plan=<folder>/plan.json   (on any machine that shares the folder)
           offline-rl benchmark … launcher=ray | launcher=slurm   on many machines

    Repeat the command to continue an interrupted suite; finished runs are skipped.
    """
    _hide_warnings()
    from offline_rl.suite.benchmark import benchmark as run

    print(run(**parse_options(arguments)))


@takes_options("offline_rl.cli.doctor:DoctorOptions")
def doctor(arguments: Sequence[str]) -> None:
    """Check this machine: hardware, compiler, packages, extras and data sets.

    usage: offline-rl doctor [data_dir=<folder>]

    Missing parts are listed with the features that need them. The exit code is 0, or 2 if a
    mandatory part is broken.
    """
    _hide_warnings()
    from offline_rl.cli.doctor import doctor as run

    text, broken = run(**parse_options(arguments))
    print(text)
    if broken:
        raise UserError(f"a mandatory part is broken: {'; '.join(broken)}")
