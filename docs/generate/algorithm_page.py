"""Pages of the documentation site about one algorithm: its code, settings and stored results."""

from __future__ import annotations

import inspect
import json
import re
from functools import cache
from pathlib import Path

from benchmarks.conformance.cases import CASES, REPOSITORIES, WITHOUT, Case
from benchmarks.conformance.command import HEADER, RESULTS, table_row
from benchmarks.pages import has_row, standings, studies
from docs.generate.algorithms import header, learns_from
from offline_rl.algorithms.common.base import Algorithm
from offline_rl.algorithms.common.registry import algorithm_class, table_path
from offline_rl.cli.help import allowed_values, online_options
from offline_rl.reporting.report import convergence_cell, success_text
from offline_rl.reporting.runs import collect, key_of
from offline_rl.utils.options import Option, describe_options, format_value
from offline_rl.utils.text import format_mean_std, format_range, table

HOME = "../.."  # from the pages' folder, docs/algorithms, to the repository
ONLINE = """Each option is `online.<option>=` on the command line. Options above that define neither
networks nor data also have this form; the value then applies to online training only."""
COMPARED = f"""Each row compares updates of this code with updates of public code, in float64, with
equal weights, batches and noise. Numbers are the largest relative differences.
[How to read the table]({HOME}/benchmarks/results/conformance.md)."""
REMOVED = "Changes of the reference code before the comparison, original -> changed to:"
SCORES = """The score of the last checkpoint (or the return, if the task has no score), mean ±
standard deviation over seeds. `*`: training was too short to compare the result with others. Runs
whose critics have converged less than 50 % are not shown. The page of the study has
baselines and standard errors."""


def page(name: str) -> str:
    """Return the page of an algorithm, with links relative to docs/algorithms."""
    cls = algorithm_class(name)
    title, parts = header(cls)
    method, _, idea = title.rstrip(".").partition(": ")
    text = [f"# {escape(method)}"]
    if idea:
        text += [f"{escape(capitalized(idea))}."]
    text += [f"```\n{commands(name, cls, derived='Use' not in parts)}\n```"]
    text += [f"**Use**: {escape(parts['Use'])}"] if "Use" in parts else []
    text += [
        body(cls),
        f"**Trained on**: {learns_from(cls)}.",
        f"**Paper**: {escape(parts['Paper'])}",
    ]
    code = f"offline_rl/algorithms/{name}.py"
    text += [f"**Code**: [`{code}`]({HOME}/{code})"]
    text += ["## Differences from the paper and public code", escape(capitalized(parts["Differs"]))]
    text += ["## Options", "Each option is `algorithm.<option>=` on the command line."]
    text += [options_table(describe_options(cls.Config))]
    if online := online_options(cls, cls.Online.config_changes):
        text += ["## Options of online training"]
        text += [ONLINE]
        text += [options_table(online, cls.Online.config_changes)]
    text += ["## Settings per task", settings(name)]
    text += ["## Conformance", conformance(name), "## Results", results(name)]
    return "\n\n".join(text) + "\n"


