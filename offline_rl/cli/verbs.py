"""The command line's verbs. A docstring is that verb's --help page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from offline_rl.utils.errors import UserError


def _parse(arguments: Sequence[str]) -> dict[str, Any]:
    from offline_rl.utils.options import parse

    return parse(arguments)


def _quiet() -> None:
    """Libraries' warnings are not the user's business."""
    import warnings

    warnings.filterwarnings("ignore")


def train(arguments: Sequence[str]) -> None:
    """Train policies on a task's data, evaluate them and write policy bundles.

    usage: offline-rl train algorithm=<name> task=<task> [key=value …]
           offline-rl train experiment=<name or file> [key=value …]
           … --cfg job      print what would be run, complete, as YAML
           … -m             run each of several values: algorithm=iql,cql seeds=range(0,3)

      algorithm=        a file in offline_rl/algorithms: bc iql cql td3_bc sac td3 …
      task=             hopper-medium-v2, gym/hopper-medium-replay, neorl2/DMSD, env:<Gymnasium id>,
                        none (train without evaluation); see `offline-rl data list`
      dataset=          a file or card instead of the task's own data; minari:<id> or
                        lerobot:<repository>, as those libraries keep it
      expert_dataset=   an expert's data beside the other, for recoil
      action_scale=     the data's actions are divided by it, to lie in [-1, 1]
      action_range=     or [low,high], what -1 and 1 stand for; numbers, or one list each
      observation_keys= [state,…] the file's arrays that make an observation, in this order
      subset=           a split that the file names, such as train
      d4rl_compatible=false     exactly the transitions of D4RL's qlearning_dataset;
                        terminate_on_end=true: with that option of its own
      data_dir=         where data lies; default: OFFLINE_RL_DATA, else the user's cache folder
      seeds=1           a count or a list such as [7,42]; they train side by side
      num_updates=1000000       updates of the main phase   pretrain_updates=  of preliminary phases
      num_env_steps=0   environment steps to learn from online, with utd=1 updates for each
      batch_size=       default: the algorithm's, mostly 256
      eval_every=10000    eval_episodes=10    checkpoint_every=10000
      device=auto       auto, cpu, cuda     precision=auto      auto, fp32, tf32, bf16
      compile=auto      auto, always, never
      stream=auto       auto, always, never: the data stays outside the device's memory
      out=runs          name=default        tracker=tensorboard (or wandb, none)
      algorithm.<hyper-parameter>=…         for example algorithm.alpha=1.0; a list such as
                        algorithm.alpha=[0.5,2.5] makes a run for each value, side by side

    The same command again continues an interrupted run. The last line printed is the run's folder.
    """
    _quiet()
    from offline_rl.cli.compose import compose, shown
    from offline_rl.training.launch import launch, merge

    command = compose(arguments)
    if command.shown:
        print("---\n".join(map(shown, merge(command.jobs))), end="")
        return
    from offline_rl.report.report import report as table

    paths = launch(command.jobs)
    made = os.path.commonpath(paths)
    print(table(paths, out=made))
    print(made)


def evaluate(arguments: Sequence[str]) -> None:
    """Score a policy bundle, or every bundle of a run, in a task's environment.

    usage: offline-rl evaluate run=<bundle, seed folder or its parent> [task=<task>] [episodes=100]

      task=      default: the task the policy was trained on
      target_return=  what policies that aim at a return aim at; default: what they were built with
      json=true  print numbers for machines instead of a table
    """
    _quiet()
    from offline_rl.evaluation.evaluate import evaluate as run

    print(run(**_parse(arguments)))


def generate(arguments: Sequence[str]) -> None:
    """Make a dataset by a recipe in configs/recipe: train, roll out, write, with card and curve.

    usage: offline-rl generate recipe=<name> [out=<folder>] [qualities=[medium-replay,medium,…]]

    The learner is checkpointed: the same command continues an interrupted recipe.
    """
    _quiet()
    from offline_rl.generation.recipes import generate as run

    print(run(**_parse(arguments)))


def data(arguments: Sequence[str]) -> None:
    """List, describe, check, download and convert datasets.

    usage: offline-rl data list [data_dir=<folder>]
           offline-rl data info <file or card> [key=value …]
           offline-rl data check <file or card> [key=value …]   (exit code 2 on errors)
           offline-rl data download <task> [<task> …] [data_dir=<folder>]
           offline-rl data convert <file or card> <new file or folder> [key=value …]

    An interrupted download is continued by the same command; files that are there are left alone.
    A file may also be a folder; its layout is told by what it holds: docs/formats.md.

      data_dir=           where the cards' files lie
      action_scale=       the size of an action that 1 stands for
      action_range=       [low,high], numbers or a list each: what -1 and 1 stand for
      observation_keys=   [state,…] the arrays that make an observation, in this order
      subset=             a split that the file names, such as train
      max_episode_steps=  where a file has no time-outs     d4rl_compatible=false   infos=false
    of convert
      format=             d4rl (.hdf5), npz (.npz) or minari (a folder); default: by the ending
      dataset_id=         Minari's name of the set, which the folder's path ends with
      drop_unusable=false leave out time-out rows without a next observation
    """
    from dataclasses import asdict

    from offline_rl.data import convert
    from offline_rl.data import info as describe
    from offline_rl.data.download import download
    from offline_rl.data.formats.common import ReadOptions
    from offline_rl.data.load import locate
    from offline_rl.data.validate import validate
    from offline_rl.utils.options import build

    actions = {"list": (0, 0), "info": (1, 1), "check": (1, 1), "convert": (2, 2)}
    actions["download"] = (1, len(arguments))
    if not arguments or arguments[0] not in actions:
        raise UserError(
            "data: say list, info <file or card>, check <file or card>, download <task> or "
            "convert <from> <to>"
        )
    action, *rest = arguments
    names = [a for a in rest if "=" not in a]
    options = _parse([a for a in rest if "=" in a])
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
        limit = given.get("max_episode_steps")
        problems = validate(locate(names[0], data_dir), max_episode_steps=limit, options=built)
        for problem in problems:
            print(f"{problem.severity}: {problem.sentence}")
        errors = sum(problem.severity == "error" for problem in problems)
        if errors:
            raise UserError(f"{names[0]}: {errors} errors, {len(problems) - errors} warnings")
        print(f"{names[0]}: no errors, {len(problems)} warnings")


def report(arguments: Sequence[str]) -> None:
    """Learning curves and a table of finished and running runs.

    usage: offline-rl report <run folder> [<run folder> …] [out=<folder>]

    Writes report.md and curves.png into out= (default: the first folder) and prints the table.
    """
    from offline_rl.report.report import report as run

    folders = [a for a in arguments if "=" not in a]
    print(run(folders, **_parse([a for a in arguments if "=" in a])))


def benchmark(arguments: Sequence[str]) -> None:
    """Work off a suite of runs: many algorithms, tasks and seeds, in processes of low priority.

    usage: offline-rl benchmark suite=<name or file> [algorithms=[…]] [tasks=[…]] [seeds=] [out=]
           offline-rl benchmark plan=<folder>/plan.json        (any machine that shares the folder)

      suite=     a file of configs/suite: which runs, in order of worth
      out=       default: runs/<suite>        workers=  processes at a time; default: one a core
      dry_run=true   only print the plan: what is done, and what the rest will take

    The same command again skips what is finished and goes on with the rest.
    """
    _quiet()
    from offline_rl.suite.benchmark import benchmark as run

    print(run(**_parse(arguments)))
