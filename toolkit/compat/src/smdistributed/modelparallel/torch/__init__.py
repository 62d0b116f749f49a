"""PyTorch: `import smdistributed.modelparallel.torch as smp`.

The functions and classes are those of `muster_modelparallel`, one for one; what is only in a module
of its own there is in the modules below, under the library's names.
"""

import muster_modelparallel
from muster_modelparallel import *  # noqa: F403
from smdistributed.modelparallel.torch import amp, model, nn, optimizers, patches, utils
from smdistributed.modelparallel.version import __version__  # noqa: F401

__all__ = [*muster_modelparallel.__all__, "amp", "model", "nn", "optimizers", "patches", "utils"]  # noqa: PLE0604