def capitalized(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def commands(name: str, cls: type[Algorithm], *, derived: bool) -> str:
    """Return the commands that show the options and, if `derived`, those that train."""
    lines, mode = [f"offline-rl train algorithm={name} --help"], cls.mode
    if not derived:
        return lines[0]
    if mode.start in ("run", "teacher"):
        verb = "distill" if mode.start == "teacher" else "finetune"
        lines += [f"offline-rl {verb} algorithm={name} run=<run>"]
    elif mode.start == "base":
        lines += [f"offline-rl finetune algorithm={name} base=<bundle> task=<task>"]
    elif cls.starts_online():
        lines += [f"offline-rl train algorithm={name} task=<task> num_env_steps=<steps>"]
    else:
        lines += [f"offline-rl train algorithm={name} task=<task> num_updates=<updates>"]
        lines += ["offline-rl finetune run=<run> num_env_steps=<steps>"] if mode.online else []
    return "\n".join(lines)


def body(cls: type[Algorithm]) -> str:
    """Return the module's docstring between its first line and `Paper:`.

    Indented lines, which are equations, become a code block.
    """
    doc = inspect.getdoc(inspect.getmodule(cls)) or ""
    text = re.split(r"^Paper:", doc, flags=re.MULTILINE)[0].partition("\n")[2]
    parts = re.split(r"((?:^    .*\n)+)", text, flags=re.MULTILINE)
    return "".join(f"\n{p}\n" if k % 2 else escape(p) for k, p in enumerate(parts)).strip()


def escape(text: str) -> str:
    """Return a text with escaped Markdown; code in backticks is unchanged.

    arXiv numbers become links.
    """
    parts = re.split(r"(`[^`]*`)", text)
    for k in range(0, len(parts), 2):
        plain = re.sub(r"([*_\[\]])", r"\\\1", parts[k].replace("&", "&amp;").replace("<", "&lt;"))
        parts[k] = re.sub(r"arXiv:(\d{4}\.\d{5})", r"[\g<0>](https://arxiv.org/abs/\1)", plain)
    return "".join(parts)


def cell(text: str) -> str:
    """Return a text as a cell of a Markdown table."""
    parts = re.split(r"(`[^`]*`)", escape(text))
    return "".join(p if k % 2 else p.replace("|", "&#124;") for k, p in enumerate(parts))


def options_table(options: list[Option], values: dict[str, object] | None = None) -> str:
    """Return the table of options. values: shown instead of the defaults."""
    changed = values or {}
    rows = []
    for option in options:
        default = format_value(changed.get(option.name, option.default)) or "null"
        cells = [f"`{option.name}`", f"`{default}`", cell(option.meaning)]
        rows.append([*cells, cell(allowed_values(option))])
    return table(["option", "default", "meaning", "values"], rows, markdown=True, left=4)


def settings(name: str) -> str:
    """Return the text of the per-task table, including the sources in its comments."""
    path = table_path(name)
    if not path.is_file():
        return "No task has settings that differ from the defaults."
    file = f"configs/algorithm/{path.name}"
    link = f"[`{file}`]({HOME}/{file})"
    rule = "for `task=`; the first row that matches is used."
    return f"{link}, {rule}\n\n```yaml\n{path.read_text()}```"


def conformance(name: str) -> str:
    """Return the rows of the comparison with public code, or the reason why there are none."""
    if name in WITHOUT:
        return f"Not compared with public code: {escape(WITHOUT[name])}."
    cases = [case for case in CASES if case.algorithm == name]
    rows = [comparison(case) for case in cases]
    text = f"{COMPARED}\n\n{table(['case', *HEADER[1:-1]], rows, markdown=True, left=2)}"
    removed = [
        f"- {escape(case.variant or 'update')}, {escape(REPOSITORIES[case.repository][0])}: "
        + escape("; ".join(case.adapted))
        for case in cases
        if case.adapted
    ]
    return "\n\n".join([text, *([REMOVED, "\n".join(removed)] if removed else [])])


def comparison(case: Case) -> list[str]:
    """Return the row of a case, with a link to the reference's file."""
    _, _, *numbers, _ = table_row(case, stored_comparisons().get(case.name))
    repository, commit = REPOSITORIES[case.repository]
    file = case.file.split(" ")[0]
    link = f"[{escape(repository)}](https://github.com/{repository}/blob/{commit}/{file})"
    return [case.variant or "update", link, *numbers]


@cache
def stored_comparisons() -> dict[str, dict[str, object]]:
    """Return the stored rows of `benchmarks.conformance`."""
    return json.loads(RESULTS.with_suffix(".json").read_text())


def results(name: str) -> str:
    """Return the table of the algorithm's stored results."""
    rows = stored_results().get(name)
    if not rows:
        return "No stored results."
    head = ["study", "task", "run", "score", "success %", "convergence", "updates", "seeds"]
    body = [
        [f"[{study.name}]({HOME}/{study}/README.md#{anchor})", *row] for study, anchor, row in rows
    ]
    files = dict.fromkeys(f"[{study.name}]({HOME}/{study}/runs.csv)" for study, _, _ in rows)
    text = table(head, body, markdown=True, left=3)
    return f"{SCORES}\n\n{text}\n\nFiles with one row per seed: {', '.join(files)}."


@cache
def stored_results() -> dict[str, list[tuple[Path, str, list[str]]]]:
    """Return algorithm -> study, anchor of the task on its page, and cells of each result."""
    rows: dict[str, list[tuple[Path, str, list[str]]]] = {}
    for study in studies():
        for task, seeds in collect([study]).items():
            anchor = re.sub(r"[^\w\-]", "", task.lower())
            for _, c in standings(seeds):
                if not (has_row(c) and c.values):
                    continue
                config = c.seeds[0].config
                unit = "" if key_of(seeds) == "score" else " (return)"
                score = format_mean_std(c.values, 1) + "*" * (not c.finished) + unit
                updates = format_range(s.outcome.updates for s in c.seeds if s.outcome)
                numbers = [score, success_text(c), convergence_cell(c), updates, str(len(c.values))]
                numbers = [number.replace(" ", "\N{NO-BREAK SPACE}") for number in numbers]
                cells = [f"`{task}`", f"`{config['name']}`", *numbers]
                rows.setdefault(config["algorithm"], []).append((study, anchor, cells))
    return rows
