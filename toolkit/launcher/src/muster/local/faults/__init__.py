"""Faults that `muster local --fault` does to a job; never part of `train`."""
