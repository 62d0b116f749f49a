"""Job -> the SM_* variables of the user's script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from muster.contract.request.cluster import DEFAULT_GROUP, GROUPS_KEY
from muster.contract.request.inputs import collisions
from muster.types.distribution import Single
from muster.types.job import Job, Program
from muster.types.machine import Machine

_ONE_HOST = ("SM_CURRENT_HOST", "CURRENT_HOST", "SM_MASTER_ADDR")
_SEVERAL_HOSTS = ("SM_HOSTS", "SM_RESOURCE_CONFIG", "SM_TRAINING_ENV")
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def exports(job: Job, machine: Machine, program: Program) -> dict[str, str]:
    """Every variable that the script is promised, and nothing of the environment around it.

    Texts stand as they are, everything else as compact JSON with sorted keys, null as "".
    SM_HP_* and SM_CHANNEL_* come in both spellings, `LEARNING-RATE` and `LEARNING_RATE`. Beside
    them CURRENT_HOST, and SAGEMAKER_JOB_NAME and SAGEMAKER_REGION when the request has them.
    """
    values = _values(job, machine)
    values["user_args"] = list(job.arguments)
    values["training_env"] = _training_env(job, values)
    values["module_name"] = _module_name(job.program)
    result = _both_spellings("SM_CHANNEL_", _channels(job))
    result |= _both_spellings("SM_HP_", job.documents.hyperparameters)
    result |= {f"SM_{name.upper()}": encode(value) for name, value in values.items()}
    result |= _modeltrainer_names(job, program)
    result["CURRENT_HOST"] = job.cluster.me.name
    for name in ("sagemaker_job_name", "sagemaker_region"):
        if job.documents.fixed_parameters.get(name):
            result[name.upper()] = encode(job.documents.fixed_parameters[name])
    return result


def by_address(variables: Mapping[str, str], addresses: Mapping[str, str]) -> dict[str, str]:
    """The variables that name hosts, with their addresses: for names that nobody resolves, since
    `muster run` made them up. `addresses`: by name."""

    def replaced(value: Any) -> Any:
        if isinstance(value, str):
            return addresses.get(value, value)
        if isinstance(value, list):
            return [replaced(item) for item in value]
        if isinstance(value, dict):
            return {name: replaced(item) for name, item in value.items()}
        return value

    found = {name: replaced(variables[name]) for name in _ONE_HOST if name in variables}
    for name in _SEVERAL_HOSTS:
        try:
            found[name] = encode(replaced(json.loads(variables[name])))
        except (KeyError, ValueError):  # the script's own, or in a file, being too large
            pass
    return found


def encode(value: object) -> str:
    """A value as the text of a variable."""
    if value is None:
        return ""
    return value if isinstance(value, str) else _ENCODER.encode(value)


def _values(job: Job, machine: Machine) -> dict[str, Any]:
    """What stands both in variables of its own and in SM_TRAINING_ENV, by lower-case name."""
    documents, paths, me = job.documents, job.paths, job.cluster.me
    resource = documents.resource_config
    groups = {group["instance_group_name"]: group for group in _groups(resource)}
    group = resource.get("current_group_name") or DEFAULT_GROUP
    values: dict[str, Any] = {
        "hosts": [host.name for host in job.cluster.hosts],
        "network_interface_name": job.cluster.interface,
        "hps": documents.hyperparameters,
        "user_entry_point": job.program,
        "framework_params": documents.framework_parameters,
        "resource_config": resource,
        "input_data_config": documents.input_data_config,
        "output_data_dir": paths.output_data,
        "channels": sorted(documents.input_data_config),
        "current_host": me.name,
        "current_instance_type": resource.get("current_instance_type") or "local",
        "current_instance_group": group,
        "current_instance_group_hosts": groups.get(group, {}).get("hosts", []),
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "distribution_instance_groups": _distribution_groups(job, list(groups), group),
        "is_hetero": len(groups) > 1,
        "log_level": job.log_level,
        "framework_module": job.environ.get("SAGEMAKER_TRAINING_MODULE"),
        "input_dir": paths.input,
        "input_config_dir": paths.config,
        "output_dir": paths.output,
        "num_cpus": machine.cpus,
        "num_gpus": machine.gpus or 0,
        "num_neurons": machine.neurons or 0,
        "model_dir": paths.model,
        "module_dir": job.source or paths.code,
        "output_intermediate_dir": paths.intermediate,
    }
    if resource.get("topology"):
        values["topology"] = resource["topology"]
    return values


_ONLY_VARIABLES = ("channels", "framework_params", "hps", "user_args")


def _training_env(job: Job, values: Mapping[str, Any]) -> dict[str, Any]:
    """The object of SM_TRAINING_ENV: the values under the incumbent's names, and what only it has.

    `is_modelparallel_enabled` is true or false; the incumbent leaves it null.
    """
    documents, cluster = job.documents, job.cluster
    env = {name: value for name, value in values.items() if name not in _ONLY_VARIABLES}
    taking_part = [cluster.hosts[host_index].name for host_index in cluster.distribution]
    undistributed = values["instance_groups"] and not values["distribution_instance_groups"]
    return env | {
        "additional_framework_parameters": documents.framework_parameters,
        "channel_input_dirs": _channels(job),
        "distribution_hosts": [] if undistributed else taking_part,
        "hyperparameters": documents.hyperparameters,
        "is_master": cluster.is_leader,
        "is_modelparallel_enabled": True
        if documents.hyperparameters.get("mp_parameters")
        else None,
        "is_smddpmprun_installed": False,
        "is_smddprun_installed": False,
        "job_name": job.environ.get("TRAINING_JOB_NAME"),
        "master_hostname": cluster.leader.name,
        "module_name": _module_name(job.program),
        "topology": values.get("topology", []),
    }


def _groups(resource: Mapping[str, Any]) -> list[Any]:
    return resource.get("instance_groups") or []


def _distribution_groups(job: Job, names: list[str], current: object) -> list[object]:
    """The groups that take part: as asked for, else all of them when there is a distribution."""
    asked: Any = job.documents.framework_parameters.get(GROUPS_KEY)
    if asked:
        return [asked] if isinstance(asked, str) else asked
    if isinstance(job.distribution, Single):
        return []
    return list(names) or [current]


def _channels(job: Job) -> dict[str, str]:
    return {name: f"{job.paths.data}/{name}" for name in job.documents.input_data_config}


def _module_name(program: str) -> str:
    return program[: -len(".py")] if program.endswith(".py") else program


def _both_spellings(prefix: str, named: Mapping[str, object]) -> dict[str, str]:
    """Upper-cased names, the same as shell identifiers, and colliding ones as they are.

    An identifier that another name has for its own stays with that one.
    """
    exact = {name: encode(value) for name, value in named.items()}
    result: dict[str, str] = {}
    for name, text in exact.items():
        result[prefix + _identifier(name.upper())] = text
    result |= {prefix + name.upper(): text for name, text in exact.items()}
    for group in collisions(named):
        result |= {prefix + name: exact[name] for name in group if name != name.upper()}
    return result


def _identifier(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)


def _modeltrainer_names(job: Job, program: Program) -> dict[str, str]:
    """Names of the v3 SDK's scripts that mean nothing else here."""
    leader = job.cluster.leader.name
    return {
        "SM_ENTRY_SCRIPT": job.program,
        "SM_SOURCE_DIR": program.code_dir,
        "SM_INPUT_DATA_DIR": job.paths.data,
        "SM_OUTPUT_FAILURE": job.paths.failure,
        "SM_HOST_COUNT": str(len(job.cluster.hosts)),
        "SM_CURRENT_HOST_RANK": str(job.cluster.current),
        "SM_MASTER_ADDR": job.cluster.addresses.get(leader, leader),
        "SM_MASTER_PORT": str(job.settings.store_port),
    }
