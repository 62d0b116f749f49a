"""`make docs`: the documents as a site in .cache/docs/site; it needs no network and no server."""

from __future__ import annotations

import filecmp
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

CHECKOUT = Path(__file__).resolve().parents[1]
CACHE = CHECKOUT / ".cache"
PACKAGES = CHECKOUT / "constraints" / "docs.txt"
SHELVES = {"Start": "start", "How to": "how-to", "Reference": "reference", "Internals": "internals"}
FIRST = {"muster": "README.md", "How it compares": "docs/compare.md"}
LAST = ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
SETTINGS = """\
[project]
site_name = "muster"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = {nav}

[project.theme]
font = false
features = ["navigation.indexes", "navigation.sections", "content.code.copy"]

[project.plugins.search]
enabled = false
"""


def main() -> None:
    source = CACHE / "docs"
    site = source / "site"
    shutil.rmtree(source, ignore_errors=True)
    pages = stage(source / "pages")
    settings = source / "zensical.toml"
    settings.write_text(SETTINGS.format(nav=navigation(source / "pages")), encoding="utf-8")
    subprocess.run([tools() / "zensical", "build", "-s", "-f", settings], check=True, cwd=source)
    broken = sorted(broken_links(site))
    if broken:
        raise SystemExit("\n".join(["site: links that lead nowhere:", *broken]))
    print(f"site: {len(pages)} pages, {site.relative_to(CHECKOUT)}/index.html")


def tools() -> Path:
    """The programs of constraints/docs.txt, in an environment of their own."""
    folder, uv = CACHE / "docs-tools", Path(sys.prefix, "bin", "uv")
    mark = folder / ".packages"
    if not (mark.is_file() and filecmp.cmp(mark, PACKAGES, shallow=False)):
        subprocess.run(
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True
        )
        python = folder / "bin" / "python"
        subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", python, "-r", PACKAGES], check=True
        )
        shutil.copy(PACKAGES, mark)
    return folder / "bin"


def stage(to: Path) -> list[str]:
    """Copies all documents and their pictures; a link to any other file becomes its text."""
    words = ["git", "ls-files", "-co", "--exclude-standard", "*.md"]
    listed = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    pages = [name for name in listed.stdout.split() if not name.startswith((".", "tests/"))]
    for name in pages:
        page = CHECKOUT / name

        def link(found: re.Match[str], page: Path = page) -> str:
            target, _, anchor = found[2].partition("#")
            path = (page.parent / target).resolve() if target else page
            if re.match(r"[a-z]+:", target) or path.suffix in (".md", ".svg"):
                return found[0]
            if (path / "README.md").is_file():
                return f"[{found[1]}]({target.rstrip('/')}/README.md{'#' * bool(anchor)}{anchor})"
            return found[1]

        text = re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", link, page.read_text(encoding="utf-8"))
        copy = to / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf-8")
    shutil.copytree(CHECKOUT / "docs" / "pictures", to / "docs" / "pictures")
    return pages


def navigation(pages: Path) -> str:
    """The list of pages, shelf after shelf, as TOML."""
    entries: list[tuple[str, str | list[str]]] = [*FIRST.items()]
    for title, shelf in SHELVES.items():
        found = sorted(
            str(path.relative_to(pages)) for path in (pages / "docs" / shelf).rglob("*.md")
        )
        found.sort(key=lambda name: not name.endswith("README.md"))
        if found:
            entries.append((title, found))
    entries.append(("Project", LAST))
    return "[\n" + "".join(f"  {{{json.dumps(t)} = {json.dumps(p)}}},\n" for t, p in entries) + "]"


class _Links(HTMLParser):
    """Collects where a page leads and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value or "")
            elif name == "href" and tag == "a":
                self.leads.append(value or "")
            elif name == "src" or (name == "href" and ("rel", "canonical") not in attrs):
                self.loads.append(value or "")


def _read(page: Path) -> _Links:
    links = _Links()
    links.feed(page.read_text(encoding="utf-8"))
    return links


def broken_links(site: Path) -> Iterator[str]:
    """Links of the site's pages to files or headings that are not there, and all that would be
    loaded from elsewhere."""
    pages = {
        page.resolve(): _read(page) for page in site.rglob("*.html") if page.name != "404.html"
    }
    for page, links in pages.items():
        for target in links.leads + links.loads:
            name, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:|//", target):
                if target in links.loads and not target.startswith("data:"):
                    yield f"{page.relative_to(site)}: loads {target}"
                continue
            path = (page.parent / unquote(name)).resolve() if name else page
            missing = anchor and path in pages and unquote(anchor) not in pages[path].anchors
            if not path.is_file() or missing:
                yield f"{page.relative_to(site)}: {target}"


if __name__ == "__main__":
    main()
