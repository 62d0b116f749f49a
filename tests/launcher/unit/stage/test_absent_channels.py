"""B39: a channel whose data did not arrive is named; what has no folder by nature is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.contract.request.inputs import absent_channels

FILE = {"TrainingInputMode": "File"}


@pytest.mark.promise("B39")
@pytest.mark.parametrize(
    ("channel", "absent"),
    [
        (FILE, ["train"]),
        ({"TrainingInputMode": "FastFile"}, ["train"]),
        ({}, ["train"]),
        ("odd", ["train"]),
        ({"TrainingInputMode": "Pipe"}, []),
        ({**FILE, "InstanceGroupNames": ["gpu"]}, []),
        ({**FILE, "InstanceGroupNames": ["cpu"]}, ["train"]),
    ],
)
def test_which_absent_folder_is_worth_a_line(
    channel: object, absent: list[str], tmp_path: Path
) -> None:
    assert absent_channels({"train": channel}, str(tmp_path), "cpu") == absent


def test_a_folder_that_is_there_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    assert absent_channels({"train": FILE}, str(tmp_path), "cpu") == []
