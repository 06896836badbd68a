"""The command line's verbs. A docstring, and what it `takes_options`, are that verb's --help page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import parse_options, takes_options, unknown

PYTHON = ("show", "watch", "start")  # what the functions behind verbs take besides keys


def _quiet() -> None:
    """Libraries' warnings are not the user's business."""
    import warnings

    warnings.filterwarnings("ignore")


def _keys(given: dict[str, Any]) -> dict[str, Any]:
    """`given`. Raises UserError for a word of the function's that is no key."""
    for name in PYTHON:
        if name in given:
            raise UserError(unknown("option", name, ()))
    return given


@takes_options(
    "offline_rl.training.options:TrainOptions",
    flags=("-m", "--multirun", "-c", "--cfg"),
    wandb="offline_rl.training.options:WandbOptions",
)
def train(arguments: Sequence[str]) -> None:
    """Train policies on a task's data, evaluate them and write policy bundles.

    usage: offline-rl train algorithm=<name> task=<task> [key=value …]
           offline-rl train experiment=<name or file> [key=value …]  keys of configs/experiment
           offline-rl train … -m      each of several values: algorithm=iql,cql 'seeds=range(0,3)'
           offline-rl train … --cfg job    what would be run, complete, as YAML
           offline-rl train algorithm=<name> [task=<task>] --help    its hyper-parameters as well

    Hyper-parameters are algorithm.<name>=…, for example algorithm.alpha=1.0; a list such as
    algorithm.alpha=[0.5,2.5] makes a run for each value, side by side. The same command again
    continues an interrupted run. The last line printed is the run's folder.
    """
    _quiet()
    from offline_rl.cli.compose import compose, shown
    from offline_rl.cli.launch import launch, merge
    from offline_rl.reporting.report import report as table

    command = compose(arguments)
    if command.shown:
        print("---\n".join(map(shown, merge(command.jobs))), end="")
        return
    paths = launch([_keys(job) for job in command.jobs])
    made = os.path.commonpath(paths)
    print(table(paths, out=made))
    print(made)


@takes_options("offline_rl.training.options:FinetuneOptions")
def finetune(arguments: Sequence[str]) -> None:
    """Go on from a run in its environment: each seed from its newest checkpoint.

    usage: offline-rl finetune run=<folder above the seeds> num_env_steps=<steps> [key=value …]
           offline-rl finetune base=<bundle or module:function> task=<task>
                               dataset=<demonstrations> num_env_steps=<steps> [key=value …]

    The second form leaves a policy as it is, whatever it is, and learns a small correction of its
    actions beside it (algorithm=resfit).

    And the keys of `train`. Data, hyper-parameters and seeds are the other run's, which is left as
    it is; the rest has the defaults of `train`. Another algorithm= takes over the networks that it
    has too, by name. online.<name>= is warm_up, warm_up_by, mixing, n_step, or a hyper-parameter
    that holds online. The same command again continues an interrupted run. The last line printed
    is the run's folder.
    """
    _quiet()
    from offline_rl.reporting.report import report as table
    from offline_rl.training.finetune import finetune as run

    result = run(**_keys(parse_options(arguments)))
    print(table(result.path))
    print(result.path)


@takes_options("offline_rl.training.options:DistillOptions")
def distill(arguments: Sequence[str]) -> None:
    """Teach a policy to do in one step what a finished run's does in many.

    usage: offline-rl distill run=<folder above the seeds> num_updates=<updates> [key=value …]

    And the keys of `train`. The teacher is each seed's newest checkpoint; data, seeds and what its
    network is made of are the run's, which is left as it is. The same command again continues an
    interrupted run. The last line printed is the run's folder.
    """
    _quiet()
    from offline_rl.reporting.report import report as table
    from offline_rl.training.finetune import distill as run

    given = _keys(parse_options(arguments))
    if "run" not in given:
        raise UserError("distill: say which run is the teacher, with run=<folder>")
    result = run(**given)
    print(table(result.path))
    print(result.path)


