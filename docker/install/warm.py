"""Imports what jobs import, so that Python leaves the compiled modules in the image."""

import importlib

NAMES = (
    "boto3.session",
    "mpi4py.run",
    "numpy",
    "paramiko",
    "pip._internal.cli.main",
    "torch",
    "torch.distributed.algorithms.join",
    "torch.distributed.checkpoint",
    "torch.distributed.elastic.rendezvous.registry",
    "torch.distributed.fsdp",
    "torch.distributed.run",
    "torch.nn.parallel",
    "torch.optim.lr_scheduler",
    "torch.utils.data.distributed",
)

for name in NAMES:
    importlib.import_module(name)
