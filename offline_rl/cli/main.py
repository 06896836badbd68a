"""`offline-rl <verb> key=value …`: finds the verb, answers --help, turns errors into exit codes.

Nothing heavy is imported before a verb is known and its arguments are not `--help`.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from offline_rl.cli.display import unread_allowed
from offline_rl.utils.errors import UserError
from offline_rl.utils.signals import interruptible
from offline_rl.version import __version__

RESUMED = ("benchmark", "data", "distill", "finetune", "generate", "train")
OF_A_RUN = ("distill", "evaluate", "export", "finetune", "play")


def verbs() -> dict[str, EntryPoint]:
    """All installed verbs: entry points of the group offline_rl.verbs whose package is there.

    The benchmarks' are in a clone alone.
    """
    points = entry_points(group="offline_rl.verbs")
    return {p.name: p for p in points if find_spec(p.module.split(".")[0]) is not None}


def usage() -> str:
    """The page of `offline-rl --help`."""
    lines = [
        f"offline-rl {__version__}: from logged data to a robot that moves",
        "",
        "usage: offline-rl <verb> key=value …    (offline-rl <verb> --help tells a verb's keys)",
        "",
    ]
    for name, point in sorted(verbs().items()):
        lines.append(f"  {name:10s} {(point.load().__doc__ or '').strip().splitlines()[0]}")
    lines += ["", 'completion in bash or zsh: eval "$(offline-rl --completion bash)"']
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done; 2 the user's mistake; 130 interrupted, resumable; 1 ours (traceback)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    watched = arguments[:1] == ["robot"]  # none moves whom nobody sees
    with nullcontext() if watched else unread_allowed():
        return run(arguments)


def run(arguments: list[str]) -> int:
    """As `main`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    if arguments[0] == "--version":
        print(__version__)
        return 0
    verb, *rest = arguments
    if verb in ("--completion", "--complete"):
        from offline_rl.cli.completion import SCRIPTS, candidates

        asked = rest[0] if rest else "bash"
        if verb == "--complete":
            print("\n".join(candidates(asked, verbs())))
            return 0
        if asked not in SCRIPTS:
            print(f"offline-rl: --completion {asked}: there are bash and zsh", file=sys.stderr)
            return 2
        print(SCRIPTS[asked])
        return 0
    try:
        known = verbs()
        if verb not in known:
            near = difflib.get_close_matches(verb, known, 2) or sorted(known)
            raise UserError(f"unknown verb {verb!r}; did you mean {' or '.join(near)}?")
        command = known[verb].load()
        if any(a in ("-h", "--help") for a in rest):
            from offline_rl.cli.help import page

            print(page(command, rest))
            return 0
        flags = getattr(command, "flags", ())
        for word in rest:
            if word.startswith("-") and not flags:
                raise UserError(
                    f"{verb} takes no {word}: its keys are key=value; see {verb} --help"
                )
            if verb in OF_A_RUN and "=" not in word and not word.startswith("-"):
                raise UserError(f"{verb} {word}: its keys are key=value; did you mean run={word}?")
        with interruptible():
            command(rest)
            sys.stdout.flush()
    except UserError as error:
        print(f"offline-rl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        more = "; the same command continues" if verb in RESUMED else ""
        print(f"offline-rl: interrupted{more}", file=sys.stderr)
        return 130
    return 0
