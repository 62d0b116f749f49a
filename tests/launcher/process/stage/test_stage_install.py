"""Installing with the real pip, on packages that the tests make; no test needs a network."""

from __future__ import annotations

import base64
import http.server
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.stage.code.program import decide
from muster.stage.python.install import install, provision, target_of, with_target
from muster.types.errors import ConfigError, InstallError
from muster.types.job import SITE, Program, Settings
from tests.launcher.support.packages import (
    HATCH,
    SETUP,
    make_environment,
    make_wheel,
    output_of,
    site_packages,
)
from tests.launcher.support.steps import LogLines, Steps

CANARY = "canary-hunter22"


class Desk:
    """A code folder, wheels, an interpreter of its own, and what installing there did."""

    def __init__(self, folder: Path) -> None:
        self.code = folder / "code"
        self.code.mkdir()
        self.wheels = folder / "wheels"
        self.target = folder / "site"
        self.python = make_environment(folder / "env")
        self.steps = Steps()
        self.log = LogLines()
        self.environ = {
            "PATH": os.environ["PATH"],
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this one the other way round
            "PIP_NO_CACHE_DIR": "1",
            "PIP_RETRIES": "1",
            "HOME": str(folder),
        }
        self.wheels.mkdir()

    def put(self, **files: str) -> Desk:
        for name, text in files.items():
            path = self.code / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return self

    def install(
        self, name: str = "train.py", target: bool = False, replace_torch: bool = False
    ) -> Program:
        program = decide(str(self.code), name, (), "", ours=False)
        folder = str(self.target) if target else ""
        settings = Settings(install_target=folder, replace_torch=replace_torch)
        install(program, self.environ, settings, self.steps, self.log, python=str(self.python))
        return program

    def failure(self, target: bool = False) -> InstallError:
        with pytest.raises(InstallError) as caught:
            self.install(target=target)
        assert caught.value.exit_code == 101
        return caught.value

    def run(self, code: str, target: bool = False) -> str:
        environ = with_target(self.environ, str(self.target) if target else "")
        return output_of(self.python, code, environ)

    @property
    def own_packages(self) -> list[str]:
        """What the interpreter's own folder holds beside what it was made with."""
        return sorted(p.name for p in site_packages(self.python).iterdir() if p.suffix != ".pth")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_requirements_count_for_every_kind_of_entry_point(desk: Desk) -> None:
    make_wheel(desk.wheels, "demo", "1.0")
    desk.put(requirements_txt="demo\n")
    (desk.code / "go").write_text("#!/bin/sh")
    (desk.code / "go").chmod(0o755)
    assert desk.install("go").kind == "command"
    assert desk.run("import demo; print(demo.VERSION)") == "1.0"


def test_nothing_is_started_when_nothing_is_asked_for(desk: Desk) -> None:
    desk.put(train_py="", requirements_txt="# nothing\n\n").install()
    desk.install(target=True)
    assert desk.steps.calls == []
    assert not desk.target.exists()


def test_requirements_that_are_no_file_are_an_error_and_not_left_out(desk: Desk) -> None:
    (desk.code / "requirements.txt").mkdir()
    error = desk.put(train_py="").failure()
    assert "requirements.txt cannot be read: Is a directory" in str(error)


def test_a_package_is_built_from_a_copy_and_the_code_folder_stays_as_it_was(desk: Desk) -> None:
    make_wheel(desk.wheels, "demo", "1.0")
    desk.put(mine__train_py="print('ran', end='')", requirements_txt="demo\n")
    (desk.code / "mine" / "__init__.py").touch()
    text = HATCH.format(name="mine", version="1", requires=["demo"], package="mine")
    (desk.code / "pyproject.toml").write_text(text)
    before = {path: path.stat().st_mtime_ns for path in [desk.code, *desk.code.rglob("*")]}
    program = desk.install("mine.train")
    assert program == Program("module", "mine.train", str(desk.code), ())
    assert desk.run("import demo, mine.train") == "ran"
    assert before == {path: path.stat().st_mtime_ns for path in [desk.code, *desk.code.rglob("*")]}
    ((argv, _, folder),) = [each for each in desk.steps.calls if "pip" in each[0]]
    assert argv[1:4] == ("-m", "pip", "install") and argv[-3:] == (".", "-r", "requirements.txt")
    assert folder != str(desk.code)
    assert not Path(folder).exists()