@takes_options("offline_rl.evaluation.options:EvaluateOptions")
def evaluate(arguments: Sequence[str]) -> None:
    """Score a policy bundle, or every bundle of one or more runs, in a task's environment.

    usage: offline-rl evaluate run=<bundle, seed folder or its parent> [key=value …]
           offline-rl evaluate 'run=[<first>,<second>]' [key=value …]    compares them

    Every episode is saved in a JSON file beside its bundle, which report shows. Several runs play
    the same episodes; the paired differences from the first run are printed with 95 % intervals.
    """
    _quiet()
    from offline_rl.evaluation.evaluate import evaluate as run

    print(run(**parse_options(arguments)))


@takes_options("offline_rl.evaluation.export:ExportOptions")
def export(arguments: Sequence[str]) -> None:
    """Make a policy bundle, or every bundle of a run, run without torch: its network as ONNX.

    usage: offline-rl export run=<bundle, seed folder or its parent> [format=onnx]

    The graphs are put into the same files, once they are known to answer as torch does. Perceptrons
    need none: numpy runs them. The last line printed is the run's name.
    """
    _quiet()
    from offline_rl.evaluation.export import export as make

    given = parse_options(arguments)
    print(*make(**given), given["run"], sep="\n")


@takes_options("offline_rl.evaluation.play:PlayOptions")
def play(arguments: Sequence[str]) -> None:
    """Watch a policy: episodes as a video.

    usage: offline-rl play run=<bundle or folder> [episodes=<count>] [out=<file .mp4 or .gif>]

    The last line printed is the file's name.
    """
    _quiet()
    from offline_rl.evaluation.play import play as run

    print(*run(**parse_options(arguments)), sep="\n")


@takes_options("offline_rl.generation.options:GenerateOptions")
def generate(arguments: Sequence[str]) -> None:
    """Make a dataset by a recipe in configs/recipe: train, roll out, write, with card and curve.

    usage: offline-rl generate recipe=<name or file> [key=value …]

    The learner is checkpointed: the same command continues an interrupted recipe.
    """
    _quiet()
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

    An interrupted download is continued by the same command; files that are there are left alone.
    A file may also be a folder; its layout is told by what it holds: docs/reference/formats.md.
    data_dir= is where the cards' files lie; the other keys are those of info, check and convert.
    format= of info and check is the layout of the file; of convert it is the layout to write, and
    source_format= the layout of the file.
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
            "data: say list, info <file or card>, check <file or card>, download <task> or "
            "convert <from> <to>"
        )
    action, *rest = arguments
    names = [a for a in rest if "=" not in a]
    options = parse_options([a for a in rest if "=" in a])
    data_dir = options.pop("data_dir", None)
    least, most = actions[action]
    if not least <= len(names) <= most or (options and action in ("list", "download")):
        raise UserError(f"data {action}: see offline-rl data --help")
    built = build(convert.Options if action == "convert" else ReadOptions, options)
    given = {key: value for key, value in asdict(built).items() if key in options}
    if action == "list":
        print(describe.list_cards(data_dir))
    elif action == "info":
        print(describe.info(names[0], data_dir, **given))
    elif action == "download":
        print(*download(names, data_dir), sep="\n")
    elif action == "convert":
        print(convert.convert(names[0], names[1], data_dir=data_dir, **given))
        print(names[1])
    else:
        read, limit = build(ReadOptions, options), given.get("max_episode_steps")
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
    """Learning curves and a table of finished and running runs.

    usage: offline-rl report <run folder> [<run folder> …] [key=value …]

    Writes report.md and curves.png and prints the table, without the columns that the terminal is
    too narrow for. format=csv or format=latex prints that instead.
    """
    from offline_rl.reporting.report import report as run

    folders = [a for a in arguments if "=" not in a]
    print(run(folders, **parse_options([a for a in arguments if "=" in a])))


@takes_options("offline_rl.suite.options:BenchmarkOptions")
def benchmark(arguments: Sequence[str]) -> None:
    """Work off a suite of runs: many algorithms, tasks and seeds, in processes of low priority.

    usage: offline-rl benchmark suite=<name or file> [key=value …]
           offline-rl benchmark plan=<folder>/plan.json     (any machine that shares the folder)

    The same command again skips what is finished and goes on with the rest.
    """
    _quiet()
    from offline_rl.suite.benchmark import benchmark as run

    print(run(**parse_options(arguments)))
