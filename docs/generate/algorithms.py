"""docs/algorithms.md and README's table, made from the algorithms' own files and the results.

python -m docs.generate.algorithms
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

from benchmarks.evidence import complete, spread
from benchmarks.speed.bench import per_second
from offline_rl.algorithms.common.registry import (
    PACKAGE,
    algorithm_class,
    algorithm_names,
    algorithm_yaml,
)
from offline_rl.utils.text import table

PAGE, README = Path("docs/algorithms.md"), Path("README.md")
BEGIN, END = "<!-- made by python -m docs.generate.algorithms -->", "<!-- to here -->"
RESULTS = Path("benchmarks/results")
CARDS = Path("datasets/generated")
HEAD = """# Algorithms

*Made by `python -m docs.generate.algorithms` from the code and `benchmarks/results`, not by hand.*

Each algorithm is one file, `offline_rl/algorithms/<name>.py`; what several share stands beside
(`offline_rl/algorithms/common`). Lines are those of code: neither blank nor comment
nor docstring. Settings by task are in `configs/algorithm/<name>.yaml`. bf16: scores were held
against float32 (`benchmarks/results/parity`), so `precision=auto` uses it where the processor can.
"""
SCORES = """## Scores

The last checkpoint's normalised score, mean ± standard deviation over seeds; `data` is the mean of
the data's own episodes. Updates, episodes, settings and what differs from the published numbers
stand with each run in `benchmarks/results`; ReCOIL's results, on data made for it, in
[benchmarks/results/dual](../benchmarks/results/dual/README.md).
"""
ONLINE = """### `datasets/generated`: SAC, online

The return, mean of the evaluations' episodes, at the checkpoint whose policy made our expert sets.

| task | environment steps | return |
|---|---|---|"""
SPEED = """## Speed

Seed-updates per second of the compiled engine as a multiple of eager single-seed PyTorch in the
same run, on the machine named in the file. Observations 17, actions 6, the algorithm's own batch.
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
    """Lines that are neither blank nor comment nor docstring."""
    text = path.read_text()
    silent = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(x.strip()) and x.strip()[0] != "#" and n not in silent for n, x in lines)


def learns_from(cls: Any) -> str:
    """In words."""
    if cls.online:
        return "an environment"
    words = {
        "mc_returns": "returns to go",
        "next_actions": "next actions",
        "timesteps": "places in the episode",
        "expert": "an expert's beside it: `expert_dataset=`",
        "costs": "costs",
    }
    further = [words.get(name, name.replace("_", " ")) for name in cls.needs]
    return "data" + ("" if not further else f" ({', '.join(further)})")


def scores() -> list[str]:
    """A table for each benchmark: algorithms by tasks. Dual RL's has data of its own: its page."""
    lines = []
    for benchmark in sorted(p.parent for p in RESULTS.glob("*/runs") if p.parent.name != "dual"):
        cells: dict[str, dict[str, str]] = {}
        for run in sorted((benchmark / "runs").glob("*/*/*")):
            if (seeds := complete(run)) is None:
                continue
            first = seeds[0]
            task = first["task"] + ("" if run.name == "default" else f" ({run.name})")
            score = spread([s["score"] for s in seeds])
            cells.setdefault("data", {})[task] = f"{first['behaviour_score']:.1f}"
            cells.setdefault(first["algorithm"], {})[task] = score
        tasks = sorted({task for row in cells.values() for task in row})
        body = [[name, *(row.get(task, "") for task in tasks)] for name, row in cells.items()]
        lines += [f"### `{benchmark}`", "", table(["", *tasks], body, markdown=True), ""]
    return lines


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
            body.append(
                [name, rate, *(f"{ratios[c]:.1f}×" if c in ratios else "" for c in columns)]
            )
        header = ["", "eager, /s", *heads]
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
        rows.append(f"| {link} | {paper} | {code_lines(path)} | {learns_from(cls)} | {held} |")
        differs += [f"**`{name}`**: {title.split(': ', 1)[-1]}", f"Differs: {parts['Differs']}", ""]
    parts = [HEAD, *rows, "", "## What differs from paper or code", "", *differs]
    return "\n".join([*parts, SCORES, *scores(), *online(), SPEED, *speed()]).rstrip() + "\n"


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
