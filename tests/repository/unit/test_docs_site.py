"""What becomes of the documents before and after the site is built from them."""

from __future__ import annotations

from pathlib import Path

from scripts.docs_site import broken_links, navigation, stage


def test_pages_keep_their_places_and_lose_links_to_what_is_no_page(tmp_path: Path) -> None:
    pages = stage(tmp_path)
    assert "README.md" in pages
    assert not any(name.startswith(("tests/", ".github/")) for name in pages)
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "](docs/how-to/local.md)" in readme
    assert "](LICENSE)" not in readme
    assert (tmp_path / "docs" / "pictures" / "job.svg").is_file()


def test_every_page_of_the_shelves_is_in_the_navigation(tmp_path: Path) -> None:
    pages = stage(tmp_path)
    listed = navigation(tmp_path)
    missing = [name for name in pages if name.startswith("docs/") and f'"{name}"' not in listed]
    assert missing == []


def test_broken_links_and_what_is_loaded_from_elsewhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text('<h1 id="top"></h1><a href="https://example.com">x</a>')
    (tmp_path / "bad.html").write_text(
        '<a href="good.html#top">a</a><a href="good.html#gone">b</a><a href="no.html">c</a>'
        '<script src="https://example.com/x.js"></script>'
    )
    assert sorted(broken_links(tmp_path)) == [
        "bad.html: good.html#gone", "bad.html: loads https://example.com/x.js", "bad.html: no.html",
    ]  # fmt: skip
