"""The figures of scripts/house: what is seeded is found, what is fine is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.measure import house

LAUNCHER = "toolkit/launcher/src/muster"
CORE = "toolkit/parallel/csrc"


def measured(root: Path, **files: str) -> tuple[dict[str, float], list[str]]:
    """Of a repository with these files; `__` in a name stands for a dot, `_` for a slash."""
    texts = {name.replace("__", ".").replace("_", "/"): text for name, text in files.items()}
    placed = {
        f"{LAUNCHER if name.endswith('.py') else CORE}/{name}": text for name, text in texts.items()
    }
    for path, text in placed.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return house.measure(root, sorted(placed))


def test_lines_of_code_are_counted_without_docstrings_comments_and_blanks(tmp_path: Path) -> None:
    python = '"""Two\n\nlines."""\n\n# why\nx = """a\nb"""  # so\n'
    core = '/* why\n\n   so */\nint x; // here\nchar *s = "/* no comment */";\n'
    figures, _ = measured(tmp_path, a__py=python, a__c=core)
    assert figures["launcher: lines of code"] == 2
    assert figures["launcher: prose, % of lines"] == round(100 * 4 / 6, 1)
    assert figures["core in C: lines of code"] == 2
    assert figures["core in C: prose, % of lines"] == 50


def test_a_circle_of_imports_or_includes_is_found(tmp_path: Path) -> None:
    figures, notes = measured(
        tmp_path,
        a__py="def f():\n    from muster.b import g\n",
        b__py="from muster import c\n",
        c__py="import muster.a\n",
        d__py="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import muster.e\n",
        e__py="import muster.d\n",
        net_x__h="",
        net_x__c='#include "net/x.h"\n#include "p2p/y.h"\n',
        p2p_y__h='// #include "net/x.h"\n',
        p2p_y__c='#include "net/x.h"\n',
    )
    assert figures["circles between files"] == 2
    python, core = (note for note in notes if note.startswith("circle"))
    assert python.split() == ["circle:", *(f"{LAUNCHER}/{name}.py" for name in "abc")]
    assert core.split() == ["circle:", f"{CORE}/net/x", f"{CORE}/p2p/y"]


def test_arrows_between_rooms_are_pairs_of_folders(tmp_path: Path) -> None:
    figures, _ = measured(
        tmp_path,
        run_base_a__py="",
        run_job_b__py="import muster.run.base.a\nimport muster.run.child.d\n",
        run_job_c__py="import muster.run.base.a\nimport muster.run.job.b\n",
        run_child_d__py="import muster.other\n",
        other__py="import muster.run.base.a\n",
    )
    assert figures["arrows between rooms of run/"] == 2


def test_words_are_found_in_names_and_messages_and_not_in_prose(tmp_path: Path) -> None:
    python = '"""A seat."""\n# a nursery\nclass SeatMap:\n    my_seat = "no seat is free"\n'
    core = '/* a seat */\nint recommend_door;\nputs("the councils arena");\n'
    figures, notes = measured(tmp_path, a__py=python, a__c=core)
    assert figures["words of the old vocabulary"] == 5
    assert f"word 'seat' x3: {LAUNCHER}/a.py" in notes


def test_a_class_name_that_is_used_twice_is_found_unless_private(tmp_path: Path) -> None:
    text = "class A: ...\nclass _B: ...\n"
    figures, notes = measured(tmp_path, x_a__py=text, y_a__py=text)
    assert figures["launcher: class names used twice"] == 1
    assert "class A more than once in launcher" in notes


def test_modules_of_one_name_in_one_package_are_found(tmp_path: Path) -> None:
    figures, notes = measured(tmp_path, run_a_x__py="", run_b_x__py="", plan_x__py="", x__py="")
    assert figures["launcher: module names used twice in a package"] == 1
    assert f"modules of one name: {LAUNCHER}/run/a/x.py {LAUNCHER}/run/b/x.py" in notes


def test_the_modules_by_whose_names_a_backend_is_imported_are_no_finding(tmp_path: Path) -> None:
    figures, _ = measured(tmp_path, local_backends_a_start__py="", local_backends_b_start__py="")
    assert figures["launcher: module names used twice in a package"] == 0


@pytest.mark.parametrize(("count", "found"), [(house.MOST_FILES, False), (21, True)])
def test_a_big_folder_is_found(tmp_path: Path, count: int, found: bool) -> None:
    figures, _ = house.measure(tmp_path, [f"docs/{n}.md" for n in range(count)])
    assert ("files in docs/" in figures) is found


def test_a_figure_beyond_its_limit_or_without_one_is_beyond() -> None:
    limits = house.read_limits("# the first\nlines <= 5  # why\n\nprose, % of lines >= 12.5\n")
    assert limits == {"lines": ("<=", 5.0), "prose, % of lines": (">=", 12.5)}
    assert not house.is_beyond(5, limits["lines"]) and house.is_beyond(6, limits["lines"])
    assert not house.is_beyond(12.5, limits["prose, % of lines"])
    assert house.is_beyond(12.4, limits["prose, % of lines"])
    assert house.is_beyond(1, None) and not house.is_beyond(0, None)
