"""Robustness of twelve formulas beside public code: mengyuest/stl_npc and rtamt.

    python -m benchmarks.stl.conformance stl_npc=<checkout> [rtamt=<python>]

Smooth robustness and its gradient are compared with stl_npc at commit 5a26a1e, in float64. Exact
robustness is compared with its mode `hard`, and with rtamt. stl_npc is compared in the cases that
it defines: windows within the episode, and `until` at the first step. rtamt is a package of PyPI;
`rtamt` is an interpreter that has it. Writes stl-conformance.json and stl-conformance.md to
benchmarks/results/safe.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from offline_rl.utils.files import make_folder, write_text
from offline_rl.utils.options import Checked, build, parse_options
from offline_rl.utils.text import table
from policies.stl.formula import (
    Always,
    And,
    Eventually,
    Node,
    Not,
    Or,
    Predicate,
    Signal,
    Until,
    parse,
)
from policies.stl.robustness import robustness
from policies.stl.smooth import smooth_robustness

RESULTS, COMMIT = Path("benchmarks/results/safe"), "5a26a1e"
TRACES, STEPS, SHARPNESS = 4, 30, 20.0
FORMULAS = (
    "x > 0.2",
    "not (x + 2 * y > 0.2)",
    "x > 0.1 and y < 0.3 and x - y > -1",
    "x > 0.1 or y < -0.3",
    "x > 0 implies y > 0.5",
    "always[0,9] (x > -1)",
    "eventually[3,12] (y > 1)",
    "always[2,8] (x > -0.5 or y > 0)",
    "eventually[0,10] (always[0,5] (x > -0.7))",
    "always[0,12] (x > 1 implies eventually[1,6] (y > 0.2))",
    "(x > -2) until (y > 0.8)",
    "always[0,29] (x > -2.5) and ((x > -1.5) until (y > 0.5 and x > 0))",
)
RTAMT = """
import importlib.metadata, json, sys
import rtamt
texts, x, y = json.load(sys.stdin)
found = []
for text in texts:
    spec = rtamt.StlDiscreteTimeSpecification()
    spec.declare_var("x", "float"); spec.declare_var("y", "float"); spec.declare_var("out", "float")
    spec.spec = "out = " + text
    spec.parse()
    rows = []
    for a, b in zip(x, y):
        data = {"time": list(range(len(a))), "x": a, "y": b}
        rows.append([value for _, value in spec.evaluate(data)])
    found.append(rows)
