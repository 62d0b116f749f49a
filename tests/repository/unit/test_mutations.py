"""The mutations of benchmarks.mutations: what is changed, and which tests are run for it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.mutations.choice import chosen_tests
from benchmarks.mutations.sites import mutations_of


def changed(path: str, text: str) -> set[str]:
    return {one.apply(text) for one in mutations_of("", path, text)}


def test_python_is_changed_by_a_token_or_a_statement() -> None:
    assert changed("a.py", 'if x == 1 and y:\n    call("1 == 2")  # a or b\n') == {
        'if x != 1 and y:\n    call("1 == 2")  # a or b\n',
        'if x == 2 and y:\n    call("1 == 2")  # a or b\n',
        'if x == 1 or y:\n    call("1 == 2")  # a or b\n',
        "if x == 1 and y:\n    pass  # a or b\n",
    }


def test_c_is_changed_outside_comments_strings_and_includes() -> None:
    text = (
        '#include <a.h>\nint f(int *p) {\n    p->x = "1 < 2"; /* a || b */\n    return p && 1;\n}\n'
    )
    assert changed("a.c", text) == {
        text.replace("p && 1", "p || 1"),
        text.replace("p && 1", "p && 2"),
        text.replace('p->x = "1 < 2";', ";"),
    }


def test_the_nearest_tests_come_first_and_units_before_those_of_processes(tmp_path: Path) -> None:
    texts = {
        "unit/test_a.py": "from muster.run import (\n    loop,\n    wire,\n)\n",
        "unit/test_b.py": "from muster.run.wires import x\n",
        "unit/test_wire.py": "import muster.run.wire\n",
        "process/test_c.py": "from muster.run.wire import x\n",
        "process/test_d.py": "from tests.support.frames import x\n",
        "process/test_one_host.py": "",
        "support/frames.py": "from muster.run import wire\n",
        "collectives/test_ops.py": "",
        "collectives/test_p2p.py": "",
        "collectives/test_other.py": "",
    }
    for name, text in texts.items():
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text(text)

    def chosen(path: str) -> list[list[str]]:
        return [[Path(test).stem for test in tests] for tests in chosen_tests(tmp_path, path)]

    run = "toolkit/launcher/src/muster/run"
    assert chosen(f"{run}/wire.py") == [["test_wire", "test_a"],
                                        ["test_c", "test_d", "test_one_host"]]  # fmt: skip
    assert chosen(f"{run}/other.py") == [[], ["test_one_host"]]
    assert chosen("toolkit/parallel/csrc/p2p/match.c") == [[], ["test_p2p", "test_ops"]]
    assert chosen("toolkit/parallel/csrc/shm/move.c") == [[], ["test_ops", "test_p2p"]]
