"""Hook of MkDocs (mkdocs.yml): adds generated pages and stored results, and rewrites links to them.

mkdocs build --strict

The pages of docs/ and benchmarks/results use paths in the repository as links, as GitHub does. On
the site, a link to a file of the site becomes a link to its page. A link to another file becomes a
link to the repository if mkdocs.yml has `repo_url`, and plain text otherwise.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

HOME = Path(__file__).resolve().parents[2]
if sys.path[0] == str(HOME / "docs" / "generate"):  # MkDocs adds it while it loads this file
    sys.path[0] = str(HOME)

import envs  # noqa: E402
import offline_rl  # noqa: E402
import policies  # noqa: E402
import real_robot  # noqa: E402
from docs.generate import algorithm_page  # noqa: E402
from offline_rl.algorithms.common.registry import algorithm_names  # noqa: E402

RESULTS = "benchmarks/results"
FRONT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
KINDS = (".md", ".png", ".csv", ".json")  # suffixes of result files on the site
PACKAGES = (offline_rl, policies, envs, real_robot)
# code, which is not changed, or an image or link with its text and target
CODE_OR_LINK = re.compile(
    r"(?P<code>^```.*?^```$|`+[^`\n]+`+(?!\]))"
    r"|(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)",
    re.MULTILINE | re.DOTALL,
)
CODE = re.compile(r"(^```.*?^```$|`+[^`\n]+`+)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> None:
    """Add the generated pages and the results to the navigation."""
    for section in config.nav:
        if "Algorithms" in section:
            section["Algorithms"] += [{name: f"algorithms/{name}.md"} for name in algorithm_names()]
        if "Results" in section:
            section["Results"] += result_pages()


def result_pages() -> list[Any]:
    """Return the navigation of the results: single pages, then the pages of each folder."""
    groups: dict[str, list[str]] = {}
    for path in result_files():
        folder, _, name = path.removeprefix(f"{RESULTS}/").rpartition("/")
        if name.endswith(".md") and (folder or name != "README.md"):
            groups.setdefault(folder, []).append(uri_of(path))
    pages: list[Any] = groups.pop("", [])
    for folder, uris in groups.items():
        title = (HOME / RESULTS / folder / "README.md").read_text().splitlines()[0]
        pages.append({title.lstrip("# "): sorted(uris, key=lambda uri: "README" not in uri)})
    return pages


def result_files() -> list[str]:
    """Return the result files on the site, as paths in the repository.

    The notes of a study are part of its README.md.
    """
    files = (p for p in sorted((HOME / RESULTS).rglob("*")) if p.suffix in KINDS)
    return [
        path.relative_to(HOME).as_posix()
        for path in files
        if not path.name.endswith("notes.md")
        or (path.name == "notes.md" and not (path.parent / "runs.csv").exists())
    ]


def on_files(files: Any, config: Any) -> None:
    """Add the front pages, the results, and the pages of algorithms and packages to the site."""
    from mkdocs.structure.files import File

    for path in [*FRONT, *result_files()]:
        files.append(File.generated(config, uri_of(path), abs_src_path=str(HOME / path)))
    texts = {f"algorithms/{name}.md": algorithm_page.page(name) for name in algorithm_names()}
    texts |= {f"api/{package.__name__}.md": api_page(package) for package in PACKAGES}
    for uri, text in texts.items():
        files.append(File.generated(config, uri, content=text))


def api_page(package: ModuleType) -> str:
    """Return the page of a package's public names. mkdocstrings adds their documentation."""
    title = package.__name__
    parts = [f"# `{title}`", api_entry(title, show_root_toc_entry="false", members="false")]
    for name in package.__all__:
        value = getattr(package, name)
        if not isinstance(value, str):  # the version
            path = f"{value.__module__}.{value.__qualname__}"
            options = {"heading": f"{title}.{name}", "toc_label": name}
            parts.append(api_entry(path, show_root_heading="true", **options))
    return "\n\n".join(parts) + "\n"


def api_entry(path: str, **options: str) -> str:
    """Return the lines that mkdocstrings replaces with the documentation of an object."""
    lines = (f"      {key}: {value}" for key, value in options.items())
    return "\n".join([f"::: {path}", "    options:", *lines])


def uri_of(path: str) -> str:
    """Return the site path of a path in the repository; an empty string if there is none."""
    if path in FRONT:
        return FRONT[path]
    if match := re.fullmatch(r"offline_rl/algorithms/(\w+)\.py", path):
        return f"algorithms/{match[1]}.md"
    for folder, prefix in (("docs/", ""), (f"{RESULTS}/", "results/")):
        if path.startswith(folder):
            return prefix + path.removeprefix(folder)
    return ""


def path_of(uri: str) -> str:
    """Return the path in the repository of a page of the site."""
    front = {value: key for key, value in FRONT.items()}
    if uri.startswith("results/"):
        return f"{RESULTS}/{uri.removeprefix('results/')}"
    return front.get(uri, f"docs/{uri}")


def on_page_markdown(text: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page, and syntax that Python-Markdown parses differently."""
    uris = {file.src_uri for file in files}
    return as_python_markdown(with_site_links(text, page.file.src_uri, uris, config.repo_url or ""))


def as_python_markdown(text: str) -> str:
    """Convert GitHub's Markdown to Python-Markdown.

    Nested lists are indented by four columns. `<name>` outside code is text, not HTML. A diagram
    becomes a table.
    """
    parts = CODE.split(text)
    for k, part in enumerate(parts):
        if part.startswith("```mermaid\nstateDiagram"):
            parts[k] = state_table(part)
        elif not k % 2:
            nested = re.sub(r"^ {2,3}(?=(?:[-*]|\d+\.) )", "    ", part, flags=re.MULTILINE)
            parts[k] = re.sub(r"<(?!br>|!--|https?:)", "&lt;", nested)
    return "".join(parts)


def with_site_links(text: str, uri: str, uris: set[str], repository: str) -> str:
    """Return the text of a page with its links rewritten.

    uri: the page.  uris: all files of the site.  repository: its address, or an empty string.
    """
    folder = posixpath.dirname(path_of(uri))

    def rewritten(match: re.Match[str]) -> str:
        target = match["target"]
        if match["code"] or "://" in target or target.startswith("#"):
            return match[0]
        name, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(folder, name))
        place = uri_of(path)
        if place in uris and place != uri:
            link = posixpath.relpath(place, posixpath.dirname(uri) or ".")
            return f"{match['image']}[{match['text']}]({link}{'#' * bool(anchor)}{anchor})"
        if not (HOME / path).exists():
            return match[0]  # MkDocs reports the broken link
        if repository:
            return f"[{match['text']}]({repository.rstrip('/')}/blob/HEAD/{path})"
        return match["text"]

    return CODE_OR_LINK.sub(rewritten, text)


def state_table(diagram: str) -> str:
    """Return a Mermaid state diagram as a table, so that browsers need no script to draw it."""
    rows = ["| state | event | next state |", "| --- | --- | --- |"]
    for line in diagram.splitlines():
        if match := re.fullmatch(r"\s*(\S+) --> (\S+?)(?:: (.+))?", line):
            state, following, events = match.groups()
            state = "start" if state == "[*]" else state
            rows.append(f"| {state} | {events or ''} | {following} |")
    return "\n".join(rows)


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Prevent the theme from requesting the number of stars from the repository's host."""
    return output.replace('data-md-component="source"', "")
