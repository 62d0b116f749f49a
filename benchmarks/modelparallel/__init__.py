"""Figures of model parallelism beside its peers."""
