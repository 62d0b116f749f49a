"""Checkpoints of real ranks: a job that ends anywhere goes on as if it had never ended."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.model_parallel.support.ranks import give, results, run_ranks, start_alone, words_of
from tests.support.waiting import wait_until

__all__ = ["give"]
pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
PARAMETERS = {"microbatches": 2, "ddp": True}
START_S = 120.0  # no promise


def trains(folder: str, first: int, last: int, mode: str, act: str) -> list[float]:
    """Steps `first` to `last`, the losses as they are; then does what `act` says."""
    import torch
    from torch.nn.functional import mse_loss

    import muster_modelparallel as smp

    smp.init()
    torch.manual_seed(3 + 100 * (mode == "another seed"))
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    if act == "another model":
        module[2] = torch.nn.Linear(16, 5)
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.05))
    partial = mode != "full"
    if first > 1:
        tag = None if partial else f"step{first - 1}"
        content = smp.resume_from_checkpoint(folder, tag=tag, partial=partial)
        assert content == {"step": first - 1}, content

    @smp.step
    def one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = mse_loss(model(x), y)
        model.backward(loss)
        return loss

    losses = []
    for number in range(first, last + 1):
        torch.manual_seed(1000 * number + smp.dp_rank())
        optimizer.zero_grad()
        loss = one(torch.randn(4, 8), torch.randn(4, 4))
        optimizer.step()
        losses.append(float(loss.reduce_mean()))
    if act == "saves":
        smp.save_checkpoint(
            folder,
            f"step{last}",
            partial=partial,
            model=model,
            optimizer=optimizer,
            user_content={"step": last},
        )
    return losses


# ranks that walk a set of names in one order each would not stay together
SEEDS = [{"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"}]


def hashed() -> int:
    return hash("a name")


def test_ranks_of_the_resumed_jobs_hash_names_in_a_way_each() -> None:
    first, second = results(run_ranks(hashed, 2, env_of=SEEDS))
    assert first != second


@pytest.mark.parametrize("mode", ["partial", "full"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_resumed_job_takes_the_same_steps_to_the_bit(
    tmp_path: Path, mode: str, count: int
) -> None:
    folder = str(tmp_path / "checkpoints")

    def run(*arguments: object) -> list[list[float]]:
        return results(
            run_ranks(trains, count, arguments=arguments, parameters=PARAMETERS, env_of=SEEDS)
        )

    whole = run("", 1, 6, mode, "")
    before = run(folder, 1, 3, mode, "saves")
    after = run(folder, 4, 6, "another seed" if mode == "partial" else mode, "")
    assert [[*b, *a] for b, a in zip(before, after, strict=True)] == whole


def test_the_files_are_those_of_the_documented_layout(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for mode in ("partial", "full"):
        run = run_ranks(
            trains, 2, arguments=[str(folder), 1, 1, mode, "saves"], parameters=PARAMETERS
        )
        results(run)
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert names == [
        "manifest_step1", "newest", "newest_full", "optimizer_step1", "step1",
        "step1_partial/manifest.json", "step1_partial/model_0_0.pt",
        "step1_partial/optimizer_0_0.pt", "step1_partial/user_content.pt", "user_content_step1",
    ]  # fmt: skip
    assert (folder / "newest").read_text() == "step1"
    part = torch.load(folder / "step1_partial/model_0_0.pt", weights_only=True)
    assert part.pop("_smp_is_partial") is True
    plain = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    plain.load_state_dict(torch.load(folder / "step1", weights_only=True))
    plain.load_state_dict(part)


@pytest.mark.promise("F72")
def test_hosts_with_a_folder_each_have_a_whole_checkpoint_each(tmp_path: Path) -> None:
    """As instances have on SageMaker: what is at the same path is not the same folder."""
    own = [{"TEST_FOLDER": str(tmp_path / name), "TEST_HOST": name} for name in ("a", "b")]

    def saves() -> bool:
        import os
        import shutil
        import socket
        from pathlib import Path

        import torch

        import muster_modelparallel as smp

        os.chdir(os.environ["TEST_FOLDER"])  # one relative path, two folders
        socket.gethostname = lambda: os.environ["TEST_HOST"]
        smp.init()
        model = smp.DistributedModel(torch.nn.Linear(2, 2))
        smp.save_checkpoint("kept", "one", model=model, user_content="mine")
        smp.save_checkpoint("whole", "one", partial=False, model=model, user_content="mine")
        assert smp.resume_from_checkpoint("whole", partial=False) == "mine"
        first = smp.resume_from_checkpoint("kept") == "mine"
        folders = [Path("whole"), Path("before")]
        shutil.copytree(*folders)
        smp.save_checkpoint("whole", "one", partial=False, model=model, user_content="later")
        smp.save_checkpoint("whole", "two", partial=False, model=model)
        if smp.rank() == 1:  # as if killed before this host came to the last two
            shutil.rmtree("whole")
            folders[1].rename("whole")
        for tag in (None, "one"):
            try:
                smp.resume_from_checkpoint("whole", tag, partial=False)
            except smp.ModelParallelError as error:
                assert "of one save in common" in str(error), error
            else:
                return False
        smp.save_checkpoint("kept", "two", model=model)
        if smp.rank() == 1:  # as if killed before this host came to it
            shutil.rmtree("kept/two_partial")
            Path("kept/newest").write_text("one")
        assert smp.resume_from_checkpoint("kept") == "mine", "not of the save that both have"
        smp.barrier()
        if smp.rank() == 1:
            shutil.rmtree("kept")
        try:
            smp.resume_from_checkpoint("kept")
        except smp.ModelParallelError as error:
            assert "has no file `newest`" in str(error), error
            return first
        return False

    for each in own:
        Path(each["TEST_FOLDER"]).mkdir()
    ends = run_ranks(saves, 2, parameters=PARAMETERS, env_of=own)
    assert results(ends) == [True, True]
    found = {p.name for p in (tmp_path / "a" / "kept" / "one_partial").iterdir()}
    assert found == {"manifest.json", "model_0_0.pt", "user_content.pt"}
    assert {p.name for p in (tmp_path / "b" / "whole").iterdir()} >= {"one", "user_content_one"}
    assert not list(tmp_path.rglob("*.tmp"))


def saves_slowly(folder: str, pieces: int, pause_s: float) -> list[object]:
    """Rank 0 has a slow disk."""
    import os
    import time

    import torch

    import muster_modelparallel as smp
    from muster_modelparallel.checkpoint import layout

    smp.init()
    model = smp.DistributedModel(torch.nn.Linear(1000, pieces))
    layout.PIECE_BYTES = 4000
    fsync = os.fsync
    if smp.rank() == 0:
        os.fsync = lambda file: time.sleep(pause_s) or fsync(file)
    began = time.monotonic()
    try:
        smp.save_checkpoint(folder, "one", model=model)
    except smp.ExchangeError as error:
        return [str(error), time.monotonic() - began]
    return ["", time.monotonic() - began]


@pytest.mark.promise("F71")
def test_a_save_may_take_longer_than_ranks_wait_for_each_other(tmp_path: Path) -> None:
    env = {"MODELPARALLEL_OBJECTS_TIMEOUT_S": "4"}
    for pieces, pause_s, is_stuck in ((20, 0.4, False), (2, 9.0, True)):
        ends = run_ranks(
            saves_slowly, 2, arguments=[str(tmp_path), pieces, pause_s],
            parameters=PARAMETERS, env=env,
        )  # fmt: skip
        error, took_s = ends[1].result
        assert took_s > 4, "nothing is slow"
        assert ("for rank 0 in save_checkpoint" in error) is is_stuck, error
        assert bool(error) is is_stuck


def test_a_save_that_one_rank_calls_alone_says_so_long_before_it_fails(tmp_path: Path) -> None:
    def saves(folder: str, call: str) -> str:
        import time
        from pathlib import Path

        import torch

        import muster_modelparallel as smp
        from muster_modelparallel.run.pipeline import waits

        waits.LONG_S = 0.4
        smp.init()
        model = smp.DistributedModel(torch.nn.Linear(2, 2))
        said, over = "", Path(folder, f"{call} is over")
        try:
            if smp.rank() == 0:
                getattr(smp, call)(folder, "one", **{"model": model} if "save" in call else {})
        except smp.ExchangeError as error:
            said = str(error)
        if smp.rank() == 0:
            over.touch()
        end = time.monotonic() + 60
        while not over.exists() and time.monotonic() < end:
            time.sleep(0.01)
        return said

    for call in ("save_checkpoint", "resume_from_checkpoint"):
        given, env = [str(tmp_path), call], {"MODELPARALLEL_OBJECTS_TIMEOUT_S": "3"}
        ends = run_ranks(saves, 2, arguments=given, parameters=PARAMETERS, env=env)
        assert f"waited 3.0 s for rank 1 in {call} (rank 1 has made no" in ends[0].result
        assert ends[0].err.count(f"rank 0 waits for rank 1 in {call}, since") == 1, ends[0].err


@pytest.mark.promise("F70")
def test_a_full_disk_on_one_rank_is_an_error_on_all_and_keeps_what_was_saved(
    tmp_path: Path,
) -> None:
    def saves(folder: str) -> list[str]:
        import resource

        import torch

        import muster_modelparallel as smp

        smp.init()
        model = smp.DistributedModel(torch.nn.Linear(400, 400))
        smp.save_checkpoint(folder, "good", model=model)
        if smp.rank() == 0:
            import signal

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        said = []
        for content in (None, lambda: 1):  # no room; and what cannot be pickled, on rank 0 alone
            try:
                smp.save_checkpoint(
                    folder, "bad", model=None if content else model, user_content=content
                )
            except smp.ModelParallelError as error:
                said.append(str(error))
        smp.resume_from_checkpoint(folder)
        return said

    for said in results(run_ranks(saves, 2, arguments=[str(tmp_path)], parameters=PARAMETERS)):
        assert len(said) == 2
        assert all("checkpoint bad could not be written: rank 0:" in one for one in said), said
    assert (tmp_path / "newest").read_text() == "good"
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.promise("B55")
def test_another_model_and_another_tag_are_named(tmp_path: Path) -> None:
    folder = str(tmp_path)
    results(
        run_ranks(trains, 1, arguments=[folder, 1, 1, "partial", "saves"], parameters=PARAMETERS)
    )
    (end,) = run_ranks(
        trains, 1, arguments=[folder, 2, 2, "partial", "another model"], parameters=PARAMETERS
    )
    assert end.code == 1
    assert "model_0_0.pt does not fit this DistributedModel" in end.err
    assert "size mismatch for 2.weight" in end.err

    def disagree(folder: str) -> str:
        import muster_modelparallel as smp

        smp.init()
        try:
            smp.save_checkpoint(folder, f"step{smp.rank()}")
        except smp.ModelParallelError as error:
            return str(error)
        return ""

    for said in results(run_ranks(disagree, 2, arguments=[folder], parameters=PARAMETERS)):
        assert "rank 0 saves ('step0', True) and rank 1 saves ('step1', True)" in said


@pytest.mark.promise("B55")
@pytest.mark.parametrize(("saved", "now"), [(2, 1), (1, 2)])
def test_a_partial_checkpoint_of_other_degrees_is_refused_with_both(
    tmp_path: Path, saved: int, now: int
) -> None:
    def saves_or_resumes(folder: str, saves: bool) -> str:
        import torch

        import muster_modelparallel as smp

        smp.init()
        model = smp.DistributedModel(
            torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(4)])
        )

        @smp.step
        def one(x: torch.Tensor) -> None:
            model.backward(model(x).sum())

        try:
            if saves:
                one(torch.ones(2, 2))
                smp.save_checkpoint(folder, "one", model=model)
            else:
                smp.resume_from_checkpoint(folder)
        except smp.CheckpointError as error:
            return str(error)
        return ""

    said = []
    for degree, saves in ((saved, True), (now, False)):
        ends = run_ranks(
            saves_or_resumes, degree, arguments=[str(tmp_path), saves],
            parameters={"pipeline_parallel_degree": degree},
        )  # fmt: skip
        said.append(results(ends))
    assert said[0] == [""] * saved
    words = f"saved with pipeline {saved} x tensor 1, this job has pipeline {now} x tensor 1"
    assert all(words in each and "partial=False" in each for each in said[1]), said


@pytest.mark.promise("S20")
def test_a_file_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    """The states of models and optimizers; what the script saved as its own is its own."""
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    def resumes(folder: str) -> str:
        import torch

        import muster_modelparallel as smp

        smp.init()
        smp.DistributedModel(torch.nn.Linear(2, 2))
        try:
            smp.resume_from_checkpoint(folder, tag="model.pt", partial=False)
        except smp.ModelParallelError as error:
            return str(error)
        return ""

    torch.save({"weight": Evil()}, tmp_path / "model.pt", pickle_module=pickle)
    (said,) = results(run_ranks(resumes, 1, arguments=[str(tmp_path)]))
    assert "could run code" in said
    assert not (tmp_path / "ran").exists()


SAVES_FOR_EVER = """
import sys, torch
import muster_modelparallel as smp
smp.init()
model = smp.DistributedModel(torch.nn.Linear(300, 300))
number = 0
try:
    number = smp.resume_from_checkpoint(sys.argv[1])["step"]
