"""Which program runs and where its code comes from.

Promises: B16, B21.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from muster.contract.findings import ENOUGH, Findings
from muster.types.job import Paths
from muster.types.names import did_you_mean
from muster.types.plain import short

DEFAULT_LEVEL = 20
_LEVELS = {
    "DEBUG": 10,
    "INFO": 20,
    "WARNING": 30,
    "WARN": 30,
    "ERROR": 40,
    "CRITICAL": 50,
    "FATAL": 50,
    "NOTSET": 0,
}


def names_program(environ: Mapping[str, str], fixed: Mapping[str, object]) -> bool:
    """Whether anything names an entry point."""
    script = environ.get("SM_ENTRY_SCRIPT", "null")
    return bool(environ.get("SAGEMAKER_PROGRAM") or fixed.get("sagemaker_program")) or (
        script not in ("", "null")
    )


def find_program(
    environ: Mapping[str, str],
    fixed: Mapping[str, object],
    findings: Findings,
    others: Iterable[str] = (),
) -> str:
    """The entry point relative to the code folder; whether it exists is for staging to say.

    `others`: names of hyperparameters among which a misspelt one may be.
    """
    value: object = environ.get("SAGEMAKER_PROGRAM")
    where = "variable SAGEMAKER_PROGRAM"
    if not value:
        value, where = fixed.get("sagemaker_program"), "hyperparameter sagemaker_program"
    if not value and environ.get("SM_ENTRY_SCRIPT") != "null":
        value, where = environ.get("SM_ENTRY_SCRIPT"), "variable SM_ENTRY_SCRIPT"
    if not value:
        findings.problem(
            "no training program",
            f"set sagemaker_program or SAGEMAKER_PROGRAM{_misspelt((*others, *environ))}",
            "name the script relative to the code folder, such as train.py",
        )
        return ""
    findings.origins["program"] = where
    program = _relative(value)
    if program is None:
        name = where.split()[1]
        what = f"program must be relative to the code folder, got {short(value)}"
        findings.problem(name, what, "give a path such as train.py, without '..' and leading '-'")
        return ""
    return program


def _misspelt(names: Iterable[str]) -> str:
    """The name that was probably meant to name the program, or ""."""
    likely = [name for name in names if len(name) < 40 and name.lower().startswith("sagema")]
    for name in likely[:ENOUGH]:
        if did_you_mean(name.lower().replace("-", "_"), ("sagemaker_program",), "sagemaker_"):
            return f"; {name!r} is neither"
    return ""


def _relative(value: object) -> str | None:
    """The path in its shortest form, or None when it is not a name below the code folder."""
    if (
        not isinstance(value, str)
        or not value.isprintable()
        or value.startswith(("/", "-"))
        or value.endswith("/")
    ):
        return None
    parts = [part for part in value.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or parts[0].startswith("-"):
        return None
    return "/".join(parts)


def find_source(
    environ: Mapping[str, str], fixed: Mapping[str, object], paths: Paths, findings: Findings
) -> str:
    """Where the code comes from: an address, an archive, a folder, or "" for the code folder."""
    key = "sagemaker_submit_directory"
    submitted = fixed.get(key)
    if submitted:
        findings.origins["source"] = f"hyperparameter {key}"
        if isinstance(submitted, str) and submitted.isprintable():
            return "" if submitted.rstrip("/") == paths.code else submitted
        what, fix = "an address or a path", "send an s3:// address or an absolute path"
        findings.expected(key, what, submitted, fix)
        return ""
    folder = environ.get("SM_SOURCE_DIR")
    if folder:
        findings.origins["source"] = "variable SM_SOURCE_DIR"
        return "" if folder.rstrip("/") == paths.code else folder
    channel = _code_channel(f"{paths.data}/code")
    findings.origins["source"] = "channel code" if channel else "default: the code folder"
    return channel


def _code_channel(folder: str) -> str:
    """The archive that the SDK sends under network isolation, or a folder of plain files."""
    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    if "sourcedir.tar.gz" in names:
        return f"{folder}/sourcedir.tar.gz"
    return folder if names else ""


def find_job_id(environ: Mapping[str, str], fixed: Mapping[str, object], findings: Findings) -> str:
    """What identifies this job, or ""."""
    for name in ("TRAINING_JOB_NAME", "TRAINING_JOB_ARN"):
        if environ.get(name):
            findings.origins["id"] = f"variable {name}"
            return environ[name]
    value = fixed.get("sagemaker_job_name")
    if value:
        findings.origins["id"] = "hyperparameter sagemaker_job_name"
    return str(value or "")


def check_texts(fixed: Mapping[str, object], findings: Findings) -> None:
    """The texts that become variables as they are."""
    for key in ("sagemaker_job_name", "sagemaker_region"):
        value = fixed.get(key)
        if isinstance(value, str) and not value.isprintable():
            findings.expected(key, "plain text", value, "send a name without control characters")


def find_log_level(fixed: Mapping[str, object], findings: Findings) -> int:
    """The level by name or by number (B21); 20, INFO, when none is given."""
    key = "sagemaker_container_log_level"
    value = fixed.get(key)
    if value is None or value == "":
        return DEFAULT_LEVEL
    findings.origins["log_level"] = f"hyperparameter {key}"
    if isinstance(value, str):
        text = value.strip()
        value = int(text) if text.isdecimal() and len(text) < 5 else _LEVELS.get(text.upper())
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 50:
        return value
    what = "DEBUG, INFO, WARNING, ERROR, CRITICAL or a number from 0 to 50"
    findings.expected(key, what, fixed[key], "send INFO or 20")
    return DEFAULT_LEVEL
