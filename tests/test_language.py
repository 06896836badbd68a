"""Docstrings, function names and texts are in plain technical English."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PYTHON = sorted(
    path
    for folder in ("benchmarks", "docs", "envs", "examples", "offline_rl", "policies", "real_robot")
    for path in Path(folder).rglob("*.py")
)
HELPERS = sorted(Path("tests").rglob("*.py"))
PAGES = sorted(
    [*Path().glob("*.md"), *Path("docs").rglob("*.md"), *Path("benchmarks").rglob("*.md")]
)
FIRST = frozenset(
    re.findall(
        r"\w+",
        """
    of as in with for what whether who whose which how where when those these and or but at on by
    to from without between before after until such that because since its their than beside under
    over against through
    """,
    )
)
VAGUE = frozenset(
    re.findall(
        r"\w+",
        """
    found own told made seen given known begun kept beside some before now asked opened compared
    answered fitting unfit torn abreast apart settled unseen brief drawn climbed certain temper
    certainty different lost whole left taken tried meant shown wanted chosen said done gone held
    ours theirs here there then what which who how same other rest few most least both each thing
    alike near ahead behind put set_up ready sees seeing looks looking
    """,
    )
)
PHRASES = (
    "policies that denoise",
    "policy that denoises",
    "what denoises",
    "values formed",
    "values had formed",
    "had formed",
    "the data's best tenth",
    "goes on from",
    "begins from nothing",
    "begins anew",
    "begin anew",
    "what is learned is",
    "those of before",
    "a policy that corrects",
    "corrections of policies",
    "is of no use",
    "told on",
    "in rounds",
    "noise of deviation",
    "its own deviation",
)


def first_line_problem(docstring: str) -> str | None:
    """Return why a docstring's first line does not stand alone, or None."""
    if docstring.startswith("["):
        return "begins with a shape"
    word = re.match(r"[`\"'(]*(\w+)", docstring)
    if word is None:
        return "begins with no word"
    if word[1].lower() in FIRST or docstring.lower().startswith("the same"):
        return f"begins with {word[1]!r}"
    return None


def problems(path: Path) -> Iterator[str]:
    """Yield a line for each docstring and function name of a file that is not plain."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        name = getattr(node, "name", "")
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            problem = first_line_problem(docstring) if docstring else None
            if problem:
                yield f"{path}:{getattr(node, 'lineno', 1)}: docstring {problem}"
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if function and name.strip("_") in VAGUE:
            yield f"{path}:{node.lineno}: function name {name!r} says nothing"


@pytest.mark.parametrize(
    ("docstring", "plain"),
    [
        ("Return the policy.", True),
        ("True if the episode ended.", True),
        ("`name` as a file name.", True),
        ("Of the policy.", False),
        ("What acts.", False),
        ("The same for images.", False),
        ("[B, O] -> [B, A].", False),
    ],
)
def test_a_first_line_is_judged_by_its_first_word(docstring: str, plain: bool) -> None:
    assert (first_line_problem(docstring) is None) == plain


def test_docstrings_and_function_names_are_plain() -> None:
    assert [line for path in [*PYTHON, *HELPERS] for line in problems(path)] == []


def test_phrases_that_no_reader_understood_are_gone() -> None:
    """True of code, pages and `--help`, whose texts are the comments beside the options."""
    texts = {path: path.read_text() for path in [*PYTHON, *PAGES]}
    spaces = {path: re.sub(r"[\s#]+", " ", text) for path, text in texts.items()}
    assert [
        f"{path}: {phrase}" for path, text in spaces.items() for phrase in PHRASES if phrase in text
    ] == []
