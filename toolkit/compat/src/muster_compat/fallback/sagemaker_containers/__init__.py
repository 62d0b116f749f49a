"""The older name of sagemaker-training: what training scripts import of it."""

from sagemaker_training.environment import Environment as training_env  # noqa: N813

__all__ = ["training_env"]