json.dump({"found": found, "version": importlib.metadata.version("rtamt")}, sys.stdout)
"""


@dataclass(frozen=True)
class Options(Checked):
    """Options of the comparison."""

    stl_npc: str  # checkout of mengyuest/stl_npc
    rtamt: str | None = None  # Python interpreter with the package rtamt


def load_stl_npc(checkout: Path) -> ModuleType:
    """Return the module `lib_stl_core` of a checkout, at the commit that is compared."""
    content = subprocess.run(
        ["git", "-C", str(checkout), "show", f"{COMMIT}:lib_stl_core.py"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    spec = importlib.util.spec_from_loader("lib_stl_core", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(content, "lib_stl_core.py", "exec"), module.__dict__)
    return module


def theirs_of(node: Node, core: ModuleType) -> Any:
    """Return a formula in the classes of stl_npc. The ends of its windows are exclusive."""
    match node:
        case Predicate(terms, constant, _):
            columns = [("xy".index(signal.name), c) for signal, c in terms]
            return core.AP(lambda s: sum(c * s[..., k] for k, c in columns) + constant)
        case Not(part):
            return core.Not(theirs_of(part, core))
        case And(parts) | Or(parts):
            kind = core.And if isinstance(node, And) else core.Or
            first, *others = (theirs_of(part, core) for part in parts)
            for part in others:
                first = kind(first, part)
            return first
        case Always(part, window) | Eventually(part, window):
            assert window.stop is not None
            kind = core.Always if isinstance(node, Always) else core.Eventually
            return kind(window.start, window.stop + 1, theirs_of(part, core))
        case Until(left, right, _):
            return core.UntimedUntil(theirs_of(left, core), theirs_of(right, core))


def last_step(node: Node) -> int:
    """Return the last step that the robustness at step 0 reads; all steps for `until`."""
    match node:
        case Predicate():
            return 0
        case Not(part):
            return last_step(part)
        case And(parts) | Or(parts):
            return max(map(last_step, parts))
        case Always(part, window) | Eventually(part, window):
            return (window.stop or 0) + last_step(part)
        case Until():
            return STEPS - 1


def compare(texts: Sequence[str], core: ModuleType, traces: np.ndarray) -> list[dict[str, Any]]:
    """Return the largest differences for each formula. traces: [B, T, 2] float64."""
    rows = []
    for text in texts:
        formula = parse(text)
        theirs = theirs_of(formula.root, core)
        defined = STEPS - last_step(formula.root)  # number of steps with complete windows
        mine, other = (torch.tensor(traces, requires_grad=True) for _ in range(2))
        values = {Signal(name): mine[..., k] for k, name in enumerate("xy")}
        ours = smooth_robustness(formula, values, sharpness=SHARPNESS)[:, :defined]
        reference = theirs(other, SHARPNESS)[:, :defined]
        ours.sum().backward()
        reference.sum().backward()
        assert mine.grad is not None
        assert other.grad is not None
        exact = robustness(formula, {s: v.detach().numpy() for s, v in values.items()})
        row = {"formula": text, "steps": defined}
        row["smooth"] = float((ours - reference).detach().abs().max())
        row["gradient"] = float((mine.grad - other.grad).abs().max())
        hard = theirs(torch.tensor(traces), SHARPNESS, {"hard": True})[:, :defined].numpy()
        has_until = "until" in text  # stl_npc has no exact until
        row["exact"] = None if has_until else float(np.abs(exact[:, :defined] - hard).max())
        rows.append(row)
    return rows


def compare_rtamt(python: str, traces: np.ndarray, rows: list[dict[str, Any]]) -> str:
    """Add the largest difference from rtamt to each row. Return the version of rtamt.

    In rtamt, the left part of `until` need not hold at the last step. It is added to the right
    part.
    """
    texts = [rtamt_text(parse(row["formula"]).root) for row in rows]
    request = json.dumps([texts, traces[..., 0].tolist(), traces[..., 1].tolist()])
    command = [python, "-c", RTAMT]
    done = subprocess.run(command, input=request, check=True, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    for row, found in zip(rows, answer["found"], strict=True):
        values = {Signal(name): traces[..., k] for k, name in enumerate("xy")}
        exact, count = robustness(parse(row["formula"]), values), row["steps"]
        row["rtamt"] = float(np.abs(exact[:, :count] - np.array(found)[:, :count]).max())
    return str(answer["version"])


def rtamt_text(node: Node) -> str:
    """Return a formula in the language of rtamt."""
    match node:
        case Predicate(terms, constant, _):
            total = " + ".join(f"({c}) * {signal}" for signal, c in terms)
            return f"(({total} + ({constant})) >= 0)"
        case Not(part):
            return f"(not {rtamt_text(part)})"
        case And(parts) | Or(parts):
            word = " and " if isinstance(node, And) else " or "
            return f"({word.join(map(rtamt_text, parts))})"
        case Always(part, window) | Eventually(part, window):
            word = "always" if isinstance(node, Always) else "eventually"
            return f"({word}[{window.start}:{window.stop}] {rtamt_text(part)})"
        case Until(left, right, _):
            return f"({rtamt_text(left)} until ({rtamt_text(left)} and {rtamt_text(right)}))"


def main(arguments: Sequence[str]) -> None:
    options = build(Options, parse_options(arguments))
    traces = np.random.default_rng(0).normal(size=(TRACES, STEPS, 2))
    rows = compare(FORMULAS, load_stl_npc(Path(options.stl_npc)), traces)
    content: dict[str, Any] = {"stl_npc": COMMIT, "rows": rows}
    if options.rtamt is not None:
        content["rtamt"] = compare_rtamt(options.rtamt, traces, rows)
    make_folder(RESULTS)
    write_text(RESULTS / "stl-conformance.json", json.dumps(content, indent=2) + "\n")
    write_text(RESULTS / "stl-conformance.md", page(content))
    print(page(content))


def page(content: dict[str, Any]) -> str:
    """Return the page with the largest differences."""
    rows, version = content["rows"], content.get("rtamt", "(not compared)")
    names = ("smooth", "gradient", "exact", "rtamt")
    body = [
        [f"`{row['formula']}`", str(row["steps"])]
        + ["" if row.get(name) is None else f"{row[name]:.1e}" for name in names]
        for row in rows
    ]
    header = ["formula", "steps", "smooth", "gradient", "exact", "exact, rtamt"]
    return f"""# Robustness beside public code

Command: `python -m benchmarks.stl.conformance`. Largest absolute differences from
mengyuest/stl_npc at {content["stl_npc"]}, and of the exact robustness from rtamt {version}, on
{TRACES} random episodes of {STEPS} steps in float64. The sharpness of the smooth robustness is
{SHARPNESS:g}.
Steps: number of steps that are compared, in which all windows end within the episode.

stl_npc has no exact `until`. Its smooth `until` is compared at the first step only, because it
always starts at the first step.

{table(header, body, markdown=True)}
"""


if __name__ == "__main__":
    main(sys.argv[1:])
