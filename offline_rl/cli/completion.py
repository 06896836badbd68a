"""Shell completion of verbs, options, and option values that are names.

eval "$(offline-rl --completion bash)"        in ~/.bashrc
eval "$(offline-rl --completion zsh)"         in ~/.zshrc, after compinit
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint

from offline_rl.utils.options import describe_options
from offline_rl.utils.paths import PACKAGE, config_files

BASH = """_offline_rl() {
    local line="${COMP_LINE:0:COMP_POINT}"
    mapfile -t COMPREPLY < <(offline-rl --complete "$line" 2>/dev/null)
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _offline_rl offline-rl"""
ZSH = """_offline_rl() {
    local -a found
    found=(${(f)"$(offline-rl --complete "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)"})
    compset -P '*='
    compadd -S '' -- ${(M)found:#*=}
    compadd -- ${found:#*=}
    (( $#found )) || _files
}
compdef _offline_rl offline-rl"""
SCRIPTS = {"bash": BASH, "zsh": ZSH}
GROUPS = ("experiment", "suite", "recipe")  # keys whose values are files of configs/<key>


def candidates(line: str, verbs: Mapping[str, EntryPoint]) -> list[str]:
    """Return the completions of the last word of `line`. After `key=` these are values only."""
    _, *words = line.split()
    last = "" if line[-1:].isspace() else words.pop() if words else ""
    if not words:
        return [verb for verb in sorted(verbs) if verb.startswith(last)]
    if words[0] not in verbs:
        return []
    command = verbs[words[0]].load()
    actions = re.findall(rf"offline-rl {words[0]} (\w+)(?= |$)", command.__doc__ or "", re.M)
    if actions and len(words) == 1:  # `data check`, for example; the docstring lists the actions
        return sorted(action for action in actions if action.startswith(last))
    key, equals, start = last.partition("=")
    types = option_types(getattr(command, "options", {}), words, last)
    if not equals:
        return sorted(f"{name}=" for name in types if name.startswith(last))
    return [value for value in values(key, types.get(key, "")) if value.startswith(start)]


def option_types(options: Mapping[str, str], words: Sequence[str], last: str) -> dict[str, str]:
    """Return a verb's options with their types.

    Hyper-parameters are included if `words` name the algorithm and `last` begins with `algorithm.`.
    """
    types = dict[str, str]()
    for prefix, name in options.items():
        module, _, cls = name.partition(":")
        types |= {
            prefix + option.name: option.type
            for option in describe_options(getattr(import_module(module), cls))
        }
    algorithm = next((word[10:] for word in words if word.startswith("algorithm=")), "")
    if algorithm in algorithms() and last.startswith("algorithm."):
        config = import_module(f"offline_rl.algorithms.{algorithm}").Config
        types |= {f"algorithm.{option.name}": option.type for option in describe_options(config)}
    return types


def values(key: str, kind: str) -> list[str]:
    """Return the possible values of an option; empty if they cannot be listed.

    kind: the option's type, as text.
    """
    if key == "algorithm":
        return algorithms()
    if key == "task":
        from envs import names

        return names()
    if key == "device":
        return ["auto", "cpu", "cuda"]
    if key in GROUPS:
        return sorted(config_files(key))
    if kind == "true or false":
        return ["false", "true"]
    one, _, choices = kind.partition("one of ")
    return choices.split(", ") if choices and not one else []


def algorithms() -> list[str]:
    """Return the names of the built-in algorithms without importing them."""
    return sorted(f.stem for f in (PACKAGE / "algorithms").glob("[a-z]*.py"))
