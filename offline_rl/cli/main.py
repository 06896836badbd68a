"""Entry point `offline-rl <verb> key=value …`: finds the verb, prints help, returns exit codes.

Large modules are imported only when a verb runs, not for `--help`.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from offline_rl.cli.display import ignore_closed_output
from offline_rl.utils.errors import UserError
from offline_rl.utils.signals import interruptible
from offline_rl.version import __version__

# verbs that continue an interrupted command
RESUMED = ("benchmark", "data", "distill", "finetune", "generate", "search", "train")
TAKES_RUN = ("distill", "evaluate", "export", "finetune", "play")  # verbs with the option run=


def verbs() -> dict[str, EntryPoint]:
    """Return the verbs: entry points of the group offline_rl.verbs whose package is installed.

    The verb `bench` exists only in a clone of the repository.
    """
    points = entry_points(group="offline_rl.verbs")
    return {p.name: p for p in points if find_spec(p.module.split(".")[0]) is not None}


def usage() -> str:
    """Return the text of `offline-rl --help`."""
    lines = [
        f"offline-rl {__version__}: offline and online reinforcement learning, imitation, robots",
        "",
        "usage: offline-rl <verb> key=value …    (offline-rl <verb> --help lists its options)",
        "",
    ]
    for name, point in sorted(verbs().items()):
        lines.append(f"  {name:10s} {(point.load().__doc__ or '').strip().splitlines()[0]}")
    lines += ["", 'completion in bash or zsh: eval "$(offline-rl --completion bash)"']
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0: success. 2: a mistake in the command, its data or files. 130: interrupted. A bug in this
    package raises an exception, with a traceback and exit code 1.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # a robot must stop when its output is closed, so the error is not ignored
    needs_reader = arguments[:1] == ["robot"]
    with nullcontext() if needs_reader else ignore_closed_output():
        return run(arguments)


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code; see `main`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    if arguments[0] == "--version":
        print(__version__)
        return 0
    verb, *rest = arguments
    if verb in ("--completion", "--complete"):
        from offline_rl.cli.completion import SCRIPTS, candidates

        argument = rest[0] if rest else "bash"
        if verb == "--complete":
            print("\n".join(candidates(argument, verbs())))
            return 0
        if argument not in SCRIPTS:
            print(f"offline-rl: --completion {argument}: use bash or zsh", file=sys.stderr)
            return 2
        print(SCRIPTS[argument])
        return 0
    try:
        installed = verbs()
        if verb not in installed:
            near = difflib.get_close_matches(verb, installed, 2) or sorted(installed)
            raise UserError(f"unknown verb {verb!r}; did you mean {' or '.join(near)}?")
        command = installed[verb].load()
        if any(a in ("-h", "--help") for a in rest):
            from offline_rl.cli.help import page

            print(page(command, rest))
            return 0
        flags = getattr(command, "flags", ())
        for word in rest:
            if word.startswith("-") and not flags:
                raise UserError(
                    f"{verb} has no flag {word}; options are key=value. See offline-rl {verb} "
                    "--help."
                )
            if verb in TAKES_RUN and "=" not in word and not word.startswith("-"):
                raise UserError(f"{verb} {word}: options are key=value. Did you mean run={word}?")
        with interruptible():
            command(rest)
            sys.stdout.flush()
    except UserError as error:
        print(f"offline-rl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        more = "; repeat the command to continue" if verb in RESUMED else ""
        print(f"offline-rl: interrupted{more}", file=sys.stderr)
        return 130
    return 0
