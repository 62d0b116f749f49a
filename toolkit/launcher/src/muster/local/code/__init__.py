"""The code of a run: which files are packed."""
