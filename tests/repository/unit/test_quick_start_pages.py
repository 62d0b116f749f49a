"""The quick starts of docs/start, without running them: what SageMaker's SDK would be asked for.

tests/frameworks/test_quick_starts.py runs their commands.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from muster.sdk.distribution import to_hyperparameters

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(set((ROOT / "docs/start").glob("*.md")) - {ROOT / "docs/start/README.md"})
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@EACH_PAGE
def test_both_commands_run_the_example_that_the_estimator_names(page: Path) -> None:
    scripts = re.findall(r"^muster local (\S+)/train.py", page.read_text(), re.MULTILINE)
    assert scripts == [estimator(page)["source_dir"]] * 2
    assert (ROOT / scripts[0] / "train.py").is_file()


@EACH_PAGE
def test_the_estimator_asks_for_the_distribution_of_the_command(page: Path) -> None:
    options = set(re.findall(r" --distribution (\S+)", page.read_text()))
    (v3,) = re.findall(r'distributed=Muster\("(\w+)"\)', page.read_text())
    assert v3 in options
    asked = to_hyperparameters(estimator(page)["distribution"])
    assert asked and asked == to_hyperparameters(v3)


@EACH_PAGE
def test_a_page_is_linked_from_the_list(page: Path) -> None:
    assert f"]({page.name})" in (page.parent / "README.md").read_text()


def estimator(page: Path) -> dict[str, Any]:
    """The literal arguments of the page's estimator."""
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    (call,) = (
        node.value
        for node in ast.parse(block).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    )
    return {
        one.arg: ast.literal_eval(one.value)
        for one in call.keywords
        if one.arg and not isinstance(one.value, ast.Name)
    }
