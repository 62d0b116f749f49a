"""`SAGEMAKER_TRAINING_MODULE`: obeyed when an image's author set it."""

from __future__ import annotations

from collections.abc import Mapping

from muster.contract.findings import Findings

VARIABLE = "SAGEMAKER_TRAINING_MODULE"
# Vendor images set these; what their functions do is what this launcher does in their place.
_REPLACED = (
    "muster.contract.hook",
    "sagemaker_chainer_container",
    "sagemaker_huggingface_training_toolkit",
    "sagemaker_mxnet_container",
    "sagemaker_pytorch_container",
    "sagemaker_sklearn_container",
    "sagemaker_tensorflow_container",
)


def find_training_function(environ: Mapping[str, str], findings: Findings) -> str:
    """`module:function` that is to own the job, or "" when this launcher does.

    A known vendor toolkit, or muster's hook, is left out with one warning.
    """
    value = environ.get(VARIABLE, "").strip()
    if not value:
        return ""
    module, colon, function = value.partition(":")
    if module.startswith(_REPLACED):
        findings.warnings.append(f"{VARIABLE}={value} is not called: muster does its work")
        return ""
    names = [*module.split("."), *function.split(".")]
    if not colon or not all(name.isidentifier() for name in names):
        fix = "name a function without arguments, such as my_toolkit.training:main, or unset it"
        findings.expected(f"variable {VARIABLE}", "module:function", value, fix)
        return ""
    findings.origins["program"] = f"variable {VARIABLE}"
    return value