except smp.ModelParallelError as error:
    assert "has no file `newest`" in str(error), error
with torch.no_grad():
    assert number == 0 or bool((model.module.weight == number).all()), "not of one save"
    print("resumed", number, flush=True)
    while sys.argv[2] == "save":
        number += 1
        model.module.weight.fill_(number)
        smp.save_checkpoint(sys.argv[1], "one", model=model, user_content={"step": number}, **how)
        print("saved", number, flush=True)
"""


@pytest.mark.promise("F70")
@pytest.mark.parametrize(
    "how",
    [{}, {"in_pieces": True}, {"in_pieces": True, "in_background": True}],
    ids=["partial", "in pieces", "in the background"],
)
def test_killed_at_any_moment_the_next_one_resumes_from_a_whole_checkpoint(
    tmp_path: Path, how: dict[str, bool]
) -> None:
    """Eight times in the same folder, under the same tag; what is in the background comes to the
    disk before the next save begins."""
    moments = random.Random(5)
    script, folder = f"how = {how!r}\n{SAVES_FOR_EVER}", tmp_path / "checkpoints"
    for life in range(8):
        own = tmp_path / f"life-{life}"
        own.mkdir()
        saver, out, err = start_alone(script, [folder, "save"], own)
        try:
            wait_until(partial(_has_saved, out, 2), START_S, partial(_text, err))
            with suppress(subprocess.TimeoutExpired):
                saver.wait(moments.uniform(0.0, 0.2))
                pytest.fail(f"it ended by itself: {_text(err)}")
        finally:
            with suppress(ProcessLookupError):
                os.kill(saver.pid, signal.SIGKILL)
            saver.wait(START_S)
    (end,) = run_ranks(script, 1, arguments=[folder, "end"])
    assert end.code == 0, words_of([end])
    assert int(end.out.split()[1]) >= 8


def _has_saved(out: Path, times: int) -> bool:
    return _text(out).count("saved") >= times


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def test_save_and_load_keep_a_part_for_each_place(tmp_path: Path) -> None:
    def saves(name: str) -> list[str]:
        from pathlib import Path

        import torch

        import muster_modelparallel as smp

        smp.init()
        if smp.rdp_rank() == 0:
            smp.save({"a": torch.ones(2)}, name, partial=True)
        smp.save({"b": torch.full((1,), smp.rdp_rank())}, name + ".own", partial=True, v3=True)
        if smp.rank() == 0:
            smp.save({"c": 1}, name + ".all", partial=False)
        smp.barrier()
        assert smp.load(name, partial=True)["a"].tolist() == [1, 1]
        assert smp.load(name + ".own", partial=True)["b"].item() == smp.rdp_rank()
        assert smp.load(name + ".all", partial=False) == {"c": 1}
        try:
            smp.load(name + ".none")
        except smp.ModelParallelError as error:
            assert "no part of" in str(error)
        smp.barrier()
        return sorted(path.name for path in Path(name).parent.iterdir())

    ends = run_ranks(saves, 2, arguments=[str(tmp_path / "file.pt")], parameters=PARAMETERS)
    assert all(end.code == 0 for end in ends), words_of(ends)
    names = ["file.pt.all", "file.pt.own_0_0_0", "file.pt.own_0_0_1", "file.pt_0_0"]
    assert results(ends) == [names, names]
