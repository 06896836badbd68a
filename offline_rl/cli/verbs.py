"""Verbs of the command line. A verb's docstring and its options form its --help page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import parse_options, takes_options, unknown

PYTHON = ("show", "watch", "start")  # parameters of `train` in Python that are not options


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
    "offline_rl.training.options:TrainOptions",
    flags=("-m", "--multirun", "-c", "--cfg"),
    wandb="offline_rl.training.options:WandbOptions",
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
    """
    _hide_warnings()
    from offline_rl.cli.compose import compose, job_to_yaml
    from offline_rl.cli.launch import launch, merge
    from offline_rl.reporting.report import report as table

    command = compose(arguments)
    if command.print_only:
        print("---\n".join(map(job_to_yaml, merge(command.jobs))), end="")
        return
    paths = launch([_check_keys(job) for job in command.jobs])
    folder = os.path.commonpath(paths)
    print(table(paths, out=folder))
    print(folder)


@takes_options("offline_rl.training.options:FinetuneOptions")
def finetune(arguments: Sequence[str]) -> None:
    """Continue a run with online training, each seed from its newest checkpoint.

    usage: offline-rl finetune run=<run folder> num_env_steps=<steps> [key=value …]
           offline-rl finetune base=<bundle or module:function> task=<task>
                               dataset=<demonstrations> num_env_steps=<steps> [key=value …]

    The second form trains a residual policy, which adds small actions to those of a frozen base
    policy of any kind (algorithm=resfit).

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
    from offline_rl.training.finetune import finetune as run

    result = run(**_check_keys(parse_options(arguments)))
    print(table(result.path))
    print(result.path)


@takes_options("offline_rl.training.options:DistillOptions")
def distill(arguments: Sequence[str]) -> None:
    """Distill a diffusion or flow policy into a one-step policy.

    usage: offline-rl distill run=<run folder> num_updates=<updates> [key=value …]

    All options of `train` are allowed. The teacher of each seed is its newest checkpoint in the
    run. Data, seeds and network settings are those of the run. The run itself is not changed.
    Repeat the command to continue an interrupted run. The last line printed is the run's folder.
    """
    _hide_warnings()
    from offline_rl.reporting.report import report as table
    from offline_rl.training.finetune import distill as run

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


@takes_options("offline_rl.evaluation.export:ExportOptions")
def export(arguments: Sequence[str]) -> None:
    """Add ONNX graphs to policy bundles, so that the policies run without torch.

    usage: offline-rl export run=<bundle, seed folder or run folder> [format=onnx]

    The graphs are added to the bundle files after their outputs are compared with torch. MLPs need
    no graph: NumPy runs them. The last line printed is the value of run=.
    """
    _hide_warnings()
    from offline_rl.evaluation.export import export as run

    options = parse_options(arguments)
    print(*run(**options), options["run"], sep="\n")


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


@takes_options("offline_rl.data.convert:Options")
def data(arguments: Sequence[str]) -> None:
    """List, describe, check, download and convert datasets.

    usage: offline-rl data list [data_dir=<folder>]
           offline-rl data info <file or card> [key=value …]
           offline-rl data check <file or card> [key=value …]   (exit code 2 on errors)
           offline-rl data download <task> [<task> …] [data_dir=<folder>]
           offline-rl data convert <file or card> <new file or folder> [key=value …]

    <file> is a file or a folder. Its layout is recognized by its content; see
    docs/reference/formats.md. <card> is a dataset's name in `offline-rl data list`.
    data_dir= is the folder of the datasets. Repeat the command to
    continue an interrupted download; complete files are not downloaded again.
    The options below are for info, check and convert. For info and check, format= is the layout of
    the file. For convert, format= is the layout to write, and source_format= is the layout of the
    file to read.
    """
    from dataclasses import asdict

    from offline_rl.data import convert
    from offline_rl.data import info as describe
    from offline_rl.data.download import download
    from offline_rl.data.formats.common import ReadOptions
    from offline_rl.data.load import locate
    from offline_rl.data.validation import validate
    from offline_rl.utils.options import build
    from offline_rl.utils.text import format_count

    actions = {"list": (0, 0), "info": (1, 1), "check": (1, 1), "convert": (2, 2)}
    actions["download"] = (1, len(arguments))
    if not arguments or arguments[0] not in actions:
        raise UserError(
            "data needs an action: list, info <file or card>, check <file or card>, download "
            "<task> or convert <from> <to>"
        )
    action, *rest = arguments
    names = [a for a in rest if "=" not in a]
    options = parse_options([a for a in rest if "=" in a])
    data_dir = options.pop("data_dir", None)
    minimum, maximum = actions[action]
    if not minimum <= len(names) <= maximum or (options and action in ("list", "download")):
        raise UserError(f"data {action}: wrong arguments. See offline-rl data --help.")
    built = build(convert.Options if action == "convert" else ReadOptions, options)
    passed = {key: value for key, value in asdict(built).items() if key in options}
    if action == "list":
        print(describe.list_cards(data_dir))
    elif action == "info":
        print(describe.info(names[0], data_dir, **passed))
    elif action == "download":
        print(*download(names, data_dir), sep="\n")
    elif action == "convert":
        print(convert.convert(names[0], names[1], data_dir=data_dir, **passed))
        print(names[1])
    else:
        read, limit = build(ReadOptions, options), passed.get("max_episode_steps")
        problems = validate(locate(names[0], data_dir), max_episode_steps=limit, options=read)
        for problem in problems:
            print(f"{problem.severity}: {problem.sentence}")
        errors = sum(problem.severity == "error" for problem in problems)
        warnings = format_count(len(problems) - errors, "warning")
        if errors:
            raise UserError(f"{names[0]}: {format_count(errors, 'error')}, {warnings}")
        print(f"{names[0]}: no errors, {warnings}")


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

    Repeat the command to continue an interrupted suite; finished runs are skipped.
    """
    _hide_warnings()
    from offline_rl.suite.benchmark import benchmark as run

    print(run(**parse_options(arguments)))
