"""Metrics of the code's structure: files, import chains and cycles, shared lines of algorithms.

python -m benchmarks.house [folder of another checkout …]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from statistics import median

from docs.generate.algorithms import code_lines


def imported_names(tree: ast.AST, lazy: bool) -> Iterator[str]:
    """Yield imported modules and names; lazy: include imports in functions and type checks."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield node.module or ""
        elif lazy or not isinstance(node, ast.FunctionDef | ast.If):
            yield from imported_names(node, lazy)


def graph(root: Path, *, lazy: bool) -> dict[str, set[str]]:
    """Return the imports within offline_rl: for each module, the modules that it imports."""
    files = {
        ".".join(f.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): f
        for f in (root / "offline_rl").rglob("*.py")
    }
    return {
        name: {
            m for m in imported_names(ast.parse(f.read_text()), lazy) if m in files and m != name
        }
        for name, f in files.items()
    }


def longest_chain(edges: dict[str, set[str]]) -> int:
    """Return the number of modules in the longest chain of imports."""
    height: dict[str, int] = {}

    def measure(name: str) -> int:
        if name not in height:
            height[name] = 0  # a module in a cycle counts once
            height[name] = 1 + max(map(measure, edges[name]), default=0)
        return height[name]

    return max(map(measure, edges))


def count_cycles(edges: dict[str, set[str]]) -> int:
    """Return the number of pairs of modules that reach each other by imports."""

    def reach(name: str) -> set[str]:
        reached, queue = set[str](), [name]
        while queue:
            queue += edges[queue.pop()] - reached
            reached |= set(queue)
        return reached

    reachable = {name: reach(name) for name in edges}
    return sum(b in reachable[a] and a in reachable[b] for a, b in combinations(edges, 2))


def shared_lines(folder: Path) -> tuple[float, float, str]:
    """Return how many percent of their lines two algorithms share.

    Returns the median over pairs of algorithms, the maximum, and the pair with the maximum.
    """
    pages = {}
    for file in sorted(folder.glob("[a-z]*.py")):
        code = ast.unparse(ast.parse(file.read_text())).splitlines()
        ignored = ("import ", "from ", "class ", '"""')
        pages[file.stem] = {x.strip() for x in code if not x.strip().startswith(ignored)} - {""}
    percent = {
        (a, b): 100 * len(pages[a] & pages[b]) / min(len(pages[a]), len(pages[b]))
        for a, b in combinations(pages, 2)
    }
    worst = max(percent, key=percent.__getitem__)
    return median(percent.values()), percent[worst], " and ".join(worst)


def measure_checkout(root: Path) -> dict[str, str]:
    """Return the metrics of a checkout by name."""
    package = root / "offline_rl"
    files = [*package.rglob("*.py")]
    sizes = {f: len(f.read_text().splitlines()) for f in files}
    largest = max(sizes, key=sizes.__getitem__)
    code = [code_lines(f) for f in (package / "algorithms").glob("[a-z]*.py")]
    middle, worst, pair = shared_lines(package / "algorithms")
    return {
        "files in `offline_rl/` itself": str(len([*package.glob("*.py")])),
        "files in total": str(len(files)),
        "largest file": f"{sizes[largest]} lines ({largest.relative_to(package)})",
        "modules in the longest import chain": str(longest_chain(graph(root, lazy=False))),
        "pairs of modules in an import cycle": str(count_cycles(graph(root, lazy=True))),
        "lines of code per algorithm, median and maximum": f"{median(code):.0f}, {max(code)}",
        "lines shared by two algorithms, median": f"{middle:.0f} %",
        "lines shared by two algorithms, maximum": f"{worst:.0f} % ({pair})",
    }


def main(arguments: list[str]) -> None:
    roots = [Path(a) for a in arguments] + [Path()]
    columns = [measure_checkout(root) for root in roots]
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(column[name] for column in columns) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
