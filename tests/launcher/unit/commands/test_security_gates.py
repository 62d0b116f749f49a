"""What the source may not hold, and all that it loads (promises S04, S10, S11, S16)."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import muster
from muster.plan import plan
from muster.plan.launchplan import Launcher
from muster.types.distribution import Distribution, Single, Torchrun
from muster.types.tools import Tools
from tests.launcher.support.jobs import make_facts, make_job, make_staged

SOURCE = Path(muster.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib",
           "yaml", "xmlrpc", "code", "codeop", "pty", "pdb"}  # fmt: skip
BUILTINS = {"eval", "exec", "compile", "__import__", "input", "breakpoint"}
CALLS = {"os.system", "os.popen", "os.spawnl", "os.spawnlp", "torch.load", "numpy.load", "np.load",
         "subprocess.getoutput", "subprocess.getstatusoutput", "pandas.read_pickle",
         "tempfile.mktemp", "os.tmpnam", "os.tempnam"}  # fmt: skip
LOADERS = {"json.load", "json.loads"}  # text to plain values; nothing else is ever loaded
BY_NAME = {"importlib.import_module"}  # never of a name that came over the network: see below


@functools.cache
def trees() -> Sequence[tuple[str, ast.Module]]:
    paths = sorted(SOURCE.rglob("*.py"))
    return [(str(path.relative_to(SOURCE)), ast.parse(path.read_text())) for path in paths]


def offences(tree: ast.AST) -> Iterator[str]:
    """Every place of a tree that could run or load what is not ours."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            names = []
        yield from (f"import of {name}" for name in names if name.split(".")[0] in MODULES)
        yield from (f"import of {name}" for name in names if name in CALLS)
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in BUILTINS or called in CALLS:
                yield f"line {node.lineno}: {called}()"
            for keyword in node.keywords:
                if keyword.arg == "shell" and not _is_false(keyword.value):
                    yield f"line {node.lineno}: shell={ast.unparse(keyword.value)}"
                if keyword.arg in ("allow_pickle", "weights_only"):
                    yield f"line {node.lineno}: {keyword.arg}="


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


@pytest.mark.promise("S04")
@pytest.mark.promise("S10")
@pytest.mark.promise("S11")
def test_no_source_runs_or_loads_what_is_not_ours() -> None:
    found = [f"{name}: {what}" for name, tree in trees() for what in offences(tree)]
    # the user's own script, in the process that is to run it
    runner = [line for line in found if line.startswith("rank_bootstrap/python_main.py: line ")]
    assert [line.rpartition(" ")[2] for line in runner] == ["exec()", "compile()"]
    # where a person at a terminal of `muster local` types what is to run, see `--pdb`
    typed = ["rank_bootstrap/debugging.py: import of pdb"]
    assert [line for line in found if line not in (*runner, *typed)] == []


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from pickle import loads", "import os\nos.system('x')", "eval('1')",
     "exec('x=1')", "import subprocess\nsubprocess.run('x', shell=True)",
     "subprocess.Popen('x', shell=flag)", "from os import system", "torch.load(path)",
     "def f():\n    import marshal", "import yaml.loader", "tempfile.mktemp()"],
)  # fmt: skip
def test_the_gate_sees_what_it_is_for(text: str) -> None:
    assert list(offences(ast.parse(text)))


@pytest.mark.promise("S11")
def test_json_is_all_that_is_ever_loaded_and_only_here() -> None:
    """A new place that reads a format, or imports by name, is to be looked at."""
    loads: set[str] = set()
    imports: set[str] = set()
    for name, tree in trees():
        calls = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
        if any(call.endswith((".load", ".loads")) for call in calls):
            assert {c for c in calls if c.endswith((".load", ".loads"))} <= LOADERS, name
            loads.add(name)
        if calls & BY_NAME:
            imports.add(name)
    assert {"run/channel/wire.py", "contract/request/files.py"} <= loads
    # what the platform wrote, what the user sends, frames, and what pip and the probe answer;
    # never what a rank left behind
    assert {name for name in loads if name.startswith("stage/")} <= {
        "stage/python/packages.py",
        "stage/python/pip.py",
        "stage/machine/probe.py",
        "stage/python/target.py",
    }
    assert not {name for name in imports if name.startswith(("run/", "stage/", "plan/", "types/"))}


@pytest.mark.promise("S16")
def test_no_source_sets_a_variable_of_the_loader() -> None:
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert "LD_PRELOAD" not in node.value, name


@pytest.mark.promise("S17")
@pytest.mark.parametrize("option", [Single(), Torchrun()], ids=repr)
def test_no_text_of_a_peer_reaches_the_ranks_of_another_host(option: Distribution) -> None:
    """Whatever a follower says of itself: the processes of the others are planned without it."""
    job = make_job(3, option, current=1)
    facts = list(make_facts(3))
    honest = plan(job, facts, make_staged(job), Tools())
    evil = "LD_PRELOAD=/evil.so"
    facts[2] = facts[2]._replace(
        address=evil, interface=evil, code_hash=evil, toolkit=evil, python=evil
    )
    made = plan(job, facts, make_staged(job), Tools())
    commands = [made.script]
    commands += [made.starter.command] if isinstance(made.starter, Launcher) else []
    for command in commands:
        assert evil not in repr((command.argv, dict(command.env), command.cwd))
    assert (made.script, made.starter) == (honest.script, honest.starter)
