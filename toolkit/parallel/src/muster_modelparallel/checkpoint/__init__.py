"""Checkpoints in the documented partial and full layouts."""
