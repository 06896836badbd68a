"""The house in numbers: files in the hall, floors and circles of imports, what algorithms share.

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


def imported(tree: ast.AST, lazy: bool) -> Iterator[str]:
    """Names of modules and what is taken from them; lazy: in functions and type checks too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield node.module or ""
        elif lazy or not isinstance(node, ast.FunctionDef | ast.If):
            yield from imported(node, lazy)


def graph(root: Path, *, lazy: bool) -> dict[str, set[str]]:
    """Module -> the modules of offline_rl that it imports."""
    files = {
        ".".join(f.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): f
        for f in (root / "offline_rl").rglob("*.py")
    }
    return {
        name: {m for m in imported(ast.parse(f.read_text()), lazy) if m in files and m != name}
        for name, f in files.items()
    }


def floors(edges: dict[str, set[str]]) -> int:
    """Modules in the longest chain of imports."""
    height: dict[str, int] = {}

    def climb(name: str) -> int:
        if name not in height:
            height[name] = 0  # a circle counts once
            height[name] = 1 + max(map(climb, edges[name]), default=0)
        return height[name]

    return max(map(climb, edges))


def circles(edges: dict[str, set[str]]) -> int:
    """Pairs of modules that reach one another, imports inside functions and type checks counted."""

    def reach(name: str) -> set[str]:
        found, queue = set[str](), [name]
        while queue:
            queue += edges[queue.pop()] - found
            found |= set(queue)
        return found

    far = {name: reach(name) for name in edges}
    return sum(b in far[a] and a in far[b] for a, b in combinations(edges, 2))


def shared(folder: Path) -> tuple[float, float, str]:
    """Share of an algorithm's lines that another has too: median and worst pair, in percent."""
    pages = {}
    for file in sorted(folder.glob("[a-z]*.py")):
        code = ast.unparse(ast.parse(file.read_text())).splitlines()
        quiet = ("import ", "from ", "class ", '"""')
        pages[file.stem] = {x.strip() for x in code if not x.strip().startswith(quiet)} - {""}
    found = {
        (a, b): 100 * len(pages[a] & pages[b]) / min(len(pages[a]), len(pages[b]))
        for a, b in combinations(pages, 2)
    }
    worst = max(found, key=found.__getitem__)
    return median(found.values()), found[worst], " and ".join(worst)


def facts(root: Path) -> dict[str, str]:
    """Of a checkout."""
    package = root / "offline_rl"
    files = [*package.rglob("*.py")]
    sizes = {f: len(f.read_text().splitlines()) for f in files}
    largest = max(sizes, key=sizes.__getitem__)
    code = [code_lines(f) for f in (package / "algorithms").glob("[a-z]*.py")]
    middle, worst, pair = shared(package / "algorithms")
    return {
        "files in the hall (`offline_rl/*.py`)": str(len([*package.glob("*.py")])),
        "files in all": str(len(files)),
        "largest file": f"{sizes[largest]} lines ({largest.relative_to(package)})",
        "floors": str(floors(graph(root, lazy=False))),
        "pairs of modules that reach one another": str(circles(graph(root, lazy=True))),
        "lines of code an algorithm, median and most": f"{median(code):.0f}, {max(code)}",
        "lines shared by two algorithms, median": f"{middle:.0f} %",
        "and worst": f"{worst:.0f} % ({pair})",
    }


def main(arguments: list[str]) -> None:
    roots = [Path(a) for a in arguments] + [Path()]
    columns = [facts(root) for root in roots]
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(column[name] for column in columns) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
