"""The documentation site: strict build, pages of all algorithms, links, and no network."""

import importlib
import os
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from docs.generate import site
from docs.generate.algorithm_page import escape
from offline_rl.algorithms.common.registry import algorithm_names, algorithm_yaml
from offline_rl.utils.options import describe_options

ROOT = Path(__file__).resolve().parents[1]
URIS = {"guides/a.md", "guides/b.md", "results/neorl2/README.md", "algorithms/iql.md", "index.md"}


@pytest.mark.parametrize(
    ("page", "text", "rewritten"),
    [
        ("guides/a.md", "[b](b.md#c) [#](#d)", "[b](b.md#c) [#](#d)"),
        (
            "guides/a.md",
            "[r](../../benchmarks/results/neorl2/README.md#x)",
            "[r](../results/neorl2/README.md#x)",
        ),
        ("guides/a.md", "[home](../../README.md)", "[home](../index.md)"),
        (
            "algorithms.md",
            "[`iql`](../offline_rl/algorithms/iql.py)",
            "[`iql`](algorithms/iql.md)",
        ),
        ("algorithms/iql.md", "[`c`](../../offline_rl/algorithms/iql.py)", "`c`"),
        ("index.md", "[license](LICENSE)", "license"),
        ("results/neorl2/README.md", "[a](../../../docs/guides/a.md)", "[a](../../guides/a.md)"),
        ("guides/a.md", "`[a](b.md)` [x](https://x.org)", "`[a](b.md)` [x](https://x.org)"),
        ("guides/a.md", "```\n[c](../../LICENSE)\n```", "```\n[c](../../LICENSE)\n```"),
        ("guides/a.md", "[gone](no-such-file.md)", "[gone](no-such-file.md)"),
    ],
)
def test_a_link_leads_to_the_page_on_the_site_or_becomes_text(
    page: str, text: str, rewritten: str
) -> None:
    assert site.with_site_links(text, page, URIS, "") == rewritten


def test_a_link_to_code_leads_to_the_repository_if_it_has_an_address() -> None:
    text = site.with_site_links("[l](../../LICENSE)", "guides/a.md", URIS, "https://x.org/r/")
    assert text == "[l](https://x.org/r/blob/HEAD/LICENSE)"


def test_nested_lists_diagrams_and_angle_brackets_become_pythons_markdown() -> None:
    assert site.as_python_markdown("- a\n  - b <c> `<d>`") == "- a\n    - b &lt;c> `<d>`"
    diagram = "```mermaid\nstateDiagram-v2\n    [*] --> OFF\n    OFF --> ON: start, go\n```"
    rows = site.as_python_markdown(diagram).splitlines()[2:]
    assert rows == ["| start |  | OFF |", "| OFF | start, go | ON |"]


def test_text_of_docstrings_is_shown_as_it_is_written() -> None:
    text = escape("a*b_c <d> `e_f` arXiv:1234.56789")
    assert text == ("a\\*b\\_c &lt;d> `e_f` [arXiv:1234.56789](https://arxiv.org/abs/1234.56789)")


def test_docstrings_become_lists_and_code() -> None:
    pytest.importorskip("griffe", reason="the site needs the extra docs")
    docstrings = importlib.import_module("docs.generate.docstrings")
    lines = ["Load it.", "", "path: a file", "or folder.", "units, n: more.", "Raises Error."]
    expected = "Load it.\n\n- `path`: a file\n    or folder.\n- `units, n`: more.\n\nRaises Error."
    assert docstrings.as_markdown("\n".join(lines)) == expected
    assert docstrings.as_markdown("x = f(1)") == "```python\nx = f(1)\n```"
    assert docstrings.as_markdown("Names:\n  `a`: b.") == "Names:\n\n- `a`: b."


