"""The arguments of save_checkpoint and resume_from_checkpoint, in a job of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import muster_modelparallel as smp
from tests.model_parallel.support.alone import alone

pytestmark = pytest.mark.torch


def made(value: float = 0.0) -> tuple[smp.DistributedModel, smp.DistributedOptimizer]:
    """A model whose weights are the value, and an optimizer that has taken a step of it."""
    model = smp.DistributedModel(nn.Linear(2, 2))
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=value or 0.9)
    optimizer = smp.DistributedOptimizer(inner)
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(value)
    return model, optimizer


def files(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}


def test_arguments_of_save_checkpoint_count(tmp_path: Path) -> None:
    with alone():
        model, optimizer = made()
        given: dict[str, Any] = {"model": model, "optimizer": optimizer, "user_content": {"a": 1}}
        names = {
            "model": "step",
            "optimizer": "optimizer_step",
            "user_content": "user_content_step",
        }
        for left_out in given:
            folder = tmp_path / left_out
            kept = {name: value for name, value in given.items() if name != left_out}
            smp.save_checkpoint(str(folder), "step", False, translate_if_full=False, **kept)
            wanted = {file for name, file in names.items() if name != left_out}
            assert files(folder) & set(names.values()) == wanted
            assert not list(folder.glob("*_partial"))
        for number in range(4):
            smp.save_checkpoint(
                str(tmp_path), f"step{number}", model=model, num_kept_partial_checkpoints=2
            )
        kept_ones = {each.name for each in tmp_path.glob("step*")}
        assert kept_ones == {"step2_partial", "step3_partial"}


def test_arguments_of_resume_from_checkpoint_count(tmp_path: Path) -> None:
    folder = str(tmp_path)
    with alone():
        model, optimizer = made()
        for number in (1, 2):
            with torch.no_grad():
                model.module.weight.fill_(number)
            optimizer.param_groups[0]["lr"] = float(number)
            for partial in (True, False):
                smp.save_checkpoint(
                    folder, f"step{number}", partial, model, optimizer, f"content {number}"
                )
    full = torch.load(tmp_path / "step1")
    full["weight"].fill_(7)
    torch.save({**full, "more": torch.ones(1)}, tmp_path / "plain")

    def resumed(**arguments: Any) -> tuple[Any, float, float]:
        with alone():
            model, optimizer = made()
            content = smp.resume_from_checkpoint(
                folder, load_sharded_optimizer_state=False, **arguments
            )
            return content, model.module.weight[0, 0].item(), optimizer.param_groups[0]["lr"]

    assert resumed() == ("content 2", 2, 2)
    assert resumed(tag="step1") == ("content 1", 1, 1)
    assert resumed(tag="step1", load_optimizer=False) == ("content 1", 1, 0.1)
    assert resumed(partial=False) == ("content 2", 2, 2)
    doubled = resumed(
        tag="step1", partial=False, translate_function=lambda it: {k: 2 * v for k, v in it.items()}
    )
    assert doubled == ("content 1", 2, 1)
    with pytest.raises(smp.CheckpointError, match=r"[Uu]nexpected key"):
        resumed(tag="plain", partial=False)
    assert resumed(tag="plain", partial=False, strict=False) == ({}, 7, 0.1)
