"""The client side: what users of the SageMaker SDKs call before a job exists.

`hyperparameters` is for generic Estimators and for every other client that has no `distribution=`
of its own; `muster.sdk.v3.Muster` is the one for SDK v3's ModelTrainer. Needs no SDK installed.
"""

from muster.sdk.keys import hyperparameters
from muster.sdk.refusal import RequestError

__all__ = ["RequestError", "hyperparameters"]