@pytest.fixture
def with_torch(desk: Desk) -> Desk:
    """As in the image `cpu`: a build of torch that is not the index's."""
    for name, version in (("torch", "2.13.0+cpu"), ("demo", "1.0")):
        info = site_packages(desk.python) / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").touch()
    return desk.put(train_py="")


@pytest.mark.promise("F77")
@pytest.mark.parametrize("target", [False, True], ids=["in place", "target"])
@pytest.mark.slow
def test_requirements_that_need_another_torch_are_refused_with_both_sides(
    target: bool, with_torch: Desk
) -> None:
    make_wheel(with_torch.wheels, "torch", "2.15.0")
    make_wheel(with_torch.wheels, "torchvision", "0.30.0", ["torch==2.15.0"])
    error = with_torch.put(requirements_txt="torchvision\n").failure(target=target)
    assert "torchvision 0.30.0 depends on torch==2.15.0" in error.headline
    assert "the image has torch==2.13.0+cpu" in error.headline
    assert "MUSTER_REPLACE_TORCH=1" in error.fix
    with_torch.put(requirements_txt="torch==2.15.0\n")
    assert "needs another torch" in with_torch.failure(target=target).headline
    if not target:
        with_torch.install(replace_torch=True)
        assert "torch 2.13.0+cpu by 2.15.0" in with_torch.log.text


def test_another_torch_is_refused_with_both_sides_also_beside_a_limit_of_the_users_own(
    with_torch: Desk,
) -> None:
    make_wheel(with_torch.wheels, "torch", "2.15.0")
    (with_torch.code / "mine.txt").write_text("torch<=2.14.1\n")
    error = with_torch.put(requirements_txt="-c mine.txt\ntorch==2.15.0\n").failure()
    assert "needs another torch than the image has: torch==2.15.0" in error.headline


def test_a_conflict_with_constraints_of_the_users_own_is_not_laid_to_torch(
    with_torch: Desk,
) -> None:
    make_wheel(with_torch.wheels, "leaf", "2.0")
    (with_torch.code / "mine.txt").write_text("leaf==1.0\n")
    error = with_torch.put(requirements_txt="-c mine.txt\nleaf==2.0\n").failure(target=True)
    assert "pip failed (exit code 1)" in error.headline
    assert "(constraint) leaf==1.0" in error.tail
    assert "torch" not in error.headline + error.fix


@pytest.mark.promise("F77")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="elsewhere the index builds for CPU")
def test_a_torchvision_that_cannot_work_with_the_images_torch_ends_the_job_before_it_trains(
    with_torch: Desk,
) -> None:
    make_wheel(with_torch.wheels, "torchvision", "0.28.0", ["torch==2.13.0"])
    with_torch.put(requirements_txt="torchvision\n")
    assert "torchvision 0.28.0 was built for CUDA" in with_torch.failure().headline


def test_a_torchvision_of_the_same_kind_of_build_as_torch_is_installed(with_torch: Desk) -> None:
    make_wheel(with_torch.wheels, "torchvision", "0.28.0+cpu", ["torch==2.13.0"])
    with_torch.put(requirements_txt="torchvision\n").install()
    assert with_torch.run("import torchvision as t; print(t.VERSION)") == "0.28.0+cpu"


@pytest.mark.parametrize("target", [False, True], ids=["in place", "target"])
@pytest.mark.slow
def test_a_package_of_the_image_that_is_replaced_is_named_with_both_versions(
    target: bool, with_torch: Desk
) -> None:
    make_wheel(with_torch.wheels, "demo", "2.0")
    with_torch.put(requirements_txt="demo>=2\n").install(target=target)
    warned = [line for line in with_torch.log.lines if line.startswith("WARNING")]
    assert warned == [
        "WARNING install requirements replaced packages of the image: demo 1.0 by 2.0"
    ]


