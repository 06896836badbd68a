"""docs/algorithms.md and README's table, made from the algorithms' own files and the results.

python -m docs.generate.algorithms
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.conformance.cases import CASES, WITHOUT
from benchmarks.pages import kept, standings, studies
from benchmarks.speed.bench import per_second
from offline_rl.algorithms.common.registry import (
    PACKAGE,
    algorithm_class,
    algorithm_names,
    algorithm_yaml,
)
from offline_rl.reporting.runs import collect
from offline_rl.utils.text import mean_std, table, wrapped

PAGE, README = Path("docs/algorithms.md"), Path("README.md")
BEGIN, END = "<!-- made by python -m docs.generate.algorithms -->", "<!-- to here -->"
RESULTS = Path("benchmarks/results")
CARDS = Path("datasets/generated")
COMMON = ("base", "optim", "registry")  # of every algorithm
HEAD = """# Algorithms

*Made by `python -m docs.generate.algorithms` from the code and `benchmarks/results`, not by hand.*

Each algorithm is one file, `offline_rl/algorithms/<name>.py`; what several share stands beside
(`offline_rl/algorithms/common`). Lines are those of code, neither blank nor comment nor docstring:
the file's own, and with + those of the method that stand in files it shares with others, but for
the base class and optimizers. Settings by task are in `configs/algorithm/<name>.yaml`. bf16:
`precision=auto` uses it where the processor can. Its scores were held against float32's after 2,500
to 30,000 updates, before values had formed, and before commit 74fd8bc, since which output layers
stay in float32 ([parity](../benchmarks/results/parity/README.md)).
"""
SCORES = """## Scores

The last checkpoint's normalized score, mean ± standard deviation over seeds, and after how many
updates; `data` is the mean of the data's own episodes. With *: values had not formed, so that the
number says little about the method and is to be compared with nothing. What had formed by less than
half has no number. Errors, settings, and what
differs from published numbers stand on each study's page; ReCOIL's results, on data made for it, on
[that of Dual RL](../benchmarks/results/dual/README.md).
"""
ONLINE = """### `datasets/generated`: SAC, online

The return, mean of the evaluations' episodes, at the checkpoint whose policy made our expert sets.

| task | environment steps | return |
|---|---|---|"""
SPEED = """## Speed

Seed-updates per second of the compiled engine as a multiple of eager single-seed PyTorch in the
same run, at the commit given: rows of different commits were measured on different days, and their
rates are not to be compared. Observations 17, actions 6, the algorithm's own batch.
With *: no eager baseline was written; the multiple is of the same update, not compiled.
"""


def sections(doc: str) -> tuple[str, dict[str, str]]:
    """The docstring's first line, and its `Name: text` paragraphs with their lines joined."""
    found: dict[str, str] = {}
    name = ""
    for line in doc.splitlines():
        start = re.match(r"(\w+):\s+(.*)", line)
        if start:
            name = start[1]
            found[name] = start[2]
        elif name and line.startswith("   "):
            found[name] += " " + line.strip()
        else:
            name = ""
    return doc.splitlines()[0], found


def header(cls: Any) -> tuple[str, dict[str, str]]:
    """`sections` of the file that an algorithm is."""
    return sections(inspect.getdoc(inspect.getmodule(cls)) or "")


def code_lines(path: Path) -> int:
    """Lines that are neither blank nor comment nor docstring nor import."""
    text = path.read_text()
    silent = set[int]()
    for node in ast.walk(ast.parse(text)):
        text_alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if text_alone or isinstance(node, ast.Import | ast.ImportFrom):
            silent |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(x.strip()) and x.strip()[0] != "#" and n not in silent for n, x in lines)


def shared_lines(path: Path) -> int:
    """Code of the method in files that it shares with others, theirs included."""
    found, left = set[Path](), [path]
    while left:
        for node in ast.walk(ast.parse(left.pop().read_text())):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in names:
                file = PACKAGE.parent / f"{name.replace('.', '/')}.py"
                method = file.is_relative_to(PACKAGE / "algorithms") and file.stem not in COMMON
                if method and file.is_file() and file not in found:
                    found.add(file)
                    left.append(file)
    return sum(map(code_lines, found))


def learns_from(cls: Any) -> str:
    """In words."""
    if cls.begins_online():
        return "an environment"
    words = {
        "mc_returns": "returns to go",
        "next_actions": "next actions",
        "timesteps": "places in the episode",
        "expert": "an expert's beside it: `expert_dataset=`",
        "costs": "costs",
    }
    further = [words.get(name, name.replace("_", " ")) for name in cls.needs]
    data = "data" + ("" if not further else f" ({', '.join(further)})")
    return f"{data}, then an environment" if cls.online else data


