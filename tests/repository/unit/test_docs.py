"""The documents against the code: variables, options, exit codes, messages, links."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from muster.arguments import Parser
from muster.contract.environ import exports
from muster.contract.request.read import read_job
from muster.contract.request.settings import KNOWN
from muster.local.command import add_arguments
from muster.types import errors
from muster.types.deadlines import RANGES, Deadlines, variable
from muster.types.job import Program
from muster.types.machine import Machine
from muster.types.run_files import OF_A_HOST, SUMMARY
from muster_modelparallel.run import own_variables
from tests.support.mltree import PROGRAM, TWO_GROUPS, write_tree

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "toolkit" / "launcher" / "src" / "muster"
MODEL_PARALLEL = ROOT / "toolkit" / "parallel" / "src" / "muster_modelparallel"
NOT_OURS = {"muster-runs", "build", "dist", "node_modules"}
FAMILIES = ("SM_HP_", "SM_CHANNEL_")


def documents() -> Iterator[Path]:
    for folder, below, names in os.walk(ROOT):
        below[:] = [name for name in below if name[0] != "." and name not in NOT_OURS]
        yield from (Path(folder, name) for name in names if name.endswith(".md"))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, less the lines below table heads."""
    found = []
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


def quoted(text: str) -> set[str]:
    """Everything between backticks."""
    return set(re.findall(r"`([^`\n]+)`", text))


def documented(prefix: str) -> set[str]:
    """Names of variables that stand in the first column of a table of variables.md."""
    cells = (row[0] for row in rows(read("docs/reference/variables.md")))
    return {name for cell in cells for name in quoted(cell) if name.startswith(prefix)}


@cache
def texts() -> tuple[str, ...]:
    """Every constant text of the code but docstrings, adjacent literals joined."""
    found: list[str] = []
    for path in (*SOURCE.rglob("*.py"), *MODEL_PARALLEL.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found += [node.value] * (id(node) not in alone)
    return tuple(found)


def exported(folder: Path) -> set[str]:
    """Every variable that a job gets which has all there is to have."""
    resources = {**TWO_GROUPS, "topology": [{"level": 1}]}
    parameters = {
        **PROGRAM,
        "lr": "0.1",
        "sagemaker_job_name": "job",
        "sagemaker_region": "eu-west-1",
    }
    job = read_job(write_tree(folder, parameters, resources, {"train": {}}))
    program = Program("script", job.program, job.paths.code, job.arguments)
    return set(exports(job, Machine(2, None, None, False, (), None, None), program))


def test_every_setting_is_documented_and_every_documented_one_exists() -> None:
    assert documented("MUSTER_") == set(KNOWN)
    assert documented("MODELPARALLEL_") == set(own_variables.KNOWN)


def test_every_variable_of_ours_that_the_code_names_is_explained() -> None:
    named = {text for text in texts() if re.fullmatch(r"MUSTER_[A-Z_]*[A-Z]", text)}
    assert named <= quoted(read("docs/reference/variables.md"))


def test_deadlines_have_the_default_and_the_range_of_the_code() -> None:
    defaults = Deadlines()._asdict()
    written = {row[0].strip("`"): row[1:3] for row in rows(read("docs/reference/variables.md"))}
    for name, (low, high) in RANGES.items():
        expected = [f"{defaults[name]:g}", f"{low:.15g} to {high:.15g}"]
        assert written[variable(name)] == expected, name


def test_every_exported_variable_is_documented(tmp_path: Path) -> None:
    known = quoted(read("docs/reference/variables.md"))
    made = {n for n in exported(tmp_path) if not n.startswith(FAMILIES)}
    assert "SM_HOSTS" in made
    assert made <= known, sorted(made - known)


def test_no_documented_variable_of_a_script_is_made_up(tmp_path: Path) -> None:
    plain = {name for name in documented("SM_") if "<" not in name}
    assert plain <= exported(tmp_path), sorted(plain - exported(tmp_path))


def test_every_file_of_the_record_is_explained() -> None:
    places = {name.strip("/") for name in quoted(read("docs/reference/record.md"))}
    assert {SUMMARY, *(f"HOST/{name}" for name in OF_A_HOST)} <= places


def test_every_class_of_error_stands_beside_its_exit_code() -> None:
    pairs = {(row[0], row[1]) for row in rows(read("docs/reference/exit-codes.md"))}
    for name in sorted(class_names() - {"MusterError", "UserScriptError"}):
        assert (str(vars(errors)[name].exit_code), name) in pairs, name


def messages() -> list[str]:
    cells = (row[0] for row in rows(read("docs/how-to/troubleshooting.md")))
    return [text for cell in cells for text in sorted(quoted(cell))]


# what torch says
ELSEWHERE = {"The hostname of the client socket cannot be retrieved"}


@pytest.mark.parametrize("message", messages())
def test_every_message_of_troubleshooting_is_one_of_the_code(message: str) -> None:
    if message in ELSEWHERE:
        return
    # `<...>` is what differs, and `: ` joins where, what and class
    parts = [part.strip(" ,;()'?") for part in re.split(r"<\.\.\.>|: ", message)]
    for part in filter(None, parts):
        assert any(part in text for text in texts()) or part in class_names(), part


def class_names() -> set[str]:
    """Classes that a headline may begin with; a script's failure has no class of ours."""
    return {name for name in vars(errors) if name.endswith("Error")} | {"UserScriptError"}


@pytest.mark.parametrize("path", sorted(documents()), ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found), target


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as web pages of repositories make them."""
    heads = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_every_library_has_a_word_for_every_option() -> None:
    page = read("docs/how-to/frameworks.md")
    section = page.partition("## Hugging Face, accelerate, Lightning\n")[2].partition("\n## ")[0]
    head, *table = rows(section)
    assert len(head) == 4
    assert all(len(row) == 4 and all(row) for row in table)
    options = quoted(" ".join(row[0] for row in table))
    assert {
        "torch_distributed", "mpi", "smdistributed.dataparallel", "parameter_server",
        "multi_worker_mirrored_strategy", "smdistributed.modelparallel",
    } <= options  # fmt: skip


def test_every_option_of_muster_local_is_documented_and_every_documented_one_exists() -> None:
    parser = Parser("muster local")
    add_arguments(parser)
    exist = set(re.findall(r"^  (?:-\w.*, )?(--[a-z-]+)", parser.format_help(), re.M))
    cells = (row[0] for row in rows(read("docs/reference/options.md")))
    written = {text.split()[0] for cell in cells for text in quoted(cell) if text[:2] == "--"}
    assert written - {"--"} == exist - {"--help"}


def test_the_index_of_how_to_names_every_page() -> None:
    folder = ROOT / "docs" / "how-to"
    linked = re.findall(r"\]\(([^)\s]+\.md)\)", (folder / "README.md").read_text())
    pages = {str(page.relative_to(folder)) for page in folder.rglob("*.md")} - {"README.md"}
    assert pages <= set(linked)
