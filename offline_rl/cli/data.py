"""The verb `data`: list, describe, check, download, convert, filter and mirror datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import parse_options, takes_options


@takes_options("offline_rl.generation.options:DataVerbOptions")
def data(arguments: Sequence[str]) -> None:
    """List, describe, check, download, convert, filter and mirror datasets.

    usage: offline-rl data list [data_dir=<folder>]
           offline-rl data info <file or card> [key=value …]
           offline-rl data check <file or card> [key=value …]   (exit code 2 on errors)
           offline-rl data download <task> [<task> …] [data_dir=<folder>]
           offline-rl data download lerobot:<repository> minari:<id> …
           offline-rl data convert <file or card> <new file or folder> [key=value …]
           offline-rl data filter <run of gr_rl> <new file or folder> [key=value …]
           offline-rl data mirror <file or card> <new file or folder> [key=value …]

    <file> is a file or a folder. Its layout is recognized by its content; see
    docs/reference/formats.md. <card> is a dataset's name in `offline-rl data list`.
    data_dir= is the folder of the datasets. Repeat the command to
    continue an interrupted download; complete files are not downloaded again. Data sets of
    LeRobot and Minari need the packages huggingface_hub and minari, which download them.
    filter leaves out the frames of demonstrations after which progress falls. mirror adds the
    mirror image of every episode.
    Options marked `filter` are for filter. All others are for info, check, convert and mirror.
    For info and check, format= is the layout of the file. For the other actions, format= is the
    layout to write, and source_format= is the layout of the file to read.
    """
    from dataclasses import asdict

    from offline_rl.data import convert
    from offline_rl.data import info as describe
    from offline_rl.data.download import download
    from offline_rl.data.formats.common import ReadOptions
    from offline_rl.data.load import locate
    from offline_rl.data.validation import validate
    from offline_rl.generation import filtering
    from offline_rl.generation.options import FilterOptions, MirrorOptions
    from offline_rl.utils.options import build
    from offline_rl.utils.text import format_count

    actions = {"list": (0, 0), "info": (1, 1), "check": (1, 1), "convert": (2, 2)}
    actions |= {"filter": (2, 2), "mirror": (2, 2), "download": (1, len(arguments))}
    if not arguments or arguments[0] not in actions:
        raise UserError(
            "data needs an action: list, info <file or card>, check <file or card>, download "
            "<task>, convert <from> <to>, filter <run> <to> or mirror <from> <to>"
        )
    action, *rest = arguments
    names = [a for a in rest if "=" not in a]
    options = parse_options([a for a in rest if "=" in a])
    data_dir = options.pop("data_dir", None)
    minimum, maximum = actions[action]
    if not minimum <= len(names) <= maximum or (options and action in ("list", "download")):
        raise UserError(f"data {action}: wrong arguments. See offline-rl data --help.")
    kinds: dict[str, type] = {"filter": FilterOptions, "mirror": MirrorOptions}
    kinds["convert"] = convert.Options
    built: Any = build(kinds.get(action, ReadOptions), options)
    passed = {key: value for key, value in asdict(built).items() if key in options}
    if action == "list":
        print(describe.list_cards(data_dir))
    elif action == "info":
        print(describe.info(names[0], data_dir, **passed))
    elif action == "download":
        print(*download(names, data_dir), sep="\n")
    elif action == "filter":
        print(filtering.filter_dataset(names[0], names[1], **passed))
        print(names[1])
    elif action == "mirror":
        print(filtering.mirror_dataset(names[0], names[1], data_dir=data_dir, **passed))
        print(names[1])
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