def scores() -> list[str]:
    """A table for each study: algorithms by tasks. Dual RL's data is made for it: its own page."""
    lines = list[str]()
    for study in (folder for folder in studies() if folder.name != "dual"):
        tasks = collect([study])
        found: dict[str, dict[str, str]] = {"data": {}}
        for task, seeds in tasks.items():
            score = next(s.outcome.behavior_score for s in seeds if s.outcome)
            found["data"][task] = "" if score is None else f"{score:.1f}"
            for label, c in standings(seeds):
                if kept(c) and c.values:
                    # where data stands in, every run is named by it
                    own = label if c.seeds[0].config["dataset"] is None else label.split(" ")[0]
                    updates = next(s.outcome.updates for s in c.seeds if s.outcome)
                    text = f"{mean_std(c.values, 1)} after {updates:,}"
                    found.setdefault(own, {})[task] = text + "*" * (not c.finished)
        body = [[name, *(row.get(task, "") for task in tasks)] for name, row in found.items()]
        lines += [f"### [{study.name}](../{study}/README.md)", ""]
        lines += [table(["", *tasks], body, markdown=True), ""]
    return lines


def unmeasured() -> str:
    """The algorithms that no study has a finished row of, in a line."""
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for seeds in (own for study in studies() for own in collect([study]).values()):
        for _, c in standings(seeds):
            if kept(c) and c.values:
                found[c.finished].add(c.seeds[0].config["algorithm"])
    left = [name for name in algorithm_names() if name not in found[True] | found[False]]
    rows = json.loads((RESULTS / "conformance.json").read_text())
    compared = {case.algorithm for case in CASES if case.name in rows}

    def listed(names: Iterable[str]) -> str:
        return ", ".join(f"`{name}`" for name in sorted(names)) or "none"

    text = f"Conformance-tested, not benchmarked here: {listed(compared.intersection(left))}. "
    for name in (name for name in left if name not in compared):
        text += f"Neither: `{name}` ({WITHOUT[name]}). "
    return wrapped(text + f"With unfinished rows alone: {listed(found[False] - found[True])}.")


def online() -> list[str]:
    """SAC's results, from the cards of the sets that its policies made."""
    lines = [ONLINE]
    for path in sorted(CARDS.glob("*-expert.json")):
        card = json.loads(path.read_text())
        if "medium-expert" in path.name or "policies" not in card:
            continue
        best = card["policies"]["expert"]
        cells = [card["recipe"]["task"], f"{best['env_steps']:,}", f"{best['return']:,.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def speed() -> list[str]:
    """Every measured row of every speed file."""
    lines = []
    for path in sorted(RESULTS.glob("speed*.json")):
        rows = json.loads(path.read_text())["rows"]
        ours = [r for r in rows if r["kind"] == "ours"]
        columns = sorted({(r["precision"], r["seeds"]) for r in ours})
        heads = [f"{p}, {s} seed{'s' if s > 1 else ''}" for p, s in columns]
        body = []
        for name in dict.fromkeys(r["algorithm"] for r in rows):
            base = next(
                r for r in rows if r["algorithm"] == name and r["kind"] in ("eager", "uncompiled")
            )
            ratios = {
                (r["precision"], r["seeds"]): r["updates_per_second"] / base["updates_per_second"]
                for r in ours
                if r["algorithm"] == name
            }
            rate = per_second(base["updates_per_second"]) + "*" * (base["kind"] == "uncompiled")
            multiples = (f"{ratios[c]:.1f}×" if c in ratios else "" for c in columns)
            body.append([name, rate, *multiples, (base["commit"] or "unknown")[:7]])
        header = ["", "eager, /s", *heads, "commit"]
        lines += [f"### `{path}`", "", table(header, body, markdown=True), ""]
    return lines


def page() -> str:
    """The whole page."""
    rows = ["| name | paper | lines | learns from | bf16 |", "|---|---|---|---|---|"]
    differs = []
    for name in algorithm_names():
        cls = algorithm_class(name)
        path = PACKAGE / "algorithms" / f"{name}.py"
        title, parts = header(cls)
        paper = parts["Paper"].split(". Equation")[0].split(", with its")[0].rstrip(".")
        link = f"[`{name}`](../offline_rl/algorithms/{name}.py)"
        held = "yes" if "bf16" in (algorithm_yaml(name).get("parity") or {}) else ""
        lines = f"{code_lines(path)} + {shared_lines(path)}".removesuffix(" + 0")
        rows.append(f"| {link} | {paper} | {lines} | {learns_from(cls)} | {held} |")
        differs += [f"**`{name}`**: {title.split(': ', 1)[-1]}", f"Differs: {parts['Differs']}", ""]
    parts = [HEAD, *rows, "", "## What differs from paper or code", "", *differs]
    measured = [SCORES, unmeasured(), "", *scores(), *online(), SPEED, *speed()]
    return "\n".join([*parts, *measured]).rstrip() + "\n"


def readme(text: str) -> str:
    """README's text with the table of algorithms between its marks made anew."""
    body = []
    for name in algorithm_names():
        title, parts = header(cls := algorithm_class(name))
        paper = re.split(r"(?<=arXiv:\d{4}\.\d{5})", parts["Paper"])[0]
        body.append(f"| `{name}` | {title.rstrip('.')} | {paper} | {learns_from(cls)} |")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    rows = ["| name | idea | paper | learns from |", "| --- | --- | --- | --- |", *body]
    return "\n".join([before + BEGIN, *rows, END]) + after


if __name__ == "__main__":
    PAGE.write_text(page())
    README.write_text(readme(README.read_text()))
    print(PAGE, README)