class Page(HTMLParser):
    """Links, anchors, resources and texts of a page of the site."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors, self.links, self.resources = set[str](), list[str](), list[str]()
        self.texts, self.path = list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in ("link", "script", "img", "iframe", "source", "video"):
            self.resources += [values[key] for key in ("href", "src") if key in values]
        if tag in ("p", "pre", "code", "script", "style"):
            self.path.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.path and self.path[-1] == tag:
            self.path.pop()

    def handle_data(self, data: str) -> None:
        if self.path == ["p"]:
            self.texts.append(data)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the site, built strictly: MkDocs fails at any warning."""
    for name in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(name, reason="the site needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    return folder


@cache
def pages(folder: Path) -> dict[Path, Page]:
    """Return the pages of the site."""
    files = (file for file in folder.rglob("*.html") if file.name != "404.html")
    return {file: Page(file.read_text()) for file in files}


def target_of(file: Path, link: str) -> tuple[Path, str] | None:
    """Return the file and the anchor of a link within the site; None for another link."""
    if re.match(r"[a-z]+:", link):
        return None
    name, anchor = urldefrag(link)
    path = (file.parent / unquote(name)).resolve() if name else file
    return (path / "index.html" if path.is_dir() else path), unquote(anchor)


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_every_algorithm_has_a_page_with_its_options_and_settings(built: Path) -> None:
    for name in algorithm_names():
        text = (built / "algorithms" / f"{name}.html").read_text()
        cls = site.algorithm_page.algorithm_class(name)
        missing = [
            option.name
            for option in describe_options(cls.Config)
            if f"<code>{option.name}</code>" not in text
        ]
        assert missing == [], name
        headings = ["differences-from-the-paper-and-public-code", "options", "settings-per-task"]
        assert {*headings, "conformance", "results"} <= pages(built)[
            built / "algorithms" / f"{name}.html"
        ].anchors
        assert (f"configs/algorithm/{name}.yaml" in text) or not algorithm_yaml(name)


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_every_link_and_anchor_within_the_site_exists(built: Path) -> None:
    broken = defaultdict(list)
    for file, page in pages(built).items():
        for link in page.links + page.resources:
            if (target := target_of(file, link)) is None:
                continue
            path, anchor = target
            known = pages(built).get(path)
            if not path.is_file() or (known and anchor and anchor not in known.anchors):
                broken[file.name].append(link)
    assert broken == {}


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_every_page_is_reachable_from_the_first_page(built: Path) -> None:
    seen, left = set[Path](), [built / "index.html"]
    while left:
        file = left.pop()
        if file in seen or file not in pages(built):
            continue
        seen.add(file)
        left += [
            target[0] for link in pages(built)[file].links if (target := target_of(file, link))
        ]
    assert {*pages(built)} - seen == set()
    written = {path.relative_to("docs") for path in Path("docs").rglob("*.md")}
    assert {built / path.with_suffix(".html") for path in written} <= seen


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_no_page_loads_anything_from_the_network(built: Path) -> None:
    loaded = {r for page in pages(built).values() for r in page.resources if "://" in r}
    assert loaded == set()
    diagrams = [str(file) for file in pages(built) if 'class="mermaid"' in file.read_text()]
    assert diagrams == []  # the theme would load a program for them
    styles = "".join(file.read_text() for file in built.rglob("*.css"))
    assert re.findall(r"url\(['\"]?https?:", styles) == []


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_no_page_contains_a_path_of_this_machine(built: Path) -> None:
    files = [f for f in built.rglob("*") if f.suffix in (".html", ".json", ".xml", ".csv")]
    secret = [str(ROOT), str(Path.home()), sys.prefix, str(built)]
    assert len(files) > len(algorithm_names())
    found = [(f.name, s) for f in files for s in secret if f"{s}/" in f.read_text()]
    assert found == []


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_no_paragraph_shows_markdown(built: Path) -> None:
    """A list or table that follows a paragraph without an empty line would be text."""
    raw = re.compile(r"^\s*(?:[-*] |\d+\. |#+ |\|.*\|$|```)|\]\([^)\s]+\)|\*\*\w", re.MULTILINE)
    shown = [(file.name, t) for file, p in pages(built).items() for t in p.texts if raw.search(t)]
    assert shown == []
