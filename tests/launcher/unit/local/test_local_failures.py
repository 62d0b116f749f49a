"""Failures as `muster local` shows them: the user's own lines, and GitHub's annotations."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.local.show.github import error, group, in_actions
from muster.local.show.user_files import Place, failing_place, with_own_paths

TAIL = """\
Traceback (most recent call last):
  File "/opt/ml/code/pkg/train.py", line 43, in main
    step()
  File "/opt/ml/code/made_here.py", line 2, in step
  File "/v/site-packages/torch/x.py", line 7, in add
ValueError: bad batch
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").touch()
    (tmp_path / "other.py").touch()
    return str(tmp_path)


def test_only_files_of_the_user_are_named(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source)
    for code in ("/opt/ml/code", "/runs/x/algo-2/opt/ml/code"):
        text = with_own_paths(TAIL.replace("/opt/ml/code", code), source)
        assert f'"{code}/pkg/train.py", line 43, in main  (pkg/train.py:43)\n' in text
        assert text.count("(pkg/") == 1
        assert "made_here.py:2" not in text
    assert with_own_paths("no traceback\n", source) == "no traceback\n"
    monkeypatch.chdir("/")
    relative = source.lstrip("/")
    assert f"({relative}/pkg/train.py:43)" in with_own_paths(TAIL, source)


def test_the_innermost_line_of_the_user_s_is_found(source: str) -> None:
    train = f"{source}/pkg/train.py"
    assert failing_place(TAIL, source) == Place(train, 43)
    syntax = '  File "/opt/ml/code/other.py", line 2\n    prnt(\nSyntaxError: x\n'
    assert failing_place(syntax, source) == Place(f"{source}/other.py", 2)
    crash = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
        '  File "/v/ctypes.py", line 1 in x\n  File "/opt/ml/code/other.py", line 5 in deep\n'
        '  File "/opt/ml/code/pkg/train.py", line 9 in <module>\n'
    )
    assert failing_place(crash, source) == Place(f"{source}/other.py", 5)
    assert failing_place("nothing\n", source) is None


def test_an_annotation_keeps_to_its_line() -> None:
    place = Place("/w/a,b:c/train.py", 4)
    said = error("100% bad\r\nbatch\u2028::stop", place, {"GITHUB_WORKSPACE": "/w"})
    assert said == "::error file=a%2Cb%3Ac/train.py,line=4::100%25 bad%0D%0Abatch?::stop"
    assert error("x", place._replace(path="/e.py"), {"GITHUB_WORKSPACE": "/w"}).startswith(
        "::error file=/e.py,"
    )
    assert error("x", None, {}) == "::error::x"
    assert group("a\nb") == "::group::a%0Ab"
    assert in_actions({"GITHUB_ACTIONS": "true"})
    assert not in_actions({})
