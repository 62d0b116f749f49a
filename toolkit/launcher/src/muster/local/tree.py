"""Each host's `/opt/ml` as SageMaker lays it out: the documents, pure, and the folders."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from muster.local.request import Request

CHECKPOINTS = "checkpoints"
FOLDERS = ("input/config", "input/data", "model", "output/data", CHECKPOINTS)
DEFAULT_LOG_LEVEL = 20


def resource_config(request: Request, host: str, interface: str) -> dict[str, object]:
    """resourceconfig.json of one host; instance groups only when they were asked for."""
    names = list(request.host_names)
    document: dict[str, object] = {
        "current_host": host,
        "current_instance_type": request.instance_type,
        "hosts": names,
        "network_interface_name": interface,
    }
    if not request.groups:
        return document
    groups, first = [], 0
    for group in request.groups:
        members = names[first : first + group.size]
        first += group.size
        groups.append(
            {
                "instance_group_name": group.name,
                "instance_type": group.instance_type,
                "hosts": members,
            }
        )
        if host in members:
            document["current_group_name"] = group.name
            document["current_instance_type"] = group.instance_type
    document["instance_groups"] = groups
    return document


def input_data_config(channels: Sequence[str]) -> dict[str, object]:
    """inputdataconfig.json: every channel in File mode."""
    return {
        name: {
            "TrainingInputMode": "File",
            "S3DistributionType": "FullyReplicated",
            "RecordWrapperType": "None",
        }
        for name in channels
    }


def on_the_wire(text: str) -> str:
    """A typed value as SDK v2 would send it: JSON as it is, any other text quoted."""
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(text)
    return text


def hyperparameters(
    request: Request, distribution: Mapping[str, str], job: str, source: str
) -> dict[str, str]:
    """hyperparameters.json: every value a string. `distribution`: the keys of the option.

    What the user typed wins over what muster would send, as in the SDK's generic estimator.
    """
    document = {
        "sagemaker_program": json.dumps(request.program),
        "sagemaker_submit_directory": json.dumps(source),
        "sagemaker_container_log_level": str(DEFAULT_LOG_LEVEL),
        "sagemaker_job_name": json.dumps(job),
        **distribution,
    }
    if request.processes_per_host is not None:
        document["sagemaker_mpi_num_of_processes_per_host"] = str(request.processes_per_host)
    document.update({key: on_the_wire(text) for key, text in request.hyperparameters.items()})
    return document


def share_checkpoints(base: str, folder: str) -> None:
    """Makes the folder the host's checkpoints, where nothing can be mounted in their place."""
    place = os.path.join(base, CHECKPOINTS)
    os.rmdir(place)
    os.symlink(folder, place)


def write_tree(
    base: str, documents: Mapping[str, object], channels: Mapping[str, str], mounted: bool = False
) -> None:
    """The folders and files below `base`, which is one host's `opt/ml`.

    A channel is a link to the user's folder, neither copied nor changed; in a namespace the
    folder itself is mounted in its place, read-only. `mounted`: there it needs a folder instead,
    since a container would follow the link among its own files.
    """
    for folder in FOLDERS:
        os.makedirs(os.path.join(base, folder), exist_ok=True)
    for name, document in documents.items():
        with open(os.path.join(base, "input/config", name), "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
    for channel, folder in channels.items():
        place = os.path.join(base, "input/data", channel)
        if mounted:
            os.mkdir(place)
        else:
            os.symlink(folder, place)
