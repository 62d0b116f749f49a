"""What MXNet training scripts import of the container package: `training_utils`."""