@pytest.mark.promise("F63")
def test_requirements_go_below_the_base_folder_where_the_interpreter_cannot_be_written(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = decide(str(desk.put(train_py="").code), "train.py", (), "", ours=False)
    monkeypatch.setattr("sysconfig.get_path", lambda _: "/proc/nothing-is-written-here")
    assert target_of(program, Settings(), {}, "/opt/ml") == "", "nothing is asked for"
    desk.put(requirements_txt="demo\n")
    assert target_of(program, Settings(), {}, "/opt/ml") == "/opt/ml/.muster-site"
    assert target_of(program, Settings(), {"PIP_USER": "1"}, "/opt/ml") == ""
    assert target_of(program, Settings(install_target="/x"), {}, "/opt/ml") == "/x"
    monkeypatch.undo()
    assert target_of(program, Settings(), {}, "/opt/ml") == "" or os.geteuid()


@pytest.mark.promise("F57")
def test_an_impossible_version_is_told_with_pips_own_words(desk: Desk) -> None:
    make_wheel(desk.wheels, "demo", "1.0")
    error = desk.put(train_py="", requirements_txt="demo==9\n").failure()
    assert error.headline == (
        "InstallError: pip failed (exit code 1): No matching distribution found for demo==9"
    )
    assert "from versions: 1.0" in error.tail
    assert "check name and version" in error.fix


@pytest.mark.promise("F57", "S08")
@pytest.mark.parametrize("place", ["variable", "file"])
def test_an_index_that_cannot_be_reached_is_told_without_its_credentials(
    place: str, desk: Desk
) -> None:
    address = f"http://me:{CANARY}@127.0.0.1:9/simple"
    del desk.environ["PIP_NO_INDEX"]
    if place == "variable":
        desk.environ["PIP_INDEX_URL"] = address
        desk.put(requirements_txt="demo\n")
    else:
        desk.put(requirements_txt=f"--index-url {address}\ndemo\n")
    error = desk.put(train_py="").failure()
    assert "127.0.0.1" in error.tail
    assert CANARY not in error.headline + error.fix + error.tail + desk.log.text
    assert not any(CANARY in " ".join(argv) for argv, _, _ in desk.steps.calls)
    assert "cannot reach the package index" in error.fix


def test_a_secret_that_an_installer_prints_is_masked(desk: Desk) -> None:
    desk.environ["MY_API_TOKEN"] = CANARY
    desk.put(train_py="", setup_py="import os; raise SystemExit(os.environ['MY_API_TOKEN'])")
    assert CANARY not in desk.failure().tail


def test_an_interpreter_without_pip_is_told_in_one_sentence(desk: Desk, tmp_path: Path) -> None:
    desk.python = make_environment(tmp_path / "bare", pip=False)
    error = desk.put(train_py="", requirements_txt="demo\n").failure()
    assert error.message == f"requirements need pip, and {desk.python} has none"
    assert f"{desk.python} -m ensurepip" in error.fix


def test_a_broken_package_names_what_broke(desk: Desk) -> None:
    error = desk.put(train_py="", setup_py="raise RuntimeError('no compiler')").failure()
    assert "no compiler" in error.tail


COMPILED = """\
from setuptools import Extension, setup
setup(name="made", version="1", py_modules=[], ext_modules=[Extension("made", ["made.c"])])
"""


@pytest.mark.slow
def test_a_package_that_needs_a_compiler_where_there_is_none_names_the_image_that_has_one(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A requirement without a wheel, built by the real setuptools."""
    source = tmp_path / "made"
    source.mkdir()
    (source / "setup.py").write_text(COMPILED)
    (source / "made.c").write_text("int nothing;\n")
    desk.environ["PATH"] = str(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    error = desk.put(train_py="", requirements_txt=f"{source}\n").failure()
    assert "No such file or directory" in error.tail
    assert "no compiler" in error.fix
    assert "`cpu-devel`" in error.fix


def test_requirements_that_nobody_may_read_are_named(desk: Desk) -> None:
    desk.put(train_py="")
    (desk.code / "requirements.txt").symlink_to("/proc/self/mem")
    if not os.path.isfile("/proc/self/mem"):
        pytest.skip("no file that cannot be read here")
    assert "requirements.txt cannot be read" in desk.failure().message


def another_name_of(folder: Path) -> Path:
    """This interpreter at another place, as another release of Python has it."""
    return Path(shutil.copy(os.path.realpath(sys.executable), folder / "python9.9"))


class TestTarget:
    """`MUSTER_INSTALL_TARGET`: hosts of `muster local` never touch the caller's environment."""

    @pytest.mark.slow
    def test_only_what_is_missing_goes_into_the_target(self, desk: Desk) -> None:
        make_wheel(desk.wheels, "base", "1.0")
        desk.put(train_py="", requirements_txt="base\n").install()
        own = desk.own_packages
        make_wheel(desk.wheels, "base", "1.5")
        make_wheel(desk.wheels, "demo", "1.0", requires=["base>=1", "leaf"])
        make_wheel(desk.wheels, "leaf", "3.0")
        desk.put(requirements_txt="demo\n").install(target=True)
        assert desk.own_packages == own
        installed = {path.name for path in desk.target.glob("*.py")}
        assert installed == {"demo.py", "leaf.py"}
        code = "import demo, leaf, base; print(demo.VERSION, leaf.VERSION, base.VERSION)"
        assert desk.run(code, target=True) == "1.0 3.0 1.0"
        program = "import subprocess; print(subprocess.check_output(['demo'], text=True), end='')"
        assert desk.run(program, target=True) == "1.0"

    @pytest.mark.slow
    def test_another_version_covers_the_interpreters_own(self, desk: Desk) -> None:
        make_wheel(desk.wheels, "demo", "1.0")
        desk.put(train_py="", requirements_txt="demo\n").install()
        make_wheel(desk.wheels, "demo", "2.0")
        desk.put(requirements_txt="demo==2.0\n").install(target=True)
        code = "import demo; print(demo.VERSION)"
        assert (desk.run(code), desk.run(code, target=True)) == ("1.0", "2.0")

    def test_options_of_the_requirements_hold_for_both_steps(self, desk: Desk) -> None:
        del desk.environ["PIP_FIND_LINKS"], desk.environ["PIP_NO_INDEX"]
        make_wheel(desk.code / "wheels", "demo", "1.0")
        desk.put(train_py="", requirements_txt="--no-index\n--find-links wheels\ndemo\n")
        desk.install(target=True)
        assert desk.run("import demo; print(demo.VERSION)", target=True) == "1.0"

    @pytest.mark.slow
    def test_hashes_are_checked_in_both_steps(self, desk: Desk) -> None:
        wheel = make_wheel(desk.wheels, "demo", "1.0")
        desk.put(train_py="", requirements_txt=f"demo==1.0 --hash=sha256:{'0' * 64}\n")
        assert "HASHES" in desk.failure(target=True).tail.upper()
        import hashlib

        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        desk.put(requirements_txt=f"demo==1.0 --hash=sha256:{digest}\n").install(target=True)
        assert desk.run("import demo; print(demo.VERSION)", target=True) == "1.0"

    @pytest.mark.slow
    def test_a_provisioned_host_needs_no_network_and_starts_nothing(
        self, desk: Desk, tmp_path: Path
    ) -> None:
        """Also for a package, which pip would build anew each time it is asked."""
        make_wheel(desk.wheels, "demo", "1.0")
        desk.put(train_py="", requirements_txt="demo\n")
        desk.put(setup_py=SETUP.format(name="mine", version="1", modules=["train"]))
        python = str(desk.python)
        args = (desk.environ, desk.steps, desk.log, python)
        provision(str(desk.code), str(desk.target), "train.py", *args)
        assert {path.name for path in desk.target.glob("*.py")} == {"demo.py", "train.py"}
        started = len(desk.steps.calls)
        desk.code = desk.code.rename(tmp_path / "the-hosts-own-copy")
        for path in desk.wheels.iterdir():
            path.unlink()
        desk.install(target=True)
        assert len(desk.steps.calls) == started
        assert "everything is installed already" in desk.log.lines[-1]

    @pytest.mark.slow
    def test_a_folder_of_ours_keeps_nothing_of_another_job_or_another_python(
        self, desk: Desk, tmp_path: Path
    ) -> None:
        desk.target = tmp_path / "ml" / SITE  # on a volume that outlives its containers
        for name in ("one", "two"):
            make_wheel(desk.wheels, name, "1.0")
        desk.put(train_py="", requirements_txt="one\n").install(target=True)
        desk.put(requirements_txt="two\n").install(target=True)
        assert {path.name for path in desk.target.glob("*.py")} == {"two.py"}
        (desk.target / "two.py").unlink()  # as if it were built for the Python of another image
        at_the_same_place = desk.python
        at_the_same_place.unlink()
        at_the_same_place.symlink_to(another_name_of(tmp_path))
        desk.install(target=True)
        assert desk.run("import two; print(two.VERSION)", target=True) == "1.0"

    @pytest.mark.slow
    def test_what_a_folder_of_ours_holds_outlives_an_install_that_fails(
        self, desk: Desk, tmp_path: Path
    ) -> None:
        desk.target = tmp_path / "ml" / SITE
        make_wheel(desk.wheels, "one", "1.0")
        desk.put(train_py="", requirements_txt="one\n").install(target=True)
        next(desk.wheels.iterdir()).unlink()  # nothing can be fetched any more
        desk.put(train_py="changed").install(target=True)  # nor need it be
        desk.put(requirements_txt="two\n").failure(target=True)
        desk.put(requirements_txt="one\n").install(target=True)
        assert desk.run("import one; print(one.VERSION)", target=True) == "1.0"

    def test_a_host_without_a_way_out_names_the_other_isolations(self, desk: Desk) -> None:
        del desk.environ["PIP_NO_INDEX"]
        desk.environ["PIP_INDEX_URL"] = "http://127.0.0.1:9/simple"
        error = desk.put(train_py="", requirements_txt="demo\n").failure(target=True)
        assert error.fix.endswith("use --isolation process")
        assert not (desk.target / ".muster-installed").exists()


class _Index(http.server.BaseHTTPRequestHandler):
    """CodeArtifact's two calls, and its index, which wants the token."""

    wheel: Path
    seen: list[str]

    def do_POST(self) -> None:
        self._answer(json.dumps({"authorizationToken": CANARY, "expiration": 0}).encode())

    def do_GET(self) -> None:
        self.seen.append(self.path)
        if self.path.startswith("/v1/repository/endpoint"):
            port = self.server.server_address[1]
            address = f"http://127.0.0.1:{port}/pypi/store/"
            self._answer(json.dumps({"repositoryEndpoint": address}).encode())
            return
        expected = "Basic " + base64.b64encode(f"aws:{CANARY}".encode()).decode()
        if self.headers.get("Authorization") != expected:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic")
            self.end_headers()
        elif self.path.endswith(".whl"):
            self._answer(self.wheel.read_bytes())
        else:
            self._answer(
                f'<a href="/{self.wheel.name}">{self.wheel.name}</a>'.encode(), "text/html"
            )

    def _answer(self, body: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on the tests' screen."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[type[_Index]]:
    class Handler(_Index):
        wheel = make_wheel(tmp_path / "index", "demo", "7.0")
        seen: list[str] = []  # noqa: RUF012 - one list for the one server of this test

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        Handler.port = server.server_address[1]  # type: ignore[attr-defined]
        yield Handler
        server.shutdown()
        thread.join(10)


@pytest.mark.promise("S08", "S09")
def test_a_codeartifact_token_is_used_and_seen_nowhere(
    desk: Desk, index: type[_Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    port = index.port  # type: ignore[attr-defined]
    monkeypatch.setenv("AWS_ENDPOINT_URL_CODEARTIFACT", f"http://127.0.0.1:{port}")
    del desk.environ["PIP_NO_INDEX"]
    desk.environ["CA_REPOSITORY_ARN"] = (
        "arn:aws:codeartifact:us-west-2:111122223333:repository/domain/store"
    )
    desk.put(train_py="", requirements_txt="demo\n").install()
    assert desk.run("import demo; print(demo.VERSION)") == "7.0"
    assert "/pypi/store/simple/demo/" in index.seen
    assert not any(CANARY in " ".join(argv) for argv, _, _ in desk.steps.calls)
    assert CANARY not in desk.log.text
    desk.put(requirements_txt="demo==8\n")
    error = desk.failure()
    assert CANARY not in error.headline + error.tail


def test_a_codeartifact_name_of_another_form_is_refused(desk: Desk) -> None:
    desk.environ["CA_REPOSITORY_ARN"] = "arn:aws:s3:::bucket"
    desk.put(train_py="", requirements_txt="demo\n")
    with pytest.raises(ConfigError, match="CA_REPOSITORY_ARN: expected arn:aws:codeartifact:"):
        desk.install()
